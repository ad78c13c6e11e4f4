"""Per-condition moments of sparse expression, exact when chunks are merged."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy import sparse

CHUNK_VALUES = 1 << 21
"""Stored values (and, apart from that, condition x gene cells) that one chunk may hold."""


class ConditionMoments:
    """Cell number, mean, central moments 2-4 and non-zero share per condition and gene.

    Values enter in chunks of cells. Within a chunk the moments are taken about
    the chunk's own mean in float64 (two passes); chunks are merged by the
    pairwise formulas of Chan et al. (1979) and Pébay (2008), which hold for any
    order and size of the chunks.

    Parameters
    ----------
    n_conditions, n_genes
        C and G.

    Attributes
    ----------
    n : np.ndarray (C,) int64
        Cells seen per condition.
    mean : np.ndarray (C, G) float64
    """

    def __init__(self, n_conditions: int, n_genes: int) -> None:
        shape = (n_conditions, n_genes)
        self.n = np.zeros(n_conditions, dtype=np.int64)
        self.mean = np.zeros(shape)
        # Sums of powers of deviations, not divided by n: the form in which they merge.
        self._sum2, self._sum3, self._sum4 = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self._n_nonzero = np.zeros(shape, dtype=np.int64)

    def update(self, chunk: sparse.csr_matrix, condition_ids: np.ndarray) -> None:
        """Add cells.

        Parameters
        ----------
        chunk
            (cells, G) CSR without explicit zeros or duplicate entries.
        condition_ids
            (cells,) condition of each row, 0..C-1.
        """
        if chunk.shape[0] != len(condition_ids) or chunk.shape[1] != self.mean.shape[1]:
            msg = (
                f"chunk of shape {chunk.shape} with {len(condition_ids)} condition ids does not fit "
                f"moments over {self.mean.shape[1]} genes; one id per row is needed"
            )
            raise ValueError(msg)
        if not len(condition_ids):
            return
        present, row_U = np.unique(condition_ids, return_inverse=True)
        part = _moments_of(chunk, row_U, len(present))
        self._merge_rows(present, part)

    def merge(self, other: ConditionMoments) -> None:
        """Add everything that `other` has seen (`other` stays as it is)."""
        if self.mean.shape != other.mean.shape:
            msg = f"cannot merge moments of shapes {self.mean.shape} and {other.mean.shape}"
            raise ValueError(msg)
        self._merge_rows(np.arange(len(self.n)), other)

    def _merge_rows(self, rows: np.ndarray, other: ConditionMoments) -> None:
        na = self.n[rows][:, None].astype(np.float64)
        nb = other.n[:, None].astype(np.float64)
        n = np.maximum(na + nb, 1.0)
        a2, a3, a4 = self._sum2[rows], self._sum3[rows], self._sum4[rows]
        b2, b3, b4 = other._sum2, other._sum3, other._sum4
        delta = other.mean - self.mean[rows]
        step = delta / n
        self._sum4[rows] = (
            a4
            + b4
            + delta * step**3 * na * nb * (na * na - na * nb + nb * nb)
            + 6 * step**2 * (na * na * b2 + nb * nb * a2)
            + 4 * step * (na * b3 - nb * a3)
        )
        self._sum3[rows] = a3 + b3 + delta * step**2 * na * nb * (na - nb) + 3 * step * (na * b2 - nb * a2)
        self._sum2[rows] = a2 + b2 + delta * step * na * nb
        # An empty side must leave the other exactly as it is.
        self.mean[rows] = np.where(na == 0, other.mean, self.mean[rows] + step * nb)
        self.n[rows] += other.n
        self._n_nonzero[rows] += other._n_nonzero

    def central(self, order: int) -> np.ndarray:
        """Central moment of order 2, 3 or 4 divided by n, (C, G) float64 (0 where n is 0)."""
        sums = {2: self._sum2, 3: self._sum3, 4: self._sum4}[order]
        return sums / np.maximum(self.n, 1)[:, None]

    @property
    def nonzero(self) -> np.ndarray:
        """Share of cells with a value other than 0, (C, G) float64."""
        return self._n_nonzero / np.maximum(self.n, 1)[:, None]


def _moments_of(chunk: sparse.csr_matrix, row_U: np.ndarray, n_conditions: int) -> ConditionMoments:
    """Moments of one chunk about its own means; zeros enter through their number."""
    n_genes = chunk.shape[1]
    part = ConditionMoments(n_conditions, n_genes)
    shape, size = (n_conditions, n_genes), n_conditions * n_genes
    part.n = np.bincount(row_U, minlength=n_conditions).astype(np.int64)
    cell = np.repeat(row_U.astype(np.int64) * n_genes, np.diff(chunk.indptr)) + chunk.indices
    values = chunk.data.astype(np.float64)
    n = part.n[:, None].astype(np.float64)
    part._n_nonzero = np.bincount(cell, minlength=size).reshape(shape)
    part.mean = np.bincount(cell, weights=values, minlength=size).reshape(shape) / n
    zeros = n - part._n_nonzero
    values -= part.mean.ravel()[cell]
    power, mean_power = values * values, part.mean * part.mean
    part._sum2 = np.bincount(cell, weights=power, minlength=size).reshape(shape) + zeros * mean_power
    power *= values
    mean_power = mean_power * part.mean
    part._sum3 = np.bincount(cell, weights=power, minlength=size).reshape(shape) - zeros * mean_power
    power *= values
    mean_power = mean_power * part.mean
    part._sum4 = np.bincount(cell, weights=power, minlength=size).reshape(shape) + zeros * mean_power
    return part


def condition_chunks(
    matrix: sparse.csr_matrix, condition_ids: np.ndarray, chunk_values: int = CHUNK_VALUES
) -> Iterator[np.ndarray]:
    """Yield row numbers in chunks, ordered by condition so that a chunk touches few conditions.

    A chunk holds at most about `chunk_values` stored values and so few rows
    that its condition x gene tables stay as small.
    """
    order = np.argsort(condition_ids, kind="stable")
    cost = np.cumsum(np.maximum(np.diff(matrix.indptr)[order], 1))
    max_rows = max(chunk_values // max(matrix.shape[1], 1), 1)
    start = 0
    while start < len(order):
        done = cost[start - 1] if start else 0
        stop = int(np.searchsorted(cost, done + chunk_values, side="right"))
        stop = max(stop, start + 1)
        conditions = condition_ids[order[start:stop]]
        # Ordered by condition: the table is bounded by the number of distinct conditions.
        new = np.flatnonzero(np.diff(conditions)) + 1
        if len(new) >= max_rows:
            stop = start + int(new[max_rows - 1])
        yield order[start:stop]
        start = stop


def condition_moments(
    matrix: sparse.csr_matrix,
    condition_ids: np.ndarray,
    n_conditions: int,
    *,
    chunk_values: int = CHUNK_VALUES,
) -> ConditionMoments:
    """Moments of all cells of a matrix, chunk by chunk.

    Parameters
    ----------
    matrix
        (N, G) CSR.
    condition_ids
        (N,) condition of each cell.
    n_conditions
        C.
    """
    moments = ConditionMoments(n_conditions, matrix.shape[1])
    for rows in condition_chunks(matrix, condition_ids, chunk_values):
        moments.update(matrix[rows], condition_ids[rows])
    return moments
