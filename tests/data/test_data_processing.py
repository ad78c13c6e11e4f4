"""Preparing: equal results for every kind of matrix, the caller's object untouched, folders whole."""

import logging
import pickle
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
import pytest
import torch
from anndata import AnnData
from driving import pert_data_of
from scipy import sparse

from gears import PertData
from gears.data import PreparedScreen
from gears.data._published import published_uns
from gears.data.screen import _files as files
from gears.data.screen.prepare import prepare_screen
from gears.files.formats import content_hash, read_json, write_json


def unsorted(matrix: sparse.csr_matrix) -> sparse.csr_matrix:
    """The same values with columns in reverse order, one of them as two entries, and an explicit zero."""
    rows = []
    for i in range(matrix.shape[0]):
        row = matrix[i].tocoo()
        data, cols = row.data[::-1].astype(np.float64), row.col[::-1]
        zero = np.setdiff1d(np.arange(matrix.shape[1]), cols)[:1]
        data = np.concatenate((data[:1] / 2, data[:1] / 2, data[1:], np.zeros(len(zero))))
        rows.append((data, np.concatenate((cols[:1], cols, zero))))
    indptr = np.cumsum([0, *(len(data) for data, _ in rows)])
    data, columns = (np.concatenate(parts) for parts in zip(*rows, strict=True))
    return sparse.csr_matrix((data, columns, indptr), shape=matrix.shape)


