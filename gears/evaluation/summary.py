"""Averages of a comparison, as a table and as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from gears.evaluation.baselines.base import BASELINES
from gears.evaluation.metrics.registry import ALL, METRICS, summarise

SUMMARY_COLUMNS = ["subgroup", "method", "metric", "mean", "n_conditions", "n_undefined"]
HELD_OUT, WEAK = ("*", "uses held-out conditions"), ("~", "weak reference")
WIDTH = 100  # columns of a table of text
EVERY = "*"  # entry of the column `condition` for a value of a set of conditions


def summary_table(table: pd.DataFrame) -> pd.DataFrame:
    """Average a comparison over conditions, per subgroup and over all: the columns of `SUMMARY_COLUMNS`."""
    summaries = []
    for method, rows in table.groupby("method", sort=False):
        summaries += [
            summary_part.assign(method=method)
            for summary_part in (_single_summary(rows), _set_summary(rows))
            if len(summary_part)
        ]
    summary = pd.concat(summaries, ignore_index=True)[SUMMARY_COLUMNS]
    summary.attrs.update(table.attrs)
    return summary


def wide_summary(table: pd.DataFrame) -> pd.DataFrame:
    """The means of :func:`summary_table` with one row per (subgroup, method), one column per metric, and the count."""
    summary = summary_table(table)
    subgroups, methods, metrics = (list(dict.fromkeys(summary[c])) for c in ("subgroup", "method", "metric"))
    index = pd.MultiIndex.from_product([subgroups, methods], names=["subgroup", "method"])
    means = summary.pivot(index=["subgroup", "method"], columns="metric", values="mean")
    wide = means.reindex(index)[metrics]
    counts = summary.groupby("subgroup")["n_conditions"].max()
    wide.insert(0, "n_conditions", counts.reindex(wide.index.get_level_values("subgroup")).to_numpy())
    return wide.rename_axis(columns=None)


def _single_summary(rows: pd.DataFrame) -> pd.DataFrame:
    single = rows[rows["condition"] != EVERY]
    names = list(dict.fromkeys(single["metric"]))
    by_subgroup = _wide(single, ["condition", "subgroup"])[names]
    summary = summarise(by_subgroup.to_numpy(), names, list(by_subgroup.index.get_level_values("subgroup")))
    by_condition = _wide(single, ["condition"])[names]
    if len(by_condition) != len(by_subgroup):  # in other splits a condition may be in another subgroup
        overall = summarise(by_condition.to_numpy(), names, [ALL] * len(by_condition))
        summary = pd.concat([overall.iloc[: len(names)], summary.iloc[len(names) :]], ignore_index=True)
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


def block(
    rows: pd.DataFrame,
    *,
    methods: Sequence[str] | None = None,
    metrics: Sequence[str] | None = None,
    labels: Mapping[str, str] | None = None,
    digits: int = 3,
) -> list[str]:
    """Rows of one subgroup of :func:`summary_table` as lines: methods down, metrics across, each aligned.

    A number in square brackets counts the conditions where a value is undefined and therefore not in the mean.
    `methods` and `metrics` are shown in this order, all by default; `labels` are texts for methods. Where the table is
    wider than WIDTH, names of metrics take two lines, and metrics beyond it continue in a table below.
    """
    names = list(dict.fromkeys(rows["metric"])) if metrics is None else list(metrics)
    methods = list(dict.fromkeys(rows["method"])) if methods is None else list(methods)
    fields = (rows[name] for name in ("method", "metric", "mean", "n_undefined"))
    cell = {
        (method, name): _cell(mean, undefined, digits)
        for method, name, mean, undefined in zip(*fields, strict=True)
    }
    shown = {method: marked(method) for method in methods} | dict(labels or {})
    cells = {
        name: [METRICS[name].direction, *(cell.get((method, name), "") for method in methods)]
        for name in names
    }
    side = ["method", "better:", *(shown[method] for method in methods)]
    columns = [side, *([name, *cells[name]] for name in names)]
    parts = [columns]
    if sum(map(_width, columns)) - 2 > WIDTH:
        side = ["method", "", *side[1:]]
        parts = [[side]]
        for column in ([*_two_lines(name), *cells[name]] for name in names):
            if len(parts[-1]) > 1 and sum(map(_width, [*parts[-1], column])) - 2 > WIDTH:
                parts.append([side])
            parts[-1].append(column)
    return "\n\n".join("\n".join(_aligned(part)) for part in parts).split("\n")


def _two_lines(name: str) -> tuple[str, str]:
    """The name of a metric, divided at the underscore that gives the narrowest column."""
    words = name.split("_")
    divided = [("_".join(words[:n]), "_".join(words[n:])) for n in range(len(words))]
    return min(divided, key=lambda lines: max(map(len, lines)))


def _width(column: Sequence[str]) -> int:
    """Width of a column and of the space after it."""
    return max(map(len, column)) + 2


def _aligned(columns: Sequence[Sequence[str]]) -> list[str]:
    """Columns side by side as lines, the first one aligned left and the others right."""
    first = [text.ljust(_width(columns[0]) - 2) for text in columns[0]]
    others = ([text.rjust(_width(column) - 2) for text in column] for column in columns[1:])
    return ["  ".join(line).rstrip() for line in zip(first, *others, strict=True)]


def _cell(mean: float, n_undefined: int, digits: int) -> str:
    return f"{mean:.{digits}f}" + (f" [{n_undefined}]" if n_undefined else "")


def marked(method: str) -> str:
    """The name of a method, with a mark where it uses held-out conditions (*) or is a weak reference (~)."""
    return method + "".join(mark for mark, _ in marks_of(method))


def marks_of(method: str) -> list[tuple[str, str]]:
    """Marks of a method and what they mean; none for a method that is no registered baseline."""
    if method not in BASELINES:
        return []
    entry = BASELINES[method]
    marks = ((entry.uses_held_out, HELD_OUT), (entry.weak, WEAK))
    return [mark for applies, mark in marks if applies]


def model_name(table: pd.DataFrame, method: str | None = None) -> str:
    """The evaluated method: `method`, else that of the table's attributes, else its first."""
    return method or table.attrs.get("model") or str(table["method"].iloc[0])


def notes_on(table: pd.DataFrame) -> list[str]:
    """Lines to show above the table: what methods were fitted to, and models that predict one profile for all."""
    models = [name for name in table.attrs.get("models", []) if name in table.attrs.get("alike", [])]
    alike = [f"{name} predicts nearly the same for all conditions" for name in models]
    return [*table.attrs.get("notes", []), *alike]


def baselines_in(table: pd.DataFrame, model: str) -> list[str]:
    """Methods that the model is compared with: all except the models that the table lists."""
    models = {model, *table.attrs.get("models", [])}
    return [name for name in dict.fromkeys(table["method"]) if name not in models]
