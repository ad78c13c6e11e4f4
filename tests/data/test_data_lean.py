"""Preparing from a file: the same screen whatever is read, with nothing but the wanted values in memory."""

from pathlib import Path

import anndata
import numpy as np
import pytest
from scipy import sparse

from gears.data import PreparedScreen
from gears.data.reading import _open as open
from gears.data.reading._matrix import layers_of
from gears.data.screen.prepare import LoadCall, obtain_screen, prepare_screen


def obtained(path: Path, folder: Path, **options) -> PreparedScreen:
    return obtain_screen(folder, LoadCall(data_path=path, **options), lambda: lambda _: True)


@pytest.fixture
def toy_file(toy_adata, tmp_path):
    toy_adata.layers["counts"] = sparse.csr_matrix(np.rint(np.expm1(toy_adata.X.toarray())))
    toy_adata.obsm["X_pca"] = np.zeros((toy_adata.n_obs, 2))
    toy_adata.write_h5ad(tmp_path / "toy.h5ad")
    return tmp_path / "toy.h5ad"


@pytest.mark.parametrize(("form", "most_in_memory"), [("csr", None), ("csr", 0), ("dense", 0), ("csc", 0)])
def test_a_file_gives_the_screen_of_its_object(form, most_in_memory, toy_file, toy_screen, tmp_path, monkeypatch):
    if most_in_memory is not None:
        monkeypatch.setattr(open, "MOST_IN_MEMORY", most_in_memory)
        monkeypatch.setattr(open, "CHUNK_VALUES", 300)
    adata = anndata.read_h5ad(toy_file)
    adata.X = {"csr": adata.X, "dense": adata.X.toarray(), "csc": adata.X.tocsc()}[form]
    adata.write_h5ad(toy_file)
    screen = obtained(toy_file, tmp_path / "screens")
    assert screen.content_hash == toy_screen.content_hash
    np.testing.assert_array_equal(screen.statistics.m4, toy_screen.statistics.m4)
    np.testing.assert_array_equal(screen.cells.csr().toarray(), toy_screen.cells.csr().toarray())
    backed = anndata.read_h5ad(toy_file, backed="r")
    again = prepare_screen(backed, tmp_path / "backed")
    view = prepare_screen(backed[:, :], tmp_path / "view")
    backed.file.close()
    assert again.content_hash == view.content_hash == toy_screen.content_hash
    assert sorted(place.name for place in (tmp_path / "screens").iterdir()) == [".toy.lock", "toy"]


def test_what_is_read_of_a_file(toy_file, tmp_path, monkeypatch):
    monkeypatch.setattr(open, "CELLS_OF_OTHERS", 3)
    adata = open.open_lean(toy_file, None, tmp_path)
    assert np.flatnonzero(np.diff(adata.X.indptr)).max() > 200
    assert list(layers_of(adata)) == ["counts"]
    assert np.flatnonzero(np.diff(adata.layers["counts"].indptr)).tolist() == [0, 1, 2]
    assert not adata.obsm
    monkeypatch.setattr(open, "MOST_IN_MEMORY", 0)
    adata = open.open_lean(toy_file, "counts", tmp_path)
    assert adata.layers["counts"].nnz > adata.X.nnz == 0
    assert not adata.layers["counts"].data.flags.writeable  # the mapped file itself, no copy
    assert [place.name for place in tmp_path.iterdir()] == ["toy.h5ad"]
