"""The head of the prior in training: where it pays and what it does not see (several workers: test_exactness.py)."""

from __future__ import annotations

import dataclasses
import logging
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from driving import perturbed_in
from small_models import network_of

from gears import GEARS, PertData
from gears.distributed import World
from gears.distributed import _signals as signals
from gears.priors import _source as source
from gears.priors import prior_of
from gears.simulate import simulated_screen
from gears.training import _head as head_of
from gears.training._batches import ConditionBatch
from gears.training.options import TrainOptions

QUIET = {"evaluate_test": False, "verbose": False}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PertData:
    """Effects along co-expression: what the prior shrinks, a function of its prediction restores."""
    adata, _ = simulated_screen(
        n_genes=100, n_singles=70, n_pairs=30, cells_per_condition=30, n_control=300, go_strength=0.0,
        interaction_share=0.0, n_modules=6, module_share=0.8, seed=3,
    )  # fmt: skip
    data = PertData(tmp_path_factory.mktemp("head"), default_pert_graph=False)
    data.new_data_process("small", adata)
    data.prepare_split("simulation", train_gene_set_size=0.8, combo_seen2_train_frac=0.8, seed=3)
    return data


def trained(data: PertData, **more: Any) -> head_of.TrainedHead:
    """The head of the prior, on the CPU."""
    options = TrainOptions(**{"dtype": "float64", **more}).with_defaults()
    return head_of.train_head(data, prior_of(data), options, World())


@pytest.fixture(scope="module")
def found(data: PertData) -> head_of.TrainedHead:
    return trained(data)


def error(data: PertData, prior: object) -> float:
    """Squared error of the test conditions' changes."""
    tested = perturbed_in(data.split, "test")
    ids = np.array([data.screen.id_of(condition) for condition in tested])
    predicted = prior([data.condition_nodes(condition) for condition in tested])  # type: ignore[operator]
    return float(((predicted - data.screen.statistics.delta(ids)) ** 2).mean())


def test_it_gets_a_weight_where_it_pays_and_reduces_errors_of_test_and_unseen_conditions(data, found):
    prior = found.fitted.prior
    assert found.weights["single"].weight > 0.5
    assert prior.head is not None  # type: ignore[union-attr]
    assert error(data, prior) < 0.97 * error(data, dataclasses.replace(prior, head=None))  # type: ignore[type-var]
    assert prior.report["head"]["single"]["weight"] == found.weights["single"].weight
    before = prior_of(data)
    assert before is not None
    conditions = sorted(perturbed_in(data.split, "train"), key=data.screen.id_of)
    delta = data.screen.statistics.delta(np.array([data.screen.id_of(condition) for condition in conditions]))
    residual = ((found.fitted.left_out_CG - delta) ** 2).mean()
    assert residual < 0.97 * ((before.left_out_CG - delta) ** 2).mean()


def test_inner_predictions_and_members_do_not_see_the_conditions_of_their_fold(data: PertData) -> None:
    conditions = sorted(perturbed_in(data.split, "train"), key=data.screen.id_of)
    inner = source.inner_predictions(data, conditions, prior_of(data))
    row = next(row for row, nodes in enumerate(inner.sets) if len(nodes) > 1)
    known = [c for c, fold in zip(conditions, inner.fold_C, strict=True) if fold != inner.fold_C[row]]
    prior = source.fit_to(data, known).prior
    # the search for its weights starts elsewhere
    close = partial(np.testing.assert_allclose, atol=1e-4)
    close(inner.changes.change_UG[row], prior([inner.sets[row]])[0])
    close(inner.changes.sum_UG[row], prior([(node,) for node in inner.sets[row]]).sum(axis=0))
    # the tables of the genes that go with it are made without its fold
    other = dataclasses.replace(
        inner.inputs, mean_SG=inner.delta_CG[inner.fold_C != inner.fold_C[row]].mean(axis=0)[None]
    )
    np.testing.assert_allclose(inner.fold_inputs[inner.fold_C[row]].mean_SG, other.mean_SG)
    fold_C = np.arange(len(conditions)) % head_of.N_FOLDS
    keep_MC = head_of.kept_conditions(fold_C)
    assert keep_MC.shape == (head_of.N_FOLDS + 1, len(conditions))
    np.testing.assert_array_equal(keep_MC[:-1] == 0, fold_C == np.arange(head_of.N_FOLDS)[:, None])
    np.testing.assert_allclose(keep_MC.mean(axis=1), 1.0)
    task = head_of.HeadTask(
        inner,
        inner.delta_CG - inner.changes.change_UG,
        np.ones_like(inner.delta_CG),
        keep_MC,
        torch.device("cpu"),
        torch.float64,
    )
    model = _Constant(head_of.N_FOLDS + 1)
    rows = torch.from_numpy(np.flatnonzero(fold_C == 1))
    task.loss(model, ConditionBatch(rows, len(rows)), 1.0, 0).backward()
    assert model.level.grad is not None
    assert (model.level.grad != 0).tolist() == [True, False, True, True, True]