FORMS: dict[str, Any] = {
    "dense": lambda x: x.toarray(),
    "dense float64, column order": lambda x: np.asfortranarray(x.toarray().astype(np.float64)),
    "csc": lambda x: x.tocsc(),
    "csc_array": lambda x: sparse.csc_array(x),
    "csr float64": lambda x: x.astype(np.float64),
    "not canonical": unsorted,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_matrix_gives_the_same_screen(form, toy_adata, toy_screen, tmp_path):
    """And the caller's object is not modified."""
    toy_adata.X = FORMS[form](toy_adata.X)
    before = fingerprint(toy_adata)
    screen = prepare_screen(toy_adata, tmp_path / "toy")
    assert fingerprint(toy_adata) == before
    assert screen.content_hash == toy_screen.content_hash
    np.testing.assert_array_equal(screen.statistics.m4, toy_screen.statistics.m4)
    np.testing.assert_array_equal(screen.cells.csr().toarray(), toy_screen.cells.csr().toarray())


def fingerprint(adata: AnnData) -> str:
    x = adata.X
    arrays = [x.data, x.indices, x.indptr] if sparse.issparse(x) else [np.asarray(x)]
    types = [str(dtype) for dtype in adata.obs.dtypes]
    tables = adata.obs.to_csv(), adata.var.to_csv(), types, list(adata.uns), list(adata.layers)
    return content_hash(*arrays, *tables)


def test_normalize_equals_scanpy(toy_adata, tmp_path):
    import scanpy

    counts = toy_adata.X.copy()
    counts.data = np.rint(np.expm1(counts.data))
    toy_adata.layers["counts"] = counts
    threads = torch.get_num_threads()
    from_layer = prepare_screen(toy_adata, tmp_path / "a", normalize=True, layer="counts")
    assert torch.get_num_threads() == threads
    toy_adata.X = counts.copy()
    from_x = prepare_screen(toy_adata, tmp_path / "b", normalize=True)
    np.testing.assert_array_equal(toy_adata.X.data, counts.data)
    expected = toy_adata.copy()
    scanpy.pp.normalize_total(expected, target_sum=1e4)
    scanpy.pp.log1p(expected)
    torch.set_num_threads(threads)  # scanpy's compiled functions leave theirs, which slows small trainings down
    for screen in (from_layer, from_x):
        np.testing.assert_allclose(screen.cells.csr().toarray(), expected.X.toarray(), rtol=1e-6)


def test_two_spellings_share_statistics_and_lists(toy_adata, tmp_path):
    once = prepare_screen(toy_adata, tmp_path / "once")
    labels = toy_adata.obs["condition"].astype(str).to_numpy()
    labels[np.flatnonzero(labels == "GX03+ctrl")[:5]] = "ctrl+GX03"
    toy_adata.obs["condition"] = labels
    twice = prepare_screen(toy_adata, tmp_path / "twice")
    assert len(twice.labels) == len(once.labels) + 1
    assert len(twice.conditions) == len(once.conditions)
    a, b = once.id_of("GX03"), twice.id_of("ctrl+GX03")
    np.testing.assert_allclose(once.statistics.m3[a], twice.statistics.m3[b], rtol=1e-12, atol=1e-15)
    uns = published_uns(twice)
    for lists in uns.values():
        np.testing.assert_array_equal(lists["cellA_GX03+ctrl_1+1"], lists["cellA_ctrl+GX03_1+1"])


def test_the_published_layout(toy_adata, tmp_path):
    toy_adata.obs["a/b"] = 1
    toy_adata.obs["mixed"] = ["x", 2] * (toy_adata.n_obs // 2)
    toy_adata.obs["when"] = pd.Timestamp("2020-01-01")
    toy_adata.obs["text"] = pd.array(["x", None] * (toy_adata.n_obs // 2), dtype="string")
    toy_adata.obs["range"] = pd.cut(np.arange(toy_adata.n_obs), 3)
    toy_adata.uns["own"] = {"GX/00": 1}
    names = toy_adata.var["gene_name"].astype(object).to_numpy().copy()
    names[29] = "GX/29"
    toy_adata.var["gene_name"] = names
    screen = prepare_screen(toy_adata, tmp_path / "toy")
    written = anndata.read_h5ad(screen.folder / "perturb_processed.h5ad")
    published = {"condition", "cell_type", "dose_val", "control", "condition_name", "condition_id"}
    assert published <= set(written.obs)
    assert list(written.var["gene_name"]) == [*[f"GX{i:02d}" for i in range(29)], "GX/29"]
    assert not written.uns
    assert list(written.obs["condition"]) == list(toy_adata.obs["condition"])
    row = written.obs.iloc[-1]
    assert (row["condition_name"], row["dose_val"], row["control"]) == ("cellA_GX01+GX03_1+1", "1+1", 0)
    assert written.obs["condition_name"].iloc[0] == "cellA_ctrl_1"
    np.testing.assert_array_equal(written.X.toarray(), toy_adata.X.toarray())
    np.testing.assert_array_equal(written.obs["condition_id"], screen.cell_condition)


# Folders


def test_the_same_content_is_reused_and_other_content_replaces_all(toy_adata, tmp_path):
    folder = tmp_path / "toy"
    first = prepare_screen(toy_adata, folder)
    (folder / "splits").mkdir()
    (folder / "splits" / "old.json").write_text("{}")
    stamp = (folder / "manifest.json").stat().st_mtime_ns
    prepare_screen(toy_adata, folder)
    assert (folder / "manifest.json").stat().st_mtime_ns == stamp
    assert (folder / "splits" / "old.json").exists()
    toy_adata.X.data[0] += 0.25
    second = prepare_screen(toy_adata, folder)
    assert second.content_hash != first.content_hash
    assert not (folder / "splits").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".toy.lock", "toy"]
    with pytest.raises(ValueError, match="prepared again with other content"):
        _ = first.cells
    assert prepare_screen(toy_adata, folder, skip_calc_de=True).content_hash != second.content_hash


def test_a_folder_that_is_no_screen_is_never_replaced(toy_adata, tmp_path):
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match="is no prepared screen"):
        prepare_screen(toy_adata, tmp_path / "toy")
    assert (tmp_path / "toy" / "thesis.txt").read_text() == "years of work"


def test_damaged_and_changed_folders_are_named_and_made_again(toy_adata, tmp_path, caplog):
    folder = prepare_screen(toy_adata, tmp_path / "toy").folder
    data = folder / "cells" / "data.npy"
    data.write_bytes(data.read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"is damaged: cells/data.npy \(\d+ bytes instead of \d+\)"):
        PreparedScreen.open(folder)
    with caplog.at_level(logging.WARNING):
        prepare_screen(toy_adata, folder)
    assert "preparing it again" in caplog.text
    manifest = read_json(folder / "manifest.json")
    assert manifest["versions"]["numpy"] == np.__version__
    for changed, words in (
        (manifest | {"has_negative": True}, "was changed after it was written"),
        (manifest | {"format_version": 99}, "format version 99, this release reads 2"),
        ({"kind": "something"}, "does not describe a prepared screen"),
    ):
        write_json(folder / "manifest.json", changed)
        with pytest.raises(ValueError, match=words):
            PreparedScreen.open(folder)
    with pytest.raises(FileNotFoundError, match="no prepared screen"):
        PreparedScreen.open(tmp_path)


# The prepared screen


def test_conditions_and_cells(toy_adata, toy_screen):
    assert toy_screen.conditions[toy_screen.control_id].is_control
    assert toy_screen.control_cells.tolist() == list(range(60))
    assert toy_screen.cells_of(toy_screen.id_of("GX00+ctrl")).tolist() == list(range(60, 72))
    assert toy_screen.id_of("GX01+GX00") == toy_screen.id_of("GX00+GX01")
    assert toy_screen.perturbed_genes == [f"GX{i:02d}" for i in range(8)]
    with pytest.raises(KeyError, match=r"no condition 'GX0\+ctrl'.*did you mean"):
        toy_screen.id_of("GX0+ctrl")
    ids, dense = [5, 200, 5, 0], toy_adata.X.toarray()
    np.testing.assert_array_equal(toy_screen.cells.csr(ids).toarray(), dense[ids])
    assert toy_screen.cells.rows([]).shape == (0, 30)
    sent = pickle.dumps(PreparedScreen.open(toy_screen.folder))
    assert len(sent) < 5000
    np.testing.assert_array_equal(pickle.loads(sent).cells.rows(ids), dense[ids])


def test_a_screen_without_some_conditions(toy_adata, toy_screen, tmp_path):
    dropped = [c for c in toy_screen.conditions if "GX03" in c.genes]
    view = toy_screen.without(dropped)
    kept = toy_adata[~toy_adata.obs["condition"].astype(str).str.contains("GX03")].copy()
    fresh = prepare_screen(kept, tmp_path / "kept")
    for name in ("labels", "conditions", "condition_names", "control_id"):
        assert getattr(view, name) == getattr(fresh, name)
    for name in ("cell_label", "cell_condition", "label_condition", "control_cells"):
        np.testing.assert_array_equal(getattr(view, name), getattr(fresh, name))
    np.testing.assert_array_equal(view.cells.csr().toarray(), fresh.cells.csr().toarray())
    np.testing.assert_allclose(view.statistics.m2, fresh.statistics.m2, rtol=1e-12)
    np.testing.assert_array_equal(view.de.order, fresh.de.order)
    assert view.content_hash != toy_screen.content_hash
    assert pickle.loads(pickle.dumps(view)).labels == view.labels
    again = view.without([view.conditions[-1]])
    assert len(again.conditions) == len(view.conditions) - 1
    with pytest.raises(ValueError, match="without control"):
        toy_screen.without([toy_screen.conditions[toy_screen.control_id]])


def test_tables_too_large_to_be_held_are_the_same(toy_adata, toy_screen, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST_TABLE_VALUES", 2 * toy_adata.n_vars)  # two conditions at a time
    screen = prepare_screen(toy_adata, tmp_path / "blocks")
    assert screen.content_hash == toy_screen.content_hash
    for name in files.STATISTICS:
        found, expected = getattr(screen.statistics, name), getattr(toy_screen.statistics, name)
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)
        assert found.dtype == expected.dtype
    np.testing.assert_array_equal(screen.de.order, toy_screen.de.order)
    screen.verify()


def loaded(folder: Path, **where: Any) -> PertData:
    data = PertData(folder, default_pert_graph=False)
    data.load(**where)
    return data


@pytest.fixture(scope="module")
def whole(small_screen):
    return small_screen[0]


@pytest.fixture(scope="module")
def part(whole):
    """Another screen: without one gene."""
    return whole[:, :-1].copy()


def test_names_that_differ_in_case_are_two_screens(whole, part, tmp_path):
    pert_data_of(tmp_path, whole, "ToySet")
    for name in ("toyset", "TOYSET"):
        for where in ({"data_name": name}, {"data_path": tmp_path / name}):
            assert loaded(tmp_path, **where).screen.folder.name == "ToySet"
    pert_data_of(tmp_path, part, "TOYSET")
    for name, adata in (("ToySet", whole), ("TOYSET", part)):
        for where in ({"data_name": name}, {"data_path": tmp_path / name}):
            assert loaded(tmp_path, **where).screen.cells.shape[1] == adata.n_vars
    with pytest.raises(ValueError, match="which of TOYSET, ToySet is meant"):
        loaded(tmp_path, data_name="toyset")


def test_a_second_file_of_one_stem_is_reported(whole, part, tmp_path, caplog):
    files = []
    for folder, adata in (("rep1", whole), ("rep2", part)):
        (tmp_path / folder).mkdir()
        files.append(tmp_path / folder / "screen.h5ad")
        adata.write_h5ad(files[-1])
    with caplog.at_level(logging.WARNING, logger="gears"):
        loaded(tmp_path / "work", data_path=files[0])
        loaded(tmp_path / "work", data_path=files[0])
        assert "replacing" not in caplog.text
        loaded(tmp_path / "work", data_path=files[1])
    assert caplog.text.count("replacing the prepared screen") == 1
