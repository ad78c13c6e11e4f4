"""Cache of arrays on disk, in files named by the hash of everything they depend on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from gears.files.atomic import clean_leftovers
from gears.files.formats import content_hash, read_npz, write_npz

logger = logging.getLogger(__name__)

Arrays = dict[str, np.ndarray]


def cached_arrays(
    folder: str | Path, kind: str, key: dict[str, Any], build: Callable[[], Mapping[str, np.ndarray]]
) -> Arrays:
    """The arrays of `key` from the cache `folder` (made if missing), built and stored first where they are not there.

    `key` (JSON-like) is *everything* that the arrays depend on: its hash names the file, after `kind` ("graph").
    While one process builds, others that need the arrays wait. A damaged file is replaced, with a warning in the log.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    name = content_hash(key)
    path = folder / f"{kind}-{name[:24]}.npz"
    arrays = _read(path, kind, name)
    if arrays is not None:
        return arrays
    with FileLock(f"{path}.lock"):
        arrays = _read(path, kind, name)
        if arrays is None:
            clean_leftovers(folder, path.name, alone=True)
            arrays = dict(build())
            marks = {"key": np.array(name), "hash": np.array(_hash(arrays))}
            write_npz(path, {**arrays, **marks})
            logger.debug("built the %s and stored it as %s", kind, path.name)
    return arrays


def _hash(arrays: Mapping[str, np.ndarray]) -> str:
    return content_hash(*(value for name in sorted(arrays) for value in (name, arrays[name])))


def _read(path: Path, kind: str, key_hash: str) -> Arrays | None:
    if not path.exists():
        return None
    try:
        arrays = read_npz(path)
        key, stored = str(arrays.pop("key", "")), str(arrays.pop("hash", ""))
        if key == key_hash and stored == _hash(arrays):
            return arrays
        reason = "it holds something else than its name says"
    except Exception as error:  # whatever is wrong with it: it can be rebuilt
        reason = str(error)
    logger.warning("the stored %s %s cannot be used (%s); it is rebuilt", kind, path, reason)
    return None
