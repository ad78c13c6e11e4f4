"""Distance correlation (Szekely, Rizzo and Bakirov 2007), without ever holding all pairwise distances."""

from __future__ import annotations

import math

import numpy as np

BLOCK = 1024  # rows of distances that are held at once


def distance_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Distance correlation of two samples, between 0 and 1; 0 where one of them is constant.

    Parameters
    ----------
    a, b
        (n,) numbers or (n, d) points. Two samples of numbers take n log n
        steps (squared: n log^2 n), others n^2.

    Raises
    ------
    ValueError
        If the samples differ in length.

    Examples
    --------
    >>> round(distance_correlation([1.0, 2.0, 3.0], [2.0, 4.0, 6.0]), 12)
    1.0
    """
    a, b = _points(a), _points(b)
    if len(a) != len(b):
        msg = f"the samples have {len(a)} and {len(b)} points; expected the same number"
        raise ValueError(msg)
    variance = math.sqrt(max(_covariance(a, a), 0.0) * max(_covariance(b, b), 0.0))
    # a constant has no dependence; rounding of its distances is no variance
    scale = max(float(np.abs(a).max(initial=0.0) * np.abs(b).max(initial=0.0)), 1e-300)
    if variance <= 1e-14 * scale:
        return 0.0
    return min(math.sqrt(max(_covariance(a, b), 0.0) / variance), 1.0)


def _covariance(a: np.ndarray, b: np.ndarray) -> float:
    """Squared distance covariance (V-statistic)."""
    n = len(a)
    if a.shape[1] == b.shape[1] == 1:
        x, y = a[:, 0], b[:, 0]
        rows_a, rows_b, product = _row_sums(x), _row_sums(y), _sum_of_products(x, y)
    else:
        rows_a, rows_b, product = _in_blocks(a, b)
    mean_product = product / n**2
    return mean_product - 2 * float(rows_a @ rows_b) / n**3 + float(rows_a.sum()) * float(rows_b.sum()) / n**4


def _row_sums(x: np.ndarray) -> np.ndarray:
    """Sum over j of |x_i - x_j| for every i."""
    order = np.argsort(x, kind="stable")
    ordered = x[order]
    n, before = len(x), np.concatenate([[0.0], np.cumsum(ordered)[:-1]])
    place = np.arange(n)
    sums = np.empty(n)
    sums[order] = ordered * (2 * place - n) + ordered.sum() - 2 * before
    return sums


def _sum_of_products(x: np.ndarray, y: np.ndarray) -> float:
    """Sum over i, j of |x_i - x_j| |y_i - y_j| (after Huo and Szekely 2016).

    With points ordered by x the first factor has a known sign; the second
    has one as soon as it is known which earlier points have the smaller y.
    Those are summed by merging blocks of doubled length.
    """
    order = np.argsort(x, kind="stable")
    x, y = x[order] - x.mean(), y[order] - y.mean()
    n = len(x)
    weights = np.stack([np.ones(n), x, y, x * y])  # (4, n)
    earlier = np.cumsum(weights, axis=1) - weights
    below = np.zeros_like(earlier)  # the same sums over earlier points with smaller y
    place, width = np.arange(n), 1
    while width < n:
        block, right = place // (2 * width), (place // width) % 2 == 1
        ranked = np.lexsort((right, y, block))
        from_left = np.where(right[ranked], 0.0, weights[:, ranked])
        summed = np.cumsum(from_left, axis=1)
        start = np.searchsorted(block[ranked], block[ranked], side="left")
        within = summed - np.where(start > 0, summed[:, start - 1], 0.0)
        below[:, ranked] += np.where(right[ranked], within, 0.0)
        width *= 2

    def total(sums: np.ndarray) -> float:
        count, sum_x, sum_y, sum_xy = sums
        return float((count * x * y - x * sum_y - y * sum_x + sum_xy).sum())

    return 2 * (2 * total(below) - total(earlier))


def _in_blocks(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    rows_a, rows_b, product = np.empty(len(a)), np.empty(len(a)), 0.0
    for start in range(0, len(a), BLOCK):
        rows = slice(start, start + BLOCK)
        apart_a, apart_b = _apart(a[rows], a), _apart(b[rows], b)
        rows_a[rows], rows_b[rows] = apart_a.sum(axis=1), apart_b.sum(axis=1)
        product += float(np.einsum("ij,ij->", apart_a, apart_b))
    return rows_a, rows_b, product


def _apart(some: np.ndarray, points: np.ndarray) -> np.ndarray:
    from scipy.spatial.distance import cdist

    return cdist(some, points)


def _points(values: np.ndarray) -> np.ndarray:
    points = np.asarray(values, dtype=np.float64)
    return points[:, None] if points.ndim == 1 else points
