"""Screens read block by block: where the blocks of cells lie, and the annotations beside them.

Blocks are rows of matrices in h5ad files and zarr stores, chunks of a dask array, or rows of a matrix in memory. Who
reads a block (this process, another, a dask worker) opens the file, so that cells do not travel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from gears.core._messages import shorten
from gears.data.reading._by_dask import in_memory, is_dask
from gears.data.reading._matrix import as_csr, layers_of, values_of
from gears.data.reading._open import in_reach, kind_of, members_of, open_screen, put_together
from gears.data.screen._packs import stored_group
from gears.files._mapped import check_bounds, check_numbers
from gears.files._paths import user_path

if TYPE_CHECKING:
    from anndata import AnnData

BLOCK_VALUES = 1 << 24
"""Stored values of a block, on average."""
SPOTS, CELLS_OF_SPOT = 16, 25
"""Places of a screen, and cells of each, that are looked at before it is read whole."""


@dataclass(frozen=True)
class StoredBlock:
    """Rows `start` to before `stop` of a matrix of a file."""

    path: Path
    key: str
    start: int
    stop: int
    columns: np.ndarray | None = None  # genes in another order than the file's

    def csr(self) -> sparse.csr_matrix:
        """The rows, read in one go; ValueError if the arrays of the file do not fit together."""
        with stored_group(self.path) as group:
            stored = group[self.key]
            if hasattr(stored, "shape"):
                rows = as_csr(np.asarray(stored[self.start : self.stop]))
            else:
                bounds = np.asarray(stored["indptr"][self.start : self.stop + 1]).astype(np.int64)
                values, genes = (np.asarray(stored[name][bounds[0] : bounds[-1]]) for name in ("data", "indices"))
                where, n_genes = f"{self.path}: {self.key}", int(stored.attrs["shape"][1])
                check_bounds(where, bounds - bounds[0], self.stop - self.start, len(values))
                check_numbers(where, genes, n_genes)
                shape = (self.stop - self.start, n_genes)
                rows = as_csr(sparse.csr_matrix((values, genes, bounds - bounds[0]), shape=shape))
        return rows if self.columns is None else as_csr(rows[:, self.columns])


@dataclass(frozen=True)
class Blocks:
    """A screen as blocks of cells."""

    adata: AnnData  # annotations; its values are empty
    blocks: list[Any]  # a StoredBlock, a CSR matrix or a dask object that becomes one, in the order of the cells
    sizes: list[int]  # cells of each
    on_dask: bool = False  # whether dask makes the blocks

    def some(self) -> tuple[np.ndarray, sparse.csr_matrix]:
        """Numbers and values of some cells: all of few, else those at evenly spaced places."""
        ends = np.cumsum(self.sizes)
        n_cells = int(sum(self.sizes))
        if not n_cells:
            return np.zeros(0, dtype=np.int64), self.adata.X
        spots = np.linspace(0, max(0, n_cells - CELLS_OF_SPOT), SPOTS).astype(np.int64)
        cells = np.unique(np.minimum(spots[:, None] + np.arange(CELLS_OF_SPOT), n_cells - 1))
        if n_cells <= SPOTS * CELLS_OF_SPOT:
            cells = np.arange(n_cells)
        numbers, parts = np.searchsorted(ends, cells, side="right"), []
        for number in np.unique(numbers).tolist():
            rows = cells[numbers == number] - (ends[number] - self.sizes[number])
            block = self.blocks[number]
            if isinstance(block, StoredBlock):
                low, high = int(rows[0]), int(rows[-1])
                block = replace(block, start=block.start + low, stop=block.start + high + 1)
                rows = rows - low
            parts.append(block_values(block.compute() if hasattr(block, "compute") else block)[rows])
        return cells, as_csr(sparse.vstack(parts, format="csr"))


def block_values(block: Any) -> sparse.csr_matrix:
    """The cells of a block."""
    return block.csr() if isinstance(block, StoredBlock) else as_csr(block)


def blocks_of(source: AnnData | Path, layer: str | None, near: Path) -> Blocks:
    """Blocks of an AnnData (in memory, of a file, or of dask arrays), or of a file or folder; `near` for mapped files.

    A file of another kind than h5ad and zarr, or stored by columns, is read whole.
    """
    if isinstance(source, Path):
        return _of_path(source, layer) or _of_memory(open_screen(source), layer)
    if getattr(source, "isbacked", False) and not source.is_view:
        return _of_path(Path(source.filename), layer) or _of_memory(in_reach(source, near), layer)
    held = getattr(source, "_adata_ref", source) if getattr(source, "is_view", False) else source
    if any(map(is_dask, (getattr(held, "X", None), *layers_of(held).values()))):
        return _of_dask(source, layer)
    return _of_memory(in_reach(source, near), layer)


def _of_path(path: Path, layer: str | None) -> Blocks | None:
    """Blocks of an h5ad file, a zarr store or a folder of these; None for other kinds."""
    path = user_path(path).absolute()  # where the workers of a cluster look for it
    places = members_of(path) if kind_of(path) == "several" else [path]
    if any(kind_of(place) not in ("h5ad", "zarr") for place in places):
        return None
    opened = [_annotations(place, layer) for place in places]
    if any(one is None for one in opened):
        return None
    screens = [adata for adata, _ in opened]  # type: ignore[misc]
    whole = screens[0] if len(places) == 1 and places[0] == path else put_together(path, places, screens)
    blocks: list[Any] = []
    for place, (adata, n_values) in zip(places, opened, strict=True):  # type: ignore[misc]
        columns = adata.var_names.get_indexer(whole.var_names)
        shown = None if (columns == np.arange(adata.n_vars)).all() else columns
        step, n = max(1, BLOCK_VALUES * adata.n_obs // max(1, n_values)), adata.n_obs
        blocks += [StoredBlock(place, _key(layer), start, min(start + step, n), shown) for start in range(0, n, step)]
    return Blocks(whole, blocks, [block.stop - block.start for block in blocks])


def _key(layer: str | None) -> str:
    return "X" if layer is None else f"layers/{layer}"


def _annotations(path: Path, layer: str | None) -> tuple[AnnData, int] | None:
    """A file's annotations without values, and how many values are stored; None where they are stored by columns."""
    from anndata.io import read_elem

    with stored_group(path) as group:
        if _key(layer) not in group:
            layers = sorted(group["layers"]) if "layers" in group else []
            msg = f"{path} has no {_key(layer)}; layers: {shorten(layers) or 'none'}"
            raise ValueError(msg)
        stored = group[_key(layer)]
        if not hasattr(stored, "shape") and stored.attrs.get("encoding-type") != "csr_matrix":
            return None
        obs, var = read_elem(group["obs"]), read_elem(group["var"])
        is_dense = hasattr(stored, "shape")
        shape = tuple(map(int, stored.shape if is_dense else stored.attrs["shape"]))
        if shape != (len(obs), len(var)):
            msg = f"{path}: its values have shape {shape} for {len(obs)} cells and {len(var)} genes"
            raise ValueError(msg)
        return _empty(obs, var, layer), math.prod(shape) if is_dense else int(stored["data"].shape[0])


