"""What a prediction is made of, as bars."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from gears.plotting._style import BLUE, FONT, GREEN, GREY, ORANGE, finish, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    ax = new_axes(6.4, 0.9 + 0.24 * len(rows)) if ax is None else ax
    place = np.arange(len(rows))
    for part, (colour, hatch, label) in _COLOURS.items():
        drawn = (rows["part"].where(rows["part"].isin(_COLOURS), _STEP) == part).to_numpy()
        if drawn.any():
            shares = 100 * rows["share"].to_numpy()[drawn]
            ax.barh(place[drawn], shares, color=colour, alpha=0.75, hatch=hatch, edgecolor="white", label=label)
    if "without" in rows:
        known = rows["without"].notna().to_numpy()
        lost = -100 * rows["without"].to_numpy()[known]
        ax.plot(lost, place[known], "D", color=ORANGE, markersize=4, label="lost without the condition")
    columns = (rows[name].astype(str) for name in ("part", "condition", "similarity"))
    names = [
        f"{condition} ({similarity})" if similarity else condition or part
        for part, condition, similarity in zip(*columns, strict=True)
    ]
    ax.set_yticks(place, names, fontsize=FONT)
    ax.axvline(0, color="black", linewidth=0.8)
    return finish(ax, "share of the prediction (%)", "", title)
