"""Atomic writes of files and folders: made under a temporary name beside their place, then renamed.

A workplace is a hidden folder ``.NAME-xxxxxxxx.tmp`` beside the target, so that one rename brings what it holds into
place. Its maker holds a lock on a file in it for as long as it lives, whose name tells which system hands the lock
out: the system lets go of the lock of a killed process, which the next writer of the same target sees.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from gears.files.paths import user_path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

SECONDS_OF_REST = 24 * 3600.0
"""A workplace whose maker cannot be asked is left over when nothing in it has changed for so long."""
LOCK, ASIDE = ".lock-", ".old"
"""How the lock's name begins; how that of what was moved aside for a new folder ends."""
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

    What dead writers of the same `path` left behind is removed first.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    held = None
    while held is None:
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}-", suffix=".tmp", dir=path.parent))
        held = _hold(folder)  # in vain where a cleaner came in between
    try:
        clean_leftovers(path.parent, path.name)
        yield folder / path.name
    finally:
        _remove(folder, path, held)


def clean_leftovers(folder: Path, name: str | None = None, *, alone: bool = False) -> list[Path]:
    """Remove the workplaces of dead writers.

    A writer is dead when its lock is free and this very system handed the lock out. Of other
    machines, of a system before its last start and of systems without such locks one cannot know:
    there nothing in the workplace may have changed for a day. A folder that was moved aside
    for a new one that never came is put back.

    Parameters
    ----------
    folder
        Where the targets are.
    name
        Of a target; of all targets in the folder if not given.
    alone
        No other process can be writing there (the caller holds their lock): all that is there is left over.

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
            place, target = Path(entry.path), folder / made["name"]
            with contextlib.suppress(OSError):  # another one cleans it, or we may not
                if alone:
                    _remove(place, target, None)
                if alone or _remove_if_dead(place, target):
                    removed.append(place)
    return removed


def _remove(place: Path, target: Path, held: int | None) -> None:
    """Remove a workplace, its lock last; what was moved aside goes back where nothing came for it."""
    aside = place / f"{target.name}{ASIDE}"
    if aside.exists() and not target.exists():
        os.rename(aside, target)
    with contextlib.suppress(OSError):
        for entry in sorted(place.iterdir(), key=lambda entry: entry.name.startswith(LOCK)):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)
    if held is not None:
        os.close(held)  # some file systems keep the names of open files until now
    shutil.rmtree(place, ignore_errors=True)


def _hold(folder: Path) -> int | None:
    """Hold the lock of a new workplace; None if another writer took it for left over in between."""
    lock = folder / f"{LOCK}{this_system()}"
    try:
        held = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    except FileNotFoundError:
        return None
    if fcntl is not None:
        with contextlib.suppress(OSError):  # no locks here: it is judged by its age
            fcntl.flock(held, fcntl.LOCK_EX)
    if lock.exists():
        return held
    os.close(held)
    return None


def _remove_if_dead(place: Path, target: Path) -> bool:
    """Remove a workplace whose maker is gone; whether it was."""
    with contextlib.suppress(OSError):
        os.rmdir(place)  # empty: its maker was ending, or is beginning and makes another
        return True
    lock = next((entry for entry in place.iterdir() if entry.name.startswith(LOCK)), None)
    held = None if lock is None else os.open(lock, os.O_RDWR)
    dead = False
    try:
        dead = _is_dead(place, lock, held)
    finally:
        if held is not None and not dead:
            os.close(held)
    if dead:
        _remove(place, target, held)
    return dead


def _is_dead(place: Path, lock: Path | None, held: int | None) -> bool:
    """Whether a workplace's lock could be taken and is of this system, or nothing has changed for long."""
    if lock is not None and held is not None and fcntl is not None:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if lock.name == f"{LOCK}{this_system()}" != LOCK:
                return True
        except BlockingIOError:
            return False
        except OSError:
            pass  # no locks here
    return _rested(place)


def _rested(place: Path) -> bool:
    """Whether nothing in a folder has changed for a day, by the clock of the disk it is on."""
    newest = max(path.lstat().st_mtime for path in (place, *place.rglob("*")))
    with tempfile.TemporaryFile(dir=place.parent) as now:
        return os.fstat(now.fileno()).st_mtime - newest > SECONDS_OF_REST


@cache
def this_system() -> str:
    """What tells the running kernel, whose locks these are, from every other (Linux; else nothing does)."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""
