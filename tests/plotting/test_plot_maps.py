"""Maps and lines: each value stands where its names say, and lines hold the numbers they were given."""

import math

import numpy as np
import pandas as pd
import pytest

from gears.evaluation.uncertainty import calibration
from gears.plotting import (
    coverage_curve,
    delta_heat_map,
    error_against_spread,
    interaction_map,
    method_differences,
    replay_curve,
    training_curves,
)


def labels(axis) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


@pytest.mark.parametrize("cluster", [False, True])
def test_every_value_stands_at_its_condition_and_gene(cluster, names, conditions, delta_UG):
    ax = delta_heat_map(delta_UG, conditions, names, cluster=cluster, n_genes=6)
    shown = ax.images[0].get_array()
    assert shown.shape == (5, 6)
    plain = ["A", "B", "A+B", "C", "A+C"]
    rows = [plain.index(label) for label in labels(ax.yaxis)]
    columns = [names.index(label) for label in labels(ax.xaxis)]
    np.testing.assert_allclose(shown, delta_UG[np.ix_(rows, columns)])
    assert sorted(columns) == sorted(np.argsort(-delta_UG.std(axis=0))[:6])
    if not cluster:
        assert rows == list(range(5))
        assert (np.diff(delta_UG[:, columns].mean(axis=0)) >= 0).all()


def test_what_falls_has_a_minus(names, conditions, delta_UG):
    ax = delta_heat_map(delta_UG, conditions, names, genes=names, limit=1.0)
    (signs,) = ax.collections
    places = {(int(y), int(x)) for x, y in np.asarray(signs.get_offsets())}
    assert places == {tuple(place) for place in np.argwhere(delta_UG < -0.15).tolist()}
    assert ax.images[0].get_clim() == (-1.0, 1.0)


def pairs(*rows: tuple[str, str, str, float]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["gene_1", "gene_2", "kind", "strength"])


UPPER = pairs(("A", "B", "synergy", 1.6), ("B", "C", "suppression", 0.5), ("A", "C", "additive", 1.0))
LOWER = pairs(("A", "B", "additive", 1.1), ("B", "D", "synergy", 1.9))


def test_one_table_fills_both_triangles_and_two_one_each():
    ax = interaction_map(UPPER)
    shown = ax.images[0].get_array().filled(np.nan)
    expected = np.array([[np.nan, 1.6, 1.0], [1.6, np.nan, 0.5], [1.0, 0.5, np.nan]])
    np.testing.assert_allclose(shown, expected)
    assert labels(ax.xaxis) == labels(ax.yaxis) == ["A", "B", "C"]
    signs = sorted((text.get_text(), *text.get_position()) for text in ax.texts)
    assert signs == [("+", 0, 1), ("+", 1, 0), ("\N{MINUS SIGN}", 1, 2), ("\N{MINUS SIGN}", 2, 1)]
    low, high = ax.images[0].get_clim()
    assert (low + high) / 2 == pytest.approx(1.0)  # additive is the middle of the colours
    ax = interaction_map(UPPER, lower=LOWER, names=("model", "cells"))
    shown = ax.images[0].get_array().filled(np.nan)
    assert (shown[0, 1], shown[1, 0]) == (1.6, 1.1)
    assert math.isnan(shown[1, 3])
    assert shown[3, 1] == 1.9
    assert ax.get_xlabel() == "above the diagonal: model; below: cells"


HISTORY = [
    {"epoch": 1, "train_loss": 3.0, "val_mse": 0.5, "seconds": {"total": 1.0}},
    {"epoch": 2, "train_loss": 2.0},
    {"epoch": 3, "train_loss": 1.5, "val_mse": 0.4},
]


def test_curves_bridge_epochs_without_a_value(by_label):
    ax = training_curves(HISTORY, ["train_loss", "val_mse"], best_epoch=3, log=True)
    drawn = by_label(ax)
    assert drawn["train_loss"].get_xydata().tolist() == [[1, 3.0], [2, 2.0], [3, 1.5]]
    assert drawn["val_mse"].get_xydata().tolist() == [[1, 0.5], [3, 0.4]]
    assert drawn["best epoch, 3"].get_xdata() == [3, 3]
    assert drawn["train_loss"].get_linestyle() != drawn["val_mse"].get_linestyle()
    assert ax.get_yscale() == "log"
    assert all(tick == int(tick) for tick in ax.get_xticks())


@pytest.fixture(scope="module")
def judged():
    rng = np.random.default_rng(0)
    sd = np.exp(rng.normal(size=2000))
    error = sd * rng.normal(size=2000)
    return {"right": calibration(error, sd**2, 0 * sd), "small": calibration(error, (sd / 3) ** 2, 0 * sd)}


