"""Candidates of the next experiment: which perturbations a model can say something about, and why not the others."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import pandas as pd

from gears.conditions import Condition
from gears.core._messages import count, shorten
from gears.gears import AnyModel, gears_of
from gears.jobs.ensemble import Ensemble
from gears.model._folder import ModelParts
from gears.prediction._blocks import IN_THIS_PROCESS, Block, Reduce, Workers, over_blocks
from gears.prediction._information import SOURCES, source_of_genes
from gears.prediction._stream import candidate_genes, chunk_size, stream
from gears.prediction.predictions import Predictions

logger = logging.getLogger(__name__)

Model = AnyModel | Ensemble
Entries = Iterable[str | Sequence[str] | Condition]
MEASURED = "already measured"
CONTROL = "the control"
EXPRESSED = 0.1
"""Least mean of control cells (log scale) of a gene that is a candidate by default: about a count in ten cells."""

_NO_SD = (
    "this model has no standard deviations of its predictions, which probabilities need; train one with a prior, "
    'train(prior="auto"), or give an Ensemble of several models'
)


@dataclass(frozen=True)
class Candidates:
    """Perturbations to choose from."""

    pert_names: Sequence[str]  # names of the P nodes of the perturbation graph
    node_CK: np.ndarray  # nodes of each of the C candidates, int32, -1 where it has fewer genes than others
    setting_C: np.ndarray  # setting of each candidate
    settings: Sequence[tuple[str, str]]  # context and type of each setting; "" for those of a model that has one
    excluded: dict[str, str] = field(default_factory=dict)  # why other candidates are excluded, by name

    def __len__(self) -> int:
        return len(self.node_CK)

    def condition(self, row: int) -> Condition:
        """The candidate of a row."""
        genes = tuple(self.pert_names[node] for node in self.node_CK[row].tolist() if node >= 0)
        return Condition(genes, *self.settings[self.setting_C[row]])

    def __iter__(self) -> Iterator[Condition]:
        return map(self.condition, range(len(self)))

    def rows_of(self, conditions: Iterable[Condition]) -> dict[Condition, int]:
        """Rows of those conditions that are candidates."""
        wanted = set(conditions)
        return {condition: row for row, condition in enumerate(self) if condition in wanted} if wanted else {}


def parts_of(model: Model) -> ModelParts:
    """The parts of a trained model, of an ensemble those of its first."""
    return gears_of(model.models[0] if isinstance(model, Ensemble) else model)._need_model()


@dataclass(frozen=True)
class Settings:
    """The settings of a model: contexts with a type of perturbation, numbered as in its prior."""

    names: tuple[tuple[str, str], ...]  # context and type of each
    fitted: frozenset[int]  # those with conditions that the model is fitted to; all where these are not known

    @classmethod
    def of(cls, parts: ModelParts) -> Settings:
        """Those of a model."""
        contexts, kinds = ((), ()) if parts.contexts is None else (parts.contexts.contexts, parts.contexts.kinds)
        names = tuple((context, kind) for context in contexts or ("",) for kind in kinds or ("",))
        used = {(one.context, one.kind) for one in parts.fitted_conditions()}
        fitted = frozenset(number for number, name in enumerate(names) if name in used)
        return cls(names, fitted or frozenset(range(len(names))))

    @property
    def shown(self) -> tuple[tuple[str, str], ...]:
        """Names as conditions have them: without context and type where the model has one setting."""
        return self.names if len(self.names) > 1 else (("", ""),)

    def meant_by(self, condition: Condition) -> list[int]:
        """Settings that a condition names: where it names none, all that the model is fitted to."""
        fitting = [
            number
            for number, (context, kind) in enumerate(self.names)
            if condition.context in ("", context) and condition.kind in ("", kind)
        ]
        return [number for number in fitting if number in self.fitted] or fitting

    def conditions(self, condition: Condition) -> list[Condition]:
        """The condition in each setting that it means, as the model names it."""
        shown = self.shown
        return [condition.plain.at(*shown[number if len(shown) > 1 else 0]) for number in self.meant_by(condition)]


def fitted_conditions(parts: ModelParts) -> set[Condition]:
    """Conditions that the model is fitted to, without the name of an only setting."""
    settings = Settings.of(parts)
    return {one for condition in parts.fitted_conditions() for one in settings.conditions(condition)}


def all_pairs(genes: Model | Iterable[str]) -> Iterator[Condition]:
    """Every pair of distinct genes once, in the genes' order; for a model, of the genes perturbed in training."""
    names = genes if isinstance(genes, Iterable) else candidate_genes(parts_of(genes), None)
    return (Condition(pair) for pair in itertools.combinations(names, 2))


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
    """Candidates without those that the model knows nothing of, and without measured ones; ValueError if none is left.

    By default those are the genes expressed in the screen. One that names no setting means that condition in every
    setting that the model is fitted to. They are read one by one: a generator of a million pairs takes 12 bytes a pair.
    `measured` were measured beside the conditions that the model is fitted to; `what` messages call the candidates.
    """
    parts = parts_of(model)
    node_of = {name: node for node, name in enumerate(parts.pert_names)}
    name_of_lower = {name.lower(): name for name in parts.pert_names}
    settings = Settings.of(parts)
    since = [parts.spelling.condition(entry, node_of) for entry in entries_of(measured)]
    known = set() if keep_measured else fitted_conditions(parts) | _known_conditions(since, node_of, settings)
    unknown_source = {gene for gene, source in source_of_genes(parts).items() if source == SOURCES[-1]}
    excluded: dict[str, str] = {}
    by_size: dict[int, array[int]] = {}
    for named in expressed_genes(parts) if candidates is None else entries_of(candidates):
        entry = parts.spelling.condition(named, node_of)
        numbers = settings.meant_by(entry)
        if not numbers and not entry.is_control:
            excluded[entry.name] = "names a context or perturbation type that the model does not have"
        for number, condition in zip(numbers, settings.conditions(entry), strict=True):
            reason = _reason(condition, node_of, name_of_lower, known, unknown_source)
            if reason:
                excluded[condition.name] = reason
            else:
                row = by_size.setdefault(len(condition), array("i"))
                row.extend((number, *(node_of[gene] for gene in condition.genes)))
    setting_C, node_CK = _padded(by_size)
    if not len(node_CK):
        reasons = shorten([f"{name}: {reason}" for name, reason in excluded.items()], 3) or "none was given"
        remedy = "" if keep_measured else ", without measured ones"
        msg = f"no {what} is left ({reasons}); give genes of pert_list{remedy}"
        raise ValueError(msg)
    if candidates is not None and excluded:
        logger.warning("%s excluded: %s", count(len(excluded), what), excluded_by_reason(excluded))
    return Candidates(parts.pert_names, node_CK, setting_C, settings.shown, excluded)


