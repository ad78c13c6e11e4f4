"""A regulatory network with hubs that carries perturbations and the noise of cells from gene to gene."""

from __future__ import annotations

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
