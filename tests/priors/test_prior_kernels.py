"""Covariances of conditions: sums over their genes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gears.priors import PriorData
from gears.priors.evidence import MOST_CONDITIONS, sample
from gears.priors.kernels import mixed, specific_covariance, training_kernels
from gears.priors.source import vector_similarity


def test_kernels_are_sums_over_pairs_of_genes(make_data: Callable[..., PriorData]) -> None:
    data = make_data()
    genes, sets = data.genes, data.sets
    place = {int(node): column for column, node in enumerate(genes.trained_T)}
    similar_PT = genes.similar_PT.toarray()
    offset, shared, own, similar = training_kernels(sets, genes)
    for a, first in enumerate(sets):
        for b, second in enumerate(sets):
            assert offset[a, b] == 1
            assert shared[a, b] == len(first) * len(second)
            assert own[a, b] == len(set(first) & set(second))
            expected = sum(similar_PT[i, place[j]] for i in first for j in second)
            np.testing.assert_allclose(similar[a, b], expected, rtol=0, atol=1e-12)


def test_nodes_outside_training_have_similarity_but_no_membership(
    make_data: Callable[..., PriorData],
) -> None:
    genes = make_data().genes
    assert 12 not in genes.trained_T
    assert not genes.membership([(12,)]).any()
    np.testing.assert_array_equal(genes.similarity([(12,), ()])[0], genes.similar_PT.toarray()[12])
    assert not genes.similarity([(12,), ()])[1].any()


def test_covariance_without_the_offset_is_the_weighted_sum(make_data: Callable[..., PriorData]) -> None:
    data = make_data()
    _, shared, own, similar = training_kernels(data.sets, data.genes)
    np.testing.assert_allclose(
        specific_covariance(data.sets, data.genes, 0.3, 0.5, 0.2),
        0.3 * shared + 0.5 * own + 0.2 * similar,
        atol=1e-12,
    )


def test_similarity_among_some_conditions_is_that_of_their_genes(make_data: Callable[..., PriorData]) -> None:
    data, rows = make_data(), [2, 5, 17]
    sets, whole = [data.sets[row] for row in rows], training_kernels(data.sets, data.genes)
    genes = data.genes.among(sets)
    for kernel, full in zip(training_kernels(sets, genes), whole, strict=True):
        np.testing.assert_allclose(kernel, full[np.ix_(rows, rows)], atol=1e-12)
    assert set(genes.trained_T) == {node for nodes in sets for node in nodes}


def test_similarities_are_mixed_by_weight(make_data: Callable[..., PriorData]) -> None:
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
    mean = mixed([genes, other], [3.0, 1.0]).similar_PT.toarray()
    np.testing.assert_allclose(mean, 0.75 * genes.similar_PT.toarray() + 0.25 * dense)
    assert mixed([genes, other], [1.0, 0.0]) is genes
    assert mixed([genes, other], [0.0, 0.0]) is genes


def test_many_conditions_are_sampled_the_same_way_each_time() -> None:
    np.testing.assert_array_equal(sample(17), np.arange(17))
    rows = sample(1000)
    assert len(np.unique(rows)) == MOST_CONDITIONS
    assert rows.max() < 1000
    np.testing.assert_array_equal(rows, sample(1000))
