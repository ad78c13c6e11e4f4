"""Graph of genes whose expression goes together over the training cells."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gears.graphs.correlation import CellChunks, Correlation, Expression, ranges
from gears.graphs.graph import Graph
from gears.graphs.select import candidates, check_selection, name_order, strongest

# Bytes of one block of correlations, (targets x genes) float64. A dense input is read once per block.
_BLOCK_BYTES = 256 * 2**20
# Bytes of one chunk of targets whose sources are chosen.
_CHUNK_BYTES = 32 * 2**20
# Correlations are rounded to these decimals: ties and the threshold must not hang on rounding errors.
_DECIMALS = 10


def coexpression_graph(
    x: Expression,
    gene_names: Sequence[str],
    *,
    rows: np.ndarray | None = None,
    threshold: float = 0.4,
    k: int = 20,
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

    Raises
    ------
    ValueError
        If names and columns disagree, or `x` holds NaN or infinity.

    Notes
    -----
    Goes by chunks of cells and blocks of targets (one block up to about 5,800 genes, one more pass over the
    cells for each further one): memory beyond the input is bounded by two blocks of 256 MB and a few chunks.
    """
    check_selection(threshold, k)
    order = name_order(tuple(gene_names))
    if len(x.shape) != 2 or x.shape[1] != len(order):
        msg = f"x has shape {x.shape}; expected (cells, {len(order)}), one column per gene name"
        raise ValueError(msg)
    correlation = Correlation(CellChunks(x, rows), order)
    n_genes = len(order)
    found = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))]
    for start, stop in ranges(n_genes, n_genes, _BLOCK_BYTES):
        block_TS = correlation.rows(start, stop)
        block_TS[np.arange(stop - start), np.arange(start, stop)] = -np.inf
        for first, last in ranges(stop - start, n_genes, _CHUNK_BYTES):
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
