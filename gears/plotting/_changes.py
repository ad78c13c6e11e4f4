"""Predicted and observed change of every gene and of the top genes of a condition, and what a prediction is made of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gears.conditions import Condition
from gears.core._messages import count
from gears.plotting import _style
from gears.plotting._style import BLUE, FONT, GREEN, GREY, MARKS, ORANGE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from gears.evaluation.truth import Truth


REST: dict[str, Any] = {"s": 10, "color": "0.72", "linewidths": 0, "zorder": 2}
TOP: dict[str, Any] = {"s": 30, "color": "#b2182b", "edgecolors": "black", "linewidths": 0.6, "zorder": 3}


def predicted_vs_true(
    predicted_delta: np.ndarray,
    true_delta: np.ndarray,
    gene_names: Sequence[str] | None = None,
    *,
    top_de: Sequence[int] | np.ndarray = (),
    sd: np.ndarray | None = None,
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
    predicted_delta, true_delta
        Changes over the control mean, log-normalised units, (G,).
    gene_names
        (G,) names for the labels; without them no gene is named.
    top_de
        Indices of the top differential genes.
    sd
        Standard deviation of each predicted change (a row of ``predictions.sd``), (G,): a bar is drawn over the 90 %
        interval of each marked gene.
    n_labels
        Number of marked genes to name, those with the largest true change first.

    Raises
    ------
    ValueError
        If the two changes, or the names, differ in length.
    """
    true = _style.per_gene("true_delta", true_delta)
    predicted = _style.per_gene("predicted_delta", predicted_delta, len(true))
    names = None if gene_names is None else _style.names_of(gene_names, len(true))
    ax = _style.new_axes(5.6, 5.2) if ax is None else ax
    marked = np.asarray(top_de, dtype=np.int64)
    others = np.setdiff1d(np.arange(len(true)), marked)
    half_M = np.zeros(len(marked)) if sd is None else _half_90("sd", sd, len(true))[marked]
    _background(ax, _limits(predicted, true, predicted[marked] - half_M, predicted[marked] + half_M))
    ax.scatter(true[others], predicted[others], label=f"other genes ({len(others)})", **REST)
    if len(marked):
        if sd is not None:
            bars: dict[str, Any] = {"fmt": "none", "ecolor": "0.35", "elinewidth": 0.9, "zorder": 2.5}
            ax.errorbar(true[marked], predicted[marked], half_M, label="90 % interval", **bars)
        ax.scatter(true[marked], predicted[marked], label=f"top {len(marked)} differential genes", **TOP)
        if legend:
            ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2, fontsize=FONT, frameon=False)
    ax.set_xlabel("true change over control", fontsize=FONT + 1)
    ax.set_ylabel("predicted change over control", fontsize=FONT + 1)
    top = f" (top {len(marked)}: {_pearson(predicted[marked], true[marked])})" if len(marked) else ""
    ax.set_title("\n".join(filter(None, [title, f"r = {_pearson(predicted, true)}{top}"])), fontsize=FONT + 2)
    if names is not None and len(marked):
        labelled = marked[np.argsort(-np.abs(true[marked]), kind="stable")][:n_labels]
        _style.name_points(ax, true, predicted, [(int(gene), names[gene]) for gene in labelled])
    return ax


