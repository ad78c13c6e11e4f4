"""Information behind predictions: their model and screen, its gene names, the conditions that they rest on."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gears.conditions import Condition, joined_otherwise
from gears.core._installation import __version__
from gears.core._messages import count, in_a_line, shorten
from gears.data.screen._spelling import Spelling
from gears.data.splits._split import Split, subgroup_names
from gears.graphs._annotation import GeneAnnotation, near_symbols

if TYPE_CHECKING:
    from gears.data.screen._contexts import ModelContexts
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
    # the better source last: it replaces the weaker one
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


CONTENT = "predicted mean expression"
SHOWN = 3
MOST_OF_IT = 0.5  # share of the weights from which on a prediction rests on one condition
FEW_CELLS = 10
_BLOCK = 4096  # conditions at a time


def shares_of_weights(prior: GenePrior, sets: Sequence[Sequence[int]]) -> np.ndarray:
    """Share of each training condition in the weights of each prediction, (U, C), for a gene of average signal.

    Of those that perturb the same genes or alike ones. Where there are none, all conditions count alike.
    """
    assert prior.basis is not None
    assert prior.measured is not None
    own_U = prior.measured.rows(sets)
    share_UC = np.abs(prior.basis.typical_weights(sets, own_U))
    at = np.flatnonzero(own_U >= 0)
    if len(at) and prior.uncertainty is not None:
        kept_R = prior.measured.shares(sets, float(prior.uncertainty.gene_G.mean()))[at]
        share_UC[at] *= (1 - kept_R)[:, None]
        share_UC[at, own_U[at]] = kept_R
    total_U1 = share_UC.sum(axis=1, keepdims=True)
    alike_UC = np.full_like(share_UC, 1 / share_UC.shape[1])
    return np.divide(share_UC, total_U1, out=alike_UC, where=total_U1 > 1e-9)


def effective_number(share_UC: np.ndarray) -> np.ndarray:
    """1 / sum of squared shares, (U,)."""
    return np.asarray(1 / (share_UC**2).sum(axis=1))


def name_of_training(model: ModelParts | Origin, row: int) -> Condition:
    """The training condition of a row of a model's prior, as the model names it."""
    assert model.prior is not None
    assert model.prior.measured is not None
    nodes: Any = model.prior.measured.sets[row]  # a NodeSet where the model has contexts
    contexts = model.contexts
    condition = Condition(tuple(model.pert_names[node] for node in nodes))
    if contexts is None:
        return condition
    context = contexts.contexts[nodes.context] if contexts.contexts else ""
    return condition.at(context, contexts.kinds[nodes.kind] if contexts.kinds else "")


def table_of_shares(origin: Origin, conditions: Sequence[Condition]) -> pd.DataFrame | None:
    """Columns ``n_effective`` and ``most_important``; None for a prior that does not keep what it was fitted to."""
    if origin.prior is None or origin.prior.basis is None:
        return None
    numbers, texts = [], []
    for start in range(0, len(conditions), _BLOCK):
        block = conditions[start : start + _BLOCK]
        share_UC = shares_of_weights(origin.prior, sets_of(origin, block))
        numbers.append(effective_number(share_UC))
        for condition, share_C in zip(block, share_UC, strict=True):
            first = np.argsort(-share_C, kind="stable")[:SHOWN].tolist() if not condition.is_control else []
            texts.append(", ".join(f"{name_of_training(origin, row).name} {share_C[row]:.0%}" for row in first))
    n_effective = np.concatenate(numbers) if numbers else np.zeros(0)
    n_effective[[condition.is_control for condition in conditions]] = np.nan
    return pd.DataFrame({"n_effective": n_effective, "most_important": texts})


def warn_of_few_cells(origin: Origin, conditions: Sequence[Condition]) -> None:
    """Log one warning about predictions that rest on one condition of few cells."""
    perturbed = [condition for condition in conditions if not condition.is_control][:_BLOCK]
    if not perturbed or origin.prior is None or origin.prior.basis is None:
        return
    n_C, share_UC = origin.prior.basis.n_C, shares_of_weights(origin.prior, sets_of(origin, perturbed))
    first_U = share_UC.argmax(axis=1)
    is_one_U = (share_UC.max(axis=1) >= MOST_OF_IT) & (n_C[first_U] < FEW_CELLS)
    weak = []
    for row in np.flatnonzero(is_one_U).tolist():
        first = int(first_U[row])
        weak.append(f"{perturbed[row].name} ({name_of_training(origin, first).name}, {count(int(n_C[first]), 'cell')})")
    if weak:
        n = count(len(weak), "prediction rests", "predictions rest")
        logger.warning("%s on one condition of fewer than %d cells: %s", n, FEW_CELLS, shorten(weak, 3))


def sets_of(model: ModelParts | Origin, conditions: Sequence[Condition]) -> Sequence[Sequence[int]]:
    """Nodes of conditions, with context and type where a model has several settings."""
    nodes, contexts = nodes_of(conditions, model.pert_names), model.contexts
    if contexts is None or max(len(contexts.contexts), len(contexts.kinds)) <= 1:
        return nodes
    return contexts.node_sets(conditions, nodes)


