"""Folders that cell-gears prepared: taken over whole (that nothing in their pickles can run: tests/guard)."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from gears.published import load_cell_gears_folder

PARTS = {
    "train": ["ctrl", "GX00+ctrl", "GX01+ctrl", "GX02+ctrl", "GX00+GX01"],
    "val": ["GX04+ctrl"],
    "test": ["GX05+ctrl", "GX04+GX05", "GX02+GX00"],
}


@pytest.fixture
def old(tmp_path, toy_adata, toy_go):
    """What cell-gears leaves behind."""
    toy_adata.obs["condition"] = toy_adata.obs["condition"].astype(str).replace({"GX00+GX02": "GX02+GX00"})
    toy_adata.uns["rank_genes_groups_cov_all"] = {"cellA_GX00+ctrl_1+1": ["ENS000"]}
    (tmp_path / "old" / "toy" / "splits").mkdir(parents=True)
    (tmp_path / "old" / "toy" / "data_pyg").mkdir()
    toy_adata.write_h5ad(tmp_path / "old" / "toy" / "perturb_processed.h5ad")
    terms = {gene: set(names) for gene, names in toy_go.items() if gene != "GX07"}
    terms["FAR1"] = {"T01"}
    dump = {
        "gene2go_all.pkl": terms,
        "essential_all_data_pert_genes.pkl": np.array([*toy_go, "FAR2"], dtype=object),
        "toy/splits/toy_simulation_1_0.75.pkl": {part: np.array(names) for part, names in PARTS.items()},
        "toy/splits/toy_simulation_1_0.75_subgroup.pkl": {
            "test_subgroup": {
                "combo_seen1": ["GX04+GX05"],
                "unseen_single": ["GX05+ctrl"],
                "combo_seen2": ["GX02+GX00"],
            },
            "val_subgroup": {"unseen_single": ["GX04+ctrl"]},
        },
    }
    for name, value in dump.items():
        (tmp_path / "old" / name).write_bytes(pickle.dumps(value))
    (tmp_path / "old" / "toy" / "data_pyg" / "cell_graphs.pkl").write_bytes(b"\x80\x04cposix\nsystem\n.")
    return tmp_path / "old"


def files(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_a_folder_is_taken_over(old):
    before = files(old)
    data = load_cell_gears_folder(old, "toy", split="simulation")
    assert data.dataset_path == old / "toy-prepared"
    assert {name: stamp for name, stamp in files(old).items() if name in before} == before
    # essential genes with terms; FAR1 is not essential, FAR2 and GX07 have no terms
    assert set(data.pert_names) == {f"GX{i:02d}" for i in range(30)} - {"GX07"}
    assert "GX07+ctrl" not in data.screen.labels
    in_order = {part: [label for label in data.screen.labels if label in names] for part, names in PARTS.items()}
    assert data.set2conditions == in_order
    assert data.subgroup["test_subgroup"]["combo_seen1"] == ["GX04+GX05"]
    assert "GX03+ctrl" in data.split.excluded
    data.get_dataloader(8)
    again = load_cell_gears_folder(old, "toy")
    assert again.screen.content_hash == data.screen.content_hash


def test_twins_of_a_published_split_are_put_together(old, toy_adata, caplog):
    labels = toy_adata.obs["condition"].astype(str).to_numpy()
    labels[np.flatnonzero(labels == "GX05+ctrl")[:6]] = "ctrl+GX05"
    toy_adata.obs["condition"] = labels
    toy_adata.write_h5ad(old / "toy" / "perturb_processed.h5ad")
    leaky = PARTS | {"train": [*PARTS["train"], "ctrl+GX05"]}
    (old / "toy" / "splits" / "toy_simulation_1_0.75.pkl").write_bytes(pickle.dumps(leaky))
    data = load_cell_gears_folder(old, "toy", split="simulation")
    assert "1 label of a condition whose other labels" in caplog.text
    assert {"ctrl+GX05", "GX05+ctrl"} <= set(data.set2conditions["test"])


def test_what_is_missing_is_named(old):
    with pytest.raises(FileNotFoundError, match=r"no norman/perturb_processed\.h5ad"):
        load_cell_gears_folder(old, "norman")
    with pytest.raises(FileNotFoundError, match=r"simulation_3_0.75.pkl \(there are: toy_simulation_1_0.75.pkl"):
        load_cell_gears_folder(old, "toy", split="simulation", seed=3)
    odd = PARTS | {"test": ["GX09+ctrl"]}
    (old / "toy" / "splits" / "toy_simulation_1_0.75.pkl").write_bytes(pickle.dumps(odd))
    with pytest.raises(ValueError, match=r"labels that the screen lacks \(GX09\+ctrl\)"):
        load_cell_gears_folder(old, "toy", split="simulation")
