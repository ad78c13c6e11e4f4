"""Whether a model is better than the baselines: the verdict by metric, the comparison as text, and as files."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from gears.core._messages import count, shorten
from gears.evaluation._scoring import STRATA
from gears.evaluation.intervals import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    block,
    difference_table,
    interval_table,
    marked,
    marks_of,
    model_name,
    summary_table,
)
from gears.evaluation.metrics._registry import ALL, DECISIVE, EVERY, get_metric
from gears.files._paths import check_folder
from gears.files.formats import plain_values, write_json, write_text

MIN_CONDITIONS = 10
"""With fewer conditions an interval from resampling them is unreliable: no verdict."""
BETTER, SAME, WORSE, TOO_FEW = "better", "not distinguishable", "worse", "too few conditions to say"
NO_RANGE = "no range on this screen"
"""Half of a condition's own cells predict the other half no better than the mean of the training conditions."""
_COLUMNS = 80
_GAIN = "95 % of gain"
VERDICT_COLUMNS = [
    "metric", "baseline", "model_mean", "baseline_mean", "difference", "low", "high", "n_conditions", "verdict",
]  # fmt: skip
_FILES = ("evaluation", "summary", "differences")


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
    baselines = _baselines_in(table, model)
    rows = table[table["metric"].isin(DECISIVE) & table["method"].isin([model, *baselines])]
    differences = difference_table(rows, bootstrap, method=model, subgroups=False)
    records = []
    stated = set(rows.loc[rows["method"] == model, "metric"])  # without standard deviations none of their metrics
    for name in (name for name in DECISIVE if name in stated):
        candidates = differences[(differences["metric"] == name) & differences["other_mean"].notna()]
        if candidates.empty:
            records += _undefined_model(rows, name, baselines)
            continue
        # a method that was scored on fewer conditions cannot be compared by its mean
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
    baseline_rows = rows[(rows["metric"] == name) & rows["method"].isin(baselines) & (rows["condition"] != EVERY)]
    means = baseline_rows.groupby(["method", "condition"], sort=False)["value"].mean().dropna()
    if means.empty:
        return []
    by_method = means.groupby("method", sort=False).mean()
    best = str(by_method.idxmax() if get_metric(name).higher_is_better else by_method.idxmin())
    n_conditions = int((means.index.get_level_values("method") == best).sum())
    outcome = WORSE if n_conditions >= MIN_CONDITIONS else TOO_FEW
    unknown = [np.nan] * 3
    return [[name, best, np.nan, float(by_method[best]), *unknown, n_conditions, outcome]]


