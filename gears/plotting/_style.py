"""Colours, marks and figures of all plots, checks of their data, and names beside points.

The colours are those of Okabe and Ito (2008), which colour-blind readers can distinguish. In grey they
are similar, so each colour is combined with a mark, a line style or a sign.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gears.conditions import Condition
from gears.core._messages import count, shorten
from gears.files._atomic import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072b2", "#d55e00", "#009e73", "#8c4f80", "#6b6b6b"
MARKS = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "^"), (PURPLE, "D"), (GREY, "v"), ("black", "P"))
LINES = ("-", "--", ":", "-.")
DIVERGING = "PuOr_r"
FONT = 8.0


def new_figure(width: float, height: float) -> Figure:
    """A figure without a window; sizes in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def new_axes(width: float = 5.6, height: float = 4.2) -> Axes:
    """The Axes of a new figure without a window; sizes in inches."""
    return new_figure(width, height).subplots()


def in_notebook() -> bool:
    """Whether the code runs in the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def show_figure(figure: Figure) -> None:
    """Show a figure: below the cell of a notebook, elsewhere in a window of pyplot."""
    if in_notebook():
        from IPython.display import Image, display

        display(Image(data=image_bytes(figure)))
        return
    from matplotlib import pyplot

    window = pyplot.figure()
    assert window.canvas.manager is not None
    window.canvas.manager.canvas.figure = figure
    figure.set_canvas(window.canvas)  # a figure made without pyplot has no window of its own
    pyplot.show()


def figure_of(ax: Axes | Figure) -> Figure:
    """The whole figure that Axes belong to."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    return figure


def deliver(figure: Figure, *, save: str | Path | None, show: bool) -> None:
    """Write a finished figure to a file, if one is named, and show it on request."""
    if save is not None:
        save_figure(figure, save)
    if show:
        show_figure(figure)


def save_figure(figure: Figure, path: str | Path, *, dpi: int = 150) -> Path:
    """Write a figure (PNG, SVG or PDF by its suffix) atomically."""
    return write_atomically(path, lambda temporary: figure.savefig(temporary, dpi=dpi))


def image_bytes(figure: Figure, kind: str = "png") -> bytes:
    """A figure as PNG or SVG, the same bytes for the same figure."""
    from matplotlib import rc_context

    buffer = io.BytesIO()
    with rc_context({"svg.hashsalt": "gears"}):
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        figure.savefig(buffer, format=kind, dpi=110, metadata=metadata)
    figure.set_layout_engine("none")  # layout is computed once, also for a second format
    return buffer.getvalue()


def bare(ax: Axes) -> None:
    """Axes without the upper and right frame, small tick labels."""
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    ax.tick_params(which="both", labelsize=FONT)


def plain_log(axis: Axis) -> None:
    """A logarithmic axis with few labels, as plain numbers: those of matplotlib overlap within a decade."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def finish(ax: Axes, x: str, y: str, title: str = "", *, legend: bool = True) -> Axes:
    """Axes with their labels, a title and a legend, as curves have them."""
    bare(ax)
    ax.set_xlabel(x, fontsize=FONT + 1)
    ax.set_ylabel(y, fontsize=FONT + 1)
    if title:
        ax.set_title(title, fontsize=FONT + 2)
    if legend:
        ax.legend(fontsize=FONT, frameon=False)
    return ax


def legend_below(ax: Axes, *, columns: int = 3, handles: Any = None) -> None:
    """A legend under the Axes, where it covers no data."""
    options = {"ncols": columns, "fontsize": FONT, "frameon": False}
    options |= {} if handles is None else {"handles": handles}
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), **options)


def minus_signs(ax: Axes, values_RC: np.ndarray, limit: float) -> None:
    """Draw a minus on image cells clearly below zero, because both ends of the colours look alike in grey."""
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


def per_gene(name: str, values: Any, n_genes: int | None = None) -> np.ndarray:
    """Values of the genes as float64, (G,); ValueError if they are not one number per gene."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or (n_genes is not None and len(array) != n_genes):
        expected = "one value per gene" + ("" if n_genes is None else f", ({n_genes},)")
        msg = f"{name} has shape {array.shape}; expected {expected}: give one condition's row"
        raise ValueError(msg)
    return array


