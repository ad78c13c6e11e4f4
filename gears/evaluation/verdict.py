"""Whether a model is better than the baselines: the verdict by metric, and the comparison as text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from gears.core.messages import count, shorten
from gears.evaluation.intervals import DEFAULT_BOOTSTRAP, Bootstrap, difference_table
from gears.evaluation.metrics.registry import ALL, DECISIVE, get_metric
from gears.evaluation.summary import (
    EVERY,
    baselines_in,
    block,
    marked,
    marks_of,
    model_name,
    notes_on,
    summary_table,
)

MIN_CONDITIONS = 8
"""With fewer conditions an interval from resampling them is unreliable: no verdict."""
BETTER, SAME, WORSE, TOO_FEW = "better", "not distinguishable", "worse", "too few conditions to say"
NO_RANGE = "no range on this screen"
"""Half of a condition's own cells predict the other half no better than the mean of the training conditions."""
N_SHOWN = 3
"""Baselines in the short table."""
VERDICT_COLUMNS = [
    "metric", "baseline", "model_mean", "baseline_mean", "difference", "low", "high", "n_conditions", "verdict",
]  # fmt: skip


def verdict_table(
    table: pd.DataFrame, *, method: str | None = None, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP
) -> pd.DataFrame:
    """The model against the best baseline of each decisive metric, over all conditions.

    The best baseline of a metric has the best mean over the conditions where the model's value is defined;
    differences are those of :func:`gears.evaluation.difference_table`. A model that is undefined for
    every condition is worse than any baseline with a value.

    Parameters
    ----------
    table
        Tidy table of :func:`gears.evaluation.comparison_table` or :func:`gears.evaluation.compare`.
    method
        The model; by default the one that the table evaluates.
    bootstrap
        Options of the intervals.

    Returns
    -------
    pd.DataFrame
        A row for each of :data:`gears.evaluation.DECISIVE` that was computed: ``metric``, ``baseline``, ``model_mean``,
        ``baseline_mean``, ``difference`` (model minus baseline) with its interval ``low``, ``high``,
        ``n_conditions``, and ``verdict``: "better", "not distinguishable", "worse", "too few conditions to say", or,
        where the table has scaled scores, "no range on this screen".
    """
    model = model_name(table, method)
    baselines = baselines_in(table, model)
    rows = table[table["metric"].isin(DECISIVE) & table["method"].isin([model, *baselines])]
    differences = difference_table(rows, bootstrap, method=model, subgroups=False)
    records = []
    stated = set(
        rows.loc[rows["method"] == model, "metric"]
    )  # without standard deviations none of their metrics
    for name in (name for name in DECISIVE if name in stated):
        candidates = differences[(differences["metric"] == name) & differences["other_mean"].notna()]
        if candidates.empty:
            records += _undefined_model(rows, name, baselines)
            continue
        candidates = candidates[candidates["n_conditions"] == candidates["n_conditions"].max()]
        order = candidates["other_mean"].to_numpy() * (1 if get_metric(name).higher_is_better else -1)
        best = candidates.to_dict("records")[int(np.argmax(order))]
        outcome = {"model": BETTER, "other": WORSE}.get(best["better"], SAME)
        if best["n_conditions"] < MIN_CONDITIONS:
            outcome = TOO_FEW
        elif name in without_range(rows):
            outcome = NO_RANGE
        columns = ("against", "model_mean", "other_mean", "difference", "low", "high", "n_conditions")
        records.append([name, *(best[column] for column in columns), outcome])
    return pd.DataFrame(records, columns=VERDICT_COLUMNS)


def without_range(table: pd.DataFrame) -> set[str]:
    """Metrics on which a second half of the cells is no better than the train mean; none without scaled scores."""
    if "half_ceiling" not in table:
        return set()
    means = table.groupby("metric")[["half_floor", "half_ceiling"]].mean()
    names = [name for name in means.index if get_metric(name).higher_is_better is not None]
    bounds = means.loc[names].fillna({"half_floor": 0.0})
    return {
        str(name)
        for name, floor, ceiling in bounds.itertuples()
        if np.isfinite(ceiling) and not get_metric(name).better(ceiling, floor)
    }


