"""Graphs kept on disk under a name that says what they were made from."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from gears.files import content_hash, write_npz
from gears.graphs.graph import Graph

logger = logging.getLogger(__name__)

FORMAT = 1  # raise when a graph of the same key would come out differently


def cached_graph(folder: str | Path, key: dict[str, Any], build: Callable[[], Graph]) -> Graph:
    """The graph of `key` from `folder`, built and stored first where it is not there.

    Parameters
    ----------
    folder
        Where graphs lie; made if need be.
    key
        *Everything* the graph depends on (content hashes of data and
        annotation, node names, training conditions, threshold, k): JSON-like.
        The file is named by its hash, so another key never finds it.
    build
        Makes the graph. Processes that ask at the same time wait for the one that builds.

    Returns
    -------
    Graph
        A damaged file is replaced, with a warning in the log.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    name = content_hash({"format": FORMAT, "key": key})
    path = folder / f"graph-{name[:24]}.npz"
    graph = _read(path, name)
    if graph is not None:
        return graph
    with FileLock(f"{path}.lock"):
        graph = _read(path, name)
        if graph is None:
            graph = build()
            write_npz(path, {**graph.arrays(), "key": np.array(name), "hash": np.array(graph.hash)})
            logger.info("built %r and stored it as %s", graph, path.name)
    return graph


def _read(path: Path, key_hash: str) -> Graph | None:
    if not path.exists():
        return None
    try:
        # An open file, for np.load leaves the file of a path open where it is no archive.
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        graph = Graph.from_arrays(arrays)
        if str(arrays.get("key")) == key_hash and str(arrays.get("hash")) == graph.hash:
            return graph
        reason = "it holds another graph than its name says"
    except Exception as error:  # whatever is wrong with it: it can be made anew
        reason = str(error)
    logger.warning("the stored graph %s cannot be used (%s); it is built anew", path, reason)
    return None
