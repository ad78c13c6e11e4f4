"""Additive effects of genes as features of conditions, for more conditions than a matrix of all pairs is made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import linalg, sparse

from gears.priors.kernels import GeneSimilarity

MOST_EXACT = 3000
"""Conditions up to which the covariance of all pairs of conditions is made and solved exactly."""
MOST_FEATURES = 2000
"""Features of more conditions: with as many perturbed genes or fewer nothing is lost."""
_MORE = 32  # directions beyond those wanted in the search for leading ones
_PASSES = 3


@dataclass(frozen=True)
class Features:
    """A covariance of conditions as ``feature_CM feature_CM' + diag(rest_C)``."""

    feature_CM: np.ndarray
    rest_C: np.ndarray


def gene_features(
    member_CT: sparse.csr_matrix,
    genes: GeneSimilarity,
    shared: float,
    own: float,
    similar: float,
    most: int | None = None,
) -> Features:
    """Features whose products are ``member (own I + similar S + shared) member'``.

    S is the similarity of the T genes perturbed in training. With at most `most` genes this is exact. With
    more, half of the features or more are the leading directions of what genes share, the others the own effects of
    those genes that occur in most conditions; what is left over of a condition's variance counts as its own.
    A gene that occurs in one condition alone loses nothing by that but the similarities beyond the leading ones.

    Parameters
    ----------
    member_CT
        Genes of each condition, with their weights.
    genes
        Their similarity.
    shared, own, similar
        Variances.
    most
        :data:`MOST_FEATURES` by default.
    """
    limit = MOST_FEATURES if most is None else most
    similar_TT = genes.similar_PT[genes.trained_T]
    common_TT = np.asarray(similar_TT.toarray())
    common_TT = (0.5 * similar) * (common_TT + common_TT.T)
    common_TT += shared
    n_genes = len(common_TT)
    if n_genes <= limit:
        common_TT[np.diag_indices(n_genes)] += own
        values, vectors = linalg.eigh(common_TT)
        return Features(_scaled(member_CT, values, vectors), np.zeros(member_CT.shape[0]))
    occurs_T = np.bincount(member_CT.indices, minlength=n_genes)
    by_number = np.argsort(-occurs_T, kind="stable")
    repeated = np.sort(by_number[: min(int((occurs_T > 1).sum()), limit // 2)])
    values, vectors = _leading(common_TT, limit - len(repeated))
    left_T = np.maximum(np.diag(common_TT) - (vectors**2) @ np.maximum(values, 0.0), 0.0)
    alone_T = np.full(n_genes, own)
    alone_T[repeated] = 0.0
    feature_CM = _scaled(member_CT, values, vectors)
    if len(repeated):
        feature_CM = np.hstack([feature_CM, np.sqrt(own) * member_CT[:, repeated].toarray()])
    return Features(feature_CM, np.asarray(member_CT.power(2) @ (left_T + alone_T)))


def _scaled(member_CT: sparse.csr_matrix, values: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    return np.asarray(member_CT @ (vectors * np.sqrt(np.maximum(values, 0.0))))


def _leading(matrix_TT: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The n largest eigenvalues of a symmetric matrix and their vectors, by iteration of a drawn subspace.

    Halko, Martinsson, Tropp, "Finding structure with randomness", SIAM Review 2011; the draw is fixed.
    """
    draw = np.random.Generator(np.random.Philox(key=len(matrix_TT)))
    basis = draw.standard_normal((len(matrix_TT), min(n + _MORE, len(matrix_TT))))
    for _ in range(_PASSES):
        basis = linalg.qr(matrix_TT @ basis, mode="economic", check_finite=False)[0]
    values, inner = linalg.eigh(basis.T @ (matrix_TT @ basis))
    return values[-n:], basis @ inner[:, -n:]
