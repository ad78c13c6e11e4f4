"""Moments of expression by condition, in one pass over the cells of a screen.

For condition c and gene g, over the values x of its n cells: mean = sum x / n and S_k = sum (x - mean)^k, k = 2, 3, 4.
Only n, mean, S_k, (C, G), and counts of cells are kept. Within a chunk of cells the S_k are taken about its own mean
(sums of x^k would lose the digits of a small variance beside a large mean); zeros, which are not stored, add n_zero
(-mean)^k. Chunks are merged by n, mean and S_k alone (Chan et al. 1979, Pébay 2008), in any order and size, also from
processes. The control cells are read first, because cells above and below their mean are counted. The plain version
takes the moments of each condition's dense matrix (``tests/data/test_data_moments.py``).
"""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
from scipy import sparse

from gears.core._progress import followed
from gears.data.screen._cells import CellMatrix, gather_rows

CHUNK_VALUES = 1 << 20
"""Stored values (and, apart from that, condition x gene cells) that one chunk may hold."""

ROUNDING = 1e-12
"""Share of a gene's scale within which a value is equal to the mean: above float64, far below float32 rounding."""

Centre = tuple[np.ndarray, np.ndarray]
"""Bounds (G,) about the control mean: values below the first are below it, values above the second above it."""


class ConditionMoments:
    """Cell number, mean, central moments 2-4 and shares of cells per condition and gene.

    The shares are of cells with a value other than 0 and, given a centre (the control mean), of cells above and below
    it.

    `n`: (C,) int64: cells seen per condition.
    `mean`: (C, G) float64.
    """

    def __init__(self, n_conditions: int, n_genes: int, centre: Centre | None = None) -> None:
        shape = (n_conditions, n_genes)
        self.centre = centre
        self.n = np.zeros(n_conditions, dtype=np.int64)
        self.mean = np.zeros(shape)
        # Sums of powers of deviations, not divided by n: the form in which they merge.
        self._sum2, self._sum3, self._sum4 = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self._n_nonzero = np.zeros(shape, dtype=np.int64)
        self._n_above = np.zeros(shape if centre is not None else (n_conditions, 0), dtype=np.int64)
        self._n_below = self._n_above.copy()

    @classmethod
    def from_central(
        cls,
        n: np.ndarray,
        mean: np.ndarray,
        m2: np.ndarray,
        m3: np.ndarray,
        m4: np.ndarray,
        nonzero: np.ndarray | None = None,
    ) -> ConditionMoments:
        """From cell numbers (C,), means, central moments divided by n, and shares of cells other than 0, (C, G)."""
        made = cls(*mean.shape)
        n_C1 = n[:, None]
        made.n, made.mean = n.astype(np.int64), mean
        made._sum2, made._sum3, made._sum4 = n_C1 * m2, n_C1 * m3, n_C1 * m4
        if nonzero is not None:
            made._n_nonzero = np.rint(n_C1 * nonzero).astype(np.int64)
        return made

    def update(self, chunk: sparse.csr_matrix, condition_ids: np.ndarray) -> None:
        """Add cells: (cells, G) CSR without explicit zeros or duplicate entries, and each one's condition, 0..C-1."""
        # tables of the conditions of this chunk only: (present, G) instead of (C, G) for every chunk
        present, row_U = np.unique(condition_ids, return_inverse=True)
        self.merge_conditions(present, _moments_of(chunk, row_U, len(present), self.centre))

    def merge_conditions(self, rows: np.ndarray, other: ConditionMoments) -> None:
        """Add moments whose row i is about condition ``rows[i]`` (distinct) here, with the same centre."""
        # binomial expansion of sum (x - mean)^k about the merged mean, mean_a + delta nb / n; terms with S_1 vanish
        na = self.n[rows][:, None].astype(np.float64)
        nb = other.n[:, None].astype(np.float64)
        n = np.maximum(na + nb, 1.0)  # a condition without cells on either side stays 0, not 0 / 0
        a2, a3, a4 = self._sum2[rows], self._sum3[rows], self._sum4[rows]
        b2, b3, b4 = other._sum2, other._sum3, other._sum4
        delta = other.mean - self.mean[rows]
        step = delta / n  # what the mean moves by for each cell of the other side
        self._sum4[rows] = (
            a4
            + b4
            + delta * step**3 * na * nb * (na * na - na * nb + nb * nb)
            + 6 * step**2 * (na * na * b2 + nb * nb * a2)
            + 4 * step * (na * b3 - nb * a3)
        )
        self._sum3[rows] = a3 + b3 + delta * step**2 * na * nb * (na - nb) + 3 * step * (na * b2 - nb * a2)
        self._sum2[rows] = a2 + b2 + delta * step * na * nb
        # An empty side must leave the other unchanged.
        self.mean[rows] = np.where(na == 0, other.mean, self.mean[rows] + step * nb)
        self.n[rows] += other.n
        self._n_nonzero[rows] += other._n_nonzero
        self._n_above[rows] += other._n_above
        self._n_below[rows] += other._n_below

    def central(self, order: int) -> np.ndarray:
        """Central moment of order 2, 3 or 4 divided by n, (C, G) float64 (0 where n is 0)."""
        sums = {2: self._sum2, 3: self._sum3, 4: self._sum4}[order]
        return sums / np.maximum(self.n, 1)[:, None]

    def share(self, name: str) -> np.ndarray:
        """Share of cells with a value other than 0 ("nonzero"), or "above" or "below" the control mean, (C, G) float64.

        (C, 0) for the latter without a centre.
        """
        return getattr(self, f"_n_{name}") / np.maximum(self.n, 1)[:, None]

    def centre_on(self, condition_id: int) -> Centre:
        """Bounds about the mean of one condition, which must have been seen whole.

        Rounding must not decide for a gene that is constant in the control cells: values between them are neither.
        """
        mean_G = self.mean[condition_id]
        margin_G = ROUNDING * (np.abs(mean_G) + np.sqrt(self.central(2)[condition_id]))
        return mean_G - margin_G, mean_G + margin_G


