"""Graph of genes whose expression goes together over the training cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy import sparse

from gears.graphs.graph import Graph
from gears.graphs.select import candidates, check_selection, name_order, strongest

# Below this share of non-zero entries a sparse product is faster than a dense one (measured: about
# equal at 0.08 for 4,000 genes).
_SPARSE_DENSITY = 0.08
# Bytes of one block of correlations, (targets x genes) float64. A dense input is read once per block.
_BLOCK_BYTES = 256 * 2**20
# Bytes of one chunk of cells, or of targets whose sources are chosen.
_CHUNK_BYTES = 32 * 2**20
# Correlations are rounded to these decimals: ties and the threshold must not hang on rounding errors.
_DECIMALS = 10


def coexpression_graph(
    x: sparse.csr_matrix | np.ndarray, gene_names: Sequence[str], *, threshold: float = 0.4, k: int = 20
) -> Graph:
    """Graph of correlated genes.

    The weight of an edge is the absolute Pearson correlation over the rows of
    `x`. Each target keeps its `k` strongest sources above `threshold`; of
    equally strong ones those whose names sort first. There are no self edges:
    the graph convolution gives a node without one a self loop of weight 1,
    which is what the correlation of a gene with itself would give. Genes that
    do not vary have no edges.

    Parameters
    ----------
    x
        (cells, G) log-normalised expression of the *training* cells, dense or sparse.
    gene_names
        (G,) names of the columns, unique.
    threshold
        An absolute correlation must be greater than this.
    k
        Sources per target.

    Raises
    ------
    ValueError
        If names and columns disagree, or `x` holds NaN or infinity.

    Notes
    -----
    Goes by chunks of targets (and of cells where `x` is dense); memory beyond
    the input and two float64 copies of a sparse one is bounded by two blocks
    of 256 MB and a few chunks of 32 MB.
    """
    check_selection(threshold, k)
    order = name_order(tuple(gene_names))
    if x.ndim != 2 or x.shape[1] != len(order):
        msg = f"x has shape {x.shape}; expected (cells, {len(order)}), one column per gene name"
        raise ValueError(msg)
    correlation = _correlation_of(x, order)
    n_genes = len(order)
    found = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))]
    for start, stop in _ranges(n_genes, n_genes, _BLOCK_BYTES):
        block_TS = correlation.rows(start, stop)
        block_TS[np.arange(stop - start), np.arange(start, stop)] = -np.inf
        for first, last in _ranges(stop - start, n_genes, _CHUNK_BYTES):
            found.append(_select(block_TS[first:last], start + first, threshold, k))
    target, source, weight = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return Graph(tuple(gene_names), np.stack([order[source], order[target]]), weight)


def _select(
    correlation_TS: np.ndarray, start: int, threshold: float, k: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Strongest sources of targets ``start`` onwards; -inf on the diagonal."""
    weight_TS = np.round(np.abs(correlation_TS), _DECIMALS)
    weight_TS[np.isneginf(correlation_TS)] = -np.inf
    target, source = candidates(weight_TS, threshold, k)
    target, source, weight = strongest(target, source, weight_TS[target, source], threshold, k)
    return target + start, source, weight


