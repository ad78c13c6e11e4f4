"""Several screens with their own genes as the contexts of one."""

import json
import logging

import numpy as np
import pandas as pd
import pytest
from anndata import AnnData
from scipy import sparse

from gears import GEARS, PertData, train_multi_gpu
from gears.cli import main as command
from gears.graphs import GeneAnnotation

GENES = [f"GX{i:02d}" for i in range(30)]
LINES = ("L1", "L2", "L3", "L4")
MISSING = {"L1": {"GX28"}, "L2": {"GX02", "GX29"}, "L3": set(), "L4": set()}
SHARED = [gene for gene in GENES if gene not in {"GX28", "GX02", "GX29"}]


def line(name: str, genes: list[str], *, n: int = 12) -> AnnData:
    """Counts of one line: ten genes perturbed, effects that lines share, its own expression; `genes` in its order."""
    rng, base = np.random.default_rng(5), np.random.default_rng(LINES.index(name)).uniform(1, 9, size=30)
    effects = rng.choice([0, 0, 0, -1.2, 1.2], size=(10, 30))
    labels = ["ctrl"] * 40 + [f"{gene}+ctrl" for gene in GENES[:10] for _ in range(n)]
    rows = [np.zeros(30)] * 40 + [effects[row] for row in range(10) for _ in range(n)]
    counts = np.random.default_rng([9, LINES.index(name)]).poisson(20 * base * np.exp(rows))
    obs = pd.DataFrame({"condition": labels, "cell_type": "cells"}, index=[f"c{i}" for i in range(len(labels))])
    columns = [GENES.index(gene) for gene in genes]
    var = pd.DataFrame({"gene_name": genes}, index=[f"id{column}" for column in columns])
    return AnnData(sparse.csr_matrix(counts[:, columns].astype(np.float32)), obs=obs, var=var)


@pytest.fixture(scope="module")
def lines():
    """Four lines, genes in another order in each, some of them missing."""
    order = {name: np.random.default_rng(len(name) + row).permutation(30) for row, name in enumerate(LINES)}
    return {name: line(name, [GENES[i] for i in order[name] if GENES[i] not in MISSING[name]]) for name in LINES}


@pytest.fixture
def files(lines, tmp_path):
    """The first three as files."""
    for name in LINES[:3]:
        lines[name].copy().write_h5ad(tmp_path / f"{name}.h5ad")
    return {name: str(tmp_path / f"{name}.h5ad") for name in LINES[:3]}


def alone(name: str, lines, folder, gene2go) -> PertData:
    data = PertData(folder / "alone", gene2go=gene2go)
    data.new_data_process(name, lines[name], normalize=True)
    return data


def test_each_screen_becomes_a_context_with_its_own_statistics(lines, files, tmp_path, toy_go):
    """From a file, an AnnData, a prepared folder and a PertData alike: values as if each were prepared alone."""
    sources = {"L1": files["L1"], "L2": lines["L2"], "L3": alone("L3", lines, tmp_path, toy_go)}
    data = PertData.from_screens(sources, data_path=tmp_path / "data", gene2go=toy_go, normalize=True)
    assert data.screen.contexts == LINES[:3]
    assert sorted(data.gene_names) == SHARED
    for name in LINES[:3]:
        own, view = alone(name, lines, tmp_path, toy_go).screen, data.screen.setting(name)
        columns = [own.gene_names.index(gene) for gene in data.gene_names]
        assert set(view.conditions) == set(own.conditions)
        for condition in own.conditions:
            mean_G = own.statistics.mean[own.id_of(condition), columns]
            np.testing.assert_allclose(view.statistics.mean[view.id_of(condition)], mean_G, atol=1e-7)
    sources["L1"] = alone("L1", lines, tmp_path, toy_go).dataset_path
    again = PertData.from_screens(sources, data_path=tmp_path / "data", gene2go=toy_go, normalize=True)
    assert again.screen.content_hash == data.screen.content_hash


def test_gene_names_are_brought_to_one_spelling_and_listed_once(lines, tmp_path, toy_go, caplog):
    renamed = {name: lines[name].copy() for name in LINES[:3]}
    names = {"L1": {"GX04": "OLD4", "GX12": "ENSG00000000012.5"}, "L2": {"GX12": "ENSG00000000012.7"}, "L3": {}}
    for name, adata in renamed.items():
        adata.var["gene_name"] = [names[name].get(gene, gene) for gene in adata.var["gene_name"]]
    renamed["L1"].obs["condition"] = renamed["L1"].obs["condition"].astype(str).replace({"GX04+ctrl": "OLD4+ctrl"})
    renamed["L3"].var.index = ["ENSG00000000012.1" if one == "id12" else one for one in renamed["L3"].var.index]
    annotation = GeneAnnotation.from_dict(toy_go, aliases={"OLD4": "GX04"})
    with caplog.at_level(logging.WARNING, logger="gears"):
        data = PertData.from_screens(renamed, data_path=tmp_path, gene2go=annotation, normalize=True, verbose=False)
    assert sorted(data.gene_names) == SHARED
    assert {one.context for one in data.screen.conditions if one.genes == ("GX04",)} == set(LINES[:3])
    (listed,) = [record.message for record in caplog.records if "under one name of several" in record.message]
    assert listed.startswith("3 gene names")
    assert "L1: OLD4 is GX04" in listed
    assert "L2: ENSG00000000012.7 is GX12" in listed


