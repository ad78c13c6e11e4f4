"""Graphs of a model: GO and co-expression graphs of its screen, cached in its folder, and custom ones in any form."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import sparse

from gears.core._messages import unknown_name
from gears.files._paths import user_path
from gears.files.formats import content_hash, read_npz, write_npz
from gears.graphs._coexpression import coexpression_graph
from gears.graphs._edge_tables import (
    SCORES,
    EdgeFile,
    edges_between,
    need_known_score,
    read_edge_table,
    strongest_graph,
)
from gears.graphs._embeddings import GeneEmbedding, embedding_of
from gears.graphs._go import go_graph
from gears.graphs._graph import BUILT_IN, Graph, cached_graph

if TYPE_CHECKING:
    from gears.graphs._annotation import GeneAnnotation
    from gears.model.config import ModelConfig
    from gears.pertdata import PertData

logger = logging.getLogger(__name__)

GO_THRESHOLD = 0.1
COEXPRESSION_CELLS = 100_000
"""Training cells that the co-expression graph is computed from, at most: a correlation is then known to 0.003.

Without effect where ``coexpress_cells=None`` asks for all cells."""
_EMBEDDING_FILES = (".npy", ".h5ad", ".parquet")


class Graphs:
    """The graphs of a network, each made when it is first read: a prior that predicts alone needs none."""

    def __init__(self, make_go: Callable[[], Graph], make_coexpress: Callable[[], Graph]) -> None:
        self._make_go, self._make_coexpress = make_go, make_coexpress

    @cached_property
    def go(self) -> Graph:
        """Graph over the nodes of perturbations."""
        return self._make_go()

    @cached_property
    def coexpress(self) -> Graph:
        """Graph over the measured genes."""
        return self._make_coexpress()


@dataclasses.dataclass(frozen=True)
class GraphMaker:
    """Makes graphs over the genes of a model."""

    nodes: Sequence[str]  # the genes, in the model's order
    k: int  # sources kept per target of files, embeddings and graphs put together
    annotation: GeneAnnotation  # knows other names of genes
    built: Callable[[], Graph]  # makes the graph that the words of :data:`gears.graphs._graph.BUILT_IN` mean

    def when_read(self, given: Any) -> Callable[[], Graph]:
        """The graph of :meth:`make` at once where it is a custom one, so that its faults show; else when it is read."""
        if given is None or (isinstance(given, str) and given in BUILT_IN):
            return self.built
        graph = self.make(given)
        return lambda: graph

    def make(self, given: Any) -> Graph:
        """A graph from any of the accepted forms; a list of them is put together.

        `given`: None or a word of :data:`BUILT_IN`: the graph that is built from annotation or expression. A Graph, an
            edge table (source, target, weight), a networkx graph, a ``torch_geometric.data.Data``
            (:meth:`Graph.from_data`), a pair of published tensors (edges (2, E), weights (E,)). A file of edges, an
            :class:`EdgeFile`, or its options as a dict with ``path``. A :class:`GeneEmbedding`, a file of one, or a
            dict ``{"embedding": ...}``: its nearest neighbours. An annotation: genes that share terms.
        """
        if given is None or (isinstance(given, str) and given in BUILT_IN):
            return self.built()
        if isinstance(given, list):
            return combined([self.make(part) for part in given], self.k)
        for form, make in self._makers().items():
            if isinstance(given, form):
                return make(given)
        if hasattr(given, "is_multigraph"):
            attributes = pd.DataFrame([values for *_, values in given.edges(data=True)])
            need_known_score(attributes, "the networkx graph", ("weight", "importance"))
            return Graph.from_networkx(given, self.nodes)
        if hasattr(given, "edge_index") and hasattr(given, "num_nodes"):
            return Graph.from_data(given, self.nodes)
        if hasattr(given, "content_hash") and hasattr(given, "rows"):
            return go_graph(given, self.nodes, threshold=GO_THRESHOLD, k=self.k)
        msg = (
            f"cannot make a graph of {type(given).__name__}; expected an edge table, a networkx graph, Data, "
            "a file, a GeneEmbedding, an EdgeFile, a GeneAnnotation, or a list of these"
        )
        raise TypeError(msg)

    def _makers(self) -> dict[type, Callable[[Any], Graph]]:
        return {
            Graph: self._as_it_is,
            pd.DataFrame: self._from_frame,
            tuple: self._from_tensors,
            EdgeFile: lambda file: file.graph(self.nodes, k=self.k, resolve=self.annotation.resolve),
            GeneEmbedding: self._neighbours,
            Mapping: lambda options: self._from_options(dict(options)),
            str: lambda path: self._from_file(user_path(path)),
            Path: self._from_file,
        }

    def _as_it_is(self, graph: Graph) -> Graph:
        if graph.nodes != tuple(self.nodes):
            msg = f"the graph has {len(graph.nodes)} nodes that are not the {len(self.nodes)} of the model, in order"
            raise ValueError(msg)
        return graph

    def _from_frame(self, table: pd.DataFrame) -> Graph:
        """A plain table unchanged; one with a database's columns, or with signs, as a file of it."""
        if is_plain(table):
            need_known_score(table.drop(columns=["source", "target"]), "the edge table")
            return Graph.from_frame(table, self.nodes)
        options = EdgeFile("the edge table")
        return edges_between(table, self.nodes, options, k=self.k, resolve=self.annotation.resolve)

    def _from_tensors(self, pair: tuple[Any, Any]) -> Graph:
        edges, weight = (np.asarray(part.cpu() if hasattr(part, "cpu") else part) for part in pair)
        return Graph(tuple(self.nodes), edges.astype(np.int64), weight.astype(np.float64))

    def _neighbours(self, embedding: GeneEmbedding, threshold: float = 0.0, k: int | None = None) -> Graph:
        k = self.k if k is None else k
        return embedding.graph(self.nodes, k=k, threshold=threshold, resolve=self.annotation.resolve)

    def _from_options(self, options: dict[str, Any]) -> Graph:
        if "embedding" in options:
            more = {name: options.pop(name) for name in ("threshold", "k") if name in options}
            return self._neighbours(embedding_of(options), **more)
        valid = [field.name for field in dataclasses.fields(EdgeFile)]
        for name in options:
            if name not in valid:
                raise ValueError(unknown_name("option of a file of edges", str(name), [*valid, "embedding"]))
        if "path" not in options:
            msg = f"the options of a graph need 'path' (edges) or 'embedding'; found {sorted(options)}"
            raise ValueError(msg)
        return self.make(EdgeFile(**options))

    def _from_file(self, path: Path) -> Graph:
        if path.suffix in _EMBEDDING_FILES:
            return self._neighbours(GeneEmbedding.of(path))
        if path.suffix == ".npz" and path.is_file():
            arrays = read_npz(path)
            if {"nodes", "edge_index"} <= set(arrays):
                return self._as_it_is(Graph.from_arrays(arrays))
            if "edge_index" in arrays:
                return self._from_tensors((arrays["edge_index"], arrays["weight"]))
            if "source" in arrays:
                return self._from_frame(read_edge_table(path))
            return self._neighbours(GeneEmbedding.of(path))
        return self.make(EdgeFile(path))


