"""Screens of several contexts, batches and types of perturbation, from preparing to a saved model."""

import shutil

import anndata
import numpy as np
import pandas as pd
import pytest
import torch
from driving import pert_data_of, trained_gears

from gears import GEARS, PertData
from gears.train_distributed import train_multi_gpu

GENES = [f"GX{i:02d}" for i in range(30)]


DIVISION = {"context_key": "cell_type", "batch_key": ["batch"], "perturbation_type_key": "guide"}


@pytest.fixture(scope="module")
def pert_data(tmp_path_factory, divided, toy_go):
    """Each test begins with a split of its own."""
    return pert_data_of(tmp_path_factory.mktemp("contexts"), divided, "lines", gene2go=toy_go, **DIVISION)


def trained(data: PertData, **options) -> GEARS:
    return trained_gears(
        data,
        mask_target=options.pop("mask_target", False),
        **{"steps": 4, "objective": "moments"} | options,
    )


def test_one_context_is_the_model_without_contexts(tmp_path, toy_adata, toy_go):
    """Screen, split, prior, training and predictions are the same to the last bit."""
    models = []
    for name, options in (("plain", {}), ("one", {"context_key": "cell_type", "batch_key": "cell_type"})):
        data = pert_data_of(tmp_path / name, toy_adata, gene2go=toy_go, split="simulation", **options)
        models.append(trained(data))
    plain, one = models
    assert one.parts.contexts.contexts == ("cellA",)
    state, placed = plain.best_model.state_dict(), one.best_model.state_dict()
    assert list(state) == list(placed)
    assert all(torch.equal(state[key], placed[key]) for key in state)
    want, found = plain.predict(["GX00", "GX02+GX09"]), one.predict(["GX00", "GX02+GX09"])
    np.testing.assert_array_equal(found.expression_UG, want.expression_UG)
    table, own = (model.evaluate("test", n_split_half=0, baselines=["additive"]) for model in models)
    pd.testing.assert_series_equal(own["value"], table["value"])
    assert set(own["context"]) == {"cellA"}


@pytest.mark.parametrize("objective", ["moments", "cells"])
def test_contexts_and_types_from_training_to_a_saved_model(tmp_path, pert_data, objective):
    pert_data.prepare_split("simulation", seed=1)
    if objective == "cells":
        pert_data.get_dataloader(32)
    model = trained(pert_data, objective=objective)
    assert not torch.equal(*model.model.placing.context_shift)
    assert not torch.equal(*model.model.placing.context_scale)
    assert not torch.equal(-model.model.placing.type_scale[0], model.model.placing.type_scale[1])
    everywhere = model.predict(["GX00", ["GX05", "GX20"]])
    assert len(everywhere) == 2 * 2 * 2
    one = model.predict(["GX00"], context="L2", perturbation_type="CRISPRi")
    np.testing.assert_allclose(one.expression_UG[0], everywhere["GX00+ctrl [CRISPRi] @ L2"], atol=1e-6)
    means = {unit.context: i for i, unit in enumerate(pert_data.screen.conditions) if unit.is_control}
    np.testing.assert_allclose(one.control_mean_G[0], pert_data.screen.statistics.mean[means["L2"]])
    baselines = ["additive", "train_mean", "no_change"]
    table = model.evaluate("test", n_split_half=1, baselines=baselines)
    units = pert_data.split.conditions("test")
    assert set(table["condition"]) - {"*"} == {unit.name for unit in units}
    assert set(table["context"]) == {"L1", "L2"}
    assert {"gears", *baselines} <= set(table["method"])
    model.save_model(tmp_path / "model")
    loaded = GEARS.from_pretrained(tmp_path / "model", device="cpu")
    np.testing.assert_array_equal(loaded.predict(["GX00", ["GX05", "GX20"]]).expression_UG, everywhere.expression_UG)
    adata = loaded.predict(["GX00"]).to_adata()
    assert adata.obs["context"].tolist() == ["L1", "L1", "L2", "L2"]
    with pytest.raises(ValueError, match="unknown context 'L3'"):
        loaded.predict(["GX00"], context="L3")
    with pytest.raises(ValueError, match="4 contexts or types"):
        loaded.GI_predict(["GX00", "GX01"])
    loaded.predict_to_file(loaded.pairs(["GX00", "GX01"]), tmp_path / "pairs.h5ad", chunk=1)
    written = anndata.read_h5ad(tmp_path / "pairs.h5ad")
    assert written.obs["context"].tolist() == ["L1", "L1", "L2", "L2"]
    assert {"control_mean", "delta", "sd"} <= set(written.layers)
    chunks = list(loaded.predict_all_pairs(["GX00", "GX01"]))
    assert [list(frame.index) for frame in chunks] == [
        [f"GX00+GX01 [{kind}] @ {line}" for line in ("L1", "L2") for kind in ("CRISPRa", "CRISPRi")]
    ]