def prediction_figure(
    predicted: np.ndarray,
    truth: Truth,
    gene_names: Sequence[str] | None = None,
    *,
    rows: Sequence[int] | None = None,
    titles: Sequence[str] | None = None,
    sd: np.ndarray | None = None,
    n_columns: int = 3,
    n_labels: int = 5,
) -> Figure:
    """One panel of :func:`predicted_vs_true` per condition, with one legend.

    Parameters
    ----------
    predicted
        Predicted mean expression, (U, G).
    truth
        The true means, the control mean, and the top differential genes.
    rows
        Rows of the conditions to plot; by default the first six.
    titles
        A title for each of them; by default the condition's name.
    sd
        Standard deviations of the predicted means (``predictions.sd``), (U, G).
    """
    shown_rows = list(range(min(6, len(truth.conditions)))) if rows is None else list(rows)
    if not shown_rows:
        msg = "there is no condition to plot; give at least one row"
        raise ValueError(msg)
    titles = [truth.conditions[row].name for row in shown_rows] if titles is None else titles
    n_columns = min(n_columns, len(shown_rows))
    n_rows = math.ceil(len(shown_rows) / n_columns)
    figure = _style.new_figure(3.1 * n_columns, 3.1 * n_rows + 0.3)
    panels = figure.subplots(n_rows, n_columns, squeeze=False).ravel()
    for ax, row, title in zip(panels, shown_rows, titles, strict=False):
        predicted_vs_true(
            np.asarray(predicted[row]) - truth.control_mean_G,
            truth.delta_UG[row],
            gene_names,
            top_de=truth.top_moderated()[row],
            sd=None if sd is None else sd[row],
            title=title,
            n_labels=n_labels,
            legend=False,
            ax=ax,
        )
    for ax in panels[len(shown_rows) :]:
        ax.set_axis_off()
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=min(2 * n_columns, 4), fontsize=FONT, frameon=False
    )
    return figure


def _half_90(name: str, sd_G: np.ndarray, n_genes: int) -> np.ndarray:
    """Half the width of the 90 % interval of each gene, (G,)."""
    from gears.core._intervals import half_width  # loaded when a figure is drawn

    return half_width(0.9) * _style.per_gene(name, sd_G, n_genes)


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
    ax.plot(limits, limits, color="0.3", linewidth=0.8, linestyle="--", zorder=1, label="perfect prediction")


def _pearson(a: np.ndarray, b: np.ndarray) -> str:
    from gears.evaluation._rows import own_noise, pearson_rows  # loaded when a figure is drawn

    a, b = a[None, :], b[None, :]
    r = float(pearson_rows(a, b, noise_a=own_noise(a), noise_b=own_noise(b))[0])
    return "undefined" if math.isnan(r) else f"{r:.2f}"


BOX: dict[str, Any] = {
    "widths": 0.62,
    "whis": (5, 95),
    "showfliers": False,
    "patch_artist": True,
    "boxprops": {"facecolor": "0.88", "edgecolor": "0.45", "linewidth": 0.8},
    "medianprops": {"color": "0.45", "linewidth": 1.0},
    "whiskerprops": {"color": "0.45", "linewidth": 0.8},
    "capprops": {"color": "0.45", "linewidth": 0.8},
}


