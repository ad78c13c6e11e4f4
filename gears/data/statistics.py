"""Tables of a prepared screen: statistics and differential expression per condition."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gears.mapped import pieces, release, row_blocks


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

    `statistics` are those of conditions or of units (:class:`gears.data.unit_statistics.UnitStatistics`).
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
                "gears.data.de.rank_genes(statistics, gene_names, n) ranks more"
            )
            raise ValueError(msg)
        genes = self.order[condition_id, :n].astype(np.int64)
        return genes[genes >= 0]

    def subset(self, conditions: np.ndarray) -> DERanking:
        """Rows of the given conditions."""
        return DERanking(self.order[conditions], self.scores[conditions], self.n_genes)
