"""Whether files are still what was written: checksums, which find damage (they are no signature)."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gears.files import content_hash
from gears.messages import shorten

SEAL = "checksum"
LARGEST_CHECKED = 512 << 20
"""Larger files are checked by their length only, unless the caller asks for all."""


def file_checksum(path: Path) -> str:
    """CRC-32 of a file, in hexadecimal."""
    value = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            value = zlib.crc32(block, value)
    return f"{value:08x}"


def check_file(folder: Path, name: str, checksums: Mapping[str, str], *, whole: bool = False) -> None:
    """Compare a file with its recorded checksum; one that was recorded without is taken as it is.

    Parameters
    ----------
    folder, name
        The file, its name relative to the folder, with ``/``.
    checksums
        By name.
    whole
        Also where the file is larger than :data:`LARGEST_CHECKED`.

    Raises
    ------
    FileNotFoundError, ValueError
        It is missing, or was changed.
    """
    path, expected = folder / name, checksums.get(name)
    if expected is None or (not whole and path.stat().st_size > LARGEST_CHECKED):
        return
    found = file_checksum(path)
    if found != expected:
        msg = f"{path} is not what was written (checksum {found}, was {expected}): it is damaged; restore or remake it"
        raise ValueError(msg)


def checksums_of(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Checksum of each file, by name relative to the folder."""
    return {name: file_checksum(folder / name) for name in sorted(names)}


def sealed(plain: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest with a checksum of itself."""
    return {**plain, SEAL: _seal(plain)}


def check_seal(path: Path, manifest: Mapping[str, Any]) -> None:
    """Refuse a manifest that was changed after it was sealed; one without a seal is taken as it is.

    Raises
    ------
    ValueError
        Its checksum is that of other content.
    """
    if SEAL in manifest and manifest[SEAL] != _seal(manifest):
        msg = (
            f"{path} was changed after it was written (its checksum does not fit); restore it or make it anew"
        )
        raise ValueError(msg)


def need_types(path: Path, plain: Any, expected: Mapping[str, type | tuple[type, ...]]) -> None:
    """Refuse a file of plain values in which an entry is missing or of another type.

    Raises
    ------
    ValueError
        With the entries that are wrong.
    """
    if not isinstance(plain, dict):
        msg = f"{path} holds {type(plain).__name__}, expected an object with {', '.join(expected)}"
        raise ValueError(msg)
    wrong = [
        f"{name} ({type(plain[name]).__name__})" if name in plain else f"{name} (missing)"
        for name, kind in expected.items()
        if not isinstance(plain.get(name), kind)
    ]
    if wrong:
        msg = f"{path} has entries of the wrong kind: {shorten(wrong)}; it may be damaged: restore it or make it anew"
        raise ValueError(msg)


def need_names(path: Path, plain: Mapping[str, Any], *keys: str) -> None:
    """Refuse a file in which a list of names holds anything but text.

    Raises
    ------
    ValueError
        With the list and what it holds.
    """
    for key in keys:
        wrong = [type(name).__name__ for name in plain[key] if not isinstance(name, str)]
        if wrong:
            msg = f"{path}: {key} holds {shorten(dict.fromkeys(wrong))} among the names; expected text only"
            raise ValueError(msg)


def _seal(plain: Mapping[str, Any]) -> str:
    # as it is read back: keys become text, tuples lists
    as_read = json.loads(json.dumps({key: value for key, value in plain.items() if key != SEAL}, default=str))
    return content_hash(as_read)[:16]
