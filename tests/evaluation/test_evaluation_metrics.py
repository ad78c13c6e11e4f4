"""Metrics against values worked out by hand, and properties that hold for any input."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gears.evaluation import METRICS, Truth, condition_metrics, metric_table, set_metrics, summary_table
from gears.evaluation.metrics._decisive import changed_genes

PER_CONDITION = [name for name, metric in METRICS.items() if metric.scope == "condition" and not metric.needs_cells]
CONTROL = np.array([1.0, 2.0, 3.0, 0.0])


def value(name: str, predicted, truth: Truth) -> np.ndarray:
    return condition_metrics(np.atleast_2d(np.asarray(predicted, dtype=float)), truth, [name])[:, 0]


def one(mean, **arguments) -> Truth:
    return Truth.from_means(np.atleast_2d(np.asarray(mean, dtype=float)), CONTROL, **arguments)


def random_case(seed: int, n_conditions: int = 5, n_genes: int = 12) -> tuple[np.ndarray, Truth]:
    rng = np.random.default_rng(seed)
    control = rng.uniform(0.5, 2, n_genes)
    mean = control + rng.normal(0, 0.5, (n_conditions, n_genes))
    mean = np.abs(mean)
    t = rng.normal(0, 3, mean.shape)
    order = np.argsort(-np.abs(t), axis=1)
    truth = Truth.from_means(
        mean,
        control,
        reference_mean_G=rng.uniform(0.5, 2, n_genes),
        std_UG=rng.uniform(0, 1, mean.shape),
        t_UG=t,
        moderated_t_UG=t,
        degrees_U=np.full(n_conditions, 60.0),
        n_cells_U=np.arange(n_conditions) + 40,
        control_std_G=rng.uniform(0.1, 1, n_genes),
        n_control=100,
        top_de=list(order[:, :5]),
        top_de_non_dropout=list(order[:, 1:6]),
        targets=[np.array([row]) for row in range(n_conditions)],
    )
    return np.abs(mean + rng.normal(0, 0.4, mean.shape)), truth


def test_squared_and_absolute_errors_by_hand():
    truth = one([1, 2, 3, 4], top_de=[np.array([3, 0])], top_de_non_dropout=[np.array([1])])
    predicted = [2, 4, 3, 1]  # differences 1, 2, 0, -3
    assert value("mse", predicted, truth) == pytest.approx(14 / 4)
    assert value("mae", predicted, truth) == pytest.approx(6 / 4)
    assert value("mse_top20_de", predicted, truth) == pytest.approx((9 + 1) / 2)
    assert value("mae_top20_de", predicted, truth) == pytest.approx(2)
    assert value("mse_top20_de_non_dropout", predicted, truth) == pytest.approx(4)


def test_correlations_by_hand():
    truth = one([2, 2, 4, 1], reference_mean_G=[1, 1, 1, 1], top_de=[np.array([0, 1, 3])])
    predicted = [2, 3, 3, 0]
    # levels: (0, 1, 1, -2) and (-.25, -.25, 1.75, -1.25) after centring
    assert value("pearson", predicted, truth) == pytest.approx(4 / np.sqrt(6 * 4.75))
    # changes over control: (1, 1, 0, 0) and (1, 0, 1, 1) -> centred (.5, .5, -.5, -.5) and (.25, -.75, .25, .25)
    assert value("pearson_delta", predicted, truth) == pytest.approx(-0.5 / np.sqrt(1 * 0.75))
    # changes over the reference only shift the levels here
    assert value("pearson_delta_ref", predicted, truth) == pytest.approx(4 / np.sqrt(6 * 4.75))
    # genes 0, 1, 3: (1, 1, 0) and (1, 0, 1)
    assert value("pearson_delta_top20_de", predicted, truth) == pytest.approx(-0.5)


def test_directions_are_equal_half_or_opposite():
    truth = one([2, 1, 4, 1], top_de=[np.arange(4)])  # signs +, -, +, +
    predicted = [3, 2, 2, 0.5]  # signs +, 0, -, +
    assert value("direction_accuracy_top20", predicted, truth) == 0.5
    assert value("half_direction_top20", predicted, truth) == 0.25
    assert value("opposite_direction_top20", predicted, truth) == 0.25


def test_within_one_sigma_is_strict_and_skips_genes_without_spread():
    truth = one([1, 2, 3, 4], std_UG=np.array([[1.0, 1.0, 0.0, 2.0]]), top_de=[np.arange(4)])
    # distances 1 (not below 1), .5 (below), 0 (left out), 1 (below)
    assert value("within_one_sigma_top20", [2, 2.5, 3, 5], truth) == pytest.approx(2 / 3)
    still = one([1, 2, 3, 4], std_UG=np.zeros((1, 4)), top_de=[np.arange(4)])
    assert np.isnan(value("within_one_sigma_top20", [1, 2, 3, 4], still))


def test_weighted_mse_by_hand_and_undefined_for_equal_scores():
    truth = one([1, 2, 3, 4], t_UG=np.array([[-5.0, 1.0, 3.0, 1.0]]))  # weights 1, 0, 1/4, 0
    assert value("weighted_mse", [3, 9, 4, 9], truth) == pytest.approx((4 + 0.25) / 1.25)
    assert np.isnan(value("weighted_mse", [1, 2, 3, 4], one([1, 2, 3, 4], t_UG=np.full((1, 4), 2.0))))


def test_log_fold_change_error_by_hand():
    truth = one(np.log1p([1.0, 3.0, 0.0, 1.0]))
    predicted = np.log1p([2.0, 3.0, 0.0, 1.0])
    assert value("log_fold_change_error", predicted, truth) == pytest.approx(np.log2(2.001 / 1.001) / 4)
    assert np.isnan(value("log_fold_change_error", [-1, 1, 1, 1], truth))


def three_conditions(**arguments) -> Truth:
    return Truth.from_means(np.array([[1.0, 0], [0, 1], [2, 2]]), np.zeros(2), **arguments)


def test_discrimination_by_hand():
    truth = three_conditions()
    predicted = np.array([[0.1, 1.0], [0.5, 0.5], [2, 2]])
    # row 0: own distance 1.9, second .1, third 2.9 -> rank 1; row 1: tie with the first -> rank .5; row 2: rank 0
    assert value("discrimination", predicted, truth) == pytest.approx([1 - 1 / 3, 1 - 0.5 / 3, 1])


def test_discrimination_leaves_out_the_own_targets():
    mean = np.array([[1.0, 0], [0, 1], [5, 2]])
    predicted = np.array([[9.0, 0.4], [0, 1], [5, 2]])
    # own distance 8 + .4, second 9 + .6, third 4 + 1.6: rank 1; without gene 0: .4, .6, 1.6: rank 0
    assert value("discrimination", predicted, Truth.from_means(mean, np.zeros(2)))[0] == pytest.approx(1 - 1 / 3)
    targets = [np.array([0]), np.array([], int), np.array([], int)]
    assert value("discrimination", predicted, Truth.from_means(mean, np.zeros(2), targets=targets))[0] == 1


def test_centroid_accuracy_by_hand():
    predicted = np.array([[0.1, 1.0], [0.5, 0.5], [2, 2]])
    assert value("centroid_accuracy", predicted, three_conditions()) == pytest.approx([0.5, 0.75, 1])


def test_rank_by_hand():
    # changes point to 0, 90 and 45 degrees; predictions to 90, 45 and 80 degrees
    angle = np.deg2rad([90, 45, 80])
    predicted = np.stack([np.cos(angle), np.sin(angle)], axis=1) * [[1.0], [3.0], [0.5]]
    # truth 0: distances 90, 45, 80 -> own is last: 1. truth 90: 0, 45, 10 -> own last: 1. truth 45: 45, 0, 35 -> .5
    assert value("rank", predicted, three_conditions()) == pytest.approx([1, 1, 0.5])


def test_spread_compares_pairwise_distances():
    truth = three_conditions()
    assert set_metrics(truth.mean_UG * 0.25 + 7, truth)["spread"] == pytest.approx(0.25)
    assert set_metrics(np.ones((3, 2)), truth)["spread"] == 0
    assert np.isnan(set_metrics(np.ones((1, 2)), truth.subset([0]))["spread"])


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_no_change_has_no_correlation_of_changes_and_chance_rank(dtype):
    _, truth = random_case(3)
    predicted = np.tile(truth.control_mean_G, (5, 1)).astype(dtype)
    assert np.isnan(value("pearson_delta", predicted, truth)).all()
    assert np.isnan(value("pearson_delta_top20_de", predicted, truth)).all()
    assert (value("direction_accuracy_top20", predicted, truth) == 0).all()
    assert (value("half_direction_top20", predicted, truth) == 1).all()
    assert value("rank", predicted, truth) == pytest.approx(0.5)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_reference_itself_is_undefined_not_zero(dtype):
    _, truth = random_case(4)
    predicted = np.tile(truth.reference_mean_G, (5, 1)).astype(dtype)
    assert np.isnan(value("pearson_delta_ref", predicted, truth)).all()
    assert np.isfinite(value("pearson_delta", predicted, truth)).all()
    assert value("rank", predicted, truth) == pytest.approx(0.5)


def test_without_ranking_reference_or_spread_the_metrics_are_nan():
    truth = one([1, 2, 3, 4])
    for name in ("pearson_delta_ref", "within_one_sigma_top20", "weighted_mse"):
        assert np.isnan(value(name, [4, 3, 2, 2], truth)), name
    for name, metric in METRICS.items():
        if metric.needs_de:
            assert np.isnan(value(name, [4, 3, 2, 2], truth)), name


def test_control_among_the_conditions_has_no_de_metrics():
    mean = np.stack([CONTROL, CONTROL + np.array([1, 0, 2, 0])])
    top = [np.array([], int), np.array([2, 0])]
    truth = Truth.from_means(mean, CONTROL, conditions=["ctrl", "A+ctrl"], top_de=top)
    values = value("mse_top20_de", truth.mean_UG + 1, truth)
    assert np.isnan(values[0])
    assert values[1] == pytest.approx(1)


def test_single_condition():
    truth = one([2, 2, 4, 1])
    assert value("discrimination", [2, 2, 4, 1], truth) == 1
    assert np.isnan(value("centroid_accuracy", [2, 2, 4, 1], truth))
    assert np.isnan(value("rank", [2, 2, 4, 1], truth))


def test_prediction_that_is_not_finite_is_undefined_for_its_condition_only():
    predicted, truth = random_case(6)
    broken = predicted.copy()
    broken[2, 0] = np.nan
    names = [name for name in PER_CONDITION if not METRICS[name].needs_all]
    values = condition_metrics(broken, truth, names)
    assert np.isnan(values[2]).all()
    rest = [0, 1, 3, 4]
    np.testing.assert_allclose(values[rest], condition_metrics(predicted, truth, names)[rest], rtol=1e-12)
    assert np.isnan(value("rank", broken, truth)).all()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_permuting_genes_changes_nothing(seed):
    predicted, truth = random_case(seed)
    order = np.random.default_rng(seed + 1).permutation(12)
    place = np.argsort(order)  # gene g stands at place[g] now
    moved = Truth.from_means(
        truth.mean_UG[:, order],
        truth.control_mean_G[order],
        reference_mean_G=truth.reference_mean_G[order],
        std_UG=truth.std_UG[:, order],
        t_UG=truth.t_UG[:, order],
        moderated_t_UG=truth.moderated_t_UG[:, order],
        degrees_U=truth.degrees_U,
        n_cells_U=truth.n_cells_U,
        control_std_G=truth.control_std_G[order],
        n_control=truth.n_control,
        top_de=[place[genes] for genes in truth.top_de],
        top_de_non_dropout=[place[genes] for genes in truth.top_de_non_dropout],
        targets=[place[genes] for genes in truth.targets],
    )
    np.testing.assert_allclose(
        condition_metrics(predicted[:, order], moved, PER_CONDITION),
        condition_metrics(predicted, truth, PER_CONDITION),
        rtol=1e-9,
        atol=1e-12,
    )


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_perfect_prediction_reaches_the_best_bound(seed):
    _, truth = random_case(seed)
    # sets of differential genes agree only where cells spread as the control's do
    truth = replace(truth, std_UG=np.tile(truth.control_std_G, (5, 1)))
    values = condition_metrics(truth.mean_UG, truth, PER_CONDITION)
    for column, name in enumerate(PER_CONDITION):
        metric = METRICS[name]
        if "recall" in name or metric.needs_sd or metric.higher_is_better is None:
            continue  # recall depends on how many conditions share a hit, an interval on sampling noise
        if name == "average_precision":
            continue  # a gene of little noise is found to change by less than others do
        best = metric.bounds[1] if metric.higher_is_better else metric.bounds[0]
        if name == "direction_changed":  # undefined without changed genes
            best = np.where(changed_genes(truth).any(axis=1), best, np.nan)
        np.testing.assert_allclose(values[:, column], best, atol=1e-12, err_msg=name)
    assert set_metrics(truth.mean_UG, truth)["spread"] == pytest.approx(1)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_values_stay_within_their_bounds(seed):
    predicted, truth = random_case(seed)
    values = condition_metrics(predicted, truth, PER_CONDITION, sd_UG=np.abs(predicted))
    low, high = np.array([METRICS[name].bounds for name in PER_CONDITION]).T
    undefined = np.isnan(values)
    assert (undefined | ((values >= low) & (values <= high))).all()
    # recall is of conditions with hits; a direction of those with changed genes
    assert not undefined[:, ["recall" not in name and "changed" not in name for name in PER_CONDITION]].any()


def test_metric_that_needs_all_conditions_is_refused_on_a_shard():
    predicted, truth = random_case(0)
    assert METRICS["rank"].needs_all
    with pytest.raises(ValueError, match="gather the predictions"):
        condition_metrics(predicted[:2], truth.subset([0, 1]), ["rank"])


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_permuting_conditions_permutes_values(seed):
    predicted, truth = random_case(seed)
    order = np.random.default_rng(seed).permutation(5)
    np.testing.assert_allclose(
        condition_metrics(predicted[order], truth.subset(order), PER_CONDITION),
        condition_metrics(predicted, truth, PER_CONDITION)[order],
        rtol=1e-9,
        atol=1e-12,
    )


def test_summary_averages_conditions_and_counts_the_undefined():
    nan = np.nan
    values = {"P": ("b", 1.0, nan), "Q": ("a", 3.0, nan), "R": ("b", nan, 5.0)}
    records = [
        (condition, subgroup, "mine", metric, value)
        for condition, (subgroup, *both) in values.items()
        for metric, value in zip(("mse", "pearson"), both, strict=True)
    ]
    columns = ["condition", "subgroup", "method", "metric", "value"]
    summary = summary_table(pd.DataFrame(records, columns=columns))
    rows = {(r.subgroup, r.metric): (r.mean, r.n_conditions, r.n_undefined) for r in summary.itertuples()}
    assert rows["all", "mse"] == (2.0, 3, 1)
    assert rows["all", "pearson"] == (5.0, 3, 2)
    assert rows["b", "mse"] == (1.0, 2, 1)
    assert np.isnan(rows["a", "pearson"][0])
    assert rows["a", "pearson"][1:] == (1, 1)
    assert list(dict.fromkeys(summary["subgroup"])) == ["all", "a", "b"]


def test_every_metric_tells_formula_direction_bounds_and_source():
    table = metric_table()
    assert list(table["name"]) == list(METRICS)
    assert (table["formula"].str.len() > 5).all()
    assert set(table["direction"]) == {"higher", "lower", "near 1", "near 0.9", "-"}
    assert all(low < high for low, high in table["bounds"])
    assert (table["source"].str.len() > 3).all()


def test_wrong_shape_unknown_name_and_wrong_scope_are_named():
    predicted, truth = random_case(0)
    with pytest.raises(ValueError, match=r"\(5, 12\)"):
        condition_metrics(predicted[:, :3], truth)
    with pytest.raises(ValueError, match="did you mean 'pearson_delta'"):
        condition_metrics(predicted, truth, ["pearson_detla"])
    with pytest.raises(ValueError, match="set_metrics"):
        condition_metrics(predicted, truth, ["spread"])
    with pytest.raises(ValueError, match="condition_metrics"):
        set_metrics(predicted, truth, ["mse"])


def test_truth_refuses_repeated_conditions_and_wrong_shapes():
    with pytest.raises(ValueError, match="more than once: A"):
        Truth.from_means(np.ones((2, 3)), np.ones(3), conditions=["A+ctrl", "ctrl+A"])
    with pytest.raises(ValueError, match="control_mean_G has shape"):
        Truth.from_means(np.ones((2, 3)), np.ones(4))
