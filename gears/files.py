"""The one place that writes files: in a workplace beside their own, flushed to disk, then renamed."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gears.mapped import pieces
from gears.messages import shorten
from gears.workplace import ASIDE, workplace

LARGEST_UNCHECKED = 1 << 30
MOST_TIMES = 200
"""A zip file may unpack to so many times its size, if to more than so many bytes: deflate reaches a thousand."""


def user_path(path: str | os.PathLike[str]) -> Path:
    """A path that a user gave, with ``~`` as the home folder.

    Raises
    ------
    TypeError
        It is no path.
    ValueError
        There is no such user (``~name``), or no home folder is known.
    """
    if not isinstance(path, str | os.PathLike):
        msg = f"expected a path, as text or pathlib.Path; found {path!r}"
        raise TypeError(msg)
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        msg = f"{path}: the home folder that ~ stands for is not known; write the path in full"
        raise ValueError(msg) from error


def need_file(path: str | os.PathLike[str], what: str) -> Path:
    """A user's path at which something is.

    Raises
    ------
    FileNotFoundError
        Nothing is there.
    """
    place = user_path(path)
    if not place.exists():
        msg = f"{what}: there is no file or folder {place}"
        raise FileNotFoundError(msg)
    return place


def check_folder(path: str | os.PathLike[str], what: str) -> Path:
    """The folder that results are to go to, tried before any work is done; nothing is left there.

    Parameters
    ----------
    path
        Need not exist.
    what
        The argument's name, for messages.

    Raises
    ------
    FileExistsError, NotADirectoryError
        It, or a part of its path, is a file.
    OSError
        It cannot be written to; of the system's class (``PermissionError``, ...).
    """
    folder = user_path(path)
    try:
        above = next(parent for parent in folder.absolute().parents if parent.exists())
        if not above.is_dir():
            msg = f"{what} {folder} cannot be made: {above} is a file; choose another {what}"
            raise NotADirectoryError(msg)
        if folder.exists() and not folder.is_dir():
            msg = f"{what} {folder} is a file; choose another {what}"
            raise FileExistsError(msg)
        beside = f".{folder.name}-" if above == folder.absolute().parent else None
        with tempfile.TemporaryDirectory(prefix=beside, suffix=".tmp", dir=above):
            pass
        if folder.exists():
            with tempfile.TemporaryFile(dir=folder):
                pass
    except OSError as error:
        if error.errno is None:
            raise
        msg = f"{what} {folder} cannot be written to ({error.strerror}); choose another {what}"
        raise OSError(error.errno, msg) from error
    return folder


def write_atomically(path: str | Path, write: Callable[[Path], None]) -> Path:
    """Let ``write(temporary_path)`` fill a file beside `path`, then put it in place by one rename.

    A reader sees the old file or the new one, never a part. The temporary file has the
    name of `path` (some writers choose the format by it), in a folder of its own.
    """
    path = user_path(path)
    with workplace(path) as temporary, naming(path, temporary.parent):
        write(temporary)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    return path


@contextlib.contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary sibling folder; swap it in as `path` when the block ends without error.

    An existing `path` is replaced as a whole: the two change names in one step where the
    system can (Linux); elsewhere it is moved aside, the new one takes its name, and only then
    is the old one removed.
    """
    path = user_path(path)
    with workplace(path) as temporary:
        with naming(path, temporary.parent):
            temporary.mkdir()
            yield temporary
            _sync_folder(temporary)
        if path.exists() and not _exchange(temporary, path):
            os.rename(path, temporary.with_name(f"{path.name}{ASIDE}"))
        if temporary.exists() and not path.exists():
            os.rename(temporary, path)
        _sync_folder(path.parent)


def need_space(path: str | Path, n_bytes: int) -> None:
    """Refuse to begin what the disk has no room for: HDF5's library does not outlive a disk that fills up under it.

    Raises
    ------
    OSError
        There is less space than so many bytes where `path` is to go.
    """
    place = user_path(path)
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < n_bytes:
        msg = f"{path} needs about {n_bytes / 1e6:.0f} MB, {free / 1e6:.0f} MB are free; make room or go elsewhere"
        raise OSError(errno.ENOSPC, msg)


