"""Plot heat maps of changes, and paired differences between methods."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gears.conditions import Condition
from gears.core.messages import unknown_name
from gears.plotting.style import (
    BLUE,
    DIVERGING,
    FONT,
    GREY,
    ORANGE,
    bare,
    colour_bar,
    columns_of,
    condition_names,
    legend_below,
    minus_signs,
    names_of,
    new_axes,
    per_condition,
    positions,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BETTER = {"model": (BLUE, "o"), "other": (ORANGE, "s"), "undecided": (GREY, "D")}
LABELS = {"model": "model better", "other": "other better", "undecided": "undecided (95 % interval holds 0)"}


def delta_heat_map(
    delta_UG: np.ndarray,
    conditions: Sequence[Condition | str],
    gene_names: Sequence[str],
    *,
    genes: Iterable[int | str] | np.ndarray | None = None,
    n_genes: int = 40,
    cluster: bool = False,
    limit: float | None = None,
    title: str = "",
    bar: bool = True,
    ax: Axes | None = None,
) -> Axes:
    """Heat map of changes over control; decreases have a minus, because both ends of the colours look alike in grey.

    Parameters
    ----------
    delta_UG
        Changes, (U, G), such as :attr:`gears.prediction.Predictions.delta_UG`.
    conditions
        The U conditions.
    gene_names
        (G,) names.
    genes
        Columns by name or position, in this order; by default the `n_genes` of :func:`variable_genes`.
    n_genes
        Number of columns where `genes` is omitted.
    cluster
        Order conditions and genes by average linkage.
    limit
        End of the colours on both sides; by default the 99th percentile of the absolute changes.
    bar
        Draw the colour scale.

    Raises
    ------
    ValueError
        If lengths disagree, a gene is unknown, or there is nothing to draw.
    """
    labels = condition_names(conditions)
    delta = per_condition("delta_UG", delta_UG, len(labels))
    names = names_of(gene_names, delta.shape[1])
    if not labels:
        msg = "there is no condition to draw; give at least one"
        raise ValueError(msg)
    columns = variable_genes(delta, n_genes) if genes is None else positions(genes, names)
    rows = np.arange(len(labels))
    if cluster:
        rows, columns = rows[_linked(delta[:, columns])], columns[_linked(delta[:, columns].T)]
    values_RC = delta[np.ix_(rows, columns)]
    limit = change_limit(values_RC) if limit is None else limit
    if ax is None:
        ax = new_axes(max(4.0, 0.15 * len(columns) + 2.2), min(max(0.16 * len(rows), 1.2), 9.0) + 1.3)
    image = ax.imshow(values_RC, aspect="auto", cmap=DIVERGING, vmin=-limit, vmax=limit, interpolation="none")
    minus_signs(ax, values_RC, limit)
    shown = [names[gene] for gene in columns]
    ax.set_xticks(range(len(columns)), shown, rotation=90, fontsize=_font(columns))
    ax.set_yticks([])
    if len(rows) <= 60:
        ax.set_yticks(range(len(rows)), [labels[row] for row in rows], fontsize=_font(rows))
    else:
        ax.set_ylabel(f"{len(rows)} conditions", fontsize=FONT)
    ax.tick_params(length=0)
    ax.set_title(title, fontsize=FONT + 1, loc="left")
    if bar:
        colour_bar(ax, image, "change over control (\N{MINUS SIGN}: falls)")
    return ax


def variable_genes(delta_UG: np.ndarray, n_genes: int) -> np.ndarray:
    """The genes whose change differs most between conditions, ordered by their mean change, (min(n, G),)."""
    spread_G = np.abs(delta_UG[0]) if len(delta_UG) == 1 else delta_UG.std(axis=0)
    variable = np.argsort(-spread_G, kind="stable")[:n_genes]
    return variable[np.argsort(delta_UG[:, variable].mean(axis=0), kind="stable")]


def change_limit(delta: np.ndarray) -> float:
    """End of a symmetric colour scale of these changes: their 99th percentile."""
    return float(np.quantile(np.abs(delta), 0.99)) or 1.0


def _linked(values_RC: np.ndarray) -> np.ndarray:
    """Order of rows in which similar ones are beside each other."""
    from scipy.cluster import hierarchy

    if len(values_RC) < 3:
        return np.arange(len(values_RC))
    return hierarchy.leaves_list(hierarchy.linkage(values_RC, "average", optimal_ordering=True))


def _font(entries: np.ndarray) -> float:
    return FONT - 1 if len(entries) <= 30 else FONT - 2


def method_differences(
    differences: pd.DataFrame,
    metric: str,
    *,
    model: str = "the model",
    legend: bool = True,
    ax: Axes | None = None,
) -> Axes:
    """Gain of a model over each other method, with intervals from resampled conditions.

    Right of the line the model is better, also for errors, of which less is better.

    Parameters
    ----------
    differences
        Rows of one subgroup of :func:`gears.evaluation.intervals.difference_table`.
    model
        Name of the model.

    Raises
    ------
    ValueError
        If columns or the metric are missing.
    """
    needed = ("against", "metric", "difference", "low", "high", "better")
    columns_of(differences, needed, "one subgroup of a difference_table")
    metrics = list(dict.fromkeys(differences["metric"]))
    if metric not in metrics:
        raise ValueError(unknown_name("metric", metric, metrics))
    others = list(dict.fromkeys(differences["against"]))
    rows = differences[differences["metric"] == metric].set_index("against")
    if rows.index.has_duplicates:
        msg = "several rows for one method: the table holds several subgroups; give the rows of one"
        raise ValueError(msg)
    ax = new_axes(4.6, 0.3 * len(others) + 1.6) if ax is None else ax
    ax.axvline(0, color="black", linewidth=0.8)
    from gears.evaluation.metrics.registry import get_metric  # loaded when a figure is drawn

    sign = 1.0 if get_metric(metric).higher_is_better else -1.0
    for height, (_, row) in enumerate(rows.reindex(others).iterrows()):
        if not np.isfinite(row["difference"]):
            continue
        colour, mark = BETTER[str(row["better"])]
        ax.plot([sign * row["low"], sign * row["high"]], [height] * 2, color=colour, linewidth=1.6)
        ax.plot(sign * row["difference"], height, mark, color=colour, markersize=6)
    ax.set_title(metric, fontsize=FONT + 1)
    ax.set_ylim(len(others) - 0.5, -0.5)
    ax.locator_params(axis="x", nbins=4)
    ax.grid(axis="x", color="0.9", linewidth=0.6)
    bare(ax)
    ax.set_xlabel(f"gain of {model}", fontsize=FONT)
    ax.set_yticks(range(len(others)), others)
    if legend:
        legend_below(ax, columns=1, handles=difference_handles())
    return ax


def difference_handles() -> list[Any]:
    """Legend entries of :func:`method_differences`."""
    from matplotlib.lines import Line2D

    entries = [(*BETTER[name], label) for name, label in LABELS.items()]
    style: dict[str, Any] = {"linewidth": 1.6, "markersize": 6}
    return [
        Line2D([], [], color=colour, marker=mark, label=label, **style) for colour, mark, label in entries
    ]
