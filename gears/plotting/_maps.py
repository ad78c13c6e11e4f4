"""Heat maps of changes, maps of genetic interactions, and a gene with its neighbours in a graph."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gears.conditions import Condition
from gears.core._messages import count, unknown_name
from gears.plotting import _style
from gears.plotting._style import BLUE, DIVERGING, FONT

if TYPE_CHECKING:
    import networkx
    from matplotlib.axes import Axes

    from gears.graphs._graph import Graph


def delta_heat_map(
    delta: np.ndarray,
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
    """Heat map of changes over control; decreases have a minus, because both ends of the colours look alike in grey.

    Parameters
    ----------
    delta
        Changes, (U, G), such as ``predictions.delta_UG``.
    conditions
        The U conditions.
    gene_names
        (G,) names.
    genes
        Columns by name or position, in this order; by default the `n_genes` of :func:`variable_genes`.
    n_genes
        Number of columns where `genes` is omitted.
    cluster
        Order conditions and genes by average linkage.
    limit
        End of the colours on both sides; by default the 99th percentile of the absolute changes.
    bar
        Draw the colour scale.

    Raises
    ------
    ValueError
        If lengths disagree, a gene is unknown, or there is nothing to draw.
    """
    labels = _style.condition_names(conditions)
    delta = _style.per_condition("delta", delta, len(labels))
    names = _style.names_of(gene_names, delta.shape[1])
    if not labels:
        msg = "there is no condition to draw; give at least one"
        raise ValueError(msg)
    columns = variable_genes(delta, n_genes) if genes is None else _style.positions(genes, names)
    rows = np.arange(len(labels))
    if cluster:
        rows, columns = rows[_linked(delta[:, columns])], columns[_linked(delta[:, columns].T)]
    values_RC = delta[np.ix_(rows, columns)]
    limit = change_limit(values_RC) if limit is None else limit
    if ax is None:
        ax = _style.new_axes(max(4.0, 0.15 * len(columns) + 2.2), min(max(0.16 * len(rows), 1.2), 9.0) + 1.3)
    image = ax.imshow(values_RC, aspect="auto", cmap=DIVERGING, vmin=-limit, vmax=limit, interpolation="none")
    _style.minus_signs(ax, values_RC, limit)
    shown = [names[gene] for gene in columns]
    ax.set_xticks(range(len(columns)), shown, rotation=90, fontsize=FONT - 1)
    ax.set_yticks([])
    if len(rows) <= 60:
        ax.set_yticks(range(len(rows)), [labels[row] for row in rows], fontsize=FONT - 1)
    else:
        ax.set_ylabel(f"{len(rows)} conditions", fontsize=FONT)
    ax.tick_params(length=0)
    ax.set_title(title, fontsize=FONT + 1, loc="left")
    if bar:
        _style.colour_bar(ax, image, "change over control (\N{MINUS SIGN}: falls)")
    return ax


def variable_genes(delta_UG: np.ndarray, n_genes: int) -> np.ndarray:
    """The genes whose change differs most between conditions, ordered by their mean change, (min(n, G),)."""
    spread_G = np.abs(delta_UG[0]) if len(delta_UG) == 1 else delta_UG.std(axis=0)
    variable = np.argsort(-spread_G, kind="stable")[:n_genes]
    return variable[np.argsort(delta_UG[:, variable].mean(axis=0), kind="stable")]


def change_limit(delta: np.ndarray) -> float:
    """End of a symmetric colour scale of these changes: their 99th percentile."""
    return float(np.quantile(np.abs(delta), 0.99)) or 1.0


def _linked(values_RC: np.ndarray) -> np.ndarray:
    """Order of rows in which similar ones are beside each other."""
    from scipy.cluster import hierarchy

    if len(values_RC) < 3:
        return np.arange(len(values_RC))
    return hierarchy.leaves_list(hierarchy.linkage(values_RC, "average", optimal_ordering=True))


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
        _style.columns_of(each, ("gene_1", "gene_2", "kind"), "a table of gears.evaluation.interactions")
        if score not in each.columns or not pd.api.types.is_numeric_dtype(each[score]):
            numeric = [str(name) for name in each.columns if pd.api.types.is_numeric_dtype(each[name])]
            raise ValueError(unknown_name("score", score, numeric))
    genes = sorted({gene for each in tables for side in ("gene_1", "gene_2") for gene in each[side]})
    if not genes:
        msg = "the table holds no pair; predict pairs together with both of their single genes"
        raise ValueError(msg)
    position = {gene: i for i, gene in enumerate(genes)}
    values_PP, signs = _filled(table, lower, score, position)
    if ax is None:
        size = min(0.3 * len(genes), max(5.4, 0.15 * len(genes)))
        ax = _style.new_axes(size + 2.4, size + 1.7)
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
    _style.colour_bar(ax, image, f"{score}{middle}")
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


def go_neighbourhood(
    graph: Graph | networkx.Graph,
    gene: str,
    *,
    n_neighbours: int = 14,
    known: Collection[str] = (),
    values: Mapping[str, float] | None = None,
    label: str = "value",
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """A gene in the middle, the neighbours of largest weight around it, and the edges among them.

    For a gene that was not perturbed in training the network uses its neighbours; those that were perturbed (`known`)
    are squares.

    Parameters
    ----------
    graph
        :class:`gears.graphs.Graph` (``model.parts.go``), or a networkx graph with the edge attribute ``weight``.
        Messages run from source to target: the neighbours are the sources of the gene's edges.
    gene
        The gene in the middle.
    n_neighbours
        Number of neighbours to draw, those of largest weight first (ties by name).
    known
        Genes that were perturbed in training.
    values
        A number per gene that colours it (white: 0), such as its predicted change; genes without one are grey.
    label
        Label of the numbers.
    title
        Above the plot; the gene by default.

    Raises
    ------
    ValueError
        If the gene is no node of the graph, or `n_neighbours` is below 1.
    """
    if n_neighbours < 1:
        msg = f"n_neighbours={n_neighbours}: expected at least 1"
        raise ValueError(msg)
    network: networkx.Graph = graph.to_networkx() if hasattr(graph, "to_networkx") else graph
    if gene not in network:
        raise ValueError(unknown_name("gene of the graph", gene, [str(node) for node in network.nodes]))
    # neighbours whose message reaches the gene
    sources = (network.pred if network.is_directed() else network.adj)[gene]
    weights = {other: _weight(edge) for other, edge in sources.items() if other != gene}
    neighbours = sorted(weights, key=lambda other: (-weights[other], other))[:n_neighbours]
    ring = _ring_order(network, gene, neighbours)
    coordinates = {gene: (0.0, 0.0)}
    for number, other in enumerate(ring):
        angle = math.pi / 2 - 2 * math.pi * number / len(ring)
        coordinates[other] = (math.cos(angle), math.sin(angle))
    ax = _style.new_axes(5.4, 5.0) if ax is None else ax
    _edges(ax, network, gene, ring, coordinates)
    image = _nodes(ax, gene, ring, coordinates, known, values)
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.8}
    style: dict[str, Any] = {"va": "center", "fontsize": FONT, "zorder": 3, "bbox": box}
    ax.text(0.0, -0.17, gene, ha="center", fontweight="bold", **style)
    for node in ring:
        x, y = coordinates[node]
        ax.text(1.13 * x, 1.13 * y, str(node), ha="center" if abs(x) < 0.2 else "left" if x > 0 else "right", **style)
    ax.set(xlim=(-1.5, 1.5), ylim=(-1.3, 1.3), aspect="equal")
    ax.set_axis_off()
    if title is None:
        title = f"{gene} and its {count(len(ring), 'nearest neighbour')}" if ring else f"{gene}: no neighbours"
        if ring and known:
            title += f"\nsquares: perturbed in training ({sum(node in known for node in ring)} of them)"
        title += "\nthick lines: large weight" if ring else ""
    ax.set_title(title, fontsize=FONT + 2)
    if image is not None:
        _style.colour_bar(ax, image, label)
    return ax


def _weight(data: Mapping[str, float]) -> float:
    """Weight of an edge; that of cell-gears is called importance."""
    return float(data.get("weight", data.get("importance", 1.0)))


def _joined(graph: networkx.Graph, first: str, second: str) -> float:
    """The larger weight of the edges between two genes; 0 without one."""
    pairs = [(first, second), (second, first)]
    return max((_weight(graph.edges[pair]) for pair in pairs if graph.has_edge(*pair)), default=0.0)


def _ring_order(graph: networkx.Graph, gene: str, neighbours: list[str]) -> list[str]:
    """Neighbours in the order of their angles in a spring layout, so that connected ones are adjacent."""
    import networkx

    near = networkx.Graph()
    near.add_nodes_from([gene, *neighbours])
    near.add_weighted_edges_from((gene, other, _joined(graph, gene, other)) for other in neighbours)
    for i, first in enumerate(neighbours):
        for second in neighbours[i + 1 :]:
            if weight := _joined(graph, first, second):
                near.add_edge(first, second, weight=weight)
    if len(neighbours) < 3:
        return neighbours
    coordinates = networkx.spring_layout(near, seed=0, weight="weight")
    middle = coordinates[gene]
    angles = {other: math.atan2(*(coordinates[other] - middle)[::-1]) for other in neighbours}
    return sorted(neighbours, key=lambda other: (angles[other], other))


def _edges(
    ax: Axes, graph: networkx.Graph, gene: str, ring: list[str], coordinates: Mapping[str, tuple[float, float]]
) -> None:
    nodes = [gene, *ring]
    pairs = [(a, b) for i, a in enumerate(nodes) for b in nodes[i + 1 :]]
    weights = {pair: _joined(graph, *pair) for pair in pairs}
    largest = max(weights.values(), default=0.0)
    for (first, second), weight in weights.items():
        if not weight:
            continue
        is_spoke = first == gene
        ends = zip(coordinates[first], coordinates[second], strict=True)
        width = 0.5 + (2.5 if is_spoke else 0.9) * weight / largest
        style: dict[str, Any] = {"color": "0.25", "zorder": 1.5, "label": "_own"}
        if not is_spoke:
            style = {"color": "0.86", "zorder": 1, "label": "_between"}
        ax.plot(*ends, linewidth=width, **style)


def _nodes(
    ax: Axes,
    gene: str,
    ring: list[str],
    coordinates: Mapping[str, tuple[float, float]],
    known: Collection[str],
    values: Mapping[str, float] | None,
) -> Any:
    nodes = [gene, *ring]
    valued = np.array([float((values or {}).get(node, np.nan)) for node in nodes])
    finite = np.abs(valued[np.isfinite(valued)])
    limit = float(finite.max(initial=0.0)) or 1.0
    image = None
    for square in (False, True):
        has_shape = np.array([(node in known) == square for node in nodes])
        if not has_shape.any():
            continue
        x, y = np.array([coordinates[node] for node in nodes])[has_shape].T
        sizes = np.where(np.array([node == gene for node in nodes])[has_shape], 420, 190)
        label = "perturbed in training" if square else "not perturbed in training"
        style: dict[str, Any] = {"s": sizes, "marker": "s" if square else "o", "edgecolors": "black"}
        style |= {"linewidths": 0.9, "label": label, "zorder": 2}
        if values is None:
            ax.scatter(x, y, color=BLUE if square else "white", **style)
            continue
        ax.scatter(x, y, color="0.8", **(style | {"label": "_without value", "zorder": 1.9}))
        image = ax.scatter(x, y, c=valued[has_shape], cmap=DIVERGING, vmin=-limit, vmax=limit, **style)
        for u, v, value in zip(x, y, valued[has_shape], strict=True):
            if value < -0.05 * limit:  # in grey both ends of the colours look alike
                dark = "white" if value < -0.6 * limit else "black"
                ax.text(u, v, "\N{MINUS SIGN}", color=dark, ha="center", va="center", fontsize=FONT, zorder=3)
    return image
