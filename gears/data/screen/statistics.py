"""Statistics and differential expression of every condition against its control cells.

Welch's t needs means, variances and cell numbers only. The values are those of
``scanpy.tl.rank_genes_groups(method="t-test", reference=control,
rankby_abs=True)``; what scanpy leaves open, the order of ties, is fixed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gears.data.screen.cells import CellMatrix
from gears.data.screen.moments import ConditionMoments, condition_moments
from gears.files.mapped import pieces, release, row_blocks

MATCHED_TABLES = ("n", "mean", "m2", "m3", "m4", "nonzero", "above", "below", "v2", "v3", "v4")
"""Each a file of its own."""

N_RANKED = 200
"""Genes of a ranking that are kept with a prepared screen."""
TIE_DIGITS = 9


@dataclass(frozen=True)
class ConditionStatistics:
    """Statistics of each condition over all of its cells.

    Attributes
    ----------
    n : np.ndarray (C,) float64
        Cells per condition.
    mean, m2, m3, m4 : np.ndarray (C, G) float64
        Mean and central moments (divided by n) of log-normalised expression.
    nonzero : np.ndarray (C, G) float64
        Share of cells with a value other than 0.
    control_id : int
        Row of the control.
    above, below : np.ndarray (C, G) float64 or None
        Shares of cells above and below the mean of all control cells; a cell
        that is equal to it is neither.
    """

    n: np.ndarray
    mean: np.ndarray
    m2: np.ndarray
    m3: np.ndarray
    m4: np.ndarray
    nonzero: np.ndarray
    control_id: int = 0
    above: np.ndarray | None = None
    below: np.ndarray | None = None

    def __post_init__(self) -> None:
        for name in ("m2", "m3", "m4", "nonzero", "above", "below"):
            table = getattr(self, name)
            if table is not None and table.shape != self.mean.shape:
                msg = f"statistics disagree: {name} is {table.shape}, mean is {self.mean.shape}"
                raise ValueError(msg)

    @cached_property
    def mean_nonzero(self) -> np.ndarray:
        """Where the condition's mean is not 0, bool (C, G)."""
        return self.mean != 0

    def loss_mask(self) -> np.ndarray:
        """Genes that count in the loss of each condition, bool (C, G): mean not 0; every gene for the control."""
        mask = np.concatenate([piece != 0 for piece in pieces(self.mean)])
        mask[self.control_id] = True
        return mask

    def variance(self) -> np.ndarray:
        """Sample variance (divided by n - 1), (C, G) float64; NaN for a single cell."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.m2 * (self.n / (self.n - 1))[:, None]

    def delta(self, conditions: np.ndarray) -> np.ndarray:
        """Change of conditions against the control, (n, G) float64."""
        change = np.asarray(self.mean[conditions], dtype=np.float64)
        change -= self.mean[self.control_id]
        release(self.mean)
        return change

    def subset(self, conditions: np.ndarray, control_id: int) -> ConditionStatistics:
        """Rows of the given conditions; `control_id` is the control's row among them."""
        names = ("n", "mean", "m2", "m3", "m4", "nonzero", "above", "below")
        tables = {name: getattr(self, name) for name in names}
        rows = {name: None if table is None else table[conditions] for name, table in tables.items()}
        return ConditionStatistics(**rows, control_id=control_id)  # type: ignore[arg-type]


def variance_within(statistics: Any, conditions: np.ndarray) -> np.ndarray:
    """Variance of a cell's expression within a condition, pooled over some of them, (G,) float64.

    `statistics` are those of conditions or of units (:class:`gears.data.screen.statistics.UnitStatistics`).
    """
    n = np.asarray(statistics.n[conditions], dtype=np.float64)
    squares_G = np.zeros(statistics.m2.shape[1])
    for rows in row_blocks(len(n), len(squares_G)):
        squares_G += n[rows] @ statistics.m2[conditions[rows]]
        release(statistics.m2)
    return squares_G / max(1.0, float((n - 1).sum()))