def test_the_truth_of_training_does_not_look_at_other_conditions(data: PertData, tmp_path: Path) -> None:
    adata = data.adata.copy()
    is_tested = adata.obs["condition"].isin({condition.name for condition in perturbed_in(data.split, "test")})
    values = adata.X.toarray()
    values[is_tested.to_numpy()] = np.random.default_rng(0).uniform(0, 9, (int(is_tested.sum()), adata.n_vars))
    adata.X = values.astype(np.float32)
    other = PertData(tmp_path, default_pert_graph=False)
    other.new_data_process("poisoned", adata)
    conditions = perturbed_in(data.split, "train")
    ours, theirs = [head_of.training_truth(one.screen, conditions) for one in (data, other)]
    np.testing.assert_allclose(theirs.delta_CG, ours.delta_CG)
    np.testing.assert_allclose(theirs.loss_weights(), ours.loss_weights())
    np.testing.assert_allclose(theirs.scores(ours.delta_CG), ours.scores(ours.delta_CG))


def test_of_very_many_conditions_a_sample_trains_and_all_others_get_the_trained_head(data, monkeypatch):
    conditions = sorted(perturbed_in(data.split, "train"), key=data.screen.id_of)
    monkeypatch.setattr(source, "most_judged", lambda n_genes: len(conditions) - 4)
    inner = source.inner_predictions(data, conditions, prior_of(data))
    assert len(inner.sets) == len(inner.delta_CG) == len(conditions) - 4
    assert inner.sets[-1] == tuple(data.condition_nodes(conditions[inner.rows[-1]]))
    found, before = trained(data), prior_of(data)
    prior, others = found.fitted.prior, np.setdiff1d(np.arange(len(conditions)), inner.rows)
    assert before is not None
    assert prior.head is not None  # type: ignore[union-attr]
    nodes = [data.condition_nodes(conditions[row]) for row in others.tolist()]
    unmeasured = dataclasses.replace(prior, measured=None)  # type: ignore[type-var]
    change = unmeasured(nodes) - dataclasses.replace(unmeasured, head=None)(nodes)
    assert np.abs(change).max() > 1e-3
    np.testing.assert_allclose(found.fitted.left_out_CG[others] - before.left_out_CG[others], change, atol=1e-12)


class _Constant(torch.nn.Module):
    """The same change of every gene under every condition, by member."""

    def __init__(self, n_members: int) -> None:
        super().__init__()
        self.level = torch.nn.Parameter(torch.full((n_members,), 3.0, dtype=torch.float64))

    def forward(self, inputs_UGF: torch.Tensor) -> torch.Tensor:
        return self.level[:, None, None].expand(-1, *inputs_UGF.shape[:2])


@pytest.mark.long
def test_mixed_precision_finds_nearly_the_same_weight(data: PertData, found: head_of.TrainedHead) -> None:
    half = trained(data, use_amp=True, dtype="float32")
    assert half.weights["single"].weight == pytest.approx(found.weights["single"].weight, abs=0.1)


def test_a_run_stopped_while_the_head_is_trained_goes_on_and_predicts_with_it(data, tmp_path, monkeypatch, caplog):
    """Saved, a model predicts with its head and without training data; a run resumed again has the same head."""
    path = str(tmp_path / "model")
    model = network_of(data)
    with monkeypatch.context() as patch:
        patch.setattr(signals, "stop_requested", lambda: True)
        assert model.train(epochs=1, save_path=path, **QUIET).stopped
    assert "head" not in model.parts.prior.report, "weights of a head that is not trained to the end"
    model, again = network_of(data), network_of(data)
    with caplog.at_level(logging.INFO, logger="gears"):
        assert not model.train(epochs=1, save_path=path, resume=True, evaluate_test=False).stopped
    assert any(line.startswith("correction network: weight") for line in caplog.messages)
    assert any(line.startswith("predictions come from prior + correction network, ") for line in caplog.messages)
    again.train(epochs=1, save_path=path, resume=True, **QUIET)
    heads = [one.parts.prior.head.arrays() for one in (model, again)]
    assert heads[0]
    for name, array in heads[0].items():
        np.testing.assert_array_equal(heads[1][name], array)
    tested = [condition.name for condition in perturbed_in(data.split, "test")]
    loaded = GEARS.from_pretrained(path, device="cpu")
    assert loaded.parts.prior.report["head"] == model.parts.prior.report["head"]
    np.testing.assert_array_equal(loaded.predict(tested).expression_UG, model.predict(tested).expression_UG)
    without = dataclasses.replace(model.parts.prior, head=None)
    assert error(data, model.parts.prior) < error(data, without)


@pytest.mark.parametrize("options", [{"epochs": 0}, {"prior": None, "epochs": 1}])
def test_the_prior_alone_and_the_network_alone_have_no_head(data, options):
    model = network_of(data)
    model.train(**options, **QUIET)  # type: ignore[arg-type]
    prior = model.parts.prior
    assert prior is None or (prior.head is None and "head" not in prior.report)


def test_few_training_conditions_train_no_head(data: PertData, caplog: pytest.LogCaptureFixture) -> None:
    other = PertData(data.data_path, default_pert_graph=False)
    other.load("small")
    labels = [label for label in other.screen.labels if label != "ctrl"]
    n_train = head_of.FEWEST_CONDITIONS - 1
    parts = {"train": [*labels[:n_train], "ctrl"], "val": labels[n_train : n_train + 6], "test": labels[-6:]}
    other.prepare_split("custom", seed=1, split_dict=parts)
    model = network_of(other)
    with caplog.at_level(logging.INFO, logger="gears"):
        model.train(epochs=1, evaluate_test=False)
    assert model.parts.prior.head is None
    assert (
        f"correction network skipped: it needs {head_of.FEWEST_CONDITIONS} training conditions, found {n_train}"
        in caplog.messages
    )
