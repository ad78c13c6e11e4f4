"""Graphs kept on disk under a name that says what they were made from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gears.caching import cached_arrays
from gears.graphs.graph import Graph

FORMAT = 2  # raise when a graph of the same key would come out differently


def cached_graph(folder: str | Path, key: dict[str, Any], build: Callable[[], Graph]) -> Graph:
    """The graph of `key` from `folder`, built and stored first where it is not there.

    Parameters
    ----------
    folder
        Where graphs lie; made if need be.
    key
        *Everything* the graph depends on: content hashes of data and annotation, node names,
        training conditions, threshold, k (see :func:`gears.caching.cached_arrays`).
    build
        Makes the graph.
    """
    arrays = cached_arrays(folder, "graph", {"format": FORMAT, "key": key}, lambda: build().arrays())
    return Graph.from_arrays(arrays)
