"""Candidates of the next experiment: which perturbations a model can say something about, and why not the others."""

from __future__ import annotations

import dataclasses
import logging
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import pandas as pd

from gears.conditions import Condition
from gears.core.messages import count, shorten
from gears.gears import GEARS
from gears.jobs.ensemble import Ensemble
from gears.model.folder import ModelParts
from gears.prediction.information import SOURCES, source_of_genes
from gears.prediction.predictions import Predictions
from gears.prediction.stream import chunk_size, stream

logger = logging.getLogger(__name__)

Model = GEARS | Ensemble
Entries = Iterable[str | Sequence[str] | Condition]
MEASURED = "already measured"
CONTROL = "the control"

_NO_SD = (
    "this model has no standard deviations of its predictions, which probabilities need; train one with a prior, "
    'train(prior="auto"), or give an Ensemble of several models'
)


@dataclass(frozen=True)
class Candidates:
    """Perturbations to choose from.

    Attributes
    ----------
    pert_names
        Names of the P nodes of the perturbation graph.
    node_CK
        Nodes of each of the C candidates, int32, -1 where it has fewer genes than others.
    excluded
        Why other candidates are excluded, by name.
    """

    pert_names: Sequence[str]
    node_CK: np.ndarray
    excluded: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.node_CK)

    def condition(self, row: int) -> Condition:
        """The candidate of a row."""
        return Condition(tuple(self.pert_names[node] for node in self.node_CK[row].tolist() if node >= 0))

    def __iter__(self) -> Iterator[Condition]:
        return map(self.condition, range(len(self)))

    def rows_of(self, conditions: Iterable[Condition]) -> dict[Condition, int]:
        """Rows of those conditions that are candidates."""
        wanted = set(conditions)
        return {condition: row for row, condition in enumerate(self) if condition in wanted} if wanted else {}


def parts_of(model: Model) -> ModelParts:
    """The parts of a model, of an ensemble those of its first; raises for a model with several settings."""
    parts = (model.models[0] if isinstance(model, Ensemble) else model)._need_model()
    names = () if parts.contexts is None else (*parts.contexts.contexts, *parts.contexts.kinds)
    if parts.contexts is not None and max(len(parts.contexts.contexts), len(parts.contexts.kinds)) > 1:
        msg = (
            f"this model has several contexts or perturbation types ({shorten(names)}); gears.design needs a model of "
            "one: prepare the cells of one alone, such as adata[adata.obs[column] == name], and train on them"
        )
        raise ValueError(msg)
    return parts


def fitted_plain(parts: ModelParts) -> set[Condition]:
    """Conditions that the model is fitted to, without the name of its only setting."""
    return {one.plain for one in parts.fitted_conditions()}


def entries_of(entries: Entries) -> Iterable[str | Sequence[str] | Condition]:
    """Entries to iterate over; a single name or condition is one entry."""
    return [entries] if isinstance(entries, str | Condition) else entries


def read_candidates(
    model: Model,
    candidates: Entries | None = None,
    measured: Entries = (),
    *,
    keep_measured: bool = False,
    what: str = "candidate",
) -> Candidates:
    """Candidates without those that the model knows nothing of, and without measured ones.

    Parameters
    ----------
    candidates
        Genes, or conditions such as "A+B"; all genes of the perturbation graph when None. They are read one by one, so
        that a generator of a million pairs takes 8 bytes a pair.
    measured
        Conditions that were measured, beside those that the model is fitted to.
    keep_measured
        Do not exclude measured conditions.
    what
        What messages call the candidates.

    Raises
    ------
    ValueError
        No candidate is left.
    """
    parts = parts_of(model)
    node_of = {name: node for node, name in enumerate(parts.pert_names)}
    name_of_lower = {name.lower(): name for name in parts.pert_names}
    known = set() if keep_measured else fitted_plain(parts) | _known_conditions(measured, node_of)
    unknown_source = {gene for gene, source in source_of_genes(parts).items() if source == SOURCES[-1]}
    excluded: dict[str, str] = {}
    by_size: dict[int, array[int]] = {}
    every = (Condition((name,)) for name in parts.pert_names)
    setting_names = {
        "",
        *(() if parts.contexts is None else (*parts.contexts.contexts, *parts.contexts.kinds)),
    }
    for entry in every if candidates is None else map(Condition.of, entries_of(candidates)):
        condition = entry.plain if {entry.context, entry.kind} <= setting_names else entry
        reason = _reason(condition, node_of, name_of_lower, known, unknown_source)
        if reason:
            excluded[condition.name] = reason
        else:
            by_size.setdefault(len(condition), array("i")).extend(node_of[gene] for gene in condition.genes)
    node_CK = _padded(by_size)
    if not len(node_CK):
        reasons = shorten([f"{name}: {reason}" for name, reason in excluded.items()], 3) or "none was given"
        remedy = "" if keep_measured else ", without measured ones"
        msg = f"no {what} is left ({reasons}); give genes of pert_list{remedy}"
        raise ValueError(msg)
    if candidates is not None and excluded:
        shown = shorten([f"{name} ({reason})" for name, reason in excluded.items()], 3)
        logger.warning("%s excluded: %s", count(len(excluded), what), shown)
    return Candidates(parts.pert_names, node_CK, excluded)


