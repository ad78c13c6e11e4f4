"""Screens read block by block: where the blocks of cells lie, and the annotations beside them.

Blocks are rows of matrices in h5ad files and zarr stores, chunks of a dask array, or rows of a matrix in memory. Who
reads a block (this process, another, a dask worker) opens the file, so that cells do not travel.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import sparse

from gears.core._messages import count, shorten
from gears.data.checks._options import ProcessingOptions
from gears.data.checks._styles import CELL_TYPE_KEYS, STYLES
from gears.data.reading._by_dask import in_memory, is_dask
from gears.data.reading._guides import SOURCE
from gears.data.reading._matrix import Annotations, as_csr, layers_of, values_of
from gears.data.reading._open import in_reach, kind_of, logger, members_of, name_of, open_screen, put_together
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

    def rows(self, run: np.ndarray) -> StoredBlock:
        """Consecutive rows of it, by their numbers within it."""
        return replace(self, start=self.start + int(run[0]), stop=self.start + int(run[-1]) + 1)

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

    annotations: Annotations
    blocks: list[Any]  # a StoredBlock, a CSR matrix or a dask object that becomes one, in the order of the cells
    sizes: list[int]  # cells of each
    on_dask: bool = False  # whether dask makes the blocks

    def some(self) -> tuple[np.ndarray, sparse.csr_matrix]:
        """Numbers and values of some cells: all of few, else those at evenly spaced places."""
        ends = np.cumsum(self.sizes)
        n_cells = int(sum(self.sizes))
        if not n_cells:
            return np.zeros(0, dtype=np.int64), self.annotations.X
        spots = np.linspace(0, max(0, n_cells - CELLS_OF_SPOT), SPOTS).astype(np.int64)
        cells = np.unique(np.minimum(spots[:, None] + np.arange(CELLS_OF_SPOT), n_cells - 1))
        if n_cells <= SPOTS * CELLS_OF_SPOT:
            cells = np.arange(n_cells)
        numbers, parts = np.searchsorted(ends, cells, side="right"), []
        for number in np.unique(numbers).tolist():
            rows = cells[numbers == number] - (ends[number] - self.sizes[number])
            block = self.blocks[number]
            if isinstance(block, StoredBlock):
                parts += [block.rows(run).csr() for run in np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1)]
                continue
            parts.append(block_values(block.compute() if hasattr(block, "compute") else block)[rows])
        return cells, as_csr(sparse.vstack(parts, format="csr"))


def block_values(block: Any) -> sparse.csr_matrix:
    """The cells of a block."""
    return block.csr() if isinstance(block, StoredBlock) else as_csr(block)


def blocks_of(source: AnnData | Path, options: ProcessingOptions, near: Path) -> Blocks:
    """Blocks of an AnnData (in memory, of a file, or of dask arrays), or of a file or folder; `near` for mapped files.

    A file of another kind than h5ad and zarr, or stored by columns, is read whole.
    """
    layer = options.layer
    if isinstance(source, Path):
        return _of_path(source, options) or _of_memory(open_screen(source), layer)
    if getattr(source, "isbacked", False) and not source.is_view:
        return _of_path(Path(source.filename), options) or _of_memory(in_reach(source, near), layer)
    held = getattr(source, "_adata_ref", source) if getattr(source, "is_view", False) else source
    if any(map(is_dask, (getattr(held, "X", None), *layers_of(held).values()))):
        return _of_dask(source, layer)
    return _of_memory(in_reach(source, near), layer)


def _of_path(path: Path, options: ProcessingOptions) -> Blocks | None:
    """Blocks of an h5ad file, a zarr store or a folder of these; None for other kinds."""
    path = user_path(path).absolute()  # where the workers of a cluster look for it
    places = members_of(path) if kind_of(path) == "several" else [path]
    if any(kind_of(place) not in ("h5ad", "zarr") for place in places):
        return None
    opened = [_annotations(place, options) for place in places]
    if any(one is None for one in opened):
        return None
    screens = [one for one, _ in opened]  # type: ignore[misc]
    whole = screens[0] if len(places) == 1 and places[0] == path else _together(path, places, screens)
    blocks: list[Any] = []
    for place, (one, n_values) in zip(places, opened, strict=True):  # type: ignore[misc]
        columns = one.var_names.get_indexer(whole.var_names)
        shown = None if (columns == np.arange(one.n_vars)).all() else columns
        step, n = max(1, BLOCK_VALUES * one.n_obs // max(1, n_values)), one.n_obs
        key = _key(options.layer)
        blocks += [StoredBlock(place, key, start, min(start + step, n), shown) for start in range(0, n, step)]
    return Blocks(whole, blocks, [block.stop - block.start for block in blocks])


def _key(layer: str | None) -> str:
    return "X" if layer is None else f"layers/{layer}"


def _annotations(path: Path, options: ProcessingOptions) -> tuple[Annotations, int] | None:
    """A file's annotations, and how many values are stored; None where they are stored by columns."""
    from anndata.io import read_elem

    key = _key(options.layer)
    with stored_group(path) as group:
        if key not in group:
            layers = sorted(group["layers"]) if "layers" in group else []
            msg = f"{path} has no {key}; layers: {shorten(layers) or 'none'}"
            raise ValueError(msg)
        stored = group[key]
        if not hasattr(stored, "shape") and stored.attrs.get("encoding-type") != "csr_matrix":
            return None
        is_dense = hasattr(stored, "shape")
        shape = tuple(map(int, stored.shape if is_dense else stored.attrs["shape"]))
        obs, var = _obs(group["obs"], shape[0], options), read_elem(group["var"])
        if shape != (len(obs), len(var)):
            msg = f"{path}: its values have shape {shape} for {len(obs)} cells and {len(var)} genes"
            raise ValueError(msg)
        return _empty(obs, var, options.layer), math.prod(shape) if is_dense else int(stored["data"].shape[0])


