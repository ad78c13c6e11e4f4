"""Scaled scores from halved cells, and intervals by bootstrap."""

import numpy as np
import pandas as pd
import pytest

from gears.evaluation import Predicted, Truth, comparison_table, condition_metrics, make_baseline
from gears.evaluation._scoring import half_scores, scaled_shares, split_halves
from gears.evaluation.intervals import Bootstrap, difference_table, interval_table, scaled_by_weights


def scaled_score(value: np.ndarray, floor: np.ndarray, ceiling: np.ndarray, *, higher_is_better: bool) -> float:
    """With every condition once."""
    once = np.ones((1, len(value)))
    return float(scaled_by_weights(once, value, floor, ceiling, higher_is_better=higher_is_better)[0])


METRICS = ["mse", "pearson_delta_ref", "rank", "discrimination", "centroid_accuracy", "mse_top20_de"]


@pytest.fixture(scope="module")
def truth(small_data):
    return Truth.of(small_data.screen, small_data.split.conditions("test"), small_data.split.conditions("train"))


def test_scores_are_those_against_the_held_out_halves_averaged(small_data, truth):
    predicted = make_baseline("additive").fit(small_data.screen, small_data.split).predict(truth.conditions)
    halves = half_scores({"additive": Predicted(predicted)}, small_data.screen, truth, METRICS, n=4, seed=2)
    by_hand = [
        (condition_metrics(predicted, held_out, METRICS), condition_metrics(other, held_out, METRICS))
        for held_out, other in split_halves(small_data.screen, truth, 4, seed=2)
    ]
    np.testing.assert_allclose(halves.values["additive"], np.mean([one for one, _ in by_hand], axis=0))
    np.testing.assert_allclose(halves.ceiling_UM, np.mean([other for _, other in by_hand], axis=0))
    assert np.isnan(halves.floor_UM[:, 1]).all()  # the train mean has no correlation with itself


def test_scaled_score_by_hand():
    value, floor, ceiling = np.array([1.0, 3.0]), np.array([0.0, 1.0]), np.array([2.0, 3.0])
    assert scaled_score(value, floor, ceiling, higher_is_better=True) == pytest.approx(1.5 / 2)
    shares = scaled_shares(value, floor, ceiling, higher_is_better=True)
    assert shares.tolist() == [0.5, 1.0]  # the mean is the score
    # errors: lower is better, from 4 (train mean) to 1 (other half)
    assert scaled_score(np.array([2.0]), np.array([4.0]), np.array([1.0]), higher_is_better=False) == pytest.approx(
        2 / 3
    )
    assert scaled_score(np.array([0.5]), np.array([4.0]), np.array([1.0]), higher_is_better=False) > 1


def test_train_mean_is_zero_on_the_scale_and_the_truth_is_above_one(small_data, truth):
    train_mean = make_baseline("train_mean").fit(small_data.screen, small_data.split).predict(truth.conditions)
    methods = {"train_mean": train_mean, "truth": truth.mean_UG}
    halves = half_scores({name: Predicted(means) for name, means in methods.items()}, small_data.screen, truth, METRICS)
    for column, name in enumerate(METRICS):
        scored = {
            method: scaled_score(
                values[:, column],
                halves.floor_UM[:, column],
                halves.ceiling_UM[:, column],
                higher_is_better=name not in ("mse", "rank", "mse_top20_de"),
            )
            for method, values in halves.values.items()
        }
        if name != "pearson_delta_ref":
            assert scored["train_mean"] == pytest.approx(0, abs=1e-9)
        assert scored["truth"] >= 1  # all cells know the held-out half, too


