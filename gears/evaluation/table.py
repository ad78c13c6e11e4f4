"""The table that puts a model beside the baselines: tidy, summarised, and as text."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from gears.conditions import Condition
from gears.evaluation.baselines import BASELINES, DEFAULT_BASELINES, make_baseline
from gears.evaluation.baselines.means_table import training_conditions
from gears.evaluation.metrics import (
    ALL,
    DEFAULT,
    METRICS,
    condition_metrics,
    get_metric,
    set_metrics,
    summarise,
)
from gears.evaluation.truth import Truth, seen_subgroups

if TYPE_CHECKING:
    from gears.data.screen import PreparedScreen
    from gears.data.splits import Split
    from gears.graphs.annotation import GeneAnnotation

log = logging.getLogger(__name__)

COLUMNS = ["condition", "subgroup", "n_cells", "method", "metric", "value"]
SUMMARY_COLUMNS = ["subgroup", "method", "metric", "mean", "n_conditions", "n_undefined"]
VERDICT_METRICS = ("pearson_delta", "mse_top20_de")
EVERY = "*"  # stands in the column `condition` where a value belongs to a set of conditions


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

    Returns
    -------
    pd.DataFrame
        Columns ``condition``, ``subgroup``, ``n_cells``, ``method``, ``metric``, ``value`` (NaN where undefined).
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
    train = training_conditions(split)
    truth = Truth.of(screen, chosen, train, n_top=n_top)
    names = list(seen_subgroups(chosen, train) if subgroups is None else subgroups)
    if len(names) != len(chosen):
        msg = f"{len(names)} subgroup names for {len(chosen)} conditions; give one name per condition"
        raise ValueError(msg)
    fitted, left_out = baseline_predictions(
        chosen, screen, split, baselines, clip=clip, annotation=annotation
    )
    methods = {method: predicted_UG, **(others or {}), **fitted}
    table = pd.concat(
        [_scores(name, values, truth, names, metrics) for name, values in methods.items()], ignore_index=True
    )
    table.attrs.update(left_out=left_out, model=method)
    return table


def summary_table(table: pd.DataFrame) -> pd.DataFrame:
    """Average a comparison over conditions, per subgroup and over all.

    Returns
    -------
    pd.DataFrame
        Columns ``subgroup``, ``method``, ``metric``, ``mean``, ``n_conditions``, ``n_undefined``.
    """
    parts = []
    for method, rows in table.groupby("method", sort=False):
        parts += [
            part.assign(method=method) for part in (_single_summary(rows), _set_summary(rows)) if len(part)
        ]
    summary = pd.concat(parts, ignore_index=True)[SUMMARY_COLUMNS]
    summary.attrs.update(table.attrs)
    return summary


def wide_summary(table: pd.DataFrame) -> pd.DataFrame:
    """The means of :func:`summary_table` with one row per (subgroup, method), one column per metric, and the count."""
    summary = summary_table(table)
    subgroups, methods, metrics = (list(dict.fromkeys(summary[c])) for c in ("subgroup", "method", "metric"))
    wide = summary.pivot(index=["subgroup", "method"], columns="metric", values="mean")
    wide = wide.reindex(pd.MultiIndex.from_product([subgroups, methods], names=["subgroup", "method"]))[
        metrics
    ]
    counts = summary.groupby("subgroup")["n_conditions"].max()
    wide.insert(0, "n_conditions", counts.reindex(wide.index.get_level_values("subgroup")).to_numpy())
    return wide.rename_axis(columns=None)


def beating_baselines(
    table: pd.DataFrame, metrics: Sequence[str] = VERDICT_METRICS, *, method: str | None = None
) -> pd.DataFrame:
    """Baselines whose mean is better than the model's over the conditions where the model's value is defined.

    A baseline's undefined value (a constant prediction has no correlation)
    enters as 0. Where the model is undefined for every condition, any baseline with a value beats it.

    Returns
    -------
    pd.DataFrame
        Columns ``metric``, ``method``, ``value``, ``model_value``, best first within a metric.
    """
    model = _model_name(table, method)
    records = []
    for name in metrics:
        metric = get_metric(name)
        wide = table[(table["metric"] == name) & (table["condition"] != EVERY)].pivot(
            index="condition", columns="method", values="value"
        )
        if model not in wide:
            continue
        defined = wide[wide[model].notna()]
        rivals = defined.fillna(0.0) if len(defined) else wide
        means = {rival: float(rivals[rival].mean()) for rival in wide.columns if rival != model}
        own = float(defined[model].mean()) if len(defined) else np.nan
        better = [(name, rival, mean, own) for rival, mean in means.items() if metric.better(mean, own)]
        records += sorted(better, key=lambda record: -record[2] if metric.higher_is_better else record[2])
    return pd.DataFrame(records, columns=["metric", "method", "value", "model_value"])


def verdict(table: pd.DataFrame, *, method: str | None = None) -> str:
    """One line: which baselines beat the model, or that none does."""
    model = _model_name(table, method)
    judged = [name for name in VERDICT_METRICS if name in set(table["metric"])]
    if not judged:
        return f"No verdict: neither {' nor '.join(VERDICT_METRICS)} was computed."
    better = beating_baselines(table, judged, method=model)
    if better.empty:
        return f"No baseline beats {_title(model)} on {' or '.join(judged)}."
    parts = []
    for name, rows in better.groupby("metric", sort=False):
        pairs = zip(rows["method"], rows["value"], strict=True)
        rivals = ", ".join(f"{_marked(rival)} {value:.3f}" for rival, value in pairs)
        parts.append(f"{name} ({rivals}; {model} {rows['model_value'].iloc[0]:.3f})")
    return f"A baseline beats {_title(model)} on " + " and on ".join(parts) + "."


def render_table(table: pd.DataFrame, *, method: str | None = None, digits: int = 3) -> str:
    """The comparison as plain text: verdict first, then one block per subgroup with counts.

    A number in square brackets counts the conditions where a value is undefined and therefore not in the mean.
    """
    summary = summary_table(table)
    lines = [verdict(table, method=method)]
    for subgroup, rows in summary.groupby("subgroup", sort=False):
        n_conditions = int(rows["n_conditions"].max())
        lines += ["", f"{subgroup}: {n_conditions} condition{'s' if n_conditions != 1 else ''}"]
        lines += _block(rows, digits)
    if (summary["n_undefined"] > 0).any():
        lines += ["", "[k]: undefined for k conditions, which are not in the mean"]
    if any(_marked(name) != name for name in summary["method"].unique()):
        lines += ["", "*: looks at held-out conditions"]
    for name, reason in table.attrs.get("left_out", {}).items():
        lines += ["", f"left out: {name} ({reason})"]
    return "\n".join(lines)


def baseline_predictions(
    conditions: Sequence[Condition],
    screen: PreparedScreen,
    split: Split,
    names: Sequence[str] = DEFAULT_BASELINES,
    *,
    clip: bool = True,
    annotation: GeneAnnotation | None = None,
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Predicted means (U, G) of fitted baselines by name, and why others could not be fitted."""
    predictions: dict[str, np.ndarray] = {}
    left_out: dict[str, str] = {}
    for name in names:
        baseline = make_baseline(name, clip=clip, annotation=annotation)
        try:
            baseline.fit(screen, split)
        except ValueError as error:
            left_out[name] = str(error)
            log.warning("baseline %s is left out: %s", name, error)
        else:
            predictions[name] = baseline.predict(conditions)
    return predictions, left_out


