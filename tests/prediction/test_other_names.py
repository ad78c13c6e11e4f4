"""A gene is predicted by any of its names, and a name of two genes of the model is refused."""

import logging

import anndata
import numpy as np
import pytest
from small_models import network_of

from gears import GEARS, PertData
from gears.cli.main import main
from gears.conditions import Condition
from gears.jobs import Ensemble

NAMES = {"GX00": "KMT2A", "GX01": "KRAS", "GX02": "p53", "GX08": "OCT4", "GX09": "OTF3", "GX03": "CD95"}
"""Other names are HRX and MLL (of KMT2A), POU5F1 (of OCT4 and OTF3), and FAS, the symbol of CD95."""


def named(label: str) -> str:
    return "+".join(NAMES.get(token, token) for token in label.split("+"))


@pytest.fixture(scope="module")
def model(tmp_path_factory, toy_template, toy_go):
    adata = toy_template.copy()
    adata.var["gene_name"] = [named(gene) for gene in adata.var["gene_name"]]
    adata.obs["condition"] = [named(label) for label in adata.obs["condition"]]
    terms = {named(gene): terms for gene, terms in toy_go.items()} | {"FAS": toy_go["GX03"], "SOX2": ["T01"]}
    data = PertData(tmp_path_factory.mktemp("names"), gene2go=terms)
    data.new_data_process("toy", adata)
    data.prepare_split("simulation", seed=1)
    return network_of(data)


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "model"
    model.save_model(folder)
    return folder


def renamed(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "under another name" in record.getMessage()]


@pytest.fixture(autouse=True)
def at_warning(caplog):
    caplog.set_level(logging.WARNING, logger="gears")


@pytest.mark.parametrize(
    ("requested", "condition", "line"),
    [
        ("MLL+KRAS", "KMT2A+KRAS", "1 gene under another name in this model: MLL is KMT2A"),
        (["KRAS2", "HRX"], "KMT2A+KRAS", "2 genes under another name in this model: HRX is KMT2A, KRAS2 is KRAS"),
        ("ctrl+FAS", "CD95+ctrl", "1 gene under another name in this model: FAS is CD95"),  # the screen's wins
        (["ANOP3", "GX05"], "GX05+SOX2", "1 gene under another name in this model: ANOP3 is SOX2"),  # of the graph
    ],
)
def test_another_name_means_the_gene_of_the_model(model, saved, caplog, requested, condition, line):
    expected = model.predict([condition]).expression_UG
    for one in (model, GEARS.from_pretrained(saved, device="cpu")):
        caplog.clear()
        predictions = one.predict([requested])
        assert [each.name for each in predictions.conditions] == [condition]
        assert np.array_equal(predictions.expression_UG, expected)
        assert renamed(caplog) == [line]


def test_conditions_in_any_form(model):
    one, pair = Condition(("GX05",)), Condition(("GX05", "KRAS"))
    for entries in ("GX05+ctrl", one, ["GX05"], [["GX05"]]):
        assert model.predict(entries).conditions == (one,)
    assert model.predict([["KRAS", "GX05"], "GX05+KRAS", ["GX05", "ctrl"], "GX05"]).conditions == (pair, one)
    with pytest.raises(ValueError, match="predict got no condition"):
        model.predict([])
    with pytest.raises(ValueError, match="predict got an empty condition"):
        model.predict([[]])


def test_names_of_the_screen_stay_and_two_names_of_a_gene_are_one_condition(model, caplog):
    names = ["KMT2A+ctrl", "OCT4+ctrl", "OTF3+ctrl", "CD95+ctrl", "p53+ctrl", "SOX2+ctrl", "ctrl"]
    assert [condition.name for condition in model.predict(names).conditions] == names
    assert not renamed(caplog)
    predictions = model.predict(["MLL", "KMT2A", "HRX+ctrl", "HRX+MLL"])
    assert [condition.name for condition in predictions.conditions] == ["KMT2A+ctrl"]
    assert model.plot_perturbation("MLL").get_title() == "KMT2A+ctrl"
    with pytest.raises(KeyError, match="no condition 'GX05"):
        model.plot_perturbation(["MLL", "GX05"])


def test_names_of_two_genes_and_unknown_ones_are_refused(model, tmp_path):
    of_two = "'POU5F1' is another name of OCT4 and of OTF3"
    for words, call in (
        (of_two, lambda: model.predict(["GX05+POU5F1"])),
        (of_two, lambda: model.GI_predict(["POU5F1", "GX05"])),
        (of_two, lambda: model.predict_to_file(["POU5F1"], tmp_path / "a.h5ad")),
        (of_two, lambda: model.predict_all_pairs(["POU5F1", "GX05"])),
        (r"NONSENSE1 \(near: none\)", lambda: model.predict(["MLL+NONSENSE1"])),
        (r"MLL2 \(a name of several genes", lambda: model.predict(["MLL2"])),
    ):
        with pytest.raises(ValueError, match=words):
            call()


def test_interactions_pairs_and_ensembles(model, saved, caplog):
    assert model.GI_predict("MLL+KRAS") == model.GI_predict("KMT2A+KRAS")
    assert model.GI_predict(["KRAS", "MLL"]) == model.GI_predict(["KRAS", "KMT2A"])
    with pytest.raises(ValueError, match="MLL and HRX are names of one gene"):
        model.GI_predict(["MLL", "HRX"])
    frame = next(iter(model.predict_all_pairs(["MLL", "KRAS", "HRX"])))
    assert frame.index.tolist() == ["KMT2A+KRAS"]
    caplog.clear()
    predictions = Ensemble.load([saved, saved], device="cpu").predict(["MLL"])
    assert list(predictions) == ["KMT2A"]
    assert len(renamed(caplog)) == 1


@pytest.mark.parametrize("genes", [["MLL", "HRX+KRAS", "KMT2A"], ["MLL", "KRAS", "HRX", "--all-pairs"]])
def test_the_command_takes_another_name(saved, tmp_path, caplog, capsys, genes):
    path = tmp_path / "p.h5ad"
    main(["predict", str(saved), *genes, "--output", str(path), "--device", "cpu"])
    names = anndata.read_h5ad(path).obs_names.tolist()
    assert names == (["KMT2A+KRAS"] if "--all-pairs" in genes else ["KMT2A+ctrl", "KMT2A+KRAS"])
    assert f"{len(names)} condition" in capsys.readouterr().out
    assert len(renamed(caplog)) == 1
