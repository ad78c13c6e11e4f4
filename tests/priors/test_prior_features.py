"""The prior of very many conditions: features of genes instead of all pairs of conditions."""

from itertools import combinations

import numpy as np
import pytest
from scipy import sparse

from gears.priors import GenePrior, GeneSimilarity, PriorData, fit_prior
from gears.priors import _kernels as kernels
from gears.priors import _magnitude as magnitude
from gears.priors import _process as process
from gears.priors import _regression as regression
from gears.priors._source import vector_similarity

SHARED, OWN, SIMILAR = 0.3, 0.8, 1.1


@pytest.fixture
def genes():
    """12 nodes of which 9 were perturbed, similar in threes."""
    groups = np.repeat(np.arange(4), 3)
    similar_PP = np.where(groups[:, None] == groups, 0.6, 0.1)
    np.fill_diagonal(similar_PP, 1.0)
    return GeneSimilarity(np.arange(9), sparse.csr_matrix(similar_PP[:, :9]))


SETS = tuple((node,) for node in range(9)) + tuple(combinations(range(6), 2))


def test_features_of_many_genes_keep_every_variance_and_the_frequent_genes(genes):
    singles = [(node,) for node in range(9)] + [(0, 1), (0, 2)]
    found = kernels.gene_features(genes.members(singles), genes, SHARED, OWN, SIMILAR, 6)
    expected_CC = kernels.specific_covariance(singles, genes, SHARED, OWN, SIMILAR)
    product_CC = found.feature_CM @ found.feature_CM.T
    assert found.feature_CM.shape == (11, 6)
    # of single genes the whole variance is kept, of pairs what the two share beyond the leading directions is not
    np.testing.assert_allclose((np.diag(product_CC) + found.rest_C)[:9], np.diag(expected_CC)[:9], atol=1e-12)
    # gene 0 occurs most often: what its sets share of its own effect is there, for gene 8 it is its own alone
    assert product_CC[0, 9] == pytest.approx(expected_CC[0, 9], abs=0.5)
    assert product_CC[0, 9] > OWN
    assert found.rest_C[8] > OWN


def test_the_regression_by_features_is_exact_where_noise_is_alike(genes):
    noise_C = np.full(len(SETS), 1.7)
    rng = np.random.default_rng(8)
    signal_CC = kernels.specific_covariance(SETS, genes, SHARED, OWN, SIMILAR) + 0.2 * np.eye(len(SETS))
    noise_G = rng.uniform(0.05, 0.4, 30)
    delta_CG = 0.7 + np.linalg.cholesky(signal_CC) @ rng.standard_normal((len(SETS), 30))
    delta_CG += np.sqrt(noise_C)[:, None] * np.sqrt(noise_G) * rng.standard_normal(delta_CG.shape)
    whole = regression.solve(delta_CG, signal_CC, noise_C, noise_G)
    features = kernels.gene_features(genes.members(SETS), genes, SHARED, OWN, SIMILAR)
    spectrum = regression.Spectrum.of_features(features, np.full(len(SETS), 0.2), noise_C, 0.1)
    found = regression.solve_in(spectrum, delta_CG, noise_G)
    alone = regression.solve_in(spectrum, delta_CG, noise_G, left_out=False)
    np.testing.assert_allclose(alone.coefficient_CG, found.coefficient_CG, atol=1e-12)
    np.testing.assert_allclose(found.coefficient_CG, whole.coefficient_CG, atol=1e-10)
    np.testing.assert_allclose(found.left_out_CG, whole.left_out_CG, atol=1e-10)
    np.testing.assert_allclose(found.level_G, whole.level_G, atol=1e-10)


def synergy(nodes: tuple[int, ...]) -> float:
    return 1 + 0.8 * sum(node < 4 for node in nodes) if len(nodes) > 1 else 1.0


