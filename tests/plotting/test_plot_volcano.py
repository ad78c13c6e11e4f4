"""Volcano: which genes pass, where they stand, and the p values of an ensemble."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from gears.evaluation import Truth
from gears.evaluation.metrics.differential import welch_p_values
from gears.plotting import interaction_volcano, spread_p_values, volcano

DELTA = np.array([0.5, -0.8, 0.1, -0.05, 2.0, 0.0])
P = np.array([1e-4, 1e-6, 0.9, 0.6, 0.0, np.nan])
NAMES = list("ABCDEF")


def offsets(artist) -> list[list[float]]:
    return np.asarray(artist.get_offsets()).tolist()


def test_genes_that_pass_are_apart_by_direction(by_label):
    drawn = by_label(volcano(DELTA, P, NAMES))
    assert offsets(drawn["up (2)"]) == [[0.5, 4.0], [2.0, 7.0]]  # p = 0 stands one decade above the smallest
    assert offsets(drawn["down (1)"]) == [[-0.8, 6.0]]
    assert len(offsets(drawn["other genes (3)"])) == 3
    marks = [drawn[label].get_paths()[0].vertices.tolist() for label in ("up (2)", "down (1)")]
    assert marks[0] != marks[1]


def test_size_of_change_and_level_count_and_the_highest_and_the_largest_are_named(by_label):
    assert "up (1)" in by_label(volcano(DELTA, P, min_change=1.0))
    p = np.array([0.01, 0.03, 0.04, 0.5, 0.6, 0.7])
    passed = stats.false_discovery_control(p) <= 0.1
    assert f"up ({int(passed.sum())})" in by_label(volcano(np.ones(6), p, level=0.1))
    assert "up (0)" in by_label(volcano(np.ones(6), p))
    ax = volcano(DELTA, np.full(6, 0.9), NAMES, title="A+B")
    assert ax.get_title() == "A+B\nno significant gene (5 % false discoveries)"
    assert len(ax.texts) == 0
    delta = np.concatenate([[0.01, 3.0, -2.0], np.linspace(0.5, 1.5, 20)])
    p = np.concatenate([[1e-30, 1e-6, 1e-5], np.full(20, 1e-8)])
    names = ["HIGHEST", "LARGEST", "SECOND", *(f"G{i}" for i in range(20))]
    assert {text.get_text() for text in volcano(delta, p, names, n_labels=3).texts} >= {"HIGHEST", "LARGEST"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"p_values": -np.log10(np.full(6, 1e-3))}, "p values from 0 to 1 .not their logarithms"),
        ({"level": 5}, "level=5"),
        ({"p_values": P[:4]}, r"p_values has shape \(4,\)"),
        ({"gene_names": NAMES[:2]}, "2 gene names for 6 genes"),
    ],
    ids=["logarithms", "level", "length", "names"],
)
def test_wrong_input_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        volcano(**({"delta": DELTA, "p_values": P} | change))


def test_p_of_a_predicted_spread_and_of_the_observed_cells():
    p = spread_p_values(np.array([[0.0, 1.0], [-2.0, 1.0]]), np.array([[1.0, 1.0], [1.0, 0.0]]))
    np.testing.assert_allclose(p, [[1.0, 2 * stats.norm.sf(1)], [2 * stats.norm.sf(2), 0.0]])
    with pytest.raises(ValueError, match="one shape"):
        spread_p_values(np.zeros(3), np.zeros(2))
    with pytest.raises(ValueError, match="no negative or undefined"):
        spread_p_values(np.zeros(2), np.array([1.0, np.nan]))
    rng = np.random.default_rng(0)
    cells, control = rng.normal(0.3, 1.0, (30, 6)), rng.normal(0, 2.0, (50, 6))
    truth = Truth.from_means(
        cells.mean(axis=0)[None], control.mean(axis=0), std_UG=cells.std(axis=0)[None], n_cells_U=[30],
        control_std_G=control.std(axis=0), n_control=50,
    )  # fmt: skip
    expected = stats.ttest_ind(cells, control, equal_var=False).pvalue
    np.testing.assert_allclose(welch_p_values(truth)[0], expected)
    with pytest.raises(ValueError, match=r"no spread of the control cells; build it .* Truth\.of"):
        welch_p_values(Truth.from_means(cells.mean(axis=0)[None], control.mean(axis=0)))


def test_pairs_are_drawn_by_departure_and_score_and_marked_by_kind(by_label):
    rows = [("A", "B", 0.7, 0.01, "synergy"), ("A", "C", -0.8, 0.0, "masking"), ("B", "C", 0.1, 0.5, "neutral")]
    table = pd.DataFrame(rows, columns=["gene_1", "gene_2", "departure", "fdr_score", "kind"])
    ax = interaction_volcano(table, n_labels=2)
    drawn = by_label(ax)
    assert offsets(drawn["synergy (1)"]) == [[0.7, 2.0]]
    assert offsets(drawn["masking (1)"]) == [[-0.8, 4.0]]  # a score of 0 stands at the top edge
    assert "suppression (0)" in drawn
    assert [text.get_text() for text in ax.texts] == ["A+C", "A+B"]
    intervals = table.assign(low=[0.5, -1.0, -0.3], high=[0.9, -0.6, 0.5])
    drawn_intervals = ("90 % interval", "_interval")
    lines = [a for a in interaction_volcano(intervals).collections if a.get_label() in drawn_intervals]
    assert [np.asarray(one)[:, 0].tolist() for line in lines for one in line.get_segments()] == [
        [0.5, 0.9],
        [-1.0, -0.6],
    ]
    unknown = table.assign(kind="undetermined", fdr_score=np.nan)
    ax = interaction_volcano(unknown, title="pairs")
    assert offsets(by_label(ax)["undetermined (3)"])[2] == [0.1, 0.0]
    assert ax.get_title() == "pairs\nno pair departs from additivity beyond chance"
    with pytest.raises(ValueError, match="the table lacks fdr_score"):
        interaction_volcano(table.drop(columns="fdr_score"))
