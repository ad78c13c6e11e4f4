"""The linear baseline of Ahlmann-Eltze, Huber and Anders (2025)."""

from __future__ import annotations

import numpy as np

from gears.conditions import Condition
from gears.evaluation.baselines.base import Baseline, ConditionMeans, register_baseline


@register_baseline(
    "linear", "E K q + c + b: ridge from gene embeddings (PCA of training means) of the targets"
)
class Linear(Baseline):
    """Bilinear ridge: gene embeddings on both sides.

    E (G x k) holds the principal component scores of the genes over the training means, the control's included. A
    condition's vector is its target's row of E (zero for the control), and the prediction is ``E K q + c + b`` with b
    the control mean and c the mean residual. Extensions: the vector of a set of genes is the sum over the measured
    ones; without a measured gene the prediction is ``c + b``.

    Parameters
    ----------
    n_components
        Greatest k; at most the rank of the training means.
    ridge
        Penalty on both sides.
    """

    def __init__(self, *, n_components: int = 10, ridge: float = 0.1, clip: bool | None = None) -> None:
        super().__init__(clip=clip)
        self.n_components = n_components
        self.ridge = ridge

    def _fit(self, means: ConditionMeans) -> None:
        means.require_training("the linear baseline")
        self.gene_row = {
            gene: row for row, gene in enumerate(means.require_gene_names("the linear baseline"))
        }
        all_rows = [means.control_id, *means.train_ids]
        self.embedding_Gk = principal_scores(self._columns(means, all_rows), self.n_components)
        single_rows = [
            row
            for row in means.train_ids
            if len(means.conditions[row]) == 1 and means.conditions[row].genes[0] in self.gene_row
        ]
        y_GC = self._columns(means, [means.control_id, *single_rows]) - self.control_mean_G[:, None]
        self.centre_G = y_GC.mean(axis=1)
        no_target_k = np.zeros(self.embedding_Gk.shape[1])
        targets = [self.gene_row[means.conditions[row].genes[0]] for row in single_rows]
        q_kC = np.stack([no_target_k, *(self.embedding_Gk[target] for target in targets)], axis=1)
        self.k_kk = bilinear_ridge(y_GC - self.centre_G[:, None], self.embedding_Gk, q_kC, self.ridge)

    @staticmethod
    def _columns(means: ConditionMeans, rows: list[int]) -> np.ndarray:
        """Means of some conditions as columns, (G, C)."""
        return np.asarray(means.mean_CG[rows], dtype=np.float64).T

    def _predict(self, condition: Condition) -> np.ndarray:
        rows = [self.gene_row[gene] for gene in condition.genes if gene in self.gene_row]
        vector_k = self.embedding_Gk[rows].sum(axis=0)
        return self.embedding_Gk @ (self.k_kk @ vector_k) + self.centre_G + self.control_mean_G


def principal_scores(values_GC: np.ndarray, n_components: int) -> np.ndarray:
    """Principal component scores of the rows (columns centred, unscaled), (G, min(n_components, rank))."""
    centred_GC = values_GC - values_GC.mean(axis=0, keepdims=True)
    left, size, _ = np.linalg.svd(centred_GC, full_matrices=False)
    threshold = size.max(initial=0.0) * max(centred_GC.shape) * np.finfo(np.float64).eps
    k = min(n_components, int((size > threshold).sum()))
    return left[:, :k] * size[:k]


def bilinear_ridge(y_GC: np.ndarray, left_Gk: np.ndarray, right_kC: np.ndarray, ridge: float) -> np.ndarray:
    """K of ``y = left K right`` with penalty `ridge`: (L'L + r)^-1 L' y R' (RR' + r)^-1, (k, k)."""
    identity = ridge * np.eye(left_Gk.shape[1])
    inner_kk = np.linalg.solve(left_Gk.T @ left_Gk + identity, left_Gk.T @ y_GC @ right_kC.T)
    return np.linalg.solve(right_kC @ right_kC.T + identity, inner_kk.T).T
