"""Departure of several genes together from the sum of their effects: a factor on that sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import linalg
from scipy.optimize import minimize

from gears.priors.kernels import GeneSimilarity, sizes_of

LEAST_SETS = 8
_CORRELATED_GENES = 5.0  # how many genes carry the information of one: their residuals are correlated
_LARGEST = 4.0
_PRIOR_SD = 3.0


@dataclass(frozen=True)
class Magnitude:
    """Synergy and suppression as a property of the genes.

    The factor of a set of two or more genes is ``1 + offset + 2 mean_j tendency_j``, kept
    between 0 and 4; it is 1 for a single gene. It does not depend on the order of the genes.

    Attributes
    ----------
    offset
        Common to all sets.
    own, similar
        Variance of a gene's own tendency and of that shared with similar genes.
    coefficient_T
        Coefficients over the trained nodes, (T,).
    """

    offset: float
    own: float
    similar: float
    coefficient_T: np.ndarray

    def factor(self, sets: Sequence[Sequence[int]], genes: GeneSimilarity) -> np.ndarray:
        """Factor of each set, (U,) float64."""
        size_U = sizes_of(sets)
        members_UT = self.own * genes.membership(sets) + self.similar * genes.similarity(sets)
        tendency_U = members_UT @ self.coefficient_T * 2 / np.maximum(size_U, 1)
        return np.where(size_U > 1, np.clip(1 + self.offset + tendency_U, 0, _LARGEST), 1.0)


def fit_magnitude(
    sets: Sequence[Sequence[int]], delta_CG: np.ndarray, summed_CG: np.ndarray, genes: GeneSimilarity
) -> tuple[Magnitude, np.ndarray] | None:
    """A Gaussian process over the factors of the training sets of several genes.

    Parameters
    ----------
    sets
        Nodes of each training condition.
    delta_CG
        Their changes.
    summed_CG
        What their genes' effects add up to, predicted without the condition itself.
    genes
        Similarity of genes.

    Returns
    -------
    tuple or None
        The fit, and the factor of each training condition without itself, (C,); None with
        fewer than 8 sets of several genes.
    """
    rows = np.array([row for row, nodes in enumerate(sets) if len(nodes) > 1], dtype=np.int64)
    size_of_sum = (summed_CG[rows] ** 2).sum(axis=1)
    rows, size_of_sum = rows[size_of_sum > 0], size_of_sum[size_of_sum > 0]
    if len(rows) < LEAST_SETS:
        return None
    factor_S = (delta_CG[rows] * summed_CG[rows]).sum(axis=1) / size_of_sum
    residual_SG = delta_CG[rows] - factor_S[:, None] * summed_CG[rows]
    error_S = _CORRELATED_GENES * (residual_SG**2).mean(axis=1) / size_of_sum
    chosen = [sets[row] for row in rows]
    half_ST = genes.membership(chosen) * (2 / sizes_of(chosen))[:, None]
    near_ST = genes.similarity(chosen) * (2 / sizes_of(chosen))[:, None]
    alike = near_ST @ half_ST.T
    parts = [np.ones((len(rows), len(rows))), half_ST @ half_ST.T, (alike + alike.T) / 2]
    departure_S = factor_S - 1
    weight, inverse = _settle(departure_S, error_S, parts)
    solved_S = inverse @ departure_S
    fit = Magnitude(float(weight[0] * solved_S.sum()), weight[1], weight[2], half_ST.T @ solved_S)
    left_out_C = np.ones(len(sets))
    left_out_C[rows] = np.clip(1 + departure_S - solved_S / np.diag(inverse), 0, _LARGEST)
    return fit, left_out_C


def _settle(
    departure_S: np.ndarray, error_S: np.ndarray, parts: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Weights of the parts by evidence, and the inverse of the covariance that they make."""
    scale = max(float(departure_S.var()), 1e-6)

    def covariance(log_weights: np.ndarray) -> np.ndarray:
        weight = scale * np.exp(log_weights)
        total = sum(w * part for w, part in zip(weight[:-1], parts, strict=True))
        return np.asarray(total + np.diag(error_S + weight[-1]))

    def negative_evidence(log_weights: np.ndarray) -> float:
        factor = linalg.cholesky(covariance(log_weights), lower=True)
        white = linalg.solve_triangular(factor, departure_S, lower=True)
        penalty = 0.5 * ((log_weights / _PRIOR_SD) ** 2).sum()
        return float(np.log(np.diag(factor)).sum() + 0.5 * white @ white + penalty)

    n = len(parts) + 1
    found = minimize(negative_evidence, np.full(n, -1.0), method="L-BFGS-B", bounds=[(-8, 3)] * n)
    return scale * np.exp(found.x[:-1]), np.linalg.inv(covariance(found.x))
