"""The weight of the head: earned on unseen conditions, for each kind of condition, in what is decisive."""

from __future__ import annotations

import numpy as np
import pytest

from gears.evaluation.metrics import condition_metrics
from gears.evaluation.truth import Truth
from gears.priors.process import mean_of_others
from gears.training.head_weight import FEWEST_OF_A_KIND, TrainingTruth, earned_weight

N_CONDITIONS, N_GENES = 24, 60
ALL = np.arange(N_CONDITIONS)


def planted(seed: int = 0, noise: float = 0.2) -> tuple[TrainingTruth, np.ndarray, np.ndarray]:
    """Sparse true changes, a prior that is shrunk and noisy, and the residual that a head could find."""
    rng = np.random.default_rng(seed)
    effect_CG = rng.standard_normal((N_CONDITIONS, N_GENES)) * (rng.random((N_CONDITIONS, N_GENES)) < 0.3)
    delta_CG = effect_CG + 0.05 * rng.standard_normal(effect_CG.shape)
    prior_CG = 0.6 * effect_CG + noise * rng.standard_normal(effect_CG.shape)
    is_changed_CG = np.abs(delta_CG) > 0.2
    truth = TrainingTruth(
        delta_CG,
        mean_of_others(delta_CG),
        is_changed_CG.astype(float),
        is_changed_CG,
        np.full(N_GENES, -np.inf),
    )
    return truth, prior_CG, effect_CG - prior_CG


def weight_of(
    truth: TrainingTruth, prior_CG: np.ndarray, head_CG: np.ndarray, rows: np.ndarray = ALL
) -> float:
    return earned_weight(truth, prior_CG, head_CG, truth.loss_weights(), rows).weight


def test_a_head_that_finds_the_residual_counts_and_half_of_it_counts_fully() -> None:
    truth, prior_CG, residual_CG = planted()
    assert 0.9 < weight_of(truth, prior_CG, residual_CG) <= 1.0
    assert weight_of(truth, prior_CG, 0.5 * residual_CG) == 1.0
    assert 0.4 < weight_of(truth, prior_CG, 2 * residual_CG) < 0.5


def test_noise_and_the_opposite_get_no_weight() -> None:
    truth, prior_CG, residual_CG = planted()
    rng = np.random.default_rng(1)
    noise = [weight_of(truth, prior_CG, 0.3 * rng.standard_normal(prior_CG.shape)) for _ in range(100)]
    assert np.mean(np.array(noise) > 0) <= 0.05
    assert weight_of(truth, prior_CG, -residual_CG) == 0.0
    assert weight_of(truth, prior_CG, 0 * residual_CG) == 0.0


def test_each_kind_is_weighed_by_its_own_conditions() -> None:
    truth, prior_CG, residual_CG = planted()
    head_CG = np.where(np.arange(N_CONDITIONS)[:, None] < 12, residual_CG, -residual_CG)
    assert weight_of(truth, prior_CG, head_CG, ALL[:12]) > 0.8
    assert weight_of(truth, prior_CG, head_CG, ALL[12:]) == 0.0


def test_too_few_conditions_of_a_kind_give_no_weight() -> None:
    truth, prior_CG, residual_CG = planted()
    assert weight_of(truth, prior_CG, residual_CG, ALL[: FEWEST_OF_A_KIND - 1]) == 0.0
    assert weight_of(truth, prior_CG, residual_CG, ALL[:FEWEST_OF_A_KIND]) > 0.5


def test_a_smaller_error_with_a_worse_pattern_gets_no_weight() -> None:
    """Shrinking a prediction that is too large gains squared error and leaves the pattern alone."""
    truth, prior_CG, _ = planted()
    too_large_CG = truth.known_CG + 2 * (prior_CG - truth.known_CG)
    shrinking_CG = truth.known_CG - too_large_CG
    found = earned_weight(truth, too_large_CG, shrinking_CG, truth.loss_weights(), ALL)
    assert found.least_squares > 0.1
    assert found.gains[1] > 0
    assert found.weight == 0.0


