"""Preparing from a file: the same screen whatever is read, with nothing but the wanted values in memory."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import anndata
import numpy as np
import pytest
from scipy import sparse

from gears.data.reading import open
from gears.data.reading.matrix import layers_of
from gears.data.screen import files
from gears.data.screen.cells import CellMatrix
from gears.data.screen.prepare import LoadCall, obtain_screen, prepare_screen
from gears.data.screen.prepared import PreparedScreen
from gears.files.atomic import scratch_folder

if TYPE_CHECKING:
    from anndata import AnnData


def obtained(path: Path, folder: Path, **options) -> PreparedScreen:
    return obtain_screen(folder, LoadCall(data_path=path, **options), lambda: lambda _: True)


@pytest.fixture
def toy_file(toy_adata: AnnData, tmp_path: Path) -> Path:
    toy_adata.layers["counts"] = sparse.csr_matrix(np.rint(np.expm1(toy_adata.X.toarray())))
    toy_adata.obsm["X_pca"] = np.zeros((toy_adata.n_obs, 2))
    toy_adata.write_h5ad(tmp_path / "toy.h5ad")
    return tmp_path / "toy.h5ad"


@pytest.mark.parametrize("most_in_memory", [None, 0])
@pytest.mark.parametrize("form", ["csr", "dense", "csc"])
def test_a_file_gives_the_screen_of_its_object(
    form: str,
    most_in_memory: int | None,
    toy_file: Path,
    toy_screen: PreparedScreen,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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


def test_what_is_read_of_a_file(toy_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_layers_and_their_names_are_found(toy_file: Path, toy_adata: AnnData, tmp_path: Path) -> None:
    screen = obtained(toy_file, tmp_path / "screens", layer="counts", normalize=True)
    expected = prepare_screen(
        anndata.read_h5ad(toy_file), tmp_path / "object", layer="counts", normalize=True
    )
    assert screen.content_hash == expected.content_hash
    with pytest.raises(ValueError, match="did you mean 'counts'"):
        obtained(toy_file, tmp_path / "screens", layer="count")


def test_x_is_no_layer() -> None:
    """anndata lists X among the layers from 0.13 on, under the name None."""
    from_013 = SimpleNamespace(layers={None: np.ones(2), "counts": np.zeros(2)})
    assert list(layers_of(from_013)) == ["counts"]


def test_workers_are_an_option_of_loading(
    toy_file: Path, toy_screen: PreparedScreen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    one_process = files.moment_blocks

    def watched(*args, workers: int, **more):
        asked.append(workers)
        return one_process(*args, workers=1, **more)

    monkeypatch.setattr(files, "moment_blocks", watched)
    screen = obtained(toy_file, tmp_path / "screens", workers=3)
    assert asked == [3]
    np.testing.assert_allclose(screen.statistics.m3, toy_screen.statistics.m3, rtol=0, atol=1e-12)
    assert obtained(tmp_path / "screens" / "toy", tmp_path / "screens", workers=3).content_hash


def test_cells_written_in_chunks_are_the_same_files(toy_adata: AnnData, tmp_path: Path) -> None:
    CellMatrix.write(tmp_path / "whole", [toy_adata.X])
    CellMatrix.write(tmp_path / "chunks", (toy_adata.X[i : i + 7] for i in range(0, toy_adata.n_obs, 7)))
    for name in ("data", "indices", "indptr"):
        whole, chunks = ((tmp_path / folder / f"{name}.npy").read_bytes() for folder in ("whole", "chunks"))
        assert whole == chunks
    mapped = CellMatrix(tmp_path / "chunks", toy_adata.n_vars).mapped()
    np.testing.assert_array_equal(mapped.toarray(), toy_adata.X.toarray())


def test_scratch_folders_go_when_the_block_fails(tmp_path: Path) -> None:
    def fail() -> None:
        with scratch_folder(tmp_path / "new") as folder:
            (folder / "file").write_text("")
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        fail()
    assert not list((tmp_path / "new").iterdir())
