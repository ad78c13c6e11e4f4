"""Heat map of changes: conditions in rows, genes in columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gears.conditions import Condition
from gears.plotting.checks import condition_names, names_of, per_condition, positions
from gears.plotting.style import DIVERGING, FONT, colour_bar, minus_signs, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def delta_heat_map(
    delta_UG: np.ndarray,
    conditions: Sequence[Condition | str],
    gene_names: Sequence[str],
    *,
    genes: Iterable[int | str] | np.ndarray | None = None,
    n_genes: int = 40,
    cluster: bool = False,
    limit: float | None = None,
    title: str = "",
    bar: bool = True,
    ax: Axes | None = None,
) -> Axes:
    """Changes over control as colours about white, with a minus on what falls: both ends look alike in grey.

    Parameters
    ----------
    delta_UG
        Changes, (U, G), such as :attr:`gears.predictions.Predictions.delta_UG`.
    conditions
        The U conditions.
    gene_names
        (G,) names.
    genes
        Columns by name or position, in this order; by default the `n_genes` of :func:`variable_genes`.
    n_genes
        Number of columns where `genes` is left out.
    cluster
        Order conditions and genes by average linkage instead of leaving them as they are.
    limit
        Where the colours end on both sides; by default the 99th percentile of the absolute changes.
    title
        Above the map.
    bar
        Draw the colour scale.
    ax
        Axes to draw on; by default those of a new figure.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ValueError
        If lengths disagree, a gene is unknown, or nothing is there to draw.
    """
    labels = condition_names(conditions)
    delta = per_condition("delta_UG", delta_UG, len(labels))
    names = names_of(gene_names, delta.shape[1])
    if not labels:
        msg = "there is no condition to draw; give at least one"
        raise ValueError(msg)
    columns = variable_genes(delta, n_genes) if genes is None else positions(genes, names)
    rows = np.arange(len(labels))
    if cluster:
        rows, columns = rows[_linked(delta[:, columns])], columns[_linked(delta[:, columns].T)]
    values_RC = delta[np.ix_(rows, columns)]
    limit = change_limit(values_RC) if limit is None else limit
    if ax is None:
        ax = new_axes(max(4.0, 0.15 * len(columns) + 2.2), min(max(0.16 * len(rows), 1.2), 9.0) + 1.3)
    image = ax.imshow(values_RC, aspect="auto", cmap=DIVERGING, vmin=-limit, vmax=limit, interpolation="none")
    minus_signs(ax, values_RC, limit)
    ax.set_xticks(
        range(len(columns)), [names[gene] for gene in columns], rotation=90, fontsize=_font(columns)
    )
    ax.set_yticks([])
    if len(rows) <= 60:
        ax.set_yticks(range(len(rows)), [labels[row] for row in rows], fontsize=_font(rows))
    else:
        ax.set_ylabel(f"{len(rows)} conditions", fontsize=FONT)
    ax.tick_params(length=0)
    ax.set_title(title, fontsize=FONT + 1, loc="left")
    if bar:
        colour_bar(ax, image, "change over control (\N{MINUS SIGN}: falls)")
    return ax


def variable_genes(delta_UG: np.ndarray, n_genes: int) -> np.ndarray:
    """The genes whose change differs most between conditions, ordered by their mean change, (min(n, G),)."""
    spread_G = (
        np.sqrt((np.asarray(delta_UG) ** 2).mean(axis=0)) if len(delta_UG) == 1 else delta_UG.std(axis=0)
    )
    variable = np.argsort(-spread_G, kind="stable")[:n_genes]
    return variable[np.argsort(delta_UG[:, variable].mean(axis=0), kind="stable")]


def change_limit(delta: np.ndarray) -> float:
    """Where a symmetric colour scale of these changes ends: their 99th percentile."""
    return float(np.quantile(np.abs(delta), 0.99)) or 1.0


def _linked(values_RC: np.ndarray) -> np.ndarray:
    """Order of rows in which similar ones are beside each other."""
    from scipy.cluster import hierarchy

    if len(values_RC) < 3:
        return np.arange(len(values_RC))
    return hierarchy.leaves_list(hierarchy.linkage(values_RC, "average", optimal_ordering=True))


def _font(entries: np.ndarray) -> float:
    return FONT - 1 if len(entries) <= 30 else FONT - 2.5
