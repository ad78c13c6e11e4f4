"""Several screens with their own genes as the contexts of one."""

import json
import logging

import numpy as np
import pandas as pd
import pytest
from anndata import AnnData, read_h5ad
from driving import pert_data_of, trained_gears
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
    return pert_data_of(folder / "alone", lines[name], name, gene2go=gene2go, normalize=True)


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
    lot = pert_data_of(
        tmp_path / "lots", second.copy()[:, :].copy(), "lot", gene2go=toy_go, normalize=True, context_key="cell_type"
    )
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
        {"save_path": str(tmp_path / "model"), "epochs": 0, "verbose": False}, device="cpu",
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


@pytest.fixture(scope="module")
def union(lines, tmp_path_factory, toy_go):
    """The first three over all genes, with a model."""
    data = PertData.from_screens(
        {name: lines[name] for name in LINES[:3]}, data_path=tmp_path_factory.mktemp("union"), genes="all",
        gene2go=toy_go, normalize=True, verbose=False,
    )  # fmt: skip
    data.prepare_split("unit_held_out", seed=2)
    model = GEARS(data, device="cpu")
    model.model_initialize()
    model.train(epochs=0, verbose=False, evaluate_test=False)
    return data, model


def test_genes_that_one_line_does_not_measure_are_predicted_from_the_others_and_marked(union, lines, tmp_path):
    data, model = union
    assert sorted(data.gene_names) == GENES
    column = {gene: number for number, gene in enumerate(data.gene_names)}
    predicted = model.predict(GENES[:10])
    absent = {name: [column[gene] for gene in MISSING[name]] for name in LINES[:3]}
    for row, condition in enumerate(predicted.conditions):
        expected = np.ones(30, dtype=bool)
        expected[absent[condition.context]] = False
        np.testing.assert_array_equal(predicted.measured[row], expected)
    adata = predicted.to_adata()
    np.testing.assert_array_equal(adata.layers["measured"], predicted.measured)
    assert data.adata.var["measured_L2"].tolist() == [gene not in MISSING["L2"] for gene in data.gene_names]
    # the change of the other lines, far from the absence of one, with a wider interval than where it was measured
    genes, trained = [column["GX02"], column["GX29"]], set(data.split.conditions("train"))
    other = {one.genes: row for row, one in enumerate(predicted.conditions) if one.context == "L3" and one in trained}
    here = {one.genes: row for row, one in enumerate(predicted.conditions) if one.context == "L2" and one in trained}
    both = sorted(here.keys() & other.keys())
    rows, others = [here[one] for one in both], [other[one] for one in both]
    there = predicted.delta_UG[np.ix_(others, genes)]
    assert len(both) >= 5
    assert np.abs(there).max() > 0.3
    assert np.abs(predicted.delta_UG[np.ix_(rows, genes)] - there).max() < 0.5 * np.abs(there).max()
    assert (predicted.sd_change[np.ix_(rows, genes)] > predicted.sd_change[np.ix_(others, genes)]).all()
    model.save_model(tmp_path / "model")
    again = GEARS.from_pretrained(tmp_path / "model", device="cpu").predict(GENES[:10])
    np.testing.assert_array_equal(again.measured, predicted.measured)
    np.testing.assert_array_equal(again.expression_UG, predicted.expression_UG)
    np.testing.assert_array_equal(again.sd, predicted.sd)
    model.predict_to_file(["GX01"], tmp_path / "out.h5ad")
    assert read_h5ad(tmp_path / "out.h5ad").layers["measured"].sum() == again.measured[3:6].sum()
    new = model.predict(["GX01"], controls=scaled(lines["L4"])[:40], context="L4")
    assert new.measured.all()


def scaled(counts: AnnData) -> AnnData:
    """Log-normalised, as screens are prepared."""
    factor = sparse.diags(1e4 / np.asarray(counts.X.sum(axis=1)).ravel())
    return AnnData(sparse.csr_matrix(factor @ counts.X).log1p().astype(np.float32), counts.obs, counts.var)


def test_scores_and_baselines_count_only_genes_that_the_line_measures(union):
    data, model = union
    screen, trained = data.screen, set(data.split.conditions("train"))
    table = model.evaluate("test", metrics=["pearson_delta"], n_split_half=0, baselines=["additive"])
    scores = table.set_index(["condition", "method"])["value"]

    def change(condition, gene: int) -> float:
        return float(screen.statistics.delta(np.array([screen.id_of(condition)]))[0, gene])

    checked = 0
    for condition in data.split.conditions("test"):
        known = [number for number, gene in enumerate(data.gene_names) if gene not in MISSING[condition.context]]
        true = [change(condition, number) for number in known]
        predicted = model.predict([condition.name]).delta_UG[0, known]
        assert scores[condition.name, "gears"] == pytest.approx(np.corrcoef(true, predicted)[0, 1], abs=1e-5)
        moved = []
        for number in known:
            lines = [name for name in LINES[:3] if data.gene_names.iloc[number] not in MISSING[name]]
            changes = [change(one, number) for name in lines if (one := condition.plain.at(name)) in trained]
            moved.append(np.mean(changes) if changes else 0.0)
        if any(moved):  # it trains in another line: the mean over those that measure each gene
            checked += 1
            found = scores[condition.name, "additive"]
            assert found == pytest.approx(np.corrcoef(true, moved)[0, 1], abs=1e-5)
    assert checked >= 2


