"""Gaussian-process regression with an own signal strength for each gene."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import linalg

STRENGTHS = np.exp(np.linspace(np.log(1 / 64), np.log(64), 13))
"""Strengths that a gene's signal may have, relative to the average gene's."""
_ROUNDS = 30


@dataclass(frozen=True)
class Solution:
    """Coefficients of the predictions, and what is predicted for each condition without itself.

    Attributes
    ----------
    coefficient_CG
        With covariance k (U, C) to new conditions the prediction is ``level_G + k @ coefficient_CG``.
    left_out_CG
        Left-one-out predictions, at the same strengths.
    level_G
        What all conditions share: not shrunk, since few conditions tell it well.
    """

    coefficient_CG: np.ndarray
    left_out_CG: np.ndarray
    level_G: np.ndarray


def solve(
    delta_CG: np.ndarray, signal_CC: np.ndarray, noise_C: np.ndarray, noise_G: np.ndarray
) -> Solution:
    """Gaussian-process regression of every gene around a level of its own (generalised least squares).

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
    """
    root_C = np.sqrt(noise_C)
    precision = float((1 / noise_C).sum())
    whitened_CC = signal_CC / np.outer(root_C, root_C)
    contrasts_CK = _contrasts(1 / root_C)
    values, vectors = linalg.eigh(contrasts_CK.T @ whitened_CC @ contrasts_CK)
    values, vectors = np.maximum(values, 0.0), contrasts_CK @ vectors
    rotated_KG = vectors.T @ (delta_CG / root_C[:, None])
    share_MG = _strength_shares(rotated_KG, values, noise_G)
    coefficient_CG, left_out_CG = np.zeros_like(delta_CG), np.zeros_like(delta_CG)
    squared = vectors**2
    for strength, share_G in zip(STRENGTHS, share_MG, strict=True):
        variance_KG = strength * values[:, None] + noise_G
        solved_CG = vectors @ (rotated_KG / variance_KG)
        diagonal_CG = squared @ (1 / variance_KG)
        left_out_CG += share_G * (delta_CG - root_C[:, None] * solved_CG / diagonal_CG)
        coefficient_CG += share_G * strength * solved_CG / root_C[:, None]
    level_G = (1 / noise_C) @ (delta_CG - signal_CC @ coefficient_CG) / precision
    return Solution(coefficient_CG, left_out_CG, level_G)


def _contrasts(level_C: np.ndarray) -> np.ndarray:
    """Orthonormal directions orthogonal to one, (C, C - 1)."""
    return np.asarray(linalg.qr(level_C[:, None])[0][:, 1:])


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
    return weight_MG
