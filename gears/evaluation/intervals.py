"""Averages of a comparison, as tables and as text, with intervals from a bootstrap over conditions.

Intervals are those of means, of scaled scores, and of paired differences to baselines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd

from gears.evaluation.baselines._base import BASELINES
from gears.evaluation.metrics._registry import ALL, EVERY, METRICS, get_metric

N_BOOTSTRAP = 2000
LEVEL = 0.95
HALF_COLUMNS = ["half_value", "half_floor", "half_ceiling"]
RESOLUTION = 1e-9
"""Differences below this share of the means are rounding errors: neither method is better."""
SUMMARY_COLUMNS = ["subgroup", "method", "metric", "mean", "n_conditions", "n_undefined"]
HELD_OUT, WEAK = ("*", "uses held-out conditions"), ("~", "weak reference")
WIDTH = 100  # columns of a table of text


@dataclass(frozen=True)
class Bootstrap:
    """Options of the bootstrap.

    Parameters
    ----------
    n
        Resamples of the conditions.
    level
        Coverage of the percentile intervals.
    seed
        Seed of the draws.
    """

    n: int = N_BOOTSTRAP
    level: float = LEVEL
    seed: int = 0

    def __post_init__(self) -> None:
        if self.n < 1 or not 0 < self.level < 1:
            msg = f"a bootstrap needs n of at least 1 and a level between 0 and 1; found {self.n} and {self.level}"
            raise ValueError(msg)

    def weights(self, n_conditions: int) -> np.ndarray:
        """How often each condition is drawn in each resample, (n, n_conditions)."""
        rng = np.random.default_rng(self.seed)
        share = np.full(n_conditions, 1.0 / n_conditions)
        return rng.multinomial(n_conditions, share, size=self.n).astype(np.float64)

    def bounds(self, values_B: np.ndarray) -> tuple[float, float]:
        """Percentile interval of resampled values; resamples without a value are excluded."""
        defined = values_B[np.isfinite(values_B)]
        if not len(defined):
            return float("nan"), float("nan")
        tail = (1 - self.level) / 2
        low, high = np.quantile(defined, [tail, 1 - tail])
        return float(low), float(high)


DEFAULT_BOOTSTRAP = Bootstrap()


def interval_table(
    table: pd.DataFrame, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, *, by: str = "subgroup"
) -> pd.DataFrame:
    """Mean and scaled score with intervals, per subgroup, method and metric.

    A condition that was evaluated in several splits enters once, with its mean over them.

    Parameters
    ----------
    table
        Tidy table of scores.
    bootstrap
        Options of the intervals.
    by
        Column that divides the conditions: ``"subgroup"`` (how many of their genes were seen), ``"effect_size"`` or
        ``"cell_number"`` (thirds of the conditions).

    Returns
    -------
    pd.DataFrame
        Columns ``subgroup``, ``method``, ``metric``, ``mean``, ``low``, ``high``, ``scaled``, ``scaled_low``,
        ``scaled_high``, ``n_conditions``, ``n_undefined`` (value), ``n_unscaled`` (conditions that the scaled score
        excludes).
    """
    records = []
    for subgroup, metric, wide in _groups(table, by=by):
        weights = bootstrap.weights(len(wide["value"]))
        higher = get_metric(metric).higher_is_better is not False
        for method in wide["value"].columns:
            value_U = wide["value"][method].to_numpy()
            low, high = _mean_bounds(bootstrap, weights, value_U)
            record = [subgroup, method, metric, _mean(value_U), low, high]
            scaled, n_unscaled = [np.nan] * 3, len(value_U)
            if HALF_COLUMNS[0] in wide:
                half_values = [wide[column][method].to_numpy() for column in HALF_COLUMNS]
                # weights of 1 give the score itself, the drawn ones its interval
                point = scaled_by_weights(np.ones((1, len(value_U))), *half_values, higher_is_better=higher)
                resampled = scaled_by_weights(weights, *half_values, higher_is_better=higher)
                is_scaled = np.isfinite(half_values[0]) & np.isfinite(half_values[2])
                interval = bootstrap.bounds(resampled if is_scaled.sum() > 1 else resampled[:0])
                scaled = [float(point[0]), *interval]
                n_unscaled = int((~is_scaled).sum())
            records.append([*record, *scaled, len(value_U), int(np.isnan(value_U).sum()), n_unscaled])
    columns = ["subgroup", "method", "metric", "mean", "low", "high", "scaled", "scaled_low", "scaled_high"]
    result = pd.DataFrame(records, columns=[*columns, "n_conditions", "n_undefined", "n_unscaled"])
    result.attrs.update(table.attrs)
    return result


def difference_table(
    table: pd.DataFrame, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, *, method: str | None = None, subgroups: bool = True
) -> pd.DataFrame:
    """The model minus each other method, paired by condition.

    Only conditions where the model's value is defined are used. An undefined value of the other method
    (a constant has no correlation) becomes 0 where higher values are better; where lower values are
    better, the condition is excluded, like conditions that the other method was not scored on.

    Parameters
    ----------
    table
        Tidy table of scores.
    bootstrap
        Options of the intervals.
    method
        The model; by default the one that the table evaluates.
    subgroups
        Whether subgroups are compared besides all conditions.

    Returns
    -------
    pd.DataFrame
        Columns ``subgroup``, ``metric``, ``against``, ``model_mean``, ``other_mean``, ``difference``, ``low``,
        ``high``, ``better`` (``"model"``, ``"other"``, or ``"undecided"`` where the interval holds 0),
        ``n_conditions``, ``n_undefined`` (conditions excluded).
    """
    model = model_name(table, method)
    records = []
    weights = cache(bootstrap.weights)
    for subgroup, metric, wide in _groups(table, subgroups=subgroups):
        values = wide["value"]
        higher = get_metric(metric).higher_is_better
        if model not in values or higher is None:
            continue
        model_U = values[model].to_numpy()
        for other in values.columns:
            if other == model:
                continue
            other_U = values[other].to_numpy()
            if higher:
                scored = wide["scored"][other].to_numpy() > 0
                other_U = np.where(scored, np.nan_to_num(other_U, nan=0.0), np.nan)
            is_paired = np.isfinite(model_U) & np.isfinite(other_U)
            n_paired = int(is_paired.sum())
            difference_U = model_U[is_paired] - other_U[is_paired]
            drawn = weights(n_paired) if n_paired else np.zeros((0, 0))
            low, high = _mean_bounds(bootstrap, drawn, difference_U)
            means = (_mean(model_U[is_paired]), _mean(other_U[is_paired]), _mean(difference_U))
            tiny = RESOLUTION * max(np.nan_to_num(np.abs(means[:2])))  # equal predictions differ by rounding
            better = _better(low, high, tiny, higher_is_better=higher)
            records.append([subgroup, metric, other, *means, low, high, better, n_paired, len(is_paired) - n_paired])
    columns = ["subgroup", "metric", "against", "model_mean", "other_mean", "difference", "low", "high"]
    return pd.DataFrame(records, columns=[*columns, "better", "n_conditions", "n_undefined"])


def _better(low: float, high: float, tiny: float, *, higher_is_better: bool) -> str:
    if low > tiny:
        return "model" if higher_is_better else "other"
    if high < -tiny:
        return "other" if higher_is_better else "model"
    return "undecided"


def _groups(
    table: pd.DataFrame, *, by: str = "subgroup", subgroups: bool = True
) -> Iterator[tuple[str, str, dict[str, pd.DataFrame]]]:
    """Per subgroup and metric: a table condition x method of each value column, averaged over splits.

    "scored" is the number of rows that each value is the mean of.
    """
    single = table[table["condition"] != EVERY]
    columns = ["value", *(column for column in HALF_COLUMNS if column in single)]
    metrics, methods = (list(dict.fromkeys(single[column])) for column in ("metric", "method"))
    keys = [by, "metric", "condition", "method"]
    means, all_means = (
        grouped[columns].mean().assign(scored=grouped.size())
        for grouped in (
            single.groupby(keys, sort=False, observed=True),
            single.groupby(keys[1:], sort=False, observed=True),
        )
    )
    columns.append("scored")
    for subgroup in [ALL, *(sorted(set(single[by])) if subgroups else [])]:
        rows = all_means if subgroup == ALL else means.xs(subgroup, level=by)
        for metric in metrics:
            metric_rows = rows.xs(metric, level="metric")
            tables = (metric_rows[column].unstack("method").reindex(columns=methods) for column in columns)
            yield subgroup, metric, dict(zip(columns, tables, strict=True))


def _mean_bounds(bootstrap: Bootstrap, weights_BU: np.ndarray, value_U: np.ndarray) -> tuple[float, float]:
    """Interval of a mean; a single condition has none."""
    several = np.isfinite(value_U).sum() > 1
    return bootstrap.bounds(_weighted_mean(weights_BU if several else weights_BU[:0], value_U))


def _mean(values: np.ndarray) -> float:
    defined = values[np.isfinite(values)]
    return float(defined.mean()) if len(defined) else float("nan")


def scaled_by_weights(
    weights_BU: np.ndarray, value_U: np.ndarray, floor_U: np.ndarray, ceiling_U: np.ndarray, *, higher_is_better: bool
) -> np.ndarray:
    """``(value - floor) / (ceiling - floor)``, each averaged over conditions first with each row of weights, (B,).

    An undefined floor (the train mean has no correlation with itself) counts as 0. Conditions whose value or ceiling is
    undefined are excluded; NaN without any, or unless the ceiling is better than the floor.
    """
    kept = np.isfinite(value_U) & np.isfinite(ceiling_U)
    floor_U = np.where(np.isnan(floor_U), 0.0, floor_U)
    value_B, floor_B, ceiling_B = (
        _weighted_mean(weights_BU[:, kept], part_U[kept]) for part_U in (value_U, floor_U, ceiling_U)
    )
    span_B = ceiling_B - floor_B
    usable_B = span_B > 0 if higher_is_better else span_B < 0
    return np.divide(value_B - floor_B, span_B, out=np.full(len(span_B), np.nan), where=usable_B)


def _weighted_mean(weights_BU: np.ndarray, value_U: np.ndarray) -> np.ndarray:
    """Mean over the defined values with each row of weights, (B,); NaN where none is drawn."""
    defined = np.isfinite(value_U)
    total_B = weights_BU[:, defined].sum(axis=1)
    sum_B = weights_BU[:, defined] @ value_U[defined]
    return np.divide(sum_B, total_B, out=np.full(len(weights_BU), np.nan), where=total_B > 0)


def summary_table(table: pd.DataFrame) -> pd.DataFrame:
    """Average a comparison over conditions, per subgroup and over all: the columns of `SUMMARY_COLUMNS`."""
    records = []
    for subgroup, metric, wide in _groups(table):
        for method in wide["value"].columns:
            value_U = wide["value"][method].to_numpy()[wide["scored"][method].to_numpy() > 0]
            if len(value_U):
                n_undefined = int(np.isnan(value_U).sum())
                records.append([subgroup, method, metric, _mean(value_U), len(value_U), n_undefined])
    means = pd.DataFrame(records, columns=SUMMARY_COLUMNS)
    summaries = []
    for name, rows in table.groupby("method", sort=False):
        of_sets = _set_summary(rows).assign(method=name)
        summaries += [part for part in (means[means["method"] == name], of_sets) if len(part)]
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


def _set_summary(rows: pd.DataFrame) -> pd.DataFrame:
    sets = rows[rows["condition"] == EVERY].groupby(["subgroup", "metric"], sort=False)["value"]
    means = sets.mean().reset_index(name="mean")
    single = rows[rows["condition"] != EVERY].drop_duplicates(["condition", "subgroup"])
    counts = {ALL: single["condition"].nunique(), **single["subgroup"].value_counts().to_dict()}
    return means.assign(
        n_conditions=means["subgroup"].map(counts).astype(int),
        n_undefined=sets.apply(lambda values: int(values.isna().all())).to_numpy().astype(int),
    )


def block(rows: pd.DataFrame, *, labels: Mapping[str, str] | None = None, digits: int = 3) -> list[str]:
    """Rows of one subgroup of :func:`summary_table` as lines: methods down, metrics across, each aligned.

    A number in square brackets counts the conditions where a value is undefined and therefore not in the mean.
    `labels` are texts for methods. Where the table is wider than WIDTH, names of metrics take two lines, and metrics
    beyond it continue in a table below.
    """
    names, methods = (list(dict.fromkeys(rows[column])) for column in ("metric", "method"))
    fields = (rows[name] for name in ("method", "metric", "mean", "n_undefined"))
    cell = {
        (method, name): f"{mean:.{digits}f}" + (f" [{undefined}]" if undefined else "")
        for method, name, mean, undefined in zip(*fields, strict=True)
    }
    shown = {method: marked(method) for method in methods} | dict(labels or {})
    cells = {name: [METRICS[name].direction, *(cell.get((method, name), "") for method in methods)] for name in names}
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
