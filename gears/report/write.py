"""Write a report: tables as CSV, everything as JSON, figures as PNG and SVG, and the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gears.evaluation.compare import Comparison
from gears.evaluation.intervals import DEFAULT_BOOTSTRAP, Bootstrap
from gears.evaluation.metrics.registry import ALL, DECISIVE
from gears.evaluation.results import Results
from gears.evaluation.truth import Truth
from gears.files.atomic import write_atomically
from gears.files.formats import write_text
from gears.files.paths import user_path
from gears.plotting.genes import gene_changes
from gears.plotting.heat import (
    change_limit,
    delta_heat_map,
    difference_handles,
    method_differences,
    variable_genes,
)
from gears.plotting.style import FONT, MARKS, colour_bar, image_bytes, new_figure
from gears.report.page import build_page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

N_SHOWN = 4
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
        Conditions whose top differential genes are drawn; by default four: the one of median
        correlation of changes in each subgroup, then the best and the worst.
    """

    truth: Truth
    predictions: Mapping[str, np.ndarray]
    gene_names: Sequence[str]
    shown: Sequence[str] = ()


def write_report(
    evaluation: pd.DataFrame | Comparison,
    folder: str | Path,
    *,
    title: str | None = None,
    models: Sequence[str] = (),
    runs: pd.DataFrame | None = None,
    left_out: Mapping[str, str] | None = None,
    profiles: Profiles | None = None,
    details: Mapping[str, str] | None = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> dict[str, Path]:
    """Write the page of an evaluation into a folder, with its tables as CSV and JSON and its figures.

    Parameters
    ----------
    evaluation
        The result of :func:`gears.evaluation.compare`, or a tidy table such as that of
        :func:`gears.evaluation.comparison_table`.
    folder
        Folder of the report, created if missing; an earlier report there is replaced.
    title
        Title of the page; "Comparison" or "Evaluation" by default.
    models
        Methods that are compared with all others; by default the models of the comparison, or the table's first.
    runs, left_out
        Costs of fits, and excluded methods with the reason; by default those of the comparison or the table.
    profiles
        Profiles for the figures of changes; without them the page has no such figures.
    details
        Further facts about the data, by name.
    bootstrap
        Options of the intervals.

    Returns
    -------
    dict
        Paths by kind: ``table``, ``summary``, ``differences``, ``json``, ``page``, and a figure's name.
    """
    folder = user_path(folder)
    if isinstance(evaluation, Comparison):
        title, models = title or "Comparison", models or evaluation.models
        runs = evaluation.runs if runs is None else runs
        left_out = evaluation.left_out if left_out is None else left_out
        evaluation = evaluation.table
    results = Results.of(
        evaluation, title=title or "Evaluation", models=models, runs=runs, left_out=left_out, details=details,
        bootstrap=bootstrap,
    )  # fmt: skip
    written = results.save(folder)
    images = {}
    for name, (figure, text) in _figures(results.differences, next(iter(results.verdicts)), profiles).items():
        images[name] = (image_bytes(figure), text)
        for suffix, data in (("png", images[name][0]), ("svg", image_bytes(figure, "svg"))):
            path = folder / "figures" / f"{name}.{suffix}"
            written[f"{name}.{suffix}"] = write_atomically(path, partial(Path.write_bytes, data=data))
    written["page"] = write_text(folder / "report.html", build_page(results, images))
    return written


def _figures(differences: pd.DataFrame, model: str, profiles: Profiles | None) -> dict[str, tuple[Any, str]]:
    figures: dict[str, tuple[Any, str]] = {}
    model_rows = differences[(differences["model"] == model) & (differences["subgroup"] == ALL)]
    metrics = [name for name in DECISIVE if name in set(model_rows["metric"])]
    if metrics and len(model_rows):
        text = (
            f"{model} minus each other method over all conditions, with intervals from resampled conditions."
        )
        figures["differences"] = (difference_figure(model_rows, metrics, model=model), text)
    if profiles is None:
        return figures
    text = "Changes over control: the truth and predictions, conditions in rows, the most variable genes in columns."
    first = dict(list(profiles.predictions.items())[:2])
    figures["changes"] = (heat_map_figure(profiles.truth, first, profiles.gene_names), text)
    for number, row in enumerate(_shown_rows(profiles)):
        name = profiles.truth.conditions[row].name
        shown = "standard error of the mean" if profiles.truth.cells is None else SPREAD
        text = f"{name}: observed change of the top differential genes ({shown}), and predicted changes."
        figure = top_de_figure(profiles.truth, profiles.predictions, row, profiles.gene_names)
        figures[f"top_de_{number + 1}"] = (figure, text)
    return figures


def _shown_rows(profiles: Profiles) -> list[int]:
    """Rows of the requested conditions, else those at the quantiles of the first method's correlation of changes."""
    names = [condition.name for condition in profiles.truth.conditions]
    if profiles.shown:
        return [names.index(name) for name in profiles.shown]
    from gears.evaluation.metrics.registry import condition_metrics

    first = next(iter(profiles.predictions.values()))
    score_U = condition_metrics(first, profiles.truth, ["pearson_delta"])[:, 0]
    order = np.argsort(np.nan_to_num(score_U, nan=-2.0), kind="stable")
    positions = np.linspace(0, len(order) - 1, min(N_SHOWN, len(order))).round().astype(int)
    return [int(order[position]) for position in positions[::-1]]


def difference_figure(
    differences: pd.DataFrame, metrics: Sequence[str], *, model: str = "the model"
) -> Figure:
    """Model minus each other method with intervals (rows of one subgroup), one panel per metric."""
    n_others = differences["against"].nunique()
    figure = new_figure(3.1 * len(metrics) + 1.2, 0.3 * n_others + 1.35)
    panels = figure.subplots(1, len(metrics), sharey=True, squeeze=False)[0]
    for ax, metric in zip(panels, metrics, strict=True):
        method_differences(differences, metric, model=model, legend=False, ax=ax)
    handles = difference_handles()
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=FONT, frameon=False)
    return figure


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
    figure = ax.get_figure(root=True)
    assert figure is not None
    return figure


def heat_map_figure(truth: Truth, predictions: Mapping[str, np.ndarray], gene_names: Sequence[str]) -> Figure:
    """Changes of every condition (rows) over the 60 most variable genes (columns): the truth and each method.

    All panels have one colour scale, symmetric about 0 and cut at the 99th percentile of the true changes.
    """
    genes = variable_genes(truth.delta_UG, 60)
    order = np.argsort([f"{len(c)}{c.name}" for c in truth.conditions], kind="stable")
    panels = {"truth": truth.delta_UG}
    panels |= {name: values_UG - truth.control_mean_G for name, values_UG in predictions.items()}
    limit = change_limit(truth.delta_UG[:, genes])
    figure = new_figure(9.0, len(panels) * min(max(0.15 * len(order), 1.0), 6.0) + 1.1)
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    conditions = [truth.conditions[i] for i in order]
    for ax, (name, delta_UG) in zip(axes, panels.items(), strict=True):
        delta_heat_map(
            delta_UG[order], conditions, gene_names, genes=genes, limit=limit, title=name, bar=False, ax=ax
        )
    colour_bar(axes.tolist(), axes[-1].images[0], "change over control (\N{MINUS SIGN}: falls)")
    return figure
