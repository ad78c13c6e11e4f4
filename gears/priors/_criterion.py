"""Error of predicted changes, for choices among predictions: their size and the pattern of what is specific to them.

A prior chooses among a dozen candidates, each at several slopes s, by predictions of the conditions that it is fitted
to. The predicted mean of gene g is ``max(c + s x, 0)``, with control mean c and change x. Where nothing is cut at 0,
error and correlation are functions of sums over genes that do not depend on s (w weights, mu the measured mean, O the
mean of the other conditions, t the measured departure from O, centred)::

    sum w (c + s x - mu)^2 = sum w (c - mu)^2 + 2 s sum w (c - mu) x + s^2 sum w x^2
    sum (c + s x - O) t    = sum (c - O) t + s sum x t             and the variance of (c + s x - O) likewise

So a candidate costs a few passes over its changes, for any number of slopes. The few values that are cut at some slope,
and changes of perturbed genes themselves, whose slope may be another, count as x = 0 in these sums, and what they add
at each slope comes on top. The plain version is the two metrics themselves (``tests/priors/test_criterion.py``); it
also decides about predictions that differ from O by no more than rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse

from gears.evaluation._rows import RESOLUTION
from gears.evaluation.metrics._decisive import pearson_delta_ref, relative_error
from gears.evaluation.truth import Truth

_BLOCK_VALUES = 1 << 17  # conditions x genes of a block: small arrays stay in the cache

Criterion = Callable[[np.ndarray], np.ndarray]
"""Error of each of some held-out predictions, (U, G) to (U,), or E parts of it that are added, (E, U), first its size.
Lower is better, and only the mean counts."""


class ChoiceErrors:
    """Error of predicted changes of U conditions, (2, U); lower is better.

    Its rows are ``relative_error`` and minus ``pearson_delta_ref`` of the decisive metrics.

    Parameters
    ----------
    parts
        Rows of the conditions of each setting, and their truth. Its reference is the train mean of each prediction, (U,
        G): mean of the conditions that it is made from, without the condition itself, since a mean that held it would
        be beaten by its own opposite.
    clip
        Whether predictions below 0 become 0.
    """

    def __init__(self, parts: Sequence[tuple[np.ndarray, Truth]], *, clip: bool) -> None:
        self.n_conditions = sum(len(rows) for rows, _ in parts)
        self._blocks: list[tuple[np.ndarray, np.ndarray, _Block]] = []
        for rows, truth in parts:
            unmeasured, truth = truth.unmeasured, truth.over_measured.for_choices()
            step = max(1, _BLOCK_VALUES // max(1, truth.mean_UG.shape[1]))
            for start in range(0, len(rows), step):
                block = slice(start, start + step)
                self._blocks.append((rows[block], unmeasured, _Block(truth.subset(block), clip)))

    def __call__(self, delta_UG: np.ndarray) -> np.ndarray:
        """Errors of predicted changes."""
        error_2U = np.empty((2, self.n_conditions))
        for rows, unmeasured, block in self._blocks:
            error_2U[:, rows] = block.plain(_without(delta_UG[rows], unmeasured))
        return error_2U

    def at_slopes(
        self, slope_S: np.ndarray, change_UG: np.ndarray, of_target_S: np.ndarray, target_UG: np.ndarray
    ) -> np.ndarray:
        """Errors of ``slope change + of_target target`` at each of S slopes, (S, 2, U)."""
        error_S2U = np.empty((len(slope_S), 2, self.n_conditions))
        for rows, unmeasured, block in self._blocks:
            change_RG, target_RG = (_without(table[rows], unmeasured) for table in (change_UG, target_UG))
            error_S2U[..., rows] = block.at_slopes(slope_S, change_RG, of_target_S, target_RG)
        return error_S2U


def _without(values_RG: np.ndarray, genes: np.ndarray) -> np.ndarray:
    return np.delete(values_RG, genes, axis=1) if len(genes) else values_RG


def errors_at_slopes(
    criterion: Criterion, slope_S: np.ndarray, change_UG: np.ndarray, of_target_S: np.ndarray, target_UG: np.ndarray
) -> np.ndarray:
    """Criterion of ``slope change + of_target target`` at each of S slopes, (S, E, U); by its own faster way if any."""
    if isinstance(criterion, ChoiceErrors):
        return criterion.at_slopes(slope_S, change_UG, of_target_S, target_UG)
    each = zip(slope_S.tolist(), of_target_S.tolist(), strict=True)
    return np.stack([np.atleast_2d(criterion(slope * change_UG + factor * target_UG)) for slope, factor in each])


@dataclass(frozen=True)
class _Block:
    """Some conditions, and what their sums need besides the predictions."""

    truth: Truth
    clip: bool

    @cached_property
    def centred_RG(self) -> np.ndarray:
        """Measured departures from the reference, centred."""
        true_RG = self.truth.specific[0]
        return np.asarray(true_RG - true_RG.mean(axis=1, keepdims=True))

    @cached_property
    def norm_R(self) -> np.ndarray:
        """Length of these; 0 where they are those of rounding."""
        true_RG, noise_R = self.truth.specific
        is_constant_R = true_RG.max(axis=1) - true_RG.min(axis=1) <= noise_R
        return np.where(is_constant_R, 0.0, np.linalg.norm(self.centred_RG, axis=1))

    @cached_property
    def origin_RG(self) -> np.ndarray:
        """Departures of the control mean from the reference."""
        return np.asarray(self.truth.control_mean_G - self.truth.reference_mean_G)

    @cached_property
    def weighed_RG(self) -> np.ndarray:
        """Departures of the control mean from the measured one, times their weights."""
        return np.asarray(self.truth.evidence_UG * (self.truth.control_mean_G - self.truth.mean_UG))

    @cached_property
    def error_R(self) -> np.ndarray:
        """Weighed squares of these departures."""
        return _dot(self.weighed_RG, self.truth.control_mean_G - self.truth.mean_UG)

    @cached_property
    def largest(self) -> float:
        """Bound of the size of control mean and reference together."""
        return float(np.abs(self.truth.control_mean_G).max() + np.abs(self.truth.reference_mean_G).max())

    def plain(self, delta_RG: np.ndarray) -> np.ndarray:
        """The two metrics, (2, R)."""
        predicted_RG = self.truth.control_mean_G + delta_RG
        if self.clip:
            np.maximum(predicted_RG, 0.0, out=predicted_RG)
        correlation_R = np.nan_to_num(pearson_delta_ref(predicted_RG, self.truth))
        return np.stack([relative_error(predicted_RG, self.truth), -correlation_R])

    def at_slopes(
        self, slope_S: np.ndarray, change_RG: np.ndarray, of_target_S: np.ndarray, target_RG: np.ndarray
    ) -> np.ndarray:
        """:meth:`ChoiceErrors.at_slopes` of these conditions, (S, 2, R)."""
        truth, control_G, n_genes = self.truth, self.truth.control_mean_G, change_RG.shape[1]
        is_apart_RG = target_RG != 0
        if self.clip:
            is_apart_RG |= change_RG < -control_G / slope_S.max()
        rows, genes = np.nonzero(is_apart_RG)
        apart_NS = np.outer(change_RG[rows, genes], slope_S) + np.outer(target_RG[rows, genes], of_target_S)
        if self.clip:
            apart_NS = np.maximum(apart_NS, -control_G[genes][:, None])
        bounds = np.searchsorted(rows, np.arange(len(change_RG) + 1))
        in_row_RN = sparse.csr_matrix((np.ones(len(rows)), np.arange(len(rows)), bounds), (len(change_RG), len(rows)))
        x_RG = change_RG.copy()
        x_RG[rows, genes] = 0.0

        def of_changes(factor_RG: np.ndarray) -> np.ndarray:
            """Sum over genes of a factor times the changes, (S, R)."""
            apart_RS = in_row_RN @ (factor_RG[rows, genes][:, None] * apart_NS)
            return np.asarray(np.outer(slope_S, _dot(factor_RG, x_RG)) + apart_RS.T)

        def of_squares(factor_RG: np.ndarray, square_R: np.ndarray) -> np.ndarray:
            """Sum over genes of a factor times their squares, (S, R); `square_R` is that of `x_RG`."""
            apart_RS = in_row_RN @ (factor_RG[rows, genes][:, None] * apart_NS**2)
            return np.asarray(np.outer(slope_S**2, square_R) + apart_RS.T)

        weight_RG, origin_RG, one_RG = truth.evidence_UG, self.origin_RG, np.broadcast_to(1.0, change_RG.shape)
        square_R = _dot(x_RG, x_RG)
        error_SR = of_squares(weight_RG, _dot(weight_RG * x_RG, x_RG)) + 2 * of_changes(self.weighed_RG)
        error_SR = (error_SR + self.error_R) / (weight_RG.sum(axis=1) * truth.reference_error)
        product_SR = of_changes(self.centred_RG) + _dot(origin_RG, self.centred_RG)
        variance_SR = of_squares(one_RG, square_R) + 2 * of_changes(origin_RG) + _dot(origin_RG, origin_RG)
        variance_SR -= (of_changes(one_RG) + origin_RG.sum(axis=1)) ** 2 / n_genes
        # a departure that is no larger than rounding has no correlation: the metric decides about very small ones
        largest_R = np.sqrt(square_R) * slope_S.max() + self.largest + np.abs(apart_NS).max(initial=0.0)
        is_small_SR = variance_SR <= n_genes * (RESOLUTION * largest_R) ** 2
        norm_SR = np.sqrt(np.where(is_small_SR, 1.0, variance_SR)) * self.norm_R
        correlation_SR = np.divide(product_SR, norm_SR, out=np.zeros_like(norm_SR), where=norm_SR > 0)
        result_S2R = np.stack([error_SR, -np.clip(correlation_SR, -1.0, 1.0)], axis=1)
        for slope in np.flatnonzero(is_small_SR.any(axis=1)).tolist():
            plain_2R = self.plain(slope_S[slope] * change_RG + of_target_S[slope] * target_RG)
            result_S2R[slope, 1, is_small_SR[slope]] = plain_2R[1, is_small_SR[slope]]
        return result_S2R


def _dot(one_RG: np.ndarray, other_RG: np.ndarray) -> np.ndarray:
    """Products of rows, (R,)."""
    return np.asarray(np.einsum("rg,rg->r", one_RG, other_RG))
