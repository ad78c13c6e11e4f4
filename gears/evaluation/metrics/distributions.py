"""Distances between predicted and real cells, not only between their means."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gears.evaluation.metrics._registry import register_table
from gears.evaluation.truth import Truth, moved_cells


def energy_distance(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """2 E|x - y| - E|x - x'| - E|y - y'| of predicted cells x and real cells y, no cell with itself; of plain
    distances, not of their squares as E-distance in scPerturb (energy_distance_of_cells(x, y, squared=True))

    Predicted cells are control cells moved to the predicted mean.
    """
    return _over_cells(predicted_UG, truth, energy_distance_of_cells)


def mmd(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """E k(x, x') + E k(y, y') - 2 E k(x, y), Gaussian k of width median |y - y'|, no cell with itself

    Of control cells moved to the predicted mean x and real cells y.
    """
    return _over_cells(predicted_UG, truth, mmd_of_cells)


def energy_distance_of_cells(predicted_NG: np.ndarray, real_MG: np.ndarray, *, squared: bool = False) -> float:
    """Energy distance between two sets of cells; NaN with fewer than two cells on a side.

    It is of Euclidean distances. `squared` takes their squares, as the E-distance of scPerturb does (there in the space
    of principal components): a distance of means alone, on which the spread of cells has no influence.
    """
    if min(len(predicted_NG), len(real_MG)) < 2:
        return float("nan")

    def distances(a_NG: np.ndarray, b_MG: np.ndarray) -> np.ndarray:
        square_NM = squared_distances(a_NG, b_MG)
        return square_NM if squared else np.sqrt(square_NM)

    within = sum(_mean_off_diagonal(distances(x, x)) for x in (predicted_NG, real_MG))
    return float(2 * distances(predicted_NG, real_MG).mean() - within)


def mmd_of_cells(predicted_NG: np.ndarray, real_MG: np.ndarray) -> float:
    """Squared MMD between two sets of cells; NaN with fewer than two cells, or where all real cells are equal."""
    if min(len(predicted_NG), len(real_MG)) < 2:
        return float("nan")
    real_MM = squared_distances(real_MG, real_MG)
    apart = np.sqrt(real_MM[np.triu_indices(len(real_MM), 1)])
    width = float(np.median(apart))
    if width == 0:
        return float("nan")

    def kernel(square: np.ndarray) -> np.ndarray:
        return np.exp(-square / (2 * width**2))

    within = _mean_off_diagonal(kernel(squared_distances(predicted_NG, predicted_NG)))
    within += _mean_off_diagonal(kernel(real_MM))
    return float(within - 2 * kernel(squared_distances(predicted_NG, real_MG)).mean())


def squared_distances(a_NG: np.ndarray, b_MG: np.ndarray) -> np.ndarray:
    """Squared Euclidean distances (N, M) by one matrix product; both sides are centred first for its rounding."""
    centre_G = b_MG.mean(axis=0)
    a_NG, b_MG = a_NG - centre_G, b_MG - centre_G
    square = (a_NG**2).sum(axis=1)[:, None] + (b_MG**2).sum(axis=1)[None, :] - 2 * (a_NG @ b_MG.T)
    # rounding errors of the product are set to 0
    noise = 1e-13 * (square.max(initial=0.0) + 1e-300)
    return np.where(square > noise, square, 0.0)


def _mean_off_diagonal(values_NN: np.ndarray) -> float:
    n = len(values_NN)
    return float((values_NN.sum() - np.trace(values_NN)) / (n * (n - 1)))


def _over_cells(
    predicted_UG: np.ndarray, truth: Truth, distance: Callable[[np.ndarray, np.ndarray], float]
) -> np.ndarray:
    if truth.cells is None:
        return np.full(len(predicted_UG), np.nan)
    control_NG = truth.cells.control()
    return np.array(
        [
            distance(moved_cells(control_NG, truth.control_mean_G, row_G), truth.cells.of(condition))
            for row_G, condition in zip(predicted_UG, truth.conditions, strict=True)
        ]
    )


register_table(
    ("energy_distance", energy_distance, "lower", (-float("inf"), float("inf")),
     "Szekely & Rizzo 2013 (U-statistic: chance is 0, so slightly negative values occur)", "needs_cells"),
    ("mmd", mmd, "lower", (-2.0, 2.0),
     "Gretton et al. 2012, squared and unbiased (chance is 0, so slightly negative values occur)", "needs_cells"),
)  # fmt: skip