def gene_changes(
    true_delta: np.ndarray,
    predicted: Mapping[str, np.ndarray],
    gene_names: Sequence[str],
    *,
    genes: Iterable[int | str] | np.ndarray | None = None,
    cells_delta: np.ndarray | None = None,
    standard_error: np.ndarray | None = None,
    sd: Mapping[str, np.ndarray] | None = None,
    n_genes: int = 20,
    title: str = "",
    ax: Axes | None = None,
) -> Axes:
    """Plot the observed change of a condition's top genes and the predictions of methods.

    With cells, each gene has a box (quartiles, median; whiskers from the 5th to the 95th percentile of the cells) and
    a short black line at the mean, which methods predict: with many zeros the median is uninformative. Without cells
    it has a bar up to the mean, with its standard error if passed.

    Parameters
    ----------
    true_delta
        Observed mean minus control mean, (G,).
    predicted
        Predicted change over the control mean by method, (G,) each; at most six.
    gene_names
        (G,) names.
    genes
        Genes by name or position; by default the `n_genes` of largest observed change.
    cells_delta
        Cells of the condition minus the control mean, (N, G).
    standard_error
        Standard error of the observed mean, (G,); not drawn with cells.
    sd
        Standard deviation of the predicted change by method (``predictions.sd_change``), (G,) each, for methods that
        have it: a bar is drawn over the 90 % interval.
    n_genes
        Number of genes where `genes` is omitted.

    Raises
    ------
    ValueError
        If lengths disagree, a gene is unknown, or there are more than six methods.

    References
    ----------
    The figure of single perturbations in Roohani, Huang, Leskovec 2023 (GEARS).
    """
    true_G = _style.per_gene("true_delta", true_delta)
    names = _style.names_of(gene_names, len(true_G))
    if len(predicted) > len(MARKS):
        msg = f"{count(len(predicted), 'method')} to draw; expected at most {len(MARKS)}: omit some"
        raise ValueError(msg)
    if genes is None:
        genes = np.argsort(-np.abs(true_G), kind="stable")[:n_genes]
    columns = _style.positions(genes, names)
    ax = _style.new_axes(max(4.0, 0.36 * len(columns) + 2.2), 3.3) if ax is None else ax
    x = np.arange(len(columns))
    ax.axhline(0, color="black", linewidth=0.8, zorder=1)
    if cells_delta is not None:
        _cells(ax, x, cells_delta, columns, true_G)
    else:
        _means(ax, x, true_G[columns], standard_error, columns)
    for number, ((method, values), (colour, mark)) in enumerate(zip(predicted.items(), MARKS, strict=False)):
        value_G = _style.per_gene(f"predicted[{method!r}]", values, len(true_G))
        x_K = x + 0.14 * (number - (len(predicted) - 1) / 2)
        if sd is not None and method in sd:
            half_K = _half_90(f"sd[{method!r}]", sd[method], len(true_G))[columns]
            label = "90 % interval" if number == 0 else "_interval"
            bars: dict[str, Any] = {"fmt": "none", "ecolor": colour, "elinewidth": 1.3, "zorder": 3.5}
            ax.errorbar(x_K, value_G[columns], half_K, label=label, **bars)
        ax.plot(
            x_K, value_G[columns], mark, color=colour, markersize=6, markeredgecolor="white", markeredgewidth=0.4,
            label=method, zorder=4,
        )  # fmt: skip
    ax.set_xticks(x, [names[gene] for gene in columns], rotation=60, ha="right", rotation_mode="anchor")
    _style.bare(ax)
    ax.set_ylabel("change over control", fontsize=FONT + 1)
    ax.set_title(title, fontsize=FONT + 2)
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=FONT, frameon=False)
    return ax


def _cells(ax: Axes, x: np.ndarray, cells: np.ndarray, columns: np.ndarray, true_G: np.ndarray) -> None:
    cells_NG = np.asarray(cells, dtype=np.float64)
    if cells_NG.ndim != 2 or cells_NG.shape[1] != len(true_G) or not len(cells_NG):
        msg = f"cells_delta_NG has shape {cells_NG.shape}; expected at least one cell and {len(true_G)} genes"
        raise ValueError(msg)
    boxes = ax.boxplot(cells_NG[:, columns], positions=x, zorder=2, **BOX)
    boxes["boxes"][0].set_label(f"observed cells ({len(cells_NG)})")
    style: dict[str, Any] = {"color": "black", "linewidth": 2, "zorder": 3}
    ax.hlines(true_G[columns], x - 0.31, x + 0.31, label="observed mean", **style)


def _means(
    ax: Axes, x: np.ndarray, true_K: np.ndarray, standard_error_G: np.ndarray | None, columns: np.ndarray
) -> None:
    style: dict[str, Any] = {"color": "0.85", "edgecolor": "0.6", "linewidth": 0.6, "zorder": 2}
    ax.bar(x, true_K, width=0.72, label="observed mean", **style)
    if standard_error_G is None:
        return
    error_K = np.asarray(standard_error_G, dtype=np.float64)[columns]
    if np.isfinite(error_K).all():
        bars: dict[str, Any] = {"fmt": "none", "ecolor": "0.35", "elinewidth": 0.9, "zorder": 3}
        ax.errorbar(x, true_K, error_K, label="standard error", **bars)


