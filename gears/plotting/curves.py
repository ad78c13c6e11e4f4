"""Plot training curves, and the calibration of predicted variances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gears.core.messages import count, shorten, unknown_name
from gears.evaluation.uncertainty import Calibration
from gears.plotting.style import LINES, MARKS, finish, new_axes, new_figure, plain_log

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

History = Sequence[Mapping[str, Any]]


def training_curves(
    history: History | Mapping[str, History],
    names: str | Sequence[str] = "train_loss",
    *,
    best_epoch: int | None = None,
    log: bool = False,
    title: str = "",
    ax: Axes | None = None,
) -> Axes:
    """Draw numbers of a training's history by epoch, one line per name and run.

    Epochs without a value (validation need not happen in each) are bridged. Lines differ in dashes and marks as well
    as in colour.

    Parameters
    ----------
    history
        One record per epoch, as :attr:`gears.training.TrainResult.history` or the lines of ``metrics.jsonl``;
        or a dict of histories by the name of the run.
    names
        Numbers of the records to plot, such as ``"train_loss"`` or ``["val_mse_top20_de"]``.
    best_epoch
        Marked by a vertical line: the epoch whose weights were kept.
    log
        Logarithmic scale.

    Raises
    ------
    ValueError
        If there is no epoch, or no record has one of the names.

    Examples
    --------
    >>> ax = training_curves([{"epoch": 1, "train_loss": 2.0}, {"epoch": 2, "train_loss": 1.0}])
    >>> ax.lines[0].get_xydata().tolist()
    [[1.0, 2.0], [2.0, 1.0]]
    """
    from matplotlib.ticker import MaxNLocator

    runs = dict(history) if isinstance(history, Mapping) else {"": history}
    shown_names = [names] if isinstance(names, str) else list(names)
    ax = new_axes(5.2, 3.4) if ax is None else ax
    number = 0
    for run, records in runs.items():
        for name in shown_names:
            epochs, values = _series(records, name)
            label = name if not run else run if len(shown_names) == 1 else f"{run}: {name}"
            _line(ax, number, label, epochs, values, max(1, len(epochs) // 8))
            number += 1
    if best_epoch is not None:
        ax.axvline(best_epoch, color="0.35", linewidth=0.9, linestyle=":", label=f"best epoch, {best_epoch}")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    if log:
        ax.set_yscale("log")
        plain_log(ax.yaxis)
    shown = shown_names[0] if len(shown_names) == 1 else "value"
    return finish(ax, "epoch", shown, title, legend=number > 1 or best_epoch is not None)


def _series(records: History, name: str) -> tuple[list[int], list[float]]:
    """Epochs that have the number, and its values."""
    if not records:
        msg = "the history holds no epoch; give result.history of a training that ran"
        raise ValueError(msg)
    points = [
        (int(record.get("epoch", number)), float(record[name]))
        for number, record in enumerate(records, start=1)
        if isinstance(record.get(name), int | float | np.number)
    ]
    if not points:
        valid = sorted({k for record in records for k, v in record.items() if isinstance(v, int | float)})
        msg = unknown_name("number of a history", name, valid) if valid else f"no record holds {name}"
        raise ValueError(f"{msg}; found in the records: {shorten(valid, 20)}")
    return [epoch for epoch, _ in points], [value for _, value in points]


def coverage_curve(judged: Mapping[str, Calibration], *, ax: Axes | None = None) -> Axes:
    """Share of values within their interval against the interval's level, one line per method.

    On the dashed diagonal variances are calibrated; below it they are too small.

    Parameters
    ----------
    judged
        Results of :func:`gears.evaluation.uncertainty.calibration` by method; at most six.

    Raises
    ------
    ValueError
        If there is no method, or more than six.
    """
    ax = _axes_for(judged, ax)
    ax.plot([0, 1], [0, 1], color="0.3", linewidth=0.8, linestyle="--", label="calibrated")
    for number, (name, calibration) in enumerate(judged.items()):
        level, observed = (calibration.coverage[name_].to_numpy() for name_ in ("level", "observed"))
        _line(ax, number, name, level, observed)
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    return finish(ax, "level of the interval", "share of values within it")


def error_against_spread(judged: Mapping[str, Calibration], *, ax: Axes | None = None) -> Axes:
    """Root mean square error of groups of values against their predicted standard deviation.

    On the dashed line they agree; above it errors are larger than predicted. Parameters and errors are those of
    :func:`coverage_curve`.
    """
    ax = _axes_for(judged, ax)
    points = []
    for number, (name, calibration) in enumerate(judged.items()):
        values = calibration.bins[["predicted_sd", "error"]].to_numpy(dtype=np.float64)
        _line(ax, number, name, values[:, 0], values[:, 1])
        points.append(values[values > 0])
    positive = np.concatenate(points)
    if len(positive) and positive.min() < positive.max():
        limits = [float(positive.min()), float(positive.max())]
        ax.plot(limits, limits, color="0.3", linewidth=0.8, linestyle="--", label="calibrated", zorder=1)
        ax.set(xscale="log", yscale="log")
        plain_log(ax.xaxis)
        plain_log(ax.yaxis)
    return finish(ax, "predicted standard deviation", "root mean square error")


def _line(ax: Axes, number: int, label: str, x: Any, y: Any, marked_every: int = 1) -> None:
    colour, mark = MARKS[number % len(MARKS)]
    ax.plot(
        x, y, color=colour, linestyle=LINES[number % len(LINES)], marker=mark, markersize=4,
        markevery=marked_every, linewidth=1.3, label=label,
    )  # fmt: skip


def _axes_for(judged: Mapping[str, Calibration], ax: Axes | None) -> Axes:
    if not 1 <= len(judged) <= len(MARKS):
        msg = (
            f"{count(len(judged), 'method')} to draw; expected one to {len(MARKS)}, as a dict: {{'ensemble': "
            "calibration(mean, variance, true)}"
        )
        raise ValueError(msg)
    return new_axes(3.9, 3.6) if ax is None else ax


def calibration_figure(judged: Mapping[str, Calibration]) -> Figure:
    """Observed against expected coverage, and error against predicted s.d., one line per method (at most six)."""
    figure = new_figure(7.6, 3.6)
    coverage_axes, error_axes = figure.subplots(1, 2)
    coverage_curve(judged, ax=coverage_axes)
    error_against_spread(judged, ax=error_axes)
    return figure
