"""The weight of the network: a gain that choosing among noise would give as well earns none."""

import numpy as np
import pytest

from gears.training._validation import FEWEST_CONDITIONS, WEIGHTS, choose_network_weight

EPOCHS, PRIOR = 20, 1.0


def noise(rng: np.random.Generator, n_conditions: int, *, shift: float = 0.0) -> list[np.ndarray]:
    """Errors of a network that drifts at random: gains of an epoch follow the epoch before, and grow with weight."""
    drift_EU = np.cumsum(rng.normal(size=(EPOCHS, n_conditions)), axis=0) / np.sqrt(EPOCHS) + shift
    return [PRIOR - np.multiply.outer(WEIGHTS, drift_U) for drift_U in drift_EU]


@pytest.mark.parametrize("n_conditions", [4, 5, 8, 20])
def test_noise_gets_a_weight_in_at_most_10_percent_of_60_runs(n_conditions: int) -> None:
    rng = np.random.default_rng(n_conditions)
    prior_U = np.full(n_conditions, PRIOR)
    weights = [choose_network_weight(noise(rng, n_conditions), prior_U, lower_is_better=True).weight for _ in range(60)]
    assert np.mean(np.array(weights) > 0) <= 0.1
    # the best epoch and weight alone would be used in most runs: there is something to guard against
    flattered = [
        max(float((PRIOR - scores_KU).mean(axis=1).max()) for scores_KU in noise(rng, n_conditions)) > 0
        for _ in range(60)
    ]
    assert np.mean(flattered) > 0.5


@pytest.mark.parametrize("n_conditions", [8, 20])
def test_one_bad_epoch_does_not_hide_a_gain(n_conditions: int) -> None:
    """Its errors, with their signs flipped, would be the largest gain of all."""
    rng = np.random.default_rng(2)
    good = [1 - np.multiply.outer(WEIGHTS, rng.uniform(0.2, 0.8, n_conditions)) for _ in range(7)]
    bad = 1 + np.multiply.outer(WEIGHTS, rng.uniform(0.0, 9.0, n_conditions))
    bad[:, :3] = 1.0  # without a change on some, so that its t is below that of the good ones
    found = choose_network_weight([bad, *good], np.ones(n_conditions), lower_is_better=True)
    assert found.weight == 1.0
    assert found.p_value < 0.05


def test_the_weight_is_that_of_the_kept_epoch() -> None:
    rng = np.random.default_rng(3)
    better, best = (1 - np.multiply.outer(WEIGHTS, rng.uniform(low, low + 0.1, 12)) for low in (0.2, 0.5))
    found = choose_network_weight([best, better], np.ones(12), lower_is_better=True, kept=1)
    assert found.gain == pytest.approx(float(1 - better[-1].mean()))
    assert choose_network_weight([best, better], np.ones(12), lower_is_better=True).gain > 0.5


@pytest.mark.parametrize("n_conditions", [8, 20])
@pytest.mark.parametrize("lower_is_better", [True, False])
def test_a_planted_gain_is_found_at_its_weight(n_conditions: int, lower_is_better: bool) -> None:
    rng = np.random.default_rng(1)
    prior_U = rng.uniform(0.5, 1.5, size=n_conditions)
    gain_K = np.array([0.2 * w - 0.2 * w**2 for w in WEIGHTS])  # largest at 0.5
    gain_KU = gain_K[:, None] + rng.normal(scale=0.005, size=(len(WEIGHTS), n_conditions))
    sign = -1.0 if lower_is_better else 1.0
    found = choose_network_weight([prior_U, prior_U + sign * gain_KU][1:], prior_U, lower_is_better=lower_is_better)
    assert found.weight == found.tried == 0.5
    assert found.gain == pytest.approx(0.05, abs=0.005)
    worse = choose_network_weight([prior_U - sign * gain_KU], prior_U, lower_is_better=lower_is_better)
    assert worse.weight == 0


def test_four_conditions_undefined_ones_and_no_epochs_give_no_weight() -> None:
    """2^5 signs: one in 32 does as well; of the 2^4 of four one in 16 does, which is more than 5 %."""
    for n_conditions, expected in ((4, 0.0), (5, 1.0)):
        prior_U = np.ones(n_conditions)
        scores_KU = 1 - np.multiply.outer(WEIGHTS, np.linspace(0.1, 0.2, n_conditions))
        found = choose_network_weight([scores_KU], prior_U, lower_is_better=True)
        assert (found.weight, found.tried) == (expected, 1.0)
        assert found.p_value == pytest.approx(0.5**n_conditions)
    assert FEWEST_CONDITIONS == 5
    prior_U = np.ones(8)
    undefined = np.full((len(WEIGHTS), 8), np.nan)
    assert choose_network_weight([undefined], prior_U, lower_is_better=True).weight == 0
    nothing = choose_network_weight([], prior_U, lower_is_better=True)
    assert (nothing.weight, nothing.tried, nothing.n_conditions) == (0, None, 8)