def _ranges(n: int, row_length: int, n_bytes: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows whose float64 values take about `n_bytes`."""
    step = max(1, n_bytes // (8 * max(row_length, 1)))
    for start in range(0, n, step):
        yield start, min(start + step, n)


def _correlation_of(x: sparse.csr_matrix | np.ndarray, order: np.ndarray) -> _Correlation:
    """Columns in name order, so that sums do not depend on the order of genes."""
    if sparse.issparse(x):
        matrix = sparse.csr_matrix(x)
        if matrix.nnz <= _SPARSE_DENSITY * matrix.shape[0] * matrix.shape[1]:
            return _SparseCorrelation(matrix, order)
        return _DenseCorrelation(matrix, order)
    return _DenseCorrelation(np.asarray(x), order)


class _Correlation:
    """Pearson correlation of columns: chunks of rows of the matrix, 0 for columns that do not vary."""

    mean_G: np.ndarray
    inverse_sd_G: np.ndarray

    def rows(self, start: int, stop: int) -> np.ndarray:
        """(stop - start, G) correlations of genes ``start`` to ``stop`` with all genes."""
        raise NotImplementedError

    def _settle(self, mean_G: np.ndarray, square_G: np.ndarray, constant_G: np.ndarray) -> None:
        """Keep mean and inverse s.d. (of sums of squares about the mean)."""
        if not (np.isfinite(mean_G).all() and np.isfinite(square_G).all()):
            genes = np.flatnonzero(~(np.isfinite(mean_G) & np.isfinite(square_G)))
            msg = f"expression holds NaN or infinity in {len(genes)} genes; remove or fill these values"
            raise ValueError(msg)
        varies = ~constant_G & (square_G > 0)
        self.mean_G = mean_G
        self.inverse_sd_G = np.zeros_like(mean_G)
        self.inverse_sd_G[varies] = 1 / np.sqrt(square_G[varies])


class _SparseCorrelation(_Correlation):
    """From the product X^T X, without centring, which would fill the matrix.

    In float64 this costs as many digits as var/mean^2 has; log-expression that varies at all
    leaves more than the decimals that are kept.
    """

    def __init__(self, x: sparse.csr_matrix, order: np.ndarray) -> None:
        self._by_gene = sparse.csr_matrix(x.T.tocsr()[order].astype(np.float64))
        self._by_cell = sparse.csr_matrix(self._by_gene.T)
        n_cells = max(x.shape[0], 1)
        self._n_cells = n_cells
        mean_G = np.asarray(self._by_gene.sum(axis=1)).ravel() / n_cells
        squares = np.asarray(self._by_gene.multiply(self._by_gene).sum(axis=1)).ravel()
        lowest, highest = (_extreme(self._by_gene, name) for name in ("min", "max"))
        self._settle(mean_G, squares - n_cells * mean_G**2, lowest == highest)

    def rows(self, start: int, stop: int) -> np.ndarray:
        product = (self._by_gene[start:stop] @ self._by_cell).toarray()
        product -= self._n_cells * np.outer(self.mean_G[start:stop], self.mean_G)
        product *= self.inverse_sd_G[start:stop, None]
        product *= self.inverse_sd_G
        return product


def _extreme(matrix: sparse.csr_matrix, name: str) -> np.ndarray:
    if 0 in matrix.shape:
        return np.zeros(matrix.shape[0])
    return getattr(matrix, name)(axis=1).toarray().ravel()


class _DenseCorrelation(_Correlation):
    """From standardised columns, densified a chunk of cells at a time."""

    def __init__(self, x: sparse.csr_matrix | np.ndarray, order: np.ndarray) -> None:
        self._x, self._order = x, order
        n_genes = len(order)
        total_G, lowest_G, highest_G = np.zeros(n_genes), np.full(n_genes, np.inf), np.full(n_genes, -np.inf)
        for chunk in self._chunks():
            total_G += chunk.sum(axis=0)
            np.minimum(lowest_G, chunk.min(axis=0), out=lowest_G)
            np.maximum(highest_G, chunk.max(axis=0), out=highest_G)
        mean_G = total_G / max(x.shape[0], 1)
        square_G = np.zeros(n_genes)
        for chunk in self._chunks():
            square_G += ((chunk - mean_G) ** 2).sum(axis=0)
        self._settle(mean_G, square_G, lowest_G >= highest_G)

    def _chunks(self) -> Iterator[np.ndarray]:
        """Dense float64 chunks of cells, columns reordered."""
        for start, stop in _ranges(self._x.shape[0], len(self._order), _CHUNK_BYTES):
            rows: Any = self._x[start:stop]
            dense = rows.toarray() if sparse.issparse(rows) else rows
            yield dense[:, self._order].astype(np.float64)

    def rows(self, start: int, stop: int) -> np.ndarray:
        correlation = np.zeros((stop - start, len(self._order)))
        for chunk in self._chunks():
            chunk -= self.mean_G
            chunk *= self.inverse_sd_G
            correlation += chunk[:, start:stop].T @ chunk
        return correlation
