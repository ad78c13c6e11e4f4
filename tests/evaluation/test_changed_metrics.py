"""Metrics of changed genes by hand, and why values are undefined."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from gears.evaluation import Truth
from gears.evaluation._scoring import CONSTANT, NO_CHANGED, NO_TRAINING, NOT_ASKED, ONE_CELL, reasons
from gears.evaluation.metrics import condition_metrics

T_UG = np.array([[30.0, 0, 25, 0, 0, -20], [0.0, 0, 0, 0, 0, 0]])


def truth(**more) -> Truth:
    mean_UG = np.array([[1.0, 0.0, 0.5, 0.05, 0.0, -0.6], [0.0, 0.02, 0.0, 0.0, 0.0, 0.0]])
    given = {"reference_mean_G": np.zeros(6), "n_cells_U": [50, 1], "degrees_U": np.full(2, 40.0)}
    return Truth.from_means(mean_UG, np.zeros(6), moderated_t_UG=T_UG, std_UG=np.full((2, 6), 0.1), **given | more)


def test_average_precision_is_that_of_scikit_learn_with_ties_ranked_together():
    predicted_UG = np.array([[0.9, 0.3, 0.3, 0.0, 0.0, -0.1], [1.0, 0, 0, 0, 0, 0]])
    found = condition_metrics(predicted_UG, truth(), ["average_precision_changed"])[:, 0]
    expected = average_precision_score([1, 0, 1, 0, 0, 1], np.abs(predicted_UG[0]))
    assert found[0] == pytest.approx(expected)
    assert np.isnan(found[1])
    without = condition_metrics(predicted_UG, truth(targets=[[0], []]), ["average_precision"])[0, 0]
    assert without == pytest.approx(average_precision_score([0, 1, 0, 0, 1], np.abs(predicted_UG[0, 1:])))


def test_brier_score_rewards_the_right_probability():
    true = truth()
    sd_UG = np.full((2, 6), 0.01)
    predicted = (true.mean_UG, np.full((2, 6), -1.0))
    right, wrong = (condition_metrics(one, true, ["brier_changed"], sd_UG=sd_UG)[:, 0] for one in predicted)
    assert right[0] < 0.01 < right[1] < 0.2  # one cell says little of its mean
    assert wrong == pytest.approx([0.5, 1.0])


def test_undefined_values_say_why():
    true, constant_UG = truth(), np.zeros((2, 6))
    nan = np.array([np.nan, np.nan])
    assert reasons("pearson_delta_ref", nan, constant_UG, true) == [CONSTANT, ONE_CELL]
    many = truth(n_cells_U=[9, 9])
    assert reasons("direction_changed", np.array([1.0, np.nan]), constant_UG, many) == ["", NO_CHANGED]
    of_targets = truth(n_cells_U=[9, 9], targets=[[0, 2, 5], []])  # only perturbed genes change
    assert reasons("average_precision", nan, of_targets.mean_UG + 0.1 * T_UG, of_targets) == [NO_CHANGED] * 2
    assert reasons("energy_distance", nan, constant_UG, true) == [NOT_ASKED] * 2
    unknown = truth(reference_mean_G=np.full(6, np.nan))
    assert reasons("pearson_delta_ref", nan, constant_UG, unknown) == [NO_TRAINING] * 2