def is_plain(table: pd.DataFrame) -> bool:
    """Whether a table has source, target and positive weights (or none) and nothing of a database's own."""
    if not {"source", "target"} <= set(table.columns) or "confidence" in table.columns:
        return False
    weight = next((name for name in ("weight", "importance") if name in table.columns), None)
    if weight is None and set(SCORES) & {str(name).lower() for name in table.columns}:
        return False
    return weight is None or bool((table[weight] > 0).all())


def combined(graphs: Sequence[Graph], k: int) -> Graph:
    """Several graphs over the same nodes as one: weights, each graph's divided by its largest, are added.

    Each target keeps its `k` strongest sources, and a self edge of weight 1 where any of the graphs has one.
    """
    if not graphs:
        msg = "an empty list of graphs was given; leave it out, or name at least one"
        raise ValueError(msg)
    if len(graphs) == 1:
        return graphs[0]
    n = len(graphs[0].nodes)
    total_PP, loops = sparse.csr_matrix((n, n)), np.empty(0, dtype=np.int64)
    for graph in graphs:
        source, target = graph.edge_index
        is_loop = source == target
        loops = np.union1d(loops, source[is_loop])
        scaled = graph.weight[~is_loop] / graph.weight[~is_loop].max(initial=np.finfo(float).tiny)
        total_PP = total_PP + sparse.csr_matrix((scaled, (target[~is_loop], source[~is_loop])), shape=(n, n))
    total = total_PP.tocoo()
    source, target = total.col.astype(np.int64), total.row.astype(np.int64)
    # rounded: ties must not hang on the order in which the graphs were added
    kept = strongest_graph(graphs[0].nodes, source, target, np.round(total.data / len(graphs), 12), k)
    edges = np.concatenate([kept.edge_index, np.stack([loops, loops])], axis=1)
    return Graph(kept.nodes, edges, np.concatenate([kept.weight, np.ones(len(loops))]))


