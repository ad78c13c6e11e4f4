"""Pearson correlation of genes over cells that need not fit into memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, TypeAlias

import numpy as np
from scipy import sparse

# Below this share of non-zero entries a sparse product is faster than a dense one (measured: about
# equal at 0.08 for 4,000 genes).
_SPARSE_DENSITY = 0.08
# Bytes of one chunk of cells as dense float64, and how many times more cells a chunk of a sparse matrix holds.
_CHUNK_BYTES = 32 * 2**20
_SPARSE_CHUNKS = 8


class StoredCells(Protocol):
    """Cells on disk."""

    shape: tuple[int, int]

    def csr(self, ids: Any = None) -> sparse.csr_matrix:
        """The given cells, (B, G)."""
        ...


Expression: TypeAlias = "sparse.csr_matrix | np.ndarray | StoredCells"


class CellChunks:
    """Rows of a matrix in memory or on disk, a chunk at a time, as often as they are wanted.

    Parameters
    ----------
    x
        Expression, (cells, G).
    rows
        The rows that count, ascending; all by default.
    """

    def __init__(self, x: Expression, rows: np.ndarray | None = None) -> None:
        self._x: Any = x
        self._stored = hasattr(x, "csr") and not sparse.issparse(x)
        if not self._stored:
            self._x = sparse.csr_matrix(x) if sparse.issparse(x) else np.asarray(x)
        self._rows = rows
        self.shape = (int(self._x.shape[0]) if rows is None else len(rows), int(self._x.shape[1]))

    def __iter__(self) -> Iterator[sparse.csr_matrix | np.ndarray]:
        """CSR where that is worth while, else dense."""
        as_sparse = self._stored or sparse.issparse(self._x)
        size = _CHUNK_BYTES * (_SPARSE_CHUNKS if as_sparse else 1)
        for start, stop in ranges(self.shape[0], self.shape[1], size):
            rows = np.arange(start, stop) if self._rows is None else self._rows[start:stop]
            chunk = self._x.csr(rows) if self._stored else self._x[rows]
            if not as_sparse or chunk.nnz <= _SPARSE_DENSITY * np.prod(chunk.shape):
                yield chunk
                continue
            for first, last in ranges(chunk.shape[0], self.shape[1], _CHUNK_BYTES):
                yield chunk[first:last].toarray()


def ranges(n: int, row_length: int, n_bytes: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows whose float64 values take about `n_bytes`."""
    step = max(1, n_bytes // (8 * max(row_length, 1)))
    for start in range(0, n, step):
        yield start, min(start + step, n)


class Correlation:
    """Pearson correlation of columns, in blocks of rows of its matrix; 0 for columns that do not vary.

    Sparse chunks are multiplied without centring, which would fill them, and the mean is taken
    out of the sums. In float64 this costs as many digits as var/mean^2 has; log-expression
    that varies at all leaves more than the decimals that are kept. Dense chunks are centred.

    Parameters
    ----------
    cells
        Expression; read twice at once, and once for each block.
    order
        Order of the columns, so that sums do not depend on the order of genes.

    Raises
    ------
    ValueError
        For NaN or infinity.
    """

    def __init__(self, cells: CellChunks, order: np.ndarray) -> None:
        self._cells, self._order = cells, order
        n_cells, n_genes = cells.shape
        total_G, lowest_G, highest_G = np.zeros(n_genes), np.full(n_genes, np.inf), np.full(n_genes, -np.inf)
        for chunk in self._chunks():
            total_G += _column_sums(chunk)
            np.minimum(lowest_G, _extreme(chunk, "min"), out=lowest_G)
            np.maximum(highest_G, _extreme(chunk, "max"), out=highest_G)
        if not np.isfinite(total_G).all():
            n_bad = np.count_nonzero(~np.isfinite(total_G))
            msg = f"expression holds NaN or infinity in {n_bad} genes; remove or fill these values"
            raise ValueError(msg)
        self._mean_G = total_G / max(n_cells, 1)
        square_G = np.zeros(n_genes)
        for chunk in self._chunks():
            square_G += _squares_about(chunk, self._mean_G)
        varies = (lowest_G < highest_G) & (square_G > 0)
        self._inverse_sd_G = np.zeros_like(square_G)
        self._inverse_sd_G[varies] = 1 / np.sqrt(square_G[varies])

    def rows(self, start: int, stop: int) -> np.ndarray:
        """(stop - start, G) correlations of genes ``start`` to ``stop`` with all genes."""
        mean_G = self._mean_G
        product = np.zeros((stop - start, len(mean_G)))
        sum_G, n_sparse = np.zeros_like(mean_G), 0
        for chunk in self._chunks():
            if isinstance(chunk, np.ndarray):
                chunk -= mean_G
                product += chunk[:, start:stop].T @ chunk
            else:
                product += (sparse.csr_matrix(chunk[:, start:stop].T) @ chunk).toarray()
                sum_G += _column_sums(chunk)
                n_sparse += chunk.shape[0]
        if n_sparse:
            product -= np.outer(sum_G[start:stop], mean_G)
            product -= np.outer(mean_G[start:stop], sum_G - n_sparse * mean_G)
        product *= self._inverse_sd_G[start:stop, None]
        product *= self._inverse_sd_G
        return product

    def _chunks(self) -> Iterator[sparse.csr_matrix | np.ndarray]:
        """Chunks of cells in float64, columns reordered; dense ones may be overwritten."""
        for chunk in self._cells:
            yield chunk[:, self._order].astype(np.float64)


def _column_sums(chunk: sparse.csr_matrix | np.ndarray) -> np.ndarray:
    if isinstance(chunk, np.ndarray):
        return np.asarray(chunk.sum(axis=0))
    return np.bincount(chunk.indices, weights=chunk.data, minlength=chunk.shape[1])


def _squares_about(chunk: sparse.csr_matrix | np.ndarray, mean_G: np.ndarray) -> np.ndarray:
    if isinstance(chunk, np.ndarray):
        return np.asarray(((chunk - mean_G) ** 2).sum(axis=0))
    n_genes = len(mean_G)
    about = (chunk.data - mean_G[chunk.indices]) ** 2
    n_zero = chunk.shape[0] - np.bincount(chunk.indices, minlength=n_genes)
    return np.bincount(chunk.indices, weights=about, minlength=n_genes) + n_zero * mean_G**2


def _extreme(chunk: sparse.csr_matrix | np.ndarray, name: str) -> np.ndarray:
    """Lowest or highest value of each column."""
    if isinstance(chunk, np.ndarray):
        return np.asarray(getattr(chunk, name)(axis=0))
    extreme = np.minimum if name == "min" else np.maximum
    found = np.full(chunk.shape[1], np.inf if name == "min" else -np.inf)
    extreme.at(found, chunk.indices, chunk.data)
    with_zero = np.bincount(chunk.indices, minlength=chunk.shape[1]) < chunk.shape[0]
    found[with_zero] = extreme(found[with_zero], 0.0)
    return found
