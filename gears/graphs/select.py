"""The strongest neighbours of each target: one rule for every kind of graph."""

from __future__ import annotations

import itertools

import numpy as np

SLACK = 1e-6
"""Twice the error of a weight that is computed in float32, or in another order."""
_GROUPS_PER_SOURCE = 8


def check_selection(threshold: float, k: int) -> None:
    """Refuse a threshold outside 0 to 1 and a negative or fractional k."""
    if not 0 <= threshold <= 1:
        msg = f"threshold={threshold}: expected a number from 0 to 1"
        raise ValueError(msg)
    if not isinstance(k, int | np.integer) or isinstance(k, bool) or k < 0:
        msg = f"k={k!r}: expected a whole number, 0 or more"
        raise ValueError(msg)


def name_order(names: list[str] | tuple[str, ...]) -> np.ndarray:
    """Positions of names in sorted order; repeated names are refused."""
    order = np.array(sorted(range(len(names)), key=names.__getitem__), dtype=np.int64)
    for left, right in itertools.pairwise(order):
        if names[left] == names[right]:
            msg = f"gene names of a graph must be unique; found {names[left]!r} more than once"
            raise ValueError(msg)
    return order


def candidates(
    weight_TS: np.ndarray, threshold: float, k: int, slack: float | np.ndarray = SLACK
) -> tuple[np.ndarray, np.ndarray]:
    """Entries that may be among the `k` largest of their row and above `threshold`, up to an error of the weights.

    Parameters
    ----------
    weight_TS
        (targets, sources) float32 or float64, at most 1, not negative but for -inf where nothing may be chosen.
    slack
        How far below the k-th largest and the threshold an entry may lie, a number or (targets, sources): twice the
        error of a weight.

    Returns
    -------
    target, source
        Row and column indices. :func:`strongest` decides among them from exact weights.
    """
    n_targets, n_sources = weight_TS.shape
    if k == 0 or n_sources == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    # The sources are dealt into groups. The k-th largest of the groups' maxima is no larger than the k-th largest
    # of the row, mostly nearly as large, and costs one pass instead of a partition of the row.
    n_groups = min(_GROUPS_PER_SOURCE * k, n_sources)
    n_dealt = n_sources - n_sources % n_groups
    highest_TU = weight_TS[:, :n_dealt].reshape(n_targets, -1, n_groups).max(axis=1)
    rest_TU = highest_TU[:, : n_sources - n_dealt]
    np.maximum(rest_TU, weight_TS[:, n_dealt:], out=rest_TU)
    at = n_groups - min(k, n_groups)
    floor_T = np.maximum(np.partition(highest_TU, at, axis=1)[:, at], threshold)
    flat = np.flatnonzero(weight_TS >= floor_T[:, None] - slack)
    return np.divmod(flat, n_sources)


def strongest(
    target: np.ndarray, source: np.ndarray, weight: np.ndarray, threshold: float, k: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each target's entries the `k` largest above `threshold`; of equal ones those of the first sources.

    Callers number the sources by gene name, so that ties are broken by name.

    Parameters
    ----------
    target, source, weight
        (E,) entries in any order.

    Returns
    -------
    target, source, weight
        What is kept, by target, strongest first.
    """
    by_place = np.argsort(
        target * (source.max(initial=0) + 1) + source, kind="stable"
    )  # quick where it is so already
    target, source, weight = target[by_place], source[by_place], weight[by_place]
    order = np.lexsort((-weight, target))
    order = order[weight[order] > threshold]
    target, source, weight = target[order], source[order], weight[order]
    rank = np.arange(len(target)) - np.searchsorted(target, target)
    keep = rank < k
    return target[keep], source[keep], weight[keep]
