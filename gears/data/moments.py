"""Per-condition moments of sparse expression, exact when chunks are merged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy import sparse

CHUNK_VALUES = 1 << 20
"""Stored values (and, apart from that, condition x gene cells) that one chunk may hold."""


ROUNDING = 1e-12
"""Share of a gene's scale within which a value is equal to the mean: above float64, far below float32 rounding."""


@dataclass(frozen=True)
class SignCentre:
    """What values are compared with to be above or below the control mean.

    Rounding of the mean must not decide for a gene that is constant in the
    control cells, so values between the bounds are neither above nor below.

    Attributes
    ----------
    low_G, high_G : np.ndarray (G,) float64
        Control mean less and plus :data:`ROUNDING` times (absolute mean + s.d.).
    """

    low_G: np.ndarray
    high_G: np.ndarray

    @classmethod
    def of(cls, moments: ConditionMoments, control_id: int) -> SignCentre:
        """About the mean of one condition, which must have been seen whole."""
        mean_G = moments.mean[control_id]
        margin_G = ROUNDING * (np.abs(mean_G) + np.sqrt(moments.central(2)[control_id]))
        return cls(mean_G - margin_G, mean_G + margin_G)

    def same_as(self, other: SignCentre | None) -> bool:
        """Whether shares about both can be merged."""
        return other is not None and (
            np.array_equal(self.low_G, other.low_G) and np.array_equal(self.high_G, other.high_G)
        )


class ConditionMoments:
    """Cell number, mean, central moments 2-4 and shares of cells per condition and gene.

    The shares are of cells with a value other than 0 and, given a centre, of
    cells above and below it.

    Values enter in chunks of cells. Within a chunk the moments are taken about
    the chunk's own mean in float64 (two passes); chunks are merged by the
    pairwise formulas of Chan et al. (1979) and Pébay (2008), which hold for any
    order and size of the chunks.

    Parameters
    ----------
    n_conditions, n_genes
        C and G.
    centre
        Control mean that cells are above or below of; without it they are not counted.

    Attributes
    ----------
    n : np.ndarray (C,) int64
        Cells seen per condition.
    mean : np.ndarray (C, G) float64
    """

    def __init__(self, n_conditions: int, n_genes: int, centre: SignCentre | None = None) -> None:
        shape = (n_conditions, n_genes)
        self.centre = centre
        self.n = np.zeros(n_conditions, dtype=np.int64)
        self.mean = np.zeros(shape)
        # Sums of powers of deviations, not divided by n: the form in which they merge.
        self._sum2, self._sum3, self._sum4 = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self._n_nonzero = np.zeros(shape, dtype=np.int64)
        self._n_above, self._n_below = (
            np.zeros(shape if centre is not None else (n_conditions, 0), dtype=np.int64) for _ in range(2)
        )

    @classmethod
    def from_central(
        cls,
        n: np.ndarray,
        mean: np.ndarray,
        m2: np.ndarray,
        m3: np.ndarray,
        m4: np.ndarray,
        nonzero: np.ndarray | None = None,
    ) -> ConditionMoments:
        """From cell numbers (C,), means, central moments divided by n, and shares of cells other than 0, (C, G)."""
        made = cls(*mean.shape)
        n_C1 = n[:, None]
        made.n, made.mean = n.astype(np.int64), mean
        made._sum2, made._sum3, made._sum4 = n_C1 * m2, n_C1 * m3, n_C1 * m4
        if nonzero is not None:
            made._n_nonzero = np.rint(n_C1 * nonzero).astype(np.int64)
        return made

    def update(self, chunk: sparse.csr_matrix, condition_ids: np.ndarray) -> None:
        """Add cells.

        Parameters
        ----------
        chunk
            (cells, G) CSR without explicit zeros or duplicate entries.
        condition_ids
            (cells,) condition of each row, 0..C-1.
        """
        if chunk.shape[0] != len(condition_ids) or chunk.shape[1] != self.mean.shape[1]:
            msg = (
                f"chunk of shape {chunk.shape} with {len(condition_ids)} condition ids does not fit "
                f"moments over {self.mean.shape[1]} genes; one id per row is needed"
            )
            raise ValueError(msg)
        if not len(condition_ids):
            return
        present, row_U = np.unique(condition_ids, return_inverse=True)
        self._merge_rows(present, _moments_of(chunk, row_U, len(present), self.centre))

    def merge(self, other: ConditionMoments) -> None:
        """Add everything that `other` has seen (`other` stays as it is)."""
        if self.mean.shape != other.mean.shape:
            msg = f"cannot merge moments of shapes {self.mean.shape} and {other.mean.shape}"
            raise ValueError(msg)
        self.merge_conditions(np.arange(len(self.n)), other)

    def merge_conditions(self, conditions: np.ndarray, other: ConditionMoments) -> None:
        """Add moments whose row i is about ``conditions[i]`` (distinct) here."""
        if not (self.centre is other.centre or (self.centre and self.centre.same_as(other.centre))):
            msg = "cannot merge shares of cells above and below different control means; use one SignCentre for all"
            raise ValueError(msg)
        self._merge_rows(conditions, other)

    def _merge_rows(self, rows: np.ndarray, other: ConditionMoments) -> None:
        na = self.n[rows][:, None].astype(np.float64)
        nb = other.n[:, None].astype(np.float64)
        n = np.maximum(na + nb, 1.0)
        a2, a3, a4 = self._sum2[rows], self._sum3[rows], self._sum4[rows]
        b2, b3, b4 = other._sum2, other._sum3, other._sum4
        delta = other.mean - self.mean[rows]
        step = delta / n
        self._sum4[rows] = (
            a4
            + b4
            + delta * step**3 * na * nb * (na * na - na * nb + nb * nb)
            + 6 * step**2 * (na * na * b2 + nb * nb * a2)
            + 4 * step * (na * b3 - nb * a3)
        )
        self._sum3[rows] = a3 + b3 + delta * step**2 * na * nb * (na - nb) + 3 * step * (na * b2 - nb * a2)
        self._sum2[rows] = a2 + b2 + delta * step * na * nb
        # An empty side must leave the other exactly as it is.
        self.mean[rows] = np.where(na == 0, other.mean, self.mean[rows] + step * nb)
        self.n[rows] += other.n
        self._n_nonzero[rows] += other._n_nonzero
        self._n_above[rows] += other._n_above
        self._n_below[rows] += other._n_below

    def central(self, order: int) -> np.ndarray:
        """Central moment of order 2, 3 or 4 divided by n, (C, G) float64 (0 where n is 0)."""
        sums = {2: self._sum2, 3: self._sum3, 4: self._sum4}[order]
        return sums / np.maximum(self.n, 1)[:, None]

    @property
    def nonzero(self) -> np.ndarray:
        """Share of cells with a value other than 0, (C, G) float64."""
        return self._n_nonzero / np.maximum(self.n, 1)[:, None]

    @property
    def above(self) -> np.ndarray:
        """Share of cells above the control mean, (C, G) float64."""
        return self._share(self._n_above)

    @property
    def below(self) -> np.ndarray:
        """Share of cells below the control mean, (C, G) float64."""
        return self._share(self._n_below)

    def _share(self, count: np.ndarray) -> np.ndarray:
        if self.centre is None:
            msg = "cells above and below the control mean were not counted; give ConditionMoments a centre"
            raise ValueError(msg)
        return count / np.maximum(self.n, 1)[:, None]


