"""Plot the replay of a screen by different choices of conditions, and the calibration of probabilities of hits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from gears.plotting.style import LINES, MARKS, columns_of, finish, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
    columns_of(table, ("aim", "repeat", "n_measured", "error"), "the records of a replay, one a round")
    ax = new_axes(4.6, 3.4) if ax is None else ax
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
    return finish(ax, "measured conditions", "error on held-out conditions", title)


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
    columns_of(table, ("readout", "expected", "observed", "n"), "bins of probabilities of hits")
    ax = new_axes(4.2, 4.0) if ax is None else ax
    ax.plot([0, 1], [0, 1], color="0.6", linewidth=0.8, linestyle="--", zorder=1)
    for number, (readout, part) in enumerate(table.groupby("readout", sort=False)):
        colour, mark = MARKS[number % len(MARKS)]
        style = LINES[number % len(LINES)]
        ax.plot(part["expected"], part["observed"], color=colour, linestyle=style, linewidth=1, zorder=2)
        size = 12 + 8 * np.log10(np.maximum(part["n"].to_numpy(dtype=float), 1))
        ax.scatter(
            part["expected"],
            part["observed"],
            s=size,
            color=colour,
            marker=mark,
            label=str(readout),
            zorder=3,
        )
    ax.set_xlim(-0.02, 1.02)
    ax.set_ylim(-0.02, 1.02)
    return finish(ax, "probability of a hit", "observed share of hits", title)
