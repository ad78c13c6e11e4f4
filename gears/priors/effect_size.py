"""Log effect size of conditions: a Gaussian process over their genes, for genes that were never perturbed, too.

The size of a condition is the root mean square over genes of its change, without sampling noise. Its logarithm, minus
half the logarithm of the number of genes (effects of several genes add up as squares), is a mean of tendencies of the
genes (:class:`gears.priors.magnitude.Tendency`). How much of its variance follows genes and similar genes is chosen by
the log score of predictions from the other conditions; nothing does where that is not better by a :func:`margin`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gears.priors.evidence import sample
from gears.priors.kernels import GeneSimilarity, sizes_of
from gears.priors.magnitude import (
    CORRELATED_GENES,
    Tendency,
    solve_kernels,
    solve_tendency,
    tendency_kernels,
)

_MARGIN = 0.02  # log score per condition
_SIGNAL_SHARES = (0.25, 0.5, 0.75, 0.9)  # of the variance of log sizes
_SIMILAR_SHARES = (0.0, 0.5, 1.0)  # of the signal, that similar genes share
_MOST_TRIED = 200  # conditions that these shares are chosen by
_MOST_FITTED = 1000  # conditions that the process is fitted to, a fixed sample of more
_LEVEL = 4.0  # variance of the level, in units of the variance of log sizes: hardly shrunk


def log_size(square_CG: np.ndarray, noise_CG: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log root mean square over genes without sampling noise, and the variance of its estimate, (C,) each.

    `square_CG` are squared changes, `noise_CG` the sampling variances in them.
    """
    mean_C = (square_CG - noise_CG).mean(axis=1)
    variance_CG = 2 * noise_CG**2 + 4 * noise_CG * np.maximum(square_CG - noise_CG, 0)
    variance_C = variance_CG.mean(axis=1) * CORRELATED_GENES / square_CG.shape[1]
    # no smaller than its error: below, the logarithm would be that of chance
    mean_C = np.maximum(mean_C, np.sqrt(variance_C))
    tiny = np.finfo(float).tiny
    mean_C = np.maximum(mean_C, tiny)
    return 0.5 * np.log(mean_C), 0.25 * variance_C / np.maximum(mean_C**2, tiny)


def fit_size(
    log_size_C: np.ndarray, error_C: np.ndarray, sets: Sequence[Sequence[int]], genes: GeneSimilarity
) -> tuple[Tendency, np.ndarray]:
    """The process of log sizes, and each log size predicted from the other conditions, (C,).

    `log_size_C` and `error_C` are those of :func:`log_size`.
    """
    value_C = log_size_C - 0.5 * np.log(sizes_of(sets))
    mean = float(value_C.mean())
    departure_C = value_C - mean
    variance = max(float(departure_C.var()), 1e-6)
    rows = sample(len(sets), _MOST_TRIED)
    kernels = tendency_kernels([sets[row] for row in rows.tolist()], genes)
    best, most = (0.0, 0.0), -np.inf
    for signal, similar in [
        (0.0, 0.0),
        *((one, other) for one in _SIGNAL_SHARES for other in _SIMILAR_SHARES),
    ]:
        weight, noise_C = _variances(signal, similar, variance, error_C)
        solved_S, precision_S = solve_kernels(departure_C[rows], noise_C[rows], kernels, weight)
        score = log_score(solved_S / precision_S, 1 / precision_S) - margin(len(rows)) * (signal > 0)
        if score > most:
            best, most = (signal, similar), score
    weight, noise_C = _variances(*best, variance, error_C)
    rows = sample(len(sets), _MOST_FITTED)
    fitted_sets = [sets[row] for row in rows.tolist()]
    found, left_out_S = solve_tendency(departure_C[rows], noise_C[rows], fitted_sets, genes, weight)
    fit = Tendency(mean + found.offset, found.own, found.similar, found.coefficient_T)
    left_out_C = predicted_log_size(fit, sets, genes)
    left_out_C[rows] = mean + left_out_S + 0.5 * np.log(sizes_of(fitted_sets))
    return fit, left_out_C


def predicted_log_size(fit: Tendency, sets: Sequence[Sequence[int]], genes: GeneSimilarity) -> np.ndarray:
    """Log size of any conditions, (U,)."""
    return fit(sets, genes) + 0.5 * np.log(np.maximum(sizes_of(sets), 1))


def margin(n: int) -> float:
    """Log score per condition that one more term must gain over n conditions, more than chance gains on average."""
    return max(_MARGIN, 1 / n)


def log_score(error_S: np.ndarray, variance_S: np.ndarray) -> float:
    """Mean Gaussian log-likelihood of errors, with the variances multiplied by what fits best."""
    factor = max(float((error_S**2 / variance_S).mean()), np.finfo(float).tiny)
    return float(-0.5 * np.log(factor * variance_S).mean() - 0.5)


def _variances(
    signal: float, similar: float, variance: float, error_C: np.ndarray
) -> tuple[tuple[float, float, float], np.ndarray]:
    """Variances of level, own and similar part of half a log size, and of what genes do not explain, (C,)."""
    part = signal * variance / 4
    rest_C = np.maximum((1 - signal) * variance, error_C)
    return (_LEVEL * variance, (1 - similar) * part, similar * part), rest_C
