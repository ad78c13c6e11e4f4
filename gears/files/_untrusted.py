"""Check untrusted files: text that is text, no links to other files."""

from __future__ import annotations

import gzip
import itertools
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from gears.core._messages import shorten
from gears.files._paths import existing_file, user_path

DAMAGE = (UnicodeDecodeError, EOFError, gzip.BadGzipFile, zlib.error)


class WholeLines:
    """A binary file of text for scipy's matrix reader, which crashes on zero bytes and a missing last line feed."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._last = file, b"\n"

    def read(self, n: int = -1) -> bytes:
        """Some bytes; ValueError where one of them is zero."""
        content = self._file.read(n)
        if b"\x00" in content:
            msg = "it holds zero bytes, which are no text"
            raise ValueError(msg)
        if not content and n and self._last != b"\n":
            content = b"\n"
        self._last = content[-1:] or self._last
        return content


def text_lines(path: str | Path) -> Iterator[str]:
    """Lines of a text file (UTF-8; gzipped as ``.gz``) with their ends; ValueError if it is no text, or damaged."""
    path, number = user_path(path), 0
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8-sig", newline="") as file:  # type: ignore[operator]
        try:
            for line in file:
                number += 1
                yield line
        except DAMAGE as error:
            msg = f"{path}, after line {number}, cannot be read as text ({error}); get it again"
            raise ValueError(msg) from error


def listed_names(path: str | Path) -> list[str]:
    """Lines of a text file (:func:`text_lines`) without surrounding blanks; empty ones are skipped."""
    return [line.strip() for line in text_lines(existing_file(path)) if line.strip()]


def refuse_beyond(path: str | Path) -> None:
    """Raise ValueError for an HDF5 file with links to other files."""
    import h5py

    path = user_path(path)
    if not h5py.is_hdf5(path):
        return  # the reader raises a better error
    try:
        with h5py.File(path, "r") as file:
            outside = _entries_elsewhere(file)
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        if str(path) in str(error):
            raise
        msg = f"{path} is damaged or cut short ({error}); get it again"
        raise ValueError(msg) from error
    if outside:
        msg = f"{path} has entries that are stored in other files ({shorten(outside, 3)}); it is not opened"
        raise ValueError(msg)


def _entries_elsewhere(file: Any) -> list[str]:
    """Names of entries that are stored in other files."""
    import h5py

    outside, pending, visited = [], [file], set()
    while pending:
        group = pending.pop()
        for name in group:
            link = group.get(name, getlink=True)
            if isinstance(link, h5py.ExternalLink):
                outside.append(f"{group.name}/{name}")
                continue
            entry = group.get(name)
            if isinstance(entry, h5py.Dataset):
                if entry.external or entry.is_virtual:
                    outside.append(entry.name)
            elif isinstance(entry, h5py.Group):
                address = h5py.h5o.get_info(entry.id).addr
                if address not in visited:  # groups may hold each other
                    visited.add(address)
                    pending.append(entry)
    return outside


def refuse_links(folder: str | Path) -> None:
    """Raise ValueError for a zarr store with links to other files."""
    folder = user_path(folder)
    links = [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_symlink()]
    if links:
        msg = f"{folder} has links ({shorten(links, 3)}); it is not opened"
        raise ValueError(msg)


def check_config_files(arguments: Sequence[str]) -> None:
    """Raise ValueError for a file named by ``--config`` that is no YAML."""
    import yaml

    config_files = [word.partition("=")[2] for word in arguments if word.startswith("--config=")]
    config_files += [name for word, name in itertools.pairwise(arguments) if word == "--config"]
    for path in map(user_path, config_files):
        try:
            if path.is_file():
                list(yaml.parse(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader))
        except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
            msg = f"{path} cannot be read as YAML ({' '.join(str(error).split())}); expected lines of name: value"
            raise ValueError(msg) from error
