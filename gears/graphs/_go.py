"""Similarity of genes by the GO terms they share, and the graph made of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from scipy import sparse

from gears.graphs._annotation import GeneAnnotation
from gears.graphs._graph import Graph, candidates, check_selection, name_order, strongest

# Terms of more genes than this are multiplied as dense columns: "protein binding" alone, which most
# genes share, would make the sparse product dense. Only speed depends on it.
_FREQUENT = 100
# Bytes of one dense (chunk x genes) float32 array.
_CHUNK_BYTES = 16 * 2**20


def jaccard(rows_A: sparse.csr_matrix, rows_B: sparse.csr_matrix) -> np.ndarray:
    """Jaccard similarity of term sets: shared terms divided by terms of either.

    Parameters
    ----------
    rows_A, rows_B
        (A, terms) and (B, terms) sparse ones, as :meth:`GeneAnnotation.rows` gives.

    Returns
    -------
    np.ndarray
        (A, B) float64; 0 where neither has a term.
    """
    shared_AB = (rows_A @ rows_B.T).toarray().astype(np.float64)
    union_AB = np.diff(rows_A.indptr)[:, None] + np.diff(rows_B.indptr)[None, :] - shared_AB
    return np.divide(shared_AB, union_AB, out=np.zeros_like(shared_AB), where=union_AB > 0)


def go_graph(annotation: GeneAnnotation, nodes: Sequence[str], *, threshold: float = 0.1, k: int = 20) -> Graph:
    """Graph of genes that share GO terms.

    The weight of an edge is the Jaccard similarity of the two genes' term sets. Each target keeps its `k` strongest
    sources above `threshold` and, where it has terms, a self edge of weight 1. Of equally similar sources those whose
    names sort first are kept, so that the edges do not depend on the order of `nodes`. Two nodes that are names of one
    gene have a similarity of 1. A node without terms is isolated.

    Parameters
    ----------
    annotation
        Terms of genes; aliases among the nodes are resolved.
    nodes
        Gene names, unique (P).
    threshold
        A similarity must be greater than this.
    k
        Sources per target, the self edge not counted.
    """
    check_selection(threshold, k)
    order = name_order(tuple(nodes))
    rows = annotation.rows([nodes[i] for i in order])
    n_nodes, n_terms_P = len(order), np.diff(rows.indptr)
    parts = []
    for start, shared_TS in _shared_terms(rows, max(1, _CHUNK_BYTES // (4 * max(n_nodes, 1)))):
        stop = start + len(shared_TS)
        rough_TS = n_terms_P[start:stop, None].astype(np.float32) + n_terms_P.astype(np.float32)
        rough_TS -= shared_TS
        np.maximum(rough_TS, 1, out=rough_TS)  # no terms at all: similarity 0
        np.divide(shared_TS, rough_TS, out=rough_TS)
        rough_TS[np.arange(stop - start), np.arange(start, stop)] = -np.inf
        target, source = candidates(rough_TS, threshold, k)
        # float32 narrows the choice; quotients in float64 are exact enough for ties to be ties.
        common = shared_TS[target, source].astype(np.float64)
        weight = common / np.maximum(n_terms_P[start + target] + n_terms_P[source] - common, 1)
        inside = target + start != source
        kept = strongest(target[inside], source[inside], weight[inside], threshold, k)
        parts.append((kept[0] + start, *kept[1:]))
    annotated = np.flatnonzero(n_terms_P)
    parts.append((annotated, annotated, np.ones(len(annotated))))
    target, source, weight = map(np.concatenate, zip(*parts, strict=True))
    return Graph(tuple(nodes), np.stack([order[source], order[target]]), weight)


def _shared_terms(rows: sparse.csr_matrix, chunk: int) -> Iterator[tuple[int, np.ndarray]]:
    """Numbers of terms that some nodes share with all, (T, P) float32 but for the diagonal, and the first node's."""
    frequency = np.bincount(rows.indices, minlength=rows.shape[1])
    # frequent terms as a dense product, the others sparse; for many nodes the dense product costs more: a term must
    # be in a fiftieth of them
    frequent = frequency > max(_FREQUENT, rows.shape[0] // 50)
    dense_PF = rows[:, frequent].toarray().astype(np.float32)  # float32 counts are exact up to 2^24
    rare = sparse.csr_matrix(rows[:, (frequency > 1) & ~frequent], dtype=np.float32)
    rare_transposed = sparse.csr_matrix(rare.T)
    for start in range(0, rows.shape[0], chunk):
        counts = dense_PF[start : start + chunk] @ dense_PF.T
        product = rare[start : start + chunk] @ rare_transposed
        first = np.arange(len(counts), dtype=np.int64) * counts.shape[1]
        at = np.repeat(first, np.diff(product.indptr)) + product.indices
        counts.reshape(-1)[at] += product.data  # a sparse product holds no position twice
        yield start, counts
