"""Co-expression modules: genes that vary together over cells, and effects of perturbations along them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gears.simulate._design import Design, stage_generator
from gears.simulate._options import SimulationOptions

_MODULES_OF_A_GENE = 2

STRENGTH_SD = 0.25
"""S.d. of the log strength of perturbations."""


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
                math.sqrt(1 - options.module_share) * effect_PG[row]
                + math.sqrt(options.module_share) * module_G
            )
        return result_PG
