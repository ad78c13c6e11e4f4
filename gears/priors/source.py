"""The data that a prior is fitted to and scored by, and the prior of a PertData."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from gears.conditions import Condition, contexts_of, kinds_of
from gears.data.screen.prepared import PreparedScreen
from gears.data.screen.statistics import variance_within
from gears.data.splits.split import perturbed_in
from gears.evaluation.metrics.registry import condition_metrics
from gears.evaluation.rows import changes, pearson_rows
from gears.evaluation.scoring import by_setting
from gears.evaluation.truth import Truth
from gears.files.cache import cached_arrays
from gears.files.formats import content_hash
from gears.files.mapped import release, row_blocks
from gears.graphs.annotation import GeneAnnotation
from gears.graphs.go import jaccard
from gears.priors.evidence import sample
from gears.priors.fit import Criterion, FittedPrior, PriorData, fit_prior, mean_of_others
from gears.priors.fit_settings import UnitData, fit_context_prior
from gears.priors.kernels import GeneSimilarity
from gears.priors.prior import read_prior

if TYPE_CHECKING:
    from gears.pertdata import PertData

MOST_JUDGED, FEWEST_JUDGED, JUDGED_VALUES = 2000, 200, 10_000_000
"""Conditions whose predictions decide among candidates: of more a fixed sample is taken, of so many values (conditions
x genes) fewer, but not fewer than the second."""
_ROWS = 2048
_BLOCK_VALUES = 1 << 17  # conditions x genes of a block

FORMAT = 9  # raise when a prior of the same key would come out differently


def prior_data(
    screen: PreparedScreen,
    conditions: Sequence[Condition],
    nodes: Sequence[Sequence[int]],
    pert_names: Sequence[str],
    annotation: GeneAnnotation,
    vectors_PH: np.ndarray | None = None,
) -> PriorData:
    """Training conditions of a prepared screen.

    Parameters
    ----------
    screen
        The prepared screen; only its table of statistics is read.
    conditions, nodes
        The perturbed training conditions and their perturbation-graph nodes.
    pert_names
        Names of all P nodes.
    annotation
        GO annotation, for the similarity of genes.
    vectors_PH
        Vectors of all nodes, for a second similarity; NaN where a node has none.
    """
    statistics = screen.statistics
    ids = np.array([screen.id_of(condition) for condition in conditions], dtype=np.int64)
    control_mean_G = np.asarray(statistics.mean[screen.control_id], dtype=np.float64)
    return data_of(
        screen, ids, statistics.delta(ids), control_mean_G, nodes, pert_names, annotation, vectors_PH
    )


def data_of(
    screen: PreparedScreen,
    ids: np.ndarray,
    delta_CG: np.ndarray,
    control_mean_G: np.ndarray,
    nodes: Sequence[Sequence[int]],
    pert_names: Sequence[str],
    annotation: GeneAnnotation,
    vectors_PH: np.ndarray | None = None,
) -> PriorData:
    """Training conditions, by their rows in the screen's table of statistics, with changes that are known already."""
    statistics = screen.statistics
    column = {gene: place for place, gene in enumerate(screen.gene_names)}
    return PriorData(
        tuple(tuple(members) for members in nodes),
        delta_CG,
        variance_within(statistics, ids),
        np.asarray(statistics.n[ids], dtype=np.float64),
        control_mean_G,
        np.array([column.get(str(name), -1) for name in pert_names], dtype=np.int64),
        go_similarity(annotation, pert_names, nodes),
        () if vectors_PH is None else (vector_similarity(vectors_PH, nodes),),
    )


def vector_similarity(vectors_PH: np.ndarray, nodes: Sequence[Sequence[int]]) -> GeneSimilarity:
    """Cosine of the vectors of all nodes and those that occur in `nodes`; a gene is 1 to itself.

    A node without a vector (NaN or all zero) is like no other.
    """
    trained_T = np.unique(np.array([node for members in nodes for node in members], dtype=np.int64))
    vectors_PH = np.nan_to_num(np.asarray(vectors_PH, dtype=np.float64))
    length_P1 = np.linalg.norm(vectors_PH, axis=1, keepdims=True)
    unit_PH = np.divide(vectors_PH, length_P1, out=np.zeros_like(vectors_PH), where=length_P1 > 0)
    cosine_PT = unit_PH @ unit_PH[trained_T].T
    cosine_PT[trained_T, np.arange(len(trained_T))] = 1.0
    return GeneSimilarity(trained_T, sparse.csr_matrix(cosine_PT))


