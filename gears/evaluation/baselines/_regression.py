"""Baselines by ridge regression: additive effects from all training conditions, and from embeddings of genes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gears.conditions import Condition
from gears.core._messages import shorten
from gears.core._numbers import unit_rows
from gears.evaluation._fitted import ConditionMeans
from gears.evaluation.baselines._base import Baseline, mean_of_nearest, register_baseline, term_rows
from gears.graphs._go import jaccard

if TYPE_CHECKING:
    from gears.graphs._annotation import GeneAnnotation
    from gears.graphs._embeddings import GeneEmbedding

PENALTIES = np.geomspace(1e-4, 1e4, 17)
"""Candidate penalties, in units of the kernel's mean diagonal, ascending."""
N_NEAREST = 5
"""Genes that an unseen gene is predicted from."""


@dataclass(frozen=True)
class Ridge:
    """What :func:`fit_ridge` finds."""

    common_G: np.ndarray  # the part that is not penalised, (G,)
    dual_CG: np.ndarray
    """Weights of the rows of the kernel, (C, G): the penalised part of a new row is its kernel with the C rows times
    these weights."""
    penalty: float  # the penalty of least leave-one-out error
    error: float  # that error: the mean square over rows and genes; NaN for a single row


def fit_ridge(kernel_CC: np.ndarray, size_C: np.ndarray, delta_CG: np.ndarray) -> Ridge:
    """Ridge regression in its dual form, with a common part that is not penalised.

    The model is ``delta = size common + kernel dual``; it minimises the sum of squared residuals plus the penalty p
    times ``dual' kernel dual``. The penalty, one for all genes, is that of :data:`PENALTIES` with the least
    leave-one-out error; the least penalty where all have the same error, as with every gene in one condition alone.

    `kernel_CC`: inner products of the rows' features, (C, C), positive semidefinite.
    `size_C`: how often each row holds the common part, (C,), greater than 0.
    `delta_CG`: values, (C, G).

    Notes
    -----
    With S = K + pI and z the sizes, ``dual = P delta`` where ``P = S^-1 - S^-1 z z' S^-1 / (z' S^-1 z)``, and the error
    in row c of a fit without this row is ``dual_c / P_cc`` (Dubrule, "Cross validation of kriging in a unique
    neighborhood", Mathematical Geology 1983). Let N be an orthonormal basis of the vectors orthogonal to z and
    N'KN = V s V'; then ``P = W (s + p)^-1 W'`` with W = N V, (C, C - 1), so that one eigendecomposition serves all
    penalties. The squares are summed over genes once, in F = W'delta delta'W, so that a penalty costs C^3 operations
    whatever the number of genes.
    """
    basis_Cr = np.linalg.qr(size_C[:, None], mode="complete")[0][:, 1:]
    value_r, vector_rr = np.linalg.eigh(basis_Cr.T @ kernel_CC @ basis_Cr)
    turn_Cr = basis_Cr @ vector_rr
    target_rG = turn_Cr.T @ delta_CG
    product_rr = target_rG @ target_rG.T
    scale = float(np.mean(np.diag(kernel_CC))) or 1.0

    def error(penalty: float) -> float:
        # mean of (dual_c / P_cc)^2: the numerator is the diagonal of P delta delta' P, (C,), without its G columns
        weighted_Cr = turn_Cr / (value_r + penalty)
        square_C = ((weighted_Cr @ product_rr) * weighted_Cr).sum(axis=1)
        own_C = (weighted_Cr * turn_Cr).sum(axis=1)
        return float((square_C / own_C**2).mean()) / delta_CG.shape[1]

    # of equal eigenvalues the errors differ by rounding only
    candidates = scale * (PENALTIES[:1] if np.allclose(value_r, value_r[:1], rtol=1e-9) else PENALTIES)
    errors = [error(penalty) for penalty in candidates] if len(value_r) else [np.nan]
    best = int(np.argmin(errors))
    penalty = float(candidates[best])
    dual_CG = turn_Cr @ (target_rG / (value_r + penalty)[:, None])
    common_G = size_C @ (delta_CG - kernel_CC @ dual_CG) / (size_C @ size_C)
    return Ridge(common_G, dual_CG, penalty, errors[best])


@register_baseline("additive_ridge", "c + sum over genes of common + effect: ridge from genes, all training conditions")
class AdditiveRidge(Baseline):
    """Additive effects of genes by ridge regression of all training conditions.

    The change of a condition is the sum over its genes of a common part, which is not penalised, and the gene's
    effect. Pairs and larger sets inform the effects as singles do. A gene that no training condition holds gets the
    common part.

    Attributes
    ----------
    genes
        The J genes of the training conditions, sorted.
    common_G
        The common part of a gene, (G,).
    effect_JG
        Effect of each of these genes beyond the common part, (J, G).
    """

    def _fit(self, means: ConditionMeans) -> None:
        means.require_training("a ridge baseline")
        conditions = means.train
        self.genes = sorted({gene for condition in conditions for gene in condition.genes})
        self.row_of = {gene: row for row, gene in enumerate(self.genes)}
        member_CJ = np.zeros((len(conditions), len(self.genes)))
        for row, condition in enumerate(conditions):
            member_CJ[row, [self.row_of[gene] for gene in condition.genes]] = 1.0
        delta_CG = np.asarray(means.mean_CG[means.train_ids], dtype=np.float64) - self.control_mean_G
        ridge = fit_ridge(member_CJ @ member_CJ.T, member_CJ.sum(axis=1), delta_CG)
        self.common_G, self.effect_JG = ridge.common_G, member_CJ.T @ ridge.dual_CG

    def _predict(self, condition: Condition) -> np.ndarray:
        return self.control_mean_G + np.sum([self.gene_delta(gene) for gene in condition.genes], axis=0)

    def gene_delta(self, gene: str) -> np.ndarray:
        """Predicted change after perturbing a single gene, (G,)."""
        row = self.row_of.get(gene)
        effect_G = self._unseen_effect(gene) if row is None else self.effect_JG[row]
        return self.common_G if effect_G is None else self.common_G + effect_G

    def _unseen_effect(self, gene: str) -> np.ndarray | None:
        """Effect (G,) of a gene that no training condition holds; None where nothing is known of it."""
        return None


