"""The page: verdict first, then averages, differences, profiles, costs, what was left out, and what the metrics are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from gears.evaluation.baselines import BASELINES
from gears.evaluation.metrics import ALL, METRICS
from gears.evaluation.report import html
from gears.evaluation.report.html import number
from gears.evaluation.summary import EVERY, marked, summary_table
from gears.evaluation.verdict import MIN_CONDITIONS, WORSE


@dataclass(frozen=True)
class Contents:
    """What a page is made of; see :func:`gears.evaluation.report.write_report`."""

    title: str
    verdicts: Mapping[str, str]
    decisive: pd.DataFrame
    notes: Sequence[str]
    table: pd.DataFrame
    summary: pd.DataFrame
    differences: pd.DataFrame
    runs: pd.DataFrame | None
    left_out: Mapping[str, str]
    images: Mapping[str, tuple[bytes, str]]
    details: Mapping[str, str]
    level: float


def build_page(contents: Contents) -> str:
    """The whole page as text."""
    sections = {
        "Verdict by metric": _decisive(contents),
        "Averages": _averages(contents),
        "Scaled scores": _scaled(contents),
        "Against each baseline": _differences(contents),
        "Predicted and true changes": _profiles(contents),
        "Time and memory": _costs(contents),
        "Left out": _left_out(contents),
        "Metrics and methods": _meanings(contents),
    }
    filled = {name: parts for name, parts in sections.items() if parts}
    body = []
    # the verdicts come before everything else, the title included
    for model, text in contents.verdicts.items():
        worse = (contents.decisive["model"] == model) & (contents.decisive["verdict"] == WORSE)
        body.append(html.paragraph(text, kind="verdict beaten" if worse.any() else "verdict"))
    body.append(html.heading(contents.title, level=1))
    body.append(html.paragraph(_overview(contents), kind="soft"))
    body += [html.paragraph(f"{note[0].upper()}{note[1:]}.", kind="soft") for note in contents.notes]
    links = [f'<a href="#{_anchor(name)}">{name}</a>' for name in filled]
    body.append(f'<nav aria-label="Sections">{" ".join(links)}</nav>')
    for name, parts in filled.items():
        body += [html.heading(name, anchor=_anchor(name)), *parts]
    return html.page(contents.title, body)


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-")


def _overview(contents: Contents) -> str:
    single = contents.table[contents.table["condition"] != EVERY]
    n_conditions, n_methods = single["condition"].nunique(), single["method"].nunique()
    text = f"{n_conditions} evaluated conditions, {n_methods} methods"
    if "split" in single:
        n_splits = single["split"].nunique()
        more = "s (a condition in several splits counts once, with its mean)" if n_splits > 1 else ""
        text += f", {n_splits} split{more}"
    return "; ".join([text, *(f"{name}: {value}" for name, value in contents.details.items())]) + "."


def _decisive(contents: Contents) -> list[str]:
    """The model against the best baseline of each decisive metric."""
    if contents.decisive.empty:
        return []
    text = (
        "The model minus the baseline with the best mean of that metric, paired by condition, with the "
        f"{100 * contents.level:g} % interval. With fewer than {MIN_CONDITIONS} conditions there is no verdict."
    )
    parts = [html.paragraph(text)]
    columns = ["metric", "verdict", "baseline", "model_mean", "baseline_mean", "difference", "n_conditions"]
    for model in contents.verdicts:
        rows = contents.decisive[contents.decisive["model"] == model].reset_index(drop=True)
        rows["baseline"] = rows["baseline"].map(marked)
        caption = f"{model} against the best baseline of each metric"
        parts.append(html.table(rows[columns], caption, notes=_intervals(rows)))
    return parts


def _intervals(rows: pd.DataFrame) -> dict[tuple[int, str], str]:
    """Notes under the differences of a table: their intervals."""
    bounds = enumerate(rows[["low", "high"]].to_numpy(dtype=float))
    return {
        (place, "difference"): f"({number(low)}, {number(high)})"
        for place, (low, high) in bounds
        if pd.notna(low)
    }


def _averages(contents: Contents) -> list[str]:
    share = f"{100 * contents.level:g} %"
    parts = [
        html.paragraph(
            f"Means over conditions, in brackets the {share} interval from resampling conditions. Where a value is "
            "undefined for k conditions, as a correlation with a constant is, it is left out and counted as [k]; the "
            "verdict counts such a value of a baseline as 0."
        )
    ]
    # one number over a set of conditions, such as the spread of predictions
    sets = summary_table(contents.table)
    sets = sets[sets["metric"].map(lambda name: name in METRICS and METRICS[name].scope == "set")]
    for subgroup in dict.fromkeys(contents.summary["subgroup"]):
        rows = contents.summary[contents.summary["subgroup"] == subgroup]
        n_conditions = int(rows["n_conditions"].max())
        caption = f"{_title(subgroup)}: {n_conditions} condition{'' if n_conditions == 1 else 's'}"
        parts.append(
            _wide(contents, rows, "mean", ("low", "high"), caption, sets[sets["subgroup"] == subgroup])
        )
    return parts


def _scaled(contents: Contents) -> list[str]:
    rows = contents.summary[contents.summary["scaled"].notna()]
    if rows.empty:
        return []
    text = (
        "0: as good as the mean of the training conditions. 1: as good as the mean of half of the condition's own "
        "cells, with both scored against the other half. Above 1 is possible, since half of the cells are noisier than "
        "a good prediction. Shown for metrics on which the half is better than the train mean."
    )
    parts = [html.paragraph(text)]
    for subgroup in dict.fromkeys(rows["subgroup"]):
        part = rows[rows["subgroup"] == subgroup]
        table = _wide(contents, part, "scaled", ("scaled_low", "scaled_high"), _title(subgroup))
        parts.append(table if subgroup == ALL else html.folded(_title(subgroup), table))
    return parts


def _wide(
    contents: Contents,
    rows: pd.DataFrame,
    value: str,
    interval: tuple[str, str],
    caption: str,
    sets: pd.DataFrame | None = None,
) -> str:
    """One row per method, one column per metric, intervals as notes."""
    methods = [m for m in dict.fromkeys(contents.summary["method"]) if m in set(rows["method"])]
    metrics = list(dict.fromkeys(rows["metric"]))
    by_cell = rows.set_index(["method", "metric"])
    wide = by_cell[value].unstack("metric").reindex(index=methods, columns=metrics)
    notes = {}
    for place, method in enumerate(methods):
        for metric in metrics:
            if (method, metric) not in by_cell.index:
                continue
            row = by_cell.loc[(method, metric)]
            bounds = f"{number(float(row[interval[0]]))}, {number(float(row[interval[1]]))}"
            undefined = int(row["n_undefined"]) if value == "mean" else 0
            count = f"[{undefined}]" if undefined else ""
            known = pd.notna(row[value]) and pd.notna(row[interval[0]])
            notes[place, metric] = f"({bounds}) {count}".strip() if known else count
    if sets is not None and len(sets):
        for metric, part in sets.groupby("metric", sort=False):
            wide[str(metric)] = part.set_index("method")["mean"].reindex(methods)
    labels = {method: marked(method) for method in methods} | dict(contents.table.attrs.get("labels", {}))
    frame = wide.rename(index=labels).rename_axis("method").reset_index()
    heads = {m: f"{METRICS[m].direction} is better" for m in frame.columns if m in METRICS}
    emphasised = {place: "model" for place, method in enumerate(methods) if method in contents.verdicts}
    return html.table(frame, caption, notes=notes, emphasised=emphasised, heads=heads)


def _differences(contents: Contents) -> list[str]:
    if contents.differences.empty:
        return []
    text = (
        "The model minus the other method, paired by condition; in brackets the interval of the difference. "
        '"undecided": the interval holds 0. An undefined value of the other method enters as 0; '
        "conditions where the model's is undefined are left out."
    )
    parts = [html.paragraph(text)]
    if "differences" in contents.images:
        parts.append(html.picture(*contents.images["differences"]))
    for model in contents.verdicts:
        own = contents.differences[contents.differences["model"] == model].drop(columns="model")
        for subgroup in dict.fromkeys(own["subgroup"]):
            rows = own[own["subgroup"] == subgroup].drop(columns="subgroup").reset_index(drop=True)
            notes = _intervals(rows)
            rows["against"] = rows["against"].map(marked)
            shown = rows.drop(columns=["low", "high"])
            table = html.table(shown, f"{model}: {_title(subgroup)}", notes=notes)
            drawn = (
                subgroup != ALL or "differences" in contents.images
            )  # the figure shows it: the table is long
            parts.append(html.folded(f"{model}: {_title(subgroup)}", table) if drawn else table)
    return parts


def _profiles(contents: Contents) -> list[str]:
    names = [name for name in contents.images if name != "differences"]
    return [html.picture(*contents.images[name]) for name in names]


def _costs(contents: Contents) -> list[str]:
    if contents.runs is None or contents.runs.empty:
        return []
    groups = contents.runs.groupby("method", sort=False)
    costs = groups.agg(
        fits=("seconds", "size"),
        seconds=("seconds", "median"),
        cpu_seconds=("cpu_seconds", "median"),
        peak_mb=("peak_mb", "max"),
    ).reset_index()
    text = (
        "Fitting and predicting once: medians of wall and CPU seconds of this process, greatest resident memory "
        "of the process meanwhile (MB), what was loaded before included."
    )
    return [html.paragraph(text), html.table(costs, "Cost of a fit with its prediction")]


def _left_out(contents: Contents) -> list[str]:
    if not contents.left_out:
        return [html.paragraph("Nothing was left out.")]
    frame = pd.DataFrame({"what": list(contents.left_out), "why": list(contents.left_out.values())})
    return [html.table(frame, "Left out")]


def _meanings(contents: Contents) -> list[str]:
    metrics = [name for name in dict.fromkeys(contents.table["metric"]) if name in METRICS]
    text = "m: predicted mean, mu: true mean, c: control mean, O: mean of the training conditions' means."
    entries = {
        name: f"{METRICS[name].formula}; {METRICS[name].direction} is better. {METRICS[name].source}."
        for name in metrics
    }
    methods = [name for name in dict.fromkeys(contents.table["method"]) if name in BASELINES]
    parts = [html.paragraph(text), html.heading("Metrics", level=3), html.definitions(entries)]
    if methods:
        held_out = " It looks at held-out conditions (*)."
        formulas = {
            marked(name): BASELINES[name].formula + "." + (held_out if BASELINES[name].uses_held_out else "")
            for name in methods
        }
        parts += [html.heading("Baselines", level=3), html.definitions(formulas)]
    return parts


def _title(subgroup: str) -> str:
    return "All conditions" if subgroup == ALL else str(subgroup)
