"""Calibration on noise that is known, and the two kinds of uncertainty a model has."""

import math

import numpy as np
import pytest
from driving import pert_data_of, trained_gears
from scipy.stats import spearmanr

from gears.evaluation.truth import ScreenCells
from gears.evaluation.uncertainty import calibration, cell_calibration
from gears.simulate import simulated_screen


def noise(factor: float = 1.0, n: int = 40_000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Predictions, variances and true values that differ by Gaussian noise of `factor` times the predicted s.d."""
    rng = np.random.default_rng(0)
    mean, sd = rng.normal(size=n), np.exp(rng.normal(-1, 0.7, n))
    return mean, sd**2, mean + factor * sd * rng.normal(size=n)


def test_coverage_is_the_level_where_variances_are_right():
    judged = calibration(*noise())
    for level in (0.5, 0.8, 0.9, 0.95):
        assert judged.observed(level) == pytest.approx(level, abs=4 * math.sqrt(level * (1 - level) / 40_000))
    assert judged.standardised == pytest.approx(1, abs=0.02)
    np.testing.assert_allclose(judged.bins["error"], judged.bins["predicted_sd"], rtol=0.06)
    assert judged.bins["n"].tolist() == [4000] * 10
    assert judged.rank_correlation > 0.4


@pytest.mark.parametrize(("factor", "at_95"), [(2.0, 0.6729), (0.5, 0.99991)])
def test_variances_of_the_wrong_size_are_seen(factor, at_95):
    judged = calibration(*noise(factor))
    assert judged.observed(0.95) == pytest.approx(at_95, abs=0.01)
    assert judged.standardised == pytest.approx(factor, rel=0.02)
    assert judged.nll > calibration(*noise()).nll if factor > 1 else judged.observed(0.5) > 0.8


def test_variances_that_say_nothing_and_noise_of_the_true_values():
    mean, variance, true = noise()
    shuffled = calibration(mean, np.random.default_rng(1).permutation(variance), true)
    assert abs(shuffled.rank_correlation) < 0.02
    assert shuffled.nll > calibration(mean, variance, true).nll
    assert math.isnan(calibration(mean, np.ones_like(mean), true).rank_correlation)
    measured = true + np.random.default_rng(2).normal(0, 0.5, len(true))
    assert calibration(mean, variance, measured).standardised > 1.3
    assert calibration(mean, variance, measured, true_variance=0.25).standardised == pytest.approx(1, abs=0.02)


def test_values_by_hand_and_what_has_no_variance_counts_nowhere():
    judged = calibration(
        np.array([0.0, 0, 0, 0]), np.array([1.0, 4, 0, np.inf]), np.array([0.5, -4, 1, 1]), levels=[0.5, 0.95]
    )
    assert judged.n_excluded == 2
    assert judged.coverage["observed"].tolist() == [0.5, 0.5]  # 0.5 and 2 standard deviations
    assert judged.standardised == pytest.approx(math.sqrt((0.25 + 4) / 2))
    expected = np.mean([0.5 * (0.25 + math.log(2 * math.pi)), 0.5 * (4 + math.log(8 * math.pi))])
    assert judged.nll == pytest.approx(expected)
    with pytest.raises(ValueError, match="no value has a finite variance"):
        calibration(np.zeros(2), np.zeros(2), np.ones(2))
    with pytest.raises(ValueError, match="expected one shape"):
        calibration(np.zeros(2), np.zeros(3), np.ones(2))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    adata, _ = simulated_screen(
        n_genes=60, n_singles=14, n_pairs=10, cells_per_condition=40, n_control=200, counts_per_gene=4.0, seed=6
    )  # fmt: skip
    return pert_data_of(tmp_path_factory.mktemp("uncertain"), adata, split="simulation")


def test_nll_head_is_finite_and_ordered_by_noise(data):
    model = trained_gears(data, seed=1, steps=60, prior=None, uncertainty=True, uncertainty_kind="nll")
    test = [c for c in data.split.conditions("test") if not c.is_control]
    predictions = model.predict(test, clip=False)
    assert np.isfinite(predictions.cell_sd).all()
    variance = predictions.cell_sd**2
    # it predicts the spread of a pair of cells: that of the condition's and of the control's cells
    moments = data.screen.statistics.m2
    noise_G = np.mean([moments[data.screen.id_of(c)] for c in test], axis=0) + moments[data.screen.control_id]
    ordered = spearmanr(variance.mean(axis=0), noise_G)
    assert ordered.statistic > 0
    assert ordered.pvalue < 1e-3
    judged = cell_calibration(
        predictions.expression_UG, variance, predictions.control_mean_G, test, ScreenCells(data.screen)
    )
    assert judged.rank_correlation > 0.05
    assert 0.5 < judged.standardised < 2
