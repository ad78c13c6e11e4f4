"""`GEARS.cross_validate`: every condition predicted once by a model that did not see it, on any number of devices."""

import numpy as np
import pandas as pd
import pytest
from driving import gears_of, pert_data_of

from gears import GEARS, PertData
from gears.data.splits import Split, folds_like, make_split
from gears.evaluation import Comparison

FAST = {"epochs": 0, "metrics": ["mse", "relative_error"], "baselines": ["train_mean"], "verbose": False}


def model_of(data: PertData) -> GEARS:
    return gears_of(data)


@pytest.fixture(scope="module")
def model(small_data) -> GEARS:
    model = model_of(small_data)
    model.train(epochs=0, evaluate_test=False, verbose=False)
    return model


@pytest.fixture(scope="module")
def result(model) -> Comparison:
    return model.cross_validate(3, **FAST)


def test_every_condition_is_predicted_once_by_a_model_that_did_not_see_it(model, result):
    perturbed = {str(condition) for condition in model.pert_data.screen.conditions if not condition.is_control}
    for _, rows in result.table.groupby(["method", "metric"]):
        assert sorted(rows["condition"]) == sorted(perturbed)
    assert set(result.table["method"]) == {"gears", "train_mean"}
    assert set(result.table["subgroup"]) <= {"unseen_single", "combo_seen0", "combo_seen1"}
    assert "(18 conditions)" in repr(result)
    summary = result.summary().query("subgroup == 'all' and method == 'gears' and metric == 'mse'")
    assert summary["n_conditions"].item() == 18
    assert summary["low"].item() < summary["mean"].item() < summary["high"].item()


def test_a_fold_trains_as_a_model_of_its_split_does(model, result):
    screen, split = (
        model.pert_data.whole_screen,
        folds_like(model.pert_data.whole_screen, model.pert_data.split, 3)[1],
    )
    data = PertData(model.pert_data.data_path, default_pert_graph=False)
    data.load("small")
    data.use_split(split)
    other = model_of(data)
    other.train(epochs=0, evaluate_test=False, verbose=False)
    tested = split.conditions("test")
    predicted_UG = other.predict(tested, clip=False).expression_UG
    measured_UG = screen.statistics.mean[[screen.id_of(condition) for condition in tested]]
    mse_U = ((np.maximum(predicted_UG, 0) - measured_UG) ** 2).mean(axis=1)
    rows = result.table.query("method == 'gears' and metric == 'mse' and split == 'fold 2'")
    np.testing.assert_allclose(rows.set_index("condition")["value"].loc[list(map(str, tested))], mse_U, rtol=1e-6)


def test_the_model_stays_as_it_was(model, small_data):
    parts, split, predicted = model.parts, small_data.split, model.predict(model.pert_list[:1])
    model.cross_validate(2, **FAST)
    assert (model.parts, small_data.split) == (parts, split)
    np.testing.assert_array_equal(model.predict(model.pert_list[:1]).expression_UG, predicted.expression_UG)


def test_two_workers_give_the_numbers_of_one(model, result, quick_workers):
    side_by_side = model.cross_validate(3, n_at_once=2, **FAST)
    pd.testing.assert_frame_equal(side_by_side.table, result.table, check_exact=True)
    assert side_by_side.models == result.models == ("gears",)


def test_what_cannot_be_is_said_before_a_fold_is_trained(model):
    with pytest.raises(ValueError, match="did you mean 'epochs'"):
        model.cross_validate(epoch=3)
    with pytest.raises(ValueError, match="keeps no model"):
        model.cross_validate(save_path="models/run1")
    with pytest.raises(ValueError, match="GPU"):
        model.cross_validate(gpu_ids=[0])
    with pytest.raises(ValueError, match="at most 10 folds"):
        model.cross_validate(40, **FAST)


@pytest.mark.parametrize("name", ["simulation", "gene_held_out"])
def test_folds_hold_out_genes_where_the_split_does(small_data, name):
    splits = folds_like(small_data.whole_screen, _split(small_data, name), 4)
    for split in splits:
        trained = {gene for part in ("train", "val") for c in split.conditions(part) for gene in c.genes}
        assert all(set(condition.genes) - trained for condition in split.conditions("test"))
    tested = [condition for split in splits for condition in split.conditions("test")]
    assert len(tested) == len(set(tested)) == 18
    assert max(len(split.conditions("test")) for split in splits) <= 6


def test_folds_hold_out_conditions_or_contexts_where_the_split_does(small_data, divided, tmp_path):
    splits = folds_like(small_data.whole_screen, _split(small_data, "unit_held_out"), 4)
    assert sorted(len(split.conditions("test")) for split in splits) == [4, 4, 5, 5]

    lines = pert_data_of(tmp_path, divided.copy(), "lines", split="context_held_out", context_key="cell_type")
    by_line = folds_like(lines.whole_screen, lines.split, 5)
    assert [{c.context for c in split.conditions("test")} for split in by_line] == [{"L1"}, {"L2"}]


def test_conditions_that_the_split_leaves_in_no_part_are_in_no_fold(small_data):
    splits = folds_like(small_data.whole_screen, _split(small_data, "simulation_single"), 2)
    parts = {condition for split in splits for part in split.parts for condition in split.conditions(part)}
    assert {len(condition) for condition in parts} == {0, 1}


def _split(data: PertData, name: str) -> Split:
    return make_split(data.whole_screen.labels, name, seed=1)
