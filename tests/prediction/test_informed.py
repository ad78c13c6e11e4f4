"""Predictions of genes of which little or nothing is known are marked, with one warning."""

import dataclasses
import logging
import re

import anndata
import numpy as np
import pandas as pd
import pytest
from small_models import trained_on

from gears import GEARS, PertData
from gears.cli.main import main
from gears.graphs import Graph
from gears.graphs._custom import Graphs
from gears.jobs import Ensemble
from gears.prediction._information import source_of_genes

WANTED = {
    "GX00+ctrl": "training",
    "GX20+ctrl": "expression",  # without a term of the annotation
    "LIKE+ctrl": "similarity",
    "ALONE+ctrl": "nothing",
    "ALONE+GX00": "nothing",
    "GX00+LIKE": "similarity",
    "ctrl": "training",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory, toy_template, toy_go):
    terms = {**toy_go, "GX20": {"of GX20"}, "LIKE": toy_go["GX00"], "ALONE": {"of ALONE"}}
    data = PertData(tmp_path_factory.mktemp("informed"), gene2go=terms)
    data.new_data_process("toy", toy_template.copy())
    parts = {"train": data.screen.labels[:8], "val": ["GX07+ctrl"], "test": ["GX00+GX01"]}
    data.prepare_split("custom", split_dict=parts)
    return trained_on(data)


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "model"
    model.save_model(folder)
    return folder


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "informed by" in record.getMessage()]


def test_each_condition_is_marked_by_its_least_known_gene(model, saved, caplog):
    for one in (model, GEARS.from_pretrained(saved, device="cpu")):
        caplog.clear()
        predictions = one.predict(list(WANTED))
        assert warnings_of(caplog) == ["informed by similar genes only: LIKE; by nothing: ALONE"]
        assert predictions.to_adata().obs["informed_by"].to_dict() == WANTED
        assert predictions.to_frame().attrs["uninformed"] == ["ALONE+ctrl", "ALONE+GX00"]
        top = predictions.top(1)
        assert dict(zip(top["condition"], top["informed_by"], strict=True)) == WANTED


def test_either_the_prior_or_the_graph_makes_genes_similar(model):
    parts = model._need_model()
    no_edges = Graph(parts.pert_names, np.empty((2, 0), dtype=np.int64), np.empty(0))
    without_graph = dataclasses.replace(parts, graphs=Graphs(lambda: no_edges, lambda: parts.coexpress))
    without_both = dataclasses.replace(without_graph, prior=None)
    assert source_of_genes(without_both)["LIKE"] == "nothing"
    assert source_of_genes(dataclasses.replace(parts, prior=None))["LIKE"] == "similarity"
    assert source_of_genes(without_graph)["LIKE"] == "similarity"
    assert source_of_genes(without_graph)["ALONE"] == "nothing"


@pytest.mark.parametrize("ending", ["h5ad", "zarr", "csv"])
def test_files_hold_the_mark(saved, tmp_path, ending, caplog):
    path = tmp_path / f"predictions.{ending}"
    main(["predict", str(saved), *WANTED, "--output", str(path), "--device", "cpu"])
    assert len(warnings_of(caplog)) == 1
    if ending == "csv":
        table = pd.read_csv(path, index_col=0)
    else:
        table = (anndata.read_h5ad if ending == "h5ad" else anndata.read_zarr)(path).obs
    assert table["informed_by"].to_dict() == WANTED


def test_the_printed_table_holds_the_mark(saved, capsys):
    main(["predict", str(saved), "ALONE", "--top", "1", "--device", "cpu"])
    first, _, condition, header, row = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"1 condition x \d+ genes: change over control( \(log1p\))?, 95 % interval", first)
    assert condition == "ALONE+ctrl (informed by nothing)"
    assert header.split() == ["rank", "gene", "delta", "low", "high", "expression"]
    delta, low, high = map(float, row.split()[2:5])
    predictions = GEARS.from_pretrained(saved).predict(["ALONE"])
    at = predictions.gene_names.index(row.split()[1])
    assert [low, high] == pytest.approx([bound[0, at] for bound in predictions.interval(0.95)], abs=2e-4)
    assert (high + low) / 2 == pytest.approx(delta, abs=2e-4)


def test_many_predictions_give_one_warning(model, saved, tmp_path, caplog, monkeypatch):
    genes = ["GX00", "GX01", "ALONE"]
    many = {
        "pairs": lambda: list(model.predict_all_pairs(genes, chunk=1)),
        "pairs in a file": lambda: model.predict_to_file(model.pairs(genes), tmp_path / "pairs.h5ad", chunk=1),
        "screen": lambda: model.rank_pairs(lambda one: one.delta_UG[:, 0], genes, chunk=1),
        "ensemble": lambda: Ensemble.load([saved, saved], device="cpu").predict(["ALONE"]),
    }
    for name, predict in many.items():
        caplog.clear()
        predict()
        assert len(warnings_of(caplog)) == 1, name


def test_genes_joined_by_another_sign_and_near_names(model):
    for name in ("GX01_GX00", "GX00 GX01", "GX00; GX01"):
        with pytest.raises(ValueError, match=r"did you mean 'GX00\+GX01'"):
            model.predict([name])
        with pytest.raises(KeyError, match=r"GX00\+GX01"):
            model.pert_data.screen.id_of(name)
    with pytest.raises(ValueError, match=r"gx-01 \(near: GX01\); qqq \(near: none\)"):
        model.predict([["gx-01", "qqq"]])


@pytest.fixture(autouse=True)
def at_warning(caplog):
    caplog.set_level(logging.WARNING, logger="gears")
