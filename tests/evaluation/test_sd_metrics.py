"""Intervals of predicted means: coverage, width and interval score, who states them, and the verdict on them."""

import numpy as np
import pytest

from gears.conditions import Condition
from gears.evaluation import (
    DECISIVE,
    METRICS,
    Predicted,
    ScoreOptions,
    Truth,
    compare,
    condition_metrics,
    score,
    verdict_table,
)
from gears.evaluation.baselines import ConditionMeans
from gears.jobs.estimators import PriorEstimator

NAMES = ("coverage_90", "interval_width_90", "interval_score_90")
HALF = 1.6448536269514722


def values(error_UG: np.ndarray, sd_UG: np.ndarray | None, **truth: np.ndarray) -> np.ndarray:
    known = Truth.from_means(np.ones_like(error_UG), np.ones(error_UG.shape[1]), **truth)
    return condition_metrics(1 + error_UG, known, NAMES, sd_UG=sd_UG)


def test_by_hand_and_with_the_sampling_noise_of_the_measured_mean():
    sd = np.array([[1.0, 2.0]])
    inside = values(np.array([[0.5, -3.0]]), sd)[0]
    assert inside == pytest.approx([1.0, 3 * HALF, 3 * HALF])
    outside = values(np.array([[3.0, -3.0]]), sd)[0]
    assert outside == pytest.approx([0.5, 3 * HALF, 3 * HALF + 20 * (3 - HALF) / 2])
    error, sd = np.array([[1.0]]), np.array([[0.0]])
    noisy = values(error, sd, std_UG=np.array([[10.0]]), n_cells_U=np.array([100]))[0]
    assert noisy == pytest.approx([1.0, 0.0, 2 * HALF])
    many = values(error, sd, std_UG=np.array([[10.0]]), n_cells_U=np.array([10_000]))[0]
    assert many[0] == 0
    assert np.isnan(values(np.zeros((2, 3)), None)).all()


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_the_right_standard_deviation_has_the_best_score_and_the_coverage_it_states(factor):
    rng = np.random.default_rng(0)
    sd = rng.uniform(0.2, 2.0, (40, 300))
    error = rng.normal(0, sd)
    right, wrong = values(error, sd).mean(axis=0), values(error, factor * sd).mean(axis=0)
    assert right[0] == pytest.approx(0.9, abs=0.01)
    assert right[2] < wrong[2]


def test_the_train_mean_states_the_spread_of_conditions_without_their_sampling_noise():
    rng = np.random.default_rng(1)
    n_cells, cell_sd, spread = 25, 2.0, 0.3
    means = rng.normal(0, spread, (4000, 1)) + rng.normal(0, cell_sd / np.sqrt(n_cells), (4000, 1))
    conditions = ("ctrl", *(f"G{row}+ctrl" for row in range(4000)))
    of = ConditionMeans(
        np.concatenate([np.zeros((1, 1)), means]),
        tuple(map(Condition.of, conditions)),
        np.arange(1, 4001),
        n_cells_C=np.full(4001, n_cells),
        cell_variance_G=np.array([cell_sd**2]),
    )
    assert of.reference_sd() == pytest.approx([spread], rel=0.1)


def test_methods_without_them_have_no_rows_and_other_shapes_are_refused(small_data):
    conditions = [one for one in small_data.screen.conditions if not one.is_control][:4]
    means = small_data.screen.statistics.mean[[small_data.screen.id_of(one) for one in conditions]]
    table = score(
        {"plain": means, "stated": Predicted(means, np.ones_like(means))},
        conditions, small_data.screen, small_data.screen, small_data.split.conditions("train"), ScoreOptions(),
    )  # fmt: skip
    stated = table[table["metric"].isin(NAMES)]
    assert set(stated["method"]) == {"stated"}
    assert len(stated) == len(NAMES) * len(conditions)
    assert "interval_score_90" not in set(verdict_table(table, method="plain")["metric"])
    conditions = [Condition(("A",)), Condition(("B",))]
    means = np.zeros((2, 3))
    assert Predicted.of(Predicted(means), conditions, 3).mean_UG.shape == (2, 3)
    for wrong in (means, Predicted(means)):
        with pytest.raises(ValueError, match=r"mine predicts an array of shape \(2, 3\); expected \(2, 4\)"):
            Predicted.of(wrong, conditions, 4, "mine")


def test_compare_judges_the_intervals_of_the_prior(small_data):
    assert "interval_score_90" in DECISIVE
    assert METRICS["coverage_90"].ideal == 0.9
    found = compare(
        {"prior": PriorEstimator(small_data)}, small_data.screen, small_data.split, baselines=["train_mean"]
    )
    rows = found.table[found.table["metric"].isin(NAMES)]
    assert set(rows["method"]) == {"prior", "train_mean"}
    assert rows["value"].notna().all()
    verdict = verdict_table(found.table).set_index("metric")
    assert verdict.loc["interval_score_90", "baseline"] == "train_mean"
    scored = rows[rows["metric"] == "interval_score_90"].groupby("method")["scaled"].mean()
    assert scored["train_mean"] == pytest.approx(0, abs=1e-9)
