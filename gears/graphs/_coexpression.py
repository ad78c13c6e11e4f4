"""Graph of genes whose expression correlates over the training cells.

For genes i and j with expression x_i, x_j over n cells and their means m_i, m_j,

    r_ij = sum (x_i - m_i)(x_j - m_j) / sqrt(sum (x_i - m_i)^2 sum (x_j - m_j)^2)

The matrix (G, G) is never held: its rows are computed in blocks of targets, (T, G), and each target keeps its strongest
sources. The outer loop is over blocks, the inner one over chunks of cells, so the cells are read again for each block
(one block up to about 5,800 genes). Sparse chunks are multiplied as they are stored and the means are subtracted from
the sums, because centring would fill them; dense chunks are centred first, which keeps more digits.

All pairs cost n G^2. With `n_drawn` the pairs that may be edges come from a draw of cells, with a margin for its
error, and only their correlations are computed over all cells, in one read for all pairs; genes that few cells express
are compared over all cells, because a draw says little about them.
The plain version is pandas' ``DataFrame.corr`` of all cells (``tests/graphs/test_coexpression.py``).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from scipy import sparse

from gears.core._progress import followed
from gears.graphs._graph import Graph, candidates, check_selection, name_order, strongest

if TYPE_CHECKING:
    from gears.data.screen._cells import CellMatrix

# Bytes of one block of correlations, (targets x genes) float64. A dense input is read once per block.
_BLOCK_BYTES = 256 * 2**20
# Bytes of one chunk of targets whose sources are chosen.
_CHUNK_BYTES = 32 * 2**20
# Correlations are rounded to these decimals: ties and the threshold must not hang on rounding errors.
_DECIMALS = 10
# A correlation over a draw of n cells is taken to lie within this (kurtosis_i kurtosis_j)^(1/4) / sqrt(n) of that
# over all cells. At a correlation of 0.4 that is four standard errors of two normal variables, and of two genes that
# few cells express alike, but for those of an extreme kurtosis never more than this:
_ERRORS, _LARGEST_ERROR = 2.0, 0.2
# Pairs of genes of a larger kurtosis (expressed by less than one cell in 25, say) are looked at over all cells: these
# few values make a cheap sparse product, and a draw says little of them.
_LARGEST_KURTOSIS = 25.0
# The product of all pairs costs as much as this share of them one by one (measured: a fiftieth).
_FEW_PAIRS = 0.02

# Below this share of non-zero entries a sparse product is faster than a dense one (measured: about
# equal at 0.08 for 4,000 genes).
_SPARSE_DENSITY = 0.08

_SPARSE_CHUNKS = 8


def coexpression_graph(
    x: Expression,
    gene_names: Sequence[str],
    *,
    rows: np.ndarray | None = None,
    threshold: float = 0.4,
    k: int = 20,
    n_drawn: int | None = None,
) -> Graph:
    """Graph of correlated genes.

    The weight of an edge is the absolute Pearson correlation over the rows of `x`. Each target keeps its `k` strongest
    sources above `threshold`; of equally strong ones those whose names sort first. There are no self edges: the graph
    convolution gives a node without one a self loop of weight 1, which is what the correlation of a gene with itself
    would give. Genes that do not vary have no edges.

    Parameters
    ----------
    x
        (cells, G) log-normalised expression, dense, sparse, or the cells of a prepared screen.
    gene_names
        (G,) names of the columns, unique.
    rows
        The *training* cells among the rows of `x`, ascending; all by default.
    threshold
        An absolute correlation must be greater than this.
    k
        Sources per target.
    n_drawn
        Where there are more cells, the pairs that may be edges are chosen on a fixed draw of this many, except pairs
        of genes that few cells express. Their correlations are computed over all cells: every weight is that of the
        graph of all cells, and an edge of that graph is missed only where the draw is off by far more than its
        standard error. By default all pairs are looked at over all cells.

    Raises
    ------
    ValueError
        If names and columns disagree, or `x` holds NaN or infinity.
    """
    check_selection(threshold, k)
    order = name_order(tuple(gene_names))
    if len(x.shape) != 2 or x.shape[1] != len(order):
        msg = f"x has shape {x.shape}; expected (cells, {len(order)}), one column per gene name"
        raise ValueError(msg)
    cells = CellChunks(x, rows, order)
    edges = None
    if n_drawn is not None and cells.shape[0] > n_drawn:
        edges = _among_drawn(cells, n_drawn, threshold, k)
    target, source, weight = _among_all(cells, threshold, k) if edges is None else edges
    return Graph(tuple(gene_names), np.stack([order[source], order[target]]), weight)


Edges: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray]


def _among_all(cells: CellChunks, threshold: float, k: int) -> Edges:
    """Strongest sources of each target, by all pairs over all cells."""
    blocks = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))]
    for start, weight_TS in _absolute(Correlation(cells)):
        target, source = candidates(weight_TS, threshold, k)
        weight = np.round(weight_TS[target, source], _DECIMALS)
        target, source, weight = strongest(target, source, weight, threshold, k)
        blocks.append((target + start, source, weight))
    target, source, weight = map(np.concatenate, zip(*blocks, strict=True))
    return target, source, weight


def _among_drawn(cells: CellChunks, n_drawn: int, threshold: float, k: int) -> Edges | None:
    """The same, of the pairs that a draw of cells leaves; None where these are too many for it to pay."""
    n_genes, drawn = cells.shape[1], cells.drawn(n_drawn)
    kurtosis_G = kurtosis(drawn)
    is_rare_G = kurtosis_G > _LARGEST_KURTOSIS
    error_G = np.where(np.isfinite(kurtosis_G), kurtosis_G, 0) ** 0.25 * (_ERRORS / np.sqrt(n_drawn)) ** 0.5
    error_G = error_G.astype(np.float32)
    pairs_of_blocks = [np.empty(0, np.int64)]
    for start, weight_TS in _absolute(Correlation(drawn, np.float32)):
        error_TS = np.minimum(np.outer(error_G[start : start + len(weight_TS)], error_G), _LARGEST_ERROR)
        target, source = candidates(weight_TS, threshold, k, error_TS)
        target += start
        by_draw = ~(is_rare_G[target] & is_rare_G[source])
        target, source = target[by_draw], source[by_draw]
        pairs_of_blocks.append(np.minimum(target, source) * n_genes + np.maximum(target, source))
    pairs = np.unique(np.concatenate(pairs_of_blocks))
    if len(pairs) > _FEW_PAIRS * n_genes**2 / 2:
        return None
    first, second = np.divmod(pairs, n_genes)
    rare = np.flatnonzero(is_rare_G)
    correlation_E, rare_cells = pair_correlations(cells, first, second, rare)
    weight = np.round(np.abs(correlation_E), _DECIMALS)
    rare_target, rare_source, rare_weight = _among_all(rare_cells, threshold, k)
    target = np.concatenate([first, second, rare[rare_target]])
    source = np.concatenate([second, first, rare[rare_source]])
    return strongest(target, source, np.concatenate([weight, weight, rare_weight]), threshold, k)


def _absolute(correlation: Correlation) -> Iterator[tuple[int, np.ndarray]]:
    """Absolute correlations of some targets with all genes, -inf with themselves, and the first target's number."""
    n_genes = correlation.n_genes
    blocks = ranges(n_genes, n_genes, _BLOCK_BYTES)
    for start, stop in followed(blocks, n_genes, "co-expression graph", "genes", lambda block: block[1] - block[0]):
        block_TS = correlation.rows(start, stop)
        np.abs(block_TS, out=block_TS)
        block_TS[np.arange(stop - start), np.arange(start, stop)] = -np.inf
        for first, last in ranges(stop - start, n_genes, _CHUNK_BYTES):
            yield start + first, block_TS[first:last]