def _known_conditions(measured: Entries, node_of: dict[str, int]) -> set[Condition]:
    """The measured conditions; logs a warning for those with unknown genes."""
    conditions = {Condition.of(one).plain for one in entries_of(measured)}
    unknown = sorted(one.name for one in conditions if not node_of.keys() >= set(one.genes))
    if unknown:
        n = count(len(unknown), "measured condition")
        logger.warning("%s ignored, as the perturbation graph lacks their genes: %s", n, shorten(unknown, 5))
    return conditions


def _reason(
    condition: Condition,
    node_of: dict[str, int],
    name_of_lower: dict[str, str],
    known: set[Condition],
    uninformed: set[str],
) -> str:
    """Why a condition is no candidate, or ""."""
    if condition.is_control:
        return CONTROL
    if condition.suffix:
        return "names a context or perturbation type that the model does not have"
    if condition in known:
        return MEASURED
    for gene in condition.genes:
        if gene not in node_of:
            other = name_of_lower.get(gene.lower())
            hint = f"; did you mean {other!r}?" if other else ""
            return f"{gene} is not a gene of the perturbation graph{hint}"
        if gene in uninformed:
            return f"nothing is known of {gene}: it has no neighbours in the graph"
    return ""


def _padded(by_size: dict[int, array[int]]) -> np.ndarray:
    """Nodes of distinct conditions, in the order of their numbers of genes, then of their first entry."""
    width = max(by_size, default=1)
    tables = []
    for size in sorted(by_size):
        node_CK = np.frombuffer(by_size[size], dtype=np.int32).reshape(-1, size)
        first = np.sort(np.unique(node_CK, axis=0, return_index=True)[1])
        tables.append(np.pad(node_CK[first], ((0, 0), (0, width - size)), constant_values=-1))
    return np.vstack(tables) if tables else np.empty((0, width), dtype=np.int32)


def predicted(model: Model, conditions: Iterable[Condition]) -> Iterator[Predictions]:
    """Predictions with standard deviations, chunk by chunk and not clipped.

    Raises ValueError, with the remedy, for a model without standard deviations.
    """
    if isinstance(model, Ensemble):
        size, remaining = chunk_size(len(model.gene_list)), iter(conditions)
        chunks: Iterable[Predictions] = (
            model.predict(chunk, clip=False) for chunk in iter(lambda: list(islice(remaining, size)), [])
        )
    else:
        chunks = stream(*model._predictor(), conditions, clip=False)
    for predictions in chunks:
        if predictions.sd is None:
            raise ValueError(_NO_SD)
        yield dataclasses.replace(
            predictions, conditions=tuple(condition.plain for condition in predictions.conditions)
        )


def need_sd(model: Model) -> None:
    """Raise ValueError, with the remedy, for a model without standard deviations."""
    prior = parts_of(model).prior
    if not isinstance(model, Ensemble) and (prior is None or prior.uncertainty is None):
        raise ValueError(_NO_SD)


def with_excluded(table: pd.DataFrame, candidates: Candidates) -> pd.DataFrame:
    """The table with the excluded candidates and their reasons in ``attrs["excluded"]``."""
    table.attrs["excluded"] = dict(candidates.excluded)
    return table
