"""Statistics of condition x context units against their own matched control cells."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gears.data.cells import CellMatrix
from gears.data.moments import ConditionMoments
from gears.data.passes import condition_moments
from gears.data.statistics import ConditionStatistics

TABLES = ("n", "mean", "m2", "m3", "m4", "nonzero", "above", "below", "v2", "v3", "v4")
"""Each a file of its own."""


@dataclass(frozen=True)
class UnitStatistics:
    """Moments of U units over G genes; cells of several strata are brought to their context's control first.

    A cell of stratum s counts as y - (control mean of s) + (control mean of its context), so that
    neither a unit's mean nor its spread holds the differences between batches. Where a context is one
    stratum this changes nothing.

    Attributes
    ----------
    n, mean, m2, m3, m4, nonzero, above, below
        As in :class:`gears.data.statistics.ConditionStatistics`; above and below the mean of the
        stratum's control cells.
    v2, v3, v4
        Central moments of y - x over all pairs of a unit's cell and a control cell of the same
        stratum, (U, G); 0 for controls, which pair with themselves.
    control_of
        Row of each unit's control, (U,) int64.
    """

    n: np.ndarray
    mean: np.ndarray
    m2: np.ndarray
    m3: np.ndarray
    m4: np.ndarray
    nonzero: np.ndarray
    above: np.ndarray
    below: np.ndarray
    v2: np.ndarray
    v3: np.ndarray
    v4: np.ndarray
    control_of: np.ndarray

    @property
    def is_control(self) -> np.ndarray:
        """Which units are controls, (U,) bool."""
        return self.control_of == np.arange(len(self.control_of))

    @cached_property
    def mean_nonzero(self) -> np.ndarray:
        """Where any of the unit's cells has a value other than 0, bool (U, G)."""
        return np.asarray(self.nonzero) != 0

    def loss_mask(self) -> np.ndarray:
        """Genes that count in the loss of each unit, bool (U, G): every gene for controls."""
        mask = self.mean_nonzero.copy()
        mask[self.is_control] = True
        return mask

    def delta(self, units: np.ndarray) -> np.ndarray:
        """Change of units against their controls, (n, G) float64."""
        return np.asarray(self.mean[units]) - self.mean[self.control_of[units]]

    def subset(self, units: np.ndarray) -> UnitStatistics:
        """Rows of the given units (ascending), whose controls are among them."""
        rows = {name: getattr(self, name)[units] for name in TABLES}
        return UnitStatistics(**rows, control_of=np.searchsorted(units, self.control_of[units]))

    def of_setting(self, units: np.ndarray, control_id: int) -> ConditionStatistics:
        """Plain statistics of one context's units, `control_id` the control's place among them."""
        names = ("n", "mean", "m2", "m3", "m4", "nonzero", "above", "below")
        rows = {name: np.asarray(getattr(self, name)[units]) for name in names}
        return ConditionStatistics(**rows, control_id=control_id)


def unit_statistics(
    cells: CellMatrix,
    cell_unit: np.ndarray,
    cell_stratum: np.ndarray,
    control_of: np.ndarray,
    *,
    workers: int = 1,
) -> tuple[UnitStatistics, np.ndarray]:
    """One pass over each stratum's cells.

    Parameters
    ----------
    cells
        Expression of the N cells.
    cell_unit, cell_stratum
        (N,) numbers.
    control_of
        Row of each unit's control, (U,).

    Returns
    -------
    tuple
        The statistics, and the mean of each stratum's control cells (S, G).
    """
    n_units, n_genes, n_strata = len(control_of), cells.shape[1], int(cell_stratum.max()) + 1
    is_control = control_of == np.arange(n_units)
    own, pairs = ConditionMoments(n_units, n_genes), ConditionMoments(n_units, n_genes)
    above, below, origin = (np.zeros((n_units, n_genes)) for _ in range(3))
    # of the last stratum seen: the whole of a unit that has one only, exact to the last bit
    alone = {name: np.zeros((n_units, n_genes)) for name in TABLES if name != "n"}
    n_strata_U = np.zeros(n_units, dtype=np.int64)
    control_mean_SG = np.zeros((n_strata, n_genes))
    for stratum in range(n_strata):
        rows = np.flatnonzero(cell_stratum == stratum)
        present, local = np.unique(cell_unit[rows], return_inverse=True)
        at = int(np.flatnonzero(is_control[present])[0])
        part = cells.part(rows)
        moments = condition_moments(part, local, len(present), control_id=at, workers=workers)
        found = _against(moments, at)
        delta, n = moments.mean - moments.mean[at], moments.n
        centrals = [found[name] for name in ("m2", "m3", "m4", "nonzero")]
        own.merge_conditions(present, ConditionMoments.from_central(n, delta, *centrals))
        paired = [found[name] for name in ("v2", "v3", "v4")]
        pairs.merge_conditions(present, ConditionMoments.from_central(n, delta, *paired))
        above[present] += n[:, None] * moments.above
        below[present] += n[:, None] * moments.below
        # adds up to the mean of the context's control cells
        origin[present[at]] += n[at] * moments.mean[at]
        for name, table in alone.items():
            table[present] = found[name]
        n_strata_U[present] += 1
        control_mean_SG[stratum] = moments.mean[at]
    share = 1.0 / np.maximum(own.n, 1)[:, None]
    tables = {
        "mean": (origin * share)[control_of] + own.mean,
        "nonzero": own.nonzero,
        "above": above * share,
        "below": below * share,
    }
    tables |= {f"m{order}": own.central(order) for order in (2, 3, 4)}
    tables |= {f"v{order}": pairs.central(order) for order in (2, 3, 4)}
    single = (n_strata_U == 1) & (n_strata_U[control_of] == 1)
    for name, table in tables.items():
        table[single] = alone[name][single]
        if name.startswith("v"):
            table[is_control] = 0.0
    statistics = UnitStatistics(n=own.n.astype(np.float64), **tables, control_of=control_of)
    return statistics, control_mean_SG


def _against(moments: ConditionMoments, control: int) -> dict[str, np.ndarray]:
    """Tables of one stratum's units against its control."""
    m2, m3, m4 = (moments.central(order) for order in (2, 3, 4))
    return {
        "mean": moments.mean,
        "m2": m2,
        "m3": m3,
        "m4": m4,
        "nonzero": moments.nonzero,
        "above": moments.above,
        "below": moments.below,
        "v2": m2 + m2[control],
        "v3": m3 - m3[control],
        "v4": m4 + m4[control] + 6 * m2 * m2[control],
    }
