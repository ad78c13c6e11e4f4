"""What a prior is fitted to."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from gears.priors.kernels import GeneSimilarity


@dataclass(frozen=True)
class PriorData:
    """What the prior is fitted to: the training conditions, control left out.

    Attributes
    ----------
    sets
        Perturbation-graph nodes of each of the C conditions.
    delta_CG
        Their mean expression minus the control mean, float64.
    variance_G
        Variance of a cell's expression within a condition, pooled.
    n_C
        Cells of each condition.
    control_mean_G
        Mean of the control cells.
    column_P
        Column of each node among the measured genes, -1 where it is not measured.
    genes
        Similarity of nodes.
    further
        More similarities, to the same trained nodes.
    """

    sets: tuple[tuple[int, ...], ...]
    delta_CG: np.ndarray
    variance_G: np.ndarray
    n_C: np.ndarray
    control_mean_G: np.ndarray
    column_P: np.ndarray
    genes: GeneSimilarity
    further: tuple[GeneSimilarity, ...] = ()

    def __post_init__(self) -> None:
        n_conditions, n_genes = self.delta_CG.shape
        for name, length in (("sets", n_conditions), ("n_C", n_conditions), ("variance_G", n_genes)):
            if len(getattr(self, name)) != length:
                msg = f"{name} has {len(getattr(self, name))} entries; the changes are {self.delta_CG.shape}"
                raise ValueError(msg)
        if any(not nodes for nodes in self.sets):
            msg = "the prior is fitted to perturbed conditions; leave the control out"
            raise ValueError(msg)

    def sampling_noise(self) -> tuple[np.ndarray, np.ndarray]:
        """Sampling variance of every condition and gene as a product: (C,), around 1, and (G,)."""
        typical = 1 / float((1 / self.n_C).mean())
        return typical / self.n_C, self.variance_G / typical

    def subset(self, rows: list[int]) -> PriorData:
        """Some of the conditions; the variance of a cell stays that of all."""
        sets = tuple(self.sets[row] for row in rows)
        genes, *further = (part.among(sets) for part in (self.genes, *self.further))
        return dataclasses.replace(
            self,
            sets=sets,
            delta_CG=self.delta_CG[rows],
            n_C=self.n_C[rows],
            genes=genes,
            further=tuple(further),
        )
