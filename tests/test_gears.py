"""GEARS in one process: set-up, training, prediction, saved models."""

import copy
import dataclasses
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from anndata import AnnData
from driving import gears_of, pert_data_of, trained_gears

from gears import GEARS, Ensemble, PertData


def prepared(folder: Path, adata: AnnData, go: dict, split: str = "simulation", **processing: object) -> PertData:
    pert_data = pert_data_of(folder, adata, gene2go=go, split=split, **processing)
    pert_data.get_dataloader(16)
    return pert_data


@pytest.fixture(scope="module")
def pert_data(tmp_path_factory, toy_template, toy_go):
    return prepared(tmp_path_factory.mktemp("data"), toy_template.copy(), toy_go)


QUIET = {"verbose": False, "evaluate_test": False}


def trained(pert_data: PertData, steps: int = 3, **model: object) -> GEARS:
    return trained_gears(pert_data, **model, steps=steps, objective="moments")


@pytest.fixture(scope="module")
def model(pert_data):
    """Trained once, for tests that read it."""
    return trained(pert_data, uncertainty=True)


def test_training_lowers_the_loss_and_returns_history_and_table(pert_data):
    gears = gears_of(pert_data)
    result = gears.train(epochs=3, lr=5e-3, objective="moments", verbose=False)
    losses = [record["train_loss"] for record in result.history]
    assert losses[-1] < losses[0]
    assert result.best_epoch in range(1, 4)
    assert {"gears", "no_change", "train_mean", "additive"} <= set(result.table["method"])
    summary = result.summary
    assert {"unseen_single", "all"} <= set(summary["subgroup"])


def test_best_weights_are_those_of_the_best_epoch(pert_data):
    gears = gears_of(pert_data)
    result = gears.train(epochs=3, lr=0.5, schedule="constant", objective="cells", **QUIET)
    again = trained_gears(pert_data, epochs=result.best_epoch, lr=0.5, schedule="constant", objective="cells", **QUIET)
    for key, value in again.model.state_dict().items():
        assert torch.equal(value, gears.best_model.state_dict()[key]), key


def test_predict_is_deterministic_symmetric_and_about_conditions(model):
    gears = model
    first = gears.predict([["GX00", "GX07"], "GX00", "GX07+ctrl", "ctrl"])
    second = gears.predict([["GX07", "GX00"]])
    assert np.array_equal(first["GX00_GX07"], first["GX07+GX00"])
    assert np.allclose(first["GX00_GX07"], second[("GX00", "GX07")], atol=1e-6)
    assert np.abs(first["GX00_GX07"] - first["GX00"]).max() > 1e-4
    assert np.abs(first["GX00_GX07"] - first["GX07"]).max() > 1e-4
    assert (first.expression_UG >= 0).all()
    raw = gears.predict(["GX00"], clip=False)
    assert np.allclose(np.maximum(raw["GX00"], 0), first["GX00"], atol=1e-6)


def test_chunks_do_not_change_predictions(model):
    gears = model
    asked = [f"GX0{i}" for i in range(8)]
    one, many = gears.predict(asked, chunk=1), gears.predict(asked, chunk=8)
    assert np.allclose(one.expression_UG, many.expression_UG, atol=1e-6)
    assert np.allclose(one.cell_sd, many.cell_sd, atol=1e-5)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ([["NOPE"]], "not among the 30"), ([["GX0"]], "near: GX"), ([[]], "empty condition"),
        (["GX00+"], "empty gene name"), ([[1]], "list of genes"), ([None], "list of genes"),
    ],
)  # fmt: skip
def test_wrong_requests_are_explained(model, asked, words):
    with pytest.raises((ValueError, TypeError), match=words):
        model.predict(asked)


def test_save_and_load_any_number_of_times(model, pert_data, tmp_path):
    gears = model
    expected = gears.predict(["GX00+GX07"])
    path = tmp_path / "deep" / "model"
    for _ in range(3):
        gears.save_model(path)
        gears = GEARS.from_pretrained(path, device="cpu")
        found = gears.predict(["GX00+GX07"])
        assert np.array_equal(found.expression_UG, expected.expression_UG)
        assert np.array_equal(found.cell_sd, expected.cell_sd)
    assert [entry.name for entry in path.parent.iterdir()] == ["model"]
    into = GEARS(pert_data, device="cpu")
    into.load_pretrained(path)
    assert np.array_equal(into.predict(["GX00+GX07"]).expression_UG, expected.expression_UG)


