"""`gears prepare`, `convert` and the files of `predict`, in this process."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from test_cli import refused

from gears.cli import main

if TYPE_CHECKING:
    from anndata import AnnData

PUBLISHED = Path(__file__).parents[1] / "cell_gears" / "published"
GENES = [f"G{i:02d}" for i in range(12)]
PERTS = ["G00", "G01", "G03", "G05", "P0", "P1", "P2"]


def called(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    """What a command prints as JSON; nothing else is on stdout."""
    assert main([*map(str, arguments), "--json", "--quiet"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def small(toy_adata: AnnData) -> AnnData:
    """The toy screen in the genes of the recorded models."""
    adata = toy_adata[:, :12].copy()
    adata.var["gene_name"] = GENES
    adata.obs["condition"] = ["ctrl"] * 60 + ["G00+ctrl"] * 60 + ["G03+P2"] * 96
    return adata


@pytest.fixture
def old(tmp_path: Path, toy_adata: AnnData) -> Path:
    """A data folder of cell-gears for the recorded models, with a split."""
    folder = tmp_path / "old"
    (folder / "toy" / "splits").mkdir(parents=True)
    small(toy_adata).write_h5ad(folder / "toy" / "perturb_processed.h5ad")
    dump = {
        "gene2go_all.pkl": {gene: {"T1", f"T{gene}"} for gene in [*PERTS, "FAR"]},
        "essential_all_data_pert_genes.pkl": np.array(PERTS, dtype=object),
        "toy/splits/toy_simulation_1_0.75.pkl": {"train": ["ctrl", "G00+ctrl"], "val": [], "test": ["G03+P2"]},
    }
    for name, value in dump.items():
        (folder / name).write_bytes(pickle.dumps(value))
    return folder


def test_prepare_writes_the_screen_once(tmp_path: Path, toy_adata: AnnData, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.h5ad"
    toy_adata.write_h5ad(file)
    options = ["--work-dir", tmp_path / "work", "--no-default-pert-graph"]
    value = called(capsys, "prepare", file, *options, "--min-cells", 5)
    assert value["folder"] == str(tmp_path / "work" / "mine")
    assert value["ok"] is True
    assert "216" in str(value["facts"])
    stamp = (tmp_path / "work" / "mine" / "manifest.json").stat().st_mtime_ns
    assert main(["prepare", str(file), *map(str, options), "--min-cells", "5", "--quiet"]) == 0
    assert capsys.readouterr().out.endswith(f"prepared: {tmp_path / 'work' / 'mine'}\n")
    assert (tmp_path / "work" / "mine" / "manifest.json").stat().st_mtime_ns == stamp
    assert called(capsys, "prepare", "mine", *options, "--min-cells", 5)["folder"] == value["folder"]
    toy_adata.obs = toy_adata.obs.rename(columns={"condition": "perturbation"})
    toy_adata.write_h5ad(file)
    assert "--sep +" in refused(capsys, "prepare", file, "--work-dir", tmp_path / "other")
    assert "no file or folder" in refused(capsys, "prepare", tmp_path / "none.h5ad")


def test_options_from_a_file_for_any_command(
    tmp_path: Path, toy_adata: AnnData, capsys: pytest.CaptureFixture[str]
) -> None:
    toy_adata.write_h5ad(tmp_path / "mine.h5ad")
    config = tmp_path / "prepare.yaml"
    config.write_text(f"file: {tmp_path / 'mine.h5ad'}\nwork_dir: {tmp_path / 'work'}\nmin_cells: 13\n")
    assert "min_cells" in refused(capsys, "prepare", "--config", config)  # every condition has 12
    value = called(capsys, "prepare", "--config", config, "--min-cells", 12)
    assert value["folder"] == str(tmp_path / "work" / "mine")
    config.write_text("fil: mine.h5ad\n")
    assert "fil" in refused(capsys, "prepare", "--config", config)


def test_a_screen_of_cell_gears_is_converted(tmp_path: Path, old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--dataset (there are: toy)" in refused(capsys, "convert", old, tmp_path / "new")
    value = called(capsys, "convert", old, tmp_path / "new", "--dataset", "toy")
    assert value == {
        "folder": str(tmp_path / "new" / "toy"), "split": None, "n_cells": 216, "n_conditions": 2, "n_nodes": 7,
    }  # fmt: skip
    assert "toy_simulation_1_0.75.pkl" in refused(
        capsys, "convert", old, tmp_path / "new", "--dataset", "toy", "--split", "single"
    )
    assert "no folder" in refused(capsys, "convert", tmp_path / "none", tmp_path / "new")


def test_a_model_of_cell_gears_is_converted(tmp_path: Path, old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = PUBLISHED / "plain"
    by_screen, by_names = tmp_path / "by_screen", tmp_path / "by_names"
    assert "--data and --dataset" in refused(capsys, "convert", source, by_screen)
    value = called(capsys, "convert", source, by_screen, "--data", old, "--dataset", "toy")
    assert value == {"model": str(by_screen), "n_genes": 12, "n_perts": 7}
    names = tmp_path / "names.json"
    names.write_text(json.dumps({"gene_names": GENES, "pert_names": PERTS, "control_mean": [0.5] * 12}))
    called(capsys, "convert", source, by_names, "--names", names)
    deltas = []
    for folder in (by_screen, by_names):
        called(
            capsys, "predict", folder, "P1+G00", "--output", folder / "p.csv", "--values", "delta", "--no-clip",
            "--device", "cpu",
        )  # fmt: skip
        deltas.append(pd.read_csv(folder / "p.csv", index_col=0).loc["G00+P1"].to_numpy())
    np.testing.assert_allclose(deltas[0], deltas[1], atol=1e-6)
    names.write_text(json.dumps({"gene_names": GENES}))
    assert "--overwrite to replace it" in refused(capsys, "convert", source, by_names, "--names", names)
    assert "pert_names" in refused(capsys, "convert", source, by_names, "--names", names, "--overwrite")


def test_predictions_of_a_file_and_of_all_pairs(
    tmp_path: Path, quick_workers: None, capsys: pytest.CaptureFixture[str]
) -> None:
    from anndata import read_h5ad

    from gears.published import load_cell_gears_model

    names: dict[str, Any] = {"gene_names": GENES, "pert_names": PERTS, "control_mean": np.full(12, 0.5)}
    model = load_cell_gears_model(PUBLISHED / "uncertain", device="cpu", **names)
    model.save_model(tmp_path / "model")
    (tmp_path / "asked.txt").write_text("# mine\nG00\n\nP1+G03\n")
    common = ["--device", "cpu", "--output"]
    value = called(
        capsys, "predict", tmp_path / "model", "P2", "--file", tmp_path / "asked.txt", *common, tmp_path / "a.h5ad"
    )
    assert value == {"output": str(tmp_path / "a.h5ad"), "n_conditions": 3, "n_genes": 12}
    written = read_h5ad(tmp_path / "a.h5ad")
    assert list(written.obs_names) == ["P2+ctrl", "G00+ctrl", "G03+P1"]
    expected = model.predict(["P2", "G00", "P1+G03"])
    np.testing.assert_allclose(written.X, expected.expression_UG, atol=1e-6)
    assert set(written.layers) - {None} == {"delta", "cell_sd"}
    value = called(
        capsys, "predict", tmp_path / "model", "G00", "P1", "P2", "--all-pairs", "--n-at-once", "1", *common,
        tmp_path / "b.zarr",
    )  # fmt: skip
    assert value["n_conditions"] == 3
    assert "pass the genes to pair" in refused(
        capsys, "predict", tmp_path / "model", "--all-pairs", *common, tmp_path / "c.h5ad"
    )
    (tmp_path / "empty.txt").write_text("# nothing\n")
    assert "no perturbation" in refused(capsys, "predict", tmp_path / "model", "--file", tmp_path / "empty.txt")


def test_training_prepares_into_the_work_folder(
    tmp_path: Path, toy_adata: AnnData, quick_workers: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also a folder that is no zarr store or 10x folder: nothing is written beside the user's data."""
    (tmp_path / "data" / "published").mkdir(parents=True)
    toy_adata.write_h5ad(tmp_path / "data" / "published" / "perturb_processed.h5ad")
    where = ["--save-path", tmp_path / "model", "--work-dir", tmp_path / "work", "--device", "cpu"]
    small_run = ["--n-gpus", "1", "--epochs", "0", "--hidden-size", "4", "--no-default-pert-graph"]
    called(capsys, "train", tmp_path / "data" / "published", *where, *small_run)
    assert (tmp_path / "work" / "published" / "manifest.json").is_file()
    assert [path.name for path in (tmp_path / "data").rglob("*")] == ["published", "perturb_processed.h5ad"]


