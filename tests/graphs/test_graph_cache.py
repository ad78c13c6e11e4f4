"""Cached graphs: one build per key, damaged files replaced, many processes at once."""

import logging

import numpy as np
import pytest

from gears.graphs import Graph, cached_graph


def build(weight: float = 0.5) -> Graph:
    return Graph(("A", "B"), np.array([[0], [1]]), np.array([weight]))


def fail() -> Graph:
    raise AssertionError("must not be built again")


def test_built_once_per_key(tmp_path):
    one = cached_graph(tmp_path, {"k": 20, "nodes": ["A", "B"]}, build)
    again = cached_graph(tmp_path, {"nodes": ["A", "B"], "k": 20}, fail)
    assert again.hash == one.hash
    other = cached_graph(tmp_path, {"k": 21, "nodes": ["A", "B"]}, lambda: build(0.7))
    assert other.weight.tolist() == [0.7]
    assert len(list(tmp_path.glob("graph-*.npz"))) == 2


@pytest.mark.parametrize("damage", ["cut", "empty", "swapped"])
def test_damaged_file_is_replaced(tmp_path, caplog, damage):
    cached_graph(tmp_path, {"a": 1}, build)
    (path,) = tmp_path.glob("graph-*.npz")
    if damage == "swapped":
        cached_graph(tmp_path / "other", {"a": 2}, lambda: build(0.9))
        (other,) = (tmp_path / "other").glob("graph-*.npz")
        path.write_bytes(other.read_bytes())
    else:
        path.write_bytes(path.read_bytes()[: 0 if damage == "empty" else 300])
    with caplog.at_level(logging.WARNING):
        graph = cached_graph(tmp_path, {"a": 1}, build)
    assert graph.weight.tolist() == [0.5]
    assert "rebuilt" in caplog.text
    assert cached_graph(tmp_path, {"a": 1}, fail).hash == graph.hash