def _moments_of(
    chunk: sparse.csr_matrix, row_U: np.ndarray, n_conditions: int, centre: Centre | None
) -> ConditionMoments:
    """Moments of one chunk about its own means; zeros enter through their number."""
    n_genes = chunk.shape[1]
    part = ConditionMoments(n_conditions, n_genes, centre)
    shape, size = (n_conditions, n_genes), n_conditions * n_genes

    def total(cell: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        return np.bincount(cell, weights=weights, minlength=size).reshape(shape)

    part.n = np.bincount(row_U, minlength=n_conditions).astype(np.int64)
    # entries (condition, gene) of a flat table: bincount sums into it without a dense copy of the cells
    cell = np.repeat(row_U.astype(np.int64) * n_genes, np.diff(chunk.indptr)) + chunk.indices
    values = chunk.data.astype(np.float64)
    n = part.n[:, None].astype(np.float64)
    part._n_nonzero = total(cell)
    zeros = n - part._n_nonzero  # values that are not stored
    if centre is not None:
        # all zeros of a gene are on one side of its control mean, or on none
        low_G, high_G = centre
        of_zeros = part.n[:, None] - part._n_nonzero
        part._n_above = total(cell[values > high_G[chunk.indices]]) + of_zeros * (high_G < 0)
        part._n_below = total(cell[values < low_G[chunk.indices]]) + of_zeros * (low_G > 0)
    part.mean = total(cell, values) / n
    # two passes over the chunk: its mean, then powers of the deviations from it, one after another in the same array,
    # because the values are the largest array here
    values -= part.mean.ravel()[cell]
    power, mean_power = values * values, part.mean * part.mean
    part._sum2 = total(cell, power) + zeros * mean_power
    power *= values
    mean_power = mean_power * part.mean
    part._sum3 = total(cell, power) - zeros * mean_power
    power *= values
    mean_power = mean_power * part.mean
    part._sum4 = total(cell, power) + zeros * mean_power
    return part


def condition_chunks(
    lengths: np.ndarray, condition_ids: np.ndarray, n_genes: int, chunk_values: int = CHUNK_VALUES
) -> Iterator[np.ndarray]:
    """Yield row numbers in chunks, ordered by condition so that a chunk touches few conditions.

    A chunk has about `chunk_values` stored values at most, and as many entries at most in its condition x gene
    tables. `lengths` are the stored values of each row, (N,), `condition_ids` its condition.
    """
    order = np.argsort(condition_ids, kind="stable")
    cost = np.cumsum(np.maximum(lengths[order], 1))
    max_conditions = max(chunk_values // max(n_genes, 1), 1)
    start = 0
    while start < len(order):
        done = cost[start - 1] if start else 0
        stop = int(np.searchsorted(cost, done + chunk_values, side="right"))
        stop = max(stop, start + 1)
        conditions = condition_ids[order[start:stop]]
        # Ordered by condition: the table is bounded by the number of distinct conditions.
        new = np.flatnonzero(np.diff(conditions)) + 1
        if len(new) >= max_conditions:
            stop = start + int(new[max_conditions - 1])
        yield order[start:stop]
        start = stop


class MemoryRows:
    """Rows of a CSR matrix in memory, as :class:`CellMatrix` gives those of files."""

    def __init__(self, matrix: sparse.csr_matrix) -> None:
        self.matrix, self.shape = matrix, matrix.shape

    @property
    def row_lengths(self) -> np.ndarray:
        """Stored values of each row, (N,)."""
        return np.diff(self.matrix.indptr)

    def csr(self, rows: np.ndarray) -> sparse.csr_matrix:
        matrix, rows = self.matrix, np.asarray(rows, dtype=np.int64)
        values, genes, lengths = gather_rows(matrix.data, matrix.indices, matrix.indptr, rows)
        bounds = np.concatenate(([0], np.cumsum(lengths)))
        return sparse.csr_matrix((values, genes, bounds), shape=(len(rows), self.shape[1]))


def moment_blocks(
    cells: sparse.csr_matrix | CellMatrix,
    condition_ids: np.ndarray,
    n_conditions: int,
    *,
    control_id: int | None = None,
    most_values: int | None = None,
    workers: int = 1,
) -> Iterator[ConditionMoments]:
    """The moments of consecutive conditions, block by block: the same for any blocks, chunks and processes.

    `cells`: (N, G) expression: canonical CSR in memory, or cells in mapped files.
    `condition_ids`, `n_conditions`: condition of each cell, (N,), from 0 to C - 1.
    `control_id`: count cells above and below this condition's mean, found by a pass over its cells first.
    `most_values`: conditions x genes of a block, which has at least one condition; None: one block of all.
    `workers`: processes that share the cells (newly started; a script needs a ``if __name__ == "__main__":`` guard).
    """
    source, ids = cells if isinstance(cells, CellMatrix) else MemoryRows(cells), np.asarray(condition_ids)
    lengths, n_genes = source.row_lengths, source.shape[1]

    def moments_of(first: int, number: int, centre: Centre | None) -> ConditionMoments:
        """By this process, or by those of the pool."""
        rows, own_ids = np.flatnonzero((ids >= first) & (ids < first + number)), ids - first
        chunks = [rows[at] for at in condition_chunks(lengths[rows], own_ids[rows], n_genes)]
        total, shares = ConditionMoments(number, n_genes, centre), _shares(chunks, lengths, workers)
        if pool is None or len(shares) < 2:
            for chunk in followed(chunks, len(rows), "reading cells", "cells", len):
                total.update(source.csr(chunk), own_ids[chunk])
            return total
        # each process returns tables of the conditions it has seen; merging is exact in any order up to rounding
        parts = pool.map(_share_moments, [_task(source, own_ids, share, centre) for share in shares])
        for present, part in followed(parts, len(shares), "reading cells", "shares"):
            total.merge_conditions(present, part)
        return total

    step = n_conditions if most_values is None else max(1, most_values // max(1, n_genes))
    with processes(workers) as pool:
        # blocks of conditions outside, chunks of their cells inside: the (conditions, G) tables of one block are in
        # memory, and every cell is read once, those of the control once more for the centre
        centre = None if control_id is None else moments_of(control_id, 1, None).centre_on(0)
        for first in range(0, n_conditions, step):
            yield moments_of(first, min(step, n_conditions - first), centre)  # no name keeps it while the next is made


def condition_moments(
    cells: sparse.csr_matrix | CellMatrix, condition_ids: np.ndarray, n_conditions: int, **options: Any
) -> ConditionMoments:
    """The moments of all conditions as one block; `options` are those of :func:`moment_blocks`."""
    (moments,) = moment_blocks(cells, condition_ids, n_conditions, **options)
    return moments


@contextlib.contextmanager
def processes(workers: int) -> Iterator[ProcessPoolExecutor | None]:
    """Processes that share passes, or none (in a daemonic process, which may start no others)."""
    if workers <= 1 or multiprocessing.current_process().daemon:
        yield None
        return
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


def _task(source: MemoryRows | CellMatrix, ids: np.ndarray, chunks: list[np.ndarray], centre: Centre | None) -> tuple:
    """What a worker needs; of a matrix in memory only its own rows travel."""
    if isinstance(source, CellMatrix):
        return source, ids, chunks, centre
    rows, ends = np.concatenate(chunks), np.cumsum([len(part) for part in chunks])
    return MemoryRows(source.csr(rows)), ids[rows], np.split(np.arange(len(rows)), ends[:-1]), centre


def _share_moments(task: tuple) -> tuple[np.ndarray, ConditionMoments]:
    """In a worker: moments of its chunks, for the conditions it has seen."""
    source, ids, chunks, centre = task
    present = np.unique(ids[np.concatenate(chunks)])
    part = ConditionMoments(len(present), source.shape[1], centre)
    for rows in chunks:
        part.update(source.csr(rows), np.searchsorted(present, ids[rows]))
    return present, part


def _shares(chunks: list[np.ndarray], lengths: np.ndarray, workers: int) -> list[list[np.ndarray]]:
    """Chunks in runs of about equal cost, at most one per worker."""
    if workers <= 1 or len(chunks) < 2:
        return [chunks]
    # runs of neighbours: chunks are ordered by condition, so few conditions are in two shares
    cost = np.cumsum([int(lengths[rows].sum()) + 1 for rows in chunks])
    owner = np.minimum((cost - 1) * workers // cost[-1], workers - 1)
    runs = [[chunks[i] for i in np.flatnonzero(owner == worker)] for worker in range(workers)]
    return [run for run in runs if run]