def test_calibration_lines_are_what_was_judged(judged, by_label):
    drawn = by_label(coverage_curve(judged))
    for name, one in judged.items():
        np.testing.assert_allclose(drawn[name].get_xydata(), one.coverage[["level", "observed"]])
    assert drawn["calibrated"].get_xydata().tolist() == [[0, 0], [1, 1]]
    assert drawn["right"].get_marker() != drawn["small"].get_marker()
    ax = error_against_spread(judged)
    ax.figure.draw_without_rendering()
    assert {tick.get_text() for tick in ax.get_xticklabels(minor=True)} <= {""}
    assert {"0.5", "1", "2"} & {tick.get_text() for tick in ax.get_xticklabels()}
    drawn = by_label(ax)
    for name, one in judged.items():
        np.testing.assert_allclose(drawn[name].get_xydata(), one.bins[["predicted_sd", "error"]])


DIFFERENCES = pd.DataFrame(
    [
        ("add", "mse", -0.2, -0.3, -0.1, "model"),
        ("mean", "mse", 0.1, 0.05, 0.2, "other"),
        ("none", "mse", np.nan, np.nan, np.nan, "undecided"),
        ("add", "r", 0.0, -0.1, 0.1, "undecided"),
    ],
    columns=["against", "metric", "difference", "low", "high", "better"],
)


def test_differences_with_their_intervals():
    ax = method_differences(DIFFERENCES, "mse", model="gears")
    assert [label.get_text() for label in ax.get_yticklabels()] == ["add", "mean", "none"]
    drawn = [np.asarray(line.get_xydata()).tolist() for line in ax.lines[1:]]
    assert drawn == [[[0.3, 0], [0.1, 0]], [[0.2, 0]], [[-0.05, 1], [-0.2, 1]], [[-0.1, 1]]]
    assert [line.get_marker() for line in ax.lines[2::2]] == ["o", "s"]
    assert ax.get_xlabel() == "gain of gears"  # less error is a gain
    assert ax.get_title() == "mse"
    undecided = DIFFERENCES.assign(metric="mse", better="undecided").iloc[:3]
    assert method_differences(undecided, "mse").get_title() == "mse: no difference beyond chance"
    shares = DIFFERENCES.assign(metric="pearson_delta")
    right = method_differences(shares.iloc[:3], "pearson_delta")
    assert np.asarray(right.lines[1].get_xydata()).tolist() == [[-0.3, 0], [-0.1, 0]]


WRONG = {
    r"delta has shape \(5, 12\); expected one row for each of 4": lambda d, c, n: delta_heat_map(d, c[:4], n),
    "11 gene names for 12 genes": lambda d, c, n: delta_heat_map(d, c, n[:11]),
    "1 gene not among the 12": lambda d, c, n: delta_heat_map(d, c, n, genes=["X"]),
    "no condition to draw": lambda *_: delta_heat_map(np.zeros((0, 12)), [], list("abcdefghijkl")),
    r"lacks kind \(its columns: gene_1, gene_2, strength\); expected": lambda *_: interaction_map(
        UPPER.drop(columns="kind")
    ),
    "unknown score 'strenght'; did you mean 'strength'": lambda *_: interaction_map(UPPER, score="strenght"),
    "unknown score 'kind'": lambda *_: interaction_map(UPPER, score="kind"),
    "holds no pair; predict pairs together with both": lambda *_: interaction_map(UPPER.iloc[:0]),
    r"unknown number of a history 'train_los'.* 'train_loss'": lambda *_: training_curves(HISTORY, "train_los"),
    "unknown number of a history 'seconds'": lambda *_: training_curves(HISTORY, "seconds"),
    r"holds no epoch; give result\.history": lambda *_: training_curves([]),
    "unknown metric 'mes'; did you mean 'mse'": lambda *_: method_differences(DIFFERENCES, "mes"),
    "holds several subgroups; give the rows of one": lambda *_: method_differences(
        pd.concat([DIFFERENCES, DIFFERENCES]), "mse"
    ),
    "lacks better": lambda *_: method_differences(DIFFERENCES.drop(columns="better"), "mse"),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_cannot_be_drawn_is_refused(message, names, conditions, delta_UG):
    with pytest.raises(ValueError, match=message):
        WRONG[message](delta_UG, conditions, names)


def test_a_replay_has_intervals_where_there_are_repeats_and_ticks_at_the_measured_numbers():
    table = pd.DataFrame({"aim": "x", "repeat": [0, 1, 0], "n_measured": [5, 5, 9], "error": [0.5, 0.6, 0.4]})
    ax = replay_curve(table)
    assert list(ax.get_xticks()) == [5, 9]
    (bars,) = ax.collections
    heights = [np.ptp(segment[:, 1]) for segment in bars.get_segments() if len(segment)]
    assert heights == pytest.approx([2 * 1.96 * 0.05])  # none of a single repeat
