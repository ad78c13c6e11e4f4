"""HDF5 files and zarr stores that somebody else made: nothing beyond them is read, nothing in them is run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gears.data.heaps import refuse_broken_heaps
from gears.files import user_path
from gears.messages import shorten

LARGEST_UNCHECKED = 4 << 30
MOST_TIMES = 1000
"""A file may hold arrays of so many times its size, if of more than so many bytes: deflate reaches a thousand."""
CODECS = frozenset([
    "blosc", "zlib", "gzip", "zstd", "lz4", "bz2", "lzma", "lzf", "snappy", "vlen-utf8", "vlen-bytes",
    "vlen-array", "delta", "shuffle", "fixedscaleoffset", "quantize", "packbits", "astype", "categorize",
    "crc32", "crc32c", "adler32", "fletcher32", "bytes", "transpose", "sharding_indexed", "endian",
    "string", "json2", "msgpack2",
])  # fmt: skip
"""Codecs that only turn bytes into numbers or text; ``pickle``, which runs what it reads, is none of them."""


def refuse_beyond(path: str | Path) -> None:
    """Refuse an HDF5 file with links to other files, or with arrays that would fill the memory.

    Raises
    ------
    ValueError
        With the names of what points outside.
    """
    import h5py

    path = user_path(path)
    if not h5py.is_hdf5(path):
        return  # whoever reads it says what is wrong
    try:
        refuse_broken_heaps(path)
        with h5py.File(path, "r") as file:
            outside, size = _survey(file)
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        if str(path) in str(error):
            raise
        msg = f"{path} is damaged or cut short ({error}); get it again"
        raise ValueError(msg) from error
    if outside:
        msg = f"{path} has entries that are kept in other files ({shorten(outside, 3)}); it is not opened"
        raise ValueError(msg)
    packed = path.stat().st_size
    if size > LARGEST_UNCHECKED and size > MOST_TIMES * packed:
        msg = f"{path} ({packed} bytes) would become {size} bytes in memory; it is not opened"
        raise ValueError(msg)


def _survey(file: Any) -> tuple[list[str], int]:
    """Names of what lies in other files, and the bytes of all arrays."""
    import h5py

    outside, size, waiting, seen = [], 0, [file], set()
    while waiting:
        group = waiting.pop()
        for name in group:
            link = group.get(name, getlink=True)
            if isinstance(link, h5py.ExternalLink):
                outside.append(f"{group.name}/{name}")
                continue
            entry = group.get(name)
            if isinstance(entry, h5py.Dataset):
                size += int(entry.size or 0) * entry.dtype.itemsize
                if entry.external or entry.is_virtual:
                    outside.append(entry.name)
            elif isinstance(entry, h5py.Group):
                place = h5py.h5o.get_info(entry.id).addr
                if place not in seen:  # groups may hold each other
                    seen.add(place)
                    waiting.append(entry)
    return outside, size


def refuse_odd_codecs(folder: str | Path) -> None:
    """Refuse a zarr store whose arrays need a codec that is not known to be harmless, or that links elsewhere.

    Raises
    ------
    ValueError
        With the codecs or links.
    """
    folder = user_path(folder)
    odd: set[str] = set()
    links = []
    for place in folder.rglob("*"):
        if place.is_symlink():
            links.append(place.relative_to(folder).as_posix())
        elif place.name in (".zarray", ".zmetadata", "zarr.json"):
            try:
                plain = json.loads(place.read_text(encoding="utf-8"))
            except (ValueError, RecursionError, OSError) as error:
                msg = f"{place} is not valid JSON ({shorten([error])}); get the store again"
                raise ValueError(msg) from error
            odd |= {name for name in _codecs(plain) if name.removeprefix("numcodecs.") not in CODECS}
    if odd or links:
        what = f"codecs that may run code ({shorten(sorted(odd))})" if odd else f"links ({shorten(links, 3)})"
        msg = f"{folder} has {what}; it is not opened"
        raise ValueError(msg)


def _codecs(plain: Any) -> Iterator[str]:
    """Names of codecs anywhere in the metadata of arrays."""
    if isinstance(plain, dict):
        for key, value in plain.items():
            if key in ("filters", "compressor", "codecs", "index_codecs", "compressors", "object_codec"):
                for codec in value if isinstance(value, list) else [value]:
                    if isinstance(codec, dict):
                        yield str(codec.get("id") or codec.get("name"))
            yield from _codecs(value)
    elif isinstance(plain, list):
        for value in plain:
            yield from _codecs(value)