def test_a_resumed_run_and_a_saved_model_predict_the_same_in_every_context(tmp_path, pert_data):
    pert_data.prepare_split("simulation", seed=1)
    options = {"checkpoint_every_steps": 1, "keep_last": 100}
    whole = trained(pert_data, save_path=str(tmp_path / "whole"), **options)
    shutil.copytree(tmp_path / "whole", tmp_path / "half")
    files = sorted((tmp_path / "half" / "checkpoints").iterdir())
    for later in files[len(files) // 2 :]:
        later.unlink()
    resumed = trained(pert_data, save_path=str(tmp_path / "half"), resume=True, **options)
    resumed.save_model(tmp_path / "model")
    wanted = whole.predict(["GX00", ["GX05", "GX20"]])
    for model in (resumed, GEARS.from_pretrained(tmp_path / "model", device="cpu")):
        found = model.predict(["GX00", ["GX05", "GX20"]])
        np.testing.assert_array_equal(found.expression_UG, wanted.expression_UG)
        np.testing.assert_array_equal(found.sd_change, wanted.sd_change)


def test_a_context_that_training_never_saw(pert_data):
    pert_data.prepare_split("context_held_out", test_contexts="L2")
    model = trained(pert_data)
    placing = model.best_model.placing
    assert placing.seen.tolist() == [True, False]
    assert placing.context_shift[1].abs().sum() == 0
    one, two = model.predict(["GX00+ctrl [CRISPRi] @ L1", "GX00+ctrl [CRISPRi] @ L2"], clip=False).delta_UG
    # the change is that of the context that was trained on, but for what that has of its own
    assert np.corrcoef(one[1:], two[1:])[0, 1] > 0.8
    table = model.evaluate("test", n_split_half=0, baselines=["additive"])
    assert set(table["context"]) == {"L2"}
    scores = table[table["metric"] == "pearson_delta"].groupby("method")["value"].mean()
    assert scores["additive"] > 0.5  # the same condition's change in the other context


def test_own_genes_are_masked_in_loss_and_metrics(pert_data):
    from gears.model.config import ModelConfig
    from gears.training._tasks import condition_tables

    pert_data.prepare_split("simulation", seed=1)
    screen = pert_data.screen
    args = (pert_data, torch.device("cpu"), torch.float64)
    plain = condition_tables(*args).mask_CG
    masked = condition_tables(*args, config=ModelConfig(mask_target=True)).mask_CG
    for row, unit in enumerate(screen.conditions):
        own = [GENES.index(gene) for gene in unit.genes]
        assert not masked[row, own].any()
        rest = np.setdiff1d(np.arange(30), own)
        assert torch.equal(masked[row, rest], plain[row, rest])
    model = trained(pert_data, mask_target=True)
    assert model.config["mask_target"]
    scores = {"metrics": ["mse"], "baselines": ["no_change"], "n_split_half": 0}
    own, whole = (model.evaluate("test", **scores, **more) for more in ({}, {"mask_target": False}))
    unit = pert_data.split.conditions("test")[0]
    predicted = model.predict([unit]).expression_UG[0]
    true = screen.statistics.mean[screen.id_of(unit)]
    rest = np.setdiff1d(np.arange(30), [GENES.index(gene) for gene in unit.genes])
    for table, genes in ((own, rest), (whole, np.arange(30))):
        row = (table["condition"] == unit.name) & (table["method"] == "gears") & (table["metric"] == "mse")
        want = ((predicted - true)[genes] ** 2).mean()
        np.testing.assert_allclose(table.loc[row, "value"], want, rtol=1e-10)


def test_two_workers_are_one_with_contexts_graphs_and_types(tmp_path, divided, toy_go, quick_workers):
    """Everything of its own at once: prior, contexts, types, masked targets, own graphs and vectors."""
    vectors = pd.DataFrame(np.random.default_rng(1).normal(size=(30, 5)), index=GENES)
    table = pd.DataFrame({"source": GENES[:-1], "target": GENES[1:], "weight": 1.0})
    own = {"G_go": ["go", table, {"embedding": vectors, "k": 3}], "pert_embedding": vectors}
    network = {"hidden_size": 8, "mask_target": True, **own}
    training = {"steps": 3, "objective": "moments", "dtype": "float64", "verbose": False}
    split = {"split": "simulation", "seed": 1}
    data = pert_data_of(tmp_path / "data", divided, "lines", gene2go=toy_go, **DIVISION)
    data.prepare_split(**split)
    alone = trained_gears(data, **network, **training, batch_size=8)
    result = train_multi_gpu(
        tmp_path / "data", "lines", split,
        {"save_path": tmp_path / "model", "model_config": network, "batch_size": 4, **training},
        n_gpus=2, device="cpu", data_config={"gene2go": toy_go, **DIVISION},
    )  # fmt: skip
    assert "embedding_ridge" in set(result.table["method"])
    both = GEARS.from_pretrained(tmp_path / "model", device="cpu")
    assert both.parts.go.hash == alone.parts.go.hash
    state = alone.best_model.state_dict()
    for name, value in both.best_model.state_dict().items():
        torch.testing.assert_close(value, state[name], atol=1e-6, rtol=0, msg=name)
    one_UG, both_UG = (model.predict(["GX00", "GX03+GX06"]).expression_UG for model in (alone, both))
    np.testing.assert_allclose(both_UG, one_UG, atol=1e-7)
    assert set(result.table["context"]) == {"L1", "L2"}


@pytest.mark.shared
@pytest.mark.long
def test_three_lines_and_one_left_out(tmp_path, shared):
    """A real screen of three glioma lines: trained over all, and with each line left out in turn."""
    data = PertData(tmp_path)
    screen = anndata.read_h5ad(shared / "data" / "mcfaline2023_subset.h5ad")
    data.new_data_process("mcfaline", screen, context_key="cell_type")
    data.prepare_split("cross_validation", seed=1, n_folds=3, fold=0)
    model = GEARS(data, device="cpu")
    model.model_initialize()
    table = model.train(verbose=False).table
    scores = table[table["metric"] == "pearson_delta"].groupby("method")["value"].mean()
    assert scores["gears"] > 0.55
    assert scores["gears"] > scores["train_mean"] - 0.03
    for line in ("A172", "T98G", "U87MG"):
        data.prepare_split("context_held_out", seed=1, test_contexts=line)
        model = GEARS(data, device="cpu")
        model.model_initialize()
        table = model.train(verbose=False).table
        scores = table[table["metric"] == "mse"].groupby("method")["value"].mean()
        assert scores["gears"] < scores["additive"]


def test_a_context_is_plotted_against_its_own_control(pert_data):
    pert_data.prepare_split("simulation", seed=1)
    model = trained(pert_data, steps=1, prior=None)
    screen, label = pert_data.screen, "GX00+ctrl [CRISPRi] @ L2"
    ax = model.plot_perturbation(label, n_genes=6)
    genes = [screen.gene_names.index(tick.get_text()) for tick in ax.get_xticklabels()]
    change = screen.statistics.mean[screen.id_of(label)] - screen.statistics.mean[screen.id_of("ctrl @ L2")]
    (means,) = (c for c in ax.collections if c.get_label() == "observed mean")
    np.testing.assert_allclose([line[0, 1] for line in means.get_segments()], change[genes], rtol=1e-6)
    (drawn,) = (line for line in ax.lines if line.get_label() == "predicted")
    np.testing.assert_allclose(drawn.get_ydata(), model.predict([label]).delta(label)[genes])
    assert ax.get_title() == label
    with pytest.raises(KeyError, match="GX00"):
        model.plot_perturbation("GX00+ctrl")
