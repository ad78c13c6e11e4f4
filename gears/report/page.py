"""The page of a report: verdict, averages, differences, profiles, costs, what was excluded, and the metrics."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import pandas as pd

from gears.evaluation.baselines.base import BASELINES
from gears.evaluation.metrics.registry import ALL, METRICS
from gears.evaluation.summary import EVERY, marked, summary_table
from gears.evaluation.verdict import MIN_CONDITIONS, WORSE

STYLE = """
:root { --ink: #1b1b1b; --soft: #555; --line: #d4d4d4; --wash: #f5f6f8; --link: #00548a; }
* { box-sizing: border-box; }
body { margin: 0; color: var(--ink); background: #fff; font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 1rem 1.25rem 4rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 1.1rem 0 .4rem; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.2rem 0 .4rem; padding-top: .6rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 1.4rem 0 .3rem; }
p { max-width: 75ch; margin: .4rem 0; overflow-wrap: anywhere; }
.verdict { font-size: 1.05rem; font-weight: 600; max-width: none; padding: .6rem .9rem; margin: .5rem 0;
  border-left: .45rem solid #0072b2; background: #eaf3fa; }
.verdict.beaten { border-left-color: #d55e00; background: #fdf0e7; }
.soft, small, figcaption { color: var(--soft); }
small { font-size: .78rem; font-weight: 400; white-space: nowrap; }
nav a { color: var(--link); margin-right: 1rem; white-space: nowrap; }
nav { line-height: 1.9; }
.block { margin: .8rem 0 1.4rem; }
.bar { display: flex; gap: 1rem; align-items: baseline; justify-content: space-between; flex-wrap: wrap; }
.caption { font-weight: 600; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 4px; }
.scroll:focus-visible, .picture:focus-visible, button:focus-visible, a:focus-visible {
  outline: 3px solid #0072b2; outline-offset: 1px; }
table { border-collapse: separate; border-spacing: 0; width: 100%; font-size: .9rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .55rem; text-align: left; vertical-align: baseline; border-bottom: 1px solid #e6e6e6; }
thead th { background: var(--wash); border-bottom: 1px solid var(--line); vertical-align: bottom; }
thead th small { display: block; }
tbody th { font-weight: 500; white-space: nowrap; }
td.number { text-align: right; white-space: nowrap; }
td.number small { display: block; }
tbody tr:hover { background: var(--wash); }
tr.model th, tr.model td { background: #eaf3fa; font-weight: 600; }
button { font: inherit; color: inherit; background: none; border: 0; padding: 0; cursor: pointer; text-align: left; }
button.sort { font-weight: 600; white-space: nowrap; }
thead th.number { text-align: right; }
tbody th, thead th:first-child { position: sticky; left: 0; background: #fff; }
thead th:first-child { background: var(--wash); }
tbody tr:hover th { background: var(--wash); }
button.sort::after { content: " \\2195"; color: #767676; }
th[aria-sort=ascending] button.sort::after { content: " \\2191"; color: var(--ink); }
th[aria-sort=descending] button.sort::after { content: " \\2193"; color: var(--ink); }
button.copy { color: var(--link); text-decoration: underline; font-size: .85rem; }
details { margin: .5rem 0; }
summary { cursor: pointer; color: var(--link); font-weight: 600; padding: .15rem 0; }
figure { margin: .8rem 0 1.4rem; }
.picture { overflow-x: auto; }
.picture img { max-width: 100%; height: auto; display: block; }
figcaption { font-size: .85rem; max-width: 75ch; }
dl { display: grid; grid-template-columns: minmax(9rem, max-content) 1fr; gap: .25rem 1rem; font-size: .9rem; }
dt { font-weight: 600; overflow-wrap: anywhere; }
dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 640px) { main { padding: .6rem .7rem 3rem; } dl { grid-template-columns: 1fr; }
  .picture img { max-width: none; width: 680px; } dd { margin-bottom: .5rem; } th, td { padding: .28rem .4rem; } }
@media print { button.copy, nav { display: none; } .scroll { overflow: visible; border: 0; } }
"""

SCRIPT = """
"use strict";
function valueOf(cell) {
  const given = cell.dataset.value;
  if (given === undefined) return cell.textContent.trim();
  return given === "" ? null : Number(given);
}
function textOf(cell) {
  const given = cell.dataset.value;
  if (given !== undefined) return given === "" ? "NaN" : given;
  const copy = cell.cloneNode(true);
  copy.querySelectorAll("small").forEach(part => part.remove());
  return copy.textContent.trim();
}
document.querySelectorAll("button.sort").forEach(button => button.addEventListener("click", () => {
  const head = button.closest("th"), table = head.closest("table"), body = table.tBodies[0];
  const column = Array.from(head.parentNode.children).indexOf(head);
  const rising = head.getAttribute("aria-sort") !== "ascending";
  head.parentNode.querySelectorAll("th").forEach(other => other.setAttribute("aria-sort", "none"));
  head.setAttribute("aria-sort", rising ? "ascending" : "descending");
  const rows = Array.from(body.rows).map((row, place) => [valueOf(row.cells[column]), place, row]);
  rows.sort((a, b) => {
    if (a[0] === null || b[0] === null) return a[0] === b[0] ? a[1] - b[1] : a[0] === null ? 1 : -1;
    const order = typeof a[0] === "number" && typeof b[0] === "number"
      ? a[0] - b[0] : String(a[0]).localeCompare(String(b[0]), "en", {numeric: true});
    return (rising ? order : -order) || a[1] - b[1];
  });
  rows.forEach(entry => body.appendChild(entry[2]));
}));
document.querySelectorAll("button.copy").forEach(button => button.addEventListener("click", async () => {
  const table = button.closest(".block").querySelector("table");
  const text = Array.from(table.rows).map(row => Array.from(row.cells).map(textOf).join("\\t")).join("\\n");
  try { await navigator.clipboard.writeText(text); } catch (error) {
    const area = document.createElement("textarea");
    area.value = text; document.body.appendChild(area); area.select();
    document.execCommand("copy"); area.remove();
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy table"; }, 1500);
}));
"""


@dataclass(frozen=True)
class Contents:
    """What a page is made of; see :func:`gears.report.write_report`."""

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
        body.append(paragraph(text, kind="verdict beaten" if worse.any() else "verdict"))
    body.append(heading(contents.title, level=1))
    body.append(paragraph(_overview(contents), kind="soft"))
    body += [paragraph(f"{note[0].upper()}{note[1:]}.", kind="soft") for note in contents.notes]
    links = [f'<a href="#{_anchor(name)}">{name}</a>' for name in filled]
    body.append(f'<nav aria-label="Sections">{" ".join(links)}</nav>')
    for name, parts in filled.items():
        body += [heading(name, anchor=_anchor(name)), *parts]
    return page(contents.title, body)


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
    parts = [paragraph(text)]
    columns = ["metric", "verdict", "baseline", "model_mean", "baseline_mean", "difference", "n_conditions"]
    for model in contents.verdicts:
        rows = contents.decisive[contents.decisive["model"] == model].reset_index(drop=True)
        rows["baseline"] = rows["baseline"].map(marked)
        caption = f"{model} against the best baseline of each metric"
        parts.append(html_table(rows[columns], caption, notes=_intervals(rows)))
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
        paragraph(
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
    parts = [paragraph(text)]
    for subgroup in dict.fromkeys(rows["subgroup"]):
        part = rows[rows["subgroup"] == subgroup]
        table = _wide(contents, part, "scaled", ("scaled_low", "scaled_high"), _title(subgroup))
        parts.append(table if subgroup == ALL else folded(_title(subgroup), table))
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
    return html_table(frame, caption, notes=notes, emphasised=emphasised, heads=heads)


def _differences(contents: Contents) -> list[str]:
    if contents.differences.empty:
        return []
    text = (
        "The model minus the other method, paired by condition; in brackets the interval of the difference. "
        '"undecided": the interval holds 0. An undefined value of the other method enters as 0; '
        "conditions where the model's is undefined are left out."
    )
    parts = [paragraph(text)]
    if "differences" in contents.images:
        parts.append(picture(*contents.images["differences"]))
    for model in contents.verdicts:
        own = contents.differences[contents.differences["model"] == model].drop(columns="model")
        for subgroup in dict.fromkeys(own["subgroup"]):
            rows = own[own["subgroup"] == subgroup].drop(columns="subgroup").reset_index(drop=True)
            notes = _intervals(rows)
            rows["against"] = rows["against"].map(marked)
            shown = rows.drop(columns=["low", "high"])
            table = html_table(shown, f"{model}: {_title(subgroup)}", notes=notes)
            drawn = (
                subgroup != ALL or "differences" in contents.images
            )  # the figure shows it: the table is long
            parts.append(folded(f"{model}: {_title(subgroup)}", table) if drawn else table)
    return parts


def _profiles(contents: Contents) -> list[str]:
    names = [name for name in contents.images if name != "differences"]
    return [picture(*contents.images[name]) for name in names]


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
    return [paragraph(text), html_table(costs, "Cost of a fit with its prediction")]


def _left_out(contents: Contents) -> list[str]:
    if not contents.left_out:
        return [paragraph("Nothing was left out.")]
    frame = pd.DataFrame({"what": list(contents.left_out), "why": list(contents.left_out.values())})
    return [html_table(frame, "Left out")]


def _meanings(contents: Contents) -> list[str]:
    metrics = [name for name in dict.fromkeys(contents.table["metric"]) if name in METRICS]
    text = "m: predicted mean, mu: true mean, c: control mean, O: mean of the training conditions' means."
    entries = {
        name: f"{METRICS[name].formula}; {METRICS[name].direction} is better. {METRICS[name].source}."
        for name in metrics
    }
    methods = [name for name in dict.fromkeys(contents.table["method"]) if name in BASELINES]
    parts = [paragraph(text), heading("Metrics", level=3), definitions(entries)]
    if methods:
        held_out = " It looks at held-out conditions (*)."
        formulas = {
            marked(name): BASELINES[name].formula + "." + (held_out if BASELINES[name].uses_held_out else "")
            for name in methods
        }
        parts += [heading("Baselines", level=3), definitions(formulas)]
    return parts


def _title(subgroup: str) -> str:
    return "All conditions" if subgroup == ALL else str(subgroup)


def page(title: str, body: Sequence[str]) -> str:
    """A whole page; it refers to nothing outside itself."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    head = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
    )
    return head + "\n".join(body) + f"\n</main>\n<script>{SCRIPT}</script>\n</body>\n</html>\n"


def heading(text: str, *, level: int = 2, anchor: str = "") -> str:
    """A heading."""
    mark = f' id="{escape(anchor)}"' if anchor else ""
    return f"<h{level}{mark}>{escape(text)}</h{level}>"


def paragraph(text: str, *, kind: str = "") -> str:
    """A paragraph; `kind` is a class of the style sheet."""
    mark = f' class="{escape(kind)}"' if kind else ""
    return f"<p{mark}>{escape(text)}</p>"


def html_table(
    rows: pd.DataFrame,
    caption: str,
    *,
    notes: Mapping[tuple[int, str], str] | None = None,
    emphasised: Mapping[int, str] | None = None,
    heads: Mapping[str, str] | None = None,
) -> str:
    """A sortable table that can be copied as tab-separated text with all digits.

    Parameters
    ----------
    rows
        What is shown: numbers with four digits, their full value in
        ``data-value``; NaN as "undefined".
    caption
        Said above it.
    notes
        Small text after the value in (row, column), such as an interval.
    emphasised
        Class of the style sheet by row.
    heads
        Small text under a column's name.
    """
    notes, emphasised, heads = notes or {}, emphasised or {}, heads or {}
    lines = [
        '<div class="block">',
        f'<div class="bar"><span class="caption">{escape(caption)}</span>'
        '<button type="button" class="copy">Copy table</button></div>',
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table><thead><tr>',
    ]
    for column in rows.columns:
        under = f"<small>{escape(heads[column])}</small>" if column in heads else ""
        kind = ' class="number"' if pd.api.types.is_numeric_dtype(rows[column]) else ""
        lines.append(
            f'<th scope="col" aria-sort="none"{kind}><button type="button" class="sort">{escape(str(column))}'
            f"</button>{under}</th>"
        )
    lines.append("</tr></thead><tbody>")
    for number, values in enumerate(rows.itertuples(index=False, name=None)):
        mark = f' class="{escape(emphasised[number])}"' if number in emphasised else ""
        cells = [
            _cell(value, notes.get((number, column), ""), first=place == 0)
            for place, (column, value) in enumerate(zip(rows.columns, values, strict=True))
        ]
        lines.append(f"<tr{mark}>{''.join(cells)}</tr>")
    return "\n".join([*lines, "</tbody></table></div></div>"])


def folded(title: str, content: str) -> str:
    """Content that is shown on a click; `content` is HTML of this module."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def picture(image: bytes, text: str, *, kind: str = "png") -> str:
    """An image inside the page, with its description."""
    media = {"png": "image/png", "svg": "image/svg+xml"}[kind]
    data = base64.b64encode(image).decode()
    return (
        f'<figure><div class="picture" tabindex="0" role="group" aria-label="Figure">'
        f'<img alt="{escape(text)}" src="data:{media};base64,{data}"></div>'
        f"<figcaption>{escape(text)}</figcaption></figure>"
    )


def definitions(entries: Mapping[str, str]) -> str:
    """A list of terms and what they mean."""
    items = [f"<dt>{escape(term)}</dt><dd>{escape(text)}</dd>" for term, text in entries.items()]
    return f"<dl>{''.join(items)}</dl>"


def number(value: float) -> str:
    """A number as it is shown: four significant digits, "undefined" for NaN."""
    if math.isnan(value):
        return "undefined"
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e5:
        return f"{value:.4g}"
    return f"{value:.2e}"


def _cell(value: Any, note: str, *, first: bool) -> str:
    small = f" <small>{escape(note)}</small>" if note else ""
    if first and isinstance(value, str):
        return f'<th scope="row">{escape(value)}{small}</th>'
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"<td>{escape(str(value))}{small}</td>"
    full = "" if isinstance(value, float) and math.isnan(value) else repr(value)
    shown = str(value) if isinstance(value, int) else number(value)
    return f'<td class="number" data-value="{escape(full)}">{escape(shown)}{small}</td>'
