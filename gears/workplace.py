"""Where files and folders are made before they take their place, and what becomes of what killed writers leave.

A workplace is a hidden folder ``.NAME-xxxxxxxx.tmp`` beside the target, so that one rename brings what it holds into
place. Its maker holds a lock on a file in it for as long as it lives: the system lets go of the lock of a killed
process, which the next writer of the same target sees.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

SECONDS_OF_REST = 24 * 3600.0
"""A workplace whose maker cannot be asked is left over when nothing in it has changed for so long."""
LOCK, ASIDE = ".lock", ".old"
"""Endings of the target's name: the maker's lock, and what was moved aside for a new folder."""
_MADE = re.compile(r"\.(?P<name>.+)-[a-z0-9_]{8}\.tmp")


@contextlib.contextmanager
def workplace(path: Path) -> Iterator[Path]:
    """Yield a place of the same name as `path` in a new workplace; all that is still there goes when the block ends.

    What dead writers of the same `path` left behind is removed first.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{path.name}-", suffix=".tmp", dir=path.parent))
    lock = None
    try:
        lock = _hold(folder / f"{path.name}{LOCK}")
        clean_leftovers(path.parent, path.name)
        yield folder / path.name
    finally:
        if lock is not None:
            os.close(lock)  # before the folder goes: some file systems keep the names of open files
        _remove(folder, path)


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
    with contextlib.suppress(OSError):  # another one cleans, or we may not look
        for entry in list(os.scandir(folder)):
            made = _MADE.fullmatch(entry.name)
            if made is None or name not in (None, made["name"]) or not entry.is_dir(follow_symlinks=False):
                continue
            place, target = Path(entry.path), folder / made["name"]
            if alone or _is_dead(place, place / f"{target.name}{LOCK}"):
                _remove(place, target)
                removed.append(place)
    return removed


def _remove(place: Path, target: Path) -> None:
    """Remove a workplace; what was moved aside goes back where nothing came for it."""
    aside = place / f"{target.name}{ASIDE}"
    if aside.exists() and not target.exists():
        os.rename(aside, target)
    shutil.rmtree(place, ignore_errors=True)


def _hold(path: Path) -> int:
    """Make the lock and hold it; only then it says which system handed it out."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    with contextlib.suppress(OSError):  # no locks here, or a full disk: judged by its age
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX)
            os.write(handle, this_system())
    return handle


def _is_dead(place: Path, lock: Path) -> bool:
    """Whether nobody works in `place` any more."""
    try:
        handle = os.open(lock, os.O_RDWR)
    except FileNotFoundError:
        return _rested(place)
    except OSError:
        return False
    try:
        here = os.read(handle, 100) == this_system() != b""
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return here or _rested(place)
    except OSError:  # held, or not to be had
        return False
    finally:
        os.close(handle)


def _rested(place: Path) -> bool:
    """Whether nothing in a folder has changed for a day, by the clock of the disk it is on."""
    try:
        newest = max(path.lstat().st_mtime for path in (place, *place.rglob("*")))
        with tempfile.TemporaryFile(dir=place.parent) as now:
            return os.fstat(now.fileno()).st_mtime - newest > SECONDS_OF_REST
    except OSError:  # someone is at it
        return False


@cache
def this_system() -> bytes:
    """What tells the running kernel, whose locks these are, from every other (Linux; else nothing does)."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    return b""
