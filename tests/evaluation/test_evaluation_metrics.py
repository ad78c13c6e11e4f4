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


EVERY = [np.arange(4)]
# true mean, what else is known, prediction, values
BY_HAND: list[tuple[list, dict, list, dict[str, float]]] = [
    # differences 1, 2, 0, -3
    ([1, 2, 3, 4], {"top_de": [np.array([3, 0])], "top_de_non_dropout": [np.array([1])]}, [2, 4, 3, 1],
     {"mse": 14 / 4, "mae": 6 / 4, "mse_top20_de": 5, "mae_top20_de": 2, "mse_top20_de_non_dropout": 4}),
    # centred levels, and changes over the reference: (0, 1, 1, -2) and (-.25, -.25, 1.75, -1.25); changes over control:
    # (1, 1, 0, 0) and (1, 0, 1, 1) -> (.5, .5, -.5, -.5) and (.25, -.75, .25, .25); of three: (1, 1, 0), (1, 0, 1)
    ([2, 2, 4, 1], {"reference_mean_G": [1] * 4, "top_de": [np.array([0, 1, 3])]}, [2, 3, 3, 0],
     {"pearson": 4 / np.sqrt(6 * 4.75), "pearson_delta_ref": 4 / np.sqrt(6 * 4.75),
      "pearson_delta": -0.5 / np.sqrt(0.75), "pearson_delta_top20_de": -0.5}),
    # signs +, -, +, + and +, 0, -, +
    ([2, 1, 4, 1], {"top_de": EVERY}, [3, 2, 2, 0.5],
     {"direction_accuracy_top20": 0.5, "half_direction_top20": 0.25, "opposite_direction_top20": 0.25}),
    (np.log1p([1.0, 3, 0, 1]).tolist(), {}, np.log1p([2.0, 3, 0, 1]).tolist(),
     {"log_fold_change_error": np.log2(2.001 / 1.001) / 4}),
    ([1, 2, 3, 4], {}, [-1, 1, 1, 1], {"log_fold_change_error": np.nan}),
    # weights 1, 0, 1/4, 0; none where all genes score alike
    ([1, 2, 3, 4], {"t_UG": np.array([[-5.0, 1, 3, 1]])}, [3, 9, 4, 9], {"weighted_mse": 4.25 / 1.25}),
    ([1, 2, 3, 4], {"t_UG": np.full((1, 4), 2.0)}, [1, 2, 3, 4], {"weighted_mse": np.nan}),
    # distances 1 (not below 1), .5 (below), 0 without spread (left out), 1 of 2 (below)
    ([1, 2, 3, 4], {"std_UG": np.array([[1.0, 1, 0, 2]]), "top_de": EVERY}, [2, 2.5, 3, 5],
     {"within_one_sigma_top20": 2 / 3}),
    ([1, 2, 3, 4], {"std_UG": np.zeros((1, 4)), "top_de": EVERY}, [1, 2, 3, 4], {"within_one_sigma_top20": np.nan}),
    # one condition has no others to be told from
    ([2, 2, 4, 1], {}, [2, 2, 4, 1], {"discrimination": 1, "centroid_accuracy": np.nan, "rank": np.nan}),
]  # fmt: skip


@pytest.mark.parametrize(("mean", "known", "predicted", "values"), BY_HAND)
def test_by_hand(mean, known, predicted, values):
    truth = one(mean, **known)
    assert [value(name, predicted, truth)[0] for name in values] == pytest.approx([*values.values()], nan_ok=True)


def test_ranks_by_hand():
    """Changes point to 0, 90 and 45 degrees; predictions to 90, 45 and 80 degrees."""
    predicted = np.array([[0.1, 1.0], [0.5, 0.5], [2, 2]])
    assert value("centroid_accuracy", predicted, three_conditions()) == pytest.approx([0.5, 0.75, 1])
    # row 0: own distance 1.9, second .1, third 2.9 -> rank 1; row 1: tie with the first -> rank .5; row 2: rank 0
    assert value("discrimination", predicted, three_conditions()) == pytest.approx([1 - 1 / 3, 1 - 0.5 / 3, 1])
    angle = np.deg2rad([90, 45, 80])
    predicted = np.stack([np.cos(angle), np.sin(angle)], axis=1) * [[1.0], [3.0], [0.5]]
    # truth 0: distances 90, 45, 80 -> own is last: 1. truth 90: 0, 45, 10 -> own last: 1. truth 45: 45, 0, 35 -> .5
    assert value("rank", predicted, three_conditions()) == pytest.approx([1, 1, 0.5])


def three_conditions(**arguments) -> Truth:
    return Truth.from_means(np.array([[1.0, 0], [0, 1], [2, 2]]), np.zeros(2), **arguments)


