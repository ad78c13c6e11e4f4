"""Draw the measured and perturbed genes and the conditions of a simulated screen."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from gears.conditions import SEPARATOR, Condition
from gears.graphs._annotation import GeneAnnotation
from gears.graphs._go import jaccard
from gears.simulate._options import SimulationOptions

GROUP_SIZE = 6
_SMALLEST_GROUP = 3
# Genes with few terms share their annotation with hundreds of others; those with very many with none.
_FEWEST_TERMS, _MOST_TERMS = 8, 100
_LEAST_SIMILARITY = 0.4

# A stage's place in this list is part of its seed: add at the end.
_STAGES = (
    "genes", "conditions", "effects", "interactions", "baseline", "layout", "cells", "nulls", "modules", "network",
    "activity", "expectation", "confounding", "products",
)  # fmt: skip


@dataclass(frozen=True)
class Design:
    """Genes and conditions of a screen."""

    genes: tuple[str, ...]  # measured genes (G), in the order of the columns
    perturbed: tuple[str, ...]  # perturbed genes (P); each is perturbed alone in one condition
    conditions: tuple[Condition, ...]  # conditions (C); the control first, then singles, pairs, triples
    n_cells: np.ndarray  # (C,) cells of each condition

    @property
    def members_CP(self) -> np.ndarray:
        """(C, P) float64: 1 where the condition perturbs the gene."""
        index = {gene: i for i, gene in enumerate(self.perturbed)}
        members_CP = np.zeros((len(self.conditions), len(self.perturbed)))
        for row, condition in enumerate(self.conditions):
            members_CP[row, [index[gene] for gene in condition.genes]] = 1
        return members_CP


def make_design(options: SimulationOptions, annotation: GeneAnnotation) -> Design:
    """Draw genes and conditions."""
    rng = stage_generator(options.seed, "genes")
    usable = [gene for gene in annotation.genes if SEPARATOR not in gene]
    if options.gene_names is None:
        perturbed = _similar_genes(rng, annotation, usable, options.n_singles)
        unperturbed = sorted(set(usable) - set(perturbed))
        n_unperturbed = options.genes - len(perturbed)
        if n_unperturbed > len(unperturbed):
            n_available = len(unperturbed) + len(perturbed)
            msg = f"n_genes={options.genes}, but only {n_available} annotated genes can be measured"
            raise ValueError(msg)
        drawn = [unperturbed[i] for i in rng.choice(len(unperturbed), n_unperturbed, replace=False)]
        names = rng.permutation([*perturbed, *drawn]).tolist()
    else:
        names = list(options.gene_names)
        perturbed = _similar_genes(rng, annotation, names, options.n_singles)
        # the draws of earlier versions, so that a seed gives the same screen
        _similar_genes(rng, annotation, sorted(set(usable) - set(names)), 0)
    order = rng.permutation(len(perturbed))
    perturbed = [perturbed[i] for i in order]
    conditions = _conditions(options, perturbed)
    return Design(tuple(names), tuple(perturbed), conditions, _cell_numbers(options, len(conditions)))


def _similar_genes(rng: np.random.Generator, annotation: GeneAnnotation, names: list[str], n: int) -> list[str]:
    """Draw `n` of `names` in groups of a random gene and the most similar ones; if groups run out, any others."""
    rows = annotation.rows(names)
    n_terms = np.diff(rows.indptr)
    pool = np.flatnonzero((n_terms >= _FEWEST_TERMS) & (n_terms <= _MOST_TERMS))
    pool_rows = rows[pool]
    taken: list[int] = []
    for centre in rng.permutation(len(pool)).tolist():
        if len(taken) >= n:
            break
        similarity = jaccard(pool_rows[[centre]], pool_rows)[0]
        free = (similarity >= _LEAST_SIMILARITY) & ~np.isin(pool, taken)
        similarity[centre] = 2  # before genes with exactly the same terms
        nearest = np.flatnonzero(free)[np.argsort(-similarity[free], kind="stable")][:GROUP_SIZE]
        if free[centre] and len(nearest) >= _SMALLEST_GROUP:
            taken += pool[nearest].tolist()
    taken = taken[:n]
    remaining = np.setdiff1d(np.arange(len(names)), taken)
    taken += rng.permutation(remaining)[: n - len(taken)].tolist()
    return [names[i] for i in taken]


def _conditions(options: SimulationOptions, perturbed: list[str]) -> tuple[Condition, ...]:
    rng = stage_generator(options.seed, "conditions")
    sets: list[tuple[int, ...]] = [(), *((i,) for i in range(len(perturbed)))]
    for size, n in ((2, options.n_pairs), (3, options.n_triples)):
        sets += _distinct_sets(rng, len(perturbed), size, n)
    return tuple(Condition(tuple(perturbed[i] for i in members)) for members in sets)


def _distinct_sets(rng: np.random.Generator, n_items: int, size: int, n: int) -> list[tuple[int, ...]]:
    possible = math.comb(n_items, size)
    if possible <= 200_000:
        every = list(itertools.combinations(range(n_items), size))
        return [every[i] for i in rng.choice(possible, n, replace=False)] if n else []
    sets: dict[tuple[int, ...], None] = {}
    while len(sets) < n:
        sets[tuple(sorted(rng.choice(n_items, size, replace=False).tolist()))] = None
    return list(sets)


def _cell_numbers(options: SimulationOptions, n_conditions: int) -> np.ndarray:
    rng = stage_generator(options.seed, "conditions", block=1)
    factor = np.exp(options.cell_number_sd * rng.standard_normal(n_conditions))
    numbers = np.maximum(np.rint(options.cells_per_condition * factor), 1).astype(np.int64)
    numbers[0] = options.n_control
    return numbers


def stage_generator(seed: int, stage: str, block: int = 0) -> np.random.Generator:
    """Generator that depends on seed, stage and block only."""
    key = (_STAGES.index(stage), block)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))
