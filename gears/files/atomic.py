"""Atomic writes of files and folders: made under a temporary name beside their place, then renamed.

A workplace is a hidden folder ``.NAME-xxxxxxxx.tmp`` beside the target, so that one rename brings what it holds into
place. What a killed writer leaves goes when nothing in it has changed for a day.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from gears.files.paths import user_path

SECONDS_OF_REST = 24 * 3600.0
"""A workplace is left over when nothing in it has changed for so long."""
_MADE = re.compile(r"\.(?P<name>.+)-[a-z0-9_]{8}\.tmp")


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
        if not path.exists():
            os.rename(temporary, path)
        elif not _exchange(temporary, path):
            _swap(temporary, path)
        _sync_folder(path.parent)


@contextlib.contextmanager
def only_writer(path: Path, message: str) -> Iterator[None]:
    """Keep out other processes that write `path` through this function, within the block.

    The lock is a hidden file beside `path`; it ends with the process that holds it.

    Raises
    ------
    FileExistsError
        Another process is within such a block; with `message`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(_lock_of(path))
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise FileExistsError(message) from error
    try:
        yield
    finally:
        lock.release()


def check_no_writer(path: Path, message: str) -> None:
    """Raise what :func:`only_writer` would raise now; nothing is left behind."""
    if _lock_of(path).exists():
        with only_writer(path, message):
            pass


def _lock_of(path: Path) -> Path:
    return path.parent / f".{path.name}.lock"


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


def _swap(new: Path, path: Path) -> None:
    """Move the old folder aside and the new one in; the old one goes back where the second step fails."""
    aside = new.with_name(f"{path.name}.old")
    os.rename(path, aside)
    try:
        os.rename(new, path)
    except BaseException:
        os.rename(aside, path)
        raise


@contextlib.contextmanager
def scratch_folder(parent: str | Path) -> Iterator[Path]:
    """Yield a hidden folder in `parent` (made if need be) that is removed when the block ends."""
    with workplace(user_path(parent) / "scratch") as folder:
        folder.mkdir()
        yield folder


def _sync_folder(folder: Path) -> None:
    """Make renames in `folder` durable where the system lets a folder be opened."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def workplace(path: Path) -> Iterator[Path]:
    """Yield a place of the same name as `path` in a new workplace; all that is still there goes when the block ends.

    What killed writers of the same `path` left behind long ago is removed first.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    clean_leftovers(path.parent, path.name)
    folder = Path(tempfile.mkdtemp(prefix=f".{path.name}-", suffix=".tmp", dir=path.parent))
    try:
        yield folder / path.name
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def clean_leftovers(folder: Path, name: str | None = None, *, alone: bool = False) -> list[Path]:
    """Remove the workplaces in which nothing has changed for a day.

    Parameters
    ----------
    folder
        Where the targets are.
    name
        Of a target; of all targets in the folder if not given.
    alone
        No other process can be writing there (the caller holds their file lock): all that is there is left over.

    Returns
    -------
    list of Path
        What was removed.
    """
    removed = []
    with contextlib.suppress(OSError):  # there is none, or we may not look
        for entry in list(os.scandir(folder)):
            made = _MADE.fullmatch(entry.name)
            if made is None or name not in (None, made["name"]) or not entry.is_dir(follow_symlinks=False):
                continue
            place = Path(entry.path)
            with contextlib.suppress(OSError):  # another one removes it, or we may not look
                if alone or time.time() - _last_change(place) > SECONDS_OF_REST:
                    shutil.rmtree(place, ignore_errors=True)
                    removed.append(place)
    return removed


def _last_change(place: Path) -> float:
    """When anything in a folder changed last."""
    return max(path.lstat().st_mtime for path in (place, *place.rglob("*")))
