"""Gaussian-process regression with a separate signal strength for each gene.

For gene g, with changes y_g (C,), level m_g, signal covariance K (C, C) and diagonal noise N,

    y_g - m_g  ~  Normal(0, A_g),   A_g = s_g K + noise_g N,   prediction = m_g + s_g k A_g^-1 (y_g - m_g)

Only s_g and noise_g differ between genes. So K is divided by sqrt(N) on both sides and decomposed once, N^-1/2 K N^-1/2
= V diag(lambda) V'. Along an eigenvector the covariance of each gene and strength is then a number, s_g lambda_k +
noise_g, and inverse, determinant and likelihood are sums over k: C^3 once instead of for each of G genes and 13
strengths. A free level (generalised least squares) is removed by working in the C - 1 directions orthogonal to it.

The strength of a gene is averaged instead of chosen: each of :data:`STRENGTHS` has a posterior weight from its
likelihood and from how common it is among all genes. The prediction of a training condition from the others needs no
second fit: y_c - (A^-1 (y - m))_c / (A^-1)_cc.

Order of loops: blocks of genes for the likelihoods, (13, G); then the weights, which need all genes; then the same
blocks again, and in each the strengths. Changes along the eigenvectors, (K, G), are kept from the first loop; the
variances, (K, genes of a block) for each strength, are computed again, because those of 13 strengths need too much
memory.
The plain version solves the system of each gene and strength, and again without each condition in turn
(``tests/priors/test_prior_amplitudes.py``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gears.priors._kernels import Features, eigh

STRENGTHS = np.exp(np.linspace(np.log(1 / 64), np.log(64), 13))
"""Strengths that a gene's signal may have, relative to the average gene's: a factor of 2 apart."""
_ROUNDS = 30  # of empirical Bayes
_BLOCK_VALUES = 1 << 23  # conditions x genes of a block: 64 MiB for each of its tables
_LEAST_SHARE = 1e-3  # smaller weights of a strength become 0, which saves the matrix products for these genes
_FACTORS = 8  # values of a product whose logarithm is taken
_LEAST_VALUE = 1e-10  # eigenvalues below this share of the largest are rounding errors


@dataclass(frozen=True)
class Solution:
    """Coefficients of the predictions, and the prediction of each training condition from the others."""

    coefficient_CG: np.ndarray
    """With signal covariance k (U, C) of new and training conditions the prediction is ``level_G + k @
    coefficient_CG``."""
    # leave-one-out predictions, with the same weights of the strengths; without rows where not wanted
    left_out_CG: np.ndarray
    level_G: np.ndarray  # change that all conditions share
    share_MG: np.ndarray  # posterior weight of each of the M :data:`STRENGTHS` for each gene


def solve(
    delta_CG: np.ndarray, signal_CC: np.ndarray, noise_C: np.ndarray, noise_G: np.ndarray, level: float | None = None
) -> Solution:
    """Gaussian-process regression of every gene around its level.

    Gene g's departures from its level have covariance ``strength_g signal_CC + noise_G[g] diag(noise_C)``. Predictions
    are averaged over :data:`STRENGTHS`, weighted by the likelihood of each and by how common it is among the genes
    (empirical Bayes): genes without signal shrink to zero, strong ones hardly.

    Sampling variance is ``noise_C[c] * noise_G[g]``, all above zero. `level` is the variance of the level, which is
    then shrunk by the gene's strength as the signal is; None leaves it free (generalised least squares).
    """
    return solve_in(Spectrum.of(signal_CC, noise_C, level), delta_CG, noise_G)


def solve_in(spectrum: Spectrum, delta_CG: np.ndarray, noise_G: np.ndarray, *, left_out: bool = True) -> Solution:
    """:func:`solve` from the eigenvalues of the covariance, in blocks of genes to bound memory.

    Without `left_out`, predictions of training conditions, one matrix product does for all strengths.
    """
    noise_G = noise_G * spectrum.noise
    blocks = _gene_blocks(delta_CG)
    rotated_KG = np.empty((len(spectrum.values_K), delta_CG.shape[1]))
    log_MG = np.empty((len(STRENGTHS), delta_CG.shape[1]))
    for genes in blocks:
        rotated_KG[:, genes], log_MG[:, genes] = _likelihood(spectrum, delta_CG[:, genes], noise_G[genes])
    share_MG = _strength_shares(log_MG)
    coefficient_CG, left_out_CG = np.empty_like(delta_CG), np.empty_like(delta_CG[: None if left_out else 0])
    squared_CK, across_C = spectrum.vectors_CK**2 if left_out else spectrum.vectors_CK, spectrum.across_C
    for genes in blocks:
        block = _GeneBlock(spectrum, delta_CG[:, genes], rotated_KG[:, genes], noise_G[genes], squared_CK, across_C)
        if left_out:
            coefficient_CG[:, genes], left_out_CG[:, genes] = block.solved(share_MG[:, genes])
        else:
            coefficient_CG[:, genes] = block.coefficients(share_MG[:, genes])
    return Solution(coefficient_CG, left_out_CG, spectrum.level_of(delta_CG, coefficient_CG), share_MG)


def _gene_blocks(delta_CG: np.ndarray) -> list[slice]:
    n_genes = delta_CG.shape[1]
    step = max(1, _BLOCK_VALUES // len(delta_CG))
    return [slice(start, min(start + step, n_genes)) for start in range(0, n_genes, step)]


def _likelihood(spectrum: Spectrum, delta_CN: np.ndarray, noise_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Changes along the eigenvectors (K, N), and the log-likelihood of each strength for each gene (M, N)."""
    white_CN = delta_CN / spectrum.root_C[:, None]
    rotated_KN = spectrum.vectors_CK.T @ white_CN
    rest_N = (spectrum.across(white_CN, rotated_KN) ** 2).sum(axis=0) if spectrum.n_rest else None
    log_MN = np.empty((len(STRENGTHS), len(noise_N)))
    square_KN = rotated_KN**2 / noise_N
    for row, strength in enumerate(STRENGTHS):
        ratio_KN = np.outer(strength * spectrum.values_K, 1 / noise_N)
        ratio_KN += 1.0
        log_N = _log_of_product(ratio_KN) + len(ratio_KN) * np.log(noise_N)
        log_MN[row] = -0.5 * (log_N + np.divide(square_KN, ratio_KN, out=ratio_KN).sum(axis=0))
        if rest_N is not None:
            variance_N = strength * spectrum.rest + noise_N
            log_MN[row] -= 0.5 * (spectrum.n_rest * np.log(variance_N) + rest_N / variance_N)
    return rotated_KN, log_MN