def expressed_genes(parts: ModelParts) -> list[str]:
    """Genes of the perturbation graph that control cells express in some context.

    On a scale with negative values, where a mean does not say so, all measured ones.
    """
    mean_KG = parts.control_mean_G[None] if parts.contexts is None else parts.contexts.control_mean_KG
    is_expressed_G = mean_KG.max(axis=0) >= (EXPRESSED if parts.nonnegative else -np.inf)
    expressed = set(itertools.compress(parts.gene_names, is_expressed_G.tolist()))
    return [name for name in parts.pert_names if name in expressed]


def _known_conditions(measured: Sequence[Condition], node_of: dict[str, int], settings: Settings) -> set[Condition]:
    """The measured conditions; logs a warning for those with unknown genes."""
    conditions = {one for entry in measured for one in settings.conditions(entry)}
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
    if condition in known:
        return MEASURED
    for gene in condition.genes:
        if gene not in node_of:
            other = name_of_lower.get(gene.lower())
            hint = f"; did you mean {other!r}?" if other else ""
            return f"not a gene of the perturbation graph ({gene}{hint})"
        if gene in uninformed:
            return f"nothing is known of a gene ({gene} has no neighbours in the graph)"
    return ""


def _padded(by_size: dict[int, array[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Setting and nodes of distinct conditions, in the order of their numbers of genes, then of their first entry."""
    width = max(by_size, default=1)
    tables = [np.empty((0, 1 + width), dtype=np.int32)]
    for size in sorted(by_size):
        row_CK = np.frombuffer(by_size[size], dtype=np.int32).reshape(-1, 1 + size)
        first = np.sort(np.unique(row_CK, axis=0, return_index=True)[1])
        tables.append(np.pad(row_CK[first], ((0, 0), (0, width - size)), constant_values=-1))
    rows = np.vstack(tables)
    return rows[:, 0].astype(np.int64), rows[:, 1:]


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
        chunks = stream(*gears_of(model)._predictor(), conditions, clip=False)
    is_named = len(Settings.of(parts_of(model)).names) > 1
    for predictions in chunks:
        if predictions.sd is None:
            raise ValueError(_NO_SD)
        names = tuple(condition if is_named else condition.plain for condition in predictions.conditions)
        yield dataclasses.replace(predictions, conditions=names)


def reduced(model: Model, candidates: Candidates, reduce: Reduce, workers: Workers) -> Iterator[Block] | None:
    """What a function makes of :func:`predicted`, by any workers (see :func:`gears.prediction._blocks.over_blocks`)."""
    if not isinstance(model, Ensemble):
        return over_blocks(*gears_of(model)._predictor(), candidates, reduce, clip=False, workers=workers)
    if workers != IN_THIS_PROCESS:
        msg = "gpu_ids, n_at_once and dask take one model; found an Ensemble: omit them"
        raise ValueError(msg)
    return ((predictions.conditions, reduce(predictions)) for predictions in predicted(model, candidates))


def excluded_by_reason(excluded: Mapping[str, str]) -> str:
    """How many candidates are excluded for each reason, with an example of each."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in excluded.items():
        by_reason.setdefault(reason.partition(" (")[0], []).append(name)
    return "; ".join(f"{len(names)} {reason} ({shorten(names, 2)})" for reason, names in by_reason.items())


def need_sd(model: Model) -> None:
    """Raise ValueError, with the remedy, for a model without standard deviations."""
    prior = parts_of(model).prior
    if not isinstance(model, Ensemble) and (prior is None or prior.uncertainty is None):
        raise ValueError(_NO_SD)


def with_excluded(table: pd.DataFrame, candidates: Candidates) -> pd.DataFrame:
    """The table with the excluded candidates and their reasons in ``attrs["excluded"]``."""
    table.attrs["excluded"] = dict(candidates.excluded)
    return table
