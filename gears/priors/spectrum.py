"""Covariances of conditions by their eigenvalues: of all conditions, or of the features of very many."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import linalg

from gears.priors.features import Features

_LEAST_VALUE = 1e-10  # of the largest: an eigenvalue below is rounding


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues of a covariance of C conditions, noise made equal, within what no level reaches.

    Gene g's departures from its level have covariance ``strength_g signal + noise_g noise``. Divided by `root_C`
    on both sides it is, for every strength and gene, a multiple of each eigenvector::

        strength_g (values_k) + noise_g noise        along vector k
        strength_g rest + noise_g noise              across all vectors

    Attributes
    ----------
    values_K, vectors_CK
        Eigenvalues and vectors of the signal.
    root_C
        Square root of each condition's noise.
    weighed_C
        The signal's product with each condition's weight in a free level, (C,).
    level
        Variance of a level that is shrunk with the signal; None where the level is free.
    rest, n_rest
        Signal across the vectors and the number of those directions; none where the vectors are complete.
    noise
        Factor of the noise.
    """

    values_K: np.ndarray
    vectors_CK: np.ndarray
    root_C: np.ndarray
    weighed_C: np.ndarray
    level: float | None = None
    rest: float = 0.0
    n_rest: int = 0
    noise: float = 1.0

    @classmethod
    def of(cls, signal_CC: np.ndarray, noise_C: np.ndarray, level: float | None = None) -> Spectrum:
        """Of a whole covariance: exact, at the cost of C^3."""
        root_C = np.sqrt(noise_C)
        whitened_CC = (signal_CC + (level or 0.0)) / np.outer(root_C, root_C)
        if level is None:
            values, vectors = _eigen_of_contrasts(whitened_CC, 1 / root_C)
        else:
            values, vectors = _eigh(whitened_CC)
            values = np.maximum(values, 0.0)
        return cls(values, vectors, root_C, signal_CC @ (1 / noise_C), level)

    @classmethod
    def of_features(
        cls, features: Features, unexplained_C: np.ndarray, noise_C: np.ndarray, typical: float
    ) -> Spectrum:
        """Of features and a variance that each condition has for itself, around a free level.

        Costs C M^2 for M features. Exact where that variance is the same multiple of the noise for all conditions.
        Elsewhere the two are weighed against each other as they are at a typical gene's strength.

        Parameters
        ----------
        features
            What conditions share.
        unexplained_C
            Signal that each condition has for itself, beside what the features leave over.
        noise_C
            Sampling variance of each condition, to be multiplied by each gene's.
        typical
            A typical gene's sampling variance.
        """
        own_C = features.rest_C + unexplained_C
        noise_of_C = noise_C + own_C / typical
        root_C = np.sqrt(noise_of_C)
        level_C = (1 / root_C) / np.linalg.norm(1 / root_C)
        white_CM = features.feature_CM / root_C[:, None]
        white_CM -= np.outer(level_C, level_C @ white_CM)
        values, inner = _eigh(white_CM.T @ white_CM)
        kept = values > _LEAST_VALUE * max(values[-1], 0.0)
        vectors = white_CM @ (inner[:, kept] / np.sqrt(values[kept]))
        rest = float((own_C / noise_of_C).mean())
        return cls(
            values[kept] + rest,
            vectors,
            root_C,
            features.feature_CM @ (features.feature_CM.T @ (1 / noise_of_C)),
            rest=rest,
            n_rest=len(root_C) - 1 - int(kept.sum()),
            noise=float((noise_C / noise_of_C).mean()),
        )

    @property
    def across_C(self) -> np.ndarray:
        """Share of each condition's axis that lies across vectors and level, (C,)."""
        mirror_C = (1 / self.root_C) / np.linalg.norm(1 / self.root_C)
        return 1 - mirror_C**2 - (self.vectors_CK**2).sum(axis=1)

    def across(self, white_CG: np.ndarray, rotated_KG: np.ndarray) -> np.ndarray:
        """The part of values (divided by `root_C`) that lies across vectors and level, (C, G)."""
        mirror_C = (1 / self.root_C) / np.linalg.norm(1 / self.root_C)
        rest_CG = white_CG - self.vectors_CK @ rotated_KG
        rest_CG -= np.outer(mirror_C, mirror_C @ white_CG)
        return rest_CG

    def level_of(self, delta_CG: np.ndarray, coefficient_CG: np.ndarray) -> np.ndarray:
        """The level of each gene, (G,), where the departures from it have these coefficients."""
        if self.level is not None:
            return np.asarray(self.level * coefficient_CG.sum(axis=0))
        weight_C = 1 / self.root_C**2
        return np.asarray((weight_C @ delta_CG - self.weighed_C @ coefficient_CG) / weight_C.sum())


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
