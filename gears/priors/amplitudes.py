"""Gaussian-process regression with an own signal strength for each gene."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import linalg

STRENGTHS = np.exp(np.linspace(np.log(1 / 64), np.log(64), 13))
"""Strengths that a gene's signal may have, relative to the average gene's."""
_ROUNDS = 30
_LEAST_SHARE = 1e-3  # of a strength for a gene: less is not worth the product of matrices


@dataclass(frozen=True)
class Solution:
    """Coefficients of the predictions, and what is predicted for each condition without itself.

    Attributes
    ----------
    coefficient_CG
        With covariance k (U, C) to new conditions the prediction is ``level_G + k @ coefficient_CG``, k
        without the level's.
    left_out_CG
        Left-one-out predictions, at the same strengths.
    level_G
        What all conditions share.
    """

    coefficient_CG: np.ndarray
    left_out_CG: np.ndarray
    level_G: np.ndarray


def solve(
    delta_CG: np.ndarray,
    signal_CC: np.ndarray,
    noise_C: np.ndarray,
    noise_G: np.ndarray,
    level: float | None = None,
) -> Solution:
    """Gaussian-process regression of every gene around a level of its own.

    Gene g's departures from its level have covariance ``strength_g signal_CC + noise_G[g] diag(noise_C)``. The
    strength of each gene is weighed over :data:`STRENGTHS` by its likelihood and how common a
    strength is among the genes (empirical Bayes): genes without signal shrink to zero, strong
    ones hardly.

    Parameters
    ----------
    delta_CG
        Changes, (C, G), of at least two conditions.
    signal_CC
        Covariance of the conditions' signal.
    noise_C, noise_G
        Sampling variance is ``noise_C[c] * noise_G[g]``, all above zero.
    level
        Variance of the level, which is then shrunk by the gene's strength as the signal is; None leaves
        it free (generalised least squares).
    """
    root_C = np.sqrt(noise_C)
    whitened_CC = (signal_CC + (level or 0.0)) / np.outer(root_C, root_C)
    if level is None:
        values, vectors = _eigen_of_contrasts(whitened_CC, 1 / root_C)
    else:
        values, vectors = _eigh(whitened_CC)
        values = np.maximum(values, 0.0)
    rotated_KG = vectors.T @ (delta_CG / root_C[:, None])
    share_MG = _strength_shares(rotated_KG, values, noise_G)
    coefficient_CG, left_out_CG = np.zeros_like(delta_CG), np.zeros_like(delta_CG)
    squared = vectors**2
    for strength, share_G in zip(STRENGTHS, share_MG, strict=True):
        at = np.flatnonzero(share_G)
        if not len(at):
            continue
        share_N = share_G[at]
        variance_KN = strength * values[:, None] + noise_G[at]
        solved_CN = vectors @ (rotated_KG[:, at] / variance_KN)
        diagonal_CN = squared @ (1 / variance_KN)
        left_out_CG[:, at] += share_N * (delta_CG[:, at] - root_C[:, None] * solved_CN / diagonal_CN)
        coefficient_CG[:, at] += share_N * strength * solved_CN / root_C[:, None]
    if level is None:
        level_G = (1 / noise_C) @ (delta_CG - signal_CC @ coefficient_CG) / (1 / noise_C).sum()
    else:
        level_G = level * coefficient_CG.sum(axis=0)
    return Solution(coefficient_CG, left_out_CG, level_G)


def _eigen_of_contrasts(covariance_CC: np.ndarray, level_C: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues (C - 1,) and vectors (C, C - 1) of a covariance within what is orthogonal to a level.

    By the reflection that takes the level to the first axis, so that nothing but the eigenvalues costs C^3.
    """
    mirror_C = level_C / np.linalg.norm(level_C)
    mirror_C[0] += np.copysign(1.0, mirror_C[0])
    mirror_C /= np.linalg.norm(mirror_C)
    product_C = covariance_CC @ mirror_C
    product_C -= (mirror_C @ product_C) * mirror_C
    cross = np.outer(2 * mirror_C, product_C)
    values, inner = _eigh((covariance_CC - cross - cross.T)[1:, 1:])
    vectors = np.vstack([np.zeros((1, inner.shape[1])), inner])
    vectors -= np.outer(2 * mirror_C, mirror_C @ vectors)
    return np.maximum(values, 0.0), vectors


def _eigh(matrix_CC: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues and vectors; the fastest method fails where very many eigenvalues are alike, another then does it."""
    try:
        return linalg.eigh(matrix_CC)
    except linalg.LinAlgError:
        return linalg.eigh(matrix_CC, driver="evd")


def _strength_shares(rotated_CG: np.ndarray, values_C: np.ndarray, noise_G: np.ndarray) -> np.ndarray:
    """Posterior weight of each strength for each gene, (M, G); columns sum to 1."""
    log_MG = np.empty((len(STRENGTHS), rotated_CG.shape[1]))
    for row, strength in enumerate(STRENGTHS):
        variance_CG = strength * values_C[:, None] + noise_G
        log_MG[row] = -0.5 * (np.log(variance_CG) + rotated_CG**2 / variance_CG).sum(axis=0)
    common_M = np.full(len(STRENGTHS), 1 / len(STRENGTHS))
    for _ in range(_ROUNDS):
        weight_MG = log_MG + np.log(common_M)[:, None]
        weight_MG = np.exp(weight_MG - weight_MG.max(axis=0))
        weight_MG /= weight_MG.sum(axis=0)
        common_M = (weight_MG.sum(axis=1) + 1) / (weight_MG.shape[1] + len(STRENGTHS))
    weight_MG[weight_MG < _LEAST_SHARE] = 0.0
    return weight_MG / weight_MG.sum(axis=0)
