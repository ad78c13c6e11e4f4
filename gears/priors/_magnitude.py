"""Properties of conditions that follow their genes: the departure of several genes from the sum, and the effect size.

The size of a condition is the root mean square over genes of its change, without sampling noise. Its logarithm, minus
half the logarithm of the number of genes (effects of several genes add up as squares), is a mean of tendencies of the
genes (:class:`Tendency`). How much of its variance follows genes and similar genes is chosen by
the log score of predictions from the other conditions; nothing does where that is not better by a :func:`margin`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import linalg, sparse

from gears.priors._evidence import sample
from gears.priors._kernels import CORRELATED_GENES, MOST_EXACT, GeneSimilarity, gene_features, sizes_of

LEAST_SETS = 8
_LARGEST = 4.0
_PRIOR_SD = 3.0
_MOST_FITTED = 1000  # sets that weights, or the process of sizes, are fitted to: a fixed sample of more
_MARGIN = 0.02  # log score per condition
_SIGNAL_SHARES = (0.25, 0.5, 0.75, 0.9)  # of the variance of log sizes
_SIMILAR_SHARES = (0.0, 0.5, 1.0)  # of the signal, that similar genes share
_MOST_TRIED = 200  # conditions that these shares are chosen by
_LEVEL = 4.0  # variance of the level, in units of the variance of log sizes: hardly shrunk


@dataclass(frozen=True)
class Tendency:
    """A property of conditions that is the mean of their genes' tendencies, a Gaussian process over genes.
    ::

        value = offset + 2 mean_j tendency_j

    with ``tendency_j = own coefficient_j + similar sum_t similarity_jt coefficient_t`` over the genes t perturbed in
    training. It does not depend on the order of the genes.
    """

    offset: float  # common to all conditions
    # own, similar: variance of a gene's specific tendency and of the part shared with similar genes
    own: float
    similar: float
    coefficient_T: np.ndarray  # coefficients over the trained nodes, (T,)

    def __call__(self, sets: Sequence[Sequence[int]], genes: GeneSimilarity) -> np.ndarray:
        """Value of each set, (U,) float64."""
        members_UT = self.own * genes.membership(sets) + self.similar * genes.similarity(sets)
        return self.offset + members_UT @ self.coefficient_T * 2 / np.maximum(sizes_of(sets), 1)


@dataclass(frozen=True)
class Magnitude(Tendency):
    """Synergy and suppression as a property of the genes.

    The factor of a set of two or more genes is 1 + its tendency, kept between 0 and 4; it is 1 for a single gene.
    """

    def factor(self, sets: Sequence[Sequence[int]], genes: GeneSimilarity) -> np.ndarray:
        """Factor of each set, (U,) float64."""
        return np.where(sizes_of(sets) > 1, np.clip(1 + self(sets, genes), 0, _LARGEST), 1.0)


def fit_magnitude(
    sets: Sequence[Sequence[int]], delta_CG: np.ndarray, summed_CG: np.ndarray, genes: GeneSimilarity
) -> tuple[Magnitude, np.ndarray] | None:
    """A Gaussian process over the factors of the training sets of several genes.

    `summed_CG` are the sums of the genes' effects, predicted from the other conditions. Returns the fit, and the factor
    of each training condition predicted from the others, (C,); None with fewer than 8 sets of several genes.
    """
    rows = np.array([row for row, nodes in enumerate(sets) if len(nodes) > 1], dtype=np.int64)
    factor_S, error_S = _factors(delta_CG, summed_CG, rows)
    defined = np.isfinite(factor_S)
    rows, factor_S, error_S = rows[defined], factor_S[defined], error_S[defined]
    if len(rows) < LEAST_SETS:
        return None
    # a combination that several settings measured counts once, so that none of them tells of the others
    row_of: dict[tuple[int, ...], int] = {}
    set_S = np.array([row_of.setdefault(tuple(sorted(sets[row])), len(row_of)) for row in rows], dtype=np.int64)
    if len(row_of) < len(rows):
        weight_S = 1 / np.maximum(error_S, np.finfo(float).tiny)
        total_D = np.bincount(set_S, weight_S)
        factor_S, error_S = np.bincount(set_S, weight_S * factor_S) / total_D, 1 / total_D
        if len(row_of) < LEAST_SETS:
            return None
    multiple_sets = [sets[rows[first]] for first in np.unique(set_S, return_index=True)[1].tolist()]
    weight, unexplained = _fit_weights(factor_S - 1, error_S, multiple_sets, genes)
    found, left_out_S = solve_tendency(factor_S - 1, error_S + unexplained, multiple_sets, genes, weight.tolist())
    left_out_C = np.ones(len(sets))
    left_out_C[rows] = np.clip(1 + left_out_S, 0, _LARGEST)[set_S]
    return Magnitude(found.offset, found.own, found.similar, found.coefficient_T), left_out_C


def solve_tendency(
    value_S: np.ndarray,
    noise_S: np.ndarray,
    sets: Sequence[Sequence[int]],
    genes: GeneSimilarity,
    weight: Sequence[float],
) -> tuple[Tendency, np.ndarray]:
    """Gaussian-process regression of a property of sets.

    `weight` are the variances of the offset, of a gene's own tendency and of the similar genes' part, `noise_S` the
    variance of each value around these. Returns the fit, and each value predicted from the others, (S,).
    """
    if len(sets) <= MOST_EXACT:
        solved_S, diagonal_S = solve_kernels(value_S, noise_S, tendency_kernels(sets, genes), weight)
    else:
        solved_S, diagonal_S = _by_features(value_S, noise_S, sets, genes, weight)
    coefficient_T = _doubled_shares(sets, genes).T @ solved_S
    fit = Tendency(float(weight[0] * solved_S.sum()), float(weight[1]), float(weight[2]), coefficient_T)
    return fit, value_S - solved_S / diagonal_S


def _factors(delta_CG: np.ndarray, summed_CG: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Best factor on the sum for each of some conditions, and its variance; NaN where the sum is zero."""
    factor_S, error_S = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
    for index, row in enumerate(rows.tolist()):
        size = float(summed_CG[row] @ summed_CG[row])
        if size > 0:
            factor_S[index] = float(delta_CG[row] @ summed_CG[row]) / size
            residual_G = delta_CG[row] - factor_S[index] * summed_CG[row]
            error_S[index] = CORRELATED_GENES * float((residual_G**2).mean()) / size
    return factor_S, error_S


