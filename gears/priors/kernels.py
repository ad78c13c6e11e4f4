"""Covariances of conditions under additive effects of their genes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

NAMES = ("offset", "shared", "own", "similar", "similar vectors")
"""Parts of a condition's change: common to all conditions, common to all genes (counted per
gene of the condition), each gene's own, that which similar genes share, and where vectors of genes
are given that which genes of similar vectors share."""

_LEAST_SHARE = 1e-3


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
        """Which trained nodes each set holds, ones in CSR (U, T) float64; other nodes are left out."""
        column = {int(node): place for place, node in enumerate(self.trained_T)}
        places = [sorted({column[node] for node in nodes if node in column}) for nodes in sets]
        bounds = np.concatenate(([0], np.cumsum([len(own) for own in places], dtype=np.int64)))
        at = np.fromiter((place for own in places for place in own), dtype=np.int64, count=int(bounds[-1]))
        shape = (len(sets), len(self.trained_T))
        return sparse.csr_matrix((np.ones(len(at)), at, bounds), shape=shape)

    def membership(self, sets: Sequence[Sequence[int]]) -> np.ndarray:
        """Which trained nodes each set holds, (U, T) float64; other nodes are left out."""
        return np.asarray(self.members(sets).toarray())

    def similarity(self, sets: Sequence[Sequence[int]]) -> np.ndarray:
        """Sum over each set's nodes of their similarity to the trained nodes, (U, T) float64."""
        rows = np.repeat(np.arange(len(sets)), [len(nodes) for nodes in sets])
        nodes = np.fromiter((node for nodes in sets for node in nodes), dtype=np.int64, count=len(rows))
        ones = np.ones(len(rows))
        pick = sparse.csr_matrix((ones, (rows, nodes)), shape=(len(sets), self.similar_PT.shape[0]))
        return np.asarray((pick @ self.similar_PT).toarray(), dtype=np.float64)


def mixed(parts: Sequence[GeneSimilarity], weights: Sequence[float]) -> GeneSimilarity:
    """Weighted mean of similarities to the same trained nodes; parts that count for nothing are left out."""
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
