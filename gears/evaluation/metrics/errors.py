"""Errors of the predicted means: squared, absolute, weighted, in units of sigma and of log-fold change."""

from __future__ import annotations

import numpy as np

from gears.evaluation.metrics.registry import register
from gears.evaluation.rows import mean_rows, padded
from gears.evaluation.truth import GeneLists, Truth

INFINITE = (0.0, float("inf"))
PUBLISHED = "GEARS (Roohani et al. 2023)"
PSEUDO_COUNT = 1e-3


@register(
    "mse", formula="mean over genes of (m - mu)^2", higher_is_better=False, bounds=INFINITE, source=PUBLISHED
)
def mse(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """Mean squared error over all genes, (U,)."""
    return mean_rows((predicted_UG - truth.mean_UG) ** 2)


@register(
    "mae", formula="mean over genes of |m - mu|", higher_is_better=False, bounds=INFINITE, source="standard"
)
def mae(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """Mean absolute error over all genes, (U,)."""
    return mean_rows(np.abs(predicted_UG - truth.mean_UG))


@register(
    "mse_top20_de",
    formula="mse over the condition's top 20 differential genes",
    higher_is_better=False,
    bounds=INFINITE,
    source=PUBLISHED,
    needs_de=True,
)
def mse_top_de(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """Mean squared error over the top differential genes, (U,)."""
    return _mse_over(predicted_UG, truth, truth.top())


@register(
    "mse_top20_de_non_dropout",
    formula="mse over the top 20 differential genes, genes lost in the condition but not in, without the control",
    higher_is_better=False,
    bounds=INFINITE,
    source=PUBLISHED,
    needs_de=True,
)
def mse_top_de_non_dropout(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """Mean squared error over the top differential genes that are no drop-outs, (U,)."""
    return _mse_over(predicted_UG, truth, truth.top(dropouts=False))


@register(
    "mse_top20_moderated",
    formula="mse over the 20 genes of the largest moderated |t|: genes without a count do not come first",
    higher_is_better=False,
    bounds=INFINITE,
    source="shrunken variances after limma (Smyth 2004)",
)
def mse_top_moderated(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """Mean squared error over the genes of the largest moderated t, (U,); NaN where it is unknown."""
    is_known_U = np.isfinite(truth.moderated_t_UG).all(axis=1)
    squared_UK = _taken(predicted_UG - truth.mean_UG, truth.top_moderated()) ** 2
    return np.where(is_known_U, mean_rows(squared_UK), np.nan)


@register(
    "mae_top20_de",
    formula="mae over the condition's top 20 differential genes",
    higher_is_better=False,
    bounds=INFINITE,
    source="standard",
    needs_de=True,
)
def mae_top_de(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """Mean absolute error over the top differential genes, (U,)."""
    index_UK, present_UK = padded(truth.top())
    return mean_rows(np.abs(_taken(predicted_UG - truth.mean_UG, index_UK)), present_UK)


@register(
    "within_one_sigma_top20",
    formula="share of the top 20 differential genes (s.d. > 0) with |m - mu| < s.d. of the condition's cells",
    higher_is_better=True,
    bounds=(0.0, 1.0),
    source=PUBLISHED,
    needs_de=True,
)
def within_one_sigma_top_de(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """Share of top differential genes predicted to strictly less than one standard deviation (ddof 0), (U,)."""
    index_UK, present_UK = padded(truth.top())
    std_UK = _taken(truth.std_UG, index_UK)
    close_UK = np.abs(_taken(predicted_UG - truth.mean_UG, index_UK)) < std_UK
    return mean_rows(close_UK.astype(np.float64), present_UK & (std_UK > 0))


@register(
    "weighted_mse",
    formula="sum w (m - mu)^2 / sum w, w = ((|t| - min) / range)^2 with Welch's t of the condition",
    higher_is_better=False,
    bounds=INFINITE,
    source="weighting by differential expression, after Mejia et al. 2025",
)
def weighted_mse(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """Squared error weighted by how differential a gene is, (U,); NaN where all |t| are equal or one is infinite."""
    size_UG = np.where(np.isfinite(truth.t_UG), np.abs(truth.t_UG), np.nan)
    low_U1 = size_UG.min(axis=1, keepdims=True)
    range_U1 = size_UG.max(axis=1, keepdims=True) - low_U1
    scaled_UG = np.divide(size_UG - low_U1, range_U1, out=np.full_like(size_UG, np.nan), where=range_U1 > 0)
    weight_UG = scaled_UG**2
    return (weight_UG * (predicted_UG - truth.mean_UG) ** 2).sum(axis=1) / weight_UG.sum(axis=1)


@register(
    "log_fold_change_error",
    formula="mean over genes of |log2 fc(m) - log2 fc(mu)|, means back-transformed by exp(.) - 1, pseudo-count 0.001",
    higher_is_better=False,
    bounds=INFINITE,
    source="standard",
)
def log_fold_change_error(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """Mean absolute error of log2 fold changes of log1p data, (U,).

    The control cancels. A prediction so far below zero that its logarithm
    does not exist makes the condition NaN: clip predictions at zero.
    """
    return mean_rows(np.abs(_log2_level(predicted_UG) - _log2_level(truth.mean_UG)))


def _log2_level(values_UG: np.ndarray) -> np.ndarray:
    """log2 of means back-transformed from log1p plus the pseudo-count; NaN where that is not positive."""
    level_UG = np.expm1(values_UG) + PSEUDO_COUNT
    return np.log2(level_UG, out=np.full_like(level_UG, np.nan), where=level_UG > 0)


def _mse_over(predicted_UG: np.ndarray, truth: Truth, genes: GeneLists) -> np.ndarray:
    index_UK, present_UK = padded(genes)
    return mean_rows(_taken(predicted_UG - truth.mean_UG, index_UK) ** 2, present_UK)


def _taken(values_UG: np.ndarray, index_UK: np.ndarray) -> np.ndarray:
    return np.take_along_axis(values_UG, index_UK, axis=1)
