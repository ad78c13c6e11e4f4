"""Posterior covariance of the changes of any conditions with each other, for a gene of average signal.

The change of a condition u is linear in its genes, f_u = level + sum_i (shared + effect_i), beside what no other
condition predicts. So with L = 1 + N rows, the level and N genes, and the membership M (U, L) of conditions, the
covariance of all conditions is M Gamma M', and only Gamma (L, L) is needed, as products of tall matrices::

    Gamma = prior - Z P Z' + level terms        (:mod:`gears.priors._posterior`, Z: columns of each gene alone)
    prior_ij = shared + own [i = j] + similar S_ij

With several settings there are N rows for each of them, and to the prior is added such a covariance within settings,
times the coupling of the two settings.

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
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from gears.priors._kernels import AdditiveCovariance, GeneSimilarity, eigh, singles_in
from gears.priors._posterior import Posterior
from gears.priors._uncertainty import Uncertainty

_ROWS = 4096  # conditions or genes of a block
_LEAST_VALUE = 1e-9  # eigenvalues of similarities below this share of the largest are rounding errors


@dataclass(frozen=True)
class GeneCovariance:
    """Prior covariance of the effects of N genes."""

    shared: float  # variance of what all genes have alike
    alone_N: np.ndarray  # variance of each gene alone
    # similar_NK, neighbour_NP: features whose products are the covariance of similar genes: through trained genes, and
    # of neighbours
    similar_NK: np.ndarray
    neighbour_NP: sparse.csr_matrix

    @classmethod
    def of(cls, part: AdditiveCovariance, nodes_N: np.ndarray, neighbour_NP: sparse.csr_matrix) -> GeneCovariance:
        """From a covariance of conditions and normalised rows of the perturbation graph."""
        feature_NK = _through_trained(part.genes, nodes_N)
        explained_N = (feature_NK**2).sum(axis=1, dtype=np.float64)
        rest_N = np.clip(1 - explained_N, 0.0, None)
        factor = sparse.diags(np.sqrt(part.similar * rest_N))
        return cls(
            part.shared,
            part.own + part.similar * (1 - explained_N - rest_N),
            np.sqrt(part.similar) * feature_NK,
            sparse.csr_matrix(factor @ neighbour_NP),
        )

    def add_times(self, gene_NU: sparse.csr_matrix, total_NU: np.ndarray) -> None:
        """Add the covariance of every gene with sums of genes to a table, in place."""
        total_NU += self.similar_NK @ (self.similar_NK.T @ gene_NU.toarray())
        total_NU += (self.neighbour_NP @ (self.neighbour_NP.T @ gene_NU)).toarray()
        total_NU += gene_NU.multiply(self.alone_N[:, None]).toarray()
        total_NU += self.shared * np.asarray(gene_NU.sum(axis=0))

    def variance(self, gene_BN: sparse.csr_matrix) -> np.ndarray:
        """Variance of sums of genes, (B,)."""
        n_B = np.asarray(gene_BN.sum(axis=1), dtype=np.float64).ravel()
        variance_B = self.shared * n_B**2 + gene_BN @ self.alone_N
        return variance_B + (square_sums(gene_BN @ self.similar_NK) + square_sums(gene_BN @ self.neighbour_NP))


@dataclass(frozen=True)
class JointCovariance:
    """Posterior covariance of the explained part of any conditions of N genes in some settings."""

    nodes_N: np.ndarray  # nodes of the perturbation graph, ascending
    settings_S: np.ndarray  # numbers of settings, ascending
    level: float  # variance of the level, as far as it is not known
    overall: GeneCovariance  # prior covariance of genes over all conditions
    within: GeneCovariance | None  # that within settings; None with one setting
    coupling_SS: np.ndarray  # covariance of what settings have of their own, relative to the variance of one
    explained_LF: np.ndarray  # factor of what the training conditions explain, float32, the level first
    direct: tuple[sparse.csr_matrix, sparse.csr_matrix] | None
    """Columns (L, R) and matrix (R, R) of what is explained, from which the factor is subtracted; None where the
    factor is all (see :class:`gears.priors._posterior.Posterior`)."""
    level_L: np.ndarray  # covariance of a free level with every row, which is subtracted
    scale_S: np.ndarray  # factor of each setting on its changes

    @classmethod
    def of(
        cls,
        uncertainty: Uncertainty,
        edge_index: np.ndarray,
        weight_E: np.ndarray,
        nodes: Sequence[int],
        settings: Sequence[int] = (0,),
    ) -> JointCovariance:
        """From a prior's uncertainty and the edges (2, E) of the perturbation graph, over some nodes and settings."""
        # conditions take the factors of their settings, rows do not
        scale_S = uncertainty.covariance.scale_S
        uncertainty = replace(uncertainty, covariance=replace(uncertainty.covariance, scale_S=None))
        covariance, posterior = uncertainty.covariance, uncertainty.posterior
        nodes_N = np.unique(np.asarray(nodes, dtype=np.int64))
        settings_S = np.unique(np.asarray(settings, dtype=np.int64))
        n_nodes = covariance.overall.genes.similar_PT.shape[0]
        neighbour_NP = _neighbour_rows(edge_index, weight_E, n_nodes, nodes_N)
        within, coupling_SS = None, np.ones((len(settings_S), len(settings_S)))
        if covariance.within is not None:
            within = GeneCovariance.of(covariance.within, nodes_N, neighbour_NP)
            # a setting without conditions has the mean of others in common with them, and the rest of its own
            carried_SS = covariance.carried_SS[settings_S]
            coupling_SS = carried_SS @ carried_SS.T
            np.fill_diagonal(coupling_SS, 1.0)
        n_rows = 1 + len(settings_S) * len(nodes_N)
        level, explained, direct = covariance.level, np.zeros((n_rows, 0), np.float32), None
        level_L = np.zeros(n_rows)
        if posterior is not None:
            level += posterior.level
            sets = [
                single for setting in settings_S.tolist() for single in singles_in(setting, nodes_N, covariance.n_kinds)
            ]
            column_LR, explained = _columns(uncertainty, posterior, sets)
            level_L = column_LR @ posterior.level_R
            direct = None if posterior.direct_RR is None else (column_LR, posterior.direct_RR)
        overall = GeneCovariance.of(covariance.overall, nodes_N, neighbour_NP)
        scale_S = np.ones(len(settings_S)) if scale_S is None else scale_S[settings_S]
        return cls(nodes_N, settings_S, level, overall, within, coupling_SS, explained, direct, level_L, scale_S)

    def members(self, node_UK: np.ndarray, setting_U: np.ndarray | None = None) -> sparse.csr_matrix:
        """Rows that each condition sums, times its setting's factor, CSR (U, L).

        From its nodes, (U, K) with -1 where it has fewer, and its setting, the first by default.
        """
        is_node_UK = node_UK >= 0
        block_U = np.zeros(len(node_UK), dtype=np.int64)
        if setting_U is not None:
            block_U = np.searchsorted(self.settings_S, setting_U)
        row_UK = 1 + block_U[:, None] * len(self.nodes_N) + np.searchsorted(self.nodes_N, node_UK)
        bounds = np.concatenate(([0], np.cumsum(1 + is_node_UK.sum(axis=1))))
        with_level = np.hstack([np.ones((len(node_UK), 1), dtype=bool), is_node_UK])
        rows = np.hstack([np.zeros((len(node_UK), 1), dtype=np.int64), row_UK])[with_level]
        shape = (len(node_UK), len(self.level_L))
        factors = np.repeat(self.scale_S[block_U], np.diff(bounds)).astype(np.float32)
        return sparse.csr_matrix((factors, rows, bounds), shape=shape)

    def _blocks(self) -> list[slice]:
        """Rows of the genes of each setting."""
        n = len(self.nodes_N)
        return [slice(1 + number * n, 1 + (number + 1) * n) for number in range(len(self.settings_S))]

    def times(self, member_UL: sparse.csr_matrix) -> np.ndarray:
        """Covariance of every row with conditions, Gamma M', (L, U) float64."""
        member_LU = sparse.csr_matrix(member_UL.T)
        total_LU = -(self.explained_LF @ (member_UL @ self.explained_LF).T).astype(np.float64)
        if self.direct is not None:
            column_LR, direct_RR = self.direct
            total_LU = -total_LU - np.asarray((column_LR @ (direct_RR @ (column_LR.T @ member_LU))).toarray())
        of_setting = [member_LU[block] for block in self._blocks()]
        common_NU = np.zeros(of_setting[0].shape)
        self.overall.add_times(sparse.csr_matrix(sum(of_setting)), common_NU)
        for block, coupling_S in zip(self._blocks(), self.coupling_SS, strict=True):
            total_LU[block] += common_NU
            if self.within is not None:
                coupled = sum(share * part for share, part in zip(coupling_S.tolist(), of_setting, strict=True))
                self.within.add_times(sparse.csr_matrix(coupled), total_LU[block])
        scale_U = np.asarray(member_UL[:, [0]].toarray(), dtype=np.float64).ravel()
        total_LU -= np.outer(self.level_L, scale_U)  # each condition holds the level once
        total_LU[0] += self.level * scale_U - np.asarray(member_UL @ self.level_L).ravel()
        return total_LU

    def variance(self, member_UL: sparse.csr_matrix) -> np.ndarray:
        """Variance of each condition, the diagonal of M Gamma M', (U,) float64, in blocks of conditions."""
        blocks = [
            self._block_variance(member_UL[start : start + _ROWS]) for start in range(0, member_UL.shape[0], _ROWS)
        ]
        return np.maximum(np.concatenate(blocks), 0.0)

    def _block_variance(self, member_BL: sparse.csr_matrix) -> np.ndarray:
        gene_BN = sparse.csr_matrix(sum(member_BL[:, block] for block in self._blocks()))  # a condition has one setting
        explained_B = square_sums(member_BL @ self.explained_LF)
        if self.direct is not None:
            column_LR, direct_RR = self.direct
            column_BR = member_BL @ column_LR
            explained_B = square_sums(column_BR, column_BR @ direct_RR) - explained_B
        # every condition holds the level once, times the factor of its setting
        scale_B = np.asarray(member_BL[:, [0]].toarray(), dtype=np.float64).ravel()
        gene_BN = sparse.csr_matrix(sparse.diags(1 / scale_B) @ gene_BN)
        variance_B = self.level + self.overall.variance(gene_BN)
        if self.within is not None:
            variance_B = variance_B + self.within.variance(gene_BN)
        return np.asarray(scale_B**2 * variance_B - explained_B - 2 * scale_B * (member_BL @ self.level_L))


def square_sums(first_BF: Any, second_BF: Any = None) -> np.ndarray:
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
    return sparse.csr_matrix(sparse.diags(1 / np.sqrt(square_sums(row_NP))) @ row_NP)


def _columns(
    uncertainty: Uncertainty, posterior: Posterior, sets: Sequence[Sequence[int]]
) -> tuple[sparse.csr_matrix, np.ndarray]:
    """Covariance of the level and of each gene alone with the training columns, CSR (L, R), and its factor (L, F)."""
    level_R = uncertainty.covariance.columns([()])
    columns, factors = [sparse.csr_matrix(level_R)], [level_R @ posterior.factor_FR.T]
    for start in range(0, len(sets), _ROWS):
        block_NR = uncertainty.covariance.columns(sets[start : start + _ROWS])
        block_NR -= level_R
        columns.append(sparse.csr_matrix(block_NR))
        factors.append((block_NR @ posterior.factor_FR.T).astype(np.float32))
    return sparse.csr_matrix(sparse.vstack(columns)), np.vstack(factors).astype(np.float32)
