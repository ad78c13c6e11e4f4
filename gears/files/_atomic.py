"""Atomic writes of files and folders: written under a temporary name, then renamed.

Each write has a temporary folder ``.NAME-xxxxxxxx.tmp`` beside its target, on the same file system, so that one rename
puts the result in place. Leftovers of killed writers are removed when nothing in them has changed for a day.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from gears.files._paths import link_target, user_path

logger = logging.getLogger(__name__)

SECONDS_OF_REST = 24 * 3600.0
"""A temporary folder in which nothing has changed for this long is a leftover."""
_MORE = 1 << 20
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)
_MADE = re.compile(r"\.(?P<name>.+)-[a-z0-9_]{8}\.tmp")


def write_atomically(path: str | Path, write: Callable[[Path], object]) -> Path:
    """Let ``write(temporary_path)`` fill a temporary file of the same name, then rename it to `path`.

    A reader sees the old file or the new one, never an incomplete one. A link stays: what it points to is written.
    """
    path = link_target(user_path(path))
    with temporary_path(path) as temporary, naming(path, temporary.parent):
        write(temporary)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    return path


@contextlib.contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary sibling folder; swap it in as `path` when the block ends without error.

    An existing `path` is replaced: on Linux the two folders swap their names in one step; elsewhere the old one is
    renamed, the new one takes its name, and only then is the old one removed. A link stays: its folder is replaced.
    """
    path = link_target(user_path(path))
    with temporary_path(path) as temporary:
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
def locked(path: str | Path) -> Iterator[None]:
    """Within the block, let other processes wait that lock the same file; without a lock where the disk has none."""
    lock = FileLock(path)
    try:
        _acquire(lock)
        yield
    finally:
        lock.release()


def _acquire(lock: BaseFileLock, *, blocking: bool = True) -> bool:
    """Acquire a lock; False, with a warning, where the disk has no locks (some network disks)."""
    try:
        lock.acquire(blocking=blocking)
    except (OSError, NotImplementedError) as error:  # the second: earlier releases of filelock, ENOSYS
        if isinstance(error, OSError) and error.errno not in _NO_LOCKS:
            raise
        _warn_without_locks(Path(lock.lock_file).parent, str(error))
        return False
    return True


@functools.cache
def _warn_without_locks(folder: Path, reason: str) -> None:
    logger.warning(
        "the disk of %s has no file locks (%s): going on without; let no two processes prepare a screen or train in "
        "this folder at the same time", folder, reason,
    )  # fmt: skip


@contextlib.contextmanager
def only_writer(path: Path, message: str) -> Iterator[None]:
    """Within the block, keep out other processes that write `path` through it (FileExistsError with `message`)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(_lock_of(path))
    try:
        held = _acquire(lock, blocking=False)
        # the one before may have removed it between our opening and locking it
        while held and not _lock_of(path).exists():
            lock.release()
            held = _acquire(lock, blocking=False)
    except Timeout as error:
        raise FileExistsError(message) from error
    try:
        yield
    finally:
        _lock_of(path).unlink(missing_ok=True)  # while it is held, so that it is nobody else's
        lock.release()


def check_no_writer(path: Path, message: str) -> None:
    """Raise what :func:`only_writer` would raise now; nothing is left behind."""
    if _lock_of(path).exists():
        with only_writer(path, message):
            pass


def _lock_of(path: Path) -> Path:
    return path.parent / f".{path.name}.lock"


def need_space(path: str | Path, n_bytes: int) -> None:
    """Raise OSError before a write of more than the disk has free: the HDF5 library crashes on a full disk."""
    existing = user_path(path)
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if free < n_bytes:
        msg = f"{path} needs about {n_bytes / 1e6:.0f} MB, {free / 1e6:.0f} MB are free; choose another path"
        raise OSError(errno.ENOSPC, msg)


@contextlib.contextmanager
def naming(path: Path, temporary: Path) -> Iterator[None]:
    """Turn system errors while `temporary` is written into errors of the same class that name `path`."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "write failed" not in str(error):
            raise  # "write failed" is HDF5's message for a full disk when a file is closed
        error_file = getattr(error, "filename", None)
        if error_file is not None and not str(error_file).startswith(str(temporary)):
            raise  # about another file
        if "requested and" in str(error):
            error = error_of_next_write(temporary) or error  # numpy's error of a short write does not say why
        msg = (
            f"{path} could not be written ({_reason(error)}); what was there before is unchanged: free some space, or "
            "choose another path"
        )
        raise OSError(_number(error), msg) from error


def _reason(error: Exception) -> str:
    """The system's message, extracted from HDF5's longer one, or from ours about a file within a folder."""
    if isinstance(error.__cause__, OSError) and "could not be written" in str(error):
        return _reason(error.__cause__)
    match = re.search(r"error message = '([^']+)'", str(error))
    return match[1] if match else getattr(error, "strerror", None) or str(error)


def error_of_next_write(folder: Path) -> OSError | None:
    """The error of a further write into a folder: why one before it came short."""
    try:
        with open(folder / "more", "wb") as file:
            file.write(bytes(_MORE))
    except OSError as error:
        return error
    return None


def _number(error: Exception) -> int:
    """The system's error number, from HDF5's message where it is there only."""
    match = re.search(r"errno = (\d+)", str(error))
    return getattr(error, "errno", None) or (int(match[1]) if match else errno.EIO)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step, so that both always exist; False where the system cannot."""
    import ctypes

    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0


def _swap(new: Path, path: Path) -> None:
    """Rename the old folder, then the new one; undo the first step if the second fails."""
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
    with temporary_path(user_path(parent) / "scratch") as folder:
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
def temporary_path(path: Path) -> Iterator[Path]:
    """Yield a path of the same name as `path` in a new temporary folder, which is removed when the block ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    clean_leftovers(path.parent, path.name)
    folder = Path(tempfile.mkdtemp(prefix=f".{path.name}-", suffix=".tmp", dir=path.parent))
    try:
        yield folder / path.name
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def clean_leftovers(folder: Path, name: str | None = None, *, alone: bool = False) -> list[Path]:
    """Remove temporary folders in which nothing has changed for a day, and list them; of one target with a `name`."""
    # alone: no other process can write there (the caller holds their file lock), so that everything is a leftover
    removed = []
    with contextlib.suppress(OSError):  # missing, or not readable
        for entry in list(os.scandir(folder)):
            match = _MADE.fullmatch(entry.name)
            if match is None or name not in (None, match["name"]) or not entry.is_dir(follow_symlinks=False):
                continue
            leftover = Path(entry.path)
            with contextlib.suppress(OSError):  # removed by another process, or not readable
                changed = max(path.lstat().st_mtime for path in (leftover, *leftover.rglob("*")))
                if alone or time.time() - changed > SECONDS_OF_REST:
                    shutil.rmtree(leftover, ignore_errors=True)
                    removed.append(leftover)
    return removed
