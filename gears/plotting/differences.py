"""A model against other methods: paired differences with intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gears.messages import unknown_name
from gears.plotting.checks import columns_of
from gears.plotting.style import BLUE, FONT, GREY, ORANGE, bare, legend_below, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BETTER = {"model": (BLUE, "o"), "other": (ORANGE, "s"), "undecided": (GREY, "D")}
LABELS = {
    "model": "model better",
    "other": "other better",
    "undecided": "undecided (95 % interval holds 0)",
}


def method_differences(
    differences: pd.DataFrame,
    metric: str,
    *,
    model: str = "the model",
    legend: bool = True,
    ax: Axes | None = None,
) -> Axes:
    """Model minus each other method, with intervals from resampled conditions.

    Parameters
    ----------
    differences
        Rows of one subgroup of :func:`gears.evaluation.intervals.difference_table`.
    metric
        Which metric.
    model
        What the model is called.
    legend
        Say which mark means what.
    ax
        Axes to draw on; by default those of a new figure.

    Raises
    ------
    ValueError
        If columns or the metric are missing.
    """
    needed = ("against", "metric", "difference", "low", "high", "better")
    columns_of(differences, needed, "what difference_table gives, one subgroup of it")
    known = list(dict.fromkeys(differences["metric"]))
    if metric not in known:
        raise ValueError(unknown_name("metric", metric, known))
    others = list(dict.fromkeys(differences["against"]))
    rows = differences[differences["metric"] == metric].set_index("against")
    if rows.index.has_duplicates:
        msg = "several rows for one method: the table holds several subgroups; give the rows of one"
        raise ValueError(msg)
    ax = new_axes(4.6, 0.3 * len(others) + 1.6) if ax is None else ax
    ax.axvline(0, color="black", linewidth=0.8)
    for height, (_, row) in enumerate(rows.reindex(others).iterrows()):
        if not np.isfinite(row["difference"]):
            continue
        colour, mark = BETTER[str(row["better"])]
        ax.plot([row["low"], row["high"]], [height] * 2, color=colour, linewidth=1.6)
        ax.plot(row["difference"], height, mark, color=colour, markersize=6)
    ax.set_title(metric, fontsize=FONT + 1)
    ax.set_ylim(len(others) - 0.5, -0.5)
    ax.locator_params(axis="x", nbins=4)
    ax.grid(axis="x", color="0.9", linewidth=0.6)
    bare(ax)
    ax.set_xlabel(f"{model} minus other", fontsize=FONT)
    ax.set_yticks(range(len(others)), others)
    if legend:
        legend_below(ax, columns=2, handles=difference_handles())
    return ax


def difference_handles() -> list[Any]:
    """Legend entries of :func:`method_differences`."""
    from matplotlib.lines import Line2D

    return [
        Line2D(
            [], [], color=BETTER[name][0], marker=BETTER[name][1], linewidth=1.6, markersize=6, label=label
        )
        for name, label in LABELS.items()
    ]