Expression: TypeAlias = "sparse.csr_matrix | np.ndarray | CellMatrix"


class CellChunks:
    """Some rows (ascending) and columns of a matrix in memory or on disk, a chunk at a time, as often as wanted."""

    def __init__(self, x: Expression, rows: np.ndarray | None = None, columns: np.ndarray | None = None) -> None:
        self._x: Any = x
        self._stored = hasattr(x, "csr") and not sparse.issparse(x)
        if not self._stored:
            self._x = sparse.csr_matrix(x) if sparse.issparse(x) else np.asarray(x)
        self._rows, self._columns = rows, columns
        n_cells, n_genes = self._x.shape
        self.shape = (int(n_cells) if rows is None else len(rows), int(n_genes) if columns is None else len(columns))

    def among(self, columns: np.ndarray) -> CellChunks:
        """Some of these columns, in this order."""
        return CellChunks(self._x, self._rows, columns if self._columns is None else self._columns[columns])

    def drawn(self, n_cells: int) -> CellChunks:
        """A fixed draw of these cells, held in memory."""
        n_all = self.shape[0]  # also the key: as many cells give the same draw in every process
        rows = np.sort(np.random.Generator(np.random.Philox(key=n_all)).permutation(n_all)[:n_cells])
        rows = rows if self._rows is None else self._rows[rows]
        return CellChunks(self._x.csr(rows) if self._stored else self._x[rows], None, self._columns)

    def __iter__(self) -> Iterator[sparse.csr_matrix | np.ndarray]:
        """CSR where that is worth while, else dense; raises ValueError for NaN or infinity, in any column."""
        as_sparse = self._stored or sparse.issparse(self._x)
        size = _CHUNK_BYTES * (_SPARSE_CHUNKS if as_sparse else 1)
        for start, stop in ranges(self.shape[0], int(self._x.shape[1]), size):
            rows = slice(start, stop) if self._rows is None else self._rows[start:stop]
            chunk = self._x.csr(np.r_[rows]) if self._stored else self._x[rows]
            bad = ~np.isfinite(chunk if isinstance(chunk, np.ndarray) else chunk.data)
            if bad.any():
                genes = np.nonzero(bad)[1] if isinstance(chunk, np.ndarray) else chunk.indices[bad]
                msg = f"expression holds NaN or infinity in {len(np.unique(genes))} genes; remove or fill these values"
                raise ValueError(msg)
            if self._columns is not None:
                chunk = chunk[:, self._columns]
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
    that varies at all leaves more than the decimals that are kept. Dense chunks are centred. Products in float32
    (`dtype`) are twice as fast, and exact to about five decimals.
    """

    def __init__(self, cells: CellChunks, dtype: type[np.floating] = np.float64) -> None:
        self._cells, self._dtype = cells, dtype
        n_cells, self.n_genes = cells.shape
        n_genes = self.n_genes
        total_G, lowest_G, highest_G = np.zeros(n_genes), np.full(n_genes, np.inf), np.full(n_genes, -np.inf)
        for chunk in self._chunks():
            total_G += _column_sums(chunk)
            np.minimum(lowest_G, _extreme(chunk, "min"), out=lowest_G)
            np.maximum(highest_G, _extreme(chunk, "max"), out=highest_G)
        self._mean_G = total_G / max(n_cells, 1)
        square_G = np.zeros(n_genes)
        for chunk in self._chunks():
            square_G += _squares_about(chunk, self._mean_G)[0]
        varies = (lowest_G < highest_G) & (square_G > 0)
        self._inverse_sd_G = np.zeros_like(square_G)
        self._inverse_sd_G[varies] = 1 / np.sqrt(square_G[varies])

    def rows(self, start: int, stop: int) -> np.ndarray:
        """(stop - start, G) correlations of genes ``start`` to ``stop`` with all genes."""
        mean_G = self._mean_G
        product = np.zeros((stop - start, len(mean_G)), dtype=self._dtype)
        sum_G, n_sparse = np.zeros_like(mean_G), 0
        for chunk in self._chunks():
            if isinstance(chunk, np.ndarray):
                chunk -= mean_G.astype(self._dtype)
                product += chunk[:, start:stop].T @ chunk
            else:
                product += (sparse.csr_matrix(chunk[:, start:stop].T) @ chunk).toarray()
                sum_G += _column_sums(chunk)
                n_sparse += chunk.shape[0]
        if n_sparse:
            # sum (x_i - m_i)(x_j - m_j) = sum x_i x_j - m_j sum x_i - m_i (sum x_j - n m_j), over the sparse chunks
            product -= np.outer(sum_G[start:stop], mean_G)
            product -= np.outer(mean_G[start:stop], sum_G - n_sparse * mean_G)
        product *= self._inverse_sd_G[start:stop, None]
        product *= self._inverse_sd_G
        return product

    def _chunks(self) -> Iterator[sparse.csr_matrix | np.ndarray]:
        """Chunks of cells; dense ones may be overwritten."""
        for chunk in self._cells:
            yield chunk.astype(self._dtype)


def kurtosis(cells: CellChunks) -> np.ndarray:
    """Fourth central moment of each column divided by its squared variance, (G,); infinite where it does not vary."""
    n_cells, n_genes = cells.shape
    mean_G = sum((_column_sums(chunk) for chunk in cells), np.zeros(n_genes)) / n_cells
    square_G, fourth_G = np.zeros(n_genes), np.zeros(n_genes)
    for chunk in cells:
        square, fourth = _squares_about(chunk, mean_G)
        square_G += square
        fourth_G += fourth
    rounding_G = n_cells * (1e-6 * mean_G) ** 2
    return np.divide(n_cells * fourth_G, square_G**2, out=np.full(n_genes, np.inf), where=square_G > rounding_G)


def pair_correlations(
    cells: CellChunks, first: np.ndarray, second: np.ndarray, kept: np.ndarray
) -> tuple[np.ndarray, CellChunks]:
    """Pearson correlation of some pairs of columns in float64, and other columns in memory: one pass over the cells.

    ::

        r = (sum x y - sum x sum y / n) / sqrt((sum x x - (sum x)^2 / n) (sum y y - (sum y)^2 / n))

    with every column minus its mean over the first chunk, which leaves the differences their digits.

    Pairs are sorted by `first`, and each column in them varies over the cells. The columns `kept`, mostly zero, are
    returned sparse beside the correlations, (E,).
    """
    # pairs are sorted by `first`, so the products of a gene with all its partners are one matrix-vector product
    used, place = np.unique(np.concatenate([first, second]), return_inverse=True)
    starts = np.flatnonzero(np.diff(first, prepend=-1))
    ranges_of_first = list(itertools.pairwise([*starts.tolist(), len(first)]))
    one, two = np.split(place, 2)
    product_E, sum_A, square_A, shift_A = np.zeros(len(first)), np.zeros(len(used)), np.zeros(len(used)), None
    parts = []
    for chunk in cells.among(np.concatenate([used, kept])):
        parts.append(sparse.csr_matrix(chunk[:, len(used) :]))
        dense = chunk[:, : len(used)]
        dense = dense if isinstance(dense, np.ndarray) else dense.toarray()
        if shift_A is None:
            shift_A = dense.mean(axis=0, dtype=np.float64)
        part_AN = np.ascontiguousarray((dense - shift_A).T)
        sum_A += part_AN.sum(axis=1)
        square_A += np.einsum("an,an->a", part_AN, part_AN)
        for start, stop in ranges_of_first:
            product_E[start:stop] += part_AN[two[start:stop]] @ part_AN[one[start]]
    n_cells = cells.shape[0]
    spread_A = np.sqrt(square_A - sum_A**2 / n_cells)
    correlation_E = (product_E - sum_A[one] * sum_A[two] / n_cells) / (spread_A[one] * spread_A[two])
    return correlation_E, CellChunks(sparse.vstack(parts, format="csr"))


def _column_sums(chunk: sparse.csr_matrix | np.ndarray) -> np.ndarray:
    if isinstance(chunk, np.ndarray):
        return np.asarray(chunk.sum(axis=0, dtype=np.float64))
    return np.bincount(chunk.indices, weights=chunk.data, minlength=chunk.shape[1])


def _squares_about(chunk: sparse.csr_matrix | np.ndarray, mean_G: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sums over cells of the squared differences from the mean and of their squares, (G,) each."""
    if isinstance(chunk, np.ndarray):
        about = (chunk - mean_G) ** 2
        return about.sum(axis=0), np.einsum("cg,cg->g", about, about)
    n_genes = len(mean_G)
    about = (chunk.data - mean_G[chunk.indices]) ** 2
    n_zero = chunk.shape[0] - np.bincount(chunk.indices, minlength=n_genes)
    square_G = np.bincount(chunk.indices, weights=about, minlength=n_genes) + n_zero * mean_G**2
    fourth_G = np.bincount(chunk.indices, weights=about**2, minlength=n_genes) + n_zero * mean_G**4
    return square_G, fourth_G


def _extreme(chunk: sparse.csr_matrix | np.ndarray, name: str) -> np.ndarray:
    """Lowest or highest value of each column."""
    extremes = getattr(chunk, name)(axis=0)
    return np.asarray(extremes) if isinstance(chunk, np.ndarray) else extremes.toarray()[0]