def stored(arrays: dict[str, np.ndarray], folder: Path) -> str:
    """Path of a file in `folder` that holds the arrays of a graph or an embedding, named by their content."""
    name = content_hash(*(part for key in sorted(arrays) for part in (key, arrays[key])))
    path = folder / f"custom-{name[:24]}.npz"
    if not path.is_file():
        write_npz(path, arrays)
    return str(path)


def go_graph_of(pert_data: PertData, config: ModelConfig, nodes: tuple[str, ...]) -> Graph:
    annotation, k = pert_data.annotation, config.num_similar_genes_go_graph
    key = {"graph": "go", "annotation": annotation.content_hash, "nodes": nodes, "k": k, "threshold": GO_THRESHOLD}
    folder = pert_data.screen.folder / "graphs"
    return cached_graph(folder, key, lambda: go_graph(annotation, nodes, threshold=GO_THRESHOLD, k=k))


def coexpression_graph_of(pert_data: PertData, config: ModelConfig) -> Graph:
    """Over the training cells (all cells where the split holds nothing out); of very many, evenly spaced ones.

    Of a screen without cells over the drawn control cells of its moment pack.
    """
    screen, split, n_drawn = pert_data.screen, pert_data.split, config.coexpress_cells
    k, threshold = config.num_similar_genes_co_express_graph, config.coexpress_threshold
    train = split.conditions("train") if split is not None and "train" in split.parts else list(screen.conditions)
    ids = np.sort([screen.id_of(condition) for condition in train])
    key = {
        "graph": "coexpression",
        "screen": screen.content_hash,
        "conditions": [int(index) for index in ids],
        "k": k,
        "threshold": threshold,
        "n_drawn": n_drawn,
        "most_cells": None if n_drawn is None else COEXPRESSION_CELLS,
    } | ({} if screen.has_cells else {"cells": "control sample"})

    def build() -> Graph:
        options: dict[str, Any] = {"threshold": threshold, "k": k, "n_drawn": n_drawn}
        if not screen.has_cells:
            logger.info("the co-expression graph is made from the control cells of the moment pack")
            cells, groups = screen.control_sample()
            return coexpression_graph(cells, screen.gene_names, rows=np.concatenate(groups), **options)
        rows = np.flatnonzero(np.isin(screen.cell_condition, ids))
        if n_drawn is not None and len(rows) > COEXPRESSION_CELLS:
            rows = rows[np.linspace(0, len(rows) - 1, COEXPRESSION_CELLS).astype(np.int64)]
        return coexpression_graph(screen.cells, screen.gene_names, rows=rows, **options)

    return cached_graph(screen.folder / "graphs", key, build)
