"""What true changes of predicted conditions may be, and how probably they are beyond a limit.

The true change of a gene is Gaussian of one of several sizes, the first of which is 0
(:mod:`gears.priors.true_change`). Hits, probabilities of change and calibration curves read it here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtr

from gears.files._mapped import row_blocks
from gears.priors._kernels import sizes_of, target_cells
from gears.priors._uncertainty import unseen
from gears.priors.true_change import MEASURED, TrueChange, group_of

if TYPE_CHECKING:
    from gears.priors._prior import GenePrior

Components = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Weights, means and standard deviations."""


@dataclass(frozen=True)
class TrueChanges:
    """What true changes of U conditions may be."""

    formula: TrueChange | None  # their distribution; None for a Gaussian
    group_U: np.ndarray
    """:func:`gears.priors.true_change.group_of` of each condition; negative for the control, which has no change."""
    change_UG: np.ndarray  # predicted changes
    sd_UG: np.ndarray  # their standard deviations
    still_UG: np.ndarray  # share of the variances that does not follow the predicted change
    is_own_UG: np.ndarray  # which genes are perturbed themselves

    @classmethod
    def of(
        cls,
        prior: GenePrior | None,
        sets: Sequence[Sequence[int]],
        change_UG: np.ndarray,
        sd_UG: np.ndarray,
        columns: np.ndarray | slice = slice(None),
    ) -> TrueChanges:
        """Of some genes, by a prior; a Gaussian without one, or by one of an earlier version.

        `change_UG` and `sd_UG` are predicted changes of all genes, before negative expression was set to zero, and
        their standard deviations.
        """
        change_UK, sd_UK = change_UG[:, columns], sd_UG[:, columns]
        uncertainty = None if prior is None else prior.uncertainty
        if prior is None or uncertainty is None or uncertainty.true_change is None:
            no = np.zeros(sd_UK.shape, dtype=bool)
            return cls(None, np.zeros(len(sd_UK), dtype=int), change_UK, sd_UK, ~no, no)
        is_own_UG = np.zeros(sd_UG.shape, dtype=bool)
        is_own_UG[target_cells(sets, prior.column_P)] = True
        groups = group_of(sizes_of(sets), unseen(sets, uncertainty.covariance.overall.genes))
        if prior.measured is not None:
            groups = np.where(prior.measured.rows(sets) < 0, groups, MEASURED)
        groups = np.where(sizes_of(sets) > 0, groups, -1)
        still_UK = uncertainty.still(np.where(is_own_UG, 0.0, change_UG))[:, columns]
        return cls(uncertainty.true_change.of_genes(columns), groups, change_UK, sd_UK, still_UK, is_own_UG[:, columns])

    def components(self, rows: slice = slice(None)) -> Components:
        """Weights, means and standard deviations of the Gaussians of some conditions, (K, U, G) each."""
        change_UG, sd_UG = self.change_UG[rows], self.sd_UG[rows]
        if self.formula is None:
            return np.ones((1, *sd_UG.shape)), change_UG[None], sd_UG[None]
        is_perturbed_U1 = self.group_U[rows, None] >= 0
        weight_KUG, mean_KUG, sd_KUG = self.formula(
            self.group_U[rows], change_UG, sd_UG, self.still_UG[rows], self.is_own_UG[rows]
        )
        return weight_KUG, is_perturbed_U1 * mean_KUG, is_perturbed_U1 * sd_KUG

    def _of_rows(self, function: Callable[[Components], np.ndarray]) -> np.ndarray:
        """A function of the Gaussians, over blocks of conditions: these are several times as large as the result."""
        return np.concatenate([function(self.components(rows)) for rows in row_blocks(*self.sd_UG.shape)])

    def changed(self, threshold: float) -> np.ndarray:
        """Probability that each change is larger than the threshold in either direction, (U, G)."""
        return np.minimum(self.beyond(threshold) + self.beyond(-threshold), 1.0)

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of each change, (U, G) each."""
        mean_UG = self._of_rows(lambda parts: (parts[0] * parts[1]).sum(axis=0))
        second_UG = self._of_rows(lambda parts: (parts[0] * (parts[1] ** 2 + parts[2] ** 2)).sum(axis=0))
        return mean_UG, np.sqrt(np.maximum(second_UG - mean_UG**2, 0.0))

    def beyond(self, limit: float) -> np.ndarray:
        """Probability that each change is above the limit, or below a negative one, (U, G)."""
        return self._of_rows(lambda parts: (parts[0] * beyond(parts[1], parts[2], limit, limit > 0)).sum(axis=0))

    def mean_square(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean squared change over genes, and its standard deviation where all errors go together, (U,) each."""
        found_U2 = self._of_rows(_mean_square)
        return found_U2[:, 0], found_U2[:, 1]


def _mean_square(parts: Components) -> np.ndarray:
    """:meth:`TrueChanges.mean_square` of Gaussians, (U, 2)."""
    weight_KUG, square_KUG, variance_KUG = parts[0], parts[1] ** 2, parts[2] ** 2
    second_UG = (weight_KUG * (square_KUG + variance_KUG)).sum(axis=0)
    fourth_UG = (weight_KUG * (square_KUG**2 + 6 * square_KUG * variance_KUG + 3 * variance_KUG**2)).sum(axis=0)
    sd_UG = np.sqrt(np.maximum(fourth_UG - second_UG**2, 0.0))
    return np.stack([second_UG.mean(axis=1), sd_UG.mean(axis=1)], axis=1)


def beyond(mean: np.ndarray, sd: np.ndarray, limit: float, rises: bool = True) -> np.ndarray:
    """Probability that a Gaussian value is above the limit, or below it where it does not rise."""
    distance = (mean - limit) if rises else (limit - mean)
    size = np.divide(distance, sd, out=np.sign(distance) * np.inf, where=sd > 0)
    return np.asarray(ndtr(np.nan_to_num(size, nan=-np.inf)))