def test_table_holds_the_shares_whose_mean_is_the_scaled_score(small_data, truth):
    predicted = make_baseline("additive").fit(small_data.screen, small_data.split).predict(truth.conditions)
    table = comparison_table(
        predicted, truth.conditions, small_data.screen, small_data.split, baselines=["train_mean", "no_change"],
        metrics=["mse", "pearson_delta", "energy_distance", "spread"], n_split_half=2,
    )  # fmt: skip
    assert {"scaled", "half_value", "half_floor", "half_ceiling"} <= set(table.columns)
    summary = interval_table(table, Bootstrap(n=200)).set_index(["subgroup", "method", "metric"])
    mse = table[(table["metric"] == "mse") & (table["method"] == "model")]
    assert summary.loc[("all", "model", "mse"), "scaled"] == pytest.approx(mse["scaled"].mean())
    assert np.isfinite(table.loc[table["metric"] == "energy_distance", "value"]).all()
    assert table.loc[table["metric"].isin(["energy_distance", "spread"]), "scaled"].isna().all()
    assert summary.loc[("all", "model", "energy_distance"), "n_unscaled"] == len(truth.conditions)


def tidy(values: dict[str, list[float]], metric: str = "mse", **more) -> pd.DataFrame:
    rows = [
        {"condition": f"P{i}+ctrl", "subgroup": "s", "n_cells": 5, "method": m, "metric": metric, "value": v}
        for m, column in values.items()
        for i, v in enumerate(column)
    ]
    return pd.DataFrame(rows).assign(**more)


@pytest.mark.long
def test_intervals_cover_the_mean_of_normal_values_as_often_as_they_say():
    rng = np.random.default_rng(0)
    inside = 0
    for trial in range(200):
        bootstrap, values = Bootstrap(n=400, seed=trial), rng.normal(3, 1, 40)
        low, high = bootstrap.bounds(bootstrap.weights(40) @ values / 40)
        inside += low <= 3 <= high
    assert 178 <= inside <= 199  # 95 % of 200, less what the percentile interval is too narrow by


def test_differences_are_paired_and_undecided_where_the_interval_holds_zero():
    rng = np.random.default_rng(1)
    hard = rng.normal(0, 10, 30)
    table = tidy({"model": (hard + 0.1).tolist(), "base": hard.tolist()})
    row = difference_table(table).iloc[0]
    assert row["difference"] == pytest.approx(0.1)
    assert 0.0999 < row["low"] <= row["high"] < 0.1001  # conditions differ by 10, the pairs not at all
    assert row["better"] == "other"  # a larger error
    table = tidy({"model": [0.0, 1, 0, 1], "base": [1.0, 0, 1, 0]}, metric="pearson_delta")
    assert difference_table(table)["better"].tolist() == ["undecided"] * 2


def test_undefined_values_of_a_baseline_count_as_zero_and_of_the_model_are_left_out():
    nan = float("nan")
    table = tidy({"model": [0.5, 0.3, nan], "base": [nan, nan, 0.9]}, metric="pearson_delta")
    row = difference_table(table).iloc[0]
    assert row["difference"] == pytest.approx(0.4)
    assert (row["n_conditions"], row["n_undefined"]) == (2, 1)
    summary = interval_table(table).set_index(["subgroup", "method"])
    assert summary.loc[("all", "base"), "mean"] == pytest.approx(0.9)
    assert summary.loc[("all", "base"), "n_undefined"] == 2
    all_undefined = tidy({"model": [nan], "base": [1.0]}, metric="pearson_delta")
    assert difference_table(all_undefined)["better"].tolist() == ["undecided"] * 2


def test_a_condition_in_several_splits_counts_once_and_a_bootstrap_is_a_function_of_its_seed():
    twice = pd.concat([tidy({"model": [1.0, 5.0]}, split="a"), tidy({"model": [3.0]}, split="b")], ignore_index=True)
    row = interval_table(twice).iloc[0]
    assert row["n_conditions"] == 2
    assert row["mean"] == pytest.approx((2 + 5) / 2)
    table = tidy({"model": [1.0, 2.0, 7.0]})
    pd.testing.assert_frame_equal(interval_table(table), interval_table(table))
    other = interval_table(table, Bootstrap(n=50, seed=1))
    assert other["low"][0] != interval_table(table, Bootstrap(n=50, seed=2))["low"][0]
    for wrong in ({"n": 0}, {"level": 1.0}):
        with pytest.raises(ValueError, match="level between 0 and 1"):
            Bootstrap(**wrong)
