"""The weight of the head: earned on unseen conditions, for each kind of condition, in what is decisive."""

from __future__ import annotations

import numpy as np
import pytest

from gears.evaluation.metrics import condition_metrics
from gears.evaluation.truth import Truth
from gears.priors._process import mean_of_others
from gears.training._head import FEWEST_OF_A_KIND, HeadWeight, TrainingTruth, earned_weight

N_CONDITIONS, N_GENES = 24, 60
ALL = np.arange(N_CONDITIONS)
CONTROL_G = np.full(N_GENES, 5.0)


def planted(seed: int = 0, noise: float = 0.2) -> tuple[Truth, np.ndarray, np.ndarray]:
    """Sparse true changes, a prior that is shrunk and noisy, and the residual that a head could find."""
    rng = np.random.default_rng(seed)
    effect_CG = rng.standard_normal((N_CONDITIONS, N_GENES)) * (rng.random((N_CONDITIONS, N_GENES)) < 0.3)
    delta_CG = effect_CG + 0.05 * rng.standard_normal(effect_CG.shape)
    prior_CG = 0.6 * effect_CG + noise * rng.standard_normal(effect_CG.shape)
    truth = Truth.from_means(
        CONTROL_G + delta_CG,
        CONTROL_G,
        reference_mean_G=CONTROL_G + mean_of_others(delta_CG),
        moderated_t_UG=np.where(np.abs(delta_CG) > 0.2, 1e3, 0.0),
        degrees_U=np.full(N_CONDITIONS, 50.0),
    )
    return truth.for_choices(), prior_CG, effect_CG - prior_CG


def found_for(truth: Truth, prior_CG: np.ndarray, head_CG: np.ndarray, rows: np.ndarray = ALL) -> HeadWeight:
    training = TrainingTruth(((truth, ALL),))
    return earned_weight(training, prior_CG, head_CG, training.loss_weights(), rows)


def weight_of(truth: Truth, prior_CG: np.ndarray, head_CG: np.ndarray, rows: np.ndarray = ALL) -> float:
    return found_for(truth, prior_CG, head_CG, rows).weight


def scores(truth: Truth, change_CG: np.ndarray) -> np.ndarray:
    return TrainingTruth(((truth, ALL),)).scores(change_CG)


def test_a_head_that_finds_the_residual_counts_and_noise_and_the_opposite_do_not() -> None:
    truth, prior_CG, residual_CG = planted()
    assert 0.9 < weight_of(truth, prior_CG, residual_CG) <= 1.0
    assert weight_of(truth, prior_CG, 0.5 * residual_CG) == 1.0
    assert 0.4 < weight_of(truth, prior_CG, 2 * residual_CG) < 0.5
    rng = np.random.default_rng(1)
    noise = [weight_of(truth, prior_CG, 0.3 * rng.standard_normal(prior_CG.shape)) for _ in range(60)]
    assert np.mean(np.array(noise) > 0) <= 0.05
    assert weight_of(truth, prior_CG, -residual_CG) == 0.0
    assert weight_of(truth, prior_CG, 0 * residual_CG) == 0.0


def test_each_kind_is_weighed_by_its_own_conditions_if_there_are_enough() -> None:
    truth, prior_CG, residual_CG = planted()
    head_CG = np.where(np.arange(N_CONDITIONS)[:, None] < 12, residual_CG, -residual_CG)
    assert weight_of(truth, prior_CG, head_CG, ALL[:12]) > 0.8
    assert weight_of(truth, prior_CG, head_CG, ALL[12:]) == 0.0
    assert weight_of(truth, prior_CG, residual_CG, ALL[: FEWEST_OF_A_KIND - 1]) == 0.0
    assert weight_of(truth, prior_CG, residual_CG, ALL[:FEWEST_OF_A_KIND]) > 0.5


def test_a_smaller_error_with_a_worse_pattern_gets_no_weight() -> None:
    """Shrinking a prediction that is too large gains squared error and leaves the pattern alone."""
    truth, prior_CG, _ = planted()
    too_large_CG = (truth.reference_mean_G - CONTROL_G) + 2 * (prior_CG - (truth.reference_mean_G - CONTROL_G))
    shrinking_CG = (truth.reference_mean_G - CONTROL_G) - too_large_CG
    found = found_for(truth, too_large_CG, shrinking_CG)
    assert found.least_squares > 0.1
    assert found.gains[1] > 0
    assert found.weight == 0.0


