"""Metrics that decide, and what is read beside them.

They look at what is specific to a perturbation, its change from the training mean O, at genes that truly change, and
at the order of perturbations. None can be gained by making a prediction larger or smaller as a whole. Intervals of 90 %
from the standard deviation of each predicted mean are ``m +- 1.645 sqrt(sd^2 + v / n)``: they are compared with a
measured mean of n cells, whose sampling variance ``v / n`` comes on top of what the prediction does not know.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from scipy import sparse
from scipy.special import ndtr

from gears.core._intervals import half_width
from gears.core._numbers import unit_rows
from gears.evaluation._rows import RESOLUTION, TIE, changes, mean_rows, pearson_rows, place_among, weighted_rows
from gears.evaluation.metrics._published import CORRELATION, POSITIVE, SHARE, sign_distance
from gears.evaluation.metrics._registry import register_table
from gears.evaluation.metrics.differential import FALSE_DISCOVERY_RATE
from gears.evaluation.truth import Truth
from gears.evaluation.uncertainty import interval_score

PERCENTS = (5, 10, 20)
"""Recall of hits is reported for the first 5, 10 and 20 % of the perturbations."""
CHANGED = 0.1
"""Change of mean log expression beyond which a gene counts as changed: about 10 %."""
LEVEL = 0.9
_LARGEST = 80  # percentile of the number of changed genes, from which on a perturbation is a hit by size
_BLOCK_VALUES = 1 << 17  # conditions x genes of a block: small arrays stay in the cache


def pearson_delta_ref(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """corr over genes of (m - O, mu - O): the part that is specific to the perturbation

    NaN for the train mean itself.
    """
    if np.isnan(truth.reference_mean_G).any():
        return np.full(len(predicted_UG), np.nan)
    specific_UG, noise_a = changes(predicted_UG, truth.reference_mean_G)
    true_UG, noise_b = truth.specific
    return pearson_rows(specific_UG, true_UG, noise_a=noise_a, noise_b=noise_b)


def discrimination_ref(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """share of the other conditions q with cos(m - O, mu_q - O) < cos(m - O, mu - O), half a point for a tie; genes
    that any evaluated condition perturbs are excluded
    """
    n_panel = len(truth.panel_mean_VG)
    if n_panel < 2 or np.isnan(truth.reference_mean_G).any():
        return np.full(len(predicted_UG), np.nan)
    kept_G = np.setdiff1d(np.arange(predicted_UG.shape[1]), truth.panel_targets)
    origin = truth.reference_mean_G[..., kept_G]
    specific_UK = unit_rows(changes(predicted_UG[:, kept_G], origin)[0])
    cosine_UV = _cosines_with_panel(specific_UK, truth.panel_mean_VG[:, kept_G], origin)
    return place_among(cosine_UV, truth.panel_row_U, TIE) / (n_panel - 1)


def _cosines_with_panel(unit_UK: np.ndarray, panel_VK: np.ndarray, origin: np.ndarray) -> np.ndarray:
    """Cosine of each of U directions p with the change of each mean of the panel from an origin, (U, V).

    With an origin O_u for each row these are ``p_u (mu_v - O_u) / |mu_v - O_u|``. A table of all differences would hold
    U V K values: both parts are multiplied out, which leaves products of two tables, centred first for rounding.
    """
    if origin.ndim == 1:
        return np.asarray(unit_UK @ unit_rows(changes(panel_VK, origin)[0]).T)
    centre_K = panel_VK.mean(axis=0)
    panel_VK, origin_UK = panel_VK - centre_K, origin - centre_K
    product_UV = unit_UK @ panel_VK.T - (unit_UK * origin_UK).sum(axis=1)[:, None]
    size_UV = (panel_VK**2).sum(axis=1) + (origin_UK**2).sum(axis=1)[:, None]
    square_UV = size_UV - 2 * origin_UK @ panel_VK.T
    differs_UV = square_UV > 1e-12 * size_UV  # a smaller difference is one of rounding: without direction
    length_UV = np.sqrt(np.where(differs_UV, square_UV, 1.0))
    return np.where(differs_UV, product_UV / length_UV, 0.0)


def relative_error(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """sum w (m - mu)^2 / sum w, as a share of the mean of this error of O over the evaluated conditions; w = 1 - q of
    the moderated t (q by Benjamini-Hochberg)

    NaN where no gene shows any evidence, and without a training mean.
    """
    error_U = weighted_rows((predicted_UG - truth.mean_UG) ** 2, truth.evidence_UG)
    return error_U / truth.reference_error if truth.reference_error > 0 else np.full(len(error_U), np.nan)


def direction_changed(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """share of the truly changed genes (moderated t, 5 % false discoveries) with sign(m - c) = sign(mu - c)

    A gene predicted without change counts half. NaN without changed genes.
    """
    change_UG = changes(predicted_UG, truth.control_mean_G)[0]
    return mean_rows(1 - sign_distance(change_UG, truth.delta_UG) / 2, changed_genes(truth))


def amplitude_slope(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """slope of mu - O on m - O over genes; 1 is right, below 1 predictions are too large, above 1 too small

    NaN for the training mean itself.
    """
    predicted_UG = changes(predicted_UG, truth.reference_mean_G)[0]
    true_UG = truth.mean_UG - truth.reference_mean_G
    centred_UG = predicted_UG - predicted_UG.mean(axis=1, keepdims=True)
    square_U = (centred_UG**2).sum(axis=1)
    product_U = (centred_UG * true_UG).sum(axis=1)
    return np.divide(product_U, square_U, out=np.full(len(predicted_UG), np.nan), where=square_U > 0)


def hit_recall(predicted_UG: np.ndarray, truth: Truth, percent: int) -> np.ndarray:
    """share of the condition's changed genes g for which it is among the {percent} % of conditions with the largest
    s (m_g - c_g), s the sign of mu_g - c_g; changed by moderated t at 5 % false discoveries, targets excluded

    Conditions are ranked as by someone who looks for those that raise a gene, or that lower it: a change in the wrong
    direction comes last. Conditions tied at the cut count by their expected number. NaN for a condition without changed
    genes.
    """
    change_UG = changes(predicted_UG, truth.control_mean_G)[0]
    raised_UG, lowered_UG, hit_UG = change_UG.copy(), -change_UG, changed_genes(truth)
    for row, genes in enumerate(truth.targets):
        # everyone knows what a perturbation does to its own gene
        raised_UG[row, genes] = lowered_UG[row, genes] = -np.inf
        hit_UG[row, genes] = False
    up_UG, down_UG = (_share_in_first(size_UG, percent / 100) for size_UG in (raised_UG, lowered_UG))
    return mean_rows(np.where(truth.delta_UG > 0, up_UG, down_UG), hit_UG)


def size_recall(predicted_UG: np.ndarray, truth: Truth, percent: int) -> np.ndarray:
    """1 where a hit is among the {percent} % of conditions with the largest |m - c| over genes, else 0; hits are the
    fifth of the conditions with most changed genes, NaN for others
    """
    changed_UG = changed_genes(truth)
    change_UG = changes(predicted_UG, truth.control_mean_G)[0]
    for row, genes in enumerate(truth.targets):
        changed_UG[row, genes] = False
        change_UG[row, genes] = 0.0
    n_changed_U = changed_UG.sum(axis=1)
    hit_U = (n_changed_U > 0) & (n_changed_U >= np.percentile(n_changed_U, _LARGEST))
    recalled_U1 = _share_in_first(np.linalg.norm(change_UG, axis=1)[:, None], percent / 100)
    return np.where(hit_U, recalled_U1[:, 0], np.nan)


def _share_in_first(size_UK: np.ndarray, share: float) -> np.ndarray:
    """How surely each row is among the first `share` of its column by descending size, 0 to 1 (ties share)."""
    n_first = math.ceil(share * len(size_UK) - 1e-9)  # 10 % of 30 is 3, whatever 0.1 x 30 is in floating point
    at = len(size_UK) - n_first
    last_K = np.partition(size_UK, at, axis=0)[at]  # the smallest size that is still among the first
    above_UK, tied_UK = size_UK > last_K, size_UK == last_K
    # the places left after all larger values, shared by those that tie
    return np.where(tied_UK, (n_first - above_UK.sum(axis=0)) / tied_UK.sum(axis=0), above_UK.astype(np.float64))


def changed_genes(truth: Truth) -> np.ndarray:
    """Genes that truly change, by moderated t at 5 % false discoveries in each condition, bool (U, G)."""
    return truth.adjusted_p_UG < FALSE_DISCOVERY_RATE


def interval_score_90(predicted_UG: np.ndarray, truth: Truth, sd_UG: np.ndarray) -> np.ndarray:
    """mean over genes of the width of the 90 % interval m +- 1.645 sqrt(sd^2 + v / n), v the variance of the
    condition's n cells, plus 20 x the distance of mu outside it
    """
    total_UG = _total_sd(truth, sd_UG)
    return np.asarray(interval_score(predicted_UG - truth.mean_UG, total_UG, LEVEL).mean(axis=1))


def coverage_90(predicted_UG: np.ndarray, truth: Truth, sd_UG: np.ndarray) -> np.ndarray:
    """share of genes whose measured mean lies within m +- 1.645 sqrt(sd^2 + v / n), v the variance of the condition's n
    cells
    """
    half_UG = half_width(LEVEL) * _total_sd(truth, sd_UG)
    return np.asarray((np.abs(predicted_UG - truth.mean_UG) <= half_UG).mean(axis=1))


def interval_width_90(predicted_UG: np.ndarray, truth: Truth, sd_UG: np.ndarray) -> np.ndarray:
    """mean over genes of 2 x 1.645 sd: the width without the sampling noise of the measured mean"""
    return np.asarray(2 * half_width(LEVEL) * sd_UG.mean(axis=1))


def _total_sd(truth: Truth, sd_UG: np.ndarray) -> np.ndarray:
    """Standard deviation of the difference to the measured mean, (U, G)."""
    noise_UG = truth.std_UG**2 / np.maximum(truth.n_cells_U, 1)[:, None]
    return np.sqrt(sd_UG**2 + np.nan_to_num(noise_UG))


def average_precision(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """mean over the truly changed genes g of the share of changed ones among the genes with |m - c| >= |m_g - c_g|

    Changed by moderated t at 5 % false discoveries; perturbed genes are excluded. Genes that tie count as ranked
    together. The share of changed genes is chance. NaN for a condition without changed genes.
    """
    size_UG = np.abs(changes(predicted_UG, truth.control_mean_G)[0])
    changed_UG, value_U = changed_genes(truth), np.full(len(predicted_UG), np.nan)
    for row, targets in enumerate(truth.targets):
        changed_G, size_G = np.delete(changed_UG[row], targets), np.delete(size_UG[row], targets)
        if changed_G.any():
            order = np.argsort(-size_G)
            hits_G, sizes_G = np.cumsum(changed_G[order]), size_G[order]
            last_G = np.searchsorted(-sizes_G, -sizes_G, side="right") - 1  # of the genes that tie
            value_U[row] = (hits_G[last_G] / (last_G + 1))[changed_G[order]].mean()
    return value_U


def brier_changed(predicted_UG: np.ndarray, truth: Truth, sd_UG: np.ndarray) -> np.ndarray:
    """mean over genes of (p - 1[|mu - c| > 0.1])^2, p the probability of that by a Gaussian about m - c of variance
    sd^2 + v / n, v the variance of the condition's n cells

    Perturbed genes are excluded.
    """
    total_UG = np.maximum(_total_sd(truth, sd_UG), np.sqrt(np.finfo(float).tiny))
    change_UG = predicted_UG - truth.control_mean_G
    p_UG = ndtr((change_UG - CHANGED) / total_UG) + ndtr((-change_UG - CHANGED) / total_UG)
    error_UG = (p_UG - (np.abs(truth.delta_UG) > CHANGED)) ** 2
    return np.array([np.delete(row_G, genes).mean() for row_G, genes in zip(error_UG, truth.targets, strict=True)])


register_table(
    ("pearson_delta_ref", pearson_delta_ref, "higher", CORRELATION,
     "Systema (Vinas Torne et al. 2025); each training condition counts once"),
    ("discrimination_ref", discrimination_ref, "higher", SHARE,
     "after discrimination of cell-eval, with a measure that scaling leaves alone; 0.5 is chance"),
    ("relative_error", relative_error, "lower", POSITIVE,
     "weighting by evidence of change, after Mejia et al. 2025; on average 1 is the error of the training mean"),
    ("direction_changed", direction_changed, "higher", SHARE,
     "standard; a gene predicted without change counts half"),
    *((f"hit_recall_{percent}", partial(hit_recall, percent=percent), "higher", SHARE,
       "recall at a budget, as in choosing perturbations for a gene", "needs_all") for percent in PERCENTS),
    *((f"size_recall_{percent}", partial(size_recall, percent=percent), "higher", SHARE,
       "recall at a budget, as in choosing perturbations with strong effects", "needs_all") for percent in PERCENTS),
    ("interval_score_90", interval_score_90, "lower", POSITIVE,
     "Gneiting and Raftery 2007; rewards narrow intervals that hold the measured mean", "needs_sd"),
    ("coverage_90", coverage_90, "near 0.9", SHARE, "standard; to be read beside the width", "needs_sd"),
    ("interval_width_90", interval_width_90, "-", POSITIVE,
     "standard; of two methods with the right coverage the narrower says more", "needs_sd"),
    ("amplitude_slope", amplitude_slope, "near 1", (-math.inf, math.inf),
     "standard; to be read beside the correlations, which do not see the size of a prediction"),
    ("average_precision", average_precision, "higher", SHARE,
     "standard; area under precision and recall of the genes that change"),
    ("brier_changed", brier_changed, "lower", SHARE,
     "Brier 1950; the probability is that of a measured change of more than 0.1", "needs_sd"),
)  # fmt: skip


class ChoiceErrors:
    """Error of predicted changes of U conditions, (2, U), for choices among them; lower is better.

    A prior chooses among a dozen candidates, each at several slopes s, by predictions of the conditions that it is
    fitted to. The predicted mean of gene g is ``max(c + s x, 0)``, with control mean c and change x. Where nothing is
    cut at 0, error and correlation follow from sums over genes that do not depend on s (w weights, mu the measured
    mean, O the mean of the other conditions, t the measured departure from O, centred)::

        sum w (c + s x - mu)^2 = sum w (c - mu)^2 + 2 s sum w (c - mu) x + s^2 sum w x^2
        sum (c + s x - O) t    = sum (c - O) t + s sum x t         and the variance of (c + s x - O) likewise

    So a candidate costs a few passes over its changes, for any number of slopes. The few values that are cut at some
    slope, and changes of perturbed genes themselves, whose slope may be another, count as x = 0 in these sums, and what
    they add at each slope comes on top. The plain version is the two metrics themselves
    (``tests/priors/test_criterion.py``); it also decides about predictions that differ from O by rounding alone.

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
