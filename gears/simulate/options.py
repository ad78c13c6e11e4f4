"""Options of the simulator, checked on construction."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gears.core.messages import shorten, unknown_name
from gears.core.numbers import is_whole, plain_numbers

# name: (smallest, largest) valid value
_BOUNDS: dict[str, tuple[float, float]] = {
    "n_genes": (2, math.inf),
    "n_singles": (0, math.inf),
    "n_pairs": (0, math.inf),
    "n_triples": (0, math.inf),
    "cells_per_condition": (1, math.inf),
    "cell_number_sd": (0, 3),
    "n_control": (1, math.inf),
    "effect_size": (0, 10),
    "effect_share": (0, 1),
    "strength_sd": (0, 3),
    "target_effect": (-20, 20),
    "go_strength": (0, 1),
    "common_effect": (0, 1),
    "interaction_share": (0, 1),
    "interaction_size": (0, 10),
    "n_batches": (1, math.inf),
    "batch_size_effect": (0, 5),
    "cell_types": (1, 26),
    "cell_type_effect": (0, 5),
    "perturbed_measured": (0, 1),
    "counts_per_gene": (1e-6, 1e6),
    "baseline_sd": (0, 5),
    "library_sd": (0, 3),
    "dispersion": (0, 100),
    "seed": (0, math.inf),
}
_COUNTS = {"n_genes", "n_singles", "n_pairs", "n_triples", "cells_per_condition", "n_control"} | {
    "n_batches",
    "cell_types",
    "seed",
}


@dataclass(frozen=True)
class SimulationOptions:
    """What to simulate.

    Parameters
    ----------
    n_genes
        Measured genes.
    n_singles
        Genes perturbed alone; pairs and triples are made of these.
    n_pairs, n_triples
        Conditions with two and three perturbed genes.
    cells_per_condition
        Cells of each perturbed condition (the median, when `cell_number_sd` > 0).
    cell_number_sd
        s.d. of the log number of cells; 0: all conditions have the same number.
    n_control
        Control cells.
    effect_size
        Root mean square log-fold change of the genes that respond to a perturbation of median strength.
    effect_share
        Share of measured genes that respond to a perturbation.
    strength_sd
        s.d. of the log strength of perturbations.
    target_effect
        Log-fold change of the perturbed gene itself, where measured (negative: repression).
    go_strength
        Weight of the GO Jaccard kernel in the covariance of effects; 0: effects independent of GO.
    common_effect
        Share of the effects' covariance that all perturbations have in common.
    low_rank
        None, or the rank of the matrix of effects. Exact only with ``target_effect=0``: a gene's
        change by its own perturbation comes on top.
    interaction_share
        Share of pairs and triples that are not additive; half of these synergy, half suppression.
    interaction_size
        Synergy multiplies the summed effects by 1 + this, suppression divides by it.
    n_batches, batch_size_effect
        Number of batches, s.d. of the log change of a gene by its batch.
    cell_types, cell_type_effect
        Number of cell types, s.d. of the log difference of a gene between them. Perturbations
        have the same effects in all.
    perturbed_measured
        Share of the perturbed genes that are measured.
    counts_per_gene
        Mean counts of a cell divided by the number of measured genes.
    baseline_sd
        s.d. of log expected counts over genes.
    library_sd
        s.d. of the log library size over cells.
    dispersion
        Negative-binomial dispersion: variance m + dispersion m^2; 0: Poisson.
    gene_names
        The measured genes, instead of `n_genes` drawn from the human annotation.
    target_sum
        Library size that expression is normalised to; None: the mean library size.
    seed
        The screen is a pure function of the options.

    Raises
    ------
    ValueError
        For a value out of range, or more conditions than the genes allow.
    """

    n_genes: int | None = None
    n_singles: int = 40
    n_pairs: int = 20
    n_triples: int = 0
    cells_per_condition: int = 50
    cell_number_sd: float = 0.0
    n_control: int = 300
    effect_size: float = 0.7
    effect_share: float = 0.15
    strength_sd: float = 0.25
    target_effect: float = -1.5
    go_strength: float = 1.0
    common_effect: float = 0.1
    low_rank: int | None = None
    interaction_share: float = 0.4
    interaction_size: float = 0.8
    n_batches: int = 2
    batch_size_effect: float = 0.05
    cell_types: int = 1
    cell_type_effect: float = 0.5
    perturbed_measured: float = 1.0
    counts_per_gene: float = 1.0
    baseline_sd: float = 1.2
    library_sd: float = 0.3
    dispersion: float = 0.2
    gene_names: Sequence[str] | None = None
    target_sum: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        plain_numbers(self)
        self._settle_genes()
        for name, (low, high) in _BOUNDS.items():
            value = getattr(self, name)
            whole = is_whole(value)
            kind = "a whole number" if name in _COUNTS else "a number"
            number = whole or (isinstance(value, float) and name not in _COUNTS)
            if not number or not low <= value <= high:
                msg = f"{name}={value!r}: expected {kind} from {low:g} to {high:g}"
                raise ValueError(msg)
        self._check_conditions()
        if self.low_rank is not None and not 1 <= self.low_rank <= max(self.n_singles, 1):
            msg = f"low_rank={self.low_rank}: expected None or 1 to n_singles={self.n_singles}"
            raise ValueError(msg)
        if self.target_sum is not None and not 0 < self.target_sum < math.inf:
            msg = f"target_sum={self.target_sum}: expected None or a positive number"
            raise ValueError(msg)

    def _settle_genes(self) -> None:
        if self.gene_names is None:
            object.__setattr__(self, "n_genes", 1000 if self.n_genes is None else self.n_genes)
            return
        names = tuple(self.gene_names)
        if len(set(names)) != len(names) or not all(isinstance(name, str) and name for name in names):
            msg = f"gene_names must be unique non-empty strings; found {shorten(names)}"
            raise ValueError(msg)
        if self.n_genes not in (None, len(names)):
            msg = f"n_genes={self.n_genes} but gene_names holds {len(names)}; leave n_genes out or make them agree"
            raise ValueError(msg)
        object.__setattr__(self, "gene_names", names)
        object.__setattr__(self, "n_genes", len(names))

    def _check_conditions(self) -> None:
        for name, size in (("n_pairs", 2), ("n_triples", 3)):
            possible = math.comb(self.n_singles, size)
            if getattr(self, name) > possible:
                msg = (
                    f"{name}={getattr(self, name)}, but {self.n_singles} singles make only {possible} sets of "
                    f"{size} genes; raise n_singles or lower {name}"
                )
                raise ValueError(msg)
        if self.n_measured_targets > self.genes:
            msg = (
                f"{self.n_measured_targets} perturbed genes are to be measured, but n_genes={self.n_genes}; "
                "raise n_genes, or lower n_singles or perturbed_measured"
            )
            raise ValueError(msg)

    @property
    def genes(self) -> int:
        """Number of measured genes."""
        assert self.n_genes is not None
        return self.n_genes

    @property
    def n_measured_targets(self) -> int:
        """Perturbed genes that are measured."""
        return round(self.perturbed_measured * self.n_singles)

    @property
    def mean_library(self) -> float:
        """Expected counts of a cell."""
        return self.counts_per_gene * self.genes

    @property
    def target(self) -> float:
        """Library size that expression is normalised to."""
        return self.mean_library if self.target_sum is None else self.target_sum

    @classmethod
    def of(cls, options: SimulationOptions | None, changes: dict[str, Any]) -> SimulationOptions:
        """`options` (default: the defaults) with changes by name; an unknown name is an error with near matches."""
        names = [field.name for field in dataclasses.fields(cls)]
        for name in changes:
            if name not in names:
                raise TypeError(unknown_name("simulation option", name, names))
        if options is not None and "gene_names" in changes and "n_genes" not in changes:
            changes = {**changes, "n_genes": None}
        return dataclasses.replace(options, **changes) if options is not None else cls(**changes)