def test_own_graphs_vectors_and_an_ontology(
    tmp_path: Path, toy_adata: AnnData, toy_go: dict[str, set[str]], quick_workers: None, capsys
) -> None:
    from gears import GEARS, PertData

    toy_adata.write_h5ad(tmp_path / "mine.h5ad")
    genes = toy_adata.var["gene_name"].tolist()
    annotated = [f"{gene}\tGO:00000{term[1:]}" for gene in genes for term in sorted(toy_go[gene])]
    (tmp_path / "terms.tsv").write_text("\n".join(["gene\tterm", *annotated]) + "\n")
    stanzas = [f"[Term]\nid: GO:00000{t:02d}\nname: t{t}\nis_a: GO:0000099\n" for t in range(15)]
    stanzas.append("[Term]\nid: GO:0000099\nname: all\nis_a: GO:0000100\n\n[Term]\nid: GO:0000100\nname: root\n")
    (tmp_path / "terms.obo").write_text("format-version: 1.2\n\n" + "\n".join(stanzas))
    (tmp_path / "edges.tsv").write_text("source\ttarget\tweight\nGX05\tGX09\t0.75\n")
    vectors = pd.DataFrame(np.random.default_rng(0).normal(size=(30, 4)), index=pd.Index(genes, name="gene"))
    vectors.to_csv(tmp_path / "vectors.csv")
    given = ["--gene2go", "terms.tsv", "--obo", "terms.obo", "--coexpress-graph", "edges.tsv"]
    given += ["--pert-embedding", "vectors.csv", "--no-default-pert-graph", "--min-cells", "5"]
    options = [str(tmp_path / word) if (tmp_path / word).is_file() else word for word in given]
    where = ["--save-path", tmp_path / "model", "--work-dir", tmp_path / "work", "--device", "cpu"]
    called(capsys, "train", tmp_path / "mine.h5ad", *where, "--n-gpus", "1", "--hidden-size", "4", *options)
    model = GEARS.from_pretrained(tmp_path / "model")
    graph = model.parts.coexpress
    edges = {(genes[s], genes[t]): w for (s, t), w in zip(graph.edge_index.T, graph.weight, strict=True)}
    assert edges["GX05", "GX09"] == pytest.approx(0.75)
    assert "pert_embedding" in (tmp_path / "model" / "run.yaml").read_text()
    again = PertData(
        tmp_path / "work", gene2go=tmp_path / "terms.tsv", obo=tmp_path / "terms.obo", default_pert_graph=False
    )
    again.load("mine")
    assert "GO:0000099" in again.annotation.terms


