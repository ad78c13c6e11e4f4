"""Standard deviations of the prior's means: coverage, what they follow, files."""

import dataclasses
import functools
from itertools import combinations

import numpy as np
import pytest
from scipy import sparse
from scipy.stats import spearmanr

from gears.core._intervals import half_width, sd_factor
from gears.priors import GenePrior, GeneSimilarity, PriorData, fit_prior
from gears.priors._calibration import LEVEL
from gears.priors._kernels import target_cells

N_NODES, N_GENES = 45, 60
NORMAL = 1.6449
SEEN, PAIRED = 36, 12  # nodes that are perturbed in training; of these, those of pairs

Sets = tuple[tuple[int, ...], ...]


def screen_of(
    seed: int,
    *,
    alike=0.6,
    strength: np.ndarray | float = 1.0,
    factor_sd=0.0,
    target_sd: float | None = None,
    noise=0.15,
) -> tuple[PriorData, Sets, np.ndarray]:
    """Training data drawn from the process itself, other conditions, and the true changes of these.

    Nodes are alike in threes, by `alike`; every third of a group is never perturbed in some groups. Effects are
    multiplied by `strength` of their node, pairs by a random factor, a node's change of its own gene by a random share.
    """
    rng = np.random.default_rng(seed)
    groups = np.arange(N_NODES) // 3
    similar_PP = np.where(groups[:, None] == groups, 0.6, 0.0)
    np.fill_diagonal(similar_PP, 1.0)
    draw_PP = alike * similar_PP + (1 - alike) * np.eye(N_NODES)
    effect_PG = np.linalg.cholesky(draw_PP) @ rng.standard_normal((N_NODES, N_GENES))
    effect_PG *= np.exp(0.5 * rng.standard_normal(N_GENES))  # genes differ in their signal
    effect_PG *= np.broadcast_to(strength, N_NODES)[:, None]
    trained = rng.permutation(N_NODES)[:SEEN]
    pairs = [tuple(sorted(pair)) for pair in combinations(trained[:PAIRED].tolist(), 2)]
    pairs = [pairs[index] for index in rng.permutation(len(pairs))]
    singles = [(int(node),) for node in trained]
    unseen = [(int(node),) for node in range(N_NODES) if node not in trained]
    sets, others = tuple(singles + pairs[:30]), tuple(unseen + pairs[30:])
    column_P = np.where(np.arange(N_NODES) < 30, np.arange(N_NODES), -1)
    column_P = column_P if target_sd is not None else np.full(N_NODES, -1)

    def change(nodes: tuple[int, ...]) -> np.ndarray:
        change_G = effect_PG[list(nodes)].sum(axis=0)
        if len(nodes) > 1:
            change_G = change_G * np.exp(factor_sd * rng.standard_normal())
        for node in nodes:
            if column_P[node] >= 0:
                change_G[column_P[node]] = -2.0 + (target_sd or 0.0) * rng.standard_normal()
        return change_G

    n_C = rng.integers(20, 200, len(sets)).astype(float)
    variance_G = np.full(N_GENES, 50 * noise**2)
    delta_CG = np.array([change(nodes) for nodes in sets])
    delta_CG += rng.standard_normal(delta_CG.shape) * np.sqrt(variance_G / n_C[:, None])
    trained_T = np.sort(trained)
    genes = GeneSimilarity(trained_T, sparse.csr_matrix(similar_PP[:, trained_T]))
    data = PriorData(sets, delta_CG, variance_G, n_C, np.full(N_GENES, 2.0), column_P, genes)
    return data, others, np.array([change(nodes) for nodes in others])


def fitted_to(data: PriorData) -> GenePrior:
    prior = fit_prior(data, lambda left_out_CG: ((left_out_CG - data.delta_CG) ** 2).mean(axis=1)).prior
    assert isinstance(prior, GenePrior)
    return prior