@dataclass(frozen=True)
class DERanking:
    """Genes of each condition by absolute Welch's t against the control.

    Attributes
    ----------
    order : np.ndarray (C, R) int32
        Gene indices, largest absolute t first; ties (absolute t rounded to 9
        digits) by gene name. R is min(G, 200); the control's row holds -1.
    scores : np.ndarray (C, R) float64
        t of those genes; 0 in the control's row.
    n_genes : int
        G.
    """

    order: np.ndarray
    scores: np.ndarray
    n_genes: int

    def top(self, condition_id: int, n: int = 20) -> np.ndarray:
        """The n most changed genes of a condition, (min(n, G),) int64; empty for the control.

        Raises
        ------
        ValueError
            If more genes are asked for than the table holds.
        """
        n = min(n, self.n_genes)
        if n > self.order.shape[1]:
            msg = (
                f"the ranking holds the top {self.order.shape[1]} genes, {n} were asked for; "
                "gears.data.screen.statistics.rank_genes(statistics, gene_names, n) ranks more"
            )
            raise ValueError(msg)
        genes = self.order[condition_id, :n].astype(np.int64)
        return genes[genes >= 0]

    def subset(self, conditions: np.ndarray) -> DERanking:
        """Rows of the given conditions."""
        return DERanking(self.order[conditions], self.scores[conditions], self.n_genes)


@dataclass(frozen=True)
class UnitStatistics:
    """Moments of U units over G genes; cells of several strata are brought to their context's control first.

    A cell of stratum s counts as y - (control mean of s) + (control mean of its context), so that
    neither a unit's mean nor its spread holds the differences between batches. Where a context is one
    stratum this changes nothing.

    Attributes
    ----------
    n, mean, m2, m3, m4, nonzero, above, below
        As in :class:`gears.data.screen.ConditionStatistics`; above and below the mean of the
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
        rows = {name: getattr(self, name)[units] for name in MATCHED_TABLES}
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
    alone = {name: np.zeros((n_units, n_genes)) for name in MATCHED_TABLES if name != "n"}
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


def welch_t(statistics: ConditionStatistics, conditions: np.ndarray) -> np.ndarray:
    """Welch's t of each gene, condition against control.

    t = (m_p - m_c) / sqrt(v_p / n_p + v_c / n_c) with sample variances; 0 where
    it is undefined. The same numbers as ``scipy.stats.ttest_ind_from_stats``
    (unequal variances), without its p-values, which nothing here uses and
    which would take most of the time.

    Parameters
    ----------
    statistics
        Of the whole screen.
    conditions
        (K,) condition ids.

    Returns
    -------
    np.ndarray
        (K, G) float64; infinite where both variances are 0 and the means differ.
    """
    control = statistics.control_id
    n = statistics.n[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        # m2 is divided by n: sample variance over n is m2 / (n - 1).
        squared_error = statistics.m2[conditions] / (n[conditions] - 1)
        squared_error = squared_error + statistics.m2[control] / (n[control] - 1)
        t = (statistics.mean[conditions] - statistics.mean[control]) / np.sqrt(squared_error)
    return np.nan_to_num(t, nan=0.0, posinf=np.inf, neginf=-np.inf)


def rank_rows(t: np.ndarray, gene_names: Sequence[str], n: int) -> np.ndarray:
    """Gene indices of each row by absolute t, ties by name, (K, n) int64."""
    by_name = np.argsort(np.asarray(gene_names, dtype=object), kind="stable")
    size = np.round(np.abs(t[:, by_name]), TIE_DIGITS)
    return by_name[np.argsort(-size, axis=1, kind="stable")[:, :n]]


def rank_genes(statistics: ConditionStatistics, gene_names: Sequence[str], n: int = N_RANKED) -> DERanking:
    """Rank the genes of every condition.

    Parameters
    ----------
    statistics
        C conditions, G genes.
    gene_names
        (G,) names that break ties.
    n
        Genes to keep; at most G are.
    """
    n_conditions, n_genes = statistics.mean.shape
    n = min(n, n_genes)
    order = np.full((n_conditions, n), -1, dtype=np.int32)
    scores = np.zeros((n_conditions, n))
    for ids, t in _t_chunks(statistics):
        ranked = rank_rows(t, gene_names, n)
        order[ids] = ranked
        scores[ids] = np.take_along_axis(t, ranked, axis=1)
    return DERanking(order, scores, n_genes)


def _t_chunks(statistics: ConditionStatistics) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Perturbed conditions' ids and t values, a few conditions at a time."""
    n_conditions, n_genes = statistics.mean.shape
    perturbed = np.flatnonzero(np.arange(n_conditions) != statistics.control_id)
    step = max(1_000_000 // max(n_genes, 1), 1)
    for start in range(0, len(perturbed), step):
        ids = perturbed[start : start + step]
        yield ids, welch_t(statistics, ids)
        release(statistics.mean, statistics.m2)
