"""Build the page of a report: the tables for the template `report.html.j2`."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from gears.core._messages import count
from gears.evaluation.baselines._base import BASELINES
from gears.evaluation.intervals import marked, summary_table
from gears.evaluation.metrics._registry import ALL, DECISIVE, EVERY, METRICS
from gears.evaluation.verdict import MIN_CONDITIONS, NO_RANGE, WORSE, Results, run_costs, without_range

TEMPLATE = Path(__file__).with_name("report.html.j2")
DECISIVE_COLUMNS = [
    "metric", "verdict", "baseline", "model_mean", "baseline_mean", "difference", "n_conditions",
]  # fmt: skip


@dataclass(frozen=True)
class Table:
    """A table of the page: notes by (row, column), text under the column heads, highlighted rows and grey columns."""

    caption: str
    frame: pd.DataFrame
    notes: Mapping[tuple[int, str], str] = field(default_factory=dict)
    heads: Mapping[str, str] = field(default_factory=dict)
    highlighted: frozenset[int] = frozenset()
    folded: bool = False
    grey: frozenset[str] = frozenset()


def build_page(results: Results, images: Mapping[str, tuple[bytes, str]]) -> str:
    """The complete page, without references to other files.

    `images` are PNG bytes and description of each figure; ``"verdict"`` leads the page.
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup, escape

    environment = Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    environment.filters |= {
        "cell": cell,
        "base64": lambda data: base64.b64encode(data).decode(),
        "breakable": lambda name: Markup(str(escape(name)).replace("_", "_<wbr>")),
    }
    environment.tests["numbers"] = pd.api.types.is_numeric_dtype
    single = results.table[results.table["condition"] != EVERY]
    metrics, methods = (list(dict.fromkeys(results.table[column])) for column in ("metric", "method"))
    left_out = pd.DataFrame({"what": list(results.left_out), "why": list(results.left_out.values())})
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        results=results,
        images=images,
        worse=_worse(results),
        n_conditions=single["condition"].nunique(),
        n_methods=single["method"].nunique(),
        n_splits=single["split"].nunique() if "split" in single else 0,
        min_conditions=MIN_CONDITIONS,
        decisive=list(_decisive(results)),
        averages=list(_averages(results)),
        strata=list(_strata(results)),
        scaled=list(_scaled(results)),
        differences=list(_differences(results)),
        costs=_costs(results),
        left_out=Table("Excluded", left_out),
        metrics={name: METRICS[name] for name in metrics if name in METRICS},
        baselines={marked(name): BASELINES[name] for name in methods if name in BASELINES},
    )


def _worse(results: Results) -> set[str]:
    """Models that are worse than the best baseline of some decisive metric."""
    rows = results.decisive
    return set() if rows.empty else set(rows["model"][rows["verdict"] == WORSE])


def _costs(results: Results) -> Table | None:
    if results.runs is None or results.runs.empty:
        return None
    costs = run_costs(results.runs).rename(columns={"runs": "fits"})
    return Table("Cost of a fit with its prediction", costs)


def _decisive(results: Results) -> Iterator[Table]:
    """Each model against the best baseline of each decisive metric."""
    if results.decisive.empty:
        return
    for model in results.verdicts:
        rows = results.decisive[results.decisive["model"] == model].reset_index(drop=True)
        rows["baseline"] = rows["baseline"].map(marked)
        yield Table(
            f"{model} against the best baseline of each metric", rows[DECISIVE_COLUMNS], _intervals(rows)
        )


def _averages(results: Results) -> Iterator[Table]:
    # metrics of a set of conditions, such as the spread of predictions, have no interval
    sets = summary_table(results.table)
    sets = sets[sets["metric"].map(lambda name: name in METRICS and METRICS[name].scope == "set")]
    for subgroup, rows in results.summary.groupby("subgroup", sort=False):
        n_conditions = int(rows["n_conditions"].max())
        caption = f"{_title(subgroup)}: {count(n_conditions, 'condition')}"
        own_sets = sets[sets["subgroup"] == subgroup]
        is_decisive = rows["metric"].isin(DECISIVE)
        bounds, folded = ("low", "high"), subgroup != ALL
        if is_decisive.any():
            yield _wide(results, rows[is_decisive], "mean", bounds, caption, folded=folded)
            caption, folded = f"{caption}, other metrics", True
        if not is_decisive.all() or len(own_sets):
            yield _wide(results, rows[~is_decisive], "mean", bounds, caption, own_sets, folded=folded)