def _scores(
    method: str, predicted_UG: np.ndarray, truth: Truth, subgroups: list[str], metrics: Sequence[str]
) -> pd.DataFrame:
    single = [name for name in metrics if get_metric(name).scope == "condition"]
    values_UM = condition_metrics(predicted_UG, truth, single)
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


def _single_summary(rows: pd.DataFrame) -> pd.DataFrame:
    single = rows[rows["condition"] != EVERY]
    names = list(dict.fromkeys(single["metric"]))
    wide = single.pivot(index=["condition", "subgroup"], columns="metric", values="value")
    return summarise(wide[names].to_numpy(), names, list(wide.index.get_level_values("subgroup")))


def _set_summary(rows: pd.DataFrame) -> pd.DataFrame:
    sets = rows[rows["condition"] == EVERY]
    single = rows[rows["condition"] != EVERY].drop_duplicates("condition")
    counts = {ALL: len(single), **single["subgroup"].value_counts().to_dict()}
    return pd.DataFrame(
        {
            "subgroup": sets["subgroup"],
            "metric": sets["metric"],
            "mean": sets["value"],
            "n_conditions": sets["subgroup"].map(counts).astype(int),
            "n_undefined": sets["value"].isna().astype(int),
        }
    )


def _block(rows: pd.DataFrame, digits: int) -> list[str]:
    names = list(dict.fromkeys(rows["metric"]))
    methods = list(dict.fromkeys(rows["method"]))
    columns = (rows[name] for name in ("method", "metric", "mean", "n_undefined"))
    cell = {
        (method, name): _cell(mean, undefined, digits)
        for method, name, mean, undefined in zip(*columns, strict=True)
    }
    body = [["method", *names], ["better:", *(METRICS[name].direction for name in names)]]
    body += [[_marked(method), *(cell[method, name] for name in names)] for method in methods]
    widths = [max(len(line[column]) for line in body) for column in range(len(names) + 1)]
    return [
        "  ".join(
            [line[0].ljust(widths[0]), *(text.rjust(w) for text, w in zip(line[1:], widths[1:], strict=True))]
        )
        for line in body
    ]


def _title(model: str) -> str:
    return "the model" if model == "model" else model


def _cell(mean: float, n_undefined: int, digits: int) -> str:
    return f"{mean:.{digits}f}" + (f" [{n_undefined}]" if n_undefined else "")


def _marked(method: str) -> str:
    return f"{method}*" if method in BASELINES and BASELINES[method].uses_held_out else method


def _model_name(table: pd.DataFrame, method: str | None) -> str:
    return method or table.attrs.get("model") or str(table["method"].iloc[0])