def _log_of_product(ratio_KN: np.ndarray) -> np.ndarray:
    """Sum over rows of the logarithms of values of at least 1, (N,): logarithms of products of a few rows.

    A logarithm costs as much as ten products. Values are ratios of variances, far below the limit 1e38.
    """
    product_LN = ratio_KN[::_FACTORS].copy()
    for start in range(1, _FACTORS):
        rows_LN = ratio_KN[start::_FACTORS]
        product_LN[: len(rows_LN)] *= rows_LN
    return np.asarray(np.log(product_LN).sum(axis=0))


@dataclass(frozen=True)
class _GeneBlock:
    """The regression of some genes."""

    spectrum: Spectrum
    delta_CN: np.ndarray
    rotated_KN: np.ndarray
    noise_N: np.ndarray
    squared_CK: np.ndarray
    across_C: np.ndarray

    def solved(self, share_MN: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients and leave-one-out predictions, (C, N) each, averaged over the strengths."""
        spectrum, delta_CN = self.spectrum, self.delta_CN
        root_C1 = spectrum.root_C[:, None]
        coefficient_CN, left_out_CN = np.zeros_like(delta_CN), np.zeros_like(delta_CN)
        rest_CN = spectrum.across(delta_CN / root_C1, self.rotated_KN) if spectrum.n_rest else None
        for strength, share_N in zip(STRENGTHS, share_MN, strict=True):
            genes = np.flatnonzero(share_N)
            if not len(genes):
                continue
            share_N1 = share_N[genes]
            variance_KA = strength * spectrum.values_K[:, None] + self.noise_N[genes]
            # A^-1 (y - m) and the diagonal of A^-1, both in units of sqrt(noise)
            solved_CA = spectrum.vectors_CK @ (self.rotated_KN[:, genes] / variance_KA)
            diagonal_CA = self.squared_CK @ (1 / variance_KA)
            if rest_CN is not None:
                variance_A = strength * spectrum.rest + self.noise_N[genes]
                solved_CA += rest_CN[:, genes] / variance_A
                diagonal_CA += np.outer(self.across_C, 1 / variance_A)
            left_out_CN[:, genes] += share_N1 * (delta_CN[:, genes] - root_C1 * solved_CA / diagonal_CA)
            coefficient_CN[:, genes] += share_N1 * strength * solved_CA / root_C1
        return coefficient_CN, left_out_CN

    def coefficients(self, share_MN: np.ndarray) -> np.ndarray:
        """Those of :meth:`solved`, (C, N), which are linear in the inverse: it is averaged over the strengths first."""
        spectrum, weight_KN, rest_N = self.spectrum, np.zeros_like(self.rotated_KN), np.zeros(len(self.noise_N))
        for strength, share_N in zip(STRENGTHS, share_MN, strict=True):
            genes = np.flatnonzero(share_N)
            scaled_A = share_N[genes] * strength
            weight_KN[:, genes] += scaled_A / (strength * spectrum.values_K[:, None] + self.noise_N[genes])
            rest_N[genes] += scaled_A / (strength * spectrum.rest + self.noise_N[genes])
        solved_CN = spectrum.vectors_CK @ (weight_KN * self.rotated_KN)
        if spectrum.n_rest:
            solved_CN += rest_N * spectrum.across(self.delta_CN / spectrum.root_C[:, None], self.rotated_KN)
        return np.asarray(solved_CN / spectrum.root_C[:, None])


def _strength_shares(log_MG: np.ndarray) -> np.ndarray:
    """Posterior weight of each strength for each gene, (M, G), from their log-likelihoods; columns sum to 1."""
    # expectation maximisation of the shares of strengths among the genes, with one extra gene of each strength so that
    # no share becomes 0
    common_M = np.full(len(STRENGTHS), 1 / len(STRENGTHS))
    likelihood_MG, n_genes = np.exp(log_MG - log_MG.max(axis=0)), log_MG.shape[1]
    for _ in range(_ROUNDS):
        before_M, total_G = common_M, common_M @ likelihood_MG
        common_M = (before_M * (likelihood_MG @ (1 / total_G)) + 1) / (n_genes + len(STRENGTHS))
    weight_MG = before_M[:, None] * likelihood_MG / total_G
    weight_MG[weight_MG < _LEAST_SHARE] = 0.0
    return np.asarray(weight_MG / weight_MG.sum(axis=0))


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues of a covariance of C conditions after division by the noise, orthogonal to a free level.

    Gene g's departures from its level have covariance ``strength_g signal + noise_g noise``. Divided by `root_C`
    on both sides its eigenvalues are, for every strength and gene::

        strength_g values_k + noise_g noise          along vector k
        strength_g rest + noise_g noise              in all directions orthogonal to the vectors
    """

    # values_K, vectors_CK: eigenvalues and vectors of the signal
    values_K: np.ndarray
    vectors_CK: np.ndarray
    root_C: np.ndarray  # square root of each condition's noise
    weighed_C: np.ndarray  # product of the signal with each condition's weight in a free level, (C,)
    level: float | None = None
    # rest, n_rest: signal orthogonal to the vectors and the number of these directions, 0 where the vectors are
    # complete
    """Variance of a level that is shrunk with the signal; None where the level is free."""
    rest: float = 0.0
    n_rest: int = 0
    noise: float = 1.0

    @classmethod
    def of(cls, signal_CC: np.ndarray, noise_C: np.ndarray, level: float | None = None) -> Spectrum:
        """From the complete covariance: exact, at the cost of C^3."""
        root_C = np.sqrt(noise_C)
        whitened_CC = (signal_CC + (level or 0.0)) / np.outer(root_C, root_C)
        if level is None:
            values, vectors = _eigen_of_contrasts(whitened_CC, 1 / root_C)
        else:
            values, vectors = eigh(whitened_CC)
            values = np.maximum(values, 0.0)
        return cls(values, vectors, root_C, signal_CC @ (1 / noise_C), level)

    @classmethod
    def of_features(
        cls, features: Features, unexplained_C: np.ndarray, noise_C: np.ndarray, typical: float
    ) -> Spectrum:
        """From features and a specific variance of each condition, around a free level.

        Costs C M^2 for M features. Exact where the specific variance is the same multiple of the noise for all
        conditions; otherwise their ratio is that of a gene of typical noise.

        `unexplained_C` is the signal of each condition beside the part that the features omit, `typical` a typical
        gene's sampling variance.
        """
        specific_C = features.rest_C + unexplained_C
        noise_of_C = noise_C + specific_C / typical
        root_C = np.sqrt(noise_of_C)
        level_C = (1 / root_C) / np.linalg.norm(1 / root_C)
        white_CM = features.feature_CM / root_C[:, None]
        white_CM -= np.outer(level_C, level_C @ white_CM)
        values, inner_MM = eigh(white_CM.T @ white_CM)
        is_kept_M = values > _LEAST_VALUE * max(values[-1], 0.0)
        vectors = white_CM @ (inner_MM[:, is_kept_M] / np.sqrt(values[is_kept_M]))
        rest = float((specific_C / noise_of_C).mean())
        return cls(
            values[is_kept_M] + rest,
            vectors,
            root_C,
            features.feature_CM @ (features.feature_CM.T @ (1 / noise_of_C)),
            rest=rest,
            n_rest=len(root_C) - 1 - int(is_kept_M.sum()),
            noise=float((noise_C / noise_of_C).mean()),
        )

    @property
    def across_C(self) -> np.ndarray:
        """Share of each condition's axis that is orthogonal to vectors and level, (C,)."""
        mirror_C = (1 / self.root_C) / np.linalg.norm(1 / self.root_C)
        return 1 - mirror_C**2 - (self.vectors_CK**2).sum(axis=1)

    def across(self, white_CG: np.ndarray, rotated_KG: np.ndarray) -> np.ndarray:
        """The part of values (divided by `root_C`) that is orthogonal to vectors and level, (C, G)."""
        mirror_C = (1 / self.root_C) / np.linalg.norm(1 / self.root_C)
        rest_CG = white_CG - self.vectors_CK @ rotated_KG
        rest_CG -= np.outer(mirror_C, mirror_C @ white_CG)
        return rest_CG

    def solved(self, value_CN: np.ndarray, noise: float) -> np.ndarray:
        """Inverse of the covariance of an average gene, times some values of the conditions, (C, N)."""
        white_CN = value_CN / self.root_C[:, None]
        rotated_KN = self.vectors_CK.T @ white_CN
        solved_CN = self.vectors_CK @ (rotated_KN / (self.values_K + noise)[:, None])
        if self.n_rest:
            solved_CN += self.across(white_CN, rotated_KN) / (self.rest + noise)
        return np.asarray(solved_CN / self.root_C[:, None])

    def level_of(self, delta_CG: np.ndarray, coefficient_CG: np.ndarray) -> np.ndarray:
        """The level of each gene, (G,), where the departures from it have these coefficients."""
        if self.level is not None:
            return np.asarray(self.level * coefficient_CG.sum(axis=0))
        weight_C = 1 / self.root_C**2
        return np.asarray((weight_C @ delta_CG - self.weighed_C @ coefficient_CG) / weight_C.sum())


def _eigen_of_contrasts(covariance_CC: np.ndarray, level_C: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues (C - 1,) and vectors (C, C - 1) of a covariance, orthogonal to a level.

    A Householder reflection P = I - 2 v v' maps the level to the first axis. Without its first row and column, P K P is
    the covariance orthogonal to the level, and P maps its eigenvectors back. P is applied as rank-one updates, so that
    only the eigenvalues cost C^3.
    """
    mirror_C = level_C / np.linalg.norm(level_C)
    mirror_C[0] += np.copysign(1.0, mirror_C[0])
    mirror_C /= np.linalg.norm(mirror_C)
    product_C = covariance_CC @ mirror_C
    product_C -= (mirror_C @ product_C) * mirror_C
    cross_CC = np.outer(2 * mirror_C, product_C)
    values, inner_vectors = eigh((covariance_CC - cross_CC - cross_CC.T)[1:, 1:])
    vectors = np.vstack([np.zeros((1, inner_vectors.shape[1])), inner_vectors])
    vectors -= np.outer(2 * mirror_C, mirror_C @ vectors)
    return np.maximum(values, 0.0), vectors
