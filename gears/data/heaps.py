"""The heaps in which HDF5 keeps text: a damaged one keeps its library busy for ever, or takes it beyond its memory.

Source: HDF5 File Format Specification, III.E, "Global Heap Block".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

HEAD = b"GCOL\x01\x00\x00\x00"
"""Begins a heap (version 1, the only one); its length and the objects follow."""
_LENGTH, _OBJECT = struct.Struct("<Q"), struct.Struct("<HHIQ")
BLOCK = 1 << 22
SIZES = (8, 8)
"""Bytes of addresses and lengths in practically every file; files of other sizes are not looked at."""


def refuse_broken_heaps(path: str | Path) -> None:
    """Refuse an HDF5 file with a heap whose objects do not fill it one after another.

    The file is read once from end to end; the same file is not looked at twice.

    Raises
    ------
    ValueError
        With the place.
    """
    status = Path(path).stat()
    place = _broken_heap(str(path), status.st_size, status.st_mtime_ns)
    if place is not None:
        msg = (
            f"{path} is damaged: the texts kept at byte {place} have no end; get it again (a file that other programs "
            "read can be repaired by h5repack)"
        )
        raise ValueError(msg)


@lru_cache(maxsize=64)
def _broken_heap(path: str, size: int, changed: int) -> int | None:
    """Where the first broken heap begins; None if there is none. Size and time tell one content from another."""
    import h5py

    with h5py.File(path, "r") as file:
        if tuple(file.id.get_create_plist().get_sizes()) != SIZES:
            return None
    with open(path, "rb") as content:
        return next((place for place in _heaps(content) if not _is_whole(content, place, size)), None)


def _heaps(content: BinaryIO) -> Iterator[int]:
    """Where heaps begin, found block by block."""
    begin, kept = 0, b""
    while block := content.read(BLOCK):
        block = kept + block
        place = block.find(HEAD)
        while place >= 0:
            after = content.tell()
            yield begin + place
            content.seek(after)
            place = block.find(HEAD, place + len(HEAD))
        kept = block[-(len(HEAD) - 1) :]
        begin += len(block) - len(kept)


def _is_whole(content: BinaryIO, place: int, size: int) -> bool:
    """Whether the objects of a heap, each a head and a body of whole eights, reach its end."""
    content.seek(place + len(HEAD))
    head = content.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return False
    end = place + _LENGTH.unpack(head)[0]
    if end > size:
        return False
    at = content.tell()
    while at + _OBJECT.size <= end:
        content.seek(at)
        number, _, _, length = _OBJECT.unpack(content.read(_OBJECT.size))
        # object 0 is the room that is left; its length includes its head
        need = length if number == 0 else _OBJECT.size + -(-length // 8) * 8
        if not 0 < need <= end - at:
            return False
        at += need
    return True
