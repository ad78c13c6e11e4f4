"""What the prior of a PertData is fitted to and scored by, fitting it, its cache, and what its head is trained on.

For the head the training conditions are divided into folds, singles and combinations evenly. A prior fitted to the
other folds predicts each fold, so that the head sees the errors that the prior makes on unseen conditions. (The prior's
predictions of a condition that was held out alone do not say what the genes of a condition would do alone.)
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from gears.conditions import Condition
from gears.core._numbers import unit_rows
from gears.core._progress import followed
from gears.data.screen._contexts import type_signs
from gears.data.screen._prepared import PreparedScreen
from gears.data.screen._statistics import variance_within
from gears.data.splits._split import held_out_by, perturbed_in
from gears.evaluation._fitted import by_setting
from gears.evaluation._scoring import by_fold
from gears.evaluation.metrics._decisive import ChoiceErrors
from gears.evaluation.truth import Truth
from gears.files._cache import cached_arrays
from gears.files._mapped import release, row_blocks
from gears.graphs._annotation import GeneAnnotation
from gears.graphs._go import jaccard
from gears.graphs._knowledge import cosines
from gears.graphs._similarities import SIMILARITIES, PriorInputs, columns_of, similarity_key, stored_profiles
from gears.priors._data import PriorData
from gears.priors._evidence import sample
from gears.priors._fit import FittedPrior, Inherited, fit_prior
from gears.priors._head import ALL_GENES, NAMES, HeadInputs, PriorChanges, strata
from gears.priors._kernels import ComputedSimilarity, GeneSimilarity
from gears.priors._prior import GenePrior
from gears.priors._process import levels, mean_of_others

if TYPE_CHECKING:
    from gears.pertdata import PertData

MOST_JUDGED, FEWEST_JUDGED, JUDGED_VALUES = 2000, 200, 10_000_000
"""Conditions whose predictions decide among candidates: of more a fixed sample is taken, of so many values (conditions
x genes) fewer, but not fewer than the second."""
_ROWS = 2048

N_FOLDS = 5
_SEED = 7
_LEAST_NOISE = 1e-3

FORMAT = 27  # raise when a prior of the same key would come out differently
NO_INPUTS = PriorInputs()


def prior_data(pert_data: PertData, conditions: Sequence[Condition], inputs: PriorInputs) -> PriorData:
    """Training conditions of all settings, with their changes against the control of their context."""
    screen, statistics, annotation = pert_data.screen, pert_data.screen.statistics, pert_data.annotation
    ids = np.array([screen.id_of(condition) for condition in conditions], dtype=np.int64)
    nodes = [pert_data.condition_nodes(condition) for condition in conditions]
    names: list[str] = pert_data.pert_names.tolist()
    first = screen.control_of[ids[0]]
    n_kinds = max(1, len(screen.kinds))
    # settings are numbered context x n_kinds + type, and a context's types share its control
    control_mean_SG = np.repeat(screen.model_contexts.control_mean_KG, n_kinds, axis=0)
    n_control: float | np.ndarray = float(statistics.n[first])
    if len(control_mean_SG) == 1:
        control_mean_SG = np.asarray(statistics.mean[first], dtype=np.float64)
    else:
        controls = [screen.id_of(Condition((), name)) for name in screen.contexts or ("",)]
        n_control = np.repeat(np.asarray(statistics.n[controls], dtype=np.float64), n_kinds)
    groups = groups_of(pert_data, conditions)
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    return PriorData(
        tuple(members if isinstance(members, tuple) else tuple(members) for members in nodes),
        statistics.delta(ids),
        variance_within(statistics, ids),
        statistics.cells(ids),
        control_mean_SG,
        columns_of(pert_data),
        go_similarity(annotation, names, nodes),
        further_similarities(pert_data, nodes, inputs),
        inputs.effects,
        n_control,
        np.array([numbers[group] for group in groups], dtype=np.int64),
        n_kinds,
        type_signs(screen.kinds),
        None if screen.is_measured_KG is None else np.repeat(screen.is_measured_KG, n_kinds, axis=0),
    )


def groups_of(pert_data: PertData, conditions: Sequence[Condition]) -> list[Hashable]:
    """What is held out together where predictions of unseen conditions are imitated.

    Every condition by itself in a screen with one setting, or where the split holds out single conditions of single
    contexts; contexts, where it holds whole contexts out and two or more train; else conditions in all their contexts.
    A custom split is taken for what most of its test conditions are.
    """
    name = "" if pert_data.split is None else held_out_by(pert_data.split)
    if len(pert_data.screen.settings) == 1 or name == "unit_held_out":
        return list(range(len(conditions)))
    if name == "context_held_out" and len({condition.context for condition in conditions}) > 1:
        return [condition.context for condition in conditions]
    return [condition.genes for condition in conditions]


def fit_to(
    pert_data: PertData,
    conditions: Sequence[Condition],
    inputs: PriorInputs = NO_INPUTS,
    inherited: Inherited | None = None,
) -> FittedPrior:
    """The prior of training conditions, fitted whatever the cache holds; of very many a fixed sample decides."""
    screen, data = pert_data.screen, prior_data(pert_data, conditions, inputs)
    judged = sample(len(conditions), most_judged(len(screen.gene_names)))
    parts: list[tuple[np.ndarray, Truth]] = []
    for view, rows in by_setting(screen, conditions):
        # the judged conditions of this setting: their places among all judged ones, and among those of the setting
        inside, deciding = np.flatnonzero(np.isin(judged, rows)), np.flatnonzero(np.isin(rows, judged))
        if len(inside):
            members = [conditions[row] for row in rows.tolist()]
            plain = [member.plain for member in members]
            known_mean_UG = means_without(screen, members, deciding)
            judged_here = [plain[row] for row in deciding.tolist()]
            truth = Truth.of(view, judged_here, pooled=plain, reference_mean_G=known_mean_UG)
            parts.append((inside, truth))

    criterion = ChoiceErrors(parts, clip=screen.nonnegative)
    return dataclasses.replace(fit_prior(data, criterion, judged, inherited), inputs=inputs)


def further_similarities(
    pert_data: PertData, nodes: Sequence[Sequence[int]], inputs: PriorInputs
) -> dict[str, ComputedSimilarity]:
    """Those of :data:`SIMILARITIES` and of the inputs that say something about the conditions' genes, by name."""
    decide = [nodes[row] for row in sample(len(nodes)).tolist()]
    tables = {name: table_of(pert_data, inputs) for name, table_of in SIMILARITIES.items()}
    tables |= {name: table for name, table in inputs.tables.items() if name not in tables}
    similarities = {name: vector_similarity(table, nodes) for name, table in tables.items() if table is not None}
    return {name: similarity for name, similarity in similarities.items() if similarity.is_informative(decide)}


