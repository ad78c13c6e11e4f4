"""What the head is trained on: predictions of the prior for training conditions that it has not seen.

The training conditions are divided into folds, singles and combinations evenly. A prior fitted to the other folds
predicts each fold, so that the head sees the errors that the prior makes on unseen conditions. (The prior's predictions
of a condition that was held out alone do not say what the genes of a condition would do alone.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gears.conditions import Condition
from gears.core._numbers import unit_rows
from gears.core._progress import followed
from gears.data.screen._statistics import variance_within
from gears.files._cache import cached_arrays
from gears.graphs._similarities import stored_profiles
from gears.priors._evidence import sample
from gears.priors._fit import FittedPrior
from gears.priors._head import ALL_GENES, NAMES, HeadInputs, PriorChanges, strata
from gears.priors._process import PriorData, levels
from gears.priors._source import fit_key, fit_to, most_judged, prior_data

if TYPE_CHECKING:
    from gears.pertdata import PertData

N_FOLDS = 5
_SEED = 7
_LEAST_NOISE = 1e-3


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
        fold_D[order[draw.permutation(rows)]] = (start + np.arange(len(rows))) % n_folds
        start += len(rows)
    return fold_D[group_C]


def inner_predictions(
    pert_data: PertData, conditions: Sequence[Condition], fitted: FittedPrior
) -> InnerPredictions:
    """Predictions of the training conditions of a prior by priors fitted to the other folds, from the screen's cache.

    Of very many conditions a fixed sample is predicted (:func:`gears.priors._source.most_judged`), by priors that are
    fitted to all others.
    """
    screen = pert_data.screen
    data = prior_data(pert_data, conditions, fitted.inputs)
    fold_of_all = even_folds(data.sets, data.group_C)
    rows = sample(len(conditions), most_judged(len(screen.gene_names)))
    sets = tuple(data.sets_of(rows))
    fold_C = fold_of_all[rows]
    key = fit_key(pert_data, conditions, fitted.inputs) | {
        "folds": fold_of_all.tolist(),
        "rows": rows.tolist(),
    }

    def fit() -> dict[str, np.ndarray]:
        shape = (len(sets), len(screen.gene_names))
        arrays = {name: np.zeros(shape) for name in ("change", "sum", "largest", "strongest")}
        for fold in followed(range(N_FOLDS), N_FOLDS, "fitting the prior to inner folds", "folds"):
            known = [conditions[row] for row in np.flatnonzero(fold_of_all != fold).tolist()]
            members = np.flatnonzero(fold_C == fold)
            prior = fit_to(pert_data, known, fitted.inputs).prior
            part = PriorChanges.of(prior, [sets[row] for row in members.tolist()])
            for name, table in arrays.items():
                table[members] = getattr(part, f"{name}_UG")
        return arrays

    arrays = cached_arrays(screen.folder / "priors", "inner", key, fit)
    changes = PriorChanges(*(arrays[name] for name in ("change", "sum", "largest", "strongest")))
    inputs = _tables(pert_data, conditions, data, rows)
    in_fold = [rows[fold_C != fold] for fold in range(N_FOLDS)]
    folds = tuple(_with_responses(inputs, data, known) for known in in_fold)
    return InnerPredictions(
        rows, sets, data.group_C[rows], fold_C, changes, data.delta_CG[rows], folds, inputs
    )


def _tables(
    pert_data: PertData, conditions: Sequence[Condition], data: PriorData, rows: np.ndarray
) -> HeadInputs:
    """Tables of the genes from some of the conditions, for every setting."""
    screen, statistics = pert_data.screen, pert_data.screen.statistics
    ids = np.array([screen.id_of(conditions[row]) for row in rows.tolist()], dtype=np.int64)
    noise_G = np.sqrt(variance_within(statistics, ids) / float(np.median(statistics.n[ids])))
    control_of = {screen.conditions[control].context: control for control in map(int, screen.control_ids)}
    contexts = screen.model_contexts.contexts or ("",)
    controls = [
        control_of.get(context, int(screen.control_ids[0]))
        for context in contexts
        for _ in range(data.n_kinds)
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
