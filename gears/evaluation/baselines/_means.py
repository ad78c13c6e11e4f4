"""Baselines from means of conditions: no change, their mean, and sums of single changes, measured or from GO."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

import numpy as np

from gears.conditions import Condition
from gears.evaluation._fitted import ConditionMeans
from gears.evaluation.baselines._base import Baseline, mean_of_nearest, register_baseline, term_rows
from gears.graphs._annotation import GeneAnnotation
from gears.graphs._go import jaccard

if TYPE_CHECKING:
    from scipy import sparse


@register_baseline("no_change", "c: the control mean", weak=True)
class NoChange(Baseline):
    """Predicts the control mean."""

    def _fit(self, means: ConditionMeans) -> None:
        return None

    def _predict(self, condition: Condition) -> np.ndarray:
        return self.control_mean_G


@register_baseline("train_mean_cells", "mean over all perturbed training cells", weak=True, weights="cells")
@register_baseline("train_mean", "O: mean of the training conditions' means, without the control", weak=True)
class TrainMean(Baseline):
    """Predicts the mean of the training conditions for every condition.

    One that trains in another context is predicted by the mean of the others.

    Parameters
    ----------
    weights
        ``"conditions"``: each condition once; ``"cells"``: as often as it has cells.
    """

    def __init__(self, *, weights: str = "conditions", clip: bool | None = None) -> None:
        super().__init__(clip=clip)
        self.weights = weights

    def _fit(self, means: ConditionMeans) -> None:
        means.require_training("the train mean")
        self.mean_G = means.reference_mean(weights=self.weights)
        self.sd_G = means.reference_sd()
        counts = self.weights == "cells" and means.n_cells_C is not None
        weight_C = np.asarray(means.n_cells_C, dtype=np.float64) if counts else np.ones(len(means.conditions))
        total = weight_C[means.train_ids].sum()
        self._moved = {
            means.conditions[row]: (weight_C[row] / total, means.mean_CG[row])
            for row in means.train_ids.tolist()
            if means.conditions[row] in set(means.moved)
        }

    def _predict(self, condition: Condition) -> np.ndarray:
        share, own_G = self._moved.get(condition, (0.0, self.mean_G))
        return self.mean_G if share in (0, 1) else (self.mean_G - share * own_G) / (1 - share)


@register_baseline(
    "matching_mean", "mean over the genes of their training single's mean, O where there is none", weak=True
)
class MatchingMean(Baseline):
    """Mean of the training singles of the condition's genes; O for a gene without a training single."""

    def _fit(self, means: ConditionMeans) -> None:
        means.require_training("the matching mean")
        self.mean_G = means.reference_mean()
        self.singles = means.single_means()

    def _predict(self, condition: Condition) -> np.ndarray:
        return np.mean([self.singles.get(gene, self.mean_G) for gene in condition.genes], axis=0)


@register_baseline(
    "additive_all_singles", "additive, with the singles of every part (uses held-out singles)", weak=True, singles="all"
)
@register_baseline(
    "additive", "c + sum of the genes' training single deltas, O - c for a gene not seen alone", weak=True
)
class Additive(Baseline):
    """Control mean plus the sum of single deltas.

    Parameters
    ----------
    singles
        ``"train"``: singles of the training part. ``"all"``: every single of the screen, as in the published
        additive baseline, which then uses held-out conditions and is marked in tables. A single is
        never predicted from its own held-out cells.
    """

    def __init__(self, *, singles: str = "train", clip: bool | None = None) -> None:
        if singles not in ("train", "all"):
            msg = f"singles must be 'train' or 'all'; found {singles!r}"
            raise ValueError(msg)
        super().__init__(clip=clip)
        self.singles = singles
        self.uses_held_out = singles == "all"

    def _fit(self, means: ConditionMeans) -> None:
        means.require_training("the additive baseline")
        self.fallback_G = means.reference_mean() - self.control_mean_G
        self.train_delta = self._deltas(means, everywhere=False)
        self.pair_delta = self._deltas(means, everywhere=True) if self.uses_held_out else self.train_delta

    def _deltas(self, means: ConditionMeans, *, everywhere: bool) -> dict[str, np.ndarray]:
        singles = means.single_means(everywhere=everywhere)
        return {gene: mean - self.control_mean_G for gene, mean in singles.items()}

    def _predict(self, condition: Condition) -> np.ndarray:
        delta_of = self.train_delta if len(condition) == 1 else self.pair_delta
        deltas = [delta_of.get(gene, self.fallback_G) for gene in condition.genes]
        return self.control_mean_G + np.sum(deltas, axis=0)