def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let few conditions count as more than are solved exactly."""
    monkeypatch.setattr(process, "MOST_EXACT", 5)
    monkeypatch.setattr(magnitude, "MOST_EXACT", 5)


def test_a_prior_of_many_conditions_is_near_the_exact_one(make_data, monkeypatch):
    data = make_data(noise=0.1, n_pairs=30, factor=synergy)

    def error(left_out_CG: np.ndarray) -> np.ndarray:
        return ((left_out_CG - data.delta_CG) ** 2).mean(axis=1)

    monkeypatch.setattr(process, "_SHRUNK_LEVEL", 10**6)  # a free level in both
    exact = fit_prior(data, error)
    few_are_many(monkeypatch)
    found = fit_prior(data, error)
    assert exact.prior.report["exact"]
    assert not found.prior.report["exact"]
    assert found.prior.report["factor"] == exact.prior.report["factor"]
    unseen = [(0, 13), (2, 9), (4, 7), (11,), (3, 5, 8), ()]
    expected_UG = exact.prior(unseen)
    away = np.sqrt(((found.prior(unseen) - expected_UG) ** 2).mean() / (expected_UG**2).mean())
    assert away < 0.05
    assert error(found.left_out_CG).mean() < 1.1 * error(exact.left_out_CG).mean()


def test_genes_that_features_omit_are_not_told_by_each_of_their_conditions(monkeypatch):
    """40 genes, alike in fives, each in a single and in three or more pairs; of 12 the own part is a feature."""
    rng, n_nodes, n_genes = np.random.default_rng(2), 40, 50
    groups = np.arange(n_nodes) // 5
    similar_PP = np.where(groups[:, None] == groups, 0.5, 0.0)
    np.fill_diagonal(similar_PP, 1.0)
    effect_PG = rng.standard_normal((n_nodes // 5, n_genes))[groups] + rng.standard_normal((n_nodes, n_genes))
    pairs = [(node, (node + step) % n_nodes) for node in range(n_nodes) for step in (7, 11)]
    sets = tuple([(node,) for node in range(n_nodes)] + pairs)
    delta_CG = np.array([effect_PG[list(nodes)].sum(axis=0) for nodes in sets])
    delta_CG += 0.1 * rng.standard_normal(delta_CG.shape)
    data = PriorData(
        sets, delta_CG, np.full(n_genes, 0.5), np.full(len(sets), 50.0), np.ones(n_genes),
        np.full(n_nodes, -1), GeneSimilarity(np.arange(n_nodes), sparse.csr_matrix(similar_PP)),
    )  # fmt: skip
    few_are_many(monkeypatch)
    monkeypatch.setattr(kernels, "MOST_FEATURES", 24)
    prior = fit_prior(data, lambda left_out_CG: ((left_out_CG - delta_CG) ** 2).mean(axis=1)).prior
    unseen = [(node, (node + 3) % n_nodes) for node in range(n_nodes)]
    true_UG, change_UG = np.array([effect_PG[list(nodes)].sum(axis=0) for nodes in unseen]), prior(unseen)
    assert 0.8 < (true_UG * change_UG).sum() / (true_UG**2).sum() < 1.2
    again = GenePrior.from_arrays(prior.arrays())
    np.testing.assert_array_equal(again(unseen), change_UG)
    np.testing.assert_array_equal(again.sd(unseen, change_UG), prior.sd(unseen, change_UG))


def test_only_judged_conditions_are_judged(make_data):
    data, rows = make_data(), np.array([1, 4, 20])
    seen = []

    def criterion(left_out_RG: np.ndarray) -> np.ndarray:
        seen.append(left_out_RG.shape)
        return ((left_out_RG - data.delta_CG[rows]) ** 2).mean(axis=1)

    fitted = fit_prior(data, criterion, rows)
    assert set(seen) == {(3, data.delta_CG.shape[1])}
    assert fitted.left_out_CG.shape == data.delta_CG.shape


def test_kernels_are_sums_over_pairs_of_genes(make_data):
    data = make_data()
    genes, sets = data.genes, data.sets
    place = {int(node): column for column, node in enumerate(genes.trained_T)}
    similar_PT = genes.similar_PT.toarray()
    offset, shared, own, similar = kernels.training_kernels(sets, genes).values()
    for a, first in enumerate(sets):
        for b, second in enumerate(sets):
            assert offset[a, b] == 1
            assert shared[a, b] == len(first) * len(second)
            assert own[a, b] == len(set(first) & set(second))
            expected = sum(similar_PT[i, place[j]] for i in first for j in second)
            np.testing.assert_allclose(similar[a, b], expected, rtol=0, atol=1e-12)


def test_similarities_are_mixed_by_weight(make_data):
    genes = make_data().genes
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(genes.similar_PT.shape[0], 3))
    vectors[4] = np.nan
    other = vector_similarity(vectors, [(int(node),) for node in genes.trained_T])
    np.testing.assert_array_equal(other.trained_T, genes.trained_T)
    dense = other.similar_PT.toarray()
    assert dense[4, list(genes.trained_T).index(4)] == 1
    assert np.count_nonzero(dense[4]) == 1
    expected = vectors[7] @ vectors[2] / np.linalg.norm(vectors[7]) / np.linalg.norm(vectors[2])
    np.testing.assert_allclose(dense[7, list(genes.trained_T).index(2)], expected)
    mean = kernels.mixed([genes, other], [3.0, 1.0]).similar_PT.toarray()
    np.testing.assert_allclose(mean, 0.75 * genes.similar_PT.toarray() + 0.25 * dense)
    assert kernels.mixed([genes, other], [1.0, 0.0]).similar_PT is genes.similar_PT
    assert kernels.mixed([genes, other], [0.0, 0.0]).similar_PT is genes.similar_PT
