"""Passes over all cells of a screen: in memory, from files, by several processes, or by dask."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from scipy import sparse

from gears.data.cells import gather_rows
from gears.data.moments import CHUNK_VALUES, ConditionMoments, SignCentre, condition_chunks
from gears.data.reading import StoredMatrix, as_csr
from gears.progress import followed

_DASK_BLOCKS = 16
"""Blocks whose moments are held at once while a dask array is gone through."""


class RowSource(Protocol):
    """Rows of an (N, G) matrix, wherever they are."""

    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def sequential(self) -> bool:
        """Whether rows are read well in their own order only (files)."""
        ...

    @property
    def row_lengths(self) -> np.ndarray: ...
    def csr(self, rows: np.ndarray) -> sparse.csr_matrix: ...


class MemoryRows:
    """Rows of a CSR matrix in memory."""

    sequential = False

    def __init__(self, matrix: sparse.csr_matrix) -> None:
        self.matrix, self.shape = matrix, matrix.shape

    @property
    def row_lengths(self) -> np.ndarray:
        """Stored values of each row, (N,)."""
        return np.diff(self.matrix.indptr)

    def csr(self, rows: np.ndarray) -> sparse.csr_matrix:
        """The given rows."""
        matrix, rows = self.matrix, np.asarray(rows, dtype=np.int64)
        values, genes, lengths = gather_rows(matrix.data, matrix.indices, matrix.indptr, rows)
        bounds = np.concatenate(([0], np.cumsum(lengths)))
        return sparse.csr_matrix((values, genes, bounds), shape=(len(rows), self.shape[1]))


class StackedRows:
    """Rows of several matrices over the same genes, one after another: a screen in several files.

    Raises
    ------
    ValueError
        If their numbers of genes differ.
    """

    def __init__(self, sources: Sequence[RowSource]) -> None:
        self.sources = list(sources)
        n_genes = {source.shape[1] for source in self.sources}
        if len(n_genes) != 1:
            msg = f"matrices of one pass must have the same genes; found {sorted(n_genes)} genes"
            raise ValueError(msg)
        self._first = np.concatenate(([0], np.cumsum([source.shape[0] for source in self.sources])))
        self.shape = int(self._first[-1]), n_genes.pop()
        self.sequential = any(source.sequential for source in self.sources)

    @property
    def row_lengths(self) -> np.ndarray:
        """Stored values of each row, (N,)."""
        return np.concatenate([source.row_lengths for source in self.sources])

    def csr(self, rows: np.ndarray) -> sparse.csr_matrix:
        """The given rows, which ascend where a source is sequential."""
        which = np.searchsorted(self._first, rows, side="right") - 1
        parts = [self.sources[i].csr(rows[which == i] - self._first[i]) for i in np.unique(which).tolist()]
        stacked = sparse.csr_matrix(sparse.vstack(parts, format="csr"))
        return (
            stacked if (np.diff(which) >= 0).all() else stacked[np.argsort(np.argsort(which, kind="stable"))]
        )


def row_source(matrix: Any) -> RowSource:
    """Any kind of expression matrix as rows: CSR, dense, mapped cells, X of a backed AnnData, a list of these."""
    if isinstance(matrix, list | tuple):
        return StackedRows([row_source(part) for part in matrix])
    if hasattr(matrix, "row_lengths"):
        return matrix
    stored = StoredMatrix.of(matrix)
    return stored if stored is not None else MemoryRows(as_csr(matrix))


def moment_blocks(
    matrix: Any,
    condition_ids: np.ndarray,
    n_conditions: int,
    *,
    control_id: int,
    most_values: int,
    chunk_values: int = CHUNK_VALUES,
    workers: int = 1,
) -> Iterator[ConditionMoments]:
    """The moments of consecutive conditions, block by block, of cells whose rows are at hand in any order.

    Parameters
    ----------
    matrix, condition_ids, n_conditions, chunk_values, workers
        As for :func:`condition_moments`.
    control_id
        Cells above and below this condition's mean are counted.
    most_values
        Conditions x genes of a block, at least one condition.
    """
    source, ids = row_source(matrix), np.asarray(condition_ids)
    step = max(1, most_values // max(1, source.shape[1]))
    with _pool(workers) as pool:
        control = _Pass(source, ids - control_id, 1, chunk_values, workers, pool)
        centre = SignCentre.of(control.run(np.flatnonzero(ids == control_id), None), 0)
        for first in range(0, n_conditions, step):
            number = min(step, n_conditions - first)
            work = _Pass(source, ids - first, number, chunk_values, workers, pool)
            # no name keeps a block while the next is made
            yield work.run(np.flatnonzero((ids >= first) & (ids < first + number)), centre)


@contextlib.contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor | None]:
    """Processes that share passes, or none (in a daemonic process, which may start no others)."""
    if workers <= 1 or multiprocessing.current_process().daemon:
        yield None
        return
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


def condition_moments(
    matrix: Any,
    condition_ids: np.ndarray,
    n_conditions: int,
    *,
    control_id: int | None = None,
    centre: SignCentre | None = None,
    chunk_values: int = CHUNK_VALUES,
    workers: int = 1,
) -> ConditionMoments:
    """Moments of all cells of a matrix, chunk by chunk: the same for any chunks and processes.

    Parameters
    ----------
    matrix
        (N, G) expression: sparse or dense in memory, a
        :class:`gears.data.cells.CellMatrix`, a :class:`gears.data.reading.StoredMatrix` or the
        X of a backed AnnData (read in chunks of rows), a list of these (a screen in several
        files), or a dask array (the scheduler in use does the pass).
    condition_ids
        (N,) condition of each cell.
    n_conditions
        C.
    control_id
        Count cells above and below this condition's mean, found by a pass over its cells first.
    centre
        The same about a mean that is known, as for one of several files.
    chunk_values
        Stored values that one chunk may hold.
    workers
        Processes that share the pass (started anew; a script needs its
        ``if __name__ == "__main__":`` guard).

    Raises
    ------
    ValueError
        If there is not one id per row.
    """
    condition_ids = np.asarray(condition_ids)
    is_dask = type(matrix).__module__.split(".")[0] == "dask"
    source = matrix if is_dask else row_source(matrix)
    if len(condition_ids) != source.shape[0]:
        msg = f"{source.shape[0]} cells have {len(condition_ids)} condition ids; one per cell is needed"
        raise ValueError(msg)
    if is_dask:
        return _by_dask(matrix, condition_ids, n_conditions, control_id, centre, chunk_values)
    with _pool(workers) as pool:
        work = _Pass(source, condition_ids, n_conditions, chunk_values, workers, pool)
        if control_id is not None and centre is None:
            centre = SignCentre.of(work.run(np.flatnonzero(condition_ids == control_id), None), control_id)
        return work.run(np.arange(len(condition_ids)), centre)


@dataclass
class _Pass:
    """A pass over cells, by this process or by those of a pool."""

    source: RowSource
    ids: np.ndarray
    n_conditions: int
    chunk_values: int
    workers: int = 1
    pool: ProcessPoolExecutor | None = None

    def run(self, cells: np.ndarray, centre: SignCentre | None) -> ConditionMoments:
        """Moments of some cells (ascending numbers)."""
        chunks = list(_chunks(self.source, self.ids, cells, self.chunk_values))
        total = ConditionMoments(self.n_conditions, self.source.shape[1], centre)
        shares = _shares(chunks, self.source.row_lengths, self.workers)
        if self.pool is None or len(shares) < 2:
            for rows in followed(chunks, len(cells), "reading cells", "cells", len):
                _add(total, self.source.csr(rows), self.ids[rows], self.chunk_values)
            return total
        parts = self.pool.map(_share_moments, [self._task(share, centre) for share in shares])
        for present, part in followed(parts, len(shares), "reading cells", "shares"):
            total.merge_conditions(present, part)
        return total

    def _task(self, share: list[np.ndarray], centre: SignCentre | None) -> tuple:
        """What a worker needs; of a matrix in memory only its own rows travel."""
        if not isinstance(self.source, MemoryRows):
            return self.source, self.ids, share, centre, self.chunk_values
        rows, ends = np.concatenate(share), np.cumsum([len(part) for part in share])
        local = np.split(np.arange(len(rows)), ends[:-1])
        return MemoryRows(self.source.csr(rows)), self.ids[rows], local, centre, self.chunk_values


def _share_moments(task: tuple) -> tuple[np.ndarray, ConditionMoments]:
    """In a worker: moments of its chunks, for the conditions it has seen."""
    source, ids, chunks, centre, chunk_values = task
    present = np.unique(ids[np.concatenate(chunks)])
    part = ConditionMoments(len(present), source.shape[1], centre)
    for rows in chunks:
        _add(part, source.csr(rows), np.searchsorted(present, ids[rows]), chunk_values)
    return present, part


def _add(moments: ConditionMoments, chunk: sparse.csr_matrix, ids: np.ndarray, chunk_values: int) -> None:
    """Add rows in pieces that touch few conditions each."""
    for rows in condition_chunks(np.diff(chunk.indptr), ids, chunk.shape[1], chunk_values):
        whole = len(rows) == len(ids) and np.array_equal(rows, np.arange(len(ids)))
        moments.update(chunk if whole else chunk[rows], ids[rows])


def _chunks(source: RowSource, ids: np.ndarray, cells: np.ndarray, chunk_values: int) -> Iterator[np.ndarray]:
    """Chunks of cell numbers: by condition where any row is at hand, else in the order of the file."""
    lengths = source.row_lengths[cells]
    if not source.sequential:
        for rows in condition_chunks(lengths, ids[cells], source.shape[1], chunk_values):
            yield cells[rows]
        return
    # what is read is the whole span from a chunk's first cell to its last
    which = np.cumsum(np.maximum(source.row_lengths, 1))[cells] // chunk_values
    yield from (part for part in np.split(cells, np.flatnonzero(np.diff(which)) + 1) if len(part))


def _shares(chunks: list[np.ndarray], lengths: np.ndarray, workers: int) -> list[list[np.ndarray]]:
    """Chunks in runs of about equal cost, at most one per worker."""
    if workers <= 1 or len(chunks) < 2:
        return [chunks]
    cost = np.cumsum([int(lengths[rows].sum()) + 1 for rows in chunks])
    owner = np.minimum((cost - 1) * workers // cost[-1], workers - 1)
    runs = [[chunks[i] for i in np.flatnonzero(owner == worker)] for worker in range(workers)]
    return [run for run in runs if run]


def _by_dask(
    matrix: Any,
    ids: np.ndarray,
    n_conditions: int,
    control_id: int | None,
    centre: SignCentre | None,
    chunk_values: int,
) -> ConditionMoments:
    """The same over the row blocks of a dask array, by whatever scheduler is in use."""
    import dask

    matrix = matrix.rechunk({1: -1})
    starts = np.concatenate(([0], np.cumsum(matrix.chunks[0]))).astype(np.int64)
    blocks = matrix.to_delayed().ravel()

    def one_pass(wanted: np.ndarray, centre: SignCentre | None) -> ConditionMoments:
        total = ConditionMoments(n_conditions, matrix.shape[1], centre)
        parts = []
        for block, start, stop in zip(blocks, starts[:-1], starts[1:], strict=True):
            rows = np.flatnonzero(wanted[start:stop])
            if len(rows):
                parts.append(
                    dask.delayed(_block_moments)(block, rows, ids[start:stop][rows], centre, chunk_values)
                )
        for first in range(0, len(parts), _DASK_BLOCKS):
            for present, part in dask.compute(*parts[first : first + _DASK_BLOCKS]):
                total.merge_conditions(present, part)
        return total

    if control_id is not None and centre is None:
        centre = SignCentre.of(one_pass(ids == control_id, None), control_id)
    return one_pass(np.ones(len(ids), dtype=bool), centre)


def _block_moments(
    block: Any, rows: np.ndarray, ids: np.ndarray, centre: SignCentre | None, chunk_values: int
) -> tuple[np.ndarray, ConditionMoments]:
    """Moments of some rows of a block in memory."""
    present, local = np.unique(ids, return_inverse=True)
    part = ConditionMoments(len(present), block.shape[1], centre)
    _add(part, as_csr(block)[rows], local, chunk_values)
    return present, part