def test_model_of_other_genes_is_refused_with_both_sides_named(model, tmp_path, toy_adata, toy_go):
    model.save_model(tmp_path / "model")
    reordered = prepared(tmp_path / "other", toy_adata[:, ::-1].copy(), toy_go)
    with pytest.raises(ValueError, match=r"other genes.*another order.*GX00 and GX29"):
        GEARS(reordered, device="cpu").load_pretrained(tmp_path / "model")
    fewer = prepared(tmp_path / "fewer", toy_adata[:, :28].copy(), toy_go)
    with pytest.raises(ValueError, match=r"30 there, 28 here.*GX28, GX29"):
        GEARS(fewer, device="cpu").load_pretrained(tmp_path / "model")


def test_foreign_folder_is_never_replaced(model, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="no saved model"):
        model.save_model(tmp_path / "thesis")
    with pytest.raises(FileExistsError, match="no saved model"):
        model.train(epochs=1, save_path=str(tmp_path / "thesis"), verbose=False)
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "mine"


def test_folder_that_is_no_model_and_damaged_models_are_named(model, tmp_path):
    with pytest.raises(FileNotFoundError, match="no saved model"):
        GEARS.from_pretrained(tmp_path)
    for name in ("model.pt", "genes.json", "graphs.npz", "config.json"):
        path = tmp_path / name.replace(".", "_")
        model.save_model(path)
        file = path / name
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        with pytest.raises(ValueError, match=name.replace(".", r"\.")):
            GEARS.from_pretrained(path, device="cpu")
        file.unlink()
        with pytest.raises(FileNotFoundError, match=name.replace(".", r"\.")):
            GEARS.from_pretrained(path, device="cpu")


def test_validation_without_a_condition_keeps_the_last_epoch_and_warns(tmp_path, toy_adata, toy_go, caplog):
    pert_data = prepared(tmp_path, toy_adata, toy_go)
    whole = pert_data.split
    pert_data.split = dataclasses.replace(whole, parts={k: v for k, v in whole.parts.items() if k != "val"})
    gears = gears_of(pert_data)
    start = copy.deepcopy(gears.model.state_dict())
    result = gears.train(epochs=1, objective="cells", **QUIET)
    assert result.best_epoch is None
    assert "weights of the last epoch are kept" in caplog.text
    for network in (gears.model, gears.best_model):  # as each forward does
        network.renormalise_embeddings()
    kept = gears.best_model.state_dict()
    assert all(torch.equal(kept[key], value) for key, value in gears.model.state_dict().items())
    assert any(not torch.equal(kept[key], start[key]) for key in kept)


def test_without_differential_expression(tmp_path, toy_adata, toy_go):
    gears = gears_of(prepared(tmp_path, toy_adata, toy_go, skip_calc_de=True))
    result = gears.train(epochs=1, objective="cells", verbose=False)
    assert result.best_epoch == 1
    assert "val_mse" in result.history[0]


@pytest.mark.parametrize("split", ["no_test", "no_split"])
def test_splits_without_test_part(tmp_path, toy_adata, toy_go, split):
    pert_data = pert_data_of(tmp_path, toy_adata, gene2go=toy_go, split=split)
    pert_data.get_dataloader(16)
    gears = gears_of(pert_data)
    assert np.isfinite(gears.predict(["GX00"])["GX00"]).all()
    if split == "no_split":
        with pytest.raises(ValueError, match="no training batches"):
            gears.train(epochs=1)
    else:
        assert gears.train(epochs=1, objective="cells", verbose=False).table is None


