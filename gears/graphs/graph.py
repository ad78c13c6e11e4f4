"""Weighted directed graphs over named genes."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gears.files import content_hash, read_npz, write_npz
from gears.messages import shorten

if TYPE_CHECKING:
    import networkx
    import pandas as pd

logger = logging.getLogger(__name__)

# The published edge tables call the weight "importance".
_WEIGHT_NAMES = ("weight", "importance")


@dataclass(frozen=True, eq=False)
class Graph:
    """Edges between genes; a message runs from source to target.

    Parameters
    ----------
    nodes
        Gene names, unique; edges refer to their positions.
    edge_index
        (2, E) int64: row 0 sources, row 1 targets. Stored sorted by target, then source.
    weight
        (E,) float64, finite and positive.

    Raises
    ------
    ValueError
        For repeated nodes or edges, indices out of range, weights that are not positive.
    """

    nodes: tuple[str, ...]
    edge_index: np.ndarray
    weight: np.ndarray

    def __post_init__(self) -> None:
        nodes = tuple(self.nodes)
        edge_index = np.asarray(self.edge_index, dtype=np.int64)
        weight = np.asarray(self.weight, dtype=np.float64)
        if edge_index.shape != (2, len(weight)) or weight.ndim != 1:
            msg = f"edge_index has shape {edge_index.shape}, weight {weight.shape}; expected (2, E) and (E,)"
            raise ValueError(msg)
        if len(set(nodes)) != len(nodes):
            msg = f"nodes of a graph must be unique; found {len(nodes)} nodes with {len(set(nodes))} names"
            raise ValueError(msg)
        if edge_index.size and not 0 <= edge_index.min() <= edge_index.max() < len(nodes):
            msg = f"edges refer to nodes {edge_index.min()} to {edge_index.max()}; the graph has {len(nodes)} nodes"
            raise ValueError(msg)
        if not (np.isfinite(weight).all() and (weight > 0).all()):
            msg = "edge weights must be finite and positive (an edge of weight 0 is no edge: leave it out)"
            raise ValueError(msg)
        place = edge_index[1] * len(nodes) + edge_index[0]
        order = np.argsort(place, kind="stable")
        edge_index, weight = np.ascontiguousarray(edge_index[:, order]), weight[order]
        repeated = np.diff(place[order]) == 0
        if repeated.any():
            source, target = edge_index[:, int(np.argmax(repeated))]
            msg = f"edge {nodes[source]} -> {nodes[target]} occurs more than once"
            raise ValueError(msg)
        object.__setattr__(self, "nodes", nodes)
        object.__setattr__(self, "edge_index", edge_index)
        object.__setattr__(self, "weight", weight)

    @property
    def n_edges(self) -> int:
        """Number of edges, self edges included."""
        return len(self.weight)

    @functools.cached_property
    def hash(self) -> str:
        """SHA-256 of nodes (in order), edges and weights."""
        return content_hash(list(self.nodes), self.edge_index, self.weight)

    def __repr__(self) -> str:
        return f"Graph({len(self.nodes)} nodes, {self.n_edges} edges)"

    def to_frame(self) -> pd.DataFrame:
        """Edge table with the columns source, target, weight."""
        import pandas as pd

        names = np.array(self.nodes, dtype=object)
        source, target = self.edge_index
        return pd.DataFrame({"source": names[source], "target": names[target], "weight": self.weight})

    @classmethod
    def from_frame(cls, frame: pd.DataFrame, nodes: Sequence[str]) -> Graph:
        """Build from an edge table.

        Parameters
        ----------
        frame
            Columns source, target and weight (or importance; 1 where there is neither).
        nodes
            Genes of the graph. Edges with other genes are left out, and their number is logged.

        Raises
        ------
        ValueError
            If columns are missing, an edge has two weights, or no edge joins two of the nodes.
        """
        missing = {"source", "target"} - set(frame.columns)
        if missing:
            msg = f"edge table lacks {shorten(sorted(missing))}; expected source, target and weight, found "
            raise ValueError(msg + shorten(frame.columns))
        column = next((name for name in _WEIGHT_NAMES if name in frame.columns), None)
        weight = np.ones(len(frame)) if column is None else frame[column].to_numpy(dtype=np.float64)
        return cls._from_edges(frame["source"].tolist(), frame["target"].tolist(), weight, nodes)

    @classmethod
    def from_networkx(cls, graph: networkx.Graph, nodes: Sequence[str]) -> Graph:
        """Build from a networkx graph; an undirected edge counts in both directions.

        The edge attribute ``weight`` (or ``importance``) is used, 1 where it is missing.
        Multigraphs are refused, edges with genes outside `nodes` are left out.
        """
        if graph.is_multigraph():
            msg = (
                "a multigraph can have several weights per edge; expected networkx.Graph or networkx.DiGraph"
            )
            raise ValueError(msg)
        edges = [
            (source, target, data.get("weight", data.get("importance", 1.0)))
            for source, target, data in graph.edges(data=True)
        ]
        if not graph.is_directed():
            edges += [(target, source, weight) for source, target, weight in edges if source != target]
        weights = np.array([weight for *_, weight in edges], dtype=np.float64)
        return cls._from_edges([edge[0] for edge in edges], [edge[1] for edge in edges], weights, nodes)

    @classmethod
    def _from_edges(
        cls, source: list[str], target: list[str], weight: np.ndarray, nodes: Sequence[str]
    ) -> Graph:
        index = {node: i for i, node in enumerate(nodes)}
        edges: dict[tuple[int, int], float] = {}
        outside: list[str] = []
        for one, two, value in zip(source, target, weight.tolist(), strict=True):
            if one not in index or two not in index:
                outside.append(f"{one} -> {two}")
            elif edges.setdefault((index[one], index[two]), value) != value:
                msg = f"edge {one} -> {two} has the weights {edges[index[one], index[two]]:g} and {value:g}; keep one"
                raise ValueError(msg)
        if outside and not edges:
            msg = (
                f"none of the {len(outside)} edges joins two genes of the graph (edges: {shorten(outside, 3)}; "
                f"genes: {shorten(nodes, 3)}); expected the same kind of gene names in both"
            )
            raise ValueError(msg)
        if outside:
            logger.warning(
                "%d of %d edges have a gene that is no node of the graph and are left out: %s",
                len(outside),
                len(source),
                shorten(outside, 3),
            )
        edge_index = np.array(list(edges), dtype=np.int64).reshape(-1, 2).T
        return cls(tuple(nodes), edge_index, np.array(list(edges.values()), dtype=np.float64))

    def to_networkx(self) -> networkx.DiGraph:
        """Directed networkx graph over all nodes, with the edge attribute ``weight``."""
        import networkx

        graph = networkx.DiGraph()
        graph.add_nodes_from(self.nodes)
        pairs: Iterable[tuple[int, int]] = zip(*self.edge_index.tolist(), strict=True)
        graph.add_weighted_edges_from(
            (self.nodes[source], self.nodes[target], weight)
            for (source, target), weight in zip(pairs, self.weight.tolist(), strict=True)
        )
        return graph

    def arrays(self, prefix: str = "") -> dict[str, np.ndarray]:
        """Plain arrays under names that begin with `prefix`, for an npz file with several graphs."""
        return {
            f"{prefix}nodes": np.array(self.nodes, dtype=str),
            f"{prefix}edge_index": self.edge_index,
            f"{prefix}weight": self.weight,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], prefix: str = "") -> Graph:
        """Inverse of :meth:`arrays`."""
        names = [f"{prefix}{name}" for name in ("nodes", "edge_index", "weight")]
        missing = [name for name in names if name not in arrays]
        if missing:
            msg = f"arrays of a graph are missing: {shorten(missing)}; found {shorten(sorted(arrays))}"
            raise ValueError(msg)
        nodes, edge_index, weight = (arrays[name] for name in names)
        return cls(tuple(nodes.tolist()), edge_index, weight)

    def save(self, path: str | Path) -> Path:
        """Write to an npz file, atomically."""
        return write_npz(path, self.arrays())

    @classmethod
    def load(cls, path: str | Path) -> Graph:
        """Read what :meth:`save` wrote."""
        return cls.from_arrays(read_npz(path))