def nodes_of(conditions: Sequence[Condition], pert_names: Sequence[str]) -> list[list[int]]:
    """Perturbation-graph nodes of conditions; raises for a gene that is no node, with similar names."""
    index = {name: node for node, name in enumerate(pert_names)}
    unknown = sorted({gene for condition in conditions for gene in condition.genes if gene not in index})
    if unknown:
        hints = [f"{gene} ({_hint(gene, pert_names, index)})" for gene in unknown[:5]]
        msg = (
            f"{count(len(unknown), 'gene is', 'genes are')} not among the {len(index)} of the perturbation graph: "
            f"{'; '.join(hints)}; see pert_list for what can be predicted"
        )
        raise ValueError(msg)
    return [[index[gene] for gene in condition.genes] for condition in conditions]


def _hint(name: str, pert_names: Sequence[str], index: Mapping[str, int]) -> str:
    """What a user may mean by a name that is no node."""
    joined = joined_otherwise(name, index)
    if joined is not None:
        return f"did you mean {joined.name!r}?"
    if name in GeneAnnotation.human().ambiguous:
        return "a name of several genes: give the symbol of the one that is meant"
    return f"near: {', '.join(near_symbols(name, pert_names)) or 'none'}"


@dataclass(frozen=True)
class Origin:
    """The model and the screen that predictions come from."""

    gene_ids: tuple[str, ...]  # ids of the G genes: the index of the screen's var
    fitted_to: frozenset[Condition] | None = None
    """Conditions that the model was fitted to, with the control; None for a model without a split."""
    source_of: Mapping[str, str] = field(default_factory=dict)
    """What is known of each gene that can be perturbed, one of :data:`SOURCES`; empty for a model without a split."""
    provenance: Mapping[str, Any] = field(default_factory=dict)  # facts about the screen: dataset, hash
    split: Split | None = None  # the model's
    spelling: Spelling = field(default_factory=Spelling)  # how the screen's own labels were written
    # prior, pert_names, contexts: those of the model, which say how probable changes are and what predictions rest on
    prior: GenePrior | None = field(default=None, repr=False)
    pert_names: tuple[str, ...] = field(default=(), repr=False)
    contexts: ModelContexts | None = field(default=None, repr=False)

    @classmethod
    def of(cls, parts: ModelParts) -> Origin:
        """The origin of a model's predictions."""
        fitted = None
        if parts.split is not None:
            controls = (condition for condition in parts.training_conditions() if condition.is_control)
            fitted = frozenset([*parts.fitted_conditions(), *controls])
        facts = (parts.gene_ids, fitted, source_of_genes(parts), parts.provenance, parts.split, parts.spelling)
        return cls(*facts, parts.prior, parts.pert_names, parts.contexts)

    @property
    def description(self) -> dict[str, Any]:
        """Plain values for ``uns``: dataset, hash of the screen, split."""
        facts, split = dict(self.provenance), self.split
        if split is not None:
            facts |= {"split": split.name, "split_seed": split.seed, "split_hash": split.hash}
        return {name: value for name, value in facts.items() if isinstance(value, str | int | float)}


def condition_table(conditions: Sequence[Condition], origin: Origin | None) -> pd.DataFrame:
    """One row per condition: ``condition``, ``genes`` (joined by ","), ``n_genes``, ``subgroup``, ``trained``,
    ``informed_by``, ``n_effective``, ``most_important``.

    ``subgroup`` counts the genes that are perturbed in the conditions that the model was fitted to ("combo_seen1",
    "unseen_single", "ctrl"), ``trained`` is whether the condition is one of these, ``informed_by`` what is known of
    its least known gene (:data:`SOURCES`), the last two are those of
    :meth:`gears.prediction.Predictions.rests_on`; they are omitted where these conditions are unknown.
    """
    names = [condition.name for condition in conditions]
    table = pd.DataFrame(
        {
            "condition": names,
            "genes": [",".join(condition.genes) for condition in conditions],
            "n_genes": [len(condition) for condition in conditions],
        },
        index=pd.Index(names),
    )
    if any(condition.suffix for condition in conditions):
        table["context"] = [condition.context for condition in conditions]
        table["perturbation_type"] = [condition.kind for condition in conditions]
    if origin is not None and origin.fitted_to is not None:
        table["subgroup"] = subgroup_names(conditions, origin.fitted_to)
        table["trained"] = [condition in origin.fitted_to for condition in conditions]
        table["informed_by"] = informed_by(conditions, origin.source_of)
        shares = table_of_shares(origin, conditions)
        if shares is not None:
            table[shares.columns] = shares.to_numpy()
            table["n_effective"] = table["n_effective"].astype(float)
    return table


def gene_table(gene_names: Sequence[str], control_mean_G: np.ndarray | None, origin: Origin | None) -> pd.DataFrame:
    """One row per gene: ``gene_name``, ``gene_id`` (where known), ``control_mean`` (where it is one for all)."""
    table = pd.DataFrame({"gene_name": list(gene_names)}, index=pd.Index(list(gene_names)))
    if origin is not None:
        table["gene_id"] = list(origin.gene_ids)
    if control_mean_G is not None:
        table["control_mean"] = np.array(control_mean_G, dtype=np.float64)
    return table


def provenance(clip: bool, origin: Origin | None) -> dict[str, Any]:
    """Content of ``uns["gears"]``: plain values that h5ad and zarr can store."""
    description = {} if origin is None else origin.description
    return {"content": CONTENT, "clip": clip, "version": __version__, **description}
