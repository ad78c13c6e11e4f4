"""How likely a predicted change is a true one, from left-out predictions of training conditions."""

import dataclasses

import numpy as np
import pytest
from scipy.special import ndtr

from gears.priors import GenePrior, fit_prior
from gears.priors.true_change import MEASURED, TrueChange, Values, fit_true_change, group_of

R, T = 60, 80
NOISE = 0.01
ZERO_T = np.zeros(T)
STILL_RT = np.ones((R, T))  # errors do not follow the changes


def drawn(seed: int, absent: float = 0.0, control: float = 0.0, follows: float = 0.0) -> tuple[Values, np.ndarray]:
    """Predictions of true changes of two sizes and of genes that do not change, of conditions of one gene and of two.

    Predicted and measured changes share the error of the control mean, which has the variance `control`. A change has
    a further error of this share of its size (`follows`), which genes that do not change have not.
    """
    rng = np.random.default_rng(seed)
    sd_RT = rng.uniform(0.1, 0.3, (R, T))
    true_RT = rng.choice([0.3, 0.8], (R, T)) * rng.standard_normal((R, T))
    true_RT[rng.uniform(size=(R, T)) < absent] = 0.0
    with_control_RT = true_RT + np.sqrt(control) * rng.standard_normal(T)
    still_error_RT, follows_RT = sd_RT * rng.standard_normal((R, T)), follows * rng.standard_normal((R, T))
    change_RT = with_control_RT * (1 + follows_RT) + still_error_RT
    still_RT = sd_RT**2 / (sd_RT**2 + (follows * change_RT) ** 2)
    sd_RT = sd_RT / np.sqrt(still_RT)
    measured_RT = with_control_RT + np.sqrt(NOISE) * rng.standard_normal((R, T))
    groups = group_of(np.repeat([1, 2], R // 2), np.zeros(R, dtype=bool))
    noise_RT = np.full((R, T), NOISE)
    return Values(groups, np.arange(T), change_RT, sd_RT, still_RT, measured_RT, noise_RT), true_RT


def fitted(values: Values) -> TrueChange:
    return fit_true_change(values, ZERO_T, ZERO_T, ZERO_T, ZERO_T)


NO_OWN_RT = np.zeros((R, T), dtype=bool)


def larger(true_change: TrueChange, values: Values, limit: float) -> np.ndarray:
    """Probability that each true change is above the limit."""
    weight, mean, sd = true_change(values.group_R, values.change_RT, values.sd_RT, values.still_RT, NO_OWN_RT)
    return (weight * ndtr((mean - limit) / np.maximum(sd, 1e-12))).sum(axis=0)


@pytest.mark.parametrize(("absent", "control"), [(0.0, 0.0), (0.8, 0.0), (0.8, 0.02)])
def test_probabilities_are_right_whatever_sizes_changes_have(absent, control):
    noise_of_mean_T = np.full(T, 100.0)  # the mean change does not show the control's error
    true_change = fit_true_change(drawn(0, absent, control)[0], ZERO_T, noise_of_mean_T, np.full(T, control), ZERO_T)
    np.testing.assert_allclose(true_change.control_G, control, rtol=1e-3)
    drawn_9 = [drawn(seed, absent, control) for seed in range(1, 10)]  # errors of the control differ
    probability_N = np.concatenate([larger(true_change, values, 0.3).ravel() for values, _ in drawn_9])
    gaussian_N = np.concatenate([ndtr((one.change_RT - 0.3) / one.sd_RT).ravel() for one, _ in drawn_9])
    is_larger_N = np.concatenate([true_RT.ravel() for _, true_RT in drawn_9]) > 0.3
    for low, high in ((0.1, 0.3), (0.3, 0.5), (0.5, 0.7), (0.7, 0.9)):
        part = (probability_N > low) & (probability_N < high)
        assert is_larger_N[part].mean() == pytest.approx(probability_N[part].mean(), abs=0.08)
    assert is_larger_N.mean() == pytest.approx(probability_N.mean(), abs=0.006)
    sure = gaussian_N > 0.6
    assert is_larger_N[sure].mean() < gaussian_N[sure].mean() - 0.03


def test_genes_that_hardly_vary_do_not_hide_changes_of_others():
    scale_T = np.where(np.arange(T) < T // 5, 1.0, 0.001)

    def sparse(seed: int) -> tuple[Values, np.ndarray]:
        values, true_RT = drawn(seed, absent=0.8)
        scaled = {name: getattr(values, name) * scale_T for name in ("change_RT", "sd_RT", "measured_RT")}
        return dataclasses.replace(values, **scaled, noise_RT=values.noise_RT * scale_T**2), true_RT * scale_T

    true_change = fitted(sparse(0)[0])
    draws = [sparse(seed) for seed in range(1, 6)]
    probability = np.mean([larger(true_change, values, 0.3).mean() for values, _ in draws])
    assert probability == pytest.approx(np.mean([(true_RT > 0.3).mean() for _, true_RT in draws]), rel=0.2)


def test_errors_that_follow_a_change_cast_no_doubt_on_its_being_there():
    def departure(*, told: bool) -> float:
        """Of shares from probabilities in bins, at most."""
        draws = [drawn(seed, 0.8, 0.02, follows=0.4) for seed in range(10)]
        if not told:
            draws = [(dataclasses.replace(one, still_RT=STILL_RT), true_RT) for one, true_RT in draws]
        true_change = fit_true_change(draws[0][0], ZERO_T, np.full(T, 100.0), np.full(T, 0.02), ZERO_T)
        probability_N = np.concatenate([larger(true_change, one, 0.3).ravel() for one, _ in draws[1:]])
        is_larger_N = np.concatenate([true_RT.ravel() for _, true_RT in draws[1:]]) > 0.3
        bin_N = np.digitize(probability_N, [0.1, 0.3, 0.5, 0.7, 0.9])
        at = [bin_N == number for number in range(1, 5)]
        return max(abs(is_larger_N[part].mean() - probability_N[part].mean()) for part in at)

    assert departure(told=True) < 0.5 * departure(told=False)


def test_conditions_of_several_genes_have_numbers_of_their_own():
    one, several = drawn(2)[0], drawn(2, 0.9)[0]
    half = R // 2
    names = ("change_RT", "sd_RT", "still_RT", "measured_RT", "noise_RT")
    parts = [np.vstack([getattr(one, name)[:half], getattr(several, name)[half:]]) for name in names]
    both = Values(one.group_R, one.genes_T, *parts)

    def chance(values: Values) -> list[float]:
        """That a change predicted as large as 0.3 is there at all, in each group."""
        values_4T = np.full((4, T), 0.3), np.full((4, T), 0.2)
        weight, mean, sd = fitted(values)(np.arange(4), *values_4T, STILL_RT[:4], np.zeros((4, T), dtype=bool))
        return (weight * (np.abs(mean) + sd > 0.05)).sum(axis=0)[:, 0].tolist()

    known, new, several_known, several_new = chance(both)
    assert several_known < known - 0.3
    # without enough conditions a group has the numbers of the same size
    assert (new, several_new) == (known, several_known)
    unseen = dataclasses.replace(both, group_R=np.where(both.group_R == 2, 3, 0))
    # known genes do not take the numbers of new ones
    assert chance(unseen) == [known, known, known, several_known]
    only_new = fitted(dataclasses.replace(both, group_R=np.where(both.group_R == 2, 3, 1)))
    values_4T = np.full((3, T), 0.3), np.full((3, T), 0.2)
    weight, mean, sd = only_new(np.array([0, 2, MEASURED]), *values_4T, STILL_RT[:3], np.zeros((3, T), dtype=bool))
    assert weight[0].max() < 1e-6  # every change is there, and Gaussian
    np.testing.assert_allclose((weight * mean).sum(axis=0), 0.3)
    np.testing.assert_allclose((weight * sd).sum(axis=0), 0.2)


def test_the_error_of_the_control_mean_is_taken_off_as_far_as_the_mean_change_shows_it():
    rng = np.random.default_rng(3)
    values, _ = drawn(4)
    control_T = np.full(T, 0.04)
    error_T = 0.2 * rng.standard_normal(T)
    alone = fit_true_change(values, error_T, ZERO_T, control_T, ZERO_T)
    assert np.abs(alone.shift_G - error_T).mean() < 0.3 * np.abs(error_T).mean()
    common_T = 2.0 * rng.standard_normal(T)  # a true change that all conditions share
    shared = fit_true_change(values, common_T + error_T, ZERO_T, control_T, ZERO_T)
    assert np.abs(shared.shift_G).max() < 0.05 * np.abs(common_T).max()
    np.testing.assert_allclose(shared.control_G, control_T, rtol=0.05)
    common_T[8:] = 0.0  # of few genes: the others still show the error
    few = fit_true_change(values, common_T + error_T, ZERO_T, control_T, ZERO_T)
    assert np.abs(few.shift_G - error_T)[8:].mean() < 0.3 * np.abs(error_T[8:]).mean()
    assert np.abs(few.shift_G[:8]).max() < 0.2 * np.abs(common_T).max()
    _, mean_RT, _ = alone(values.group_R, values.change_RT, values.sd_RT, STILL_RT, np.ones((R, T), dtype=bool))
    np.testing.assert_allclose(mean_RT[-1], values.change_RT - alone.shift_G)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.8])
def test_the_share_of_a_pair_s_error_along_its_change_is_found(share):
    """Errors of mean square `sd` squared: a share is a factor on the whole change, the others lie across it."""
    rng = np.random.default_rng(6)
    change_RT = rng.choice([-1.0, 1.0], (R, T))
    across_RT = rng.standard_normal((R, T))
    across_RT -= change_RT * (across_RT * change_RT).mean(axis=1, keepdims=True)
    along_R1 = rng.standard_normal((R, 1))
    sd_RT = np.full((R, T), 0.3)
    error_RT = 0.3 * (np.sqrt(share) * along_R1 * change_RT + np.sqrt(1 - share) * across_RT)
    measured_RT = change_RT + error_RT + np.sqrt(NOISE) * rng.standard_normal((R, T))
    noise_RT = np.full((R, T), NOISE)
    values = Values(np.full(R, 2), np.arange(T), change_RT, sd_RT, STILL_RT, measured_RT, noise_RT)
    assert fitted(values).along == pytest.approx(share + 2 / R * (1 - share), abs=0.15)
    # pairs with a gene that no other condition perturbs count where there are no others, single genes never
    assert fitted(dataclasses.replace(values, group_R=np.full(R, 3))).along == fitted(values).along
    assert fitted(dataclasses.replace(values, group_R=np.zeros(R, dtype=int))).along == 1.0


def test_a_perturbed_gene_s_change_is_there():
    values, _ = drawn(5, 0.8)
    is_own_RT = np.zeros((R, T), dtype=bool)
    is_own_RT[:, 0] = True
    weight, mean, sd = fitted(values)(values.group_R, values.change_RT, values.sd_RT, STILL_RT, is_own_RT)
    np.testing.assert_allclose(weight.sum(axis=0), 1.0)
    np.testing.assert_allclose(mean[:, :, 0], np.broadcast_to(values.change_RT[:, 0], mean.shape[:2]))
    assert (sd[:, :, 0] > 0).all()
    assert (mean[0, :, 1:] == 0).all()
    assert (sd[0, :, 1:] == 0).all()


def test_a_fitted_prior_has_it_and_keeps_it_in_files(make_data):
    data = make_data()
    prior = fit_prior(data, lambda left_out_CG: ((left_out_CG - data.delta_CG) ** 2).mean(axis=1)).prior
    assert isinstance(prior, GenePrior)
    again = GenePrior.from_arrays(prior.arrays())
    for name in ("groups", "shift_G", "control_G", "least_G", "along"):
        first, second = (getattr(one.uncertainty.true_change, name) for one in (prior, again))
        np.testing.assert_array_equal(first, second)
    arrays = {name: array for name, array in prior.arrays().items() if not name.startswith("sd_true_")}
    assert GenePrior.from_arrays(arrays).uncertainty.true_change is None
