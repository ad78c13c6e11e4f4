"""Iterate over large memory-mapped arrays in pieces, and release the pages of each piece after use."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

import numpy as np

PIECE = 1 << 22
"""Values of a piece."""
BLOCK = 1 << 23
"""Values of a block of rows that is worked on in memory."""
LARGE = 1 << 28
"""Pages of mapped files of at least this many bytes are released after use."""


def release(*arrays: np.ndarray | None) -> None:
    """Release the pages of large files that arrays are mapped from; they are read again when needed.

    The system would release them when memory gets scarce, but until then they count as memory of the process. Arrays in
    memory, small arrays, and arrays whose pages could hold changes are unaffected.
    """
    for array in arrays:
        mapping = _mapping(array)
        if mapping is not None and len(mapping) >= LARGE and hasattr(mmap, "MADV_DONTNEED"):
            mapping.madvise(mmap.MADV_DONTNEED)


def _mapping(array: object) -> mmap.mmap | None:
    """The map of a file that an array is a view of, where it is mapped for reading only."""
    while array is not None:
        if isinstance(array, np.memmap):
            inner = array._mmap  # type: ignore[attr-defined]
            return inner if array.mode == "r" and isinstance(inner, mmap.mmap) else None
        array = getattr(array, "base", None)
    return None


def pieces(array: np.ndarray) -> Iterator[np.ndarray]:
    """Consecutive pieces of an array of :data:`PIECE` values each; the pages of each are released after use."""
    step = max(1, PIECE // max(1, int(np.prod(array.shape[1:]))))
    for start in range(0, len(array), step):
        yield array[start : start + step]
        release(array)


def row_blocks(n_rows: int, n_columns: int) -> Iterator[slice]:
    """Rows of a table in blocks of about :data:`BLOCK` values."""
    step = max(1, BLOCK // max(n_columns, 1))
    for start in range(0, n_rows, step):
        yield slice(start, min(start + step, n_rows))


class TableWriter:
    """Writes a ``.npy`` file rows after rows; it is complete when the block ends. `row_shape` is that of one row."""

    def __init__(self, path: Path, dtype: np.dtype | type, row_shape: tuple[int, ...] = ()) -> None:
        self.path, self.dtype, self.row_shape = path, np.dtype(dtype), row_shape
        self._n_rows = 0

    def __enter__(self) -> TableWriter:
        self._file = self.path.open("wb")
        self._write_header()
        return self

    def add(self, rows: np.ndarray) -> None:
        """Append rows, piece by piece."""
        for piece in pieces(rows):
            self._file.write(np.ascontiguousarray(piece, dtype=self.dtype).data)
        self._n_rows += len(rows)

    def __exit__(self, *_: object) -> None:
        with self._file:
            self._file.seek(0)
            self._write_header()

    def _write_header(self) -> None:
        # numpy pads the header so that it can be rewritten for any number of rows
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": (self._n_rows, *self.row_shape)}
        np.lib.format.write_array_header_1_0(self._file, header)
