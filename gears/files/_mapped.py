"""Large arrays in mapped files: written, used in pieces whose pages are released, and checked to fit together."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from scipy import sparse

PIECE = 1 << 22
"""Values of a piece."""
BLOCK = 1 << 23
"""Values of a block of rows that is worked on in memory."""
LARGE = 1 << 28
"""Pages of mapped files of at least this many bytes are released after use."""
CSR_ARRAYS = ("data", "indices", "indptr")
REMEDY = "the matrix is damaged or was put together wrongly; restore it or write it again"


def release(*arrays: np.ndarray | None) -> None:
    """Release the pages of large files that arrays are mapped from for reading; they are read again when needed."""
    # the system would release them when memory gets scarce, but until then they count as memory of the process
    for array in arrays:
        owner: Any = array
        while owner is not None and not isinstance(owner, np.memmap):  # views of views of a mapped file
            owner = getattr(owner, "base", None)
        mapping = None if owner is None or owner.mode != "r" else owner._mmap  # type: ignore[attr-defined]
        if isinstance(mapping, mmap.mmap) and len(mapping) >= LARGE and hasattr(mmap, "MADV_DONTNEED"):
            mapping.madvise(mmap.MADV_DONTNEED)


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


def taken(values: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """`values[codes]`, block by block: NumPy brings all indices to 8 bytes each first."""
    out = np.empty(len(codes), dtype=values.dtype)
    for rows in row_blocks(len(codes), 64):
        out[rows] = values[codes[rows]]
    return out


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


def check_bounds(what: object, bounds: Any, n_rows: int, n_values: int) -> None:
    """Raise ValueError unless row bounds (of CSC of columns), whole numbers, rise from 0 and lie within the values."""
    bounds = np.asarray(bounds)
    if bounds.dtype.kind not in "iu" or bounds.shape != (n_rows + 1,):
        problem = f"has {bounds.dtype} row bounds, shape {bounds.shape}, expected {n_rows + 1} whole numbers"
    elif bounds[0] != 0 or (bounds[1:] < bounds[:-1]).any():
        problem = "has row bounds that do not rise from 0"
    elif bounds[-1] > n_values:
        problem = f"has row bounds up to {bounds[-1]} for {n_values} stored values"
    else:
        return
    msg = f"{what} {problem}: {REMEDY}"
    raise ValueError(msg)


def check_numbers(what: object, indices: Any, n_columns: int) -> None:
    """Raise ValueError for column numbers (``indices``) outside of the matrix, with the smallest and the largest."""
    indices = np.asarray(indices)
    if indices.dtype.kind not in "iu" or indices.ndim != 1:
        msg = f"{what} has {indices.dtype} column numbers of shape {indices.shape}: {REMEDY}"
        raise ValueError(msg)
    ends = [(int(piece.min()), int(piece.max())) for piece in pieces(indices)] or [(0, -1)]
    low, high = min(low for low, _ in ends), max(high for _, high in ends)
    if low < 0 or high >= n_columns:
        msg = f"{what} has column numbers from {low} to {high} for {n_columns} columns: {REMEDY}"
        raise ValueError(msg)


def compressed_arrays(prefix: str, matrix: Any) -> dict[str, np.ndarray]:
    """The arrays of a CSR matrix for a file, by names that begin with the prefix."""
    return {f"{prefix}{name}": getattr(matrix, name) for name in CSR_ARRAYS}


def compressed_of(
    what: str, arrays: Mapping[str, np.ndarray], prefix: str, shape: tuple[int, int]
) -> sparse.csr_matrix:
    """The CSR matrix of :func:`compressed_arrays`; ValueError where its arrays do not fit together."""
    from scipy import sparse

    matrix = sparse.csr_matrix(tuple(arrays[f"{prefix}{name}"] for name in CSR_ARRAYS), shape=shape)
    check_compressed(what, matrix)
    return matrix


def check_compressed(what: object, matrix: Any) -> None:
    """Raise ValueError for a CSR or CSC matrix whose arrays do not fit together; others are not checked."""
    if getattr(matrix, "format", None) not in ("csr", "csc") or not hasattr(matrix, "indptr"):
        return
    n_rows, n_columns = matrix.shape if matrix.format == "csr" else matrix.shape[::-1]
    check_bounds(what, matrix.indptr, n_rows, min(len(matrix.data), len(matrix.indices)))
    check_numbers(what, matrix.indices[: matrix.indptr[-1]], n_columns)
