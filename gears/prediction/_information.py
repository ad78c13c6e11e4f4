"""Information that a model has about perturbed genes, so that predictions without information are marked."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gears.conditions import Condition
from gears.core._messages import in_a_line

if TYPE_CHECKING:
    from gears.model._folder import ModelParts

logger = logging.getLogger(__name__)

SOURCES = ("training", "expression", "similarity", "nothing")
"""What the prediction of a gene's perturbation is based on, best first: conditions of training that perturb it, its
expression, genes that are similar or neighbours in the graph, or nothing but the average perturbation."""


def source_of_genes(parts: ModelParts) -> dict[str, str]:
    """For every node of the perturbation graph the best of :data:`SOURCES`; empty without a split."""
    if parts.split is None:
        return {}
    fitted = {gene for condition in parts.fitted_conditions() for gene in condition.genes}
    names = np.asarray(parts.pert_names, dtype=str)
    source_P = np.where(_has_similar(parts), 2, 3)
    for source, genes in ((1, parts.gene_names), (0, fitted)):
        source_P[np.isin(names, list(genes))] = source
    return {name: SOURCES[source] for name, source in zip(parts.pert_names, source_P.tolist(), strict=True)}


def _has_similar(parts: ModelParts) -> np.ndarray:
    """Whether a node is similar to a trained one in the prior, or has a neighbour in the network's graph, (P,) bool."""
    has_P = np.zeros(len(parts.pert_names), dtype=bool)
    if parts.uses_network:
        sources, targets = parts.go.edge_index
        has_P[targets[sources != targets]] = True
    prior = parts.prior
    if prior is not None:
        for effects in (prior.overall, *prior.within[:1]):  # all settings have the same similarities
            has_P |= np.diff(effects.genes.similar_PT.indptr) > 0
    return has_P


def informed_by(conditions: Iterable[Condition], source_of: Mapping[str, str]) -> list[str]:
    """The weakest source among the genes of each condition."""
    return [
        max((source_of[gene] for gene in condition.genes), key=SOURCES.index, default=SOURCES[0])
        for condition in conditions
    ]


def warn_uninformed(conditions: Sequence[Condition], source_of: Mapping[str, str]) -> None:
    """Log one warning about genes that are neither measured nor perturbed in training."""
    genes = sorted({gene for condition in conditions for gene in condition.genes})
    similar, nothing = ([gene for gene in genes if source_of.get(gene) == source] for source in SOURCES[2:])
    if not similar and not nothing:
        return
    start = "by nothing: " if similar else "informed by nothing: "
    logger.warning("%s", in_a_line(("informed by similar genes only: ", similar), (start, nothing)))