def _obs(stored: Any, n_cells: int, options: ProcessingOptions) -> pd.DataFrame:
    """Stored annotations of `n_cells` cells, column by column: without names, and numbers only where they are used."""
    from anndata.io import read_elem

    index = stored.attrs.get("_index")
    if stored.attrs.get("encoding-version") != "0.2.0" or stored[index].shape[0] != n_cells:  # older, or damaged
        return read_elem(stored).reset_index(drop=True)
    used = {*CELL_TYPE_KEYS, *(key for style in STYLES.values() for key in (*style.condition_keys, *style.count_keys))}
    for value in options.to_dict().values():
        used |= {value} if isinstance(value, str) else {*value} if isinstance(value, list) else set()
    columns = {
        name: read_elem(stored[name])
        for name in stored.attrs["column-order"]
        if name in used or getattr(stored[name], "dtype", np.dtype(object)).kind not in "iuf"
    }
    return pd.DataFrame(columns, index=pd.RangeIndex(n_cells))


def _together(folder: Path, places: list[Path], screens: list[Annotations]) -> Annotations:
    """The annotations of several files one after another; all must measure the same genes."""
    from anndata import AnnData

    var = put_together(places, [AnnData(var=one.var) for one in screens]).var
    source = pd.CategoricalDtype([name_of(place) for place in places])
    frames = [one.obs.assign(**{SOURCE: pd.Categorical.from_codes(np.full(one.n_obs, i, dtype=np.int16), dtype=source)})
              for i, one in enumerate(screens)]  # fmt: skip
    for name in frames[0].columns:
        columns = [frame[name] for frame in frames if name in frame]
        if all(isinstance(column.dtype, pd.CategoricalDtype) for column in columns):
            categories = dict.fromkeys(itertools.chain.from_iterable(column.cat.categories for column in columns))
            dtype = pd.CategoricalDtype([*categories])
            frames = [frame.astype({name: dtype}) if name in frame else frame for frame in frames]
    logger.info("%s: %s from %d files", folder, count(sum(map(len, frames)), "cell"), len(places))
    return replace(screens[0], obs=pd.concat(frames, ignore_index=True), var=var)


def _empty(obs: pd.DataFrame, var: pd.DataFrame, layer: str | None) -> Annotations:
    nothing = sparse.csr_matrix((0, len(var)), dtype=np.float32)
    return Annotations(obs, var, {} if layer is None else {layer: nothing})


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
