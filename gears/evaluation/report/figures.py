"""Figures of a report: plots of :mod:`gears.plotting`, put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from gears.evaluation.truth import Truth
from gears.plotting import delta_heat_map, gene_changes, method_differences, new_figure
from gears.plotting.differences import difference_handles
from gears.plotting.heat import change_limit, variable_genes
from gears.plotting.style import FONT, MARKS, colour_bar

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def difference_figure(
    differences: pd.DataFrame, metrics: Sequence[str], *, model: str = "the model"
) -> Figure:
    """Model minus each other method with intervals, one panel per metric.

    Parameters
    ----------
    differences
        Rows of one subgroup of :func:`gears.evaluation.intervals.difference_table`.
    metrics
        Panels.
    model
        What the model is called.
    """
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
    """Observed change of one condition's top differential genes, and what methods predict.

    Parameters
    ----------
    truth
        The evaluated conditions; with cells their distribution is drawn, else the standard error of the mean.
    predictions
        Predicted means (U, G) by method, the model first; at most six are drawn.
    row
        The condition.
    gene_names
        (G,) names.
    """
    condition, genes = truth.conditions[row], truth.top_de[row]
    chosen = list(predictions.items())[: len(MARKS)]
    cells = None if truth.cells is None else truth.cells.of(condition) - truth.control_mean_G
    ax = gene_changes(
        truth.delta_UG[row],
        {name: values_UG[row] - truth.control_mean_G for name, values_UG in chosen},
        gene_names,
        genes=genes if len(genes) else None,
        cells_delta_NG=cells,
        standard_error_G=truth.std_UG[row] / np.sqrt(max(int(truth.n_cells_U[row]), 1)),
        title=f"{condition.name} ({int(truth.n_cells_U[row])} cells)",
    )
    figure = ax.get_figure(root=True)
    assert figure is not None
    return figure


def heat_map_figure(
    truth: Truth, predictions: Mapping[str, np.ndarray], gene_names: Sequence[str], *, n_genes: int = 60
) -> Figure:
    """Changes of every condition (rows) over the most variable genes (columns): the truth and each method.

    All panels have one colour scale, symmetric about 0 and cut at the 99th
    percentile of the true changes.
    """
    genes = variable_genes(truth.delta_UG, min(n_genes, len(gene_names)))
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