def vector_similarity(vectors_PH: np.ndarray | sparse.csr_matrix, nodes: Sequence[Sequence[int]]) -> ComputedSimilarity:
    """Cosine of the vectors of all nodes and those that occur in `nodes`.

    A node without a vector (NaN or all zero) is like no other.
    """
    if isinstance(vectors_PH, np.ndarray):
        unit_PH = unit_rows(np.nan_to_num(np.asarray(vectors_PH, dtype=np.float64)))
        return ComputedSimilarity(lambda one, other: unit_PH[one] @ unit_PH[other].T, _nodes_in(nodes), len(unit_PH))
    return ComputedSimilarity(
        lambda one, other: cosines(vectors_PH[one], vectors_PH[other]), _nodes_in(nodes), vectors_PH.shape[0]
    )


def _nodes_in(nodes: Sequence[Sequence[int]]) -> np.ndarray:
    """Nodes that occur in some sets, ascending, (T,) int64."""
    return np.unique(np.array([node for members in nodes for node in members], dtype=np.int64))


def go_similarity(
    annotation: GeneAnnotation, pert_names: Sequence[str], nodes: Sequence[Sequence[int]]
) -> GeneSimilarity:
    """Jaccard similarity of GO terms of all nodes to those that occur in `nodes`; a gene is 1 to itself."""
    trained_T = _nodes_in(nodes)
    of_trained = annotation.rows([pert_names[node] for node in trained_T])
    blocks = []
    for start in range(0, len(pert_names), _ROWS):
        block = jaccard(annotation.rows(pert_names[start : start + _ROWS]), of_trained)
        # a gene without terms is still like itself
        here = (trained_T >= start) & (trained_T < start + _ROWS)
        block[trained_T[here] - start, np.flatnonzero(here)] = 1.0
        blocks.append(sparse.csr_matrix(block))
    return GeneSimilarity(trained_T, sparse.csr_matrix(sparse.vstack(blocks, format="csr")))


