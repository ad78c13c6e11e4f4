"""Moments of condition x context units over pairs of matched cells, and their validation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gears.data.unit_statistics import UnitStatistics
from gears.evaluation.metrics import condition_metrics
from gears.evaluation.truth import Truth
from gears.model.losses_moments import PairMoments
from gears.priors import Prior
from gears.training.conditions import PairTables
from gears.training.validation import Validation


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


class UnitValidation(Validation):
    """Scores units, each within its own context.

    Parameters
    ----------
    truths
        Of every context with units to score.
    nodes
        Node sets of all units, context after context.
    metrics, clip, prior
        As for :class:`Validation`.
    """

    def __init__(
        self,
        truths: Sequence[Truth],
        nodes: Sequence[Sequence[int]],
        *,
        metrics: Sequence[str],
        clip: bool = True,
        prior: Prior | None = None,
        mask_target: bool = False,
    ) -> None:
        super().__init__(truths[0], nodes, metrics=metrics, clip=clip, prior=prior, mask_target=mask_target)
        self.truths = list(truths)
        self._first = np.cumsum([0, *(len(truth.conditions) for truth in truths)])

    def _scored(self, delta_UG: np.ndarray, rows: np.ndarray) -> np.ndarray:
        values_UM = np.full((len(rows), len(self.metrics)), np.nan)
        which = np.searchsorted(self._first, rows, side="right") - 1
        for place in np.unique(which).tolist():
            at, truth = which == place, self.truths[place]
            predicted_UG = truth.control_mean_G + delta_UG[at]
            if self.clip:
                predicted_UG = np.maximum(predicted_UG, 0.0)
            own = truth.subset(rows[at] - self._first[place])
            values_UM[at] = condition_metrics(predicted_UG, own, self.metrics, mask_target=self.mask_target)
        return values_UM
