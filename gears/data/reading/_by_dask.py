"""Screens whose values are dask arrays, with all of their cells: for what moments do not do (``objective="cells"``).

Blocks of cells are read and brought to CSR by dask (its threads, or the workers of the user's ``distributed.Client``)
and written here, in order, into a file that is mapped into memory: everything after reading is as for other files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from gears.core._progress import followed
from gears.data.reading._matrix import RAW, as_csr, layers_of
from gears.data.screen._cells import CellMatrix
from gears.files._atomic import scratch_folder

if TYPE_CHECKING:
    from anndata import AnnData

BLOCKS = 16
"""Blocks that are computed at a time: enough for the cores of some machines, and few to hold here as CSR."""


def from_dask(adata: AnnData, layer: str | None, near: Path) -> AnnData:
    """The screen with the values of `layer` (None: of X) from dask, mapped from a file in the folder `near`.

    Other dask arrays among X, the layers and ``adata.raw`` are there by name and hold nothing. A screen without dask
    arrays is returned unchanged.
    """
    holder = adata._adata_ref if adata.is_view else adata  # a view would copy its values
    raw = None if adata.raw is None else adata.raw.X
    if not any(map(is_dask, (holder.X, *layers_of(holder).values(), raw))):
        return adata
    from anndata import AnnData

    is_raw = layer == RAW and RAW not in adata.layers

    def values(matrix: Any, is_used: bool) -> Any:
        if not is_dask(matrix):
            return matrix
        return _brought(matrix, near) if is_used else sparse.csr_matrix(matrix.shape, dtype=np.float32)

    return AnnData(
        X=values(adata.X, layer is None),
        obs=in_memory(adata.obs),
        var=in_memory(adata.var),
        layers={name: values(matrix, name == layer) for name, matrix in layers_of(adata).items()},
        raw=None if raw is None else {"X": values(raw, is_raw), "var": in_memory(adata.raw.var)},
    )


def is_dask(values: Any) -> bool:
    """Whether values are a dask array, or a view of one in an AnnData (dask need not be installed)."""
    return any(base.__module__.startswith("dask.") for base in type(values).__mro__)


def in_memory(table: Any) -> Any:
    """A table of annotations, which :func:`anndata.experimental.read_lazy` leaves in the file."""
    return table.to_memory() if hasattr(table, "to_memory") else table


def _brought(array: Any, near: Path) -> sparse.csr_matrix:
    import dask

    n_cells, n_genes = array.shape
    if len(array.chunks[1]) > 1:  # stored by columns
        array = array.rechunk({0: "auto", 1: -1})
    blocks = [dask.delayed(as_csr)(block) for block in array.to_delayed().ravel()]

    def computed() -> Iterator[sparse.csr_matrix]:
        for first in range(0, len(blocks), BLOCKS):
            yield from dask.compute(*blocks[first : first + BLOCKS])

    with scratch_folder(near) as folder:
        followed_blocks = followed(computed(), n_cells, "reading cells", "cells", lambda rows: rows.shape[0])
        CellMatrix.write(folder, followed_blocks)
        return CellMatrix(folder, n_genes).mapped()


@contextlib.contextmanager
def cluster(address: Any) -> Iterator[Any]:
    """Make the dask scheduler at an address ("tcp://host:8786") the active one; its client.

    A client instead of an address is used unchanged, and stays open.

    ModuleNotFoundError where the package distributed is missing, ValueError or OSError where there is no scheduler.
    """
    if not isinstance(address, str):
        yield address
        return
    try:
        from distributed import Client
    except ModuleNotFoundError as error:
        msg = "a dask scheduler needs the package distributed; install gears-perturb[dask]"
        raise ModuleNotFoundError(msg) from error
    try:
        client = Client(address)
    except OSError as error:
        msg = f"no dask scheduler answers at {address}; start one (`dask scheduler`) or check the address"
        raise ConnectionError(msg) from error
    with client:
        yield client
