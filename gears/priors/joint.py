"""Posterior covariance of the changes of any conditions with each other, for a gene of average signal.

The change of a condition u is linear in its genes, f_u = level + sum_i (shared + effect_i), beside what no other
condition predicts. So with L = 1 + N rows, the level and N genes, and the membership M (U, L) of conditions, the
covariance of all conditions is M Gamma M', and only Gamma (L, L) is needed, as products of tall matrices::

    Gamma = prior - Z P Z' + level terms        (:mod:`gears.priors.posterior`, Z: columns of each gene alone)
    prior_ij = shared + own [i = j] + similar S_ij

The model holds the similarity S of each gene to the trained genes only. That of two other genes is taken to be ::

    S_ij = s_i S_TT^-1 s_j + sqrt(r_i r_j) C_ij,    r_i = 1 - s_i S_TT^-1 s_i

with s_i (T,) the similarities to the trained genes and C the cosine of rows of 1 + W / 2, W the weights of the
perturbation graph (scaled to at most 1): what trained genes do not say of two genes is alike as far as they are
neighbours. This keeps 1 on the diagonal, is exact for trained genes, and no covariance becomes impossible, as one made
of single similarities can. Nothing of size N x N is made. The plain version inverts dense matrices
(``tests/priors/test_joint.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from gears.priors.kernels import GeneSimilarity, eigh
from gears.priors.posterior import Posterior
from gears.priors.uncertainty import Uncertainty

_ROWS = 4096  # conditions or genes of a block
_LEAST_VALUE = 1e-9  # eigenvalues of similarities below this share of the largest are rounding errors


@dataclass(frozen=True)
class JointCovariance:
    """Posterior covariance of the explained part of any conditions of N genes, of a model with one setting.

    Attributes
    ----------
    nodes_N
        Nodes of the perturbation graph, ascending.
    shared, level
        Variance of what all genes have alike; of the level, as far as it is not known.
    alone_N
        Variance of each gene alone.
    similar_NK, neighbour_NP
        Features whose products are the covariance of similar genes: through trained genes, and of neighbours.
    explained_LF
        Factor of what the training conditions explain, float32, the level first.
    direct
        Columns (L, R) and matrix (R, R) of what is explained, from which the factor is subtracted; None where the
        factor is all (see :class:`gears.priors.posterior.Posterior`).
    level_L
        Covariance of a free level with every row, which is subtracted.
    """

    nodes_N: np.ndarray
    shared: float
    level: float
    alone_N: np.ndarray
    similar_NK: np.ndarray
    neighbour_NP: sparse.csr_matrix
    explained_LF: np.ndarray
    direct: tuple[sparse.csr_matrix, sparse.csr_matrix] | None
    level_L: np.ndarray

    @classmethod
    def of(
        cls, uncertainty: Uncertainty, edge_index: np.ndarray, weight_E: np.ndarray, nodes: Sequence[int]
    ) -> JointCovariance:
        """From a prior's uncertainty and the edges (2, E) of the perturbation graph, over some nodes."""
        covariance, posterior = uncertainty.covariance, uncertainty.posterior
        overall, nodes_N = covariance.overall, np.unique(np.asarray(nodes, dtype=np.int64))
        feature_NK = _through_trained(overall.genes, nodes_N)
        explained_N = (feature_NK**2).sum(axis=1, dtype=np.float64)
        rest_N = np.clip(1 - explained_N, 0.0, None)
        neighbour_NP = _neighbour_rows(edge_index, weight_E, overall.genes.similar_PT.shape[0], nodes_N)
        factor = sparse.diags(np.sqrt(overall.similar * rest_N))
        level, explained, direct = covariance.level, np.zeros((1 + len(nodes_N), 0), np.float32), None
        level_L = np.zeros(1 + len(nodes_N))
        if posterior is not None:
            level += posterior.level
            column_LR, explained = _columns(uncertainty, posterior, nodes_N)
            level_L = column_LR @ posterior.level_R
            direct = None if posterior.direct_RR is None else (column_LR, posterior.direct_RR)
        return cls(
            nodes_N,
            overall.shared,
            level,
            overall.own + overall.similar * (1 - explained_N - rest_N),
            np.sqrt(overall.similar) * feature_NK,
            sparse.csr_matrix(factor @ neighbour_NP),
            explained,
            direct,
            level_L,
        )

    def members(self, node_UK: np.ndarray) -> sparse.csr_matrix:
        """Rows that each condition sums, ones in CSR (U, L), from its nodes, (U, K) with -1 where it has fewer."""
        is_node_UK = node_UK >= 0
        row_UK = np.where(is_node_UK, 1 + np.searchsorted(self.nodes_N, node_UK), 0)
        bounds = np.concatenate(([0], np.cumsum(1 + is_node_UK.sum(axis=1))))
        with_level = np.hstack([np.ones((len(node_UK), 1), dtype=bool), is_node_UK])
        rows = np.hstack([np.zeros((len(node_UK), 1), dtype=np.int64), row_UK])[with_level]
        shape = (len(node_UK), 1 + len(self.nodes_N))
        return sparse.csr_matrix((np.ones(len(rows), dtype=np.float32), rows, bounds), shape=shape)

    def times(self, member_UL: sparse.csr_matrix) -> np.ndarray:
        """Covariance of every row with conditions, Gamma M', (L, U) float64."""
        member_LU = sparse.csc_matrix(member_UL.T)
        gene_NU = sparse.csr_matrix(member_LU[1:])
        found_LU = -(self.explained_LF @ (member_UL @ self.explained_LF).T).astype(np.float64)
        if self.direct is not None:
            column_LR, direct_RR = self.direct
            found_LU = -found_LU - np.asarray((column_LR @ (direct_RR @ (column_LR.T @ member_LU))).toarray())
        found_LU[1:] += self.similar_NK @ (self.similar_NK.T @ gene_NU.toarray())
        found_LU[1:] += (self.neighbour_NP @ (self.neighbour_NP.T @ gene_NU)).toarray()
        found_LU[1:] += gene_NU.multiply(self.alone_N[:, None]).toarray()
        found_LU[1:] += self.shared * np.asarray(gene_NU.sum(axis=0))
        found_LU -= self.level_L[:, None]  # each condition holds the level once
        found_LU[0] += self.level - np.asarray(member_UL @ self.level_L).ravel()
        return found_LU

    def variance(self, member_UL: sparse.csr_matrix) -> np.ndarray:
        """Variance of each condition, the diagonal of M Gamma M', (U,) float64, in blocks of conditions."""
        blocks = [
            self._block_variance(member_UL[start : start + _ROWS])
            for start in range(0, member_UL.shape[0], _ROWS)
        ]
        return np.maximum(np.concatenate(blocks), 0.0)

    def _block_variance(self, member_BL: sparse.csr_matrix) -> np.ndarray:
        gene_BN = sparse.csr_matrix(member_BL[:, 1:])
        n_B = np.asarray(gene_BN.sum(axis=1), dtype=np.float64).ravel()
        explained_B = _square_sums(member_BL @ self.explained_LF)
        if self.direct is not None:
            column_LR, direct_RR = self.direct
            column_BR = member_BL @ column_LR
            explained_B = _square_sums(column_BR, column_BR @ direct_RR) - explained_B
        variance_B = self.level + self.shared * n_B**2 + gene_BN @ self.alone_N - explained_B
        variance_B += _square_sums(gene_BN @ self.similar_NK) + _square_sums(gene_BN @ self.neighbour_NP)
        return np.asarray(variance_B - 2 * (member_BL @ self.level_L))


