"""From AnnData to AnnData in three lines, without files that stay."""

import gc
import tempfile

import anndata
import numpy as np
import pytest

from gears import GEARS, PerturbationModel, simulated_screen

QUIET = {"epochs": 0, "verbose": False, "evaluate_test": False}
SMALL, FEW_NODES = {"hidden_size": 8}, {"default_pert_graph": False, "verbose": False}


@pytest.fixture(scope="module")
def adata():
    return simulated_screen(n_genes=60, n_singles=14, n_pairs=8, cells_per_condition=10, n_control=40, seed=0)[0]


def test_three_lines_and_nothing_stays_on_disk(adata, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = adata.copy()
    model = PerturbationModel(adata, device="cpu", network=SMALL, **FEW_NODES)
    model.train(**QUIET)
    pair = next(label for label in adata.obs["condition"].unique() if "ctrl" not in label)
    predicted = model.predict([pair])
    assert isinstance(predicted, anndata.AnnData)
    assert predicted.shape == (1, 60)
    assert {"delta", "sd"} <= set(predicted.layers)
    assert "gears" in predicted.uns
    model.save(tmp_path / "kept")
    saved = GEARS.from_pretrained(tmp_path / "kept", device="cpu")
    np.testing.assert_allclose(saved.predict([pair]).expression_UG, predicted.X, rtol=1e-5)
    np.testing.assert_array_equal(adata.X.toarray(), before.X.toarray())
    assert list(adata.obs) == list(before.obs)
    del model
    gc.collect()
    assert not list(tmp_path.glob("gears-*"))


@pytest.fixture(scope="module")
def trained(adata):
    renamed = adata.copy()
    renamed.obs["target"] = renamed.obs.pop("condition").astype(str).str.replace("ctrl", "NT")
    model = PerturbationModel(renamed, condition_key="target", control="NT", device="cpu", **FEW_NODES)
    with pytest.raises(ValueError, match=r"not trained; call model.train\(\)"):
        model.predict(["AHR"])
    assert not model.is_trained
    model.train(epochs=0, verbose=False, evaluate_test=False)
    return renamed, model


def test_the_model_answers_what_comes_next(trained, tmp_path, without_figures):
    adata, model = trained
    assert model.is_trained
    measured = next(label[:-3] for label in adata.obs["target"].unique() if label.endswith("+NT"))
    top = model.top(measured, 5)
    assert len(top) == 5
    largest = np.abs(model.predict([measured]).layers["delta"][0]).max()
    assert abs(top["delta"].iloc[0]) == pytest.approx(largest, rel=1e-5)
    scores = model.evaluate()
    assert scores["metric"].is_unique
    assert 0 < len(scores) <= 12
    assert len(model.evaluate(per_condition=True)) > 12
    assert len(model.suggest(3)) == 3
    assert model.hits()["condition"].is_unique
    assert model.report(tmp_path / "report").read_text().lstrip().startswith("<!doctype html>")
    figure = model.plot(measured, return_fig=True)
    assert measured in figure.axes[0].get_title()
    unmeasured = "+".join(model.gears.pert_list[:2])
    assert isinstance(model.plot(unmeasured, return_fig=True), type(figure))


def test_a_saved_model_is_loaded_with_and_without_its_screen(trained, tmp_path):
    adata, model = trained
    model.save(tmp_path / "model")
    alone = PerturbationModel.load(tmp_path / "model", device="cpu")
    assert alone.is_trained
    measured = next(label[:-3] for label in adata.obs["target"].unique() if label.endswith("+NT"))
    np.testing.assert_allclose(alone.predict([measured]).X, model.predict([measured]).X, rtol=1e-5)
    with pytest.raises(ValueError, match="needs the screen"):
        alone.evaluate()
    keys = {"condition_key": "target", "control": "NT"}
    again = PerturbationModel.load(tmp_path / "model", adata, device="cpu", **keys, **FEW_NODES)
    assert again.evaluate().equals(model.evaluate())


def test_the_rna_of_a_mudata_is_taken_with_the_labels_of_the_whole(adata, tmp_path):
    mudata = pytest.importorskip("mudata", reason="mudata is not installed")
    rna = adata.copy()
    labels = rna.obs.pop("condition")
    protein = anndata.AnnData(np.ones((adata.n_obs, 2), dtype=np.float32), obs=adata.obs[[]])
    mudata.set_options(pull_on_update=False)
    mdata = mudata.MuData({"protein": protein, "rna": rna})
    mdata.obs["condition"] = labels
    model = PerturbationModel(mdata, device="cpu", folder=tmp_path, network=SMALL, **FEW_NODES)
    assert model.gears.gene_list == list(adata.var["gene_name"])
    with pytest.raises(ValueError, match=r"none of the modalities protein of the MuData.*pass the AnnData"):
        PerturbationModel(mudata.MuData({"protein": protein}), folder=tmp_path / "other")