@functools.cache
def drawn_and_fitted(seed: int, **options: float) -> tuple[PriorData, Sets, np.ndarray, GenePrior]:
    """A screen of the process and its prior, once for all tests."""
    data, others, true_UG = screen_of(seed, **options)
    return data, others, true_UG, fitted_to(data)


def errors(prior: GenePrior, sets: Sets, true_UG: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    change_UG = prior(sets)
    return true_UG - change_UG, prior.sd(sets, change_UG)


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(6), marks=pytest.mark.long)])
def test_intervals_of_data_from_the_process_hold_what_they_say(seeds):
    inside = {"unseen": [], "pairs": []}
    for seed in seeds:
        data, others, true_UG, prior = drawn_and_fitted(seed)
        error_UG, sd_UG = errors(prior, others, true_UG)
        noise_G = data.variance_G / 60  # of means of 60 cells
        drawn_UG = np.random.default_rng(seed).standard_normal(error_UG.shape) * np.sqrt(noise_G)
        of_means_UG = np.abs(error_UG + drawn_UG) <= NORMAL * np.sqrt(sd_UG**2 + noise_G)
        of_truth_UG = np.abs(error_UG) <= NORMAL * sd_UG
        for row, nodes in enumerate(others):
            shares = of_means_UG[row].mean(), of_truth_UG[row].mean()
            inside["pairs" if len(nodes) > 1 else "unseen"].append(shares)
    assert len(inside["unseen"]) == len(seeds) * (N_NODES - SEEN)
    for name, shares in inside.items():
        of_means, of_truth = np.mean(shares, axis=0)
        assert of_means == pytest.approx(LEVEL, abs=0.02), name
        # errors of pairs are smaller than the noise of the means that they are calibrated on
        assert of_truth == pytest.approx(LEVEL, abs=0.06 if name == "pairs" else 0.02), name


def test_intervals_of_errors_with_long_tails_hold_at_every_level():
    inside = {level: [] for level in (0.5, 0.8, 0.9, 0.95, 0.99)}
    gaussian = {level: [] for level in inside}
    for seed in range(2):
        # conditions differ in how far they are from what their genes say: a mixture of narrow and wide errors
        data, others, true_UG = screen_of(seed, alike=0.2, noise=0.02)
        rng = np.random.default_rng(seed)
        tails_CG, tails_UG = (rng.standard_t(2.5, shape.shape) for shape in (data.delta_CG, true_UG))
        data = dataclasses.replace(data, delta_CG=data.delta_CG + tails_CG)
        prior = fitted_to(data)
        error_UG, sd_UG = errors(prior, others, true_UG + tails_UG)
        for level, shares in inside.items():
            of_level_UG = float(half_width(level)) * sd_UG
            gaussian[level].append((np.abs(error_UG) <= of_level_UG).mean())
            shares.append((np.abs(error_UG) <= sd_factor(level, prior.widths(others)) * of_level_UG).mean())
    for level, shares in inside.items():
        assert np.mean(shares) == pytest.approx(level, abs=0.025), level
    assert np.mean(gaussian[0.5]) > 0.54


def test_genes_and_conditions_that_are_known_less_have_wider_intervals():
    """Scales of genes follow their errors, where most conditions are known but for noise."""
    correlations = []
    for seed in range(2):
        _, others, true_UG, prior = drawn_and_fitted(seed)
        error_UG, sd_UG = errors(prior, others, true_UG)
        is_pair = np.array([len(nodes) > 1 for nodes in others])
        of_error_G = np.sqrt((error_UG[~is_pair] ** 2).mean(axis=0))
        correlations.append(np.corrcoef(of_error_G, sd_UG[~is_pair].mean(axis=0))[0, 1])
        assert sd_UG[~is_pair].mean() > 3 * sd_UG[is_pair].mean()
        assert spearmanr(sd_UG.mean(axis=0), np.sqrt((error_UG**2).mean(axis=0))).statistic > 0.5
    assert np.mean(correlations) > 0.65


