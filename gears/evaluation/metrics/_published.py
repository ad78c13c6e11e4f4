"""Metrics that papers and other packages report: errors, correlations, directions, and ranks among conditions."""

from __future__ import annotations

from functools import partial

import numpy as np

from gears.core._numbers import unit_rows
from gears.evaluation._rows import TIE, changes, mean_rows, own_noise, padded, pearson_rows, place_among
from gears.evaluation.metrics._registry import register_table
from gears.evaluation.truth import GeneLists, Truth

PSEUDO_COUNT = 1e-3
POSITIVE, SHARE, CORRELATION = (0.0, float("inf")), (0.0, 1.0), (-1.0, 1.0)

# -- errors --------------------------------------------------------------------------------


def mse(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """mean over genes of (m - mu)^2"""
    return mean_rows((predicted_UG - truth.mean_UG) ** 2)


def mae(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """mean over genes of |m - mu|"""
    return mean_rows(np.abs(predicted_UG - truth.mean_UG))


def mse_top_de(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """mse over the condition's top 20 differential genes"""
    return _mean_over((predicted_UG - truth.mean_UG) ** 2, truth.top())


def mse_top_de_non_dropout(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """mse over the top 20 differential genes, genes lost in the condition but not in, without the control"""
    return _mean_over((predicted_UG - truth.mean_UG) ** 2, truth.top(dropouts=False))


def mse_top_moderated(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """mse over the 20 genes of the largest moderated |t|: genes without a count do not come first"""
    is_known_U = np.isfinite(truth.moderated_t_UG).all(axis=1)
    error_UG = (predicted_UG - truth.mean_UG) ** 2
    return np.where(is_known_U, mean_rows(_taken(error_UG, truth.top_moderated())), np.nan)


def mae_top_de(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """mae over the condition's top 20 differential genes"""
    return _mean_over(np.abs(predicted_UG - truth.mean_UG), truth.top())


def within_one_sigma_top_de(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """share of the top 20 differential genes (s.d. > 0) with |m - mu| < s.d. of the condition's cells

    The standard deviation has ddof 0.
    """
    index_UK, present_UK = padded(truth.top())
    std_UK = _taken(truth.std_UG, index_UK)
    close_UK = np.abs(_taken(predicted_UG - truth.mean_UG, index_UK)) < std_UK
    return mean_rows(close_UK.astype(np.float64), present_UK & (std_UK > 0))


def weighted_mse(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """sum w (m - mu)^2 / sum w, w = ((|t| - min) / range)^2 with Welch's t of the condition

    NaN where all |t| are equal or one is infinite.
    """
    size_UG = np.where(np.isfinite(truth.t_UG), np.abs(truth.t_UG), np.nan)
    low_U1 = size_UG.min(axis=1, keepdims=True)
    range_U1 = size_UG.max(axis=1, keepdims=True) - low_U1
    scaled_UG = np.divide(size_UG - low_U1, range_U1, out=np.full_like(size_UG, np.nan), where=range_U1 > 0)
    weight_UG = scaled_UG**2
    return (weight_UG * (predicted_UG - truth.mean_UG) ** 2).sum(axis=1) / weight_UG.sum(axis=1)


def log_fold_change_error(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """mean over genes of |log2 fc(m) - log2 fc(mu)|, means back-transformed by exp(.) - 1, pseudo-count 0.001

    The control cancels. A prediction so far below zero that its logarithm does not exist makes the condition NaN: clip
    predictions at zero.
    """
    return mean_rows(np.abs(_log2_level(predicted_UG) - _log2_level(truth.mean_UG)))


def _log2_level(values_UG: np.ndarray) -> np.ndarray:
    """log2 of means back-transformed from log1p plus the pseudo-count; NaN where that is not positive."""
    level_UG = np.expm1(values_UG) + PSEUDO_COUNT
    return np.log2(level_UG, out=np.full_like(level_UG, np.nan), where=level_UG > 0)


def _mean_over(values_UG: np.ndarray, genes: GeneLists) -> np.ndarray:
    """Mean of each row over its genes."""
    index_UK, present_UK = padded(genes)
    return mean_rows(_taken(values_UG, index_UK), present_UK)


def _taken(values_UG: np.ndarray, index_UK: np.ndarray) -> np.ndarray:
    return np.take_along_axis(values_UG, index_UK, axis=1)


# -- correlations and directions ---------------------------------------------------------------


def pearson(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """corr over genes of (m, mu); near 1 even for no change, so read the delta forms first"""
    return pearson_rows(predicted_UG, truth.mean_UG, noise_a=own_noise(predicted_UG), noise_b=own_noise(truth.mean_UG))


def pearson_delta(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """corr over genes of (m - c, mu - c)

    NaN for a prediction without change.
    """
    change_UG, noise_a = changes(predicted_UG, truth.control_mean_G)
    true_UG, noise_b = changes(truth.mean_UG, truth.control_mean_G)
    return pearson_rows(change_UG, true_UG, noise_a=noise_a, noise_b=noise_b)


def pearson_delta_top_de(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """corr of (m - c, mu - c) over the condition's top 20 differential genes"""
    change_UG, noise_a = changes(predicted_UG, truth.control_mean_G)
    true_UG, noise_b = changes(truth.mean_UG, truth.control_mean_G)
    index_UK, present_UK = padded(truth.top())
    tables = _taken(change_UG, index_UK), _taken(true_UG, index_UK), present_UK
    return pearson_rows(*tables, noise_a=noise_a, noise_b=noise_b)


def sign_distance(predicted_delta: np.ndarray, true_delta: np.ndarray) -> np.ndarray:
    """How far two directions lie apart: 0 equal, 1 one of them without change, 2 opposite."""
    return np.abs(np.sign(predicted_delta) - np.sign(true_delta))


def direction_share_top_de(predicted_UG: np.ndarray, truth: Truth, distance: int) -> np.ndarray:
    """share of the top 20 differential genes whose signs of (m - c) and (mu - c), -1, 0 or 1, differ by {distance}"""
    control_G = truth.control_mean_G
    apart_UG = sign_distance(changes(predicted_UG, control_G)[0], changes(truth.mean_UG, control_G)[0])
    return _mean_over((apart_UG == distance).astype(np.float64), truth.top())


# -- ranks among conditions --------------------------------------------------------------------


def discrimination(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """1 - rank / n, rank = number of conditions whose true delta is strictly closer (L1) to m - c than the condition's
    own, plus half the ties; n counts the condition itself

    Among the panel; the condition's own target genes are excluded.
    """
    from scipy.spatial.distance import cdist  # a worker does without it

    # each row without its own targets, which are 0 on both sides for it; the control mean cancels in the deltas
    panel_VG, distances = truth.panel_mean_VG.copy(), []
    for row_G, targets in zip(predicted_UG.copy(), truth.targets, strict=True):
        row_G[targets] = panel_VG[:, targets] = 0.0
        distances.append(cdist(row_G[None, :], panel_VG, "cityblock")[0])
        panel_VG[:, targets] = truth.panel_mean_VG[:, targets]
    n_panel = len(truth.panel_mean_VG)
    return 1.0 - place_among(np.reshape(distances, (-1, n_panel)), truth.panel_row_U) / n_panel


def centroid_accuracy(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """share of the other conditions q with |m - mu_q| > |m - mu| (Euclidean), half a point for a tie; the condition's
    own target genes are excluded
    """
    n_others = len(truth.panel_mean_VG) - 1
    if n_others == 0:
        return np.full(len(predicted_UG), np.nan)
    from scipy.spatial.distance import cdist  # a worker does without it

    # over all genes at once, then minus each row's targets: a squared distance is a sum over genes
    square_UV = cdist(predicted_UG, truth.panel_mean_VG, "sqeuclidean")
    for row, genes in enumerate(truth.targets):
        square_UV[row] -= ((truth.panel_mean_VG[:, genes] - predicted_UG[row, genes]) ** 2).sum(axis=1)
    return 1.0 - place_among(square_UV, truth.panel_row_U) / n_others


def rank(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """(number of q with d(m_q, mu) < d(m, mu), plus half the ties) / (n - 1), d the cosine distance of deltas (1 for a
    zero delta); 0.5 is chance and collapse

    A condition's own prediction among all predictions, seen from its true change.
    """
    n_conditions = len(predicted_UG)
    if n_conditions < 2:
        return np.full(n_conditions, np.nan)
    predicted_UG = unit_rows(changes(predicted_UG, truth.control_mean_G)[0])
    true_UG = unit_rows(changes(truth.mean_UG, truth.control_mean_G)[0])
    distance_UU = 1.0 - true_UG @ predicted_UG.T  # row: true condition, column: prediction
    return place_among(distance_UU, np.arange(n_conditions), TIE) / (n_conditions - 1)


def spread(predicted_UG: np.ndarray, truth: Truth) -> float:
    """mean pairwise distance of the m over that of the mu (Euclidean); near 0: predictions collapsed

    NaN for fewer than two distinct conditions.
    """
    if len(predicted_UG) < 2:
        return float("nan")
    from scipy.spatial.distance import pdist

    true_spread = float(pdist(truth.mean_UG).mean())
    return float(pdist(predicted_UG).mean()) / true_spread if true_spread > 0 else float("nan")


PUBLISHED, STANDARD = "GEARS (Roohani et al. 2023)", "standard"
register_table(
    ("mse", mse, "lower", POSITIVE, PUBLISHED),
    ("mae", mae, "lower", POSITIVE, STANDARD),
    ("mse_top20_de", mse_top_de, "lower", POSITIVE, PUBLISHED, "needs_de"),
    ("mse_top20_de_non_dropout", mse_top_de_non_dropout, "lower", POSITIVE, PUBLISHED, "needs_de"),
    ("mse_top20_moderated", mse_top_moderated, "lower", POSITIVE, "shrunken variances after limma (Smyth 2004)"),
    ("mae_top20_de", mae_top_de, "lower", POSITIVE, STANDARD, "needs_de"),
    ("within_one_sigma_top20", within_one_sigma_top_de, "higher", SHARE, PUBLISHED, "needs_de"),
    ("weighted_mse", weighted_mse, "lower", POSITIVE,
     "weighting by differential expression, after Mejia et al. 2025"),
    ("log_fold_change_error", log_fold_change_error, "lower", POSITIVE, STANDARD),
    ("pearson", pearson, "higher", CORRELATION, PUBLISHED),
    ("pearson_delta", pearson_delta, "higher", CORRELATION, PUBLISHED),
    ("pearson_delta_top20_de", pearson_delta_top_de, "higher", CORRELATION, PUBLISHED, "needs_de"),
    ("direction_accuracy_top20", partial(direction_share_top_de, distance=0), "higher", SHARE, PUBLISHED, "needs_de"),
    ("opposite_direction_top20", partial(direction_share_top_de, distance=2), "lower", SHARE, PUBLISHED, "needs_de"),
    ("half_direction_top20", partial(direction_share_top_de, distance=1), "lower", SHARE, PUBLISHED, "needs_de"),
    ("discrimination", discrimination, "higher", SHARE,
     "PDS of cell-eval, which excludes the target of single-gene perturbations only; here all targets"),
    ("centroid_accuracy", centroid_accuracy, "higher", SHARE,
     "Systema (Vinas Torne et al. 2025), without target genes as in cell-eval"),
    ("rank", rank, "lower", SHARE, "after PerturBench (Wu et al. 2024)", "needs_all"),
    ("spread", spread, "higher", POSITIVE, "standard; 1 is the spread of the truth, above 1 is too much", "whole_set"),
)  # fmt: skip