def _undefined_model(rows: pd.DataFrame, name: str, baselines: Sequence[str]) -> list[list[object]]:
    """The row of a metric that is undefined for every prediction of the model; none without a defined baseline."""
    baseline_rows = rows[
        (rows["metric"] == name) & rows["method"].isin(baselines) & (rows["condition"] != EVERY)
    ]
    means = baseline_rows.groupby(["method", "condition"], sort=False)["value"].mean().dropna()
    if means.empty:
        return []
    by_method = means.groupby("method", sort=False).mean()
    best = str(by_method.idxmax() if get_metric(name).higher_is_better else by_method.idxmin())
    n_conditions = int((means.index.get_level_values("method") == best).sum())
    outcome = WORSE if n_conditions >= MIN_CONDITIONS else TOO_FEW
    unknown = [np.nan] * 3
    return [[name, best, np.nan, float(by_method[best]), *unknown, n_conditions, outcome]]


def verdict(
    table: pd.DataFrame, *, method: str | None = None, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP
) -> str:
    """One line: on which decisive metrics the model is better or worse than the best baseline."""
    return _headline(verdict_table(table, method=method, bootstrap=bootstrap), table, method)


def verdict_lines(table: pd.DataFrame, *, method: str | None = None) -> list[str]:
    """The verdict in one line, then one line with the numbers of each decisive metric."""
    rows, title = verdict_table(table, method=method), _title(model_name(table, method))
    lines = [_headline(rows, table, method)]
    for row in rows.to_dict("records"):
        numbers = f"{title} {row['model_mean']:.3f}, {marked(row['baseline'])} {row['baseline_mean']:.3f}"
        if np.isfinite(row["low"]):
            numbers += f", difference {row['difference']:+.3f} ({row['low']:+.3f} to {row['high']:+.3f})"
        lines.append(f"  {row['metric']}: {row['verdict']} ({numbers})")
    return lines


def _headline(rows: pd.DataFrame, table: pd.DataFrame, method: str | None) -> str:
    model = model_name(table, method)
    title = _title(model)
    if not set(DECISIVE) & set(table["metric"]):
        return f"No verdict: none of {', '.join(DECISIVE)} was computed."
    if rows.empty:
        missing = "is defined" if baselines_in(table, model) else "has a baseline beside it"
        return f"No verdict on {title}: no decisive metric {missing}."
    n_conditions = int(rows["n_conditions"].max())
    if (rows["verdict"] == TOO_FEW).all():
        text = (
            f"Too few conditions to say if {title} beats the baselines "
            f"({n_conditions}; {MIN_CONDITIONS} are needed)"
        )
        means = zip(rows["metric"], rows["baseline_mean"], rows["model_mean"], strict=True)
        ahead = rows[
            [get_metric(name).better(baseline, outcome_rows) for name, baseline, outcome_rows in means]
        ]
        return f"{text}; a baseline is ahead on {_named(ahead)}." if len(ahead) else f"{text}."
    groups = [
        (outcome, rows[rows["verdict"] == outcome]) for outcome in (BETTER, SAME, WORSE, TOO_FEW, NO_RANGE)
    ]
    phrases = [
        f"{outcome}{':' if outcome in (TOO_FEW, NO_RANGE) else ' on'} {_named(outcome_rows)}"
        for outcome, outcome_rows in groups
        if len(outcome_rows)
    ]
    return (
        f"{title[0].upper() + title[1:] if title == 'the model' else title} against the best baseline of each metric "
        f"({count(n_conditions, 'condition')}, paired 95 % intervals): {'; '.join(phrases)}."
    )


def _named(rows: pd.DataFrame) -> str:
    pairs = zip(rows["metric"], rows["baseline"], strict=True)
    return ", ".join(f"{metric} ({marked(baseline)})" for metric, baseline in pairs)


