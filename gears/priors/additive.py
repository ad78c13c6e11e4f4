"""The additive part of the prior: covariances, their weights, and the regression of every gene."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gears.priors.amplitudes import solve_in
from gears.priors.data import PriorData
from gears.priors.evidence import Weights, sample, settle_weights
from gears.priors.features import MOST_EXACT, gene_features
from gears.priors.gene_prior import GenePrior
from gears.priors.kernels import GeneSimilarity, mixed, sizes_of, specific_covariance, training_kernels
from gears.priors.spectrum import Spectrum

# Conditions from which on shrinking what they share is tried: fewer do not tell what it does.
_SHRUNK_LEVEL = 15
_NOISE_FLOOR = 1e-3


@dataclass(frozen=True)
class AdditivePart:
    """Sum of genes' effects over some conditions.

    Attributes
    ----------
    data, rest_CG
        The conditions; their changes without those of perturbed genes themselves.
    weights
        Of the covariances, by evidence.
    noise_C, noise_G
        Sampling variance of each condition and gene is the product of these.
    typical
        Size of `noise_G`.
    """

    data: PriorData
    rest_CG: np.ndarray
    weights: Weights
    noise_C: np.ndarray
    noise_G: np.ndarray
    typical: float

    @classmethod
    def settled(cls, data: PriorData, rest_CG: np.ndarray) -> AdditivePart:
        """With weights by the evidence of the conditions (a fixed sample of many)."""
        noise_C, noise_G = data.sampling_noise()
        size = float(noise_G.mean()) or _NOISE_FLOOR * float((rest_CG**2).mean())
        rows = sample(len(rest_CG))
        sets = [data.sets[row] for row in rows]
        kernels = training_kernels(sets, data.genes.among(sets), *(part.among(sets) for part in data.further))
        weights = settle_weights(rest_CG[rows], kernels, size * noise_C[rows], sizes_of(sets))
        noise_G = np.maximum(weights.noise * noise_G, _NOISE_FLOOR * size)
        return cls(data, rest_CG, weights, noise_C, noise_G, weights.noise * size)

    @property
    def exact(self) -> bool:
        """Whether all pairs of conditions are looked at; features of genes stand for very many conditions."""
        return len(self.data.sets) <= MOST_EXACT

    @property
    def levels(self) -> tuple[bool, ...]:
        """Whether the level is free: what is tried, in order."""
        n = len(self.data.sets)
        return (False, True) if self.exact and n >= _SHRUNK_LEVEL else (True,)

    @cached_property
    def genes(self) -> GeneSimilarity:
        """Similarity of genes, several of them in the proportion that evidence gives them."""
        return mixed((self.data.genes, *self.data.further), self.weights.kernels[3:])

    def fit(self, target_G: np.ndarray, *, free_level: bool) -> tuple[GenePrior, np.ndarray]:
        """The prior without factor and slope, and left-one-out predictions."""
        data = self.data
        _, shared, own, *each = self.weights.kernels
        found = solve_in(self._spectrum(free_level=free_level), self.rest_CG, self.noise_G)
        prior = GenePrior(
            self.genes,
            found.level_G,
            shared * (sizes_of(data.sets) @ found.coefficient_CG),
            own,
            float(sum(each)),
            np.asarray(self.genes.members(data.sets).T @ found.coefficient_CG),
            data.column_P,
            target_G,
        )
        return prior, found.left_out_CG

    def _spectrum(self, *, free_level: bool) -> Spectrum:
        offset, shared, own, *each = self.weights.kernels
        sets, similar = self.data.sets, float(sum(each))
        unexplained_C = self.weights.unexplained(sizes_of(sets))
        if self.exact:
            signal_CC = specific_covariance(sets, self.genes, shared, own, similar)
            signal_CC[np.diag_indices(len(signal_CC))] += unexplained_C
            return Spectrum.of(signal_CC, self.noise_C, None if free_level else offset)
        features = gene_features(self.genes.members(sets), self.genes, shared, own, similar)
        return Spectrum.of_features(features, unexplained_C, self.noise_C, self.typical)
