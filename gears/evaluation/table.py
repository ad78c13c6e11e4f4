"""The table that puts a model beside the baselines: tidy, summarised, and as text."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from gears.conditions import Condition
from gears.evaluation.baselines import DEFAULT_BASELINES, make_baseline
from gears.evaluation.baselines.means_table import ConditionMeans, training_conditions
from gears.evaluation.cells import MAX_CELLS, ScreenCells
from gears.evaluation.halving import half_scores, scaled_shares
from gears.evaluation.metrics import ALL, DEFAULT, condition_metrics, get_metric, set_metrics
from gears.evaluation.summary import (
    EVERY,
    SUMMARY_COLUMNS,
    VERDICT_METRICS,
    beating_baselines,
    render_table,
    summary_table,
    verdict,
    wide_summary,
)
from gears.evaluation.truth import Truth, seen_subgroups

if TYPE_CHECKING:
    from gears.data.screen import PreparedScreen
    from gears.data.splits import Split
    from gears.graphs.annotation import GeneAnnotation

__all__ = [
    "EVERY",
    "SUMMARY_COLUMNS",
    "VERDICT_METRICS",
    "baseline_predictions",
    "beating_baselines",
    "comparison_table",
    "render_table",
    "summary_table",
    "verdict",
    "wide_summary",
]

log = logging.getLogger(__name__)

COLUMNS = ["condition", "subgroup", "n_cells", "method", "metric", "value"]
SCALED_COLUMNS = ["scaled", "half_value", "half_floor", "half_ceiling"]


def comparison_table(
    predicted_UG: np.ndarray,
    conditions: Iterable[Condition | str],
    screen: PreparedScreen,
    split: Split,
    *,
    metrics: Sequence[str] = DEFAULT,
    baselines: Sequence[str] = DEFAULT_BASELINES,
    others: Mapping[str, np.ndarray] | None = None,
    subgroups: Sequence[str] | None = None,
    method: str = "model",
    clip: bool = True,
    n_top: int = 20,
    annotation: GeneAnnotation | None = None,
    halvings: int = 0,
    seed: int = 0,
    max_cells: int = MAX_CELLS,
    truth_screen: PreparedScreen | None = None,
    mask_target: bool = False,
    means: ConditionMeans | None = None,
) -> pd.DataFrame:
    """Score a model's predictions and those of the baselines on the same conditions.

    Parameters
    ----------
    predicted_UG
        What the model predicts (as it was clipped), (U, G).
    conditions
        The U evaluated conditions.
    screen, split
        The prepared screen and the split that the model was trained on.
    metrics
        Names of metrics; those of scope ``"set"`` are computed per subgroup and carry the condition ``"*"``.
    baselines
        Names of baselines. One that cannot be fitted to this split is left
        out, with a warning; ``table.attrs["left_out"]`` says why.
    others
        Further predictions by method name, such as ``{"no_perturb": ...}``, each (U, G).
    subgroups
        One name per condition; by default by how many of its genes the training part has seen.
    method
        What the model is called in the table.
    clip
        Whether baselines are set to zero where negative; the same as for the model.
    n_top
        Number of top differential genes.
    annotation
        GO terms for the baselines that use them; the packaged human ones by default.
    halvings
        How often the cells are halved for scaled scores
        (:func:`gears.evaluation.halving.half_scores`); 0: no scaled scores.
    seed
        Of the halvings and of the cells that are drawn.
    max_cells
        Cells per condition that metrics over cells look at.
    truth_screen
        The screen with other control cells, from which true changes count; `screen` by default.
        Baselines are fitted to `screen`.
    mask_target
        Leave each condition's own target genes out of its metrics
        (:func:`gears.evaluation.metrics.condition_metrics`); scaled scores count every gene.
    means
        What baselines are fitted to and the reference is the mean of, instead of the split's
        training part.

    Returns
    -------
    pd.DataFrame
        Columns ``condition``, ``subgroup``, ``n_cells``, ``method``, ``metric``, ``value`` (NaN where undefined);
        with `halvings` also ``scaled`` (the condition's part in the mean scaled score over all conditions) and
        what it is made of: ``half_value``, ``half_floor`` (train mean), ``half_ceiling`` (other half).
    """
    chosen = [Condition.of(condition) for condition in conditions]
    if not chosen:
        msg = (
            "there is no condition to evaluate; give the conditions of a part of the split that is not empty"
        )
        raise ValueError(msg)
    if all(get_metric(name).scope == "set" for name in metrics):
        msg = f"metrics {list(metrics)} hold none with a value per condition; add one, such as 'mse'"
        raise ValueError(msg)
    train = training_conditions(split) if means is None else means.train
    names = list(seen_subgroups(chosen, train) if subgroups is None else subgroups)
    if len(names) != len(chosen):
        msg = f"{len(names)} subgroup names for {len(chosen)} conditions; give one name per condition"
        raise ValueError(msg)
    fitted, left_out = baseline_predictions(
        chosen, screen, split, baselines, clip=clip, annotation=annotation, means=means
    )
    with_cells = any(get_metric(name).needs_cells for name in metrics)
    true = screen if truth_screen is None else truth_screen
    cells = ScreenCells(true, max_cells, seed) if with_cells else None
    reference_mean_G = None if means is None else means.reference_mean()
    truth = Truth.of(true, chosen, train, n_top=n_top, cells=cells, reference_mean_G=reference_mean_G)
    methods = {method: np.asarray(predicted_UG), **(others or {}), **fitted}
    table = score_table(methods, truth, names, metrics, mask_target=mask_target)
    if halvings:
        table = with_scaled(table, methods, true, truth, halvings=halvings, seed=seed)
    table.attrs.update(left_out=left_out, model=method)
    return table


def score_table(
    methods: Mapping[str, np.ndarray],
    truth: Truth,
    subgroups: Sequence[str],
    metrics: Sequence[str],
    *,
    mask_target: bool = False,
) -> pd.DataFrame:
    """Values of every method, condition and metric, tidy (columns of :func:`comparison_table`)."""
    return pd.concat(
        [
            _scores(name, values, truth, list(subgroups), metrics, mask_target)
            for name, values in methods.items()
        ],
        ignore_index=True,
    )


def with_scaled(
    table: pd.DataFrame,
    methods: Mapping[str, np.ndarray],
    screen: PreparedScreen,
    truth: Truth,
    *,
    halvings: int,
    seed: int = 0,
) -> pd.DataFrame:
    """The table with the columns of scaled scores; NaN for metrics over cells or over sets of conditions."""
    metrics = list(dict.fromkeys(table.loc[table["condition"] != EVERY, "metric"]))
    halves = half_scores(methods, screen, truth, metrics, n=halvings, seed=seed)
    labels = [condition.name for condition in truth.conditions]
    parts = []
    for method, values_UM in halves.values.items():
        for column, name in enumerate(metrics):
            three = (values_UM[:, column], halves.floor_UM[:, column], halves.ceiling_UM[:, column])
            scaled = scaled_shares(*three, higher_is_better=get_metric(name).higher_is_better)
            columns = dict(zip(SCALED_COLUMNS, (scaled, *three), strict=True))
            parts.append(pd.DataFrame({"condition": labels, "method": method, "metric": name, **columns}))
    return table.merge(pd.concat(parts, ignore_index=True), on=["condition", "method", "metric"], how="left")


def baseline_predictions(
    conditions: Sequence[Condition],
    screen: PreparedScreen,
    split: Split,
    names: Sequence[str] = DEFAULT_BASELINES,
    *,
    clip: bool = True,
    annotation: GeneAnnotation | None = None,
    means: ConditionMeans | None = None,
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Predicted means (U, G) of fitted baselines by name, and why others could not be fitted."""
    predictions: dict[str, np.ndarray] = {}
    left_out: dict[str, str] = {}
    for name in names:
        baseline = make_baseline(name, clip=clip, annotation=annotation)
        try:
            baseline.fit(screen, split) if means is None else baseline.fit_means(means)
        except ValueError as error:
            left_out[name] = str(error)
            log.warning("baseline %s is left out: %s", name, error)
        else:
            predictions[name] = baseline.predict(conditions)
    return predictions, left_out


def _scores(
    method: str,
    predicted_UG: np.ndarray,
    truth: Truth,
    subgroups: list[str],
    metrics: Sequence[str],
    mask_target: bool = False,
) -> pd.DataFrame:
    single = [name for name in metrics if get_metric(name).scope == "condition"]
    values_UM = condition_metrics(predicted_UG, truth, single, mask_target=mask_target)
    labels = [condition.name for condition in truth.conditions]
    records = [
        (label, subgroup, int(n_cells), method, name, float(value))
        for label, subgroup, n_cells, row in zip(labels, subgroups, truth.n_cells_U, values_UM, strict=True)
        for name, value in zip(single, row, strict=True)
    ]
    whole = [name for name in metrics if name not in single]
    if whole:
        groups: dict[str, np.ndarray] = {ALL: np.arange(len(labels))}
        groups |= {name: np.flatnonzero(np.array(subgroups) == name) for name in sorted(set(subgroups))}
        for group, rows in groups.items():
            values = set_metrics(np.asarray(predicted_UG)[rows], truth.subset(rows), whole)
            n_cells = int(truth.n_cells_U[rows].sum())
            records += [(EVERY, group, n_cells, method, name, value) for name, value in values.items()]
    return pd.DataFrame(records, columns=COLUMNS)