def _square_sums(first_BF: Any, second_BF: Any = None) -> np.ndarray:
    """Sum of each row's products, (B,) float64; sparse or dense."""
    other = first_BF if second_BF is None else second_BF
    if sparse.issparse(first_BF):
        return np.asarray(first_BF.multiply(other).sum(axis=1), dtype=np.float64).ravel()
    return np.einsum("bf,bf->b", first_BF, other, dtype=np.float64)


def _through_trained(genes: GeneSimilarity, nodes_N: np.ndarray) -> np.ndarray:
    """Features whose products are s_i S_TT^-1 s_j, (N, K)."""
    trained_TT = np.asarray(genes.similar_PT[genes.trained_T].toarray(), dtype=np.float64)
    values, vectors = eigh((trained_TT + trained_TT.T) / 2)
    is_kept = values > _LEAST_VALUE * values[-1]
    root_TK = vectors[:, is_kept] / np.sqrt(values[is_kept])
    starts = range(0, len(nodes_N), _ROWS)
    return np.vstack([genes.similar_PT[nodes_N[start : start + _ROWS]] @ root_TK for start in starts])


def _neighbour_rows(
    edge_index: np.ndarray, weight_E: np.ndarray, n_nodes: int, nodes_N: np.ndarray
) -> sparse.csr_matrix:
    """Rows of 1 + W / 2 scaled to norm 1, CSR (N, P)."""
    source, target = edge_index
    is_other = source != target
    weight = weight_E[is_other] / max(1.0, float(weight_E.max(initial=0.0)))
    graph_PP = sparse.coo_matrix((weight, (target[is_other], source[is_other])), shape=(n_nodes, n_nodes))
    row_NP = sparse.csr_matrix((sparse.eye(n_nodes) + graph_PP.tocsr() / 2).tocsr()[nodes_N])
    return sparse.csr_matrix(sparse.diags(1 / np.sqrt(_square_sums(row_NP))) @ row_NP)


def _columns(
    uncertainty: Uncertainty, posterior: Posterior, nodes_N: np.ndarray
) -> tuple[sparse.csr_matrix, np.ndarray]:
    """Covariance of the level and of each gene alone with the training columns, CSR (L, R), and its factor (L, F)."""
    level_R = uncertainty.covariance.columns([()])
    columns, factors = [sparse.csr_matrix(level_R)], [level_R @ posterior.factor_FR.T]
    for start in range(0, len(nodes_N), _ROWS):
        block_NR = uncertainty.covariance.columns(
            [(node,) for node in nodes_N[start : start + _ROWS].tolist()]
        )
        block_NR -= level_R
        columns.append(sparse.csr_matrix(block_NR))
        factors.append((block_NR @ posterior.factor_FR.T).astype(np.float32))
    return sparse.csr_matrix(sparse.vstack(columns)), np.vstack(factors).astype(np.float32)
