"""Metrics that look at cells and at sets of differential genes: by hand, by other programs, by properties."""

from dataclasses import dataclass

import numpy as np
import pytest
from scipy.spatial.distance import cdist, pdist
from scipy.stats import false_discovery_control, ttest_ind

from gears import PertData
from gears.conditions import Condition
from gears.evaluation import METRICS, Truth, condition_metrics
from gears.evaluation.metrics.distributions import energy_distance_of_cells, mmd_of_cells, squared_distances
from gears.evaluation.truth import ScreenCells, moved_cells

CELL_METRICS = [name for name, metric in METRICS.items() if metric.needs_cells]


@dataclass
class Cells:
    """Cells by condition name, as a truth finds them."""

    by_name: dict[str, np.ndarray]

    def control(self) -> np.ndarray:
        return self.by_name["ctrl"]

    def of(self, condition: Condition) -> np.ndarray:
        return self.by_name[condition.name]


def random_cells(seed: int, n: int = 12, n_genes: int = 5, shift: float = 0.0) -> np.ndarray:
    return np.random.default_rng(seed).gamma(2.0, 0.5, (n, n_genes)) + shift


def test_mmd_by_hand():
    x, y = np.array([[0.0], [2.0]]), np.array([[3.0], [4.0], [8.0]])
    width = 4.0  # median of 1, 5, 4

    def k(*distances: float) -> float:
        return float(np.mean([np.exp(-(d**2) / (2 * width**2)) for d in distances]))

    assert mmd_of_cells(x, y) == pytest.approx(k(2) + k(1, 5, 4) - 2 * k(3, 4, 8, 1, 2, 6))


def test_energy_distance_equals_double_loops_over_many_genes():
    x, y = random_cells(0, 15, 40), random_cells(1, 9, 40, shift=0.3)
    expected = 2 * cdist(x, y).mean() - pdist(x).mean() - pdist(y).mean()
    assert energy_distance_of_cells(x, y) == pytest.approx(expected, rel=1e-12)


def test_too_few_or_equal_cells_are_undefined_and_equal_cells_have_no_distance():
    assert np.isnan(energy_distance_of_cells(np.ones((1, 2)), np.ones((5, 2))))
    assert np.isnan(mmd_of_cells(np.ones((4, 2)), np.ones((1, 2))))
    assert np.isnan(mmd_of_cells(random_cells(0, 4, 2), np.ones((5, 2))))
    assert energy_distance_of_cells(np.full((4, 2), 0.1), np.full((5, 2), 0.1)) == 0


def test_the_squared_energy_distance_is_that_of_the_means():
    """The form that scPerturb reports; on average, since no cell is compared with itself."""
    x, y = random_cells(0), random_cells(1, shift=2.0)
    variances = [cells.var(axis=0, ddof=1).sum() / len(cells) for cells in (x, y)]
    expected = 2 * (((x.mean(axis=0) - y.mean(axis=0)) ** 2).sum() - sum(variances))
    assert energy_distance_of_cells(x, y, squared=True) == pytest.approx(expected)
    assert "plain distances" in METRICS["energy_distance"].formula
    assert squared_distances(np.full((3, 7), 1e3 + 0.1), np.full((3, 7), 1e3 + 0.1)).tolist() == [[0] * 3] * 3


def cell_truth() -> tuple[Truth, dict[str, np.ndarray]]:
    cells = {"ctrl": random_cells(1, 30), "A+ctrl": random_cells(2, 20, shift=0.5), "B+ctrl": random_cells(3, 25)}
    names = ["A+ctrl", "B+ctrl"]
    truth = Truth.from_means(
        np.array([cells[name].mean(axis=0) for name in names]),
        cells["ctrl"].mean(axis=0),
        conditions=names,
        std_UG=np.array([cells[name].std(axis=0) for name in names]),
        n_cells_U=np.array([len(cells[name]) for name in names]),
        control_std_G=cells["ctrl"].std(axis=0),
        n_control=30,
        cells=Cells(cells),
    )
    return truth, cells