def per_condition(name: str, values: Any, n_conditions: int) -> np.ndarray:
    """A table of conditions x genes as float64, (U, G)."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 2 or len(array) != n_conditions:
        msg = (
            f"{name} has shape {array.shape}; expected one row for each of {count(n_conditions, 'condition')} "
            "and one column per gene"
        )
        raise ValueError(msg)
    return array


def names_of(gene_names: Sequence[str], n_genes: int) -> list[str]:
    """Gene names, one for each gene."""
    if len(gene_names) != n_genes:
        msg = f"{count(len(gene_names), 'gene name')} for {count(n_genes, 'gene')}; give one name per gene"
        raise ValueError(msg)
    return [str(name) for name in gene_names]


def condition_names(conditions: Iterable[Condition | str]) -> list[str]:
    """Labels of conditions: genes, type and context; a single gene without "+ctrl"."""
    parsed = [Condition.of(condition) for condition in conditions]
    return [("+".join(condition.genes) or "ctrl") + condition.suffix for condition in parsed]


def positions(genes: Iterable[int | np.integer | str], gene_names: Sequence[str]) -> np.ndarray:
    """Positions of genes from names or positions, (K,) int64; ValueError for unknown ones, or none."""
    index = {name: position for position, name in enumerate(gene_names)}
    requested = [gene if isinstance(gene, str) else int(gene) for gene in genes]
    valid = {*index, *range(len(gene_names))}
    unknown = [gene for gene in requested if gene not in valid]
    if unknown:
        msg = (
            f"{count(len(unknown), 'gene')} not among the {len(gene_names)} that are predicted: "
            f"{shorten(unknown)}; give names out of gene_names, or positions from 0 to {len(gene_names) - 1}"
        )
        raise ValueError(msg)
    if not requested:
        msg = "there is no gene to draw; give at least one"
        raise ValueError(msg)
    return np.array([index[gene] if isinstance(gene, str) else gene for gene in requested], dtype=np.int64)


def columns_of(table: Any, expected: Sequence[str], what: str) -> None:
    """Raise if a table lacks columns."""
    missing = [name for name in expected if name not in getattr(table, "columns", ())]
    if missing:
        present = shorten(getattr(table, "columns", ())) or "none"
        msg = f"the table lacks {shorten(missing)} (its columns: {present}); expected {what}"
        raise ValueError(msg)


def name_points(ax: Axes, x: np.ndarray, y: np.ndarray, named: Sequence[tuple[int, str]]) -> None:
    """Write names in a column beside the Axes, whose limits are final, each with a line to its point.

    `x` and `y` are all points, (N,), `named` the position and name of those to name.
    """
    low, high = ax.get_ylim()
    step = 0.065 * (high - low)  # a line of text in data units, in the smallest panel as well
    ordered = sorted((float(y[point]), float(x[point]), name) for point, name in named)
    heights = spread([height for height, _, _ in ordered], step, low + step / 2, high - step / 2)
    for height, (point_y, point_x, name) in zip(heights, ordered, strict=True):
        ax.annotate(
            name,
            xy=(point_x, point_y),
            xytext=(1.02, (height - low) / (high - low)),
            textcoords="axes fraction",
            ha="left",
            va="center",
            fontsize=FONT,
            arrowprops={"arrowstyle": "-", "color": "0.55", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 2},
            zorder=2.5,
        )


def spread(heights: Sequence[float], step: float, low: float, high: float) -> list[float]:
    """Move ascending heights apart to at least `step`, within `low` and `high` as far as they fit."""
    shifted: list[float] = []
    for height in heights:
        shifted.append(max(height, shifted[-1] + step if shifted else low))
    ceiling = high
    for index in range(len(shifted) - 1, -1, -1):
        shifted[index] = min(shifted[index], ceiling)
        ceiling = shifted[index] - step
    return shifted


def name_near(ax: Axes, x: np.ndarray, y: np.ndarray, named: Sequence[tuple[int, str]]) -> None:
    """Write names near their points where they cover no other name and no point; distant ones have a line.

    Names are placed in the order of `named`; a name without free space is omitted. Parameters: :func:`name_points`.
    """
    per_point = ax.figure.dpi / 72
    points_N2 = ax.transData.transform(np.column_stack([x, y])) / per_point
    window = ax.get_window_extent()
    frame = np.array([window.x0, window.y0, window.x1, window.y1]) / per_point
    placed: list[np.ndarray] = []
    covered = points_N2
    for point, name in named:
        size = np.array([0.62 * FONT * len(name), 1.15 * FONT])
        boxes = [box for gap in GAPS for box in _boxes(points_N2[point], size, gap)]
        lines = [np.linspace(points_N2[point], box.reshape(2, 2).mean(axis=0), 30) for box in boxes]
        free = (n for n, box in enumerate(boxes) if _is_free(box, lines[n], placed, covered, frame))
        best = next(free, None)
        if best is None:
            continue
        placed.append(boxes[best])
        covered = np.concatenate([covered, lines[best]])
        shift = boxes[best][:2] - points_N2[point]
        is_far = best >= len(boxes) // len(GAPS)
        line = {"arrowstyle": "-", "color": "0.55", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 2}
        ax.annotate(
            name, xy=(float(x[point]), float(y[point])), xytext=(float(shift[0]), float(shift[1])),
            textcoords="offset points", ha="left", va="bottom", fontsize=FONT - 1, zorder=4,
            arrowprops=line if is_far else None,
        )  # fmt: skip


GAPS = (4.5, 10.0, 18.0, 28.0, 40.0)
"""Distances of names from their points."""
MARK = 2.5
"""Half the width of a mark."""


def _boxes(point_2: np.ndarray, size_2: np.ndarray, gap: float) -> list[np.ndarray]:
    """Boxes for a name around its point, preferred ones first: (left, bottom, right, top) in points."""
    width, height = size_2
    corners = [
        (gap, -height / 2), (-gap - width, -height / 2), (-width / 2, gap), (-width / 2, -gap - height),
        (gap, gap), (-gap - width, gap), (gap, -gap - height), (-gap - width, -gap - height),
    ]  # fmt: skip
    lows = [point_2 + np.array(corner) for corner in corners]
    return [np.concatenate([low, low + size_2]) for low in lows]


def _is_free(
    box: np.ndarray, line_M2: np.ndarray, placed: Sequence[np.ndarray], covered_N2: np.ndarray, frame: np.ndarray
) -> bool:
    """Whether a name within the Axes covers no mark and no line, and neither it nor its line covers a name."""
    for other in placed:
        if (box[:2] < other[2:]).all() and (other[:2] < box[2:]).all():
            return False
        if ((line_M2 > other[:2]) & (line_M2 < other[2:])).all(axis=1).any():
            return False
    if (box[:2] < frame[:2]).any() or (box[2:] > frame[2:]).any():
        return False
    return not ((covered_N2 > box[:2] - MARK) & (covered_N2 < box[2:] + MARK)).all(axis=1).any()
