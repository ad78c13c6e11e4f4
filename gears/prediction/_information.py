"""Information behind predictions: what a model knows of perturbed genes, and which training conditions they rest on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gears.conditions import Condition
from gears.core._messages import count, in_a_line, shorten

if TYPE_CHECKING:
    from gears.model._folder import ModelParts
    from gears.priors._prior import GenePrior

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


SHOWN = 3
MOST_OF_IT = 0.5  # share of the weights from which on a prediction rests on one condition
FEW_CELLS = 10
_BLOCK = 4096  # conditions at a time
SetsOf = Callable[[Sequence[Condition]], Sequence[Sequence[int]]]
"""Perturbation-graph nodes of conditions."""
NameOf = Callable[[int], Condition]
"""Training condition of a row of the prior."""


def shares_of_weights(prior: GenePrior, sets: Sequence[Sequence[int]]) -> np.ndarray:
    """Share of each training condition in the weights of each prediction, (U, C), for a gene of average signal.

    Of those that perturb the same genes or alike ones. Where there are none, all conditions count alike.
    """
    assert prior.basis is not None
    assert prior.measured is not None
    own_U = prior.measured.rows(sets)
    share_UC = np.abs(prior.basis.typical_weights(sets, own_U))
    at = np.flatnonzero(own_U >= 0)
    rows = own_U[at]
    if len(at) and prior.uncertainty is not None:
        variance_R = prior.measured.variance_C[rows] * float(prior.uncertainty.gene_G.mean())
        noise_R = prior.measured.noise_C[rows] * float(prior.measured.noise_G.mean())
        kept_R = variance_R / np.maximum(variance_R + noise_R, np.finfo(float).tiny)
        share_UC[at] *= (1 - kept_R)[:, None]
        share_UC[at, rows] = kept_R
    total_U1 = share_UC.sum(axis=1, keepdims=True)
    alike_UC = np.full_like(share_UC, 1 / share_UC.shape[1])
    return np.divide(share_UC, total_U1, out=alike_UC, where=total_U1 > 1e-9)


def effective_number(share_UC: np.ndarray) -> np.ndarray:
    """1 / sum of squared shares, (U,)."""
    return np.asarray(1 / (share_UC**2).sum(axis=1))


def name_of_training(model: Any, row: int) -> Condition:
    """The training condition of a row of a model's prior, as the model (its parts, or an Origin) names it."""
    nodes, contexts = model.prior.measured.sets[row], model.contexts
    condition = Condition(tuple(model.pert_names[node] for node in nodes))
    if contexts is None:
        return condition
    context = contexts.contexts[nodes.context] if contexts.contexts else ""
    return condition.at(context, contexts.kinds[nodes.kind] if contexts.kinds else "")


def table_of_shares(
    prior: GenePrior, conditions: Sequence[Condition], sets_of: SetsOf, name_of: NameOf
) -> pd.DataFrame:
    """Columns ``n_effective`` and ``most_important``, for a prior that keeps what it was fitted to."""
    numbers, texts = [], []
    for start in range(0, len(conditions), _BLOCK):
        block = conditions[start : start + _BLOCK]
        share_UC = shares_of_weights(prior, sets_of(block))
        numbers.append(effective_number(share_UC))
        for condition, share_C in zip(block, share_UC, strict=True):
            first = np.argsort(-share_C, kind="stable")[:SHOWN].tolist() if not condition.is_control else []
            texts.append(", ".join(f"{name_of(row).name} {share_C[row]:.0%}" for row in first))
    n_effective = np.concatenate(numbers) if numbers else np.zeros(0)
    n_effective[[condition.is_control for condition in conditions]] = np.nan
    return pd.DataFrame({"n_effective": n_effective, "most_important": texts})


def warn_of_few_cells(prior: GenePrior, conditions: Sequence[Condition], sets_of: SetsOf, name_of: NameOf) -> None:
    """Log one warning about predictions that rest on one condition of few cells."""
    assert prior.basis is not None
    perturbed = [condition for condition in conditions if not condition.is_control][:_BLOCK]
    if not perturbed:
        return
    share_UC = shares_of_weights(prior, sets_of(perturbed))
    first_U = share_UC.argmax(axis=1)
    is_one_U = (share_UC.max(axis=1) >= MOST_OF_IT) & (prior.basis.n_C[first_U] < FEW_CELLS)
    found = []
    for row in np.flatnonzero(is_one_U).tolist():
        first = int(first_U[row])
        n_cells = count(int(prior.basis.n_C[first]), "cell")
        found.append(f"{perturbed[row].name} ({name_of(first).name}, {n_cells})")
    if found:
        n = count(len(found), "prediction rests", "predictions rest")
        logger.warning("%s on one condition of fewer than %d cells: %s", n, FEW_CELLS, shorten(found, 3))
