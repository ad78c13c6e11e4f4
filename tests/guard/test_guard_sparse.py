"""Sparse matrices whose arrays do not fit together: an error names the file; scipy would read beyond its memory."""

from pathlib import Path
from typing import Any

import anndata
import h5py
import pytest
import zarr
from scipy import sparse

from gears import PertData
from gears.data.screen.prepare import prepare_screen

DAMAGE: dict[str, tuple[str, int, int, str]] = {
    "a column beyond": ("indices", 7, 10**8, "column numbers from 0 to 100000000 for 30 columns"),
    "a column before": ("indices", 7, -5, "column numbers from -5 to 29 for 30 columns"),
    "a bound beyond": ("indptr", -1, 10**8, "row bounds up to 100000000 for"),
    "a bound that falls": ("indptr", 7, 10**8, "row bounds that do not rise"),
    "a bound before": ("indptr", 7, -100, "row bounds that do not rise"),
    "a first bound": ("indptr", 0, 3, "row bounds that do not rise from 0"),
}
SHORT: dict[str, tuple[str, str]] = {
    "values": ("data", "for 5438 stored values"),
    "columns": ("indices", "for 5438 stored values"),
    "bounds": ("indptr", "expected 217 whole numbers"),
}


@pytest.fixture
def h5ad(toy_template, tmp_path):
    toy_template.write_h5ad(tmp_path / "screen.h5ad")
    return tmp_path / "screen.h5ad"


def load(path: Path) -> None:
    PertData(path.parent / "data", default_pert_graph=False).load(data_path=path)


@pytest.mark.parametrize("what", DAMAGE)
def test_an_h5ad_file(what, h5ad, monkeypatch):
    array, place, value, words = DAMAGE[what]
    with h5py.File(h5ad, "r+") as file:
        file["X"][array][place] = value
    if what.startswith("a column"):  # the others are read at once
        monkeypatch.setattr("gears.data.reading._open.MOST_IN_MEMORY", 10)
    with pytest.raises(ValueError, match=rf"screen\.h5ad: X has {words}"):
        load(h5ad)
    assert not (h5ad.parent / "data" / "screen").exists()


@pytest.mark.parametrize("what", SHORT)
def test_an_h5ad_file_with_too_few(what, h5ad):
    array, words = SHORT[what]
    with h5py.File(h5ad, "r+") as file:
        values = file["X"][array][:-50]
        del file["X"][array]
        file["X"][array] = values
    with pytest.raises(ValueError, match=rf"screen\.h5ad.*{words}"):
        load(h5ad)


@pytest.mark.parametrize("what", ["a column beyond", "a bound that falls"])
@pytest.mark.filterwarnings("ignore")
def test_a_zarr_store(what, toy_template, tmp_path):
    toy_template.write_zarr(tmp_path / "screen.zarr")
    array, place, value, words = DAMAGE[what]
    stored: Any = zarr.open_group(tmp_path / "screen.zarr", mode="r+")[f"X/{array}"]
    values = stored[:]
    values[place] = value
    stored[:] = values
    with pytest.raises(ValueError, match=rf"screen\.zarr: X has {words}"):
        load(tmp_path / "screen.zarr")


@pytest.mark.parametrize("what", DAMAGE)
def test_a_matrix_in_memory(what, toy_adata):
    array, place, value, _ = DAMAGE[what]
    matrix = sparse.csc_matrix(toy_adata.X)
    getattr(matrix, array)[place] = value
    adata = anndata.AnnData(matrix, obs=toy_adata.obs, var=toy_adata.var)
    with pytest.raises(ValueError, match=r"a sparse matrix has (column numbers|row bounds)"):
        prepare_screen(adata, Path("never"))
    assert not Path("never").exists()
