"""A prepared screen in a folder that may only be read: what is computed from it goes to the user's cache folder."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driving import closed, trained_gears

from gears import PertData
from gears.files._cache import cached_arrays


@pytest.fixture
def user_cache(tmp_path, monkeypatch):
    """The user's cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gears"


def files(folder: Path) -> dict[str, int]:
    return {
        path.relative_to(folder).as_posix(): path.stat().st_mtime_ns
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".lock"
    }


def opened(folder: Path) -> PertData:
    data = PertData(folder, default_pert_graph=False)
    data.load(data_path=folder / "toy")
    data.prepare_split(seed=2)
    return data


def trained(data: PertData) -> np.ndarray:
    model = trained_gears(data, steps=1)
    return model.predict(["GX00"])["GX00"]


@pytest.fixture
def lab(tmp_path, toy_adata):
    """A folder with a prepared screen."""
    PertData(tmp_path / "lab", default_pert_graph=False).new_data_process("toy", toy_adata)
    return tmp_path / "lab"


def test_splits_graphs_and_priors_go_to_the_users_cache(lab, user_cache):
    before = files(lab)
    with closed(lab):
        predicted_G = trained(opened(lab))
        made = files(user_cache)
        assert {name.split("/")[0] for name in made} == {"splits", "graphs", "priors"}
        np.testing.assert_array_equal(trained(opened(lab)), predicted_G)
        assert files(user_cache) == made  # used again
    assert files(lab) == before
    np.testing.assert_array_equal(trained(opened(lab)), predicted_G)
    assert files(user_cache) == made  # a folder that can be written to holds its own


def test_what_a_read_only_folder_holds_is_used(lab, user_cache):
    trained(opened(lab))
    with closed(lab):
        trained(opened(lab))
    assert not user_cache.exists()


def test_no_place_at_all(lab, user_cache, caplog):
    def build() -> dict[str, Any]:
        return {"a": np.zeros(1)}

    user_cache.parent.mkdir()
    with closed(lab), closed(user_cache.parent):
        with caplog.at_level(logging.WARNING, logger="gears"):
            data = opened(lab)
        assert data.split is not None
        assert "could not be cached" in caplog.text
        with pytest.raises(PermissionError, match=r"is read-only and .*copy the prepared screen"):
            cached_arrays(lab / "toy" / "graphs", "graph", {}, build)


def test_links_keep_their_names(tmp_path, toy_adata):
    """Linked files of two replicates are two screens, named by the links; so are links to prepared folders."""
    work = tmp_path / "work"
    for name, adata in (("rep1", toy_adata), ("rep2", toy_adata[:180].copy())):
        store = tmp_path / f"store-{name}"
        store.mkdir()
        adata.write_h5ad(store / "object.h5ad")
        (tmp_path / f"{name}.h5ad").symlink_to(store / "object.h5ad")
        data = PertData(work, default_pert_graph=False)
        data.load(data_path=tmp_path / f"{name}.h5ad")
        assert data.dataset_name == name
    assert sorted(path.name for path in work.iterdir() if path.is_dir()) == ["rep1", "rep2"]
    (tmp_path / "mine").symlink_to(work / "rep1")
    data.load(data_path=tmp_path / "mine")
    assert data.dataset_name == "mine"
