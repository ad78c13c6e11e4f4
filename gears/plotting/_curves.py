"""Curves of trainings, of replays and of calibration, and paired differences between methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gears.core._messages import count, shorten, unknown_name
from gears.plotting import _style
from gears.plotting._style import BLUE, FONT, GREY, LINES, MARKS, ORANGE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from gears.evaluation.uncertainty import Calibration


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
    ax = _style.new_axes(5.2, 3.4) if ax is None else ax
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
        _style.plain_log(ax.yaxis)
    shown = shown_names[0] if len(shown_names) == 1 else "value"
    return _style.finish(ax, "epoch", shown, title, legend=number > 1 or best_epoch is not None)


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
    return _style.finish(ax, "level of the interval", "share of values within it")


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
        _style.plain_log(ax.xaxis)
        _style.plain_log(ax.yaxis)
    return _style.finish(ax, "predicted standard deviation", "root mean square error")


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
    return _style.new_axes(3.9, 3.6) if ax is None else ax


def replay_curve(table: pd.DataFrame, *, title: str = "", ax: Axes | None = None) -> Axes:
    """Error on held-out conditions by number of measured ones, one line per aim, with 95 % intervals over repeats.

    Parameters
    ----------
    table
        One row per aim, repeat and round: columns ``aim``, ``repeat``, ``n_measured``, ``error``.

    Raises
    ------
    ValueError
        If columns are missing.
    """
    _style.columns_of(table, ("aim", "repeat", "n_measured", "error"), "the records of a replay, one a round")
    ax = _style.new_axes(4.6, 3.4) if ax is None else ax
    n_aims, width = table["aim"].nunique(), np.ptp(table["n_measured"].to_numpy(dtype=float))
    for number, (aim, part) in enumerate(table.groupby("aim", sort=False)):
        by_n = part.groupby("n_measured")["error"]
        mean, error = by_n.mean(), 1.96 * by_n.sem(ddof=1)
        colour, mark = MARKS[number % len(MARKS)]
        style = LINES[number % len(LINES)]
        beside = 0.012 * width * (number - (n_aims - 1) / 2)  # so that intervals do not cover each other
        ax.errorbar(
            mean.index + beside, mean, error, color=colour, marker=mark, linestyle=style, linewidth=1.3,
            elinewidth=0.9, markersize=4, label=str(aim),
        )  # fmt: skip
    ax.set_xticks(sorted(set(table["n_measured"])))
    return _style.finish(ax, "measured conditions", "error on held-out conditions", title)


def rate_calibration(table: pd.DataFrame, *, title: str = "", ax: Axes | None = None) -> Axes:
    """Share of hits against their probability in bins, one line per readout; on the diagonal they agree.

    Parameters
    ----------
    table
        One row per readout and bin: columns ``readout``, ``expected`` (mean probability), ``observed`` (share of hits)
        and ``n`` (candidates, which the size of the marks shows).

    Raises
    ------
    ValueError
        If columns are missing.
    """
    _style.columns_of(table, ("readout", "expected", "observed", "n"), "bins of probabilities of hits")
    ax = _style.new_axes(4.2, 4.0) if ax is None else ax
    ax.plot([0, 1], [0, 1], color="0.6", linewidth=0.8, linestyle="--", zorder=1, label="calibrated")
    for number, (readout, part) in enumerate(table.groupby("readout", sort=False)):
        colour, mark = MARKS[number % len(MARKS)]
        style = LINES[number % len(LINES)]
        ax.plot(part["expected"], part["observed"], color=colour, linestyle=style, linewidth=1, zorder=2)
        size = 12 + 8 * np.log10(np.maximum(part["n"].to_numpy(dtype=float), 1))
        ax.scatter(part["expected"], part["observed"], s=size, color=colour, marker=mark, zorder=3)
        ax.plot([], [], color=colour, linestyle=style, linewidth=1, marker=mark, markersize=5, label=str(readout))
    ax.set_xlim(-0.02, 1.02)
    ax.set_ylim(-0.02, 1.02)
    return _style.finish(ax, "probability of a hit", "observed share of hits", title)


BETTER = {"model": (BLUE, "o"), "other": (ORANGE, "s"), "undecided": (GREY, "D")}
LABELS = {"model": "model better", "other": "other better", "undecided": "undecided (95 % interval holds 0)"}


def method_differences(
    differences: pd.DataFrame, metric: str, *, model: str = "the model", legend: bool = True, ax: Axes | None = None
) -> Axes:
    """Gain of a model over each other method, with intervals from resampled conditions.

    Right of the line the model is better, also for errors. The title reports that every interval holds 0.

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
    _style.columns_of(differences, needed, "one subgroup of a difference_table")
    metrics = list(dict.fromkeys(differences["metric"]))
    if metric not in metrics:
        raise ValueError(unknown_name("metric", metric, metrics))
    others = list(dict.fromkeys(differences["against"]))
    rows = differences[differences["metric"] == metric].set_index("against")
    if rows.index.has_duplicates:
        msg = "several rows for one method: the table holds several subgroups; give the rows of one"
        raise ValueError(msg)
    ax = _style.new_axes(4.6, 0.3 * len(others) + 1.6) if ax is None else ax
    ax.axvline(0, color="black", linewidth=0.8)
    from gears.evaluation.metrics._registry import get_metric  # loaded when a figure is drawn

    sign = 1.0 if get_metric(metric).higher_is_better else -1.0
    for height, (_, row) in enumerate(rows.reindex(others).iterrows()):
        if not np.isfinite(row["difference"]):
            continue
        colour, mark = BETTER[str(row["better"])]
        ax.plot([sign * row["low"], sign * row["high"]], [height] * 2, color=colour, linewidth=1.6)
        ax.plot(sign * row["difference"], height, mark, color=colour, markersize=6)
    nothing = "" if (rows["better"] != "undecided").any() else ": no difference beyond chance"
    ax.set_title(f"{metric}{nothing}", fontsize=FONT + 1)
    ax.set_ylim(len(others) - 0.5, -0.5)
    ax.locator_params(axis="x", nbins=4)
    ax.grid(axis="x", color="0.9", linewidth=0.6)
    _style.bare(ax)
    ax.set_xlabel(f"gain of {model}", fontsize=FONT)
    ax.set_yticks(range(len(others)), others)
    if legend:
        _style.legend_below(ax, columns=1, handles=difference_handles())
    return ax


def difference_handles() -> list[Any]:
    """Legend entries of :func:`method_differences`."""
    from matplotlib.lines import Line2D

    entries = [(*BETTER[name], label) for name, label in LABELS.items()]
    style: dict[str, Any] = {"linewidth": 1.6, "markersize": 6}
    return [Line2D([], [], color=colour, marker=mark, label=label, **style) for colour, mark, label in entries]
