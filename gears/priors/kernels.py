"""Covariances of conditions under additive effects of their genes, as matrices or as features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import linalg, sparse

NAMES = ("offset", "shared", "own", "similar", "similar vectors")
"""Parts of a condition's change: common to all conditions, common to all genes (counted per
gene of the condition), each gene's own, that which similar genes share, and where vectors of genes
are given that which genes of similar vectors share."""

_LEAST_SHARE = 1e-3

MOST_EXACT = 3000
"""Conditions up to which the covariance of all pairs of conditions is made and solved exactly."""
MOST_FEATURES = 2000
"""Features of more conditions: with as many perturbed genes or fewer nothing is lost."""
_MORE = 32  # directions beyond those wanted in the search for leading ones
_PASSES = 3


@dataclass(frozen=True)
class GeneSimilarity:
    """Similarity of every gene that may be perturbed to those perturbed in training.

    Attributes
    ----------
    trained_T
        Nodes perturbed in training, ascending, (T,) int64.
    similar_PT
        Similarity of all P nodes to these, CSR (P, T); a node is wholly similar (1) to itself.
    """

    trained_T: np.ndarray
    similar_PT: sparse.csr_matrix

    def among(self, sets: Sequence[Sequence[int]]) -> GeneSimilarity:
        """Similarity to those trained nodes alone that occur in some sets."""
        kept = np.isin(self.trained_T, [node for nodes in sets for node in nodes])
        return GeneSimilarity(self.trained_T[kept], self.similar_PT[:, np.flatnonzero(kept)])

    def members(self, sets: Sequence[Sequence[int]]) -> sparse.csr_matrix:
        """Which trained nodes each set holds, ones in CSR (U, T) float64; other nodes are excluded."""
        column = {int(node): place for place, node in enumerate(self.trained_T)}
        places = [sorted({column[node] for node in nodes if node in column}) for nodes in sets]
        bounds = np.concatenate(([0], np.cumsum([len(own) for own in places], dtype=np.int64)))
        at = np.fromiter((place for own in places for place in own), dtype=np.int64, count=int(bounds[-1]))
        shape = (len(sets), len(self.trained_T))
        return sparse.csr_matrix((np.ones(len(at)), at, bounds), shape=shape)

    def membership(self, sets: Sequence[Sequence[int]]) -> np.ndarray:
        """Which trained nodes each set holds, (U, T) float64; other nodes are excluded."""
        return np.asarray(self.members(sets).toarray())

    def similarity(self, sets: Sequence[Sequence[int]]) -> np.ndarray:
        """Sum over each set's nodes of their similarity to the trained nodes, (U, T) float64."""
        rows = np.repeat(np.arange(len(sets)), [len(nodes) for nodes in sets])
        nodes = np.fromiter((node for nodes in sets for node in nodes), dtype=np.int64, count=len(rows))
        ones = np.ones(len(rows))
        pick = sparse.csr_matrix((ones, (rows, nodes)), shape=(len(sets), self.similar_PT.shape[0]))
        return np.asarray((pick @ self.similar_PT).toarray(), dtype=np.float64)


def mixed(parts: Sequence[GeneSimilarity], weights: Sequence[float]) -> GeneSimilarity:
    """Weighted mean of similarities to the same trained nodes; parts that count for nothing are excluded."""
    total = sum(weights)
    counted = [(part, weight / total) for part, weight in zip(parts, weights, strict=True) if total > 0]
    counted = [(part, share) for part, share in counted if share > _LEAST_SHARE] or [(parts[0], 1.0)]
    if len(counted) == 1:
        return counted[0][0]
    mean_PT = sparse.csr_matrix(sum(share * part.similar_PT for part, share in counted))
    return GeneSimilarity(parts[0].trained_T, mean_PT)


def sizes_of(sets: Sequence[Sequence[int]]) -> np.ndarray:
    """Number of perturbed genes of each set, (U,) float64."""
    return np.array([len(nodes) for nodes in sets], dtype=np.float64)


def training_kernels(
    sets: Sequence[Sequence[int]], genes: GeneSimilarity, *further: GeneSimilarity
) -> list[np.ndarray]:
    """The covariances (see :data:`NAMES`) of the training conditions, (C, C) each; one for each similarity."""
    size_C, member_CT = sizes_of(sets), genes.membership(sets)
    return [
        np.ones((len(sets), len(sets))),
        np.outer(size_C, size_C),
        member_CT @ member_CT.T,
        *(_symmetric(part.similarity(sets) @ member_CT.T) for part in (genes, *further)),
    ]


def specific_covariance(
    sets: Sequence[Sequence[int]], genes: GeneSimilarity, shared: float, own: float, similar: float
) -> np.ndarray:
    """Weighted sum of the training kernels without the offset, (C, C), with no kernel held by itself."""
    size_C, member_CT = sizes_of(sets), genes.membership(sets)
    covariance_CC = (own * member_CT + similar * genes.similarity(sets)) @ member_CT.T
    covariance_CC += np.outer(shared * size_C, size_C)
    return _symmetric(covariance_CC)


def _symmetric(matrix: np.ndarray) -> np.ndarray:
    return np.asarray((matrix + matrix.T) / 2)


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