def test_a_predicted_mean_is_judged_by_control_cells_moved_to_it():
    truth, cells = cell_truth()
    values = condition_metrics(truth.mean_UG, truth, ["energy_distance", "mmd"])
    moved = moved_cells(cells["ctrl"], truth.control_mean_G, truth.mean_UG[0])
    assert values[0, 0] == pytest.approx(energy_distance_of_cells(moved, cells["A+ctrl"]))
    assert values[0, 1] == pytest.approx(mmd_of_cells(moved, cells["A+ctrl"]))
    worse = condition_metrics(np.tile(truth.control_mean_G, (2, 1)), truth, ["energy_distance", "mmd"])
    assert (worse[0] > values[0]).all()


def test_without_cells_they_are_nan_and_the_registry_says_so():
    truth, _ = cell_truth()
    bare = Truth.from_means(truth.mean_UG, truth.control_mean_G)
    assert np.isnan(condition_metrics(truth.mean_UG, bare, [*CELL_METRICS, "de_overlap_welch"])).all()
    assert set(CELL_METRICS) == {"energy_distance", "mmd"}


def test_moved_cells_have_the_predicted_mean_and_stay_positive():
    control = random_cells(4, 50)
    mean = control.mean(axis=0)
    target = mean + np.array([-0.9, -0.1, 0.0, 0.1, 2.0]) * mean
    moved = moved_cells(control, mean, target)
    assert moved.mean(axis=0) == pytest.approx(target)
    assert moved.min() >= 0
    np.testing.assert_array_equal(moved[:, 2], control[:, 2])
    np.testing.assert_allclose(moved[:, 4], control[:, 4] + 2 * mean[4])
    assert moved_cells(control, mean, -target).mean(axis=0) == pytest.approx(-target)


def test_cells_of_a_screen_are_sampled_alike_every_time(tmp_path, toy_adata, toy_go):
    data = PertData(tmp_path, gene2go=toy_go, default_pert_graph=False)
    data.new_data_process("toy", toy_adata)
    few = ScreenCells(data.screen, max_cells=5)
    condition = data.screen.conditions[3]
    np.testing.assert_array_equal(few.of(condition), few.of(condition))
    assert few.of(condition).shape == (5, 30)
    everything = ScreenCells(data.screen)
    assert len(everything.control()) == 60
    np.testing.assert_allclose(
        everything.of(condition).mean(axis=0), data.screen.statistics.mean[3], rtol=1e-6, atol=1e-7
    )
    with pytest.raises(ValueError, match="at least 2"):
        ScreenCells(data.screen, max_cells=1)


def test_overlap_is_that_of_moved_control_cells_by_welch_s_test():
    rng = np.random.default_rng(1)
    control = rng.normal(6, 1, (40, 30))
    real = rng.normal(6, 1, (40, 30)) + np.r_[np.full(8, 2.0), np.zeros(22)]
    truth = Truth.from_means(
        real.mean(axis=0)[None], control.mean(axis=0), std_UG=real.std(axis=0)[None], n_cells_U=np.array([40]),
        control_std_G=control.std(axis=0), n_control=40,
    )  # fmt: skip
    predicted = control.mean(axis=0) + np.r_[np.full(4, 1.2), np.full(4, 0.02), np.full(6, 1.5), np.zeros(16)]
    true, found = (
        set(np.flatnonzero(false_discovery_control(ttest_ind(cells, control, equal_var=False).pvalue) < 0.05))
        for cells in (real, control + predicted - control.mean(axis=0))
    )
    size = np.log2(np.expm1(predicted) / np.expm1(control.mean(axis=0)))
    cut = sorted(found, key=lambda gene: -size[gene])[: len(true)]
    assert len(found) > len(true)
    value = condition_metrics(predicted[None], truth, ["de_overlap_welch"])[0, 0]
    assert value == pytest.approx(len(true & set(cut)) / len(true))
    assert 0 < value < len(true & found) / len(true), "the cut makes no difference: the comparison shows nothing"
