"""Names of points, written where they cover as little as can be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gears.plotting.style import FONT

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def name_points(ax: Axes, x: np.ndarray, y: np.ndarray, named: Sequence[tuple[int, str]]) -> None:
    """Write names in a column beside the Axes, each with a line to its point.

    Parameters
    ----------
    ax
        Whose limits are final.
    x, y
        All points, (N,).
    named
        Position and name of those that are named.
    """
    low, high = ax.get_ylim()
    step = 0.05 * (high - low)  # height of a line of text in data units
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
    """Ascending heights pushed apart to at least `step`, kept between `low` and `high` as far as they fit."""
    placed: list[float] = []
    for height in heights:
        placed.append(max(height, placed[-1] + step if placed else low))
    ceiling = high
    for index in range(len(placed) - 1, -1, -1):
        placed[index] = min(placed[index], ceiling)
        ceiling = placed[index] - step
    return placed


def name_near(ax: Axes, x: np.ndarray, y: np.ndarray, named: Sequence[tuple[int, str]]) -> None:
    """Write names beside their points, where they cover no other name and as few points as can be.

    Points come first as they are given; a name that finds no free place is left out.

    Parameters
    ----------
    ax
        Whose limits are final.
    x, y
        All points, (N,).
    named
        Position and name of those that are named.
    """
    per_point = ax.figure.dpi / 72
    points_N2 = ax.transData.transform(np.column_stack([x, y])) / per_point
    window = ax.get_window_extent()
    frame = np.array([window.x0, window.y0, window.x1, window.y1]) / per_point
    placed: list[np.ndarray] = []
    for point, name in named:
        size = np.array([0.62 * FONT * len(name), 1.15 * FONT])
        best = min(
            (
                (_cost(box, placed, points_N2, frame) + 0.1 * order, order)
                for order, box in enumerate(_boxes(points_N2[point], size))
            ),
        )
        if best[0] >= COVERED:
            continue
        box = _boxes(points_N2[point], size)[best[1]]
        placed.append(box)
        shift = box[:2] - points_N2[point]
        ax.annotate(
            name, xy=(float(x[point]), float(y[point])), xytext=(float(shift[0]), float(shift[1])),
            textcoords="offset points", ha="left", va="bottom", fontsize=FONT - 1, zorder=4,
        )  # fmt: skip


COVERED = 100.0
GAP = 4.5


def _boxes(point_2: np.ndarray, size_2: np.ndarray) -> list[np.ndarray]:
    """Places of a name around its point, the best ones first: (left, bottom, right, top) in points."""
    width, height = size_2
    corners = [
        (GAP, -height / 2), (-GAP - width, -height / 2), (-width / 2, GAP), (-width / 2, -GAP - height),
        (GAP, GAP), (-GAP - width, GAP), (GAP, -GAP - height), (-GAP - width, -GAP - height),
    ]  # fmt: skip
    lows = [point_2 + np.array(corner) for corner in corners]
    return [np.concatenate([low, low + size_2]) for low in lows]


def _cost(box: np.ndarray, placed: Sequence[np.ndarray], points_N2: np.ndarray, frame: np.ndarray) -> float:
    """Points under a name; :data:`COVERED` or more where it touches another name or leaves the Axes."""
    for other in placed:
        if (box[:2] < other[2:]).all() and (other[:2] < box[2:]).all():
            return COVERED
    if (box[:2] < frame[:2]).any() or (box[2:] > frame[2:]).any():
        return COVERED
    return float(((points_N2 > box[:2]) & (points_N2 < box[2:])).all(axis=1).sum())