def verdict(table: pd.DataFrame, *, method: str | None = None, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> str:
    """One sentence: on how many decisive metrics the model is better, and on which worse, than the best baseline."""
    return closing_sentence(verdict_table(table, method=method, bootstrap=bootstrap), table, method)


def verdict_lines(table: pd.DataFrame, *, method: str | None = None) -> list[str]:
    """The verdict in one line, then one line with the numbers of each decisive metric."""
    rows, title = verdict_table(table, method=method), _title(model_name(table, method))
    lines = [closing_sentence(rows, table, method)]
    for row in rows.to_dict("records"):
        numbers = f"{title} {row['model_mean']:.3f}, {marked(row['baseline'])} {row['baseline_mean']:.3f}"
        if np.isfinite(row["low"]):
            numbers += f", difference {row['difference']:+.3f} ({row['low']:+.3f} to {row['high']:+.3f})"
        lines.append(f"  {row['metric']}: {row['verdict']} ({numbers})")
    return lines


def _no_verdict(table: pd.DataFrame, method: str | None) -> str:
    model = model_name(table, method)
    if not set(DECISIVE) & set(table["metric"]):
        return f"No verdict: none of {', '.join(DECISIVE)} was computed."
    missing = "is defined" if _baselines_in(table, model) else "has a baseline beside it"
    return f"No verdict on {_title(model)}: no decisive metric {missing}."


def short_table(table: pd.DataFrame, *, method: str | None = None) -> str:
    """The verdict in a sentence, and the model beside the best baseline of each decisive metric, in 80 columns.

    Means are over the conditions where the model's value is defined, an undefined correlation of a baseline counted
    as 0; the interval is that of the gain, which is above 0 where the model is better. Below stand marks, what was
    excluded, and advice. Without a verdict all means.
    """
    rows = verdict_table(table, method=method)
    if rows.empty:
        lines = [*_above(table, method), *block(summary_table(table[table["condition"] != EVERY]))]
    else:
        cells = closing_frame(rows, model_name(table, method)).drop(columns="verdict")
        columns = [[str(name), *cells[name]] for name in cells]
        widths = [max(map(len, column)) for column in columns]
        sides = ["<" if name in ("metric", "best baseline") else ">" for name in cells]
        gaps = ["  " if name in ("best baseline", _GAIN) else " " for name in cells]
        lines = [closing_sentence(rows, table, method)]
        for line in zip(*columns, strict=True):
            texts = zip(gaps, line, sides, widths, strict=True)
            lines.append("".join(f"{gap}{text:{side}{width}}" for gap, text, side, width in texts).strip())
    return "\n".join([*lines, *footnotes(rows, table, method)])


def closing_frame(rows: pd.DataFrame, model: str) -> pd.DataFrame:
    """A row of texts for each row of a :func:`verdict_table`: model, best baseline, the gain's interval, verdict."""
    records = []
    for row in rows.to_dict("records"):
        sign = 1 if get_metric(row["metric"]).higher_is_better else -1
        low, high = sorted((sign * row["low"], sign * row["high"]))
        interval = f"{low:+.3f}, {high:+.3f}" if np.isfinite(low) else ""
        means = f"{row['model_mean']:.3f}", f"{row['baseline_mean']:.3f}"
        numbers = (means[0], marked(row["baseline"]), means[1], interval, str(row["n_conditions"]))
        records.append((row["metric"], *numbers, row["verdict"]))
    columns = ["metric", model[:8], "best baseline", "mean", _GAIN, "n", "verdict"]
    frame = pd.DataFrame(records, columns=columns)
    return frame.drop(columns="n") if rows["n_conditions"].nunique() < 2 else frame


def footnotes(rows: pd.DataFrame, table: pd.DataFrame, method: str | None = None) -> list[str]:
    """Lines below a closing table: marks, models without differences, excluded baselines, advice."""
    excluded = list(table.attrs.get("left_out", {}))
    lines = [*_marks(rows["baseline"]), *_alike(table), *([f"excluded: {shorten(excluded)}"] if excluded else [])]
    lines += [*table.attrs.get("advice", []), *_mean_is_better(table, method)]
    return [part for line in lines for part in textwrap.wrap(line, _COLUMNS)]


def closing_sentence(rows: pd.DataFrame, table: pd.DataFrame, method: str | None = None) -> str:
    """The :func:`verdict_table` of a table in one short sentence, without the names of baselines."""
    outcome = rows["verdict"]
    if rows.empty:
        return _no_verdict(table, method)
    n_conditions = int(rows["n_conditions"].max())
    if (outcome == TOO_FEW).all():
        means = zip(rows["metric"], rows["baseline_mean"], rows["model_mean"], strict=True)
        n_ahead = sum(get_metric(name).better(baseline, model) for name, baseline, model in means)
        ahead = f"; a baseline is ahead on {n_ahead} of {len(rows)} metrics" if n_ahead else ""
        return f"Too few conditions to say ({n_conditions}; {MIN_CONDITIONS} needed){ahead}."
    where = count(n_conditions, "condition")
    if (folds := table.attrs.get("folds")) is not None:
        where = f"{n_conditions} in {count(folds, 'fold')}"
    n_better, worse = int((outcome == BETTER).sum()), list(rows["metric"][outcome == WORSE])
    if not n_better and not worse:
        return f"No better and no worse than the best baseline ({where})."
    if not worse:
        return f"Better than the best baseline on {n_better} of {len(rows)} metrics ({where})."
    start = f"Better than the best baseline on {n_better}, worse" if n_better else "Worse than the best baseline"
    named = f"{start} on {', '.join(worse)} ({where})."
    return named if len(named) <= _COLUMNS else f"{start} on {len(worse)} of {len(rows)} metrics ({where})."


def first_metrics(table: pd.DataFrame) -> list[str]:
    """The decisive metrics of a table; without any of them its first metrics."""
    names = list(dict.fromkeys(table["metric"]))
    return [name for name in DECISIVE if name in names] or names[: len(DECISIVE)]


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
    legend = _marks(summary["method"])
    if (summary["n_undefined"] > 0).any():
        legend.insert(0, "[k] undefined for k conditions (excluded from the mean; 0 for a baseline in the verdict)")
    lines += ["", *legend] if legend else []
    for name, reason in table.attrs.get("left_out", {}).items():
        lines += ["", f"excluded: {name} ({reason})"]
    return "\n".join(lines)


def _above(table: pd.DataFrame, method: str | None) -> list[str]:
    """The verdict, if there is a model, and the lines on what methods were fitted to."""
    baselines_alone = method is None and table.attrs.get("models") == []
    return [*([] if baselines_alone else verdict_lines(table, method=method)), *_notes_on(table)]


def _marks(methods: pd.Series) -> list[str]:
    """A line on the marks of methods, where any has one."""
    marks = dict(mark for name in methods.unique() for mark in marks_of(name))
    return ["; ".join(f"{mark}: {meaning}" for mark, meaning in marks.items())] if marks else []


def _title(model: str) -> str:
    return "the model" if model == "model" else model


def _notes_on(table: pd.DataFrame) -> list[str]:
    """Lines to show above the table: what methods were fitted to, and models that predict one profile for all."""
    return [*table.attrs.get("notes", []), *_alike(table)]


def _alike(table: pd.DataFrame) -> list[str]:
    models = [name for name in table.attrs.get("models", []) if name in table.attrs.get("alike", [])]
    return [f"{name} predicts nearly the same for all conditions" for name in models]


def _mean_is_better(table: pd.DataFrame, method: str | None) -> list[str]:
    """Advice where the mean of the training conditions has a smaller error than the model."""
    rows = table[(table["metric"] == "relative_error") & (table["condition"] != EVERY)]
    means = rows.groupby("method")["value"].mean()
    model = model_name(table, method)
    if not {model, "train_mean"} <= set(means.index) or not means["train_mean"] < means[model]:
        return []
    errors = f"relative_error {means['train_mean']:.3f} against {means[model]:.3f}"
    return [f"the train mean has the smaller error ({errors}): prefer it here"]


def _baselines_in(table: pd.DataFrame, model: str) -> list[str]:
    """Methods that the model is compared with: all except the models that the table lists."""
    models = {model, *table.attrs.get("models", [])}
    return [name for name in dict.fromkeys(table["method"]) if name not in models]


def check_report_folder(folder: str | Path, what: str) -> Path:
    """Check that a report can be written into a folder, before any work is done; `what` names it in messages.

    An earlier report there is replaced. FileExistsError where the folder has files of a report's names and no report,
    and the errors of :func:`gears.files._paths.check_folder`.
    """
    path = check_folder(folder, what)
    names = [*(f"{table}.csv" for table in _FILES), "report.html"]
    there = [name for name in names if (path / name).exists()]
    if there and not (path / "evaluation.json").exists():
        msg = f"{what} {path} holds {', '.join(there)}, which are not of a report; choose another folder"
        raise FileExistsError(msg)
    return path


@dataclass(frozen=True)
class Results:
    """A tidy table with its averages, differences and verdicts."""

    title: str
    table: pd.DataFrame  # tidy scores (gears.evaluation.comparison_table)
    summary: pd.DataFrame  # gears.evaluation.interval_table
    differences: pd.DataFrame  # gears.evaluation.difference_table, for every model
    strata: pd.DataFrame
    """:func:`gears.evaluation.interval_table` by size of the effect and by number of cells, with both as columns
    ``stratum`` and ``subgroup``."""
    verdicts: Mapping[str, str]  # gears.evaluation.verdict by model
    decisive: pd.DataFrame  # gears.evaluation.verdict_table, for every model
    runs: pd.DataFrame | None  # cost of every fit (gears.evaluation.Comparison), where it was measured
    left_out: Mapping[str, str]  # methods that were excluded, with the reason
    details: Mapping[str, str]
    level: float

    @classmethod
    def of(
        cls,
        table: pd.DataFrame,
        *,
        title: str = "Evaluation",
        models: Sequence[str] = (),
        runs: pd.DataFrame | None = None,
        left_out: Mapping[str, str] | None = None,
        details: Mapping[str, str] | None = None,
        bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    ) -> Results:
        """Derive averages, differences and verdicts from a table.

        Parameters
        ----------
        models
            Methods that are compared with all others; by default the table's first.
        left_out
            Excluded methods with the reason; by default those of the table's attributes.
        """
        models = list(models) or [model_name(table)]
        differences = [difference_table(table, bootstrap, method=m).assign(model=m) for m in models]
        decisive = [verdict_table(table, method=m, bootstrap=bootstrap).assign(model=m) for m in models]
        return cls(
            title=title,
            table=table,
            summary=interval_table(table, bootstrap),
            differences=pd.concat(differences, ignore_index=True),
            strata=_strata(table, bootstrap),
            verdicts={m: verdict(table, method=m, bootstrap=bootstrap) for m in models},
            decisive=pd.concat(decisive, ignore_index=True),
            runs=runs,
            left_out=dict(table.attrs.get("left_out", {}) if left_out is None else left_out),
            details=dict(details or {}),
            level=bootstrap.level,
        )

    @property
    def notes(self) -> list[str]:
        """Remarks about the table."""
        return _notes_on(self.table)

    def save(self, folder: str | Path) -> dict[str, Path]:
        """Write three CSV files and one JSON file, and return their paths by content."""
        folder = check_report_folder(folder, "the report's folder")
        frames = {"table": self.table, "summary": self.summary, "differences": self.differences}
        written = {}
        for (name, frame), file in zip(frames.items(), _FILES, strict=True):
            written[name] = write_text(folder / f"{file}.csv", frame.to_csv(index=False))
        names = ("decisive", "summary", "strata", "differences", "runs", "table")
        tables = {name: getattr(self, name) for name in names}
        rows = {name: [] if frame is None else frame.to_dict("records") for name, frame in tables.items()}
        content = {"title": self.title, "details": self.details, "verdicts": self.verdicts, "notes": self.notes}
        content |= {"left_out": self.left_out, **rows}
        return written | {"json": write_json(folder / "evaluation.json", plain_values(content))}


def _strata(table: pd.DataFrame, bootstrap: Bootstrap) -> pd.DataFrame:
    """Averages by each of :data:`gears.evaluation._scoring.STRATA` that the table has."""
    parts = [interval_table(table, bootstrap, by=name).assign(stratum=name) for name in STRATA if name in table]
    if not parts:
        return pd.DataFrame()
    strata = pd.concat(parts, ignore_index=True)
    return strata[strata["subgroup"] != ALL].reset_index(drop=True)


def run_costs(runs: pd.DataFrame) -> pd.DataFrame:
    """Per method: runs, median seconds and CPU seconds, greatest peak memory (MB)."""
    groups = runs.groupby("method", sort=False)
    return groups.agg(
        runs=("seconds", "size"),
        seconds=("seconds", "median"),
        cpu_seconds=("cpu_seconds", "median"),
        peak_mb=("peak_mb", "max"),
    ).reset_index()
