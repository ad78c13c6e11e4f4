"""Row-wise arithmetic of the metrics: one row per condition, NaN for undefined rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# A prediction in float32 has rounding errors of this relative size (two roundings: the
# value and its origin); smaller changes are set to 0.
RESOLUTION = 2.0 * float(np.finfo(np.float32).eps)
TIE = 1e-9  # cosine distances nearer than this are equal: matrix products round rows differently


def changes(values_UG: np.ndarray, origin_G: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Differences to an origin, (G,) or one per row (U, G), with mere float32 rounding set to exactly 0.

    Returns the differences, and per row the largest difference that rounding alone can make.
    """
    size_UG = np.maximum(np.abs(values_UG), np.abs(origin_G))
    change_UG = values_UG - origin_G
    change_UG = np.where(np.abs(change_UG) <= RESOLUTION * size_UG, 0.0, change_UG)
    return change_UG, RESOLUTION * size_UG.max(axis=1, initial=0.0)


def own_noise(values_UG: np.ndarray) -> np.ndarray:
    """Per row, the largest difference between equal values that float32 rounding can make."""
    return RESOLUTION * np.abs(values_UG).max(axis=1, initial=0.0)


def padded(index_lists: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Gene lists of unequal length as one padded index array (U, K), and the mask of its real entries, (U, K)."""
    width = max((len(genes) for genes in index_lists), default=0)
    index_UK = np.zeros((len(index_lists), width), dtype=np.int64)
    present_UK = np.zeros((len(index_lists), width), dtype=bool)
    for row, genes in enumerate(index_lists):
        index_UK[row, : len(genes)] = genes
        present_UK[row, : len(genes)] = True
    return index_UK, present_UK


def weighted_rows(values_UK: np.ndarray, weight_UK: np.ndarray) -> np.ndarray:
    """Weighted mean of each row; NaN for a row without weight."""
    total_U = weight_UK.sum(axis=1)
    sum_U = (weight_UK * values_UK).sum(axis=1)
    return np.divide(sum_U, total_U, out=np.full(len(values_UK), np.nan), where=total_U > 0)


def mean_rows(values_UK: np.ndarray, present_UK: np.ndarray | None = None) -> np.ndarray:
    """Mean of each row over its present entries, by default all; NaN for a row without any."""
    if present_UK is None:
        count_U, total_U = np.full(*values_UK.shape), values_UK.sum(axis=1)
    else:
        count_U, total_U = present_UK.sum(axis=1), np.where(present_UK, values_UK, 0.0).sum(axis=1)
    return np.divide(total_U, count_U, out=np.full(len(values_UK), np.nan), where=count_U > 0)


def pearson_rows(
    a_UK: np.ndarray,
    b_UK: np.ndarray,
    present_UK: np.ndarray | None = None,
    *,
    noise_a: np.ndarray | None = None,
    noise_b: np.ndarray | None = None,
) -> np.ndarray:
    """Pearson correlation of each row of `a_UK` with the same row of `b_UK`, over entries that are present (all).

    A row that is constant (its range is at most `noise`, 0 by default) on
    either side has no correlation: NaN, as has a row with fewer than two entries.
    """
    n_present_U = np.full(*a_UK.shape) if present_UK is None else present_UK.sum(axis=1)
    defined_U = (n_present_U > 1) & ~_constant(a_UK, present_UK, noise_a)
    defined_U &= ~_constant(b_UK, present_UK, noise_b)
    a_UK = a_UK - mean_rows(a_UK, present_UK)[:, None]
    b_UK = b_UK - mean_rows(b_UK, present_UK)[:, None]
    if present_UK is not None:  # entries that are not present are 0 after centring, and so in no sum
        a_UK, b_UK = np.where(present_UK, a_UK, 0.0), np.where(present_UK, b_UK, 0.0)
    norm_U = np.sqrt((a_UK**2).sum(axis=1)) * np.sqrt((b_UK**2).sum(axis=1))
    defined_U &= norm_U > 0
    r_U = np.divide((a_UK * b_UK).sum(axis=1), norm_U, out=np.full(len(a_UK), np.nan), where=defined_U)
    return np.clip(r_U, -1.0, 1.0)


def _constant(values_UK: np.ndarray, present_UK: np.ndarray | None, noise_U: np.ndarray | None) -> np.ndarray:
    is_present_UK = True if present_UK is None else present_UK
    high_U = values_UK.max(axis=1, initial=-np.inf, where=is_present_UK)
    low_U = values_UK.min(axis=1, initial=np.inf, where=is_present_UK)
    # without entries -inf - inf, constant as well
    return high_U - low_U <= (0.0 if noise_U is None else noise_U)


def adjusted(p_UG: np.ndarray) -> np.ndarray:
    """Adjusted p-values of Benjamini and Hochberg along the last axis; an undefined p counts as 1.

    The smallest ``p_k G / k`` over a gene and all genes of larger p, where p_k is the k-th smallest. The same values as
    ``scipy.stats.false_discovery_control``, without the import of all statistics that a worker does without.
    """
    filled_UG = np.where(np.isnan(p_UG), 1.0, p_UG)
    n_genes = filled_UG.shape[-1]
    order_UG = np.argsort(filled_UG, axis=-1)
    scaled_UG = np.take_along_axis(filled_UG, order_UG, axis=-1) * n_genes / np.arange(1, n_genes + 1)
    # the adjusted values of ascending p must not fall: from the largest p down, the least so far
    smallest_UG = np.minimum.accumulate(scaled_UG[..., ::-1], axis=-1)[..., ::-1]
    adjusted_UG = np.empty_like(filled_UG)
    np.put_along_axis(adjusted_UG, order_UG, np.minimum(smallest_UG, 1.0), axis=-1)
    return adjusted_UG


def place_among(values_UV: np.ndarray, own_U: np.ndarray, tie: float = 0.0) -> np.ndarray:
    """Number of values of each row below the one in column `own_U`, plus half of the others within `tie`, (U,)."""
    own_U1 = np.take_along_axis(values_UV, own_U[:, None], axis=1)
    below_U = (values_UV < own_U1 - tie).sum(axis=1)
    tied_U = (np.abs(values_UV - own_U1) <= tie).sum(axis=1) - 1
    return below_U + 0.5 * tied_U
