"""Taking one file out of an archive that somebody else made."""

from __future__ import annotations

import shutil
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from gears.files import write_atomically
from gears.messages import shorten

LARGEST = 200 * 10**9
"""No published screen comes near this many bytes."""


def is_archive(path: Path) -> bool:
    """Whether a file is a zip or tar archive, by its content."""
    return path.is_file() and (zipfile.is_zipfile(path) or tarfile.is_tarfile(path))


def extract_file(archive: Path, name: str, target: Path, *, largest: int = LARGEST) -> Path:
    """Take the one file called `name`, in whatever folder of the archive, out to `target` (atomically).

    Nothing else is written, so that no path inside the archive is ever used as a
    place on disk; an archive with unsafe entries is refused all the same.

    Raises
    ------
    ValueError
        If the archive is damaged or unsafe, lacks the file, or has it twice.
    """
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened:
                _from_zip(opened, archive, name, target, largest)
        else:
            with tarfile.open(archive) as tar:
                _from_tar(tar, archive, name, target, largest)
    except Exception as error:  # whatever zipfile, tarfile and what they unpack with make of damage
        if any(str(place) in str(error) for place in (archive, target)):
            raise
        msg = f"{archive} is damaged, or no zip or tar archive ({error}); get it again"
        raise ValueError(msg) from error
    return target


def _from_zip(opened: zipfile.ZipFile, archive: Path, name: str, target: Path, largest: int) -> None:
    entries = opened.infolist()
    links = [entry.filename for entry in entries if stat.S_ISLNK(entry.external_attr >> 16)]
    _refuse(archive, [entry.filename for entry in entries], links)
    chosen = _only(archive, name, [entry.filename for entry in entries if not entry.is_dir()])
    size = opened.getinfo(chosen).file_size
    with opened.open(chosen) as source:
        _write(source, target, size, largest, archive)


def _from_tar(tar: tarfile.TarFile, archive: Path, name: str, target: Path, largest: int) -> None:
    members = tar.getmembers()
    odd = [member.name for member in members if not (member.isfile() or member.isdir())]
    _refuse(archive, [member.name for member in members], odd)
    chosen = _only(archive, name, [member.name for member in members if member.isfile()])
    member = tar.getmember(chosen)
    source = tar.extractfile(member)
    assert source is not None
    with source:
        _write(source, target, member.size, largest, archive)


def _refuse(archive: Path, names: list[str], odd: list[str]) -> None:
    unsafe = [*_outside(names), *odd]
    if unsafe:
        msg = f"{archive} has entries that point outside of it or are no files ({shorten(unsafe, 3)}); it is not opened"
        raise ValueError(msg)


def _outside(names: list[str]) -> Iterator[str]:
    for name in names:
        path = PurePosixPath(name.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or ":" in name:
            yield name


def _only(archive: Path, name: str, names: list[str]) -> str:
    found = [entry for entry in names if PurePosixPath(entry).name == name and "__MACOSX" not in entry]
    if len(found) != 1:
        what = "several files" if found else "no file"
        msg = f"{archive} has {what} {name!r} (it has {shorten(names) or 'nothing'})"
        raise ValueError(msg)
    return found[0]


def _write(source: IO[bytes], target: Path, size: int, largest: int, archive: Path) -> None:
    """The file, never longer than the archive says (checked by zip and tar through CRC and size too)."""
    if size > largest:
        msg = f"{archive} says that it holds {size} bytes, more than the {largest} allowed"
        raise ValueError(msg)

    def write(temporary: Path) -> None:
        with open(temporary, "wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)

    write_atomically(target, write)
