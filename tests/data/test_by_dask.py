"""Screens whose values are dask arrays are prepared block by block, with the same result as from memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from anndata import AnnData, read_h5ad
from scipy import sparse

from gears import PertData
from gears.data import PreparedScreen, inspect_screen
from gears.data.reading._by_dask import BLOCKS, is_dask
from gears.data.screen._statistics import STATISTICS
from gears.data.screen.prepare import prepare_screen

if TYPE_CHECKING:
    from dask.array import Array

dask = pytest.importorskip("dask")
N_ROWS = 13  # of a block: the last of 216 cells' has fewer


def blocks(matrix: Any) -> Array:
    """A matrix as a dask array of row blocks, each made in a task."""
    import dask.array as da

    parts = [matrix[start : start + N_ROWS] for start in range(0, matrix.shape[0], N_ROWS)]
    meta = matrix[:0]
    arrays = [da.from_delayed(dask.delayed(part), shape=part.shape, dtype=part.dtype, meta=meta) for part in parts]
    return da.concatenate(arrays)


def assert_same(screen: PreparedScreen, other: PreparedScreen) -> None:
    assert screen.content_hash == other.content_hash
    for name in STATISTICS:
        table, wanted = getattr(screen.statistics, name), getattr(other.statistics, name)
        np.testing.assert_allclose(table, wanted, rtol=1e-10, atol=1e-10)
    np.testing.assert_array_equal(screen.de.order, other.de.order)
    np.testing.assert_array_equal(screen.cells.csr().toarray(), other.cells.csr().toarray())


FORMS: dict[str, Callable[[sparse.csr_matrix], Array]] = {
    "csr": blocks,
    "csc array": lambda matrix: blocks(sparse.csc_array(matrix)),
    "dense": lambda matrix: blocks(matrix.toarray().astype(np.float64)),
    "by columns": lambda matrix: blocks(matrix.toarray()).rechunk((50, 7)),
}


@pytest.mark.parametrize("form", FORMS)
def test_any_blocks_give_the_screen_of_memory(form, toy_adata, toy_screen, tmp_path):
    adata = AnnData(X=FORMS[form](toy_adata.X), obs=toy_adata.obs, var=toy_adata.var)
    assert_same(prepare_screen(adata, tmp_path / "toy"), toy_screen)
    assert sorted(place.name for place in tmp_path.iterdir()) == [".toy.lock", "toy"]
    assert is_dask(adata.X)


def test_layers_views_and_options(toy_adata, tmp_path):
    counts = sparse.csr_matrix(np.rint(np.expm1(toy_adata.X.toarray())))
    toy_adata.layers["counts"] = counts
    lazy = AnnData(X=blocks(toy_adata.X), obs=toy_adata.obs, var=toy_adata.var)
    lazy.layers["counts"] = blocks(counts)
    rows = np.arange(toy_adata.n_obs)[::-1]
    options = {"layer": "counts", "normalize": True, "min_cells": 3}
    whole = prepare_screen(toy_adata[rows].copy(), tmp_path / "whole", **options)
    assert_same(prepare_screen(lazy[rows], tmp_path / "lazy", **options), whole)


def test_few_blocks_at_a_time_on_the_active_scheduler(toy_adata, toy_screen, tmp_path):
    numbers = []

    def scheduler(graph: Any, keys: Any, **options: Any) -> Any:
        numbers.append(len(keys))
        return dask.get(graph, keys, **options)

    adata = AnnData(X=blocks(toy_adata.X), obs=toy_adata.obs, var=toy_adata.var)
    with dask.config.set(scheduler=scheduler):
        screen = prepare_screen(adata, tmp_path / "toy")
    assert_same(screen, toy_screen)
    assert sum(numbers) == -(-216 // N_ROWS)
    assert max(numbers) <= BLOCKS


def test_no_scheduler_is_an_error_that_names_the_address(toy_adata, tmp_path):
    pytest.importorskip("distributed.core")
    path, pack = tmp_path / "screen.h5ad", tmp_path / "pack.h5ad"
    toy_adata.write_h5ad(path)
    data = PertData(tmp_path / "work", default_pert_graph=False)
    with pytest.raises(ValueError, match="give moments="):
        data.load(data_path=path, dask="tcp://127.0.0.1:9")
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "1s"}),
        pytest.raises(ConnectionError, match=r"no dask scheduler answers at tcp://127\.0\.0\.1:9"),
    ):
        data.load(data_path=path, dask="tcp://127.0.0.1:9", moments=pack)


def test_a_report_is_that_of_memory(toy_adata):
    lazy = AnnData(X=blocks(toy_adata.X), obs=toy_adata.obs, var=toy_adata.var)
    counts = sparse.csr_matrix(np.rint(np.expm1(toy_adata.X.toarray())))
    lazy.layers["counts"], toy_adata.layers["counts"] = blocks(counts), counts
    for options in ({}, {"layer": "counts"}, {"layer": "counts", "normalize": True}, {"layer": "other"}):
        assert str(inspect_screen(lazy, **options)) == str(inspect_screen(toy_adata, **options)), options
    assert is_dask(lazy.X)


@pytest.mark.parametrize("form", ["dask", "dask with dask in raw", "backed"])
def test_raw_stays_with_values_that_are_not_in_memory(form, toy_adata, tmp_path):
    scaled = toy_adata[:, 4:].copy()
    scaled.X = sparse.csr_matrix(scaled.X.toarray() - 1)
    scaled.raw = toy_adata
    whole = prepare_screen(scaled, tmp_path / "whole", layer="raw")
    lazy = AnnData(X=blocks(scaled.X), obs=scaled.obs, var=scaled.var)
    lazy.raw = toy_adata
    if form == "backed":
        scaled.write_h5ad(tmp_path / "scaled.h5ad")
        lazy = read_h5ad(tmp_path / "scaled.h5ad", backed="r")
    elif form != "dask":
        lazy.raw = AnnData(X=blocks(toy_adata.X), obs=toy_adata.obs, var=toy_adata.var)
    if form != "dask with dask in raw":  # other dask arrays are not read
        assert "pass layer='raw' (adata.raw holds log-normalised values)" in str(inspect_screen(lazy))
    assert_same(prepare_screen(lazy, tmp_path / "lazy", layer="raw"), whole)