def test_a_column_of_labels_in_the_users_own_spelling(
    tmp_path: Path, quick_workers: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prepared, trained, predicted and evaluated under the labels of the user's own table."""
    from gears import simulated_screen

    adata, _ = simulated_screen(n_genes=40, n_singles=12, n_pairs=10, cells_per_condition=12, n_control=40, seed=1)
    genes = [[gene for gene in label.split("+") if gene != "ctrl"] for label in adata.obs["condition"]]
    sign, control, column = "&", "vehicle", "my_label"
    adata.obs[column] = [sign.join(names) or control for names in genes]
    del adata.obs["condition"]
    adata.write_h5ad(tmp_path / "own.h5ad")
    work = ["--work-dir", tmp_path / "work", "--no-default-pert-graph"]
    spelling = ["--condition-key", column, "--ctrl-label", control, "--sep", sign]
    folder = called(capsys, "prepare", tmp_path / "own.h5ad", *work, *spelling)["folder"]
    called(capsys, "train", folder, *work, "--save-path", tmp_path / "model", "--device", "cpu", "--epochs", 0)
    pair = next(names for names in genes if len(names) == 2)
    labels = [sign.join(pair), f"{pair[0]}{sign}{control}"]
    rows = called(capsys, "predict", tmp_path / "model", *labels, "--top", 1, "--device", "cpu")
    assert [row["condition"] for row in rows] == ["+".join(pair), f"{pair[0]}+ctrl"]
    (tmp_path / "labels.txt").write_text("\n".join(labels))
    assert called(capsys, "predict", tmp_path / "model", "--file", tmp_path / "labels.txt", "--top", 1) == rows
    assert called(capsys, "evaluate", tmp_path / "model", folder)["summary"]
    # the file alone does not say how its labels are written
    message = refused(capsys, "evaluate", tmp_path / "model", tmp_path / "own.h5ad", "--work-dir", tmp_path / "x")
    assert "--condition-key" in message
    assert "give the folder that it prints" in message
