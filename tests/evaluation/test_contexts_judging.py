"""Methods beside each other on a screen with contexts, control cells divided between parts, the published evaluate."""

import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small_models import network_of

from gears import GEARS, PertData
from gears.data.screen._statistics import PAIRED, STATISTICS
from gears.data.screen.prepare import prepare_screen
from gears.data.splits._split import control_parts
from gears.evaluation import compare
from gears.inference import compute_metrics, evaluate
from gears.jobs.estimators import GEARSEstimator, PriorEstimator

DIVISION = {"context_key": "cell_type", "batch_key": ["batch"], "perturbation_type_key": "guide"}
SHARES = (0.5, 0.25, 0.25)
SHORT = {"epochs": 2, "objective": "moments"}


@pytest.fixture
def pert_data(tmp_path, divided, toy_go):
    data = PertData(tmp_path / "data", gene2go=toy_go)
    data.new_data_process("lines", divided, **DIVISION)
    return data


def trained(data: PertData, **options) -> GEARS:
    model = network_of(data)
    model.train(**{"epochs": 1, "verbose": False, "evaluate_test": False} | options)
    return model


class Known:
    """A method that predicts every unit's own mean."""

    def fit(self, screen, split):
        self.screen = screen

    def predict(self, conditions):
        return np.array([self.screen.statistics.mean[self.screen.id_of(unit)] for unit in conditions])


def test_methods_are_compared_within_contexts(pert_data):
    pert_data.prepare_split("context_held_out", seed=1)
    estimator = GEARSEstimator(pert_data, network={"hidden_size": 8}, training=SHORT, seed=1, device="cpu")
    models = {"gears": estimator, "closed form": PriorEstimator(pert_data, refit=False), "known": Known()}
    scores = {
        "metrics": ["pearson_delta", "pearson_delta_ref", "mse", "spread", "mmd"], "n_split_half": 2, "max_cells": 5,
        "baselines": ["train_mean", "additive", "go_knn"],
    }  # fmt: skip
    found = compare(models, pert_data.screen, pert_data.split, annotation=pert_data.annotation, **scores)
    units = pert_data.split.conditions("test")
    table = found.table
    assert set(table["condition"]) - {"*"} == {unit.name for unit in units if not unit.is_control}
    assert set(table["context"]) == {unit.context for unit in units}
    assert not found.left_out
    # measured means that rounding left below zero are set to zero
    assert (table.loc[(table["method"] == "known") & (table["metric"] == "mse"), "value"] < 1e-30).all()
    # what the model's own table says of the same conditions, baselines and scaled scores included
    own = estimator.model.evaluate("test", seed=0, **scores)
    own = own[own["method"].isin(table["method"])]  # without the model's variants
    keys = ["condition", "subgroup", "method", "metric", "context", "perturbation_type"]
    both = own.merge(table, on=keys, suffixes=("", "_compared"))
    assert len(both) == len(own) > 0
    for column in ("value", "scaled", "half_ceiling"):
        np.testing.assert_allclose(both[f"{column}_compared"], both[column], rtol=1e-6, atol=1e-7)
    assert {"gears", "closed form", "additive"} <= set(found.summary()["method"])
    assert len(found.differences("known"))
    assert found.verdict("closed form").startswith("Better")


def test_control_cells_of_every_batch_are_divided_unless_there_are_too_few(pert_data):
    pert_data.prepare_split("simulation", seed=1, control_shares=SHARES)
    whole = pert_data.whole_screen
    parts = control_parts(whole, pert_data.split)
    assert sorted(np.concatenate(list(parts.values()))) == whole.control_cells.tolist()
    for part, share in zip(("train", "val", "test"), SHARES, strict=True):
        each = np.bincount(whole.cell_batch[parts[part]], minlength=4)
        assert np.abs(each - share * 14).max() <= 1, part
    expression = whole.cells.csr().toarray()
    batch_of = {row.tobytes(): batch for row, batch in zip(expression, whole.cell_batch, strict=True)}
    own = {part: {row.tobytes() for row in expression[cells]} for part, cells in parts.items()}
    for name, loader in pert_data.get_dataloader(8).items():
        loader.set_epoch(2)
        for batch in loader:
            controls = [row.tobytes() for row in batch.x_BG.numpy()]
            assert set(controls) <= own[name.removesuffix("_loader")], name
            cells = [batch_of[row.tobytes()] for row in batch.y_BG.numpy()]
            assert [batch_of[row] for row in controls] == cells
    with pytest.raises(ValueError, match=r"of 14 control cells of .*L1.* leaves too few in a part \(val 1"):
        pert_data.prepare_split("simulation", seed=1, control_shares=(0.8, 0.05, 0.15))


