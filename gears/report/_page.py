"""The page of a report: its figures, and the tables for the template `report.html.j2`."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gears.core._messages import count
from gears.evaluation.baselines._base import BASELINES
from gears.evaluation.intervals import marked, summary_table
from gears.evaluation.metrics._registry import ALL, DECISIVE, EVERY, METRICS, condition_metrics
from gears.evaluation.truth import Truth
from gears.evaluation.verdict import MIN_CONDITIONS, NO_RANGE, WORSE, Results, run_costs, without_range
from gears.plotting._changes import evidence, gene_changes, prediction_figure
from gears.plotting._curves import difference_handles, method_differences
from gears.plotting._maps import change_limit, delta_heat_map
from gears.plotting._style import FONT, MARKS, colour_bar, figure_of, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gears.conditions import Condition
    from gears.prediction.explain import Explanation

WIDTH = 10.4
"""Inches: the width of the page, where text of 8 points is 12 pixels high."""
N_COLUMNS = 30
"""Genes in a heat map: more cannot be read."""
N_BASELINES = 3
RANKED_BY = "pearson_delta_ref"
EVIDENCE = "evidence"  # begins the names of figures of what predictions rest on
SPREAD = "box: quartiles of the cells, whiskers: 5th to 95th percentile"


@dataclass(frozen=True)
class Profiles:
    """Profiles behind a table, for its figures.

    Attributes
    ----------
    truth
        The evaluated conditions.
    predictions
        Predicted means (U, G) by method, the model first.
    gene_names
        (G,) names.
    shown
        Conditions that are drawn gene by gene; by default the best predicted, a typical and the worst one.
    sd_UG
        Standard deviation of each predicted mean of the model, or None.
    explain
        Says what the model's prediction of a condition rests on; None for a model that does not.
    """

    truth: Truth
    predictions: Mapping[str, np.ndarray]
    gene_names: Sequence[str]
    shown: Sequence[str] = ()
    sd_UG: np.ndarray | None = None
    explain: Callable[[Condition], Explanation] | None = None


def report_figures(results: Results, profiles: Profiles | None) -> dict[str, tuple[Figure, str]]:
    """Figures and their descriptions by name, in the order of the page."""
    figures: dict[str, tuple[Figure, str]] = {}
    model = next(iter(results.verdicts))
    figure = verdict_figure(results, model)
    if figure is not None:
        text = (
            f"Improvement of {model} over the three strongest baselines, per decisive metric (paired by condition, "
            f"{100 * results.level:g} % intervals); right of the line {model} is better, also for errors. "
            "Numbers are means."
        )
        figures["verdict"] = (figure, text)
    if profiles is None:
        return figures
    chosen = shown_rows(profiles)
    text = "Predicted against true change of every gene"
    if profiles.sd_UG is not None:
        text += "; bars: 90 % intervals of the predicted means"
    n_all, names = len(profiles.truth.conditions), [c.name for c in profiles.truth.conditions]
    figure = prediction_figure(
        next(iter(profiles.predictions.values())),
        profiles.truth,
        profiles.gene_names,
        rows=list(chosen),
        titles=[f"{label} of {n_all}: {names[row]}" if label else names[row] for row, label in chosen.items()],
        sd=profiles.sd_UG,
    )
    figures["conditions"] = (figure, f"{text}.")
    for number, row in enumerate(chosen):
        name = profiles.truth.conditions[row].name
        shown = "standard error of the mean" if profiles.truth.cells is None else SPREAD
        text = f"{name}: observed change of the top differential genes ({shown}), and predicted changes."
        figure = top_de_figure(profiles.truth, profiles.predictions, row, profiles.gene_names)
        figures[f"top_de_{number + 1}"] = (figure, text)
    for number, row in enumerate(chosen if profiles.explain else ()):
        assert profiles.explain is not None
        explanation = profiles.explain(profiles.truth.conditions[row])
        figure = figure_of(evidence(explanation.table, title=explanation.condition.name))
        figures[f"{EVIDENCE}_{number + 1}"] = (figure, f"{explanation.text}.")
    first = dict(list(profiles.predictions.items())[:2])
    n_genes = len(profiles.gene_names)
    left = f" ({n_genes - N_COLUMNS:,} others are not shown)" if n_genes > N_COLUMNS else ""
    text = "Changes over control: the truth and predictions, conditions in rows, in columns the genes with the largest "
    figure = heat_map_figure(profiles.truth, first, profiles.gene_names)
    figures["changes"] = (figure, f"{text}measured or predicted changes{left}.")
    return figures


def verdict_figure(results: Results, model: str) -> Figure | None:
    """A panel per decisive metric: gains of a model over its three best baselines, with intervals."""
    differences = results.differences
    if differences.empty:
        return None
    rows = differences[(differences["model"] == model) & (differences["subgroup"] == ALL)]
    best_of = {name: _best(rows[rows["metric"] == name], name) for name in DECISIVE}
    metrics = [name for name, best in best_of.items() if len(best)]  # the others are defined for no baseline
    if not metrics:
        return None
    n_columns = min(3, len(metrics))
    n_rows = -(-len(metrics) // n_columns)
    figure = new_figure(WIDTH, 1.75 * n_rows + 0.35)
    panels = figure.subplots(n_rows, n_columns, squeeze=False).ravel()
    grey = without_range(results.table)
    for ax, name in zip(panels, metrics, strict=False):
        best = best_of[name]
        defined = best["model_mean"].dropna()
        value = f"{defined.iloc[0]:.3g}" if len(defined) else "undefined"
        note = f"\n({NO_RANGE})" if name in grey else ""
        labels = [
            f"{marked(str(other))} {mean:.3g}" for other, mean in zip(best["against"], best["other_mean"], strict=True)
        ]
        method_differences(best.assign(against=labels), name, model=model, legend=False, ax=ax)
        ax.set_title("")  # that of the centre
        ax.set_title(f"{name}: {model} {value}{note}", fontsize=FONT + 1, loc="right")
    for ax in panels[len(metrics) :]:
        ax.set_axis_off()
    figure.legend(handles=difference_handles(), loc="outside lower center", ncols=3, fontsize=FONT, frameon=False)
    return figure


def _best(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Rows of the best baselines of a metric that do not look at held-out conditions, the best first."""
    honest = [name for name, baseline in BASELINES.items() if not baseline.uses_held_out]
    known = rows[rows["against"].isin(honest)]
    if known.empty:
        known = rows  # methods of the user alone
    order = known.sort_values("other_mean", ascending=not METRICS[metric].higher_is_better, kind="stable")
    return order[order["other_mean"].notna()].head(N_BASELINES)


