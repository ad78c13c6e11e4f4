"""A screen's file as preparing needs it: annotations and one matrix, which stays on disk where it is large."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from gears.data.cells import CellMatrix, CellWriter
from gears.data.moments import CHUNK_VALUES
from gears.data.opening import kind_of, open_screen
from gears.data.reading import StoredMatrix
from gears.files import scratch_folder

if TYPE_CHECKING:
    from anndata import AnnData

logger = logging.getLogger(__name__)

MOST_IN_MEMORY = 1 << 26
"""Stored values of a matrix that are read into memory; a larger one is mapped from a file."""


def open_lean(path: Path, layer: str | None, near: Path, *, most_in_memory: int | None = None) -> AnnData:
    """A screen's file with its annotations and the wanted values, nothing else.

    Of an h5ad file other layers, embeddings and ``uns`` are not read: other layers are there
    by name and hold nothing. A matrix of more than `most_in_memory` values is brought chunk by
    chunk into a file that is mapped into memory (and has no name any more), so that preparing
    it holds no second copy and the system can let go of its pages. Other kinds of files are read whole.

    Parameters
    ----------
    path
        Any file or folder that :func:`gears.data.opening.open_screen` reads.
    layer
        Where the values are; X when None.
    near
        Folder for the temporary file.
    most_in_memory
        :data:`MOST_IN_MEMORY` by default.

    Raises
    ------
    FileNotFoundError, ValueError
        If there is nothing, or nothing that can be read.
    """
    limit = MOST_IN_MEMORY if most_in_memory is None else most_in_memory
    lean = _lean(path, layer, near, limit)
    return open_screen(path) if lean is None else lean


def in_reach(adata: AnnData, near: Path, *, most_in_memory: int | None = None) -> AnnData:
    """An AnnData whose values can be used like those in memory; one that is backed by a file is treated as the file.

    Raises
    ------
    TypeError
        If it is no AnnData.
    """
    from anndata import AnnData

    if not isinstance(adata, AnnData):
        msg = f"expected an AnnData object, found {type(adata).__name__}; to read a file use load(data_path=...)"
        raise TypeError(msg)
    if not adata.isbacked:
        return adata
    stored = None if adata.is_view else _stored(adata.X)
    if stored is None:
        return adata.to_memory()
    limit = MOST_IN_MEMORY if most_in_memory is None else most_in_memory
    return AnnData(X=_brought(stored, near, limit), obs=adata.obs, var=adata.var, layers=dict(adata.layers))


def _stored(matrix: Any) -> StoredMatrix | None:
    """Rows of a stored matrix; None where it is kept in a way that gives no rows (by columns)."""
    try:
        return StoredMatrix.of(matrix)
    except ValueError:
        return None


def _lean(path: Path, layer: str | None, near: Path, limit: int) -> AnnData | None:
    """Annotations and values of an h5ad file of the present layout; None for anything else."""
    if kind_of(path) != "h5ad":
        return None
    import h5py
    from anndata import AnnData
    from anndata.io import read_elem

    try:
        with h5py.File(path, "r") as file:
            obs, var = read_elem(file["obs"]), read_elem(file["var"])
            names = sorted(file["layers"]) if "layers" in file else []
            stored = StoredMatrix(path, "X" if layer is None else f"layers/{layer}")
        if stored.shape != (len(obs), len(var)):
            return None
        matrix = _brought(stored, near, limit)
    except (KeyError, ValueError, OSError, TypeError) as error:
        logger.debug("%s is read whole (%s)", path, error)
        return None
    nothing = sparse.csr_matrix(matrix.shape, dtype=np.float32)
    layers = {name: matrix if name == layer else nothing for name in names}
    return AnnData(X=matrix if layer is None else nothing, obs=obs, var=var, layers=layers)


def _brought(stored: StoredMatrix, near: Path, limit: int) -> sparse.csr_matrix:
    """The whole matrix as CSR: in memory, or mapped from a file that loses its name at once."""
    n_rows = stored.shape[0]
    if int(stored.row_lengths.sum()) <= limit:
        return stored.csr(np.arange(n_rows)) if n_rows else sparse.csr_matrix(stored.shape, dtype=np.float32)
    with scratch_folder(near) as folder:
        with CellWriter(folder, stored.shape[1]) as writer:
            for rows in row_ranges(stored.row_lengths):
                writer.add(stored.csr(rows))
        return CellMatrix(folder, stored.shape[1]).mapped()


def row_ranges(lengths: np.ndarray, chunk_values: int = CHUNK_VALUES) -> Iterator[np.ndarray]:
    """Consecutive rows in chunks of about `chunk_values` stored values."""
    which = np.cumsum(np.maximum(lengths, 1)) // chunk_values
    yield from (
        rows for rows in np.split(np.arange(len(lengths)), np.flatnonzero(np.diff(which)) + 1) if len(rows)
    )