def test_better_in_one_way_and_worse_in_another_gets_no_weight() -> None:
    """It removes noise from genes that do not change, and halves the change of those that do."""
    truth, _, _ = planted()
    noise_CG = 0.5 * np.random.default_rng(3).standard_normal(truth.delta_UG.shape)
    is_changed_CG = truth.evidence_UG > 0
    prior_CG = np.where(is_changed_CG, truth.delta_UG + 0.1 * noise_CG, noise_CG)
    head_CG = np.where(is_changed_CG, -0.2 * prior_CG, -prior_CG)
    found = found_for(truth, prior_CG, head_CG)
    assert found.least_squares > 0.5
    assert found.gains[0] > 0
    assert found.gains[1] < 0
    assert found.weight == 0.0
    truth, prior_CG, residual_CG = planted()
    is_small_CG = (truth.evidence_UG > 0) & (np.abs(truth.delta_UG) < 0.6)
    head_CG = np.where(is_small_CG, -prior_CG - 0.1 * np.sign(truth.delta_UG), residual_CG)
    # most genes come closer to their truth; the small changes go through zero to the other side
    found = found_for(truth, prior_CG, head_CG)
    assert min(found.gains[:2]) > 0
    assert found.gains[2] >= 0
    assert found.gains[3] < 0
    assert found.weight == 0.0


def test_a_gain_that_makes_perturbations_alike_gets_only_the_part_that_does_not() -> None:
    """Each condition moves towards its own truth, and further towards that of another."""
    truth, _, _ = planted()
    other_CG = np.roll(truth.delta_UG, 1, axis=0)
    prior_CG = (truth.reference_mean_G - CONTROL_G) + 0.4 * (truth.delta_UG - (truth.reference_mean_G - CONTROL_G))
    prior_CG += 0.5 * np.random.default_rng(2).standard_normal(prior_CG.shape)
    head_CG = 0.35 * truth.delta_UG + 0.65 * other_CG - prior_CG
    found = found_for(truth, prior_CG, head_CG)
    whole_4 = scores(truth, prior_CG + found.least_squares * head_CG).mean(axis=0)
    without_4 = scores(truth, prior_CG).mean(axis=0)
    assert whole_4[1] > without_4[1]
    assert whole_4[2] < without_4[2]
    assert 0 < found.weight <= 0.5 * found.least_squares
    assert min(found.gains) >= 0


@pytest.mark.parametrize("row", [0, 7])
def test_scores_are_the_decisive_metrics_with_the_other_conditions_as_reference(row: int) -> None:
    truth, prior_CG, _ = planted()
    own = Truth.from_means(truth.mean_UG, CONTROL_G, reference_mean_G=truth.reference_mean_G[row])
    expected = condition_metrics(CONTROL_G + prior_CG, own, ["pearson_delta_ref", "discrimination_ref"])[row]
    score_4 = scores(truth, prior_CG)[row]
    np.testing.assert_allclose([score_4[0], score_4[2]], expected, atol=1e-12)
    is_changed_G = (truth.evidence_UG > 0)[row]
    is_right_G = np.sign(prior_CG[row]) == np.sign(truth.delta_UG[row])
    assert score_4[3] == pytest.approx(is_right_G[is_changed_G].mean())

    def errors(prediction_CG: np.ndarray) -> np.ndarray:
        return np.average((prediction_CG - truth.delta_UG) ** 2, axis=1, weights=truth.evidence_UG)

    assert score_4[1] == pytest.approx(-errors(prior_CG)[row] / errors(truth.reference_mean_G - CONTROL_G).mean())


def test_errors_weigh_every_condition_alike() -> None:
    truth, _, _ = planted()
    weight_CG = TrainingTruth(((truth, ALL),)).loss_weights()
    error_C = (weight_CG * (truth.delta_UG - (truth.reference_mean_G - CONTROL_G)) ** 2).sum(axis=1)
    np.testing.assert_allclose(error_C, error_C[0])
    assert weight_CG.mean() == pytest.approx(1.0)
