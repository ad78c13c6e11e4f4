"""The cells of a prepared screen: a CSR matrix in memory-mapped files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from gears.files._mapped import TableWriter, check_bounds, check_numbers, release
from gears.files._paths import reading

_MOST_VALUES, _FEWEST_CELLS, _MOST_CELLS = 20_000_000, 500, 5000
"""Of drawn control cells: cells x genes held in memory as float32."""


class CellMatrix:
    """Log-normalised expression, (N, G) float32, read from disk as it is needed.

    Processes that open the same folder share the memory. An object is cheap to send to another process: only the
    folder goes along. `folder` holds ``data.npy``, ``indices.npy``, ``indptr.npy``; `kept` are the rows of the files
    that make up this matrix, in order, by default all.
    """

    def __init__(self, folder: Path, n_genes: int, kept: np.ndarray | None = None) -> None:
        self.folder = Path(folder)
        self._n_genes = n_genes
        self._kept = kept

    @staticmethod
    def write(folder: Path, chunks: Iterable[sparse.csr_matrix]) -> None:
        """Write canonical rows, some (n, G) after others, into `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        lengths = [np.zeros(1, dtype=np.int64)]
        with (
            TableWriter(folder / "data.npy", np.float32) as values,
            TableWriter(folder / "indices.npy", np.int32) as genes,
        ):
            for rows in chunks:
                values.add(rows.data)
                genes.add(rows.indices)
                lengths.append(np.diff(rows.indptr))
        np.save(folder / "indptr.npy", np.cumsum(np.concatenate(lengths), dtype=np.int64))

    @cached_property
    def _arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        names = ("data", "indices", "indptr")
        data, indices, indptr = (map_array(self.folder / f"{name}.npy") for name in names)
        for array in (data, indices):
            check_bounds(self.folder / "indptr.npy", indptr, len(indptr) - 1, len(array))
        return data, indices, indptr

    def open(self) -> None:
        """Map the files now rather than at first use."""
        _ = self._arrays

    @property
    def shape(self) -> tuple[int, int]:
        """(N, G)."""
        n_cells = len(self._arrays[2]) - 1 if self._kept is None else len(self._kept)
        return n_cells, self._n_genes

    @property
    def row_lengths(self) -> np.ndarray:
        """Stored values of each row, (N,)."""
        lengths = np.diff(self._arrays[2])
        return lengths if self._kept is None else lengths[self._kept]

    def __len__(self) -> int:
        return self.shape[0]

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "_n_genes": self._n_genes, "_kept": self._kept}

    def _gather(self, ids: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Values and gene indices of the rows one after another, and the rows' lengths."""
        rows = np.asarray(ids, dtype=np.int64)
        values, genes, lengths = gather_rows(*self._arrays, rows if self._kept is None else self._kept[rows])
        check_numbers(self.folder / "indices.npy", genes, self._n_genes)
        return values, genes, lengths

    def rows(self, ids: Any) -> np.ndarray:
        """Expression of the given cells, (B,) numbers in any order, repeats allowed: (B, G) float32."""
        values, genes, lengths = self._gather(ids)
        dense = np.zeros((len(lengths), self._n_genes), dtype=np.float32)
        dense[np.repeat(np.arange(len(lengths)), lengths), genes] = values
        return dense

    def csr(self, ids: Any = None) -> sparse.csr_matrix:
        """The given cells (all by default) as CSR, (B, G) float32, in separate memory."""
        if ids is None and self._kept is None:
            data, indices, indptr = self._arrays
            check_numbers(self.folder / "indices.npy", indices, self._n_genes)
            return sparse.csr_matrix((data.copy(), indices.copy(), indptr.copy()), shape=self.shape)
        values, genes, lengths = self._gather(np.arange(len(self)) if ids is None else ids)
        indptr = np.concatenate(([0], np.cumsum(lengths)))
        return sparse.csr_matrix((values, genes, indptr), shape=(len(lengths), self._n_genes))

    def part(self, rows: np.ndarray) -> CellMatrix:
        """Some of the rows, as a matrix of the same files."""
        return CellMatrix(self.folder, self._n_genes, rows if self._kept is None else self._kept[rows])

    def mapped(self) -> sparse.csr_matrix:
        """All cells of the files as CSR whose arrays are the mapped files: to be read only."""
        data, indices, indptr = self._arrays
        return sparse.csr_matrix((data, indices, indptr), shape=(len(indptr) - 1, self._n_genes), copy=False)


def gather_rows(
    data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values and columns of rows of a CSR matrix, and the rows' lengths, without the copy of all indices of scipy."""
    starts = indptr[rows].astype(np.int64)
    lengths = indptr[rows + 1] - starts
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    at = np.repeat(starts - (ends - lengths), lengths) + np.arange(total)
    taken = data[at], indices[at], lengths
    release(data, indices)
    return taken


def map_array(path: Path) -> np.ndarray:
    """A ``.npy`` file as a read-only array in mapped memory; ValueError if it is damaged or holds objects."""
    with reading(path, "an array", "it may be damaged: prepare the screen again"):
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))


def drawn_rows(groups: Sequence[np.ndarray], n_genes: int) -> list[np.ndarray]:
    """A fixed draw of very many control cells, the same share of each group's rows; all of few."""
    n_all = sum(map(len, groups))
    n_drawn = min(n_all, max(_FEWEST_CELLS, min(_MOST_CELLS, _MOST_VALUES // max(1, n_genes))))
    draw = np.random.Generator(np.random.Philox(key=n_all))
    sizes = [max(1, round(len(rows) * n_drawn / n_all)) for rows in groups]
    return [np.sort(draw.permutation(rows)[:size]) for rows, size in zip(groups, sizes, strict=True)]
