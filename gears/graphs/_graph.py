"""Weighted directed graphs over named genes: their strongest edges, checked and cached."""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gears.core._messages import check_unique, shorten
from gears.files._cache import cached_arrays
from gears.files._paths import check_output
from gears.files.formats import content_hash, read_npz, write_npz

if TYPE_CHECKING:
    import networkx
    import pandas as pd
    from torch_geometric.data import Data

logger = logging.getLogger(__name__)

# The published edge tables call the weight "importance".
_WEIGHT_NAMES = ("weight", "importance")

SLACK = 1e-6
"""Twice the error of a weight that is computed in float32, or in another order."""
_GROUPS_PER_SOURCE = 8
BUILT_IN = ("go", "coexpression")
"""Words for the graph that is built without a custom one."""
FORMAT = 3  # raise when a graph of the same key would come out differently


@dataclass(frozen=True, eq=False)
class Graph:
    """Edges between genes; a message runs from source to target.

    The arrays are read-only: :meth:`to_data` and :meth:`to_networkx` hand out copies.

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
        check_unique(nodes, "nodes of a graph")
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
        for array in (edge_index, weight):
            array.setflags(write=False)
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

    @property
    def normalised_edge_index(self) -> np.ndarray:
        """(2, E') int64: the edges between different genes, then a self edge of every node."""
        nodes = np.arange(len(self.nodes))
        is_loop = self.edge_index[0] == self.edge_index[1]
        return np.concatenate([self.edge_index[:, ~is_loop], np.stack([nodes, nodes])], axis=1)

    @functools.cached_property
    def normalised_weight(self) -> np.ndarray:
        """(E',) float64 weights of D^-1/2 A D^-1/2, in the order of :attr:`normalised_edge_index`.

        A[target, source] = weight, with a self edge of weight 1 where a node has none; D = row sums. Computed
        by ``torch_geometric`` when a graph is built, and kept in files: importing it takes 1.5 s and 140 MiB.
        """
        import torch

        gcn_norm, _ = _torch_geometric()
        edges, weight = torch.from_numpy(self.edge_index.copy()), torch.from_numpy(self.weight.copy())
        normalised = gcn_norm(edges, weight, len(self.nodes))[1].numpy()
        normalised.setflags(write=False)
        return normalised

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
            Genes of the graph. Edges with other genes are excluded, and their number is logged.

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
        Multigraphs are an error, edges with genes outside `nodes` are excluded.
        """
        if graph.is_multigraph():
            msg = "a multigraph can have several weights per edge; expected networkx.Graph or networkx.DiGraph"
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
    def _from_edges(cls, source: list[str], target: list[str], weight: np.ndarray, nodes: Sequence[str]) -> Graph:
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
            excluded = f"{len(outside)} of {len(source)} edges"
            logger.warning("%s have a gene outside of the graph and are excluded: %s", excluded, shorten(outside, 3))
        edge_index = np.array(list(edges), dtype=np.int64).reshape(-1, 2).T
        return cls(tuple(nodes), edge_index, np.array(list(edges.values()), dtype=np.float64))

    @classmethod
    def from_data(cls, data: Data, nodes: Sequence[str]) -> Graph:
        """Build from a torch-geometric ``Data`` with ``edge_index`` and ``edge_weight`` (1 where omitted).

        Edges join genes by ``data.gene_names`` where there are such names, else by position in `nodes`.
        """
        edge_index = data.edge_index.cpu().numpy()
        weight = np.ones(edge_index.shape[1])
        if data.get("edge_weight") is not None:
            weight = data.edge_weight.cpu().double().numpy()
        if data.get("gene_names") is None:
            return cls(tuple(nodes), edge_index, weight)
        names = np.array(data.gene_names, dtype=object)
        return cls._from_edges(names[edge_index[0]].tolist(), names[edge_index[1]].tolist(), weight, nodes)

    def to_data(self, *, normalised: bool = False) -> Data:
        """A copy as torch-geometric ``Data`` with ``edge_index``, ``edge_weight`` (float64) and ``gene_names``.

        Parameters
        ----------
        normalised
            The weights of D^-1/2 A D^-1/2 with every self edge, as the network uses them.
        """
        import torch

        _, data_class = _torch_geometric()
        edges = self.normalised_edge_index if normalised else self.edge_index.copy()
        weight = (self.normalised_weight if normalised else self.weight).copy()
        return data_class(
            edge_index=torch.from_numpy(edges),
            edge_weight=torch.from_numpy(weight),
            num_nodes=len(self.nodes),
            gene_names=list(self.nodes),
        )

    def to_networkx(self) -> networkx.DiGraph:
        """Directed networkx graph over all nodes, with the edge attribute ``weight``."""
        import networkx

        graph = networkx.DiGraph()
        graph.add_nodes_from(self.nodes)
        graph.add_weighted_edges_from(self.to_frame().itertuples(index=False, name=None))
        return graph

    def arrays(self, prefix: str = "") -> dict[str, np.ndarray]:
        """Plain arrays under names that begin with `prefix`, for an npz file with several graphs."""
        return {
            f"{prefix}nodes": np.array(self.nodes, dtype=str),
            f"{prefix}edge_index": self.edge_index,
            f"{prefix}weight": self.weight,
            f"{prefix}normalised_weight": self.normalised_weight,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], prefix: str = "") -> Graph:
        """Inverse of :meth:`arrays`; without normalised weights, as in older files, they are computed on first use."""
        names = [f"{prefix}{name}" for name in ("nodes", "edge_index", "weight")]
        missing = [name for name in names if name not in arrays]
        if missing:
            msg = f"arrays of a graph are missing: {shorten(missing)}; found {shorten(sorted(arrays))}"
            raise ValueError(msg)
        nodes, edge_index, weight = map(arrays.__getitem__, names)
        graph = cls(tuple(nodes.tolist()), edge_index, weight)
        normalised = arrays.get(f"{prefix}normalised_weight")
        if normalised is not None:
            fits = normalised.shape == graph.normalised_edge_index.shape[1:]
            if not (fits and np.array_equal(edge_index, graph.edge_index) and np.isfinite(normalised).all()):
                msg = f"{prefix}normalised_weight does not fit the edges of the graph; build the graph again"
                raise ValueError(msg)
            normalised = normalised.astype(np.float64)
            normalised.setflags(write=False)
            vars(graph)["normalised_weight"] = normalised
        return graph

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write to an npz file; a file that is there is replaced only with `overwrite`."""
        check_output(path, overwrite)
        return write_npz(path, self.arrays())

    @classmethod
    def load(cls, path: str | Path) -> Graph:
        """Read what :meth:`save` wrote."""
        return cls.from_arrays(read_npz(path))


def _torch_geometric() -> tuple[Callable[..., Any], type[Data]]:
    """``gcn_norm`` and ``Data``, without what their import warns of and the warning filters that it adds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch.jit, and of a notebook without ipywidgets
        from torch_geometric.data import Data
        from torch_geometric.nn.conv.gcn_conv import gcn_norm
    return gcn_norm, Data


def check_selection(threshold: float, k: int) -> None:
    """Refuse a threshold outside 0 to 1 and a negative or fractional k."""
    if not 0 <= threshold <= 1:
        msg = f"threshold={threshold}: expected a number from 0 to 1"
        raise ValueError(msg)
    if not isinstance(k, int | np.integer) or isinstance(k, bool) or k < 0:
        msg = f"k={k!r}: expected a whole number, 0 or more"
        raise ValueError(msg)


def name_order(names: list[str] | tuple[str, ...]) -> np.ndarray:
    """Positions of names in sorted order; repeated names are an error."""
    check_unique(names, "gene names of a graph")
    return np.array(sorted(range(len(names)), key=names.__getitem__), dtype=np.int64)


def candidates(
    weight_TS: np.ndarray, threshold: float, k: int, slack: float | np.ndarray = SLACK
) -> tuple[np.ndarray, np.ndarray]:
    """Entries that may be among the `k` largest of their row and above `threshold`, up to an error of the weights.

    `weight_TS`: (targets, sources) float32 or float64, at most 1, not negative but for -inf where nothing may be
        chosen.
    `slack`: how far below the k-th largest and the threshold an entry may lie, a number or (targets, sources): twice
        the error of a weight.

    Returns row and column indices; :func:`strongest` decides among them from exact weights.
    """
    n_targets, n_sources = weight_TS.shape
    if k == 0 or n_sources == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    # The sources are dealt into groups. The k-th largest of the groups' maxima is no larger than the k-th largest
    # of the row, mostly nearly as large, and costs one pass instead of a partition of the row.
    n_groups = min(_GROUPS_PER_SOURCE * k, n_sources)
    n_dealt = n_sources - n_sources % n_groups
    highest_TU = weight_TS[:, :n_dealt].reshape(n_targets, -1, n_groups).max(axis=1)
    rest_TU = highest_TU[:, : n_sources - n_dealt]
    np.maximum(rest_TU, weight_TS[:, n_dealt:], out=rest_TU)
    at = n_groups - min(k, n_groups)
    floor_T = np.maximum(np.partition(highest_TU, at, axis=1)[:, at], threshold)
    flat = np.flatnonzero(weight_TS >= floor_T[:, None] - slack)
    return np.divmod(flat, n_sources)


def strongest(
    target: np.ndarray, source: np.ndarray, weight: np.ndarray, threshold: float, k: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each target's entries the `k` largest above `threshold`; of equal ones those of the first sources.

    Callers number the sources by gene name, so that ties are broken by name.

    Entries, (E,) each, come in any order; those that are kept are returned by target, strongest first.
    """
    # by target and source first: lexsort is stable, so that of equal weights the first sources come first
    place = target * (source.max(initial=0) + 1) + source
    by_place = np.argsort(place, kind="stable")  # quick where it is so already
    target, source, weight = target[by_place], source[by_place], weight[by_place]
    order = np.lexsort((-weight, target))
    order = order[weight[order] > threshold]
    target, source, weight = target[order], source[order], weight[order]
    rank = np.arange(len(target)) - np.searchsorted(target, target)
    keep = rank < k
    return target[keep], source[keep], weight[keep]


def cached_graph(folder: str | Path, key: dict[str, Any], build: Callable[[], Graph]) -> Graph:
    """The graph of `key` from `folder`, built and stored first where it is not there.

    `key` holds *everything* that the graph depends on: content hashes of data and annotation, node names, training
    conditions, threshold, k (see :func:`gears.files._cache.cached_arrays`).
    """
    arrays = cached_arrays(folder, "graph", {"format": FORMAT, "key": key}, lambda: build().arrays())
    return Graph.from_arrays(arrays)
