"""PertData: one state whichever way a screen comes in, and nothing stale."""

import inspect
import json
import logging
from typing import Any

import numpy as np
import pytest
from driving import pert_data_of

from gears.conditions import Condition
from gears.pertdata import PertData


def state(data: PertData) -> dict[str, Any]:
    return {
        "genes": data.gene_names.to_dict(), "perts": data.pert_names.tolist(), "node_map": data.node_map,
        "node_map_pert": data.node_map_pert, "hash": data.screen.content_hash, "labels": data.screen.labels,
        "name": data.dataset_name, "path": data.dataset_path, "uns": sorted(data.adata.uns),
        "obs": data.adata.obs.to_csv(), "control": data.ctrl_adata.n_obs,
        "attributes": sorted(key for key in vars(data)),
    }  # fmt: skip


def test_loaders_of_several_workers_have_the_arguments_of_guides():
    distributed = inspect.signature(PertData.get_dataloader_distributed).parameters
    defaults = [(p.name, p.default) for p in distributed.values()]
    assert defaults[3:] == [("world_size", 1), ("rank", 0), ("num_workers", 4)]


def test_every_way_in_gives_the_same_state(toy_data, toy_adata, toy_go, tmp_path):
    expected = state(toy_data)
    by_name, by_folder = (PertData(tmp_path / "data", gene2go=toy_go) for _ in range(2))
    by_name.load("toy")
    by_folder.load(data_path=str(tmp_path / "data" / "toy") + "/")
    assert state(by_name) == expected
    assert state(by_folder) == expected
    toy_adata.write_h5ad(tmp_path / "toy.h5ad")
    by_file = PertData(tmp_path / "elsewhere", gene2go=toy_go)
    by_file.load(data_path=tmp_path / "toy.h5ad")
    assert state(by_file) == expected | {"path": tmp_path / "elsewhere" / "toy"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data", "elsewhere", "toy.h5ad"]


def test_a_file_or_folder_by_name(tmp_path, toy_adata, toy_go):
    data = PertData(tmp_path, gene2go=toy_go)
    toy_adata.write_h5ad(tmp_path / "Mine.h5ad")
    data.load("Mine")
    assert data.dataset_path == tmp_path / "Mine"
    data.load("Mine")  # the prepared folder now
    assert data.dataset_path == tmp_path / "Mine"
    with pytest.raises(
        FileNotFoundError, match=r"neither a prepared screen 'Mien'.*Mine, Mine.h5ad.*did you mean '[Mm]ine'"
    ):
        data.load("Mien")
    with pytest.raises(ValueError, match="either data_name"):
        data.load()
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        data.load(data_path=tmp_path / "nowhere")
    (tmp_path / "page.h5ad").write_text("<html>403</html>")
    with pytest.raises(ValueError, match="cannot be read as an h5ad"):
        data.load(data_path=tmp_path / "page.h5ad")


def test_a_published_folder_is_prepared_beside_itself(tmp_path, toy_adata, toy_go):
    (tmp_path / "old").mkdir()
    toy_adata.write_h5ad(tmp_path / "old" / "perturb_processed.h5ad")
    data = PertData(tmp_path, gene2go=toy_go)
    data.load(data_path=tmp_path / "old")
    assert data.dataset_path == tmp_path / "old-prepared"
    assert [p.name for p in (tmp_path / "old").iterdir()] == ["perturb_processed.h5ad"]


def test_options_of_a_prepared_folder_must_agree(toy_data):
    toy_data.load("toy", skip_calc_de=False)
    with pytest.raises(ValueError, match=r"other options \(skip_calc_de: False there, True here\)"):
        toy_data.load("toy", skip_calc_de=True)
    with pytest.raises(ValueError, match="unknown processing option"):
        toy_data.load("toy", normalise=True)


def test_a_new_screen_leaves_nothing_of_the_old_one(toy_data, toy_adata):
    toy_data.prepare_split("simulation")
    toy_data.get_dataloader(8)
    toy_data.new_data_process("toy", toy_adata[:180].copy())
    assert (toy_data.split, toy_data.set2conditions, toy_data.subgroup, toy_data.dataloader, toy_data.seed) == (
        None,
    ) * 5
    assert toy_data.adata.n_obs == 180
    with pytest.raises(ValueError, match="prepare_split"):
        toy_data.get_dataloader(8)


def test_using_it_too_early_says_what_to_do(tmp_path, toy_go):
    data = PertData(tmp_path, gene2go=toy_go)
    with pytest.raises(ValueError, match="new_data_process"):
        data.prepare_split()
    with pytest.raises(TypeError, match="gene2go is a dict"):
        _ = PertData(tmp_path, gene2go=3).annotation


# Nodes of the perturbation graph


def test_unannotated_genes_stay_as_isolated_nodes(tmp_path, toy_adata, toy_go, caplog):
    known = {gene: terms for gene, terms in toy_go.items() if gene not in ("GX03", "GX04")}
    data = pert_data_of(tmp_path, toy_adata, gene2go=known)
    told = [r for r in caplog.records if "isolated nodes" in r.getMessage()]
    assert len(told) == 1
    assert "GX03, GX04" in told[0].getMessage()
    assert {"GX03", "GX04"} <= set(data.pert_names)
    assert "GX03+ctrl" in data.screen.labels
    assert data.condition_nodes("GX03+GX02") == [data.node_map_pert["GX02"], data.node_map_pert["GX03"]]


def test_unannotated_genes_can_be_dropped_on_both_ways(tmp_path, toy_adata, toy_go, caplog):
    known = {gene: terms for gene, terms in toy_go.items() if gene != "GX03"}
    processed, loaded = (PertData(tmp_path, gene2go=known) for _ in range(2))
    processed.new_data_process("toy", toy_adata, drop_unmapped=True)
    assert "dropped 3 conditions (36 cells) with 1 gene that" in caplog.text
    loaded.load("toy", drop_unmapped=True)
    assert state(loaded) == state(processed)
    assert not [label for label in loaded.screen.labels if "GX03" in label]
    assert loaded.adata.n_obs == 216 - 36
    assert "GX03" not in loaded.pert_names
    np.testing.assert_array_equal(loaded.adata.obs["condition_id"], loaded.screen.cell_condition)
    assert "cellA_GX03+ctrl_1+1" not in loaded.adata.uns["rank_genes_groups_cov_all"]
    loaded.load("toy")
    assert "GX03+ctrl" in loaded.screen.labels


def test_the_three_kinds_of_nodes(tmp_path, toy_adata, caplog):
    go = {"GX00": ["a"], "FAR1": ["a"]}
    (tmp_path / "genes.txt").write_text("GX00\nFAR2\n")
    perturbed = {f"GX{i:02d}" for i in range(8)}
    default = pert_data_of(tmp_path, toy_adata, gene2go=go)
    assert set(default.pert_names) == perturbed | {"FAR1"}
    measured = PertData(tmp_path, None, False, gene2go=go)
    measured.load("toy")
    assert set(measured.pert_names) == {f"GX{i:02d}" for i in range(30)}
    listed = PertData(tmp_path, tmp_path / "genes.txt", gene2go=go)
    listed.load("toy")
    assert set(listed.pert_names) == perturbed | {"FAR2"}
    assert "added to the gene set: 7 perturbed genes" in caplog.text
    for data in (default, measured, listed):
        assert data.pert_names.tolist() == sorted(data.pert_names.tolist())
        assert [data.node_map_pert[gene] for gene in data.pert_names] == list(range(len(data.pert_names)))


def test_condition_nodes(toy_data):
    assert toy_data.condition_nodes("ctrl") == []
    assert toy_data.condition_nodes(Condition(("GX20",))) == [toy_data.node_map_pert["GX20"]]  # never perturbed here
    with pytest.raises(KeyError, match=r"'GX0' is not in the perturbation graph; did you mean GX"):
        toy_data.condition_nodes("GX0")


# Splits and loaders


def test_prepare_split_returns_a_table_and_sets_the_published_attributes(toy_data):
    table = toy_data.prepare_split("simulation", 2, train_gene_set_size=0.7)
    assert list(table.columns) == ["condition", "part", "subgroup", "n_cells", "reason"]
    assert sorted(table["condition"]) == sorted(toy_data.screen.labels)
    assert toy_data.split is not None
    assert toy_data.set2conditions == {
        part: table.loc[table["part"] == part, "condition"].tolist() for part in ("train", "val", "test")
    }
    assert (toy_data.seed, toy_data.train_gene_set_size) == (2, 0.7)
    assert set(toy_data.subgroup) == {"test_subgroup", "val_subgroup"}
    assert "ctrl" in toy_data.set2conditions["train"]


def test_custom_splits_from_dict_and_file(toy_data, tmp_path):
    parts = {"train": ["ctrl", "GX00+ctrl"], "val": ["GX01+ctrl"], "test": ["GX01+GX00"]}
    toy_data.prepare_split("custom", split_dict=parts)
    assert toy_data.set2conditions == parts | {"test": ["GX00+GX01"]}
    (tmp_path / "split.json").write_text(json.dumps(parts))
    toy_data.prepare_split("custom", split_dict_path=tmp_path / "split.json")
    assert toy_data.set2conditions == parts | {"test": ["GX00+GX01"]}
    with pytest.raises(ValueError, match="not both"):
        toy_data.prepare_split("custom", split_dict=parts, split_dict_path=tmp_path / "split.json")


def test_a_split_made_elsewhere_is_taken(toy_data):
    from gears.data.splits import folds, make_split

    for split in folds(toy_data.screen, 3):
        table = toy_data.use_split(split)
        assert toy_data.split is split
        assert len(table) == len(toy_data.screen.labels)
        assert toy_data.get_dataloader(8).keys() == {"train_loader", "val_loader", "test_loader"}
    toy_data.prepare_split("cross_validation", n_folds=3, fold=2)
    assert toy_data.set2conditions == {part: list(names) for part, names in split.parts.items()}
    with pytest.raises(ValueError, match=r"'no_test' names 11 labels that the screen lacks"):
        toy_data.use_split(make_split(["ctrl", *(f"X{i}+ctrl" for i in range(11))], "no_test"))


def test_loaders_are_returned_and_set_in_every_mode(toy_data):
    for split, names in (
        ("simulation", ["train_loader", "val_loader", "test_loader"]),
        ("no_test", ["train_loader", "val_loader"]),
        ("no_split", ["test_loader"]),
    ):
        toy_data.prepare_split(split)
        found = toy_data.get_dataloader(8, 4)
        assert list(found) == names
        assert toy_data.dataloader is found
    toy_data.prepare_split("simulation")
    half = toy_data.get_dataloader_distributed(8, world_size=2, rank=1, num_workers=0)
    batch = next(iter(half["train_loader"]))
    assert len(batch) in (7, 8)  # of equal size, without a remainder
    for label, nodes in zip(batch.pert, batch.pert_idx, strict=True):
        assert nodes == (toy_data.condition_nodes(label) or [-1])
    with pytest.raises(ValueError, match="global batch of 400"):
        toy_data.get_dataloader_distributed(100, world_size=4, num_workers=0)


def test_random_state_and_folder_of_the_caller_stay(tmp_path, toy_adata, toy_go, monkeypatch):
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    np.random.seed(1)  # noqa: NPY002
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    data = pert_data_of(tmp_path / "deep" / "data", toy_adata, gene2go=toy_go)
    data.prepare_split()
    next(iter(data.get_dataloader(8)["train_loader"]))
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002
    assert not list((tmp_path / "cwd").iterdir())


@pytest.mark.shared
def test_a_real_screen(shared, tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        data = PertData(tmp_path)
        data.load(data_path=shared / "data" / "norman2019_subset.h5ad")
    assert len(data.pert_names) > 18_000
    table = data.prepare_split("simulation", seed=1)
    assert table["n_cells"].sum() == 3375
    assert len(next(iter(data.get_dataloader(32)["train_loader"]))) in (31, 32)
    with pytest.raises(ValueError, match=r"3 cell types .*pool_cell_types=True"):
        data.load(data_path=shared / "data" / "mcfaline2023_subset.h5ad")
    data.load(data_path=shared / "data" / "papalexi2021_subset.h5ad")
    assert data.screen.statistics.n.max() == 1923


def test_a_file_changed_after_preparing_is_warned_about(tmp_path, toy_adata, toy_go, caplog):
    import os

    toy_adata.write_h5ad(tmp_path / "toy.h5ad")
    PertData(tmp_path, gene2go=toy_go).load("toy")
    PertData(tmp_path, gene2go=toy_go).load("toy")
    assert "was changed after" not in caplog.text
    later = (tmp_path / "toy" / "manifest.json").stat().st_mtime + 10
    os.utime(tmp_path / "toy.h5ad", (later, later))
    PertData(tmp_path, gene2go=toy_go).load("toy")
    assert "toy.h5ad was changed after the prepared screen toy was made" in caplog.text