def test_the_view_of_some_control_cells_is_the_screen_of_its_cells(pert_data, divided, tmp_path):
    pert_data.prepare_split("simulation", seed=1, control_shares=SHARES)
    view = pert_data.screen
    fresh = prepare_screen(divided[view.cell_ids].copy(), tmp_path / "fresh", **DIVISION)
    assert view.conditions == fresh.conditions
    for name in (*STATISTICS, *PAIRED):
        np.testing.assert_allclose(
            getattr(view.statistics, name), getattr(fresh.statistics, name), rtol=1e-9, atol=1e-12
        )
    np.testing.assert_allclose(view.control_mean_BG, fresh.control_mean_BG, rtol=1e-12)
    np.testing.assert_array_equal(view.de.order, fresh.de.order)
    again = pickle.loads(pickle.dumps(view))
    assert again.content_hash == view.content_hash != pert_data.whole_screen.content_hash
    np.testing.assert_array_equal(again.setting("L1", "CRISPRi").statistics.mean, view.settings[1].statistics.mean)


def test_training_and_scoring_with_divided_controls(pert_data):
    pert_data.prepare_split("context_held_out", test_contexts="L2", control_shares=SHARES)
    pert_data.get_dataloader(32)
    model = trained(pert_data, objective="cells")
    means = pert_data.screen.statistics.mean
    control = pert_data.screen.id_of("ctrl @ L2")
    predicted = model.predict(["GX00"], context="L2", perturbation_type="CRISPRi")
    np.testing.assert_allclose(predicted.control_mean_G[0], means[control])
    table = model.evaluate("test", baselines=["additive"], n_split_half=0)
    # true changes count from the control cells of the test part, baselines are fitted to those of training
    true = pert_data.screen_of("test").setting("L2", "CRISPRi")
    origin = true.statistics.mean[true.control_id]
    change = true.statistics.mean[true.id_of("GX00+ctrl")] - origin
    elsewhere = pert_data.screen.statistics.delta(np.array([pert_data.screen.id_of("GX00+ctrl [CRISPRi] @ L1")]))
    predictions = {"gears": predicted.expression_UG[0], "additive": means[control] + elsewhere[0]}
    for method, values in predictions.items():
        row = (table["condition"] == "GX00+ctrl [CRISPRi] @ L2") & (table["metric"] == "pearson_delta")
        value = table.loc[row & (table["method"] == method), "value"].item()
        by_hand = np.corrcoef(np.maximum(values, 0) - origin, change)[0, 1]
        assert value == pytest.approx(by_hand, rel=1e-6)


def test_the_published_evaluate_predicts_cells_where_they_are(pert_data):
    pert_data.prepare_split("simulation", seed=1)
    model = trained(pert_data, prior="auto")
    loader = pert_data.get_dataloader(16, 16)["test_loader"]
    found = evaluate(loader, model.best_model)
    units = pert_data.split.conditions("test")
    assert set(found["pert_cat"]) == set(pert_data.split.parts["test"])
    change = model.predict(units, clip=False)
    controls = np.concatenate([batch.x_BG.numpy() for batch in loader])
    for unit in units:
        cells = np.array([label == unit.name for label in found["pert_cat"]])
        np.testing.assert_allclose(
            (found["pred"] - controls)[cells], np.tile(change.delta(unit), (cells.sum(), 1)), atol=2e-5
        )
    metrics, each = compute_metrics(found)
    assert set(each) == {unit.name for unit in units}
    assert np.isfinite(metrics["mse_de"])
    # batches that do not say where cells are
    batch = SimpleNamespace(x=torch.zeros(2 * 30, 1), pert_idx=[[0], [-1]])
    with pytest.raises(ValueError, match="do not contain the cells' contexts"):
        model.best_model(batch)