def _doubled_shares(sets: Sequence[Sequence[int]], genes: GeneSimilarity) -> sparse.csr_matrix:
    """Twice each gene's share of its set, (S, T)."""
    return sparse.csr_matrix(sparse.diags(2 / sizes_of(sets)) @ genes.members(sets))


def tendency_kernels(sets: Sequence[Sequence[int]], genes: GeneSimilarity) -> list[np.ndarray]:
    """Covariances of a property of sets: common to all, by their genes, by similar genes, (S, S) each."""
    half_ST = _doubled_shares(sets, genes)
    near_ST = genes.similarity(sets) * (2 / sizes_of(sets))[:, None]
    similar_SS = near_ST @ half_ST.T
    own_SS = np.asarray((half_ST @ half_ST.T).toarray())
    return [np.ones((len(sets), len(sets))), own_SS, np.asarray(similar_SS + similar_SS.T) / 2]


def solve_kernels(
    departure_S: np.ndarray, noise_S: np.ndarray, kernels: Sequence[np.ndarray], weight: Sequence[float]
) -> tuple[np.ndarray, np.ndarray]:
    """Solution of the departures, and diagonal of the inverse, of a weighted sum of covariances and noise."""
    covariance = sum(w * kernel for w, kernel in zip(weight, kernels, strict=True))
    inverse = np.linalg.inv(covariance + np.diag(noise_S))
    return inverse @ departure_S, np.diag(inverse)


def _by_features(
    departure_S: np.ndarray,
    noise_S: np.ndarray,
    sets: Sequence[Sequence[int]],
    genes: GeneSimilarity,
    weight: Sequence[float],
) -> tuple[np.ndarray, np.ndarray]:
    """The same from features of genes, for very many sets."""
    features = gene_features(_doubled_shares(sets, genes), genes, 0.0, weight[1], weight[2])
    feature_SM = np.hstack([np.full((len(sets), 1), np.sqrt(weight[0])), features.feature_CM])
    noise_S = noise_S + features.rest_C
    scaled_SM = feature_SM / noise_S[:, None]
    inner_MM = feature_SM.T @ scaled_SM
    inner_MM[np.diag_indices(len(inner_MM))] += 1.0
    factor = linalg.cho_factor(inner_MM)
    solved_S = departure_S / noise_S - scaled_SM @ linalg.cho_solve(factor, scaled_SM.T @ departure_S)
    explained_S = np.einsum("sm,ms->s", scaled_SM, linalg.cho_solve(factor, scaled_SM.T))
    return solved_S, 1 / noise_S - explained_S


def _fit_weights(
    departure_S: np.ndarray, error_S: np.ndarray, sets: Sequence[Sequence[int]], genes: GeneSimilarity
) -> tuple[np.ndarray, float]:
    """Weights of the kernels and of unexplained variance, by evidence; from a fixed sample of very many sets."""
    from scipy.optimize import minimize  # a worker finds the prior in the cache, and does without it

    rows = sample(len(sets), _MOST_FITTED)
    departure_S, error_S = departure_S[rows], error_S[rows]
    kernels = tendency_kernels([sets[row] for row in rows.tolist()], genes)
    scale = max(float(departure_S.var()), 1e-6)

    def negative_evidence(log_weights: np.ndarray) -> float:
        weight = scale * np.exp(log_weights)
        total = sum(w * kernel for w, kernel in zip(weight[:-1], kernels, strict=True))
        factor = linalg.cholesky(total + np.diag(error_S + weight[-1]), lower=True)
        white = linalg.solve_triangular(factor, departure_S, lower=True)
        penalty = 0.5 * ((log_weights / _PRIOR_SD) ** 2).sum()
        return float(np.log(np.diag(factor)).sum() + 0.5 * white @ white + penalty)

    n = len(kernels) + 1
    optimum = minimize(negative_evidence, np.full(n, -1.0), method="L-BFGS-B", bounds=[(-8, 3)] * n)
    weight = scale * np.exp(optimum.x)
    return weight[:-1], float(weight[-1])


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
    for signal, similar in [(0.0, 0.0), *((one, other) for one in _SIGNAL_SHARES for other in _SIMILAR_SHARES)]:
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
