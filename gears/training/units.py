"""Moments of condition x context units over pairs of matched cells."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gears.data.unit_statistics import UnitStatistics
from gears.model.losses_moments import PairMoments
from gears.training.conditions import PairTables


class UnitPairTables(PairTables):
    """Moments over all pairs of a unit's cell and a control cell of the same stratum.

    Parameters
    ----------
    statistics
        Of all units; mapped files stay where they are.
    """

    def __init__(self, statistics: UnitStatistics) -> None:
        self._units = statistics

    def of(self, ids_U: np.ndarray, mask_UG: Tensor, weight_U: Tensor, dtype: torch.dtype) -> PairMoments:
        """Pair moments of U units (see :meth:`PairTables.of`)."""
        units = self._units
        above, below = (np.asarray(table[ids_U]) for table in (units.above, units.below))
        values = [units.delta(ids_U), *(np.array(table[ids_U]) for table in (units.v2, units.v3, units.v4))]
        mean_d, v2, v3, v4, sign_mean, sign_sq = (
            torch.from_numpy(np.ascontiguousarray(value)).to(dtype).to(mask_UG.device, non_blocking=True)
            for value in (*values, above - below, above + below)
        )
        return PairMoments(mean_d, v2, v3, v4, sign_mean, sign_sq, mask_UG, weight_U)
