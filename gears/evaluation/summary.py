"""Averages of a comparison, the verdict, and the comparison as text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from gears.evaluation.baselines import BASELINES
from gears.evaluation.metrics import ALL, METRICS, get_metric, summarise

SUMMARY_COLUMNS = ["subgroup", "method", "metric", "mean", "n_conditions", "n_undefined"]
VERDICT_METRICS = ("pearson_delta", "mse_top20_de")
EVERY = "*"  # stands in the column `condition` where a value belongs to a set of conditions


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
    model = model_name(table, method)
    other_models = set(table.attrs.get("models", [])) - {model}
    records = []
    for name in metrics:
        metric = get_metric(name)
        rows = table[(table["metric"] == name) & (table["condition"] != EVERY)]
        # a condition that was evaluated in several splits counts once
        wide = rows.groupby(["condition", "method"], sort=False)["value"].mean().unstack("method")
        if model not in wide:
            continue
        defined = wide[wide[model].notna()]
        rivals = defined.fillna(0.0) if len(defined) else wide
        names = [rival for rival in wide.columns if rival != model and rival not in other_models]
        means = {rival: float(rivals[rival].mean()) for rival in names}
        own = float(defined[model].mean()) if len(defined) else np.nan
        better = [(name, rival, mean, own) for rival, mean in means.items() if metric.better(mean, own)]
        records += sorted(better, key=lambda record: -record[2] if metric.higher_is_better else record[2])
    return pd.DataFrame(records, columns=["metric", "method", "value", "model_value"])


def verdict(table: pd.DataFrame, *, method: str | None = None) -> str:
    """One line: which baselines beat the model, or that none does."""
    model = model_name(table, method)
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


def _single_summary(rows: pd.DataFrame) -> pd.DataFrame:
    single = rows[rows["condition"] != EVERY]
    names = list(dict.fromkeys(single["metric"]))
    by_subgroup = _wide(single, ["condition", "subgroup"])[names]
    summary = summarise(by_subgroup.to_numpy(), names, list(by_subgroup.index.get_level_values("subgroup")))
    by_condition = _wide(single, ["condition"])[names]
    if len(by_condition) != len(by_subgroup):  # in other splits a condition may be in another subgroup
        whole = summarise(by_condition.to_numpy(), names, [ALL] * len(by_condition))
        summary = pd.concat([whole.iloc[: len(names)], summary.iloc[len(names) :]], ignore_index=True)
    return summary


def _wide(single: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """One row per condition, one column per metric; several splits are averaged."""
    means = single.groupby([*keys, "metric"], sort=False, observed=True)["value"].mean()
    return means.unstack("metric")


def _set_summary(rows: pd.DataFrame) -> pd.DataFrame:
    sets = rows[rows["condition"] == EVERY].groupby(["subgroup", "metric"], sort=False)["value"]
    means = sets.mean().reset_index(name="mean")
    single = rows[rows["condition"] != EVERY].drop_duplicates(["condition", "subgroup"])
    counts = {ALL: single["condition"].nunique(), **single["subgroup"].value_counts().to_dict()}
    return means.assign(
        n_conditions=means["subgroup"].map(counts).astype(int),
        n_undefined=sets.apply(lambda values: int(values.isna().all())).to_numpy().astype(int),
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


def model_name(table: pd.DataFrame, method: str | None = None) -> str:
    """The method that is judged: as given, as the table says, else the first."""
    return method or table.attrs.get("model") or str(table["method"].iloc[0])