@pytest.mark.parametrize("follows", [True, False])
def test_sizes_that_follow_similar_genes_say_which_unseen_gene_is_predicted_badly(follows):
    rng, found = np.random.default_rng(5), []
    for seed in range(2):
        strength = np.exp(rng.standard_normal(N_NODES // 3))[np.arange(N_NODES) // 3] if follows else 1.0
        data, others, true_UG = screen_of(seed, alike=0.0, strength=strength)
        prior = fitted_to(data)
        error_UG, sd_UG = errors(prior, others, true_UG)
        unseen = [row for row, nodes in enumerate(others) if len(nodes) == 1]
        of_error, of_sd = (np.sqrt((values_UG[unseen] ** 2).mean(axis=1)) for values_UG in (error_UG, sd_UG))
        found.append((prior.report["sd"]["exponents_of_size"][1], of_error, of_sd / of_sd.mean()))
    exponents, of_error, of_sd = zip(*found, strict=True)
    if follows:
        assert np.mean(exponents) >= 0.5
        assert spearmanr(np.concatenate(of_error), np.concatenate(of_sd)).statistic > 0.5
    else:
        assert np.mean(exponents) < 0.5
        assert np.concatenate(of_sd) == pytest.approx(1.0, abs=0.1)


def test_pairs_that_are_multiplied_are_wrong_where_their_change_is():
    shares = {}
    for factor_sd in (0.0, 1.2):
        _, others, true_UG, prior = drawn_and_fitted(2, factor_sd=factor_sd)
        shares[factor_sd] = prior.report["sd"]["share_where_change_is"]
    assert shares[1.2] >= shares[0.0] + 0.2
    error_UG, sd_UG = errors(prior, others, true_UG)
    pairs = [row for row, nodes in enumerate(others) if len(nodes) > 1]
    assert spearmanr(sd_UG[pairs].ravel(), np.abs(error_UG[pairs]).ravel()).statistic > 0.4


@pytest.mark.parametrize("target_sd", [0.05, 0.8])
def test_the_change_of_a_perturbed_gene_itself_has_its_error(target_sd):
    error_N, sd_N = [], []
    for seed in range(2):
        data, others, true_UG = screen_of(seed, target_sd=target_sd, strength=0.3)
        error_UG, sd_UG = errors(fitted_to(data), others, true_UG)
        at = target_cells(others, data.column_P)
        error_N.append(error_UG[at])
        sd_N.append(sd_UG[at])
    of_error, of_sd = (float(np.sqrt((np.concatenate(values) ** 2).mean())) for values in (error_N, sd_N))
    assert of_sd == pytest.approx(of_error, rel=0.4)


def test_errors_of_perturbed_genes_themselves_are_no_errors_of_other_conditions():
    data, _, _ = screen_of(3, target_sd=3.0, strength=0.3)
    prior = fitted_to(data)
    is_target_G = np.isin(np.arange(N_GENES), data.column_P)
    scale_G = prior.uncertainty.gene_G
    assert np.median(scale_G[is_target_G]) == pytest.approx(np.median(scale_G[~is_target_G]), rel=0.5)
    # nor do they count as no errors, where noise lets few conditions tell
    ratios = []
    for seed in range(2):
        scale_G = fitted_to(screen_of(seed, target_sd=3.0, strength=0.3, noise=2.0)[0]).uncertainty.gene_G
        ratios.append(np.median(scale_G[is_target_G]) / np.median(scale_G[~is_target_G]))
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.15)
    # and where changes are does not count them either
    priors = [fitted_to(screen_of(seed, target_sd=0.0, factor_sd=0.8, strength=0.3)[0]) for seed in range(2)]
    assert np.mean([prior.report["sd"]["share_where_change_is"] for prior in priors]) > 0.35


def test_the_mean_alone_is_as_wrong_as_conditions_differ():
    data, others, true_UG = screen_of(4, alike=0.0)
    means_CG = (data.delta_CG.sum(axis=0) - data.delta_CG) / (len(data.delta_CG) - 1)
    prior = fit_prior(data, lambda left_out_CG: -1.0 * np.isclose(left_out_CG, means_CG).all(axis=1)).prior
    assert prior.report["mean_only"] == ["one known gene", "one new gene", "known genes"]
    error_UG, sd_UG = errors(prior, others, true_UG)
    assert (np.abs(error_UG) <= NORMAL * sd_UG).mean() == pytest.approx(LEVEL, abs=0.05)


@pytest.mark.parametrize("held", [0.0, 0.6, 1.0])
def test_the_error_of_the_control_mean_is_one_of_changes_as_far_as_predictions_hold_it(held):
    data, others, _, prior = drawn_and_fitted(0)
    sets = (*others[:3], data.sets[0], ())
    change_UG, control_G = prior(sets), np.linspace(0.0, 0.1, N_GENES)

    def uncertainty(**changes: object) -> GenePrior:
        changed = dataclasses.replace(prior.uncertainty, **changes)
        return dataclasses.replace(prior, uncertainty=changed)

    without_UG = uncertainty(control_G=None).sd(sets, change_UG)
    changed = uncertainty(control_G=control_G, held_level=held)
    sd_UG = changed.sd(sets, change_UG)
    of_changes_UG = np.where(sd_UG > 0, np.hypot(sd_UG, changed.control_sd(sets)), 0.0)
    expected_UG = without_UG[:4] ** 2 + (1 - held) ** 2 * control_G
    np.testing.assert_allclose(sd_UG[:4] ** 2, expected_UG)
    np.testing.assert_allclose(of_changes_UG[:4] ** 2, expected_UG + held**2 * control_G)
    assert not sd_UG[4].any()
    assert not of_changes_UG[4].any()


def test_it_comes_back_from_files_and_the_order_of_genes_does_not_matter():
    """The control is known; earlier files have no standard deviations."""
    data, others, _, prior = drawn_and_fitted(0)
    arrays, change_UG = prior.arrays(), prior(others)
    again = GenePrior.from_arrays(arrays, prior.report)
    np.testing.assert_array_equal(again.sd(others, change_UG), prior.sd(others, change_UG))
    earlier = {name: array for name, array in arrays.items() if not name.startswith("sd_")}
    assert GenePrior.from_arrays(earlier).sd(others, change_UG) is None
    with pytest.raises(ValueError, match="disagree"):
        GenePrior.from_arrays(arrays | {"sd_used": arrays["sd_used"][:-1]})
    tables = sum(array.nbytes for name, array in arrays.items() if name.startswith("sd_"))
    assert tables < 4 * (len(data.genes.trained_T) + 2) ** 2 + 8 * (5 * N_GENES + 250)
    sets = [data.sets[-1], data.sets[-1][::-1], data.sets[0], ()]
    sd_UG = prior.sd(sets, prior(sets))
    np.testing.assert_allclose(sd_UG[0], sd_UG[1], rtol=1e-6)
    assert (sd_UG > 0).all(axis=1).tolist() == [True, True, True, False]
    assert not sd_UG[3].any()


def test_too_few_conditions_to_tell_have_no_sd(make_data):
    data = make_data()
    single = dataclasses.replace(data, sets=((0,),), delta_CG=data.delta_CG[:1], n_C=data.n_C[:1])
    alone = fit_prior(single, lambda left_out_CG: np.zeros(len(left_out_CG))).prior
    assert alone.sd([(0,)], np.zeros((1, 40))) is None
    two = dataclasses.replace(data, sets=((0,), (1,)), delta_CG=data.delta_CG[:2], n_C=data.n_C[:2])
    prior = fit_prior(two, lambda left_out_CG: np.zeros(len(left_out_CG))).prior
    sd_UG = prior.sd([(0,), (5,)], prior([(0,), (5,)]))
    assert np.isfinite(sd_UG).all()
    assert (sd_UG > 0).all()