def go_similarity(
    annotation: GeneAnnotation, pert_names: Sequence[str], nodes: Sequence[Sequence[int]]
) -> GeneSimilarity:
    """Jaccard similarity of GO terms of all nodes to those that occur in `nodes`; a gene is 1 to itself."""
    trained_T = np.unique(np.array([node for members in nodes for node in members], dtype=np.int64))
    names = [str(name) for name in pert_names]
    of_trained = annotation.rows([names[node] for node in trained_T])
    blocks = []
    for start in range(0, len(names), _ROWS):
        block = jaccard(annotation.rows(names[start : start + _ROWS]), of_trained)
        here = (trained_T >= start) & (trained_T < start + _ROWS)
        block[trained_T[here] - start, np.flatnonzero(here)] = 1.0
        blocks.append(sparse.csr_matrix(block))
    return GeneSimilarity(trained_T, sparse.csr_matrix(sparse.vstack(blocks, format="csr")))


def judge(screen: PreparedScreen, conditions: Sequence[Condition], known_mean_UG: np.ndarray) -> Criterion:
    """Error of predicted changes of `conditions`, for choices among predictions; lower is better.

    The sum of mse and mse_top20_de, each as a share of the train mean's, less pearson_delta and
    pearson_delta_ref (undefined ones count 0), all averaged over conditions: what the
    evaluation looks at, at equal weight. Without a ranking of differential genes the terms
    over these are excluded.

    Parameters
    ----------
    screen
        The prepared screen; only its table of statistics is read.
    conditions
        The U conditions whose predictions are compared.
    known_mean_UG
        The train mean of each prediction, (U, G): mean of the conditions that it is made from, without
        the condition itself, since a mean that held it would be beaten by its own opposite.
    """
    return criterion_of(Truth.of(screen, conditions, conditions), known_mean_UG)