def _empty(obs: Any, var: Any, layer: str | None) -> AnnData:
    """An AnnData whose values, X or a layer, are there by name alone."""
    from anndata import AnnData

    nothing = sparse.csr_matrix((len(obs), len(var)), dtype=np.float32)
    return AnnData(X=nothing, obs=obs, var=var, layers={} if layer is None else {layer: nothing})


def _of_memory(adata: AnnData, layer: str | None) -> Blocks:
    values = values_of(adata, layer)
    n_values = 0 if values is None else values.nnz if sparse.issparse(values) else values.size
    step = max(1, BLOCK_VALUES * adata.n_obs // max(1, n_values))
    starts = range(0, adata.n_obs, step)
    blocks = [] if values is None else [as_csr(values[start : start + step]) for start in starts]
    return Blocks(_empty(adata.obs, adata.var, layer), blocks, [block.shape[0] for block in blocks])


def _of_dask(adata: AnnData, layer: str | None) -> Blocks:
    import dask

    array = adata.X if layer is None else adata.layers[layer]
    if len(array.chunks[1]) > 1:  # stored by columns
        array = array.rechunk({0: "auto", 1: -1})
    joined: Callable[..., Any] = dask.delayed(
        lambda parts: sparse.vstack([as_csr(part) for part in parts], format="csr")
    )
    # cells of a block: one value in eight is taken to be other than 0
    most = 8 * BLOCK_VALUES // max(1, array.shape[1])
    blocks: list[list[Any]] = []
    sizes: list[int] = []
    for part, size in zip(array.to_delayed().ravel(), array.chunks[0], strict=True):
        if not sizes or sizes[-1] >= most:
            blocks.append([])
            sizes.append(0)
        blocks[-1].append(part)
        sizes[-1] += size
    return Blocks(
        _empty(in_memory(adata.obs), in_memory(adata.var), layer), [joined(parts) for parts in blocks], sizes, True
    )