@register_baseline(
    "additive_ridge_go", "additive_ridge; an unseen gene: common + weighted mean effect of the 5 nearest by GO"
)
class AdditiveRidgeGO(AdditiveRidge):
    """Additive ridge, where an unseen gene gets the effects of the genes nearest by GO terms.

    Its effect is the mean of those of the 5 genes of the training conditions with the greatest Jaccard similarity of GO
    terms, weighted by it. A gene that shares no term with any of them gets the common part.

    Parameters
    ----------
    annotation
        GO terms of genes; the packaged human ones by default.
    """

    takes_annotation = True

    def __init__(self, *, annotation: GeneAnnotation | None = None, clip: bool | None = None) -> None:
        super().__init__(clip=clip)
        self.annotation = annotation

    def _fit(self, means: ConditionMeans) -> None:
        super()._fit(means)
        self.rows = term_rows(self.annotation, self.genes)

    def _unseen_effect(self, gene: str) -> np.ndarray | None:
        similarity_J = jaccard(term_rows(self.annotation, [gene]), self.rows)[0]
        return mean_of_nearest(similarity_J, self.effect_JG, N_NEAREST)


@register_baseline(
    "additive_ridge_coexpression",
    "additive_ridge; an unseen gene: common + weighted mean effect of the 5 nearest by co-expression",
)
class AdditiveRidgeCoexpression(AdditiveRidge):
    """Additive ridge, where an unseen gene gets the effects of the genes nearest by co-expression.

    Its effect is the mean of those of the 5 genes of the training conditions whose correlation profiles over control
    cells have the greatest cosine with its own, weighted by the cosine; only positive ones count. A gene that is not
    measured, or does not vary, gets the common part.
    """

    def _fit(self, means: ConditionMeans) -> None:
        super()._fit(means)
        names, profile_GK = means.require_profiles("the co-expression baseline")
        self.unit_of = dict(zip(names, unit_rows(profile_GK), strict=True))
        none_K = np.zeros(profile_GK.shape[1])
        self.unit_JK = np.stack([self.unit_of.get(gene, none_K) for gene in self.genes])

    def _unseen_effect(self, gene: str) -> np.ndarray | None:
        if gene not in self.unit_of:
            return None
        return mean_of_nearest(self.unit_JK @ self.unit_of[gene], self.effect_JG, N_NEAREST)


def with_embedding(names: Sequence[str], embedding: GeneEmbedding | None) -> list[str]:
    """Names of baselines, ``"embedding_ridge"`` among them where there are embeddings."""
    return list(dict.fromkeys([*names, *([] if embedding is None else ["embedding_ridge"])]))


@register_baseline(
    "embedding_ridge", "additive_ridge; an unseen gene: common + its effect by ridge from the given embeddings"
)
class EmbeddingRidge(AdditiveRidge):
    """Additive ridge, where the effect of an unseen gene is predicted from its embedding.

    A second ridge regression, its penalty again of least leave-one-out error, leads from the embeddings of the genes of
    the training conditions to their effects. A gene without an embedding gets the common part.

    Parameters
    ----------
    embedding
        Gene embeddings, such as those that a model starts from (``pert_embedding``).
    """

    takes_embedding = True

    def __init__(self, *, embedding: GeneEmbedding | None = None, clip: bool | None = None) -> None:
        super().__init__(clip=clip)
        self.embedding = embedding

    def _fit(self, means: ConditionMeans) -> None:
        super()._fit(means)
        if self.embedding is None:
            msg = "embedding_ridge needs gene embeddings and has none; give embedding=GeneEmbedding.of(...)"
            raise ValueError(msg)
        self.vector_of = dict(zip(self.embedding.names, self.embedding.values, strict=True))
        known_J = [row for row, gene in enumerate(self.genes) if gene in self.vector_of]
        if not known_J:
            msg = (
                f"none of {len(self.genes)} genes of the training conditions ({shorten(self.genes, 3)}) has an "
                f"embedding (embeddings: {shorten(self.embedding.names, 3)}); expected the same kind of gene names"
            )
            raise ValueError(msg)
        vector_SD = np.stack([self.vector_of[self.genes[row]] for row in known_J])
        self.centre_D = vector_SD.mean(axis=0)
        self.centred_SD = vector_SD - self.centre_D
        kernel_SS = self.centred_SD @ self.centred_SD.T
        self.ridge = fit_ridge(kernel_SS, np.ones(len(known_J)), self.effect_JG[known_J])

    def _unseen_effect(self, gene: str) -> np.ndarray | None:
        if gene not in self.vector_of:
            return None
        kernel_S = self.centred_SD @ (self.vector_of[gene] - self.centre_D)
        return self.ridge.common_G + kernel_S @ self.ridge.dual_CG


@register_baseline("linear", "E K q + c + b: ridge from gene embeddings (PCA of training means) of the targets")
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
        self.gene_row = {gene: row for row, gene in enumerate(means.require_gene_names("the linear baseline"))}
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
