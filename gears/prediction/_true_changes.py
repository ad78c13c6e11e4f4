"""What true changes of predicted conditions may be, and how probably they are beyond a limit.

The true change of a gene is absent with some probability, else Gaussian (:mod:`gears.priors.true_change`). Hits,
probabilities of change and calibration curves read it here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtr

from gears.priors._kernels import sizes_of, target_cells
from gears.priors._uncertainty import unseen
from gears.priors.true_change import MEASURED, group_of

if TYPE_CHECKING:
    from gears.priors._prior import GenePrior


@dataclass(frozen=True)
class TrueChanges:
    """What true changes of U conditions may be: absent, or Gaussian.

    Attributes
    ----------
    absent_UG
        Probability that a gene does not change.
    mean_UG, sd_UG
        Mean and standard deviation of its change if it does.
    """

    absent_UG: np.ndarray
    mean_UG: np.ndarray
    sd_UG: np.ndarray

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
            return cls(np.zeros_like(sd_UK), change_UK, sd_UK)
        is_own_UG = np.zeros(sd_UG.shape, dtype=bool)
        is_own_UG[target_cells(sets, prior.column_P)] = True
        groups = group_of(sizes_of(sets), unseen(sets, uncertainty.covariance.overall.genes))
        if prior.measured is not None:
            groups = np.where(prior.measured.rows(sets) < 0, groups, MEASURED)
        true_change = uncertainty.true_change.of_genes(columns)
        absent_UK, mean_UK, sd_UK = true_change(groups, change_UK, sd_UK, is_own_UG[:, columns])
        is_perturbed_U1 = sizes_of(sets)[:, None] > 0  # the control has no change
        return cls(absent_UK, is_perturbed_U1 * mean_UK, is_perturbed_U1 * sd_UK)

    def changed(self, threshold: float) -> np.ndarray:
        """Probability that each change is larger than the threshold in either direction, (U, G)."""
        return self.beyond(threshold) + self.beyond(-threshold)

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of each change, (U, G) each."""
        there_UG = 1 - self.absent_UG
        return there_UG * self.mean_UG, np.sqrt(there_UG * (self.sd_UG**2 + self.absent_UG * self.mean_UG**2))

    def beyond(self, limit: float) -> np.ndarray:
        """Probability that each change is above the limit, or below a negative one, (U, G)."""
        return (1 - self.absent_UG) * beyond(self.mean_UG, self.sd_UG, limit, limit > 0)

    def mean_square(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean squared change over genes, and its standard deviation where all errors go together, (U,) each."""
        there_UG, square_UG, variance_UG = 1 - self.absent_UG, self.mean_UG**2, self.sd_UG**2
        second_UG = there_UG * (square_UG + variance_UG)
        fourth_UG = there_UG * (square_UG**2 + 6 * square_UG * variance_UG + 3 * variance_UG**2)
        sd_UG = np.sqrt(np.maximum(fourth_UG - second_UG**2, 0.0))
        return second_UG.mean(axis=1), sd_UG.mean(axis=1)


def beyond(mean: np.ndarray, sd: np.ndarray, limit: float, rises: bool = True) -> np.ndarray:
    """Probability that a Gaussian value is above the limit, or below it where it does not rise."""
    distance = (mean - limit) if rises else (limit - mean)
    size = np.divide(distance, sd, out=np.sign(distance) * np.inf, where=sd > 0)
    return np.asarray(ndtr(np.nan_to_num(size, nan=-np.inf)))
