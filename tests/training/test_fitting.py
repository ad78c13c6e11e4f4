"""Fitting a model: the prior, the network on what it leaves, the weight of the network, the refit."""

import dataclasses
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from anndata import AnnData
from driving import perturbed_in
from small_models import network_of

from gears import GEARS, PertData
from gears.priors import prior_of
from gears.priors._source import fit_to
from gears.training._batches import ConditionLoader

RUN = {"evaluate_test": False, "verbose": False}
PARTS = {"train": 9, "val": 6, "test": 3}  # conditions beside the control


@pytest.fixture(scope="module")
def pert_data(tmp_path_factory: pytest.TempPathFactory, small_screen: tuple[AnnData, Any]) -> PertData:
    return divided(tmp_path_factory.mktemp("screen"), small_screen[0])


def divided(folder: Path, adata: AnnData, **sizes: int) -> PertData:
    """A custom split with these numbers of conditions, singles and pairs in turn."""
    pert_data = PertData(folder, default_pert_graph=False)
    pert_data.new_data_process("small", adata)
    labels = [label for label in pert_data.screen.labels if label != "ctrl"]
    names = iter(sorted(labels, key=lambda label: label[::-1]))
    parts = {part: [next(names) for _ in range(size)] for part, size in (PARTS | sizes).items()}
    parts["train"].append("ctrl")
    pert_data.prepare_split("custom", seed=1, split_dict=parts)
    return pert_data


def nodes_of(pert_data: PertData, part: str = "test") -> list[Any]:
    return [pert_data.condition_nodes(condition) for condition in pert_data.split.conditions(part)]


def prior_alone(pert_data: PertData, parts: tuple[str, ...] = ("train",)) -> Any:
    """The prior fitted again, whatever the screen's cache holds."""
    named = [condition for part in parts for condition in perturbed_in(pert_data.split, part)]
    conditions = sorted(named, key=pert_data.screen.id_of)
    return dataclasses.replace(fit_to(pert_data, conditions).prior, network_weight=0.0)


def weighted(model: GEARS, weight: float) -> None:
    """Give the network a weight beside the prior."""
    model.parts = dataclasses.replace(model.parts, prior=dataclasses.replace(model.parts.prior, network_weight=weight))


# -- what runs is what was asked for --------------------------------------------------------


@pytest.mark.parametrize("objective", ["moments", "cells"])
def test_epochs_asked_for_are_run_printed_and_in_the_history(pert_data, objective, caplog):
    batch = {"batch_size": 64} if objective == "cells" else {}
    with caplog.at_level(logging.INFO, logger="gears"):
        result = network_of(pert_data).train(
            epochs=2, lr=0.002, objective=objective, early_stopping=None, evaluate_test=False, **batch
        )
    lines = [line for line in caplog.messages if line.startswith("epoch ")]
    assert len(result.history) == len(lines) == result.epochs == 2
    assert result.stopped_because is None
    (header,) = [line for line in caplog.messages if line.startswith("GEARS network: ")]
    n_steps = len(pert_data.dataloader["train_loader"]) if objective == "cells" else 20
    per_step = "64 cells" if objective == "cells" else "10 conditions"
    assert header == f"GEARS network: 2 epochs x {n_steps} steps of {per_step}, 1 worker (cpu), lr 0.002"


def test_an_epoch_over_moments_is_at_least_a_pass_and_at_least_20_steps(pert_data, caplog):
    """10 conditions: 4 a step are 3 steps a pass, so 7 passes; 32 or more a step take all of them."""
    for batch_size, steps, size in ((4, 21, 4), (None, 20, 10), (100, 20, 10)):
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="gears"):
            network_of(pert_data).train(epochs=1, batch_size=batch_size, evaluate_test=False)
        assert f"1 epoch x {steps} steps of {size} conditions" in caplog.text
    epoch = [batch.ids.tolist() for batch in ConditionLoader(np.arange(45), 2, least=20)]
    assert len(epoch) == 23  # one pass is longer than 20 steps
    assert sorted(number for batch in epoch for number in batch) == list(range(45))
    epoch = [batch.ids.tolist() for batch in ConditionLoader(np.arange(3), 32, least=20)]
    assert [sorted(batch) for batch in epoch] == [[0, 1, 2]] * 20


# -- early stopping -------------------------------------------------------------------------


