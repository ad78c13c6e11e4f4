"""Plot a gene and its neighbours in the perturbation graph."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gears.core._messages import count, unknown_name
from gears.plotting._style import BLUE, DIVERGING, FONT, colour_bar, new_axes

if TYPE_CHECKING:
    import networkx
    from matplotlib.axes import Axes

    from gears.graphs._graph import Graph


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
    weights = _incoming(network, gene)
    neighbours = sorted(weights, key=lambda other: (-weights[other], other))[:n_neighbours]
    ring = _ring_order(network, gene, neighbours)
    coordinates = {gene: (0.0, 0.0)}
    for number, other in enumerate(ring):
        angle = math.pi / 2 - 2 * math.pi * number / len(ring)
        coordinates[other] = (math.cos(angle), math.sin(angle))
    ax = new_axes(5.4, 5.0) if ax is None else ax
    _edges(ax, network, gene, ring, coordinates)
    image = _nodes(ax, gene, ring, coordinates, known, values)
    for node, (x, y) in coordinates.items():
        _name(ax, str(node), x, y, middle=node == gene)
    ax.set(xlim=(-1.5, 1.5), ylim=(-1.3, 1.3), aspect="equal")
    ax.set_axis_off()
    ax.set_title(_title(gene, ring, known) if title is None else title, fontsize=FONT + 2)
    if image is not None:
        colour_bar(ax, image, label)
    return ax


def _title(gene: str, ring: list[str], known: Collection[str]) -> str:
    if not ring:
        return f"{gene}: no neighbours"
    text = f"{gene} and its {count(len(ring), 'nearest neighbour')}"
    n_known = sum(node in known for node in ring)
    return f"{text}\nsquares: perturbed in training ({n_known} of them)" if known else text


def _incoming(graph: networkx.Graph, gene: str) -> dict[str, float]:
    """Weight of each neighbour whose message reaches the gene, without itself."""
    edges = graph.in_edges(gene, data=True) if graph.is_directed() else graph.edges(gene, data=True)
    weights = {}
    for first, second, data in edges:
        other = first if second == gene else second
        if other != gene:
            weights[other] = _weight(data)
    return weights


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


def _name(ax: Axes, text: str, x: float, y: float, *, middle: bool) -> None:
    side = "center" if middle or abs(x) < 0.2 else "left" if x > 0 else "right"
    if middle:
        x, y = 0.0, -0.17
    else:
        x, y = 1.13 * x, 1.13 * y
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.8}
    weight = "bold" if middle else "normal"
    ax.text(x, y, text, ha=side, va="center", fontsize=FONT, fontweight=weight, zorder=3, bbox=box)
