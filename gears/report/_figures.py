"""Figures of a report: how good the model is against what, and the conditions it predicts best and worst."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from gears.evaluation.baselines._base import BASELINES
from gears.evaluation.intervals import marked
from gears.evaluation.metrics._registry import ALL, DECISIVE, METRICS, condition_metrics
from gears.evaluation.truth import Truth
from gears.evaluation.verdict import NO_RANGE, Results, without_range
from gears.plotting._changes import gene_changes, prediction_figure
from gears.plotting._curves import difference_handles, method_differences
from gears.plotting._maps import change_limit, delta_heat_map, variable_genes
from gears.plotting._style import FONT, MARKS, colour_bar, figure_of, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 10.4
"""Inches: the width of the page, where text of 8 points is 12 pixels high."""
N_BASELINES = 3
RANKED_BY = "pearson_delta_ref"
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
    """

    truth: Truth
    predictions: Mapping[str, np.ndarray]
    gene_names: Sequence[str]
    shown: Sequence[str] = ()
    sd_UG: np.ndarray | None = None


def report_figures(results: Results, profiles: Profiles | None) -> dict[str, tuple[Figure, str]]:
    """Figures and their descriptions by name, in the order of the page."""
    figures: dict[str, tuple[Figure, str]] = {}
    model = next(iter(results.verdicts))
    figure = verdict_figure(results, model)
    if figure is not None:
        text = (
            f"Gain of {model} over the three best baselines of each decisive metric, paired by condition, with "
            f"{100 * results.level:g} % intervals; right of the line {model} is better, also for errors. "
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
        titles=[
            f"{label} of {n_all}: {names[row]}" if label else names[row] for row, label in chosen.items()
        ],
        sd_UG=profiles.sd_UG,
    )
    figures["conditions"] = (figure, f"{text}.")
    for number, row in enumerate(chosen):
        name = profiles.truth.conditions[row].name
        shown = "standard error of the mean" if profiles.truth.cells is None else SPREAD
        text = f"{name}: observed change of the top differential genes ({shown}), and predicted changes."
        figure = top_de_figure(profiles.truth, profiles.predictions, row, profiles.gene_names)
        figures[f"top_de_{number + 1}"] = (figure, text)
    text = "Changes over control: the truth and predictions, conditions in rows, the most variable genes in columns."
    first = dict(list(profiles.predictions.items())[:2])
    figures["changes"] = (heat_map_figure(profiles.truth, first, profiles.gene_names), text)
    return figures


def verdict_figure(results: Results, model: str) -> Figure | None:
    """A panel per decisive metric: gains of a model over its three best baselines, with intervals."""
    differences = results.differences
    if differences.empty:
        return None
    rows = differences[(differences["model"] == model) & (differences["subgroup"] == ALL)]
    metrics = [name for name in DECISIVE if name in set(rows["metric"])]
    if not metrics:
        return None
    n_columns = min(3, len(metrics))
    n_rows = -(-len(metrics) // n_columns)
    figure = new_figure(WIDTH, 1.75 * n_rows + 0.35)
    panels = figure.subplots(n_rows, n_columns, squeeze=False).ravel()
    grey = without_range(results.table)
    for ax, name in zip(panels, metrics, strict=False):
        best = _best(rows[rows["metric"] == name], name)
        defined = best["model_mean"].dropna()
        value = f"{defined.iloc[0]:.3g}" if len(defined) else "undefined"
        note = f"\n({NO_RANGE})" if name in grey else ""
        labels = [
            f"{marked(str(other))} {mean:.3g}"
            for other, mean in zip(best["against"], best["other_mean"], strict=True)
        ]
        method_differences(best.assign(against=labels), name, model=model, legend=False, ax=ax)
        ax.set_title("")  # that of the centre
        ax.set_title(f"{name}: {model} {value}{note}", fontsize=FONT + 1, loc="right")
    for ax in panels[len(metrics) :]:
        ax.set_axis_off()
    figure.legend(
        handles=difference_handles(), loc="outside lower center", ncols=3, fontsize=FONT, frameon=False
    )
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


def top_de_figure(
    truth: Truth, predictions: Mapping[str, np.ndarray], row: int, gene_names: Sequence[str]
) -> Figure:
    """Observed and predicted changes of one condition's top differential genes, for at most six methods.

    Of cells their distribution is drawn, else the standard error of the mean.
    """
    condition = truth.conditions[row]
    is_ranked = np.isfinite(truth.moderated_t_UG[row]).all()
    drawn = list(predictions.items())[: len(MARKS)]
    cells = None if truth.cells is None else truth.cells.of(condition) - truth.control_mean_G
    ax = gene_changes(
        truth.delta_UG[row],
        {name: values_UG[row] - truth.control_mean_G for name, values_UG in drawn},
        gene_names,
        genes=truth.top_moderated()[row] if is_ranked else None,
        cells_delta_NG=cells,
        standard_error_G=truth.std_UG[row] / np.sqrt(max(int(truth.n_cells_U[row]), 1)),
        title=f"{condition.name} ({int(truth.n_cells_U[row])} cells)",
    )
    return figure_of(ax)


def heat_map_figure(truth: Truth, predictions: Mapping[str, np.ndarray], gene_names: Sequence[str]) -> Figure:
    """Changes of every condition (rows) over the 60 most variable genes (columns): the truth and each method.

    All panels have one colour scale, symmetric about 0 and cut at the 99th percentile of the true changes.
    """
    genes = variable_genes(truth.delta_UG, 60)
    order = np.argsort([f"{len(c)}{c.name}" for c in truth.conditions], kind="stable")
    panels = {"truth": truth.delta_UG}
    panels |= {name: values_UG - truth.control_mean_G for name, values_UG in predictions.items()}
    limit = change_limit(truth.delta_UG[:, genes])
    figure = new_figure(WIDTH, len(panels) * min(max(0.15 * len(order), 1.0), 6.0) + 1.1)
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    conditions = [truth.conditions[i] for i in order]
    for ax, (name, delta_UG) in zip(axes, panels.items(), strict=True):
        delta_heat_map(
            delta_UG[order], conditions, gene_names, genes=genes, limit=limit, title=name, bar=False, ax=ax
        )
    colour_bar(axes.tolist(), axes[-1].images[0], "change over control (\N{MINUS SIGN}: falls)")
    return figure