# Candidate penalties, in units of the largest squared singular value of the components.
RIDGES = tuple(np.geomspace(1e-10, 1e3, 53).tolist())


class GONeighbours(Baseline):
    """Sum of single deltas: from training where the gene has a training single, else predicted from its GO terms.

    A gene without GO terms (of `annotation`, by default the human ones) gets the mean change of training, O - c.
    """

    takes_annotation = True

    def __init__(self, *, annotation: GeneAnnotation | None = None, clip: bool | None = None) -> None:
        super().__init__(clip=clip)
        self.annotation = annotation

    def _fit(self, means: ConditionMeans) -> None:
        means.require_training("a GO baseline")
        self.fallback_G = means.reference_mean() - self.control_mean_G
        singles = means.single_means()
        self.delta = {gene: mean_G - self.control_mean_G for gene, mean_G in singles.items()}
        rows = term_rows(self.annotation, list(self.delta))
        annotated = np.diff(rows.indptr) > 0
        if not annotated.any():
            msg = (
                f"a GO baseline needs a training condition of one annotated gene; none of {len(self.delta)} genes with "
                "such a condition has a GO term (the annotation is that of PertData(gene2go=...))"
            )
            raise ValueError(msg)
        annotated_genes = [gene for gene, has_terms in zip(self.delta, annotated, strict=True) if has_terms]
        self._learn(rows[annotated], np.stack([self.delta[gene] for gene in annotated_genes]))

    def _predict(self, condition: Condition) -> np.ndarray:
        return self.control_mean_G + np.sum([self.gene_delta(gene) for gene in condition.genes], axis=0)

    def gene_delta(self, gene: str) -> np.ndarray:
        """Predicted change after perturbing a single gene, (G,)."""
        if gene in self.delta:
            return self.delta[gene]
        row = term_rows(self.annotation, [gene])
        return self._from_terms(row) if row.nnz else self.fallback_G

    @abstractmethod
    def _learn(self, rows: sparse.csr_matrix, delta_SG: np.ndarray) -> None:
        """Learn from the term rows (S, terms) and changes of S annotated genes."""

    @abstractmethod
    def _from_terms(self, row: sparse.csr_matrix) -> np.ndarray:
        """Change (G,) of a gene from its term row (1, terms)."""