def test_all_genes_are_the_shared_ones_where_all_lines_measure_them(lines, tmp_path, toy_go):
    options = {"gene2go": toy_go, "normalize": True, "verbose": False}
    pair = {name: lines[name] for name in ("L3", "L4")}
    one, other = (
        PertData.from_screens(pair, data_path=tmp_path, genes=genes, **options) for genes in ("all", "shared")
    )
    assert one.screen.content_hash == other.screen.content_hash
    assert one.screen.is_measured_KG is None


def test_what_needs_all_genes_of_all_lines_says_so(union):
    data, trained = union
    with pytest.raises(ValueError, match="genes='shared'"):
        trained.explain("GX01+ctrl @ L1")
    model = GEARS(data, device="cpu")
    model.model_initialize()
    for options in ({"epochs": 1}, {"prior": None}, {"objective": "cells", "epochs": 1}):
        with pytest.raises(ValueError, match="genes='shared'"):
            model.train(verbose=False, **options)
    with pytest.raises(ValueError, match="measure different genes"):
        data.effects()


@pytest.mark.parametrize("genes", ["shared", "all"])
def test_packs_give_what_their_cells_give(genes, lines, files, tmp_path, toy_go):
    """A pack, a file and a prepared screen together: the statistics, names and predictions of the cells, to the bit."""
    data = PertData(tmp_path / "packs", gene2go=toy_go)
    data.load(data_path=files["L1"], normalize=True, moments=tmp_path / "L1.moments.h5ad")
    sources = {"L1": tmp_path / "L1.moments.h5ad", "L2": files["L2"], "L3": alone("L3", lines, tmp_path, toy_go)}
    options = {"gene2go": toy_go, "normalize": True, "genes": genes}
    packed = PertData.from_screens(sources, data_path=tmp_path / "packed", **options)
    whole = PertData.from_screens({**files, "L3": sources["L3"]}, data_path=tmp_path / "whole", **options)
    assert not packed.screen.has_cells
    assert list(packed.gene_names) == list(whole.gene_names)
    assert packed.screen.contexts == whole.screen.contexts
    assert packed.screen.batches == whole.screen.batches
    assert set(packed.screen.labels) == set(whole.screen.labels)
    rows = [packed.screen.id_of(condition) for condition in whole.screen.conditions]
    for name in ("n", "mean", "m2", "m3", "m4", "nonzero", "above", "below"):
        ours, theirs = getattr(packed.screen.statistics, name)[rows], getattr(whole.screen.statistics, name)
        np.testing.assert_array_equal(ours, theirs, err_msg=name)
    assert (packed.screen.is_measured_KG is None) == (genes == "shared")
    if genes == "all":
        np.testing.assert_array_equal(packed.screen.is_measured_KG, whole.screen.is_measured_KG)
    predicted = []
    for data in (packed, whole):
        data.prepare_split("unit_held_out", seed=1)
        model = trained_gears(data, epochs=0)
        predicted.append(model.predict(["GX03 @ L2", "GX05 @ L3"]).delta_UG)
    np.testing.assert_allclose(*predicted, atol=1e-9)


def test_packs_that_are_no_contexts_are_refused(lines, files, tmp_path, toy_go):
    pack, data = tmp_path / "L1.moments.h5ad", PertData(tmp_path / "packs", gene2go=toy_go)
    data.load(data_path=files["L1"], normalize=True, moments=pack)
    two = PertData.from_screens(
        {"A": files["L1"], "B": files["L2"]}, data_path=tmp_path / "two", gene2go=toy_go, normalize=True
    ).write_moments(tmp_path / "two.moments.h5ad")
    unlike = lines["L2"].copy()
    unlike.X = unlike.X / 3
    for words, other in {
        "B: it has 2 contexts": two,
        "hold the same cells": pack,
        "(?s)B: .*normalize=True needs": unlike,
    }.items():
        with pytest.raises(ValueError, match=words):
            PertData.from_screens({"A": pack, "B": other}, data_path=tmp_path / "no", gene2go=toy_go, normalize=True)
        assert not any((tmp_path / "no").iterdir())