def plot_perturbation(
    model: Any,
    query: str | Sequence[str] | Condition,
    save_file: str | Path | None = None,
    *,
    n_genes: int = 20,
    ax: Axes | None = None,
    show: bool | None = None,
) -> Axes:
    """Plot the cells of a condition over the genes of largest measured change, and what a model predicts.

    Parameters
    ----------
    model
        A trained :class:`gears.GEARS` with its screen.
    query
        A condition of the screen, such as ``"A+B"``, ``"A+ctrl"`` or ``["A", "B"]``; in a screen of several
        contexts or types with both, ``"A+ctrl [CRISPRi] @ K562"``.
    save_file
        Write the figure to this file as well (PNG, SVG or PDF by its suffix).
    n_genes
        Number of genes, those of largest measured change.
    show
        Show the figure, in a notebook below its cell, else in a window; by default in a notebook where `ax` is omitted.

    Raises
    ------
    KeyError
        The screen has no such condition; the message suggests similar ones.
    ValueError
        The model has no screen, or the condition is the control.
    """
    screen, condition = model._need_data("plot_perturbation").screen, model._condition(query)
    if condition.is_control:
        msg = "the control has no change to plot; give a perturbed condition, such as 'A+ctrl' or 'A+B'"
        raise ValueError(msg)
    row, predictions = screen.id_of(condition), model.predict([condition])
    mean_CG = screen.statistics.mean
    control_G = mean_CG[screen.control_of[row]]
    show = _style.in_notebook() and ax is None if show is None else show
    ax = gene_changes(
        mean_CG[row] - control_G,
        {"predicted": predictions.delta(condition)},
        screen.gene_names,
        cells_delta=screen.cells.rows(screen.cells_of(row)) - control_G if screen.has_cells else None,
        sd=None if predictions.sd_change is None else {"predicted": predictions.sd_change[0]},
        n_genes=n_genes,
        title=condition.name,
        ax=ax,
    )
    _style.deliver(_style.figure_of(ax), save=save_file, show=show)
    return ax


_LEAST = 0.002  # share of a part that is drawn
_STEP = ""
_COLOURS = {
    "condition": (BLUE, "", "one condition"), "others": (GREEN, "//", "other conditions"), _STEP: (GREY, "xx", "step"),
}  # fmt: skip


def evidence(table: pd.DataFrame, *, title: str = "", ax: Axes | None = None) -> Axes:
    """Parts of a prediction as bars: what each training condition and each step of the model adds.

    Parameters
    ----------
    table
        The ``table`` of an :class:`gears.prediction.Explanation`: a row per part with ``part``, ``condition``,
        ``similarity``, ``group`` and ``share``. Rows of a share below 0.2 % are not drawn.

    Raises
    ------
    ValueError
        The table has no part with a share.
    """
    rows = table[table["share"].abs() >= _LEAST].iloc[::-1]
    if rows.empty:
        msg = "the table has no part of 0.2 % or more of a prediction; explain a condition that changes some gene"
        raise ValueError(msg)
    ax = _style.new_axes(6.4, 0.9 + 0.24 * len(rows)) if ax is None else ax
    place = np.arange(len(rows))
    for part, (colour, hatch, label) in _COLOURS.items():
        drawn = (rows["part"].where(rows["part"].isin(_COLOURS), _STEP) == part).to_numpy()
        if drawn.any():
            shares = 100 * rows["share"].to_numpy()[drawn]
            ax.barh(place[drawn], shares, color=colour, alpha=0.75, hatch=hatch, edgecolor="white", label=label)
    if "without" in rows:
        # of the whole condition: once, beside its largest part
        known = (rows["without"].notna() & ~rows["condition"].duplicated(keep="last")).to_numpy()
        lost = -100 * rows["without"].to_numpy()[known]
        ax.plot(lost, place[known], "D", color=ORANGE, markersize=4, label="lost without the condition")
    links = rows["similarity"].astype(str)
    if "group" in rows:
        links = links.mask((rows["part"] == "others") & (links != ""), rows["group"].astype(str))
    names = [
        f"{condition} ({link})" if link else condition or part
        for part, condition, link in zip(rows["part"], rows["condition"].astype(str), links, strict=True)
    ]
    ax.set_yticks(place, names, fontsize=FONT)
    ax.axvline(0, color="black", linewidth=0.8)
    return _style.finish(ax, "share of the prediction (%)", "", title)