def test_published_attributes(pert_data, toy_adata, toy_go, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="prepare_split"):
        GEARS(pert_data_of(tmp_path, toy_adata, gene2go=toy_go))
    gears = GEARS(pert_data, device="cpu", weight_bias_track=False, proj_name="p", exp_name="e")
    assert gears.gene_list == [f"GX{i:02d}" for i in range(30)]
    assert gears.pert_list == sorted(gears.pert_list)
    for name, value, wrong in (("is_distributed", False, True), ("rank", 0, 1), ("world_size", 1, 2)):
        assert getattr(gears, name) == value
        setattr(gears, name, value)
        with pytest.raises(AttributeError, match=f"{name} cannot be set to {wrong}: it is .*process group"):
            setattr(gears, name, wrong)
    with pytest.raises(ValueError, match="model_initialize"):
        gears.predict(["GX00"])
    gears.model_initialize(hidden_size=8)
    assert gears.config["hidden_size"] == 8
    with pytest.raises(ValueError, match="did you mean 'direction'"):
        gears.model_initialize(hidden_size=8, directon="sign")
    with pytest.raises(ValueError, match="did you mean 'epochs'"):
        gears.train(epoch=3)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'gears-perturb\[wandb\]'"):
        GEARS(pert_data, device="cpu", weight_bias_track=True)


def test_a_model_that_was_never_trained_says_so(pert_data, tmp_path, caplog):
    gears = GEARS(pert_data, device="CPU")
    gears.model_initialize(hidden_size=8)
    assert "not trained" in repr(gears)
    for act in (
        lambda: gears.predict(gears.pert_list[:1]),
        lambda: gears.evaluate("test", metrics=["mse"], n_split_half=0),
        lambda: gears.save_model(tmp_path / "model"),
        lambda: gears.predict_to_file(gears.pert_list[:1], tmp_path / "a.h5ad"),
        lambda: GEARS.from_pretrained(tmp_path / "model", device="cpu").predict(gears.pert_list[:1]),
        lambda: Ensemble([gears, copy.copy(gears)]).predict(gears.pert_list[:1]),
    ):
        caplog.clear()
        act()
        assert caplog.text.count("this model is not trained") == 1
    before = gears.predict(gears.pert_list[:1])
    gears.train(epochs=1, prior=None, verbose=False, evaluate_test=False)
    gears.save_model(tmp_path / "model")
    caplog.clear()
    assert np.abs(before.delta_UG - gears.predict(gears.pert_list[:1]).delta_UG).max() > 1e-3
    GEARS.from_pretrained(tmp_path / "model", device="cpu").predict(gears.pert_list[:1])
    assert "not trained" not in caplog.text + repr(gears)


def test_a_save_path_that_is_a_link_stays_one(pert_data, tmp_path):
    """Also one whose target is not there yet, and in a second training, which writes beside the first model."""
    link, target = tmp_path / "model", tmp_path / "big_disk" / "model"
    link.symlink_to(target)
    for _ in range(2):
        gears = trained_gears(pert_data, epochs=1, prior=None, save_path=link)
    assert link.is_symlink()
    assert (target / "manifest.json").is_file()
    output = tmp_path / "predicted.h5ad"
    output.symlink_to(tmp_path / "big_disk" / "predicted.h5ad")
    gears.predict_to_file(gears.pert_list[:1], output)
    assert output.is_symlink()
    assert output.is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["big_disk", "model", "predicted.h5ad"]
    assert sorted(path.name for path in (tmp_path / "big_disk").iterdir()) == ["model", "predicted.h5ad"]


def test_a_save_path_that_is_a_link_to_itself_is_named(pert_data, tmp_path):
    loop = tmp_path / "loop.h5ad"
    loop.symlink_to(loop)
    gears = gears_of(pert_data)
    for act in (
        lambda: gears.save_model(loop),
        lambda: gears.train(epochs=1, save_path=loop),
        lambda: gears.predict_to_file(gears.pert_list[:1], loop),
    ):
        with pytest.raises(OSError, match="is a link that leads back to itself; remove it, or choose"):
            act()


def test_two_runs_are_the_same_bit_for_bit_and_leave_the_callers_state(pert_data):
    """Also where gradients are switched off."""
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    expected = trained(pert_data).model.state_dict()
    with torch.no_grad():
        model = trained(pert_data)
        assert not torch.is_grad_enabled()
    model.predict(["GX00"])
    assert all(torch.equal(model.model.state_dict()[name], value) for name, value in expected.items())
    assert torch.equal(states[0], torch.get_rng_state())
    assert np.array_equal(states[1], np.random.get_state()[1])  # noqa: NPY002
    assert states[2] == random.getstate()
