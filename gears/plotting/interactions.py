"""Plot a map of genetic interactions: genes in rows and columns, scores of pairs in the cells."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gears.core.messages import unknown_name
from gears.plotting.style import DIVERGING, FONT, colour_bar, columns_of, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NEUTRAL = {"strength": 1.0, "mag": math.sqrt(2), "c1": 1.0, "c2": 1.0}
"""Values of scores where effects add: the middle of the colours."""
SIGNS = {"synergy": "+", "suppression": "\N{MINUS SIGN}", "additive": ""}


def interaction_map(
    table: pd.DataFrame,
    *,
    score: str = "strength",
    lower: pd.DataFrame | None = None,
    names: tuple[str, str] = ("predicted", "observed"),
    title: str = "",
    ax: Axes | None = None,
) -> Axes:
    """Scores of pairs of genes as a map; synergy is marked +, suppression −.

    The colours are about the value at which effects add (white). Pairs that are not in the table are grey, those in
    it have a frame. With a second table the first fills the upper right triangle, the second the lower left one; else
    both triangles show the same.

    Parameters
    ----------
    table
        Table of :func:`gears.evaluation.interactions.predicted_interactions` or
        :func:`gears.evaluation.interactions.observed_interactions`.
    score
        Column to plot: ``strength``, ``mag``, ``dominance``, ...
    lower
        A second such table.
    names
        Names of the two tables.

    Raises
    ------
    ValueError
        If columns are missing or there is no pair.

    References
    ----------
    Norman et al. 2019, map of genetic interactions; the strength of
    :func:`gears.evaluation.interactions.interaction_scores`.
    """
    tables = [table] if lower is None else [table, lower]
    for each in tables:
        columns_of(each, ("gene_1", "gene_2", "kind"), "a table of gears.evaluation.interactions")
        if score not in each.columns or not pd.api.types.is_numeric_dtype(each[score]):
            numeric = [str(name) for name in each.columns if pd.api.types.is_numeric_dtype(each[name])]
            raise ValueError(unknown_name("score", score, numeric))
    genes = sorted({gene for each in tables for side in ("gene_1", "gene_2") for gene in each[side]})
    if not genes:
        msg = "the table holds no pair; predict pairs together with both of their single genes"
        raise ValueError(msg)
    position = {gene: i for i, gene in enumerate(genes)}
    values_PP, signs = _filled(table, lower, score, position)
    ax = new_axes(0.3 * len(genes) + 2.4, 0.3 * len(genes) + 1.7) if ax is None else ax
    image = _image(ax, values_PP, score)
    _frame(ax, values_PP)
    for (row, column), sign in signs.items():
        colour = "white" if abs(image.norm(values_PP[row, column]) - 0.5) > 0.36 else "black"
        ax.text(column, row, sign, ha="center", va="center", fontsize=FONT + 1, color=colour)
    ax.set_xticks(range(len(genes)), genes, rotation=90, fontsize=FONT - 1)
    ax.set_yticks(range(len(genes)), genes, fontsize=FONT - 1)
    ax.tick_params(length=0)
    if lower is not None:
        ax.plot([-0.5, len(genes) - 0.5], [-0.5, len(genes) - 0.5], color="black", linewidth=0.8)
        ax.set_xlabel(f"above the diagonal: {names[0]}; below: {names[1]}", fontsize=FONT)
    ax.set_title(title, fontsize=FONT + 2)
    middle = f" ({NEUTRAL[score]:.3g}: effects add)" if score in NEUTRAL else ""
    colour_bar(ax, image, f"{score}{middle}")
    return ax


def _filled(
    upper: pd.DataFrame, lower: pd.DataFrame | None, score: str, position: dict[str, int]
) -> tuple[np.ndarray, dict[tuple[int, int], str]]:
    """Matrix of the scores, NaN where there is none, and the signs of kinds by cell."""
    values_PP = np.full((len(position), len(position)), np.nan)
    signs: dict[tuple[int, int], str] = {}
    for each, above in ((upper, True), (upper if lower is None else lower, False)):
        pairs = zip(each["gene_1"], each["gene_2"], each[score], each["kind"], strict=True)
        for first, second, value, kind in pairs:
            low, high = sorted((position[first], position[second]))
            cell = (low, high) if above else (high, low)
            values_PP[cell] = value
            if math.isfinite(value) and SIGNS.get(kind):
                signs[cell] = SIGNS[kind]
    return values_PP, signs


def _frame(ax: Axes, values_PP: np.ndarray) -> None:
    """Draw a thin frame around each defined cell, to distinguish white cells from undefined ones in grey."""
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    cells = np.argwhere(np.isfinite(values_PP))
    boxes = [Rectangle((column - 0.5, row - 0.5), 1, 1) for row, column in cells]
    ax.add_collection(PatchCollection(boxes, facecolor="none", edgecolor="0.45", linewidth=0.5))


def _image(ax: Axes, values_PP: np.ndarray, score: str) -> Any:
    defined = values_PP[np.isfinite(values_PP)]
    ax.set_facecolor("0.9")
    options: dict[str, Any] = {"cmap": "cividis"}
    if score in NEUTRAL:
        reach = float(np.quantile(np.abs(defined - NEUTRAL[score]), 0.98)) if len(defined) else 1.0
        reach = reach or 1.0
        options = {"cmap": DIVERGING, "vmin": NEUTRAL[score] - reach, "vmax": NEUTRAL[score] + reach}
    return ax.imshow(np.ma.masked_invalid(values_PP), interpolation="none", **options)