def most_judged(n_genes: int) -> int:
    """Conditions of as many genes whose predictions decide, at most."""
    return max(FEWEST_JUDGED, min(MOST_JUDGED, JUDGED_VALUES // max(1, n_genes)))


def means_without(screen: PreparedScreen, conditions: Sequence[Condition], rows: np.ndarray) -> np.ndarray:
    """Mean of all others' profiles for some of several conditions, (R, G) float64; of one alone its own."""
    if len(rows) == len(conditions):
        return mean_of_others(profiles(screen, conditions))
    total_G = np.zeros(len(screen.gene_names))
    for block in row_blocks(len(conditions), len(total_G)):
        total_G += profiles(screen, conditions[block]).sum(axis=0)
    own_RG = profiles(screen, [conditions[row] for row in rows.tolist()])
    return np.asarray((total_G - own_RG) / (len(conditions) - 1))


def profiles(screen: PreparedScreen, conditions: Sequence[Condition]) -> np.ndarray:
    """Mean expression of each condition, (C, G) float64."""
    ids = [screen.id_of(condition) for condition in conditions]
    profiles_CG = np.asarray(screen.statistics.mean[ids], dtype=np.float64)
    release(screen.statistics.mean)
    return profiles_CG


def prior_of(
    pert_data: PertData, parts: Sequence[str] = ("train",), inputs: PriorInputs = NO_INPUTS
) -> FittedPrior | None:
    """The prior fitted to the perturbed conditions of some parts of the split; None where there is none.

    It comes from the screen's cache where it was fitted before. It depends on the screen, these conditions
    the annotation and the inputs, on nothing else: neither on other conditions nor on the network or the number of
    workers.
    """
    conditions = perturbed_conditions(pert_data, parts)
    if not conditions:
        return None

    def fit() -> dict[str, np.ndarray]:
        fitted = fit_to(pert_data, conditions, inputs)
        report = np.array(json.dumps(dict(fitted.prior.report)))
        return {**fitted.prior.arrays(), "report": report, "left_out": fitted.left_out_CG}

    key = fit_key(pert_data, conditions, inputs)
    arrays = cached_arrays(pert_data.screen.folder / "priors", "prior", key, fit)
    # the cached prior has no network: whoever trains one beside it sets the weight
    report = json.loads(str(arrays.pop("report")))
    left_out_CG = arrays.pop("left_out")
    prior = dataclasses.replace(GenePrior.from_arrays(arrays, report), network_weight=0.0)
    return FittedPrior(prior, left_out_CG, inputs)


def fold_predictions(
    pert_data: PertData, conditions: Sequence[Condition], fold_C: np.ndarray, inputs: PriorInputs = NO_INPUTS
) -> tuple[np.ndarray, np.ndarray | None]:
    """Changes of each condition and their standard deviations, (C, G), by a prior fitted to the other folds.

    From the screen's cache where they were computed before. Standard deviations are None where a prior has none.
    """

    def fit() -> dict[str, np.ndarray]:
        shape = (len(conditions), len(pert_data.screen.gene_names))
        arrays = {"change": np.empty(shape), "sd": np.empty(shape)}
        for rows, held_out, known in by_fold(conditions, fold_C):
            prior = fit_to(pert_data, known, inputs).prior
            nodes = [pert_data.condition_nodes(condition) for condition in held_out]
            arrays["change"][rows] = prior(nodes)
            sd_RG = prior.sd(nodes, arrays["change"][rows])
            arrays["sd"][rows] = np.nan if sd_RG is None else sd_RG
        return arrays

    key = fit_key(pert_data, conditions, inputs) | {"folds": fold_C.tolist()}
    arrays = cached_arrays(pert_data.screen.folder / "priors", "folds", key, fit)
    return arrays["change"], None if np.isnan(arrays["sd"]).any() else arrays["sd"]


def fit_key(pert_data: PertData, conditions: Sequence[Condition], inputs: PriorInputs) -> dict[str, Any]:
    """Everything that a prior fitted to some conditions depends on."""
    return {
        "format": FORMAT,
        "screen": pert_data.screen.content_hash,
        "conditions": [pert_data.screen.id_of(condition) for condition in conditions],
        "groups": [str(group) for group in groups_of(pert_data, conditions)],
        "nodes": pert_data.pert_names.tolist(),
        "annotation": pert_data.annotation.content_hash,
        "similarities": similarity_key(pert_data, inputs),
    }


def prior_rows(pert_data: PertData, fitted: FittedPrior) -> np.ndarray:
    """Changes by condition of the screen, (C, G) float32: each training condition predicted without itself, else 0.

    So the network learns the errors that the prior makes on conditions that it has not seen.
    """
    screen = pert_data.screen
    rows_CG = np.zeros((len(screen.conditions), len(screen.gene_names)), dtype=np.float32)
    rows_CG[[screen.id_of(condition) for condition in perturbed_conditions(pert_data, ("train",))]] = fitted.left_out_CG
    return rows_CG


def perturbed_conditions(pert_data: PertData, parts: Sequence[str]) -> list[Condition]:
    """Perturbed conditions of some parts by their id, so that the order of a split does not matter."""
    named = [condition for part in parts for condition in perturbed_in(pert_data.split, part)]
    return sorted(named, key=pert_data.screen.id_of)


@dataclass(frozen=True)
class InnerPredictions:
    """Training conditions as the head sees them."""

    rows: np.ndarray  # which of the training conditions these are; of very many a fixed sample
    sets: tuple[tuple[int, ...], ...]  # perturbation-graph nodes of each of the C conditions
    # group_C, fold_C: what is held out together (:attr:`gears.priors._process.PriorData.group_C`), and the fold of each
    # condition
    group_C: np.ndarray
    fold_C: np.ndarray
    changes: PriorChanges  # predictions of a prior fitted to the other folds
    delta_CG: np.ndarray  # measured changes
    fold_inputs: tuple[HeadInputs, ...]  # tables of the genes from the conditions outside each fold
    inputs: HeadInputs  # the same from all conditions, for predictions

    def inputs_of(self, rows: np.ndarray, genes: np.ndarray | slice = ALL_GENES) -> np.ndarray:
        """Inputs of the head for some conditions, and for some of the genes, (R, G, F) float32."""
        parts = []
        for row in rows.tolist():
            tables, one = self.fold_inputs[self.fold_C[row]], np.array([row])
            parts.append(tables.of(self.changes.rows(one, genes), [self.sets[row]], genes))
        n_genes = self.delta_CG[:0, genes].shape[1]
        return np.concatenate(parts) if parts else np.empty((0, n_genes, len(NAMES)), dtype=np.float32)


def even_folds(
    sets: Sequence[Sequence[int]], group_C: np.ndarray, n_folds: int = N_FOLDS, seed: int = _SEED
) -> np.ndarray:
    """Fold of each condition, (C,); groups whose first condition has one gene, and others, are divided evenly."""
    first, group_C = np.unique(group_C, return_index=True, return_inverse=True)[1:]
    order = np.argsort(first)  # groups in the order of their first conditions
    draw = np.random.Generator(np.random.Philox(key=[seed, len(first)]))
    fold_D, start = np.empty(len(first), dtype=np.int64), 0
    for rows in strata([sets[row] for row in first[order].tolist()]).values():
        # goes on at the fold where singles ended, so that all folds have the same size but for one
        fold_D[order[draw.permutation(rows)]] = (start + np.arange(len(rows))) % n_folds
        start += len(rows)
    return fold_D[group_C]


def inner_predictions(pert_data: PertData, conditions: Sequence[Condition], fitted: FittedPrior) -> InnerPredictions:
    """Predictions of the training conditions of a prior by priors fitted to the other folds, from the screen's cache.

    These take over what the prior chose (:class:`gears.priors._fit.Inherited`). Of very many conditions a fixed sample
    is predicted (:func:`gears.priors._source.most_judged`), by priors that are fitted to all others.
    """
    screen = pert_data.screen
    data = prior_data(pert_data, conditions, fitted.inputs)
    fold_of_all = even_folds(data.sets, data.group_C)
    rows = sample(len(conditions), most_judged(len(screen.gene_names)))
    sets = tuple(data.sets_of(rows))
    fold_C = fold_of_all[rows]
    key = fit_key(pert_data, conditions, fitted.inputs) | {"folds": fold_of_all.tolist(), "rows": rows.tolist()}

    def fit() -> dict[str, np.ndarray]:
        shape, inherited = (len(sets), len(screen.gene_names)), Inherited.from_report(fitted.prior.report)
        arrays = {name: np.zeros(shape) for name in ("change", "sum", "largest", "strongest")}
        for fold in followed(range(N_FOLDS), N_FOLDS, "fitting the prior to inner folds", "folds"):
            # all conditions of the other folds, not the sample of them: the errors are then those of a prior as good
            known = [conditions[row] for row in np.flatnonzero(fold_of_all != fold).tolist()]
            members = np.flatnonzero(fold_C == fold)
            prior = fit_to(pert_data, known, fitted.inputs, inherited).prior
            part = PriorChanges.of(prior, [sets[row] for row in members.tolist()])
            for name, table in arrays.items():
                table[members] = getattr(part, f"{name}_UG")
        return arrays

    arrays = cached_arrays(screen.folder / "priors", "inner", key, fit)
    changes = PriorChanges(*(arrays[name] for name in ("change", "sum", "largest", "strongest")))
    inputs = _tables(pert_data, conditions, data, rows)
    in_fold = [rows[fold_C != fold] for fold in range(N_FOLDS)]
    folds = tuple(_with_responses(inputs, data, known) for known in in_fold)
    return InnerPredictions(rows, sets, data.group_C[rows], fold_C, changes, data.delta_CG[rows], folds, inputs)


def _tables(pert_data: PertData, conditions: Sequence[Condition], data: PriorData, rows: np.ndarray) -> HeadInputs:
    """Tables of the genes from some of the conditions, for every setting."""
    screen, statistics = pert_data.screen, pert_data.screen.statistics
    ids = np.array([screen.id_of(conditions[row]) for row in rows.tolist()], dtype=np.int64)
    noise_G = np.sqrt(variance_within(statistics, ids) / float(np.median(statistics.n[ids])))
    control_of = {screen.conditions[control].context: control for control in map(int, screen.control_ids)}
    contexts = screen.model_contexts.contexts or ("",)
    controls = [
        control_of.get(context, int(screen.control_ids[0])) for context in contexts for _ in range(data.n_kinds)
    ]
    tables = HeadInputs(
        size=float(np.sqrt((data.delta_CG[rows] ** 2).mean())) or 1.0,
        noise_G=np.maximum(noise_G, _LEAST_NOISE),
        control_mean_SG=np.asarray(statistics.mean[controls], dtype=np.float64),
        control_sd_SG=np.sqrt(np.maximum(np.asarray(statistics.m2[controls], dtype=np.float64), 0.0)),
        profile_GK=unit_rows(stored_profiles(screen)),
        column_P=data.column_P,
        mean_SG=np.empty((0, 0)),
        response_G=np.empty(0),
        n_kinds=data.n_kinds,
    )
    return _with_responses(tables, data, rows)


def _with_responses(inputs: HeadInputs, data: PriorData, rows: np.ndarray) -> HeadInputs:
    """Tables with the genes' responses to some of the conditions."""
    delta_RG = data.delta_CG[rows]
    response_G = np.sqrt(np.maximum((delta_RG**2).mean(axis=0) - inputs.noise_G**2, 0.0))
    return replace(inputs, mean_SG=levels(delta_RG, data, rows), response_G=response_G)