def _strata(results: Results) -> Iterator[Table]:
    """The decisive metrics by size of the true effect and by number of cells, folded."""
    for (stratum, level), rows in (
        results.strata.groupby(["stratum", "subgroup"]) if len(results.strata) else ()
    ):
        kept = rows[rows["metric"].isin(DECISIVE)]
        caption = f"{str(stratum).replace('_', ' ')}: {str(level)[2:]}, {int(rows['n_conditions'].max())} conditions"
        if len(kept):
            yield _wide(results, kept, "mean", ("low", "high"), caption, folded=True)


def _scaled(results: Results) -> Iterator[Table]:
    scaled = results.summary[results.summary["scaled"].notna()]
    for subgroup, rows in scaled.groupby("subgroup", sort=False):
        bounds = ("scaled_low", "scaled_high")
        yield _wide(results, rows, "scaled", bounds, _title(subgroup), folded=subgroup != ALL)


def _differences(results: Results) -> Iterator[Table]:
    """Each model against every other method, folded."""
    if results.differences.empty:
        return
    for model in results.verdicts:
        model_rows = results.differences[results.differences["model"] == model]
        for subgroup, subgroup_rows in model_rows.groupby("subgroup", sort=False):
            rows = subgroup_rows.drop(columns=["model", "subgroup"]).reset_index(drop=True)
            rows["against"] = rows["against"].map(marked)
            shown = rows.drop(columns=["low", "high"])
            yield Table(f"{model}: {_title(subgroup)}", shown, _intervals(rows), folded=True)


def _intervals(rows: pd.DataFrame) -> dict[tuple[int, str], str]:
    bounds = enumerate(rows[["low", "high"]].to_numpy(dtype=float))
    return {(row, "difference"): _interval(low, high) for row, (low, high) in bounds if pd.notna(low)}


def _wide(
    results: Results,
    rows: pd.DataFrame,
    value: str,
    interval: tuple[str, str],
    caption: str,
    sets: pd.DataFrame | None = None,
    *,
    folded: bool = False,
) -> Table:
    """One row per method, one column per metric, intervals and counts of undefined values as notes."""
    methods = [m for m in dict.fromkeys(results.summary["method"]) if m in set(rows["method"])]
    metrics = list(dict.fromkeys(rows["metric"]))
    wide = rows.pivot(index="method", columns="metric", values=value).reindex(index=methods, columns=metrics)
    notes = {}
    for row in rows.to_dict("records"):
        undefined = f"[{int(row['n_undefined'])}]" if value == "mean" and row["n_undefined"] else ""
        low, high = (float(row[name]) for name in interval)
        bounds = f"{_interval(low, high)} " if pd.notna(row[value]) and pd.notna(low) else ""
        notes[methods.index(row["method"]), str(row["metric"])] = f"{bounds}{undefined}".strip()
    if sets is not None:
        for metric, metric_rows in sets.groupby("metric", sort=False):
            wide[str(metric)] = metric_rows.set_index("method")["mean"].reindex(methods)
    labels = {method: marked(method) for method in methods} | dict(results.table.attrs.get("labels", {}))
    frame = wide.rename(index=labels).rename_axis(index="method", columns=None).reset_index()
    grey = without_range(results.table)
    heads = {m: NO_RANGE if m in grey else _direction(m) for m in frame.columns if m in METRICS}
    highlighted = frozenset(row for row, method in enumerate(methods) if method in results.verdicts)
    return Table(caption, frame, notes, heads, highlighted, folded, frozenset(grey))


def _interval(low: float, high: float) -> str:
    """Both bounds with three significant digits, on one line."""
    return f"({number(low, 3)},\N{NO-BREAK SPACE}{number(high, 3)})"


def _direction(metric: str) -> str:
    direction = METRICS[metric].direction
    return direction if METRICS[metric].higher_is_better is None else f"{direction} is better"


def _title(subgroup: Any) -> str:
    return "All conditions" if subgroup == ALL else str(subgroup)


def number(value: float, digits: int = 4) -> str:
    """A number as text, with so many significant digits; "undefined" for NaN."""
    if math.isnan(value):
        return "undefined"
    if value == 0:
        return "0"
    return f"{value:.{digits}g}" if 1e-3 <= abs(value) < 1e5 else f"{value:.{digits - 2}e}"


def cell(value: Any) -> tuple[str, str | None]:
    """The text of a cell, and its number with all digits ("" for NaN, None for text)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value), None
    shown = str(value) if isinstance(value, int) else number(value)
    return shown, "" if math.isnan(value) else repr(value)