def test_every_problem_is_listed_with_its_screen_and_nothing_is_written(lines, tmp_path, toy_go):
    def refused(words: str, sources, **options) -> None:
        with pytest.raises((ValueError, FileNotFoundError), match=words):
            PertData.from_screens(sources, data_path=tmp_path / "data", gene2go=toy_go, verbose=False, **options)
        assert not any((tmp_path / "data").iterdir())

    first, second = lines["L1"], lines["L2"]
    no_control = second[second.obs["condition"] != "ctrl"].copy()
    bad = first.copy()
    bad.X = bad.X * 0.37
    refused(
        r"(?s)cannot be put together.*\n  - A: .*normalize=True needs.*\n  - B: .*control",
        {"A": bad, "B": no_control},
        normalize=True,
    )
    prepared = alone("L1", lines, tmp_path, toy_go)
    refused(r"B: .*raw counts.*normalize=True", {"A": prepared, "B": second})
    per_million = second.copy()
    totals = np.asarray(per_million.X.sum(axis=1)).ravel()
    per_million.X = sparse.csr_matrix(sparse.diags(1e6 / totals) @ per_million.X).log1p().astype(np.float32)
    refused(r"different sums \(A 10,000, B 1,000,000\)", {"A": prepared, "B": per_million})
    other = second.copy()
    other.var["gene_name"] = [f"HX{i}" for i in range(other.n_vars)]
    refused("no gene is measured by all screens", {"A": first, "B": other}, normalize=True)
    refused("two or more", {"A": first}, normalize=True)
    refused("cannot name a screen", {"A": first, "B @ C": second}, normalize=True)
    refused("there is no file or folder", {"A": first, "B": str(tmp_path / "none.h5ad")}, normalize=True)
    refused("omit context_key", {"A": first, "B": second}, normalize=True, context_key="cell_type")
    refused("B: .*no column 'guide'", {"A": first, "B": second}, normalize=True, perturbation_type_key="guide")
    lot = PertData(tmp_path / "lots", gene2go=toy_go)
    lot.new_data_process("lot", second.copy()[:, :].copy(), normalize=True, context_key="cell_type")
    batched = second.copy()
    batched.obs["lane"] = ["a", "b"] * (batched.n_obs // 2)
    lot.new_data_process("batched", batched, normalize=True, batch_key="lane")
    refused(r"B: it was prepared with batch_key=\['lane'\]", {"A": first, "B": lot}, normalize=True)
    whole = PertData.from_screens({"A": first, "B": second}, data_path=tmp_path / "ok", gene2go=toy_go, normalize=True)
    refused("B: it has 2 contexts", {"A": first, "B": whole}, normalize=True)


def test_three_files_to_a_prediction_for_a_fourth_line_by_python_and_by_command(lines, files, tmp_path, capsys, toy_go):
    fourth = lines["L4"]
    totals = np.asarray(fourth.X.sum(axis=1)).ravel()
    fourth = AnnData(
        sparse.csr_matrix(sparse.diags(1e4 / totals) @ fourth.X).log1p().astype(np.float32), fourth.obs, fourth.var
    )
    controls = fourth[fourth.obs["condition"] == "ctrl"].copy()
    (tmp_path / "jobs").mkdir()
    result = train_multi_gpu(
        tmp_path / "jobs", "three",
        {"split": "context_and_gene_held_out", "test_contexts": ["L3"], "test_pert_genes": ["GX09"]},
        {"save_path": str(tmp_path / "model"), "verbose": False}, device="cpu",
        data_config={"screens": files, "normalize": True, "gene2go": toy_go},
    )  # fmt: skip
    rows = result.table[result.table["condition"] != "*"]
    assert set(rows["subgroup"]) == {"unseen_gene", "unseen_context", "unseen_gene_and_context"}
    model = GEARS.from_pretrained(tmp_path / "model", device="cpu")
    predicted = model.predict(["GX03", "GX05"], controls=controls, context="L4")
    columns = [fourth.var["gene_name"].tolist().index(gene) for gene in model.gene_list]
    for row, gene in enumerate(("GX03", "GX05")):
        is_cell, is_control = (fourth.obs["condition"] == label for label in (f"{gene}+ctrl", "ctrl"))
        change = (fourth.X[is_cell.to_numpy()].mean(axis=0) - fourth.X[is_control.to_numpy()].mean(axis=0)).A1[columns]
        assert np.corrcoef(predicted.delta_UG[row], change)[0, 1] > 0.8
    (tmp_path / "go.json").write_text(json.dumps({gene: sorted(terms) for gene, terms in toy_go.items()}))
    words = ["prepare", "three", "--screens", *(f"{name}={file}" for name, file in files.items()), "--normalize"]
    words += ["--work-dir", str(tmp_path / "work"), "--gene2go", str(tmp_path / "go.json"), "--quiet", "--json"]
    assert command(words) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["folder"] == str(tmp_path / "work" / "three")
    assert printed["facts"]["genes"] == len(SHARED)
    assert command(["prepare", "three", "--screens", "L1", "--work-dir", str(tmp_path / "work"), "--quiet"]) == 2
    assert "expected NAME=FILE" in capsys.readouterr().err
