"""Predicted against true change of every gene."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gears.plotting.style import FONT, name_points, names_of, new_axes, new_figure, per_gene

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from gears.evaluation.truth import Truth

REST: dict[str, Any] = {"s": 10, "color": "0.72", "linewidths": 0, "zorder": 2}
TOP: dict[str, Any] = {"s": 30, "color": "#b2182b", "edgecolors": "black", "linewidths": 0.6, "zorder": 3}


def predicted_vs_true(
    predicted_delta_G: np.ndarray,
    true_delta_G: np.ndarray,
    gene_names: Sequence[str] | None = None,
    *,
    top_de: Sequence[int] | np.ndarray = (),
    sd_G: np.ndarray | None = None,
    title: str = "",
    n_labels: int = 8,
    legend: bool = True,
    ax: Axes | None = None,
) -> Axes:
    """Scatter predicted against true change of every gene, with the top differential genes marked and named.

    Marked genes differ in lightness, size and outline, so that the figure reads in grey. The dashed diagonal is a
    perfect prediction; genes in the shaded quarters change the other way.

    Parameters
    ----------
    predicted_delta_G, true_delta_G
        Changes over the control mean, log-normalised units, (G,).
    gene_names
        (G,) names for the labels; without them no gene is named.
    top_de
        Indices of the top differential genes.
    sd_G
        Standard deviation of each predicted change (a row of ``predictions.sd``), (G,): a bar is drawn over the 90 %
        interval of each marked gene.
    n_labels
        Number of marked genes to name, those with the largest true change first.

    Raises
    ------
    ValueError
        If the two changes, or the names, differ in length.
    """
    true = per_gene("true_delta_G", true_delta_G)
    predicted = per_gene("predicted_delta_G", predicted_delta_G, len(true))
    names = None if gene_names is None else names_of(gene_names, len(true))
    ax = new_axes(5.6, 5.2) if ax is None else ax
    marked = np.asarray(top_de, dtype=np.int64)
    others = np.setdiff1d(np.arange(len(true)), marked)
    half_M = np.zeros(len(marked))
    if sd_G is not None:
        from gears.evaluation.uncertainty import half_width  # loaded when a figure is drawn

        half_M = half_width(0.9) * per_gene("sd_G", sd_G, len(true))[marked]
    _background(ax, _limits(predicted, true, predicted[marked] - half_M, predicted[marked] + half_M))
    ax.scatter(true[others], predicted[others], label=f"other genes ({len(others)})", **REST)
    if len(marked):
        if sd_G is not None:
            bars: dict[str, Any] = {"fmt": "none", "ecolor": "0.35", "elinewidth": 0.9, "zorder": 2.5}
            ax.errorbar(true[marked], predicted[marked], half_M, label="90 % interval", **bars)
        ax.scatter(true[marked], predicted[marked], label=f"top {len(marked)} differential genes", **TOP)
        if legend:
            ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=3, fontsize=FONT, frameon=False)
    ax.set_xlabel("true change over control", fontsize=FONT + 1)
    ax.set_ylabel("predicted change over control", fontsize=FONT + 1)
    ax.set_title("\n".join(filter(None, [title, _correlations(predicted, true, marked)])), fontsize=FONT + 2)
    if names is not None and len(marked):
        labelled = marked[np.argsort(-np.abs(true[marked]), kind="stable")][:n_labels]
        name_points(ax, true, predicted, [(int(gene), names[gene]) for gene in labelled])
    return ax


def prediction_figure(
    predicted_UG: np.ndarray,
    truth: Truth,
    gene_names: Sequence[str] | None = None,
    *,
    rows: Sequence[int] | None = None,
    titles: Sequence[str] | None = None,
    sd_UG: np.ndarray | None = None,
    n_columns: int = 3,
    n_labels: int = 5,
) -> Figure:
    """One panel of :func:`predicted_vs_true` per condition, with one legend.

    Parameters
    ----------
    predicted_UG
        Predicted mean expression, (U, G).
    truth
        The true means, the control mean, and the top differential genes.
    rows
        Rows of the conditions to plot; by default the first six.
    titles
        A title for each of them; by default the condition's name.
    sd_UG
        Standard deviations of the predicted means (``predictions.sd``), (U, G).
    """
    shown_rows = list(range(min(6, len(truth.conditions)))) if rows is None else list(rows)
    if not shown_rows:
        msg = "there is no condition to plot; give at least one row"
        raise ValueError(msg)
    titles = [truth.conditions[row].name for row in shown_rows] if titles is None else titles
    n_columns = min(n_columns, len(shown_rows))
    n_rows = math.ceil(len(shown_rows) / n_columns)
    figure = new_figure(3.45 * n_columns, 3.3 * n_rows + 0.3)
    panels = figure.subplots(n_rows, n_columns, squeeze=False).ravel()
    for ax, row, title in zip(panels, shown_rows, titles, strict=False):
        predicted_vs_true(
            np.asarray(predicted_UG[row]) - truth.control_mean_G,
            truth.delta_UG[row],
            gene_names,
            top_de=truth.top_moderated()[row],
            sd_G=None if sd_UG is None else sd_UG[row],
            title=title,
            n_labels=n_labels,
            legend=False,
            ax=ax,
        )
    for ax in panels[len(shown_rows) :]:
        ax.set_axis_off()
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=FONT, frameon=False)
    return figure


def _limits(*values_of: np.ndarray) -> tuple[float, float]:
    """Common limits of both axes: everything and the origin, with a margin."""
    values = np.concatenate([*values_of, [0.0]])
    values = values[np.isfinite(values)]
    margin = 0.06 * float(np.ptp(values)) or 1.0
    return float(values.min()) - margin, float(values.max()) + margin


def _background(ax: Axes, limits: tuple[float, float]) -> None:
    ax.set(xlim=limits, ylim=limits, aspect="equal")
    ax.locator_params(nbins=5)
    low, high = limits
    ax.fill_between([low, 0.0], 0.0, high, color="0.955", linewidth=0, zorder=0)
    ax.fill_between([0.0, high], low, 0.0, color="0.955", linewidth=0, zorder=0)
    ax.axhline(0, color="0.6", linewidth=0.6, zorder=1)
    ax.axvline(0, color="0.6", linewidth=0.6, zorder=1)
    ax.plot(limits, limits, color="0.3", linewidth=0.8, linestyle="--", zorder=1)


def _correlations(predicted: np.ndarray, true: np.ndarray, marked: np.ndarray) -> str:
    top = f" (top {len(marked)}: {_pearson(predicted[marked], true[marked])})" if len(marked) else ""
    return f"r = {_pearson(predicted, true)}{top}"


def _pearson(a: np.ndarray, b: np.ndarray) -> str:
    from gears.evaluation.rows import own_noise, pearson_rows  # loaded when a figure is drawn

    a, b = a[None, :], b[None, :]
    r = float(pearson_rows(a, b, noise_a=own_noise(a), noise_b=own_noise(b))[0])
    return "undefined" if math.isnan(r) else f"{r:.2f}"
