"""Graph: checks, tables, networkx, files."""

import logging
import subprocess
import sys

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gears.graphs import Graph, cached_graph

NODES = ("A", "B", "C")


def edge_set(graph: Graph) -> set[tuple[str, str, float]]:
    return set(graph.to_frame().itertuples(index=False, name=None))


def make(edges: dict[tuple[int, int], float], nodes=NODES) -> Graph:
    index = np.array(list(edges), dtype=np.int64).reshape(-1, 2).T
    return Graph(nodes, index, np.array(list(edges.values()), dtype=float))


@pytest.mark.parametrize(
    ("nodes", "index", "weight", "message"),
    [
        (("A", "A"), [[0], [1]], [1.0], "must be unique"),
        (NODES, [[0], [3]], [1.0], "the graph has 3 nodes"),
        (NODES, [[-1], [0]], [1.0], "the graph has 3 nodes"),
        (NODES, [[0], [1]], [0.0], "finite and positive"),
        (NODES, [[0], [1]], [float("nan")], "finite and positive"),
        (NODES, [[0, 0], [1, 1]], [1.0, 1.0], "edge A -> B occurs more than once"),
        (NODES, [[0, 1]], [1.0, 1.0], r"expected \(2, E\)"),
    ],
)
def test_construction_checks(nodes, index, weight, message):
    with pytest.raises(ValueError, match=message):
        Graph(nodes, np.array(index), np.array(weight))


@given(
    st.dictionaries(st.tuples(st.integers(0, 4), st.integers(0, 4)), st.floats(1e-3, 1e3, allow_nan=False), max_size=12)
)
def test_round_trips(tmp_path_factory, edges):
    graph = make(edges, tuple("EDCBA"))
    path = tmp_path_factory.getbasetemp() / "graph.npz"
    graph.save(path, overwrite=True)
    assert Graph.load(path).hash == graph.hash
    arrays = {**graph.arrays("one/"), **make({(0, 1): 1.0}).arrays("two/")}
    assert Graph.from_arrays(arrays, "one/").hash == graph.hash
    assert Graph.from_frame(graph.to_frame(), graph.nodes).hash == graph.hash
    assert Graph.from_networkx(graph.to_networkx(), graph.nodes).hash == graph.hash


def test_frame_weight_columns():
    frame = pd.DataFrame({"source": ["A", "B"], "target": ["B", "C"]})
    assert edge_set(Graph.from_frame(frame, NODES)) == {("A", "B", 1.0), ("B", "C", 1.0)}
    published = frame.assign(importance=[0.3, 0.4])
    assert edge_set(Graph.from_frame(published, NODES)) == {("A", "B", 0.3), ("B", "C", 0.4)}
    with pytest.raises(ValueError, match="edge table lacks target"):
        Graph.from_frame(frame.drop(columns="target"), NODES)


def test_frame_edges_of_other_genes_are_left_out_and_counted(caplog):
    frame = pd.DataFrame({"source": ["A", "X"], "target": ["B", "A"], "weight": [0.5, 1.0]})
    with caplog.at_level(logging.WARNING):
        graph = Graph.from_frame(frame, NODES)
    assert edge_set(graph) == {("A", "B", 0.5)}
    assert "1 of 2 edges" in caplog.text
    assert "X -> A" in caplog.text
    with pytest.raises(ValueError, match=r"none of the 1 edges joins .*X -> A.*A, B, C"):
        Graph.from_frame(frame[1:], NODES)


def test_frame_with_repeated_edges():
    twice = pd.DataFrame({"source": ["A", "A"], "target": ["B", "B"], "weight": [0.5, 0.5]})
    assert edge_set(Graph.from_frame(twice, NODES)) == {("A", "B", 0.5)}
    with pytest.raises(ValueError, match=r"A -> B has the weights 0\.5 and 0\.7"):
        Graph.from_frame(twice.assign(weight=[0.5, 0.7]), NODES)


def test_networkx_directions():
    undirected = nx.Graph([("A", "B", {"weight": 0.5}), ("C", "C", {"weight": 2.0}), ("B", "C")])
    expected = {("A", "B", 0.5), ("B", "A", 0.5), ("C", "C", 2.0), ("B", "C", 1.0), ("C", "B", 1.0)}
    assert edge_set(Graph.from_networkx(undirected, NODES)) == expected
    directed = nx.DiGraph([("A", "B", {"importance": 0.5})])
    assert edge_set(Graph.from_networkx(directed, NODES)) == {("A", "B", 0.5)}
    with pytest.raises(ValueError, match="multigraph"):
        Graph.from_networkx(nx.MultiGraph([("A", "B")]), NODES)


def test_normalised_weights_are_those_of_the_formula_and_kept_in_files():
    graph = make({(0, 1): 0.5, (2, 1): 0.25, (1, 0): 1.0, (2, 2): 3.0})
    adjacency = np.array([[1, 1, 0], [0.5, 1, 0.25], [0, 0, 3.0]])  # rows are targets
    factor = adjacency.sum(axis=1) ** -0.5
    source, target = graph.normalised_edge_index
    dense = np.zeros((3, 3))
    dense[target, source] = graph.normalised_weight
    np.testing.assert_allclose(dense, factor[:, None] * adjacency * factor, rtol=1e-15)
    arrays = graph.arrays()
    older = {name: array for name, array in arrays.items() if name != "normalised_weight"}
    for stored in (arrays, older):
        np.testing.assert_array_equal(Graph.from_arrays(stored).normalised_weight, graph.normalised_weight)
    for wrong in (arrays["normalised_weight"][:-1], arrays["normalised_weight"] * np.nan):
        with pytest.raises(ValueError, match="normalised_weight does not fit"):
            Graph.from_arrays({**arrays, "normalised_weight": wrong})


@pytest.mark.long  # imports torch-geometric in a process of its own
def test_building_a_graph_neither_warns_nor_changes_warning_filters():
    check = (
        "import warnings, numpy as np, torch, sys\n"
        "from gears.graphs import Graph\n"
        "graph = Graph(('A', 'B'), np.array([[0], [1]]), np.array([0.5]))\n"
        "warnings.simplefilter('error')\n"
        "before = list(warnings.filters)\n"
        "graph.to_data(normalised=True)\n"
        "assert 'torch_geometric' in sys.modules\n"
        "assert warnings.filters == before, set(warnings.filters) - set(before)\n"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


def test_data_are_copies_with_gene_names():
    graph = make({(0, 1): 0.5, (2, 1): 0.25, (2, 2): 3.0})
    before, data = graph.hash, graph.to_data()
    data.validate()
    assert (data.num_nodes, data.gene_names) == (3, list(NODES))
    assert edge_set(Graph.from_data(data, ("C", "B", "A"))) == edge_set(graph)
    data.gene_names = None
    assert Graph.from_data(data, NODES).hash == before
    data.edge_weight[:] = 7.0
    data.edge_index[:] = 0
    normalised = graph.to_data(normalised=True)
    np.testing.assert_array_equal(normalised.edge_weight, graph.normalised_weight)
    normalised.edge_weight[:] = 7.0
    assert graph.normalised_weight.max() < 2
    assert make({(0, 1): 0.5, (2, 1): 0.25, (2, 2): 3.0}).hash == before == graph.hash
    for array in (graph.weight, graph.normalised_weight, Graph.from_arrays(graph.arrays()).normalised_weight):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 7.0


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
