"""Covariances of conditions: sums over their genes."""

import numpy as np

from gears.priors.kernels import mixed, training_kernels
from gears.priors.source import vector_similarity


def test_kernels_are_sums_over_pairs_of_genes(make_data):
    data = make_data()
    genes, sets = data.genes, data.sets
    place = {int(node): column for column, node in enumerate(genes.trained_T)}
    similar_PT = genes.similar_PT.toarray()
    offset, shared, own, similar = training_kernels(sets, genes).values()
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
    mean = mixed([genes, other], [3.0, 1.0]).similar_PT.toarray()
    np.testing.assert_allclose(mean, 0.75 * genes.similar_PT.toarray() + 0.25 * dense)
    assert mixed([genes, other], [1.0, 0.0]).similar_PT is genes.similar_PT
    assert mixed([genes, other], [0.0, 0.0]).similar_PT is genes.similar_PT
