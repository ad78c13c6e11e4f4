"""Names of prepared screens: their case is kept, and no screen takes the place of another without a word."""

import logging
from pathlib import Path
from typing import Any

import pytest
from anndata import AnnData

from gears import PertData


def prepared(folder: Path, name: str, adata: AnnData) -> PertData:
    data = PertData(folder, default_pert_graph=False)
    data.new_data_process(name, adata)
    return data


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
    prepared(tmp_path, "ToySet", whole)
    prepared(tmp_path, "TOYSET", part)
    for name, adata in (("ToySet", whole), ("TOYSET", part)):
        assert loaded(tmp_path, data_name=name).screen.cells.shape[1] == adata.n_vars
        assert loaded(tmp_path, data_path=tmp_path / name).screen.cells.shape[1] == adata.n_vars
    with pytest.raises(ValueError, match="which of TOYSET, ToySet is meant"):
        loaded(tmp_path, data_name="toyset")


@pytest.mark.parametrize("name", ["toyset", "TOYSET"])
def test_a_name_in_another_case_finds_the_only_one(name, whole, tmp_path):
    prepared(tmp_path, "ToySet", whole)
    assert loaded(tmp_path, data_name=name).screen.folder.name == "ToySet"
    assert loaded(tmp_path, data_path=tmp_path / name).screen.folder.name == "ToySet"


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
