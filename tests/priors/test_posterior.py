"""Posterior variance of conditions, against inverses of the dense matrices."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from scipy import sparse

from gears.conditions import NodeSet
from gears.priors import GeneSimilarity
from gears.priors._evidence import EvidenceWeights
from gears.priors._kernels import AdditiveCovariance, Features, gene_features, specific_covariance
from gears.priors._posterior import ConditionCovariance, Posterior, left_out_variance
from gears.priors._regression import Spectrum
from gears.priors._uncertainty import condition_variance

N_NODES, N_TRAINED = 12, 9
SETS = tuple((node,) for node in range(N_TRAINED)) + tuple(combinations(range(6), 2))
NEW = [(10,), (0,), (0, 10), (2, 7), (3, 4, 8), (9, 1), (0, 1)]
TERMS = {"shared": 0.3, "own": 0.8, "similar": 1.1}
WEIGHTS = EvidenceWeights({}, 1.0, 0.2, 0.1)
TYPICAL = 0.17
NOISE_C = np.random.default_rng(0).uniform(0.3, 3.0, len(SETS))
UNEXPLAINED_C = np.where([len(nodes) > 1 for nodes in SETS], 0.3, 0.2)


def similar_PP() -> np.ndarray:
    """12 nodes, similar in threes."""
    groups = np.repeat(np.arange(4), 3)
    similar = np.where(groups[:, None] == groups, 0.6, 0.1)
    np.fill_diagonal(similar, 1.0)
    return similar


def covariance_of(sets: tuple[tuple[int, ...], ...]) -> AdditiveCovariance:
    trained_T = np.unique([node for nodes in sets for node in nodes])
    return AdditiveCovariance(GeneSimilarity(trained_T, sparse.csr_matrix(similar_PP()[:, trained_T])), **TERMS)


def dense(first: list, second: list, within: float = 0.0) -> np.ndarray:
    """Covariance of two lists of sets, with a multiple of it within settings."""

    def members(sets: list) -> np.ndarray:
        return np.array([[node in list(nodes) for node in range(N_NODES)] for nodes in sets], dtype=float)

    whole_PP = TERMS["own"] * np.eye(N_NODES) + TERMS["similar"] * similar_PP() + TERMS["shared"]
    covariance = members(first) @ whole_PP @ members(second).T
    if within:
        context = [[getattr(nodes, "context", 0) for nodes in sets] for sets in (first, second)]
        covariance *= 1 + within * (np.array(context[0])[:, None] == context[1])
    return covariance


def kriging(own_UU: np.ndarray, k_UC: np.ndarray, a_CC: np.ndarray) -> np.ndarray:
    """Posterior covariance by textbook universal kriging around a constant, from the bordered system."""
    n = len(a_CC)
    border = np.block([[a_CC, np.ones((n, 1))], [np.ones((1, n)), np.zeros((1, 1))]])
    right_UN = np.hstack([k_UC, np.ones((len(k_UC), 1))])
    return own_UU - right_UN @ np.linalg.inv(border) @ right_UN.T


def kriging_variance(own_U: np.ndarray, k_UC: np.ndarray, a_CC: np.ndarray) -> np.ndarray:
    return kriging(np.diag(own_U), k_UC, a_CC).diagonal()


def spectrum_of(sets, unexplained_C, noise_C, level: float | None = None) -> Spectrum:
    part = covariance_of(SETS)
    signal_CC = specific_covariance(sets, part.genes, part.shared, part.own, part.similar)
    return Spectrum.of(signal_CC + np.diag(unexplained_C), noise_C, level)


def by_columns(spectrum: Spectrum, level: float = 0.0, sets=SETS, new=NEW, omitted=None) -> np.ndarray:
    part = replace(covariance_of(SETS), omitted=omitted)
    covariance, member_CR = ConditionCovariance.of(sets, part, level, WEIGHTS)
    return condition_variance(covariance, Posterior.of(spectrum, member_CR, TYPICAL), new)


def test_it_is_the_dense_formula_around_a_free_level_and_with_a_shrunk_one():
    a_CC = dense(SETS, SETS) + np.diag(UNEXPLAINED_C + TYPICAL * NOISE_C)
    own_U = np.diag(dense(NEW, NEW)) + np.where([len(nodes) > 1 for nodes in NEW], 0.3, 0.2)
    expected_U = kriging_variance(own_U, dense(NEW, SETS), a_CC)
    found_U = by_columns(spectrum_of(SETS, UNEXPLAINED_C, NOISE_C))
    np.testing.assert_allclose(found_U, expected_U, rtol=2e-6)
    # a gene that was never perturbed is known less than one that was, alone and in a pair
    assert found_U[0] > 3 * found_U[1]
    assert found_U[2] > found_U[6]
    level = 0.4
    a_CC = dense(SETS, SETS) + level + np.diag(UNEXPLAINED_C + TYPICAL * NOISE_C)
    k_UC = dense(NEW, SETS) + level
    expected_U = np.diag(dense(NEW, NEW)) + level - np.einsum("uc,cd,ud->u", k_UC, np.linalg.inv(a_CC), k_UC)
    expected_U += np.where([len(nodes) > 1 for nodes in NEW], 0.3, 0.2)
    found_U = by_columns(spectrum_of(SETS, UNEXPLAINED_C, NOISE_C, level), level)
    np.testing.assert_allclose(found_U, expected_U, rtol=2e-6)


@pytest.mark.parametrize("level", [None, 0.4])
def test_a_left_out_condition_is_known_as_after_a_fit_to_the_others(level):
    found_C = left_out_variance(spectrum_of(SETS, UNEXPLAINED_C, NOISE_C, level), NOISE_C, TYPICAL)
    for row in (0, 8, 12, 20):
        others = [other for other in range(len(SETS)) if other != row]
        sets = tuple(SETS[other] for other in others)
        spectrum = spectrum_of(sets, UNEXPLAINED_C[others], NOISE_C[others], level)
        refitted = by_columns(spectrum, level or 0.0, sets, [SETS[row]])[0]
        assert found_C[row] == pytest.approx(refitted, rel=2e-6)


def features_of(most: int | None) -> Features:
    part = covariance_of(SETS)
    return gene_features(part.genes.members(SETS), part.genes, part.shared, part.own, part.similar, most)


def features_spectrum(most: int | None = None) -> Spectrum:
    return Spectrum.of_features(features_of(most), UNEXPLAINED_C, NOISE_C, TYPICAL)


def test_features_give_the_exact_variance_and_where_they_omit_genes_count_none_twice():
    exact = spectrum_of(SETS, UNEXPLAINED_C, NOISE_C)
    np.testing.assert_allclose(by_columns(features_spectrum()), by_columns(exact), rtol=1e-4)
    np.testing.assert_allclose(
        left_out_variance(features_spectrum(), NOISE_C, TYPICAL), left_out_variance(exact, NOISE_C, TYPICAL), rtol=1e-9
    )
    found_U = by_columns(features_spectrum(6), omitted=features_of(6).omitted)
    expected_U = by_columns(spectrum_of(SETS, UNEXPLAINED_C, NOISE_C))
    assert (found_U > 0.6 * expected_U).all()
    assert found_U[0] > 2 * found_U[1]
    assert by_columns(features_spectrum(6))[4] < 0.4 * expected_U[4], "the three genes of a triple count several times"


def test_settings_share_what_their_covariance_says():
    """Contexts 0 and 2 are known, context 1 takes half of each."""
    sets = [NodeSet([node], context=context) for context in (0, 2) for node in range(N_TRAINED)]
    new = [NodeSet(nodes, context=k) for nodes, k in (([0], 0), ([0, 1], 2), ([4], 1), ([11], 1))]
    noise_C, within = np.linspace(0.5, 2.0, len(sets)), 0.5
    part = covariance_of(SETS)
    own = AdditiveCovariance(part.genes, within * part.shared, within * part.own, within * part.similar)
    carried_SS = np.array([[1, 0, 0], [0.5, 0, 0.5], [0, 0, 1.0]])
    covariance, member_CR = ConditionCovariance.of(sets, part, 0.0, WEIGHTS, within=own, carried_SS=carried_SS)
    signal_CC = dense(sets, sets, within) + 0.2 * np.eye(len(sets))
    posterior = Posterior.of(Spectrum.of(signal_CC, noise_C), member_CR, TYPICAL)
    k_UC = dense(new, sets, within)
    k_UC[2:] = dense(new[2:], sets) * (1 + within / 2)
    own_U = np.diag(dense(new, new)) * (1 + within) + np.array([0.2, 0.3, 0.2, 0.2])
    expected_U = kriging_variance(own_U, k_UC, signal_CC + TYPICAL * np.diag(noise_C))
    np.testing.assert_allclose(condition_variance(covariance, posterior, new), expected_U, rtol=2e-6)


def test_two_unknown_genes_are_alike_over_the_trained_gene_that_is_most_like_both():
    genes = covariance_of(SETS).genes
    pairs_E2 = np.array([(0, 1), (0, 10), (9, 3), (9, 10), (10, 11)])
    # of the last two, the similarity of 0.6 is not known: their trained neighbours are like both by 0.1
    np.testing.assert_allclose(genes.between(pairs_E2), [0.6, 0.1, 0.1, 0.01, 0.01])
    # what is known is not replaced by the path over a third gene
    similar = np.array([[1.0, 0.1, 0.9], [0.1, 1.0, 0.9], [0.9, 0.9, 1.0]])
    known = GeneSimilarity(np.arange(3), sparse.csr_matrix(similar))
    np.testing.assert_allclose(known.between(np.array([(0, 1)])), [0.1])