def short_table(table: pd.DataFrame, *, method: str | None = None, digits: int = 3) -> str:
    """The verdict and the decisive metrics of the model, its variants and the three best baselines: at most 20 lines.

    The best baselines have the best mean rank over the decisive metrics. Means are those of the verdict: over the
    conditions where the model's value is defined, an undefined correlation of another method counted as 0.
    """
    model = model_name(table, method)
    single = table[table["condition"] != EVERY]
    metrics = first_metrics(single)
    summary = _paired_summary(single[single["metric"].isin(metrics)], model)
    models = [name for name in table.attrs.get("models", []) if name != model]
    methods = [model, *models[:N_SHOWN], *_best_baselines(summary, baselines_in(table, model), metrics)]
    shown = summary[summary["method"].isin(methods)]
    lines = _above(table, method)
    lines += block(shown, methods=methods, metrics=metrics, labels=table.attrs.get("labels"), digits=digits)
    lines += _legend(shown, "which are not in the mean (for a baseline they count as 0)")
    left_out = list(table.attrs.get("left_out", {}))
    return "\n".join([*lines, *([f"excluded: {shorten(left_out)}"] if left_out else [])])


def first_metrics(table: pd.DataFrame) -> list[str]:
    """The decisive metrics of a table; without any of them its first metrics."""
    names = list(dict.fromkeys(table["metric"]))
    return [name for name in DECISIVE if name in names] or names[: len(DECISIVE)]


def _paired_summary(table: pd.DataFrame, model: str) -> pd.DataFrame:
    """Means over all conditions as in the verdict: undefined correlations of other methods than the model are 0."""
    summary = summary_table(table)
    summary = summary[summary["subgroup"] == ALL].set_index(["method", "metric"])
    # only the means are used: one resample is enough
    means = difference_table(table, Bootstrap(n=1), method=model, subgroups=False)
    paired = means.set_index(["against", "metric"])["other_mean"].reindex(summary.index)
    return summary.assign(mean=paired.fillna(summary["mean"])).reset_index()


def _best_baselines(summary: pd.DataFrame, baselines: Sequence[str], metrics: Sequence[str]) -> list[str]:
    baseline_rows = summary[summary["method"].isin(baselines)]
    wide = baseline_rows.pivot(index="method", columns="metric", values="mean").reindex(list(baselines))
    ranks = {
        name: wide[name].rank(ascending=not get_metric(name).higher_is_better, na_option="bottom")
        for name in metrics
    }
    order = pd.DataFrame(ranks).mean(axis=1).sort_values(kind="stable")
    return [str(name) for name in order.index[:N_SHOWN]]


def render_table(
    table: pd.DataFrame,
    *,
    method: str | None = None,
    digits: int = 3,
    subgroups: bool = False,
    metrics: Sequence[str] | None = None,
) -> str:
    """The comparison as plain text: the verdict, what methods were fitted to, and the means of all methods.

    By default `method` is the one that the table evaluates, and every metric is shown. With `subgroups` a block for
    each follows that of all.
    """
    summary = summary_table(table)
    if metrics is not None:
        summary = summary[summary["metric"].isin(metrics)]
    lines = _above(table, method)
    several = subgroups and summary["subgroup"].nunique() > 2  # "all" and another are the same conditions
    for subgroup, rows in summary.groupby("subgroup", sort=False):
        if subgroup == ALL or several:
            lines += ["", f"{subgroup}: {count(int(rows['n_conditions'].max()), 'condition')}"]
            lines += block(rows, labels=table.attrs.get("labels"), digits=digits)
    legend = _legend(summary, "which are not in the mean (for a baseline, 0 in the verdict)")
    lines += ["", *legend] if legend else []
    for name, reason in table.attrs.get("left_out", {}).items():
        lines += ["", f"excluded: {name} ({reason})"]
    return "\n".join(lines)


def _above(table: pd.DataFrame, method: str | None) -> list[str]:
    """The verdict, if there is a model, and the lines on what methods were fitted to."""
    baselines_alone = method is None and table.attrs.get("models") == []
    return [*([] if baselines_alone else verdict_lines(table, method=method)), *notes_on(table)]


def _legend(summary: pd.DataFrame, undefined: str) -> list[str]:
    lines = []
    if (summary["n_undefined"] > 0).any():
        lines.append(f"[k]: undefined for k conditions, {undefined}")
    marks = dict(mark for name in summary["method"].unique() for mark in marks_of(name))
    if marks:  # one line: a short table has at most 20
        lines.append("; ".join(f"{mark}: {meaning}" for mark, meaning in marks.items()))
    return lines


def _title(model: str) -> str:
    return "the model" if model == "model" else model