def criterion_of(truth: Truth, known_mean_UG: np.ndarray) -> Criterion:
    """The criterion of :func:`judge` against a truth, block by block of conditions: small arrays stay in the cache."""
    errors = ["mse", "mse_top20_de"] if truth.has_de else ["mse"]
    base = np.nanmean(condition_metrics(known_mean_UG, truth, errors), axis=0)
    step = max(1, _BLOCK_VALUES // max(1, known_mean_UG.shape[1]))
    blocks = []
    for start in range(0, len(known_mean_UG), step):
        rows = slice(start, start + step)
        blocks.append((rows, truth.subset(rows), *changes(truth.mean_UG[rows], known_mean_UG[rows])))

    def criterion(delta_UG: np.ndarray) -> float:
        values, specific = [], []
        for rows, part, specific_UG, noise_of_truth in blocks:
            predicted_UG = np.maximum(truth.control_mean_G + delta_UG[rows], 0.0)
            values.append(condition_metrics(predicted_UG, part, [*errors, "pearson_delta"]))
            departure_UG, noise = changes(predicted_UG, known_mean_UG[rows])
            specific.append(pearson_rows(departure_UG, specific_UG, noise_a=noise, noise_b=noise_of_truth))
        mean = np.nan_to_num(np.concatenate(values)).mean(axis=0)
        shares = mean[: len(errors)] / np.where(base > 0, base, 1.0)
        return float(shares.sum() - mean[-1] - np.nan_to_num(np.concatenate(specific)).mean())

    return criterion


def most_judged(n_genes: int) -> int:
    """Conditions of as many genes whose predictions decide, at most."""
    return max(FEWEST_JUDGED, min(MOST_JUDGED, JUDGED_VALUES // max(1, n_genes)))


def means_without(
    screen: PreparedScreen, conditions: Sequence[Condition], rows: np.ndarray | None = None
) -> np.ndarray:
    """Mean of all others' profiles for some of several conditions, (R, G) float64; of one alone its own."""
    if rows is None or len(rows) == len(conditions):
        return mean_of_others(profiles(screen, conditions))
    total_G = mean_of(screen, conditions) * len(conditions)
    own_RG = profiles(screen, [conditions[row] for row in rows.tolist()])
    return np.asarray((total_G - own_RG) / (len(conditions) - 1))


def mean_of(screen: PreparedScreen, conditions: Sequence[Condition]) -> np.ndarray:
    """Mean profile of several conditions, each counting once, (G,) float64."""
    total_G = np.zeros(len(screen.gene_names))
    for rows in row_blocks(len(conditions), len(total_G)):
        total_G += profiles(screen, conditions[rows]).sum(axis=0)
    return total_G / len(conditions)


def profiles(screen: PreparedScreen, conditions: Sequence[Condition]) -> np.ndarray:
    """Mean expression of each condition, (C, G) float64."""
    ids = [screen.id_of(condition) for condition in conditions]
    profiles_CG = np.asarray(screen.statistics.mean[ids], dtype=np.float64)
    release(screen.statistics.mean)
    return profiles_CG


class PriorSource:
    """A screen as its prior sees it.

    Parameters
    ----------
    pert_data
        The screen with its nodes, annotation and split.
    screen
        Of one context.
    """

    def __init__(self, pert_data: PertData, screen: PreparedScreen) -> None:
        self.pert_data, self.screen = pert_data, screen

    def _nodes(self, conditions: Sequence[Condition]) -> list[Sequence[int]]:
        return [self.pert_data.condition_nodes(condition) for condition in conditions]

    @property
    def _names(self) -> list[str]:
        return [str(name) for name in self.pert_data.pert_names]

    def data(self, conditions: Sequence[Condition], vectors_PH: np.ndarray | None = None) -> Any:
        """What is fitted, with ``subset(rows)`` and ``sets``; vectors of nodes are a second similarity."""
        nodes, plain = self._nodes(conditions), [condition.plain for condition in conditions]
        return prior_data(self.screen, plain, nodes, self._names, self.pert_data.annotation, vectors_PH)

    def fit(self, conditions: Sequence[Condition], data: Any) -> FittedPrior:
        """The prior of training conditions; of very many a fixed sample is judged."""
        plain = [condition.plain for condition in conditions]
        rows = sample(len(plain), most_judged(len(self.screen.gene_names)))
        some = [plain[row] for row in rows.tolist()]
        return fit_prior(data, judge(self.screen, some, means_without(self.screen, plain, rows)), rows)

    def known_means(self, inner: Sequence[Condition], held_out: Sequence[Condition]) -> np.ndarray:
        """Train mean of each held-out condition, (U, G)."""
        return np.repeat(mean_of(self.screen, [one.plain for one in inner])[None], len(held_out), axis=0)

    def judge(self, conditions: Sequence[Condition], known_mean_UG: np.ndarray) -> Criterion:
        """Error of predicted changes (:func:`gears.priors.judge`)."""
        return judge(self.screen, [condition.plain for condition in conditions], known_mean_UG)

    def groups(self, conditions: Sequence[Condition]) -> list[Hashable]:
        """What is held out together: here every condition by itself."""
        return list(range(len(conditions)))


class UnitSource(PriorSource):
    """A screen of several contexts or types of perturbation."""

    def data(self, conditions: Sequence[Condition], vectors_PH: np.ndarray | None = None) -> UnitData:
        """Changes of units against the control of their context."""
        screen, nodes, names = self.screen, self._nodes(conditions), self._names
        ids = np.array([screen.id_of(unit) for unit in conditions], dtype=np.int64)
        mean_KG, n_kinds = screen.model_contexts.control_mean_KG, max(1, len(screen.kinds))
        delta_CG, mean_G = screen.statistics.delta(ids), mean_KG.mean(axis=0)
        units = data_of(screen, ids, delta_CG, mean_G, nodes, names, self.pert_data.annotation, vectors_PH)
        groups = self.groups(conditions)
        numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
        setting_C = contexts_of(nodes) * n_kinds + kinds_of(nodes)
        group_C = np.array([numbers[group] for group in groups], dtype=np.int64)
        return UnitData(units, setting_C, np.repeat(mean_KG, n_kinds, axis=0), n_kinds, group_C, nodes)

    def fit(self, conditions: Sequence[Condition], data: UnitData) -> FittedPrior:
        """The prior of training units; of very many a fixed sample is judged."""
        chosen = sample(len(conditions), most_judged(len(self.screen.gene_names)))
        known_RG = np.empty((len(chosen), len(self.screen.gene_names)))
        for _, rows in by_setting(self.screen, conditions):
            here, places = np.isin(chosen, rows), np.flatnonzero(np.isin(rows, chosen))
            units = [conditions[row] for row in rows.tolist()]
            known_RG[here] = means_without(self.screen, units, places)
        some = [conditions[row] for row in chosen.tolist()]
        return fit_context_prior(data, self.judge(some, known_RG), chosen)

    def known_means(self, inner: Sequence[Condition], held_out: Sequence[Condition]) -> np.ndarray:
        """Mean of the inner units of the same setting; without any, the control plus the mean change elsewhere."""
        screen = self.screen
        ids = np.array([screen.id_of(unit) for unit in inner], dtype=np.int64)
        change_G = screen.statistics.delta(ids).mean(axis=0)
        known_UG = np.empty((len(held_out), len(screen.gene_names)))
        for row, unit in enumerate(held_out):
            same = [one for one in inner if (one.context, one.kind) == (unit.context, unit.kind)]
            control = screen.statistics.mean[screen.id_of(Condition((), unit.context))]
            known_UG[row] = mean_of(screen, same) if same else control + change_G
        return known_UG

    def judge(self, conditions: Sequence[Condition], known_mean_UG: np.ndarray) -> Criterion:
        """Mean over units of the criterion within each setting."""
        parts = [
            (rows, criterion_of(Truth.of(view, [conditions[row].plain for row in rows]), known_mean_UG[rows]))
            for view, rows in by_setting(self.screen, conditions)
        ]

        def criterion(delta_UG: np.ndarray) -> float:
            total = sum(len(rows) * part(delta_UG[rows]) for rows, part in parts)
            return float(total) / max(1, len(conditions))

        return criterion

    def groups(self, conditions: Sequence[Condition]) -> list[Hashable]:
        """What is held out together where predictions of unseen units are imitated.

        Contexts, where the split holds whole contexts out and two or more train; single units, where it
        holds units out; else conditions in all their contexts.
        """
        split = self.pert_data.split
        name = "" if split is None else split.name
        if name == "context_held_out" and len({unit.context for unit in conditions}) > 1:
            return [unit.context for unit in conditions]
        if name == "unit_held_out":
            return list(range(len(conditions)))
        return [unit.genes for unit in conditions]


def prior_source(pert_data: PertData) -> PriorSource:
    """The source of a screen's prior; one context and type is a screen like any other."""
    screen = pert_data.screen
    if len(screen.settings) == 1:
        return PriorSource(pert_data, screen.settings[0])
    return UnitSource(pert_data, screen)


def prior_of(
    pert_data: PertData, parts: Sequence[str] = ("train",), start_PH: np.ndarray | None = None
) -> FittedPrior | None:
    """The prior fitted to the perturbed conditions of some parts of the split; None where there is none.

    It comes from the screen's cache where it was fitted before. It depends on the screen, these conditions
    and the annotation, on nothing else: neither on other conditions nor on the network or the number of workers.

    Parameters
    ----------
    parts
        Parts of the split.
    start_PH
        Embeddings of all perturbation nodes for a second similarity, (P, H); NaN where a node has none.
    """
    conditions = _perturbed(pert_data, parts)
    if not conditions:
        return None
    screen, source = pert_data.screen, prior_source(pert_data)
    key = {
        "format": FORMAT,
        "screen": screen.content_hash,
        "conditions": [screen.id_of(condition) for condition in conditions],
        "groups": [str(group) for group in source.groups(conditions)],
        "nodes": [str(name) for name in pert_data.pert_names],
        "annotation": pert_data.annotation.content_hash,
        "start": None if start_PH is None else content_hash(start_PH),
    }

    def fit() -> dict[str, np.ndarray]:
        fitted = source.fit(conditions, source.data(conditions, start_PH))
        report = np.array(json.dumps(dict(fitted.prior.report)))
        return {**fitted.prior.arrays(), "report": report, "left_out": fitted.left_out_CG}

    arrays = cached_arrays(screen.folder / "priors", "prior", key, fit)
    report = json.loads(str(arrays.pop("report")))
    left_out_CG = arrays.pop("left_out")
    return FittedPrior(dataclasses.replace(read_prior(arrays, report), network_weight=0.0), left_out_CG)


def prior_rows(pert_data: PertData, fitted: FittedPrior) -> np.ndarray:
    """Changes by condition of the screen, (C, G) float32: each training condition predicted without itself, else 0.

    So the network learns the errors that the prior makes on conditions that it has not seen.
    """
    screen = pert_data.screen
    rows_CG = np.zeros((len(screen.conditions), len(screen.gene_names)), dtype=np.float32)
    rows_CG[[screen.id_of(condition) for condition in _perturbed(pert_data, ("train",))]] = fitted.left_out_CG
    return rows_CG


def _perturbed(pert_data: PertData, parts: Sequence[str]) -> list[Condition]:
    """Perturbed conditions of some parts by their id, so that the order of a split does not matter."""
    named = [condition for part in parts for condition in perturbed_in(pert_data.split, part)]
    return sorted(named, key=pert_data.screen.id_of)
