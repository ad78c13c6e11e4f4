"""Colours, marks and figures that all plots share.

The colours are those of Okabe and Ito (2008), told apart by colour-blind readers. In grey they
are close to each other: whatever a colour says is said by a mark, a line style or a sign as well.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gears.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072b2", "#d55e00", "#009e73", "#8c4f80", "#6b6b6b"
MARKS = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "^"), (PURPLE, "D"), (GREY, "v"), ("black", "P"))
LINES = ("-", "--", ":", "-.")
DIVERGING = "PuOr_r"
FONT = 8.0


def new_figure(width: float, height: float) -> Figure:
    """A figure that belongs to no window; sizes in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def new_axes(width: float = 5.6, height: float = 4.2) -> Axes:
    """The Axes of a new figure that belongs to no window; sizes in inches."""
    return new_figure(width, height).subplots()


def save_figure(figure: Figure, path: str | Path, *, dpi: int = 150) -> Path:
    """Write a figure (PNG, SVG or PDF by its suffix) in one step: a reader sees the old file or the new one."""
    return write_atomically(path, lambda temporary: figure.savefig(temporary, dpi=dpi))


def image_bytes(figure: Figure, kind: str = "png") -> bytes:
    """A figure as PNG or SVG, the same bytes for the same figure."""
    from matplotlib import rc_context

    buffer = io.BytesIO()
    with rc_context({"svg.hashsalt": "gears"}):
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        figure.savefig(buffer, format=kind, dpi=110, metadata=metadata)
    figure.set_layout_engine("none")  # laid out once: a second format keeps the places and costs half
    return buffer.getvalue()


def bare(ax: Axes) -> None:
    """Axes without the upper and right frame, small tick labels."""
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    ax.tick_params(labelsize=FONT)


def legend_below(ax: Axes, *, columns: int = 3, handles: Any = None) -> None:
    """A legend under the Axes, where it covers no data."""
    more = {} if handles is None else {"handles": handles}
    ax.legend(
        loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=columns, fontsize=FONT, frameon=False, **more
    )


def minus_signs(ax: Axes, values_RC: np.ndarray, limit: float) -> None:
    """A minus on every cell of an image that is clearly below zero: in grey both ends of the colours look alike."""
    rows, columns = np.nonzero(values_RC < -0.15 * limit)
    if not len(rows):
        return
    box = ax.get_window_extent()
    per_inch = 72 / ax.figure.dpi
    cell = min(box.width * per_inch / values_RC.shape[1], box.height * per_inch / values_RC.shape[0])
    dark = values_RC[rows, columns] < -0.6 * limit
    colours = np.where(dark, "white", "black")
    size = min(0.55 * cell, 8.0) ** 2
    ax.scatter(columns, rows, s=size, c=colours, marker="_", linewidths=0.7, label="decrease", zorder=3)


def colour_bar(ax: Axes | list[Axes], image: Any, label: str) -> None:
    """A colour scale beside the Axes (one or several)."""
    bar = image.axes.figure.colorbar(image, ax=ax, shrink=0.7, pad=0.02)
    bar.set_label(label, fontsize=FONT)
    bar.ax.tick_params(labelsize=FONT - 1)