def test_a_network_trains_as_long_as_requested_and_ends_early_and_says_why_on_request(pert_data: PertData) -> None:
    model = network_of(pert_data)
    result = model.train(**RUN)
    assert result.history == []
    assert result.network_weight == 0
    assert model.predict([model.pert_list[0]]).sd is not None
    every = network_of(pert_data).train(epochs=8, lr=1e-12, **RUN)
    assert len(every.history) == 8  # no early end without a request
    result = network_of(pert_data).train(epochs=8, lr=1e-12, early_stopping=2, **RUN)
    # one-cycle: the rate falls after epoch 2; epoch 3 is the first that can be the best, and 2 more beat nothing
    assert 4 <= len(result.history) < 8
    assert "2 epochs in a row did not beat the best epoch" in str(result.stopped_because)


# -- the prior ------------------------------------------------------------------------------


def test_an_epoch_that_the_prior_beats_is_not_called_best(pert_data, caplog):
    with caplog.at_level(logging.INFO, logger="gears"):
        network_of(pert_data).train(epochs=3, lr=3.0, early_stopping=None, evaluate_test=False)
    of_prior = float(re.findall(r"validation relative_error ([\d.]+)", caplog.text)[0])
    best, marks = np.inf, []
    for score, mark in re.findall(r"val_relative_error ([\d.]+) .*?(\(best\))?\n", caplog.text):
        assert mark == ("(best)" if float(score) < min(best, of_prior) else "")
        best = min(best, float(score))
        marks.append(mark)
    assert len(marks) == 3
    assert "" in marks


def test_no_epochs_give_the_prior_alone(pert_data: PertData, tmp_path: Path) -> None:
    model = network_of(pert_data)
    result = model.train(epochs=0, refit=False, save_path=tmp_path / "m", **RUN)
    assert result.history == []
    assert result.network_weight == 0
    prior = prior_alone(pert_data)
    expected_UG = model.parts.control_mean_G + prior(nodes_of(pert_data))
    conditions = pert_data.split.conditions("test")
    np.testing.assert_array_equal(model.predict(conditions, clip=False).expression_UG, expected_UG)
    loaded = GEARS.from_pretrained(tmp_path / "m", device="cpu")
    np.testing.assert_array_equal(loaded.predict(conditions, clip=False).expression_UG, expected_UG)
    with pytest.raises(ValueError, match="prior=None has none"):
        model.train(epochs=0, prior=None, **RUN)


@pytest.fixture(scope="module")
def score_before(pert_data: PertData) -> float:
    result = network_of(pert_data).train(epochs=1, lr=1e-12, refit=False, **RUN)
    return result.history[0]["val_mse_top20_de"]


@pytest.mark.parametrize("refit", [True, False])
def test_a_prior_used_alone_is_fitted_again_to_validation_conditions(pert_data, tmp_path, refit, score_before):
    model = network_of(pert_data)
    result = model.train(epochs=2, lr=1e-12, refit=refit, save_path=str(tmp_path / "m"), **RUN)
    fitted = ("train", "val") if refit else ("train",)
    assert result.network_weight == 0
    assert result.refitted is refit
    expected = prior_alone(pert_data, fitted)
    np.testing.assert_array_equal(model.parts.prior(nodes_of(pert_data)), expected(nodes_of(pert_data)))
    saved = GEARS.from_pretrained(tmp_path / "m", device="cpu").parts
    assert saved.fitted_parts == fitted
    assert len(saved.fitted_conditions()) == PARTS["train"] + refit * PARTS["val"]
    assert (tmp_path / "m" / "checkpoints").is_dir()
    assert len((tmp_path / "m" / "metrics.jsonl").read_text().splitlines()) == 2
    # scores of the validation part are those from before the refit
    assert result.history[0]["val_mse_top20_de"] == pytest.approx(score_before)


def test_a_network_with_weight_keeps_the_prior_that_it_was_trained_on(pert_data, monkeypatch):
    """Any gain at all is enough here: the rule has tests of its own."""
    monkeypatch.setattr("gears.training._validation.LEVEL", 1.0)
    model = network_of(pert_data)
    result = model.train(epochs=2, **RUN)
    if model.parts.prior.report["validation_gain"] > 0:
        assert result.network_weight == model.parts.prior.report["best_weight_tried"] > 0
        assert not result.refitted
        nodes = nodes_of(pert_data)
        network_UG = model.best_model.prepared()(nodes)[0].double().numpy()
        predicted = model.predict(pert_data.split.conditions("test"), clip=False)
        np.testing.assert_allclose(
            predicted.delta_UG, prior_alone(pert_data)(nodes) + result.network_weight * network_UG, atol=1e-6
        )
    else:
        assert result.network_weight == 0


