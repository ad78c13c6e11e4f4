"""Graph of genes whose expression goes together over the training cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np

from gears.graphs.correlation import CellChunks, Correlation, Expression, kurtosis, pair_correlations, ranges
from gears.graphs.graph import Graph
from gears.graphs.select import candidates, check_selection, name_order, strongest

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

    The weight of an edge is the absolute Pearson correlation over the rows of
    `x`. Each target keeps its `k` strongest sources above `threshold`; of
    equally strong ones those whose names sort first. There are no self edges:
    the graph convolution gives a node without one a self loop of weight 1,
    which is what the correlation of a gene with itself would give. Genes that
    do not vary have no edges.

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

    Notes
    -----
    Goes by chunks of cells and blocks of targets (one block up to about 5,800 genes, one more pass over the
    cells for each further one): memory beyond the input is bounded by two blocks of 256 MB and a few chunks.
    With `n_drawn` the drawn cells are held in memory.
    """
    check_selection(threshold, k)
    order = name_order(tuple(gene_names))
    if len(x.shape) != 2 or x.shape[1] != len(order):
        msg = f"x has shape {x.shape}; expected (cells, {len(order)}), one column per gene name"
        raise ValueError(msg)
    cells = CellChunks(x, rows, order)
    found = None
    if n_drawn is not None and cells.shape[0] > n_drawn:
        found = _among_drawn(cells, n_drawn, threshold, k)
    target, source, weight = _among_all(cells, threshold, k) if found is None else found
    return Graph(tuple(gene_names), np.stack([order[source], order[target]]), weight)


Edges: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray]


def _among_all(cells: CellChunks, threshold: float, k: int) -> Edges:
    """Strongest sources of each target, by all pairs over all cells."""
    found = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))]
    for start, weight_TS in _absolute(Correlation(cells)):
        target, source = candidates(weight_TS, threshold, k)
        weight = np.round(weight_TS[target, source], _DECIMALS)
        target, source, weight = strongest(target, source, weight, threshold, k)
        found.append((target + start, source, weight))
    target, source, weight = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return target, source, weight


def _among_drawn(cells: CellChunks, n_drawn: int, threshold: float, k: int) -> Edges | None:
    """The same, of the pairs that a draw of cells leaves; None where these are too many for it to pay."""
    n_genes, drawn = cells.shape[1], cells.drawn(n_drawn)
    kurtosis_G = kurtosis(drawn)
    is_rare_G = kurtosis_G > _LARGEST_KURTOSIS
    error_G = np.where(np.isfinite(kurtosis_G), kurtosis_G, 0) ** 0.25 * (_ERRORS / np.sqrt(n_drawn)) ** 0.5
    error_G = error_G.astype(np.float32)
    found = [np.empty(0, np.int64)]
    for start, weight_TS in _absolute(Correlation(drawn, np.float32)):
        error_TS = np.minimum(np.outer(error_G[start : start + len(weight_TS)], error_G), _LARGEST_ERROR)
        target, source = candidates(weight_TS, threshold, k, error_TS)
        target += start
        by_draw = ~(is_rare_G[target] & is_rare_G[source])
        target, source = target[by_draw], source[by_draw]
        found.append(np.minimum(target, source) * n_genes + np.maximum(target, source))
    pairs = np.unique(np.concatenate(found))
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
    for start, stop in ranges(n_genes, n_genes, _BLOCK_BYTES):
        block_TS = correlation.rows(start, stop)
        np.abs(block_TS, out=block_TS)
        block_TS[np.arange(stop - start), np.arange(start, stop)] = -np.inf
        for first, last in ranges(stop - start, n_genes, _CHUNK_BYTES):
            yield start + first, block_TS[first:last]
