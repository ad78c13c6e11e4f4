"""Figures of a report. Colours are told apart by colour-blind readers, and marks differ in shape as well."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gears.evaluation.truth import Truth

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072b2", "#d55e00", "#009e73", "#8c4f80", "#6b6b6b"
BETTER = {"model": (BLUE, "o"), "other": (ORANGE, "s"), "undecided": (GREY, "D")}
MARKS = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "^"), (PURPLE, "D"))
FONT = 8.0
WHITE_TO_BLACK = "0.25"


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
    others = list(dict.fromkeys(differences["against"]))
    figure = new_figure(3.1 * len(metrics) + 1.2, 0.3 * len(others) + 1.35)
    panels = figure.subplots(1, len(metrics), sharey=True, squeeze=False)[0]
    for ax, metric in zip(panels, metrics, strict=True):
        rows = differences[differences["metric"] == metric].set_index("against").reindex(others)
        ax.axvline(0, color="black", linewidth=0.8)
        for height, (_, row) in enumerate(rows.iterrows()):
            if not np.isfinite(row["difference"]):
                continue
            colour, mark = BETTER[str(row["better"])]
            ax.plot([row["low"], row["high"]], [height] * 2, color=colour, linewidth=1.6)
            ax.plot(row["difference"], height, mark, color=colour, markersize=6)
        ax.set_title(metric, fontsize=FONT + 1)
        ax.set_xlabel(f"{model} minus other", fontsize=FONT)
        ax.set_ylim(len(others) - 0.5, -0.5)
        ax.locator_params(axis="x", nbins=4)
        ax.tick_params(labelsize=FONT)
        ax.grid(axis="x", color="0.9", linewidth=0.6)
        _bare(ax)
    panels[0].set_yticks(range(len(others)), others)
    handles = [_handle(*BETTER[name], label) for name, label in _BETTER_LABELS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=FONT, frameon=False)
    return figure


def top_de_figure(
    truth: Truth,
    predictions: Mapping[str, np.ndarray],
    row: int,
    gene_names: Sequence[str],
) -> Figure:
    """True change of one condition's top differential genes, with its standard error, and what methods predict.

    Parameters
    ----------
    truth
        The evaluated conditions.
    predictions
        Predicted means (U, G) by method, the model first; at most four are drawn.
    row
        The condition.
    gene_names
        (G,) names.
    """
    genes = truth.top_de[row]
    if not len(genes):
        genes = np.argsort(-np.abs(truth.delta_UG[row]), kind="stable")[:20]
    figure = new_figure(7.6, 2.9)
    ax = figure.subplots()
    place = np.arange(len(genes))
    true = truth.delta_UG[row, genes]
    ax.bar(
        place, true, width=0.72, color="0.85", edgecolor="0.6", linewidth=0.6, label="true change", zorder=2
    )
    error = truth.std_UG[row, genes] / np.sqrt(max(int(truth.n_cells_U[row]), 1))
    if np.isfinite(error).all():
        ax.errorbar(place, true, error, fmt="none", ecolor="0.35", elinewidth=0.9, zorder=3)
    chosen = list(predictions.items())[: len(MARKS)]
    for number, ((name, values_UG), (colour, mark)) in enumerate(zip(chosen, MARKS, strict=False)):
        change = values_UG[row, genes] - truth.control_mean_G[genes]
        offset = 0.13 * (number - (len(chosen) - 1) / 2)
        ax.plot(place + offset, change, mark, color=colour, markersize=4.5, label=name, zorder=4)
    ax.axhline(0, color="black", linewidth=0.8, zorder=1)
    ax.set_xticks(
        place, [str(gene_names[gene]) for gene in genes], rotation=60, ha="right", fontsize=FONT - 1
    )
    ax.tick_params(axis="y", labelsize=FONT)
    ax.set_ylabel("change over control", fontsize=FONT)
    ax.set_title(f"{truth.conditions[row].name} ({int(truth.n_cells_U[row])} cells)", fontsize=FONT + 2)
    _bare(ax)
    figure.legend(loc="outside right upper", fontsize=FONT, frameon=False)
    return figure


def delta_heat_map(
    truth: Truth, predictions: Mapping[str, np.ndarray], gene_names: Sequence[str], *, n_genes: int = 60
) -> Figure:
    """Changes of every condition (rows) over the most variable genes (columns): the truth and each method.

    All panels have one colour scale, symmetric about 0 and cut at the 99th
    percentile of the true changes.
    """
    variable = np.argsort(-truth.delta_UG.std(axis=0), kind="stable")[: min(n_genes, len(gene_names))]
    genes = variable[np.argsort(truth.delta_UG[:, variable].mean(axis=0), kind="stable")]
    order = np.argsort([f"{len(c)}{c.name}" for c in truth.conditions], kind="stable")
    panels = {"truth": truth.delta_UG}
    panels |= {name: values_UG - truth.control_mean_G for name, values_UG in predictions.items()}
    limit = float(np.quantile(np.abs(truth.delta_UG[:, genes]), 0.99)) or 1.0
    n_rows = len(order)
    figure = new_figure(9.0, len(panels) * min(max(0.13 * n_rows, 1.0), 6.0) + 1.1)
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for ax, (name, delta_UG) in zip(axes, panels.items(), strict=True):
        image = ax.imshow(
            delta_UG[order][:, genes],
            aspect="auto",
            cmap="PuOr_r",
            vmin=-limit,
            vmax=limit,
            interpolation="none",
        )
        ax.set_title(name, fontsize=FONT + 1, loc="left")
        if n_rows <= 45:
            ax.set_yticks(range(n_rows), [truth.conditions[i].name for i in order], fontsize=FONT - 3)
        else:
            ax.set_yticks([])
    axes[-1].set_xticks(
        range(len(genes)), [str(gene_names[g]) for g in genes], rotation=90, fontsize=FONT - 3
    )
    bar = figure.colorbar(image, ax=axes.tolist(), shrink=0.6, pad=0.01)
    bar.set_label("change over control", fontsize=FONT)
    bar.ax.tick_params(labelsize=FONT - 1)
    return figure


def new_figure(width: float, height: float) -> Figure:
    """A figure that belongs to no window."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def image_bytes(figure: Figure, kind: str = "png") -> bytes:
    """A figure as PNG or SVG, the same bytes for the same figure."""
    from matplotlib import rc_context

    buffer = io.BytesIO()
    with rc_context({"svg.hashsalt": "gears"}):
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        figure.savefig(buffer, format=kind, dpi=110, metadata=metadata)
    figure.set_layout_engine("none")  # laid out once: a second format keeps the places and costs half
    return buffer.getvalue()


_BETTER_LABELS = {
    "model": "model better",
    "other": "other better",
    "undecided": "undecided (95 % interval holds 0)",
}


def _handle(colour: str, mark: str, label: str) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=colour, marker=mark, linewidth=1.6, markersize=6, label=label)


def _bare(ax: Any) -> None:
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
