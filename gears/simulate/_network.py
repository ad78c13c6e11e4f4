"""What genes have in common over cells, and perturbations follow: co-expression modules, or a regulatory network."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from gears.simulate._design import Design, stage_generator
from gears.simulate._options import SimulationOptions

# Exponent of the tail of out-degrees: few hubs, and most genes have about half the mean.
_TAIL = 1.5
# A hub regulates at most this share of the genes.
_MOST_TARGETS = 0.25
_STEPS = 3
# In units of effect_size: regulation below the threshold changes nothing, and none changes more than the ceiling.
_THRESHOLD, _CEILING = 0.4, 2.0
_MODULES_OF_A_GENE = 2
STRENGTH_SD = 0.25
"""S.d. of the log strength of perturbations."""


@dataclass(frozen=True)
class Network:
    """A directed signed network of N genes: the G measured ones, then perturbed genes that are not measured.

    The log changes x of the genes follow ``x <- noise + effect_size respond(x @ weight)``, a few times, where `respond`
    sets small values to 0 and levels off for large ones, and perturbed genes are held at their change.
    """

    genes: tuple[str, ...]  # names of the N genes
    n_measured: int  # G
    weight_NN: sparse.csr_matrix
    """Weights of regulators (rows) on targets (columns), standard normal where there is an edge."""
    cell_sd: float  # s.d. over cells of the noise of each gene's log expression.
    effect_size: float
    """Root mean square log change of a target by unit log change of one regulator, threshold and ceiling apart."""

    @classmethod
    def draw(cls, options: SimulationOptions, design: Design) -> Network:
        """Draw targets and weights; out-degrees have a Pareto tail, cut at a quarter of the genes."""
        rng = stage_generator(options.seed, "network")
        genes = (*design.genes, *sorted(set(design.perturbed) - set(design.genes)))
        n = len(genes)
        tail_N = 1 + rng.pareto(_TAIL, n)
        degree_N = np.rint(options.network_degree * tail_N / tail_N.mean()).astype(np.int64)
        degree_N = np.minimum(degree_N, max(int(_MOST_TARGETS * n), 1))
        # n - 1 candidates each: every gene but itself
        targets = [rng.choice(n - 1, degree, replace=False) for degree in degree_N]
        columns = np.concatenate([target + (target >= row) for row, target in enumerate(targets)])
        weights = rng.standard_normal(len(columns))
        bounds = np.concatenate([[0], np.cumsum(degree_N)])
        weight_NN = sparse.csr_matrix((weights, columns, bounds), shape=(n, n))
        return cls(genes, len(design.genes), weight_NN, options.cell_sd, options.effect_size)

    def cells(self, rng: np.random.Generator, n_cells: int) -> np.ndarray:
        """Log change of each measured gene in `n_cells` cells, (n_cells, G): noise, passed on by the network."""
        noise_BN = self.cell_sd * rng.standard_normal((n_cells, len(self.genes)))
        return self._propagate(noise_BN, np.zeros(noise_BN.shape, dtype=bool))

    def effects(self, perturbed: list[tuple[str, ...]], change: float) -> np.ndarray:
        """Log change of each measured gene where some genes are held at a log change, (C, G)."""
        index = {gene: i for i, gene in enumerate(self.genes)}
        held_CN = np.zeros((len(perturbed), len(self.genes)), dtype=bool)
        for row, genes in enumerate(perturbed):
            held_CN[row, [index[gene] for gene in genes]] = True
        return self._propagate(change * held_CN, held_CN)

    def _propagate(self, outside_BN: np.ndarray, held_BN: np.ndarray) -> np.ndarray:
        change_BN = outside_BN
        for _ in range(_STEPS):
            response_BN = self.effect_size * _respond(change_BN @ self.weight_NN)
            change_BN = np.where(held_BN, outside_BN, outside_BN + response_BN)
        return change_BN[:, : self.n_measured]


def _respond(regulation: np.ndarray) -> np.ndarray:
    passed = np.maximum(np.abs(regulation) - _THRESHOLD, 0)
    return np.sign(regulation) * _CEILING * np.tanh(passed / _CEILING)


@dataclass(frozen=True)
class Modules:
    """Co-expression modules of the measured genes."""

    loading_GK: np.ndarray
    """Loading of each measured gene on each of K modules; each row has length 1 and at most two values other than
    0."""
    cell_sd: float  # s.d. over cells of the log expression of a gene.

    @classmethod
    def draw(cls, options: SimulationOptions) -> Modules:
        rng = stage_generator(options.seed, "modules")
        shape = (options.genes, options.n_modules)
        member_GK = rng.permuted(np.tile(np.arange(options.n_modules), (options.genes, 1)), axis=1)
        loading_GK = rng.standard_normal(shape) * (member_GK < _MODULES_OF_A_GENE)
        return cls(loading_GK / np.linalg.norm(loading_GK, axis=1, keepdims=True), options.cell_sd)

    def cells(self, rng: np.random.Generator, n_cells: int) -> np.ndarray:
        """Log change of each gene in `n_cells` cells, (n_cells, G): module activities times loadings."""
        activity_BK = self.cell_sd * rng.standard_normal((n_cells, self.loading_GK.shape[1]))
        return activity_BK @ self.loading_GK.T

    def add_to(self, options: SimulationOptions, design: Design, effect_PG: np.ndarray) -> np.ndarray:
        """Replace `module_share` of the variance of measured genes' effects by effects along their modules, (P, G).

        A gene's perturbation changes its modules in proportion to its loadings, so that its effect is proportional to
        the covariances of genes with it over control cells: the same sign for activation, the opposite for repression.
        """
        strength_P = stage_generator(options.seed, "modules", block=1).standard_normal(len(effect_PG))
        strength_P = np.exp(STRENGTH_SD * strength_P)
        # The mean square of a product of two loadings is 1 / K; that of the other effects is effect_share.
        size = options.effect_size * math.sqrt(options.effect_share * options.n_modules)
        size = math.copysign(size, options.target_effect)
        column = {gene: i for i, gene in enumerate(design.genes)}
        result_PG = effect_PG.copy()
        for row, gene in enumerate(design.perturbed):
            module_G = size * strength_P[row] * (self.loading_GK @ self.loading_GK[column[gene]])
            result_PG[row] = (
                math.sqrt(1 - options.module_share) * effect_PG[row] + math.sqrt(options.module_share) * module_G
            )
        return result_PG
