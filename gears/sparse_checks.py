"""Whether the arrays of a compressed sparse matrix fit together: who uses others reads and writes beyond its memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from gears.mapped import pieces

REMEDY = "the matrix is damaged or was put together wrongly; restore it or make it anew"


def check_bounds(what: object, bounds: Any, n_rows: int, n_values: int) -> None:
    """Refuse row bounds (``indptr``) that are not one more than the rows, from 0 up, within the values.

    Parameters
    ----------
    what
        Begins the error: the file or the matrix.
    bounds
        (n_rows + 1,) whole numbers.
    n_rows, n_values
        Rows (of CSC: columns), and stored values (or their indices, whichever are fewer).

    Raises
    ------
    ValueError
        With what does not fit.
    """
    bounds = np.asarray(bounds)
    if bounds.dtype.kind not in "iu" or bounds.shape != (n_rows + 1,):
        words = f"has {bounds.dtype} row bounds of shape {bounds.shape}, expected {n_rows + 1} whole numbers"
    elif bounds[0] != 0 or (bounds[1:] < bounds[:-1]).any():
        words = "has row bounds that do not rise from 0"
    elif bounds[-1] > n_values:
        words = f"has row bounds up to {bounds[-1]} for {n_values} stored values"
    else:
        return
    msg = f"{what} {words}: {REMEDY}"
    raise ValueError(msg)


def check_numbers(what: object, indices: Any, n_columns: int) -> None:
    """Refuse column numbers (``indices``) that are no columns.

    Raises
    ------
    ValueError
        With the smallest and the largest.
    """
    indices = np.asarray(indices)
    if indices.dtype.kind not in "iu" or indices.ndim != 1:
        msg = f"{what} has {indices.dtype} column numbers of shape {indices.shape}: {REMEDY}"
        raise ValueError(msg)
    ends = [(int(piece.min()), int(piece.max())) for piece in pieces(indices)] or [(0, -1)]
    low, high = min(low for low, _ in ends), max(high for _, high in ends)
    if low < 0 or high >= n_columns:
        msg = f"{what} has column numbers from {low} to {high} for {n_columns} columns: {REMEDY}"
        raise ValueError(msg)


def check_compressed(what: object, matrix: Any) -> None:
    """Refuse a CSR or CSC matrix whose arrays do not fit together; anything else is left to others.

    Raises
    ------
    ValueError
        With what does not fit.
    """
    if getattr(matrix, "format", None) not in ("csr", "csc") or not hasattr(matrix, "indptr"):
        return
    n_rows, n_columns = matrix.shape if matrix.format == "csr" else matrix.shape[::-1]
    check_bounds(what, matrix.indptr, n_rows, min(len(matrix.data), len(matrix.indices)))
    check_numbers(what, matrix.indices[: matrix.indptr[-1]], n_columns)
