"""Cache of arrays on disk, in files named by the hash of everything they depend on.

The files lie beside the screen; where its folder is read-only, in the user's cache folder.
"""

from __future__ import annotations

import errno
import itertools
import logging
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gears.files._atomic import clean_leftovers, locked
from gears.files.formats import content_hash, read_npz, write_npz

logger = logging.getLogger(__name__)

Arrays = dict[str, np.ndarray]

_READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)


def writable_folder(folder: Path) -> Path:
    """`folder`, made if missing, or where it is read-only the folder of the same name in the user's cache folder.

    For files named by a hash of everything that they depend on. OSError where neither can be written to.
    """
    try:
        return _tried(folder)
    except OSError as error:
        if error.errno not in _READ_ONLY:
            raise
    import pooch

    other = Path(pooch.os_cache("gears")) / folder.name
    try:
        _tried(other)
    except OSError as error:
        msg = (
            f"{folder} is read-only and {other} cannot be written to ({error.strerror}); copy the prepared screen to "
            "another folder, or set XDG_CACHE_HOME to a folder that can be written to"
        )
        raise OSError(error.errno, msg) from error
    logger.info("%s is read-only: using %s", folder, other)
    return other


def _tried(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        return folder


def cached_arrays(
    folder: str | Path, kind: str, key: dict[str, Any], build: Callable[[], Mapping[str, np.ndarray]]
) -> Arrays:
    """The arrays of `key` from the cache `folder`, built and stored first where they are not there.

    `key` (JSON-like) is *everything* that the arrays depend on: its hash names the file, after `kind` ("graph").
    While one process builds, others that need the arrays wait. A damaged file is replaced, with a warning in the log.
    New files of a read-only folder go to the user's cache folder (:func:`writable_folder`).
    """
    name = content_hash(key)
    path = Path(folder) / f"{kind}-{name[:24]}.npz"
    arrays = _read(path, kind, name)
    if arrays is not None:
        return arrays
    path = writable_folder(path.parent) / path.name
    with locked(f"{path}.lock"):
        arrays = _read(path, kind, name)
        if arrays is None:
            clean_leftovers(path.parent, path.name, alone=True)
            arrays = dict(build())
            marks = {"key": np.array(name), "hash": np.array(arrays_hash(arrays))}
            # random digits hardly shrink, and cost as much as some of the fits whose result they are
            write_npz(path, {**arrays, **marks}, compress=False)
            logger.debug("built the %s and stored it as %s", kind, path.name)
    return arrays


def cache_file(folder: str | Path, kind: str, key: dict[str, Any]) -> Path:
    """The file of :func:`cached_arrays` for a key."""
    return Path(folder) / f"{kind}-{content_hash(key)[:24]}.npz"


def arrays_hash(arrays: Mapping[str, np.ndarray]) -> str:
    """Hash of arrays and their names, in whatever order they are."""
    return content_hash(*itertools.chain.from_iterable(sorted(arrays.items())))


def _read(path: Path, kind: str, key_hash: str) -> Arrays | None:
    if not path.exists():
        return None
    try:
        arrays = read_npz(path)
        key, stored = str(arrays.pop("key", "")), str(arrays.pop("hash", ""))
        if key == key_hash and stored == arrays_hash(arrays):
            return arrays
        reason = "it holds something else than its name says"
    except Exception as error:  # whatever is wrong with it: it can be rebuilt
        reason = str(error)
    logger.warning("the stored %s %s cannot be used (%s); it is rebuilt", kind, path, reason)
    return None
