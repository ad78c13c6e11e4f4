"""Options of the simulator, checked on construction."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from gears.core._messages import shorten
from gears.core._options import Needs, Options, anything, number, one_of, option, options, whole

INTERACTION_KINDS = ("synergy-suppression", "masking", "saturating", "products")
SYNERGY_SUPPRESSION, MASKING, SATURATING, PRODUCTS = INTERACTION_KINDS

_NO_NETWORK = Needs(lambda options, run: options.network_degree == 0, "network_degree=0")
_MODULES = Needs(lambda options, run: options.n_modules > 0, "n_modules of at least 1")
_CELLS_VARY = Needs(
    lambda options, run: options.n_modules > 0 or options.network_degree > 0, "n_modules or network_degree above 0"
)
_BATCHES = Needs(lambda options, run: options.n_batches > 1, "n_batches of at least 2")


@options
class SimulationOptions(Options):
    """What to simulate. The screen is a pure function of the options."""

    kind = "simulation option"

    # fmt: off
    n_genes: int | None = option(None, whole(2).or_none(), help="measured genes (1000)")
    n_singles: int = option(40, whole(0), help="genes perturbed alone; pairs and triples are made of these")
    n_pairs: int = option(20, whole(0), help="conditions with two perturbed genes")
    n_triples: int = option(0, whole(0), help="conditions with three perturbed genes")
    cells_per_condition: int = option(50, whole(1),
        help="cells of each perturbed condition (the median, when cell_number_sd > 0)")
    cell_number_sd: float = option(0.0, number(least=0, most=3),
        help="s.d. of the log number of cells; 0: all conditions have the same number")
    n_control: int = option(300, whole(1), help="control cells")
    effect_size: float = option(0.7, number(least=0, most=10),
        help="root mean square log-fold change of the genes that respond to a perturbation of median strength")
    effect_share: float = option(0.15, number(least=0, most=1), needs=_NO_NETWORK,
        help="share of measured genes that respond to a perturbation")
    target_effect: float = option(-1.5, number(least=-20, most=20),
        help="log-fold change of the perturbed gene itself, where measured (negative: repression)")
    go_strength: float = option(1.0, number(least=0, most=1), needs=_NO_NETWORK,
        help="weight of the GO Jaccard kernel in the covariance of effects; 0: effects independent of GO")
    common_effect: float = option(0.1, number(least=0, most=1), needs=_NO_NETWORK,
        help="share of the effects' covariance that all perturbations have in common")
    low_rank: int | None = option(None, whole(1).or_none(), needs=_NO_NETWORK,
        help="""rank of the matrix of effects. Exact only with target_effect=0: a gene's change by its own
        perturbation comes on top""")
    interaction_share: float = option(0.4, number(least=0, most=1), needs=_NO_NETWORK,
        help="share of pairs and triples that are not additive")
    interaction_size: float = option(0.8, number(least=0, most=10), needs=_NO_NETWORK,
        help="""synergy multiplies the summed effects by 1 + this, suppression divides by it; saturating effects, single
        and summed, level off at effect_size divided by this; effects by products have effect_size times this in place
        of effect_size""")
    interaction_kinds: str = option(SYNERGY_SUPPRESSION, one_of(INTERACTION_KINDS), needs=_NO_NETWORK,
        help="""kind of the pairs and triples that are not additive: synergy-suppression (half of them each), masking
        (the effect of the strongest gene alone), saturating (the summed effect levels off), or products (the effect
        follows products of the genes' GO scores, which the effects of single genes do not show)""")
    null_share: float = option(0.0, number(least=0, most=1),
        help="share of the perturbed genes whose perturbation has no effect, not even on the gene itself")
    n_modules: int = option(0, whole(0),
        help="""number of co-expression modules: groups of genes whose expression rises and falls together over cells;
        0: none""")
    module_share: float = option(1.0, number(least=0, most=1), needs=_MODULES,
        help="share of the variance of a measured gene's effect that lies along the modules of that gene")
    network_degree: float = option(0.0, number(least=0, most=1000),
        help="""mean number of targets of a gene in a regulatory network that carries the effects of single genes and
        combinations; 0: no network""")
    cell_sd: float = option(0.5, number(least=0, most=3), needs=_CELLS_VARY,
        help="s.d. over cells of the log expression of a gene, by its modules or before the network acts")
    n_batches: int = option(2, whole(1), help="number of experimental batches")
    batch_size_effect: float = option(0.05, number(least=0, most=5),
        help="s.d. of the log change of a gene by its batch")
    batch_confounding: float = option(0.0, number(least=0, most=1), needs=_BATCHES,
        help="""share of a perturbed condition's cells that come from one batch; the others, and all control cells, come
        from every batch""")
    cell_types: int = option(1, whole(1, 26),
        help="number of cell types; perturbations have the same effects in all")
    cell_type_effect: float = option(0.5, number(least=0, most=5),
        help="s.d. of the log difference of a gene between cell types")
    counts_per_gene: float = option(1.0, number(least=1e-6, most=1e6),
        help="mean counts of a cell divided by the number of measured genes")
    baseline_sd: float = option(1.2, number(least=0, most=5), help="s.d. of log expected counts over genes")
    library_sd: float = option(0.3, number(least=0, most=3), help="s.d. of the log library size over cells")
    dispersion: float = option(0.2, number(least=0, most=100),
        help="negative-binomial dispersion: variance m + dispersion m^2; 0: Poisson")
    gene_names: Sequence[str] | None = option(None, anything(),
        help="the measured genes, instead of n_genes drawn from the human annotation")
    seed: int = option(0, whole(0), help="seed of the draws")
    # fmt: on

    def check_together(self) -> None:
        """Raise for genes that contradict each other, and for more conditions than the genes allow."""
        self._fill_in_genes()
        for name, size in (("n_pairs", 2), ("n_triples", 3)):
            possible = math.comb(self.n_singles, size)
            if getattr(self, name) > possible:
                msg = (
                    f"{name}={getattr(self, name)}, but {self.n_singles} singles make only {possible} sets of "
                    f"{size} genes; raise n_singles or lower {name}"
                )
                raise ValueError(msg)
        if self.n_singles > self.genes:
            msg = (
                f"{self.n_singles} perturbed genes are to be measured, but n_genes={self.n_genes}; "
                "raise n_genes or lower n_singles"
            )
            raise ValueError(msg)
        if self.low_rank is not None and self.low_rank > max(self.n_singles, 1):
            msg = f"low_rank is {self.low_rank}; expected None or 1 to n_singles={self.n_singles}"
            raise ValueError(msg)
        if self.n_modules > 0 and self.network_degree > 0:
            msg = (
                f"n_modules={self.n_modules} and network_degree={self.network_degree}, but effects follow either "
                "modules or a network; set one of them to 0"
            )
            raise ValueError(msg)

    def _fill_in_genes(self) -> None:
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

    @property
    def genes(self) -> int:
        """Number of measured genes."""
        assert self.n_genes is not None
        return self.n_genes

    @property
    def mean_library(self) -> float:
        """Expected counts of a cell, to which expression is normalised."""
        return self.counts_per_gene * self.genes

    @classmethod
    def of(cls, options: SimulationOptions | None, changes: dict[str, Any]) -> SimulationOptions:
        """`options` (default: the defaults) with changes by name; an unknown name is an error with near matches."""
        cls.check_names(changes)
        if options is not None and "gene_names" in changes and "n_genes" not in changes:
            changes = {**changes, "n_genes": None}
        return dataclasses.replace(options, **changes) if options is not None else cls(**changes)
