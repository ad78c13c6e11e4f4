"""Overlap of the predicted and the true set of differential genes."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import special

from gears.evaluation._rows import adjusted
from gears.evaluation.metrics._published import PSEUDO_COUNT, SHARE
from gears.evaluation.metrics._registry import register_table
from gears.evaluation.truth import Truth

FALSE_DISCOVERY_RATE = 0.05


def de_overlap_welch(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """|S and S'| / |S|: S genes of Welch's t at 5 % false discoveries (BH), S' those of the prediction, cut to |S| by
    |log2 fold change|; the prediction has the control's s.d. and the condition's number of cells

    A predicted mean has no spread of cells: it is tested with the spread of the
    control cells and the condition's number of cells.
    """
    if truth.control_std_G is None or truth.n_control < 2:
        return np.full(len(predicted_UG), np.nan)
    control = (truth.control_mean_G, truth.control_std_G, truth.n_control)
    n_cells_U1 = truth.n_cells_U[:, None].astype(np.float64)
    spread_UG = np.broadcast_to(truth.control_std_G, predicted_UG.shape)
    true_UG = differential(welch_p_values(truth))
    predicted_de_UG = differential(_welch_p((predicted_UG, spread_UG, n_cells_U1), control))
    size_UG = _fold_change_size(predicted_UG, truth.control_mean_G)
    is_defined_U = (truth.n_cells_U > 1) & np.isfinite(truth.std_UG).all(axis=1)
    shares = [_overlap_share(*sets) for sets in zip(true_UG, predicted_de_UG, size_UG, strict=True)]
    return np.where(is_defined_U, shares, np.nan)


def welch_p_values(truth: Truth) -> np.ndarray:
    """Two-sided p of Welch's t of each condition's cells against the control's, (U, G).

    Raises ValueError for a truth that was built from means alone, without spread and number of the control cells.
    """
    if truth.control_std_G is None or truth.n_control < 2:
        msg = "the truth holds no spread of the control cells; build it from a screen: Truth.of(screen, conditions)"
        raise ValueError(msg)
    cells = (truth.mean_UG, truth.std_UG, truth.n_cells_U[:, None].astype(np.float64))
    return _welch_p(cells, (truth.control_mean_G, truth.control_std_G, truth.n_control))


def _overlap_share(true_G: np.ndarray, predicted_G: np.ndarray, size_G: np.ndarray) -> float:
    """``|S and S'| / |S|`` for sets as bool (G,); S' is cut to \\|S\\| by descending `size_G`.

    Genes that tie at the cut are counted by their expected number, so that the
    order of genes does not matter. NaN where S is empty.
    """
    n_true = int(true_G.sum())
    if n_true == 0:
        return float("nan")
    if int(predicted_G.sum()) <= n_true:
        return float((true_G & predicted_G).sum()) / n_true
    cut = np.sort(size_G[predicted_G])[::-1][n_true - 1]
    above_G, tied_G = predicted_G & (size_G > cut), predicted_G & (size_G == cut)
    n_tied_in = n_true - int(above_G.sum())
    hits = int((true_G & above_G).sum()) + n_tied_in * int((true_G & tied_G).sum()) / int(tied_G.sum())
    return hits / n_true


def differential(p_UG: np.ndarray, rate: float = FALSE_DISCOVERY_RATE) -> np.ndarray:
    """Genes below a rate of false discoveries (5 %) after Benjamini and Hochberg, bool, along the last axis."""
    return adjusted(p_UG) < rate


def _fold_change_size(mean_G: np.ndarray, control_mean_G: np.ndarray, pseudo_count: float = PSEUDO_COUNT) -> np.ndarray:
    """Absolute log2 fold change of means back-transformed from log1p; 0 where both levels are zero.

    Infinite where one level is zero without pseudo-count, or below zero.
    """
    levels = [np.expm1(side_G) + pseudo_count for side_G in (mean_G, control_mean_G)]
    logs = [np.log2(level, out=np.full_like(level, -np.inf), where=level > 0) for level in levels]
    equal_G = levels[0] == levels[1]
    with np.errstate(invalid="ignore"):
        change_G = np.abs(logs[0] - logs[1])
    return np.where(equal_G, 0.0, np.where(np.isnan(change_G), np.inf, change_G))


def _welch_p(cells: tuple[np.ndarray, np.ndarray, Any], control: tuple[np.ndarray, np.ndarray, Any]) -> np.ndarray:
    """Two-sided p of Welch's t from (mean, s.d. with ddof 0, n) of both sides; 1 where nothing varies or differs."""
    with np.errstate(divide="ignore", invalid="ignore"):
        variances = [side[1] ** 2 / (side[2] - 1) for side in (cells, control)]
        t_G = (cells[0] - control[0]) / np.sqrt(variances[0] + variances[1])
        squares = sum(variance**2 / (side[2] - 1) for variance, side in zip(variances, (cells, control), strict=True))
        freedom_G = (variances[0] + variances[1]) ** 2 / squares
    freedom_G = np.where(np.isfinite(freedom_G), freedom_G, 1.0)
    t_G = np.nan_to_num(t_G, nan=0.0, posinf=np.inf, neginf=-np.inf)
    return np.asarray(np.where(cells[0] == control[0], 1.0, 2 * special.stdtr(freedom_G, -np.abs(t_G))))


register_table(
    ("de_overlap_welch", de_overlap_welch, "higher", SHARE,
     "after DES of cell-eval, which ranks cells by Wilcoxon's test; NaN where S is empty"),
)  # fmt: skip