def shown_rows(profiles: Profiles) -> dict[int, str]:
    """Rows of the conditions that are drawn gene by gene, with a label: best, typical and worst, or as requested."""
    names = [condition.name for condition in profiles.truth.conditions]
    if profiles.shown:
        return {names.index(name): "" for name in profiles.shown}
    first = next(iter(profiles.predictions.values()))
    score_U = condition_metrics(first, profiles.truth, [RANKED_BY])[:, 0]
    order = np.argsort(-np.nan_to_num(score_U, nan=-2.0), kind="stable").tolist()
    labels = {order[-1]: "worst predicted", order[len(order) // 2]: "typical", order[0]: "best predicted"}
    return {row: labels[row] for row in reversed(labels)}


def top_de_figure(truth: Truth, predictions: Mapping[str, np.ndarray], row: int, gene_names: Sequence[str]) -> Figure:
    """Observed (cells, else standard error) and predicted changes of genes that change most; six methods at most."""
    condition = truth.conditions[row]
    drawn = list(predictions.items())[: len(MARKS)]
    cells = None if truth.cells is None else truth.cells.of(condition) - truth.control_mean_G
    ax = gene_changes(
        truth.delta_UG[row],
        {name: values_UG[row] - truth.control_mean_G for name, values_UG in drawn},
        gene_names,
        cells_delta=cells,
        standard_error=truth.std_UG[row] / np.sqrt(max(int(truth.n_cells_U[row]), 1)),
        title=f"{condition.name} ({int(truth.n_cells_U[row])} cells)",
    )
    return figure_of(ax)


def heat_map_figure(truth: Truth, predictions: Mapping[str, np.ndarray], gene_names: Sequence[str]) -> Figure:
    """Changes of every condition (rows) over the genes that change most (columns): the truth and each method.

    The genes are those with the largest true change or change by the first method, ordered by their mean true change.
    All panels have one colour scale, symmetric about 0 and cut at the 99th percentile of the true changes.
    """
    order = np.argsort([f"{len(c)}{c.name}" for c in truth.conditions], kind="stable")
    panels = {"truth": truth.delta_UG}
    panels |= {name: values_UG - truth.control_mean_G for name, values_UG in predictions.items()}
    largest_G = np.max([np.abs(delta_UG).max(axis=0) for delta_UG in list(panels.values())[:2]], axis=0)
    genes = np.argsort(-largest_G, kind="stable")[:N_COLUMNS]
    genes = genes[np.argsort(truth.delta_UG[:, genes].mean(axis=0), kind="stable")]
    limit = change_limit(truth.delta_UG[:, genes])
    figure = new_figure(WIDTH, len(panels) * min(max(0.15 * len(order), 1.0), 6.0) + 1.1)
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    conditions = [truth.conditions[i] for i in order]
    for ax, (name, delta_UG) in zip(axes, panels.items(), strict=True):
        delta_heat_map(delta_UG[order], conditions, gene_names, genes=genes, limit=limit, title=name, bar=False, ax=ax)
    colour_bar(axes.tolist(), axes[-1].images[0], "change over control (\N{MINUS SIGN}: falls)")
    return figure


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
    """The complete page, without references to other files; `images`: PNG bytes and description of each figure."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup, escape

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
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
        worse=set(results.decisive["model"][results.decisive["verdict"] == WORSE]),
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
        undefined=_undefined(results),
        metrics={name: METRICS[name] for name in metrics if name in METRICS},
        directions={name: _direction(name) for name in metrics if name in METRICS},
        baselines={marked(name): BASELINES[name] for name in methods if name in BASELINES},
    )


def _undefined(results: Results) -> Table | None:
    """How many values of each metric are undefined, by method and reason."""
    rows = results.table[results.table["value"].isna()]
    if rows.empty or "reason" not in rows:
        return None
    counts = rows.groupby(["metric", "reason", "method"], sort=False).size().rename("conditions").reset_index()
    return Table("Undefined values and why", counts.assign(method=counts["method"].map(marked)), folded=True)


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
        yield Table(f"{model} against the best baseline of each metric", rows[DECISIVE_COLUMNS], _intervals(rows))


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
    for (stratum, level), rows in results.strata.groupby(["stratum", "subgroup"]) if len(results.strata) else ():
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