@register_baseline(
    "go_ridge",
    "c + sum of single deltas; of a gene not seen alone: ridge from the leading components of gene x GO term",
)
class GORidge(GONeighbours):
    """Ridge regression of single deltas on principal components of the gene x GO-term matrix.

    The components are those of the training singles' rows (columns centred); the mean delta is not penalised.

    Parameters
    ----------
    n_components
        Greatest number of components.
    ridge
        Penalty in units of the largest squared singular value; None: the one
        of least leave-one-out error over the training singles.
    """

    def __init__(
        self,
        *,
        n_components: int = 50,
        ridge: float | None = None,
        annotation: GeneAnnotation | None = None,
        clip: bool | None = None,
    ) -> None:
        super().__init__(annotation=annotation, clip=clip)
        self.n_components = n_components
        self.ridge = ridge

    def _learn(self, rows: sparse.csr_matrix, delta_SG: np.ndarray) -> None:
        n_genes = rows.shape[0]
        self.mean_term_T = np.asarray(rows.mean(axis=0)).ravel()
        # S x S products: the centred matrix itself would be dense over all terms
        shared_SS = (rows @ rows.T).toarray().astype(np.float64)
        offset_S = np.asarray(rows @ self.mean_term_T).ravel()
        gram_SS = shared_SS - offset_S[:, None] - offset_S[None, :] + self.mean_term_T @ self.mean_term_T
        square, left_SS = np.linalg.eigh(gram_SS)
        order = np.argsort(-square)[: self.n_components]
        # centring takes one dimension, and equal rows take more: what is left of those is rounding
        order = order[square[order] > 1e-9 * max(square.max(), 1e-300) * n_genes]
        self.size_k, self.left_Sk = np.sqrt(square[order]), left_SS[:, order]
        self.rows = rows
        self.centre_G = delta_SG.mean(axis=0)
        target_kG = self.left_Sk.T @ delta_SG  # the columns of left_Sk have mean 0
        largest = float(self.size_k[0] ** 2) if len(order) else 1.0
        penalties = RIDGES if self.ridge is None else (self.ridge,)
        errors = [self._leave_one_out_error(delta_SG, target_kG, r * largest) for r in penalties]
        self.penalty = penalties[int(np.argmin(errors))] * largest
        self.weight_kG = target_kG * (self.size_k / (self.size_k**2 + self.penalty))[:, None]

    def _leave_one_out_error(self, delta_SG: np.ndarray, target_kG: np.ndarray, penalty: float) -> float:
        """Mean squared leave-one-out error over the singles: residual over 1 - leverage, as of any linear smoother."""
        if len(delta_SG) == 1:
            return 0.0
        # share of each component in the residual; the part outside of the components is entirely residual
        left_k = penalty / (self.size_k**2 + penalty)
        rest_SG = delta_SG - self.centre_G - self.left_Sk @ target_kG
        rest_S = 1.0 - 1.0 / len(delta_SG) - (self.left_Sk**2).sum(axis=1)
        residual_SG = rest_SG + self.left_Sk @ (left_k[:, None] * target_kG)
        left_S = np.where(rest_S > 1e-9, rest_S, 0.0) + (self.left_Sk**2 * left_k).sum(axis=1)
        return float(((residual_SG / np.maximum(left_S, 1e-15)[:, None]) ** 2).mean())

    def _from_terms(self, row: sparse.csr_matrix) -> np.ndarray:
        centred_S = (self.rows @ row.T).toarray().ravel() - self.rows @ self.mean_term_T
        centred_S = centred_S - float((row @ self.mean_term_T)[0]) + self.mean_term_T @ self.mean_term_T
        score_k = (self.left_Sk.T @ centred_S) / np.where(self.size_k > 0, self.size_k, 1.0)
        return self.centre_G + score_k @ self.weight_kG


@register_baseline(
    "go_knn", "c + sum of single deltas; of a gene not seen alone: weighted mean of the k seen ones nearest by GO"
)
class GOKnn(GONeighbours):
    """Mean delta of the `k` training singles that share most GO terms, weighted by Jaccard similarity.

    All singles as similar as the k-th are used. A gene that shares no term with any gets O - c.
    """

    def __init__(self, *, k: int = 5, annotation: GeneAnnotation | None = None, clip: bool | None = None) -> None:
        if k < 1:
            msg = f"k must be at least 1; found {k}"
            raise ValueError(msg)
        super().__init__(annotation=annotation, clip=clip)
        self.k = k

    def _learn(self, rows: sparse.csr_matrix, delta_SG: np.ndarray) -> None:
        self.rows, self.delta_SG = rows, delta_SG

    def _from_terms(self, row: sparse.csr_matrix) -> np.ndarray:
        mean_G = mean_of_nearest(jaccard(row, self.rows)[0], self.delta_SG, self.k)
        return self.fallback_G if mean_G is None else mean_G
