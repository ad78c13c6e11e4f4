"""Knowledge about genes that a user gives the prior: edges between genes, or a vector for each gene."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import linalg, sparse
from scipy.sparse.linalg import eigsh

from gears.files._paths import existing_file, user_path
from gears.files.formats import read_delimited, read_npz
from gears.graphs._annotation import GeneAnnotation
from gears.graphs._custom import GraphMaker
from gears.graphs._edge_tables import EdgeFile
from gears.graphs._embeddings import GeneEmbedding, embedding_of
from gears.graphs._graph import Graph

MOST_NUMBERS = 256
"""Numbers of a gene's row."""
_TIME = 4.0  # of the diffusion: weights of paths fall from about two edges on
_DENSE = 1500  # genes with edges, up to which every direction is computed


def rows_of_source(source: Any, nodes: Sequence[str], annotation: GeneAnnotation) -> np.ndarray:
    """Rows of numbers whose cosines are the similarity that a source says, (P, H); NaN for a node that it lacks.

    Parameters
    ----------
    source
        Vectors in any form of :class:`gears.graphs.GeneEmbedding`; or edges in any form that a custom graph takes: a
        file with two columns of names, an :class:`gears.graphs.EdgeFile`, a networkx graph, a table.

    Raises
    ------
    FileNotFoundError, ValueError, TypeError
        It cannot be read, or knows none of the nodes.
    """
    if isinstance(source, str | Path) and Path(source).suffix == ".npz":
        arrays = read_npz(existing_file(source, "file of gene knowledge"))
        if "rows" in arrays:  # of another process
            return arrays["rows"]
    if not _is_edges(source):
        rows_PH = embedding_of(source).start(nodes, MOST_NUMBERS, annotation.resolve)
        if np.isnan(rows_PH).all():
            msg = "no gene that can be perturbed here has a vector; expected the same kind of gene names in both"
            raise ValueError(msg)
        return rows_PH
    graph = GraphMaker(nodes, 0, annotation, lambda: Graph(tuple(nodes), np.empty((2, 0), np.int64), np.empty(0)))
    return diffusion_rows(graph.make(source))


def diffusion_rows(graph: Graph) -> np.ndarray:
    """Rows whose inner products are the diffusion kernel of a graph, (P, H); NaN for a node without an edge.

    With W the weights of the edges, both ways, and D their sums, the kernel is exp(-t (1 - D^-1/2 W D^-1/2)). Of a
    large graph the leading 256 directions are kept.
    """
    source, target = graph.edge_index
    is_other = source != target
    n = len(graph.nodes)
    edges = sparse.coo_matrix((graph.weight[is_other], (source[is_other], target[is_other])), shape=(n, n)).tocsr()
    edges = edges.maximum(edges.T)
    inside = np.flatnonzero(edges.getnnz(axis=1))
    edges = edges[inside][:, inside]
    scale = sparse.diags(1 / np.sqrt(np.asarray(edges.sum(axis=1)).ravel()))
    normal = scale @ edges @ scale
    if len(inside) <= _DENSE:
        values, vectors = linalg.eigh(normal.toarray())
    else:
        values, vectors = eigsh(normal, k=MOST_NUMBERS, which="LA", v0=np.ones(len(inside)), tol=1e-4)
    rows_PH = np.full((n, min(MOST_NUMBERS, len(inside))), np.nan)
    kept = np.argsort(-values)[: rows_PH.shape[1]]
    rows_PH[inside] = vectors[:, kept] * np.exp(-_TIME / 2 * (1 - values[kept]))
    return rows_PH


def _is_edges(source: Any) -> bool:
    """Whether a source names pairs of genes, and not a vector of each."""
    if isinstance(source, EdgeFile | Graph) or hasattr(source, "is_multigraph"):
        return True
    if isinstance(source, pd.DataFrame):
        return sum(not pd.api.types.is_numeric_dtype(source[column]) for column in source.columns) > 1
    if isinstance(source, Mapping):
        return "path" in source
    if not isinstance(source, str | Path):
        return False
    path = existing_file(source, "file of gene knowledge")
    if path.suffix == ".npz":
        return bool({"source", "edge_index"} & set(read_npz(path)))
    if user_path(path).suffix in (".npy", ".h5ad", ".parquet"):
        return False
    return _is_edges(read_delimited(path, sep=None, nrows=20))