@contextlib.contextmanager
def naming(path: Path, temporary: Path) -> Iterator[None]:
    """Errors of the system while `temporary` is written name `path` and say what is left.

    Raises
    ------
    OSError
        With the error's number: of the same class (``PermissionError``, ...).
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "write failed" not in str(error):
            raise  # HDF5 says so of a disk that is full when a file is closed
        named = getattr(error, "filename", None)
        if named is not None and not str(named).startswith(str(temporary)):
            raise  # about another file
        msg = (
            f"{path} could not be written ({_reason(error)}); what was there before is as it was: free some space, or "
            "choose another place"
        )
        raise OSError(getattr(error, "errno", None) or errno.EIO, msg) from error


def _reason(error: Exception) -> str:
    """The system's words, also out of those of HDF5, which has a page of its own around them."""
    within = re.search(r"error message = '([^']+)'", str(error))
    return within[1] if within else getattr(error, "strerror", None) or str(error)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step, so that no moment has neither; False where the system cannot."""
    import ctypes

    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0


@contextlib.contextmanager
def scratch_folder(parent: str | Path) -> Iterator[Path]:
    """Yield a hidden folder in `parent` (made if need be) that is removed when the block ends."""
    with workplace(user_path(parent) / "scratch") as folder:
        folder.mkdir()
        yield folder


def write_text(path: str | Path, text: str) -> Path:
    """Write text (UTF-8) atomically."""
    return write_atomically(path, lambda temporary: _ignore(temporary.write_text(text, encoding="utf-8")))


def write_json(path: str | Path, value: Any) -> Path:
    """Write a value as JSON (UTF-8, indented), numpy scalars and arrays as numbers and lists."""
    text = json.dumps(value, indent=1, ensure_ascii=False, default=_plain)
    return write_text(path, text + "\n")


def read_json(path: str | Path) -> Any:
    """Read JSON; an unreadable file is named in the error."""
    path = user_path(path)
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError, MemoryError) as error:
        msg = f"{path} is not valid JSON ({shorten([error])}); it may be damaged: restore it or make it anew"
        raise ValueError(msg) from error


def write_npz(path: str | Path, arrays: dict[str, np.ndarray], *, compressed: bool = True) -> Path:
    """Write arrays (no objects) to an npz file atomically."""
    save = np.savez_compressed if compressed else np.savez

    def write(temporary: Path) -> None:
        with open(temporary, "wb") as file:
            save(file, **arrays)  # type: ignore[arg-type]

    return write_atomically(path, write)


def read_npz(path: str | Path) -> dict[str, np.ndarray]:
    """Read every array of an npz file; pickled objects are refused."""
    path = user_path(path)
    try:
        refuse_bomb(path)
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
        foreign = [key for key, value in arrays.items() if not isinstance(value, np.ndarray)]
        if foreign:
            msg = f"it holds files that are no arrays: {shorten(foreign)}"
            raise ValueError(msg)
        return arrays
    except FileNotFoundError:
        raise
    except Exception as error:
        msg = f"{path} cannot be read as an npz file ({error}); it may be damaged: restore it or make it anew"
        raise ValueError(msg) from error


def refuse_bomb(path: str | Path) -> None:
    """Refuse a zip file whose content is out of all proportion to its size.

    Raises
    ------
    ValueError
        It would fill the memory.
    """
    with zipfile.ZipFile(path) as archive:
        whole = sum(entry.file_size for entry in archive.infolist())
    packed = user_path(path).stat().st_size
    if whole > LARGEST_UNCHECKED and whole > MOST_TIMES * packed:
        msg = f"{packed} bytes would become {whole}: it is not unpacked"
        raise ValueError(msg)


def content_hash(*parts: Any) -> str:
    """SHA-256 (hex) of arrays, bytes and JSON-like values, in order.

    Arrays enter with dtype and shape, so that equal bytes of another shape differ.
    """
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray) and part.dtype.kind not in "OUT":
            digest.update(f"{part.dtype.str}{part.shape}".encode())
            for piece in pieces(np.ascontiguousarray(part).reshape(-1)):
                digest.update(piece.data)
        elif isinstance(part, bytes):
            digest.update(part)
        else:
            digest.update(json.dumps(part, sort_keys=True, default=_plain).encode())
        digest.update(b"\x00")
    return digest.hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    msg = f"cannot write {type(value).__name__} as JSON"
    raise TypeError(msg)


def _sync_folder(folder: Path) -> None:
    """Make renames in `folder` durable where the system lets a folder be opened."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _ignore(_: object) -> None:
    return None
