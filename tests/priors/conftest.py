"""Invented training conditions with known additive effects."""

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
from scipy import sparse

from gears.priors import GeneSimilarity, PriorData

N_NODES, N_GENES = 14, 40


@pytest.fixture(scope="session")
def make_data():
    """Screens of 10 singles and some pairs of 14 nodes, the first 5 of which are measured."""

    def make(
        seed: int = 0,
        *,
        noise: float = 0.02,
        effect: float = 0.5,
        n_pairs: int = 20,
        factor: Callable[[tuple[int, ...]], float] | None = None,
        target: float = 0.0,
    ) -> PriorData:
        rng = np.random.default_rng(seed)
        groups = np.repeat(np.arange(N_NODES // 2), 2)
        similar_PP = np.where(groups[:, None] == groups, 0.7, 0.05)
        np.fill_diagonal(similar_PP, 1.0)
        effect_PG = effect * np.linalg.cholesky(similar_PP) @ rng.standard_normal((N_NODES, N_GENES))
        pairs = list(combinations(range(10), 2))
        chosen = [pairs[i] for i in np.sort(rng.permutation(len(pairs))[:n_pairs])]
        sets = tuple([(node,) for node in range(10)] + chosen)
        column_P = np.where(np.arange(N_NODES) < 5, np.arange(N_NODES), -1)
        control_mean_G = rng.uniform(0.5, 2.0, N_GENES)
        delta_CG = np.array([effect_PG[list(nodes)].sum(axis=0) * (factor(nodes) if factor else 1) for nodes in sets])
        for row, nodes in enumerate(sets):
            for node in nodes:
                if column_P[node] >= 0:
                    delta_CG[row, column_P[node]] += target * control_mean_G[column_P[node]]
        n_C = rng.integers(20, 200, len(sets)).astype(float)
        delta_CG += noise * rng.standard_normal(delta_CG.shape) * np.sqrt(50 / n_C)[:, None]
        variance_G = np.full(N_GENES, 50 * noise**2)
        trained_T = np.unique([node for nodes in sets for node in nodes])
        similarity = GeneSimilarity(trained_T, sparse.csr_matrix(similar_PP[:, trained_T]))
        return PriorData(sets, delta_CG, variance_G, n_C, control_mean_G, column_P, similarity)

    return make
