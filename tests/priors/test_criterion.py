"""Errors at several slopes from a few sums are those of the two metrics, slope by slope."""

from __future__ import annotations

import numpy as np
import pytest

from gears.evaluation.metrics._decisive import ChoiceErrors
from gears.evaluation.truth import Truth
from gears.priors._data import errors_at_slopes

SLOPES = np.array([1.0, 0.5, 0.8, 1.2])
N_GENES = 30


def setting(rows: np.ndarray, seed: int) -> tuple[np.ndarray, Truth]:
    """Conditions of one setting: some genes near 0, the reference of each the mean of the others."""
    draw = np.random.default_rng(seed)
    control_G = draw.exponential(0.3, N_GENES)
    mean_UG = np.maximum(control_G + draw.normal(0, 0.3, (len(rows), N_GENES)), 0.0)
    truth = Truth.from_means(
        mean_UG,
        control_G,
        reference_mean_G=(mean_UG.sum(axis=0) - mean_UG) / (len(rows) - 1),
        moderated_t_UG=draw.normal(0, 3, mean_UG.shape),
        degrees_U=np.full(len(rows), 20.0),
    )
    return rows, truth


def predictions(parts: list[tuple[np.ndarray, Truth]], n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Predicted changes, many of them cut at 0, and changes of perturbed genes themselves."""
    draw = np.random.default_rng(9)
    change_UG, target_UG = draw.normal(0, 0.4, (n_rows, N_GENES)), np.zeros((n_rows, N_GENES))
    for row, gene in enumerate(draw.integers(N_GENES, size=n_rows - 1).tolist()):
        target_UG[row, gene] = -0.7
    rows, truth = parts[0]
    change_UG[rows[0]] = truth.reference_mean_G[0] - truth.control_mean_G  # no departure at slope 1: no correlation
    target_UG[rows[0]] = 0.0
    return change_UG, target_UG


@pytest.mark.parametrize("clip", [True, False])
@pytest.mark.parametrize("of_targets", [SLOPES, np.maximum(SLOPES, 1.0)], ids=["alike", "other slopes of targets"])
def test_errors_at_slopes_are_those_of_the_metrics(of_targets: np.ndarray, *, clip: bool) -> None:
    parts = [setting(np.array([0, 3, 4, 6]), 1), setting(np.array([1, 2, 5]), 2), setting(np.array([7, 8]), 3)]
    change_UG, target_UG = predictions(parts, 9)
    errors = ChoiceErrors(parts, clip=clip)
    found_SEU = errors_at_slopes(errors, SLOPES, change_UG, of_targets, target_UG)
    plain_SEU = errors_at_slopes(errors.__call__, SLOPES, change_UG, of_targets, target_UG)  # one slope after another
    assert plain_SEU[0, 1, 0] == 0.0  # no correlation where nothing but rounding departs
    np.testing.assert_allclose(found_SEU, plain_SEU, rtol=1e-9, atol=1e-12)
    at_zero = (parts[0][1].control_mean_G + change_UG[parts[0][0]] < 0).mean()
    assert 0.1 < at_zero < 0.9


def test_a_condition_that_is_its_own_reference_has_no_correlation() -> None:
    rows, truth = setting(np.arange(3), 4)
    alone = Truth.from_means(
        truth.mean_UG[:1],
        truth.control_mean_G,
        reference_mean_G=truth.mean_UG[:1],
        moderated_t_UG=truth.moderated_t_UG[:1],
        degrees_U=truth.degrees_U[:1],
    )
    change_UG = np.full((1, N_GENES), 0.1) + np.arange(N_GENES) / 50
    found_SEU = errors_at_slopes(
        ChoiceErrors([(rows[:1], alone)], clip=True), SLOPES, change_UG, SLOPES, np.zeros_like(change_UG)
    )
    assert (found_SEU[:, 1] == 0.0).all()
    assert (found_SEU[:, 0] > 0.0).all()