def _moments_of(
    chunk: sparse.csr_matrix, row_U: np.ndarray, n_conditions: int, centre: SignCentre | None
) -> ConditionMoments:
    """Moments of one chunk about its own means; zeros enter through their number."""
    n_genes = chunk.shape[1]
    part = ConditionMoments(n_conditions, n_genes, centre)
    shape, size = (n_conditions, n_genes), n_conditions * n_genes

    def total(cell: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        return np.bincount(cell, weights=weights, minlength=size).reshape(shape)

    part.n = np.bincount(row_U, minlength=n_conditions).astype(np.int64)
    cell = np.repeat(row_U.astype(np.int64) * n_genes, np.diff(chunk.indptr)) + chunk.indices
    values = chunk.data.astype(np.float64)
    n = part.n[:, None].astype(np.float64)
    part._n_nonzero = total(cell)
    zeros = n - part._n_nonzero
    if centre is not None:
        of_zeros = (part.n[:, None] - part._n_nonzero).astype(np.int64)
        part._n_above = total(cell[values > centre.high_G[chunk.indices]]) + of_zeros * (centre.high_G < 0)
        part._n_below = total(cell[values < centre.low_G[chunk.indices]]) + of_zeros * (centre.low_G > 0)
    part.mean = total(cell, values) / n
    values -= part.mean.ravel()[cell]
    power, mean_power = values * values, part.mean * part.mean
    part._sum2 = total(cell, power) + zeros * mean_power
    power *= values
    mean_power = mean_power * part.mean
    part._sum3 = total(cell, power) - zeros * mean_power
    power *= values
    mean_power = mean_power * part.mean
    part._sum4 = total(cell, power) + zeros * mean_power
    return part


def condition_chunks(
    lengths: np.ndarray, condition_ids: np.ndarray, n_genes: int, chunk_values: int = CHUNK_VALUES
) -> Iterator[np.ndarray]:
    """Yield row numbers in chunks, ordered by condition so that a chunk touches few conditions.

    A chunk holds at most about `chunk_values` stored values and so few rows
    that its condition x gene tables stay as small.

    Parameters
    ----------
    lengths
        (N,) stored values of each row.
    condition_ids
        (N,) condition of each row.
    """
    order = np.argsort(condition_ids, kind="stable")
    cost = np.cumsum(np.maximum(lengths[order], 1))
    max_conditions = max(chunk_values // max(n_genes, 1), 1)
    start = 0
    while start < len(order):
        done = cost[start - 1] if start else 0
        stop = int(np.searchsorted(cost, done + chunk_values, side="right"))
        stop = max(stop, start + 1)
        conditions = condition_ids[order[start:stop]]
        # Ordered by condition: the table is bounded by the number of distinct conditions.
        new = np.flatnonzero(np.diff(conditions)) + 1
        if len(new) >= max_conditions:
            stop = start + int(new[max_conditions - 1])
        yield order[start:stop]
        start = stop
