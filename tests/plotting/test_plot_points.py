"""Embedding of conditions and neighbourhood of a gene: points, lines and names are where they belong."""

import networkx
import numpy as np
import pytest

from gears.graphs import Graph
from gears.plotting import embedding, go_neighbourhood, new_axes
from gears.plotting._style import name_near


def offsets(artist) -> np.ndarray:
    return np.asarray(artist.get_offsets())


def test_points_are_principal_components(conditions, delta_UG, by_label):
    ax = embedding(delta_UG, conditions)
    points = offsets(by_label(ax)["predicted"])
    centred = delta_UG - delta_UG.mean(axis=0)
    _, sizes, directions = np.linalg.svd(centred)
    np.testing.assert_allclose(np.abs(points), np.abs(centred @ directions[:2].T), atol=1e-9)
    assert ax.get_xlabel() == f"component 1 ({sizes[0] ** 2 / (sizes**2).sum():.0%} of the variance)"
    assert {text.get_text() for text in ax.texts} <= {"A", "B", "A+B", "C", "A+C"}
    # a component's sign does not depend on the library: its largest weight is positive
    weights = np.linalg.lstsq(points, centred, rcond=None)[0]
    assert (weights[np.arange(2), np.abs(weights).argmax(axis=1)] > 0).all()


def test_true_changes_are_hollow_and_joined_to_predictions(conditions, delta_UG, by_label):
    true = delta_UG + 0.3
    groups = ["single", "single", "pair", "single", "pair"]
    ax = embedding(delta_UG, conditions, groups=groups, true_delta=true)
    drawn = by_label(ax)
    assert len(offsets(drawn["pair, predicted"])) == len(offsets(drawn["pair, true"])) == 2
    assert drawn["pair, true"].get_facecolor()[0].tolist() == [1, 1, 1, 1]
    segments = {tuple(map(tuple, np.round(line.get_xydata(), 9).tolist())) for line in ax.lines}
    starts = np.round(offsets(drawn["single, predicted"]), 9).tolist()
    ends = np.round(offsets(drawn["single, true"]), 9).tolist()
    assert {(tuple(a), tuple(b)) for a, b in zip(starts, ends, strict=True)} <= segments
    shapes = [drawn[f"{kind}, predicted"].get_paths()[0].vertices.tolist() for kind in ("single", "pair")]
    assert shapes[0] != shapes[1]


def test_wrong_embeddings_are_refused(conditions, delta_UG):
    with pytest.raises(ValueError, match="at least two conditions; found 1"):
        embedding(delta_UG[:1], conditions[:1])
    with pytest.raises(ValueError, match=r"true_delta has shape \(4, 12\); expected one row .* 5"):
        embedding(delta_UG, conditions, true_delta=delta_UG[:4])
    with pytest.raises(ValueError, match="4 entries of 1 groups for 5 conditions"):
        embedding(delta_UG, conditions, groups=["x"] * 4)
    with pytest.raises(ValueError, match="cannot be drawn in custom coordinates"):
        embedding(delta_UG, conditions, true_delta=delta_UG, coordinates=np.zeros((5, 2)))


def test_names_touch_no_other_name_and_no_point():
    ax = new_axes()
    x, y = np.zeros(4), np.array([0.0, 0.001, 0.5, 0.501])
    x, y = np.append(x, np.linspace(0.05, 0.2, 40)), np.append(y, np.zeros(40))
    ax.scatter(x, y)
    ax.set(xlim=(-1, 1), ylim=(-1, 1))
    name_near(ax, x, y, [(i, f"NAME{i}") for i in range(4)])
    assert len(ax.texts) == 4
    ax.figure.canvas.draw()
    boxes = [text.get_window_extent() for text in ax.texts]
    pairs = [(a, b) for i, a in enumerate(boxes) for b in boxes[i + 1 :]]
    assert not any(a.overlaps(b) for a, b in pairs)
    marks = ax.transData.transform(np.column_stack([x, y]))
    assert not any(box.contains(*mark) for box in boxes for mark in marks)


GRAPH = Graph(
    tuple("ABCDE"),
    np.array([[1, 2, 3, 0, 2, 0, 4], [0, 0, 0, 1, 1, 0, 3]]),
    np.array([0.9, 0.5, 0.2, 0.9, 0.4, 1.0, 0.8]),
)


def nodes(ax) -> dict[str, tuple[float, float]]:
    return {text.get_text(): text.get_position() for text in ax.texts if text.get_text() in "ABCDE"}


def test_neighbours_of_largest_weight_with_their_edges_and_values_as_colours():
    ax = go_neighbourhood(GRAPH, "A", n_neighbours=2, known=["B"])
    assert set(nodes(ax)) == {"A", "B", "C"}
    own = [line for line in ax.lines if line.get_label() == "_own"]
    assert len(own) == 2
    assert sorted(line.get_linewidth() for line in own)[-1] == pytest.approx(3.0)
    assert len([line for line in ax.lines if line.get_label() == "_between"]) == 1  # C -> B
    assert "1 of them" in ax.get_title()
    assert len(offsets(next(c for c in ax.collections if c.get_label() == "perturbed in training"))) == 1
    ax = go_neighbourhood(GRAPH, "A", values={"A": -1.0, "B": 0.5, "D": 0.0}, label="change")
    painted = [c for c in ax.collections if c.get_array() is not None]
    shown = np.concatenate([np.ma.filled(c.get_array(), np.nan) for c in painted])
    assert sorted(shown[np.isfinite(shown)]) == [-1.0, 0.0, 0.5]
    assert all(c.get_clim() == (-1.0, 1.0) for c in painted)
    assert [text.get_position() for text in ax.texts if text.get_text() == "\N{MINUS SIGN}"] == [(0.0, 0.0)]


def test_an_undirected_networkx_graph_a_gene_without_neighbours_and_wrong_ones():
    graph = networkx.Graph()
    graph.add_weighted_edges_from([("A", "B", 0.3), ("A", "C", 0.6)])
    graph.add_node("D")
    assert set(nodes(go_neighbourhood(graph, "A"))) == {"A", "B", "C"}
    assert go_neighbourhood(graph, "D").get_title() == "D: no neighbours"
    with pytest.raises(ValueError, match="unknown gene of the graph 'a'; did you mean 'A'"):
        go_neighbourhood(GRAPH, "a")
    with pytest.raises(ValueError, match="n_neighbours=0: expected at least 1"):
        go_neighbourhood(GRAPH, "A", n_neighbours=0)