def test_discrimination_leaves_out_the_own_targets():
    mean = np.array([[1.0, 0], [0, 1], [5, 2]])
    predicted = np.array([[9.0, 0.4], [0, 1], [5, 2]])
    # own distance 8 + .4, second 9 + .6, third 4 + 1.6: rank 1; without gene 0: .4, .6, 1.6: rank 0
    assert value("discrimination", predicted, Truth.from_means(mean, np.zeros(2)))[0] == pytest.approx(1 - 1 / 3)
    targets = [np.array([0]), np.array([], int), np.array([], int)]
    assert value("discrimination", predicted, Truth.from_means(mean, np.zeros(2), targets=targets))[0] == 1


def test_spread_compares_pairwise_distances():
    truth = three_conditions()
    assert set_metrics(truth.mean_UG * 0.25 + 7, truth)["spread"] == pytest.approx(0.25)
    assert set_metrics(np.ones((3, 2)), truth)["spread"] == 0
    assert np.isnan(set_metrics(np.ones((1, 2)), truth.subset([0]))["spread"])


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_no_change_and_the_reference_have_no_correlation_of_changes_and_chance_rank(dtype):
    _, truth = random_case(3)
    predicted = np.tile(truth.control_mean_G, (5, 1)).astype(dtype)
    assert np.isnan(value("pearson_delta", predicted, truth)).all()
    assert np.isnan(value("pearson_delta_top20_de", predicted, truth)).all()
    assert (value("direction_accuracy_top20", predicted, truth) == 0).all()
    assert (value("half_direction_top20", predicted, truth) == 1).all()
    reference = np.tile(truth.reference_mean_G, (5, 1)).astype(dtype)
    assert np.isnan(value("pearson_delta_ref", reference, truth)).all()
    assert np.isfinite(value("pearson_delta", reference, truth)).all()
    for one_for_all in (predicted, reference):
        assert value("rank", one_for_all, truth) == pytest.approx(0.5)


def test_without_ranking_reference_or_spread_the_metrics_are_nan():
    """The control among the conditions has no ranking either."""
    truth = one([1, 2, 3, 4])
    of_ranking = [name for name, metric in METRICS.items() if metric.needs_de]
    for name in ("pearson_delta_ref", "within_one_sigma_top20", "weighted_mse", *of_ranking):
        assert np.isnan(value(name, [4, 3, 2, 2], truth)), name
    mean = np.stack([CONTROL, CONTROL + np.array([1, 0, 2, 0])])
    top = [np.array([], int), np.array([2, 0])]
    truth = Truth.from_means(mean, CONTROL, conditions=["ctrl", "A+ctrl"], top_de=top)
    assert value("mse_top20_de", truth.mean_UG + 1, truth) == pytest.approx([np.nan, 1], nan_ok=True)


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


LISTS = ("top_de", "top_de_non_dropout", "targets")


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_permuting_genes_changes_nothing_and_permuting_conditions_permutes_values(seed):
    predicted, truth = random_case(seed)
    order = np.random.default_rng(seed + 1).permutation(12)
    place = np.argsort(order)  # gene g stands at place[g] now
    by_gene = {name: getattr(truth, name)[..., order] for name in ("std_UG", "t_UG", "moderated_t_UG")}
    by_gene |= {name: getattr(truth, name)[order] for name in ("reference_mean_G", "control_std_G")}
    lists = {name: [place[genes] for genes in getattr(truth, name)] for name in LISTS}
    others = {name: getattr(truth, name) for name in ("degrees_U", "n_cells_U", "n_control")}
    moved = Truth.from_means(truth.mean_UG[:, order], truth.control_mean_G[order], **by_gene, **lists, **others)
    rows = np.random.default_rng(seed).permutation(5)
    for changed, known, there in (
        (predicted[:, order], moved, slice(None)),
        (predicted[rows], truth.subset(rows), rows),
    ):
        np.testing.assert_allclose(
            condition_metrics(changed, known, PER_CONDITION),
            condition_metrics(predicted, truth, PER_CONDITION)[there],
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
        if "changed" in name:  # undefined without changed genes
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
    # recall is of conditions with hits; a direction and a precision of those with changed genes
    of_changed = ("recall", "changed", "average_precision")
    assert not undefined[:, [not any(part in name for part in of_changed) for name in PER_CONDITION]].any()


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


def test_wrong_calls_are_named():
    predicted, truth = random_case(0)
    means = np.ones((2, 3))
    for message, call in (
        (r"\(5, 12\)", lambda: condition_metrics(predicted[:, :3], truth)),
        ("did you mean 'pearson_delta'", lambda: condition_metrics(predicted, truth, ["pearson_detla"])),
        ("set_metrics", lambda: condition_metrics(predicted, truth, ["spread"])),
        ("condition_metrics", lambda: set_metrics(predicted, truth, ["mse"])),
        ("gather the predictions", lambda: condition_metrics(predicted[:2], truth.subset([0, 1]), ["rank"])),
        ("more than once: A", lambda: Truth.from_means(means, np.ones(3), conditions=["A+ctrl", "ctrl+A"])),
        ("control_mean_G has shape", lambda: Truth.from_means(means, np.ones(4))),
    ):
        with pytest.raises(ValueError, match=message):
            call()