def test_prediction_is_prior_and_weighted_network_and_survives_saving(pert_data, tmp_path):
    model = network_of(pert_data)
    model.train(epochs=2, refit=False, **RUN)
    weighted(model, 0.5)
    conditions, nodes = pert_data.split.conditions("test"), nodes_of(pert_data)
    network_UG = model.best_model.prepared()(nodes)[0].double().numpy()
    assert np.abs(network_UG).max() > 1e-4
    predicted = model.predict(conditions, clip=False)
    np.testing.assert_allclose(predicted.delta_UG, model.parts.prior(nodes) + 0.5 * network_UG, atol=1e-6)
    model.save_model(tmp_path / "m")
    loaded = GEARS.from_pretrained(tmp_path / "m", device="cpu")
    np.testing.assert_array_equal(loaded.predict(conditions).expression_UG, model.predict(conditions).expression_UG)
    assert loaded.parts.prior.report == model.parts.prior.report
    genes = loaded.pert_list[:2]
    frames = list(loaded.predict_all_pairs(genes, values="delta", clip=False))
    expected = loaded.predict([genes], clip=False).delta_UG
    np.testing.assert_allclose(frames[0].to_numpy(), expected, atol=1e-6)


def test_without_prior_the_network_is_alone(pert_data: PertData, tmp_path: Path) -> None:
    model = network_of(pert_data)
    result = model.train(steps=1, prior=None, save_path=str(tmp_path / "run"), **RUN)
    assert model.parts.prior is None
    assert result.network_weight is None
    assert GEARS.from_pretrained(tmp_path / "run", device="cpu").parts.prior is None
    assert not (tmp_path / "run" / "prior.npz").exists()
    no_change = network_of(pert_data, no_perturb=True)
    no_change.train(steps=1, **RUN)
    assert no_change.parts.prior is None


def test_test_conditions_are_not_looked_at(tmp_path, small_screen_adata, pert_data):
    held_out = {c.name for c in pert_data.split.conditions("test")}
    poisoned = small_screen_adata
    dense = poisoned.X.toarray()
    rows = poisoned.obs["condition"].isin(held_out).to_numpy()
    assert rows.any()
    dense[rows] = np.random.default_rng(0).uniform(0, 9, dense[rows].shape)
    poisoned.X = dense.astype(np.float32)
    other = divided(tmp_path / "poisoned", poisoned)
    assert other.split.hash == pert_data.split.hash
    for parts in (("train",), ("train", "val")):
        ours, theirs = prior_of(pert_data, parts), prior_of(other, parts)
        for name, values in ours.prior.arrays().items():
            np.testing.assert_array_equal(theirs.prior.arrays()[name], values, err_msg=name)
        np.testing.assert_array_equal(theirs.left_out_CG, ours.left_out_CG)


def test_the_prior_is_fitted_once_and_the_network_starts_at_it_in_silence(pert_data, monkeypatch, caplog):
    network_of(pert_data).train(epochs=0, **RUN)
    monkeypatch.setattr("gears.priors._source.fit_prior", None)  # fitting again would fail
    model = GEARS(pert_data, device="cpu")
    model.model_initialize(hidden_size=9)
    with caplog.at_level(logging.INFO, logger="gears"):
        model.train(steps=1, lr=1e-12, **RUN)
    assert caplog.messages == []
    np.testing.assert_allclose(model.best_model.prepared()(nodes_of(pert_data))[0].numpy(), 0.0, atol=1e-6)


# -- too few validation conditions ----------------------------------------------------------


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory, small_screen: tuple[AnnData, Any]) -> PertData:
    return divided(tmp_path_factory.mktemp("few"), small_screen[0], val=4)


@pytest.mark.parametrize("asked", [{"steps": 3}, {"steps": 3, "uncertainty": True}])
def test_it_is_trained_on_request_and_has_weight_0(few, asked, caplog):
    uncertainty = asked.get("uncertainty", False)
    model = network_of(few, uncertainty=uncertainty)
    with caplog.at_level(logging.INFO, logger="gears"):
        result = model.train(evaluate_test=False, steps=asked["steps"])
    assert result.history
    assert result.network_weight == 0
    effect = "predicts cell_sd only" if uncertainty else "has no effect"
    line = f"GEARS network {effect} with 4 validation conditions: give 5, omit epochs, or prior=None"
    assert caplog.messages.count(line) == 1
    started = next(row for row, text in enumerate(caplog.messages) if text.startswith("GEARS network: "))
    assert caplog.messages.index(line) < started
    assert not any("skipped" in text for text in caplog.messages[started:])
    assert (model.predict([model.pert_list[0]]).cell_sd is not None) is uncertainty
