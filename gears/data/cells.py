"""The cells of a prepared screen: a CSR matrix in memory-mapped files."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

ROWS_PER_CHUNK = 4096


class CellMatrix:
    """Log-normalised expression, (N, G) float32, read from disk as it is needed.

    Processes that open the same folder share the memory. An object is cheap to
    send to another process: only the folder goes along.

    Parameters
    ----------
    folder
        Holds ``data.npy``, ``indices.npy``, ``indptr.npy``.
    n_genes
        G.
    kept
        Rows of the files that make up this matrix, in order; all by default.
    """

    def __init__(self, folder: Path, n_genes: int, kept: np.ndarray | None = None) -> None:
        self.folder = Path(folder)
        self._n_genes = n_genes
        self._kept = kept

    @staticmethod
    def write(folder: Path, matrix: sparse.csr_matrix) -> None:
        """Write a canonical CSR matrix into `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / "data.npy", matrix.data.astype(np.float32, copy=False))
        np.save(folder / "indices.npy", matrix.indices.astype(np.int32, copy=False))
        np.save(folder / "indptr.npy", matrix.indptr.astype(np.int64, copy=False))

    @cached_property
    def _arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        data, indices, indptr = (
            map_array(self.folder / f"{name}.npy") for name in ("data", "indices", "indptr")
        )
        return data, indices, indptr

    def open(self) -> None:
        """Map the files now rather than at first use."""
        _ = self._arrays

    @property
    def shape(self) -> tuple[int, int]:
        """(N, G)."""
        n_cells = len(self._arrays[2]) - 1 if self._kept is None else len(self._kept)
        return n_cells, self._n_genes

    sequential = False

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
        data, indices, indptr = self._arrays
        rows = np.asarray(ids, dtype=np.int64)
        if self._kept is not None:
            rows = self._kept[rows]
        starts = indptr[rows]
        lengths = indptr[rows + 1] - starts
        ends = np.cumsum(lengths)
        total = int(ends[-1]) if len(ends) else 0
        at = np.repeat(starts - (ends - lengths), lengths) + np.arange(total)
        return data[at], indices[at], lengths

    def rows(self, ids: Any) -> np.ndarray:
        """Expression of the given cells.

        Parameters
        ----------
        ids
            (B,) cell numbers, any order, repeats allowed.

        Returns
        -------
        np.ndarray
            (B, G) float32.
        """
        values, genes, lengths = self._gather(ids)
        dense = np.zeros((len(lengths), self._n_genes), dtype=np.float32)
        dense[np.repeat(np.arange(len(lengths)), lengths), genes] = values
        return dense

    def csr(self, ids: Any = None) -> sparse.csr_matrix:
        """The given cells (all by default) as CSR, (B, G) float32, in memory of its own."""
        if ids is None and self._kept is None:
            data, indices, indptr = self._arrays
            return sparse.csr_matrix((data.copy(), indices.copy(), indptr.copy()), shape=self.shape)
        values, genes, lengths = self._gather(np.arange(len(self)) if ids is None else ids)
        indptr = np.concatenate(([0], np.cumsum(lengths)))
        return sparse.csr_matrix((values, genes, indptr), shape=(len(lengths), self._n_genes))

    def mean(self, ids: Any) -> np.ndarray:
        """Mean expression over the given cells, (G,) float64; NaN for no cells."""
        ids = np.asarray(ids, dtype=np.int64)
        if not len(ids):
            return np.full(self._n_genes, np.nan)
        total = np.zeros(self._n_genes)
        for start in range(0, len(ids), ROWS_PER_CHUNK):
            values, genes, _ = self._gather(ids[start : start + ROWS_PER_CHUNK])
            total += np.bincount(genes, weights=values, minlength=self._n_genes)
        return total / len(ids)


def map_array(path: Path) -> np.ndarray:
    """A ``.npy`` file as a read-only array in mapped memory.

    Raises
    ------
    ValueError
        If the file is damaged or holds objects.
    """
    try:
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except FileNotFoundError:
        raise
    except Exception as error:
        msg = f"{path} cannot be read ({error}); it may be damaged: prepare the screen anew"
        raise ValueError(msg) from error
