"""Gaussian-process regression with an own signal strength for each gene."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gears.priors.spectrum import Spectrum

STRENGTHS = np.exp(np.linspace(np.log(1 / 64), np.log(64), 13))
"""Strengths that a gene's signal may have, relative to the average gene's."""
_ROUNDS = 30
_BLOCK_VALUES = 1 << 23  # conditions x genes of a block
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
    return solve_in(Spectrum.of(signal_CC, noise_C, level), delta_CG, noise_G)


def solve_in(spectrum: Spectrum, delta_CG: np.ndarray, noise_G: np.ndarray) -> Solution:
    """:func:`solve` by a covariance's eigenvalues; block of genes by block, whose tables are small."""
    noise_G = noise_G * spectrum.noise
    blocks = _gene_blocks(delta_CG)
    rotated_KG = np.empty((len(spectrum.values_K), delta_CG.shape[1]))
    log_MG = np.empty((len(STRENGTHS), delta_CG.shape[1]))
    for genes in blocks:
        rotated_KG[:, genes], log_MG[:, genes] = _likelihood(spectrum, delta_CG[:, genes], noise_G[genes])
    share_MG = _strength_shares(log_MG)
    coefficient_CG, left_out_CG = np.empty_like(delta_CG), np.empty_like(delta_CG)
    squared_CK, across_C = spectrum.vectors_CK**2, spectrum.across_C
    for genes in blocks:
        part = _Part(spectrum, delta_CG[:, genes], rotated_KG[:, genes], noise_G[genes], squared_CK, across_C)
        coefficient_CG[:, genes], left_out_CG[:, genes] = part.solved(share_MG[:, genes])
    return Solution(coefficient_CG, left_out_CG, spectrum.level_of(delta_CG, coefficient_CG))


def _gene_blocks(delta_CG: np.ndarray) -> list[slice]:
    n_genes = delta_CG.shape[1]
    step = max(1, _BLOCK_VALUES // len(delta_CG))
    return [slice(start, min(start + step, n_genes)) for start in range(0, n_genes, step)]


def _likelihood(
    spectrum: Spectrum, delta_CN: np.ndarray, noise_N: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Values along the vectors (K, N), and the log-likelihood of each strength for each gene (M, N)."""
    white_CN = delta_CN / spectrum.root_C[:, None]
    rotated_KN = spectrum.vectors_CK.T @ white_CN
    rest_N = (spectrum.across(white_CN, rotated_KN) ** 2).sum(axis=0) if spectrum.n_rest else None
    log_MN = np.empty((len(STRENGTHS), len(noise_N)))
    for row, strength in enumerate(STRENGTHS):
        variance_KN = strength * spectrum.values_K[:, None] + noise_N
        log_MN[row] = -0.5 * (np.log(variance_KN) + rotated_KN**2 / variance_KN).sum(axis=0)
        if rest_N is not None:
            variance_N = strength * spectrum.rest + noise_N
            log_MN[row] -= 0.5 * (spectrum.n_rest * np.log(variance_N) + rest_N / variance_N)
    return rotated_KN, log_MN


@dataclass(frozen=True)
class _Part:
    """The regression of some genes."""

    spectrum: Spectrum
    delta_CN: np.ndarray
    rotated_KN: np.ndarray
    noise_N: np.ndarray
    squared_CK: np.ndarray
    across_C: np.ndarray

    def solved(self, share_MN: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients and left-one-out predictions, weighed over the strengths."""
        spectrum, delta_CN = self.spectrum, self.delta_CN
        root_C1 = spectrum.root_C[:, None]
        coefficient_CN, left_out_CN = np.zeros_like(delta_CN), np.zeros_like(delta_CN)
        rest_CN = spectrum.across(delta_CN / root_C1, self.rotated_KN) if spectrum.n_rest else None
        for strength, share_N in zip(STRENGTHS, share_MN, strict=True):
            at = np.flatnonzero(share_N)
            if not len(at):
                continue
            share_A = share_N[at]
            variance_KA = strength * spectrum.values_K[:, None] + self.noise_N[at]
            solved_CA = spectrum.vectors_CK @ (self.rotated_KN[:, at] / variance_KA)
            diagonal_CA = self.squared_CK @ (1 / variance_KA)
            if rest_CN is not None:
                variance_A = strength * spectrum.rest + self.noise_N[at]
                solved_CA += rest_CN[:, at] / variance_A
                diagonal_CA += np.outer(self.across_C, 1 / variance_A)
            left_out_CN[:, at] += share_A * (delta_CN[:, at] - root_C1 * solved_CA / diagonal_CA)
            coefficient_CN[:, at] += share_A * strength * solved_CA / root_C1
        return coefficient_CN, left_out_CN


def _strength_shares(log_MG: np.ndarray) -> np.ndarray:
    """Posterior weight of each strength for each gene, (M, G), from their log-likelihoods; columns sum to 1."""
    common_M = np.full(len(STRENGTHS), 1 / len(STRENGTHS))
    for _ in range(_ROUNDS):
        weight_MG = log_MG + np.log(common_M)[:, None]
        weight_MG = np.exp(weight_MG - weight_MG.max(axis=0))
        weight_MG /= weight_MG.sum(axis=0)
        common_M = (weight_MG.sum(axis=1) + 1) / (weight_MG.shape[1] + len(STRENGTHS))
    weight_MG[weight_MG < _LEAST_SHARE] = 0.0
    return weight_MG / weight_MG.sum(axis=0)