def test_a_better_pattern_with_a_larger_error_of_the_changed_genes_gets_no_weight() -> None:
    """It removes noise from genes that do not change, and halves the change of those that do."""
    truth, _, _ = planted()
    noise_CG = 0.5 * np.random.default_rng(3).standard_normal(truth.delta_CG.shape)
    is_changed_CG = truth.evidence_CG > 0
    prior_CG = np.where(is_changed_CG, truth.delta_CG + 0.1 * noise_CG, noise_CG)
    head_CG = np.where(is_changed_CG, -0.2 * prior_CG, -prior_CG)
    found = earned_weight(truth, prior_CG, head_CG, truth.loss_weights(), ALL)
    assert found.least_squares > 0.5
    assert found.gains[0] > 0
    assert found.gains[1] < 0
    assert found.weight == 0.0


def test_a_gain_that_makes_perturbations_alike_gets_only_the_part_that_does_not() -> None:
    """Each condition moves towards its own truth, and further towards that of another."""
    truth, _, _ = planted()
    other_CG = np.roll(truth.delta_CG, 1, axis=0)
    prior_CG = truth.known_CG + 0.4 * (truth.delta_CG - truth.known_CG)
    prior_CG += 0.5 * np.random.default_rng(2).standard_normal(prior_CG.shape)
    head_CG = 0.35 * truth.delta_CG + 0.65 * other_CG - prior_CG
    found = earned_weight(truth, prior_CG, head_CG, truth.loss_weights(), ALL)
    whole_4 = truth.scores(prior_CG + found.least_squares * head_CG).mean(axis=0)
    without_4 = truth.scores(prior_CG).mean(axis=0)
    assert whole_4[1] > without_4[1]
    assert whole_4[2] < without_4[2]
    assert 0 < found.weight <= 0.5 * found.least_squares
    assert min(found.gains) >= 0


def test_smaller_errors_with_more_wrong_directions_get_no_weight() -> None:
    """Most genes come closer to their truth; the small changes go through zero to the other side."""
    truth, prior_CG, residual_CG = planted()
    is_small_CG = truth.is_changed_CG & (np.abs(truth.delta_CG) < 0.6)
    head_CG = np.where(is_small_CG, -prior_CG - 0.1 * np.sign(truth.delta_CG), residual_CG)
    found = earned_weight(truth, prior_CG, head_CG, truth.loss_weights(), ALL)
    assert min(found.gains[:2]) > 0
    assert found.gains[2] >= 0
    assert found.gains[3] < 0
    assert found.weight == 0.0


@pytest.mark.parametrize("row", [0, 7])
def test_scores_are_the_decisive_metrics_with_the_other_conditions_as_reference(row: int) -> None:
    truth, prior_CG, _ = planted()
    control_G = np.full(N_GENES, 5.0)
    whole = Truth.from_means(
        control_G + truth.delta_CG, control_G, reference_mean_G=control_G + truth.known_CG[row]
    )
    expected = condition_metrics(control_G + prior_CG, whole, ["pearson_delta_ref", "discrimination_ref"])[
        row
    ]
    scores = truth.scores(prior_CG)[row]
    np.testing.assert_allclose([scores[0], scores[2]], expected, atol=1e-12)
    is_changed_G = truth.is_changed_CG[row]
    is_right_G = np.sign(prior_CG[row]) == np.sign(truth.delta_CG[row])
    assert scores[3] == pytest.approx(is_right_G[is_changed_G].mean())

    def errors(prediction_CG: np.ndarray) -> np.ndarray:
        return np.average((prediction_CG - truth.delta_CG) ** 2, axis=1, weights=truth.evidence_CG)

    assert scores[1] == pytest.approx(-errors(prior_CG)[row] / errors(truth.known_CG).mean())


def test_errors_weigh_every_condition_alike() -> None:
    truth, _, _ = planted()
    weight_CG = truth.loss_weights()
    error_C = (weight_CG * (truth.delta_CG - truth.known_CG) ** 2).sum(axis=1)
    np.testing.assert_allclose(error_C, error_C[0])
    assert weight_CG.mean() == pytest.approx(1.0)
