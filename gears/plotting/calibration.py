"""Whether predicted variances fit the errors: coverage of intervals, error against predicted spread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from gears.messages import count
from gears.plotting.style import FONT, LINES, MARKS, bare, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from gears.evaluation.uncertainty import Calibration


def coverage_curve(judged: Mapping[str, Calibration], *, ax: Axes | None = None) -> Axes:
    """Share of values within their interval against the interval's level, one line per method.

    On the dashed diagonal variances are right; below it they are too small.

    Parameters
    ----------
    judged
        What :func:`gears.evaluation.uncertainty.calibration` says, by method; at most six.
    ax
        Axes to draw on; by default those of a new figure.

    Raises
    ------
    ValueError
        If there is no method, or more than six.
    """
    _check(judged)
    ax = new_axes(3.9, 3.6) if ax is None else ax
    ax.plot([0, 1], [0, 1], color="0.3", linewidth=0.8, linestyle="--", label="calibrated")
    for number, (name, one) in enumerate(judged.items()):
        _line(ax, number, name, one.coverage["level"].to_numpy(), one.coverage["observed"].to_numpy())
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    bare(ax)
    ax.set_xlabel("level of the interval", fontsize=FONT + 1)
    ax.set_ylabel("share of values within it", fontsize=FONT + 1)
    ax.legend(fontsize=FONT, frameon=False)
    return ax


def error_against_spread(judged: Mapping[str, Calibration], *, ax: Axes | None = None) -> Axes:
    """Root mean square error of groups of values against their predicted standard deviation.

    On the dashed line they agree; above it errors are larger than predicted.

    Parameters
    ----------
    judged
        What :func:`gears.evaluation.uncertainty.calibration` says, by method; at most six.
    ax
        Axes to draw on; by default those of a new figure.

    Raises
    ------
    ValueError
        If there is no method, or more than six.
    """
    _check(judged)
    ax = new_axes(3.9, 3.6) if ax is None else ax
    both = []
    for number, (name, one) in enumerate(judged.items()):
        values = one.bins[["predicted_sd", "error"]].to_numpy(dtype=np.float64)
        _line(ax, number, name, values[:, 0], values[:, 1])
        both.append(values[values > 0])
    positive = np.concatenate(both)
    if len(positive) and positive.min() < positive.max():
        limits = [float(positive.min()), float(positive.max())]
        ax.plot(limits, limits, color="0.3", linewidth=0.8, linestyle="--", label="calibrated", zorder=1)
        ax.set(xscale="log", yscale="log")
    bare(ax)
    ax.set_xlabel("predicted standard deviation", fontsize=FONT + 1)
    ax.set_ylabel("root mean square error", fontsize=FONT + 1)
    ax.legend(fontsize=FONT, frameon=False)
    return ax


def _line(ax: Axes, number: int, name: str, x: np.ndarray, y: np.ndarray) -> None:
    colour, mark = MARKS[number]
    ax.plot(
        x, y, color=colour, marker=mark, markersize=4, linestyle=LINES[number % 4], linewidth=1.2, label=name
    )


def _check(judged: Mapping[str, Calibration]) -> None:
    if not 1 <= len(judged) <= len(MARKS):
        msg = (
            f"{count(len(judged), 'method')} to draw; expected one to {len(MARKS)}, as a dict: {{'ensemble': "
            "calibration(mean, variance, true)}"
        )
        raise ValueError(msg)
