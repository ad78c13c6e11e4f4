"""The training conditions of a prior: their means as far as they are known, which no prediction replaces.

With y the measured change of a gene, n its sampling variance, f its prediction from the other conditions and v the
variance of that prediction, the posterior mean and variance are

    f + (1 - n / (n + a v)) (y - f),        n a v / (n + a v)

so a condition is predicted as measured, as far as its cells tell. The factor a, one for each condition, is what the
squared residuals show beyond sampling noise as a share of what v expects: a strong perturbation is shrunk less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gears.conditions import NodeSet, contexts_of, kinds_of, show_departures
from gears.files._mapped import row_blocks
from gears.priors._kernels import CORRELATED_GENES, settings_of

_TABLES = ("change", "variance", "noise", "gene_noise")
_TAIL = 3.0  # degrees of freedom of residuals: few genes change much, and large changes are shrunk less
_FACTORS = (0.05, 50.0)  # least and largest a


@dataclass(frozen=True)
class Measured:
    """What training conditions showed."""

    sets: tuple[tuple[int, ...], ...]  # perturbation-graph nodes of each of the C conditions
    change_CG: np.ndarray
    """Posterior mean of each condition's change: as measured, shrunk by its sampling noise, float32."""
    variance_C: np.ndarray  # variance of each condition's prediction from the others, for an average gene
    # noise_C, noise_G: the sampling variance of each condition and gene is the product of these
    noise_C: np.ndarray
    noise_G: np.ndarray
    is_measured_SG: np.ndarray | None = None  # which genes each setting measures; None where all measure all
    n_kinds: int = 1  # types of perturbation; settings are numbered ``context x n_kinds + kind``

    @classmethod
    def of(
        cls,
        sets: tuple[tuple[int, ...], ...],
        delta_CG: np.ndarray,
        left_out_CG: np.ndarray,
        noise: tuple[np.ndarray, np.ndarray],
        variance_C: np.ndarray,
        sd_of: Callable[[np.ndarray], np.ndarray],
    ) -> Measured:
        """From measured changes and predictions of each condition from the others.

        `noise`: `noise_C` and `noise_G`.
        `variance_C`: variance of the predictions, for an average gene.
        `sd_of`: standard deviations of the predictions for some rows, (R, G).
        """
        change_CG, factor_C = np.empty(delta_CG.shape, dtype=np.float32), np.empty(len(sets))
        known_C = np.empty(len(sets))
        for block in row_blocks(*delta_CG.shape):
            rows = np.arange(block.start, block.stop)
            noise_RG, variance_RG = np.outer(noise[0][rows], noise[1]), sd_of(rows) ** 2
            residual_RG = delta_CG[rows] - left_out_CG[rows]
            expected_R = np.maximum(variance_RG.sum(axis=1), np.finfo(float).tiny)
            factor_C[rows] = np.clip((residual_RG**2 - noise_RG).sum(axis=1) / expected_R, *_FACTORS)
            # the standard deviation does not trust a factor that is smaller than its error
            known_C[rows] = np.sqrt(2 * CORRELATED_GENES * (noise_RG**2).sum(axis=1)) / expected_R
            variance_RG *= factor_C[rows, None]
            square_RG = residual_RG**2 / (noise_RG + variance_RG)
            variance_RG *= (_TAIL + square_RG) / (_TAIL + 1)
            residual_RG *= noise_RG / (noise_RG + variance_RG)  # now what is taken off the measured change
            # along the measured change no more is taken off than noise has in it
            most_R = np.maximum(noise_RG.sum(axis=1), np.finfo(float).tiny)
            off_R = (delta_CG[rows] * residual_RG).sum(axis=1)
            residual_RG *= (most_R / np.maximum(off_R, most_R))[:, None]
            change_CG[rows] = delta_CG[rows] - residual_RG
        return cls(sets, change_CG, np.maximum(factor_C, known_C) * variance_C, *noise)

    @cached_property
    def _row_of(self) -> dict[tuple[int, int, tuple[int, ...]], int]:
        return {key: row for row, key in enumerate(_keys(self.sets))}

    @property
    def is_measured_CG(self) -> np.ndarray | None:
        """Which genes were measured in each condition, bool; None where all were."""
        return None if self.is_measured_SG is None else self.is_measured_SG[settings_of(self.sets, self.n_kinds)]

    def unmeasured(self, sets: Sequence[Sequence[int]]) -> np.ndarray | None:
        """Which genes the training of each set's setting does not measure, (U, G) bool; None where all were."""
        if self.is_measured_SG is None:
            return None
        setting_U, n_settings = settings_of(sets, self.n_kinds), len(self.is_measured_SG)
        is_known_U = setting_U < n_settings  # a line of which controls were given is not one of them
        return ~self.is_measured_SG[np.minimum(setting_U, n_settings - 1)] & is_known_U[:, None]

    @property
    def shows_departures(self) -> bool:
        """Whether enough training conditions have several genes to show how far these depart from additivity."""
        return show_departures(self.sets)

    def is_assumed(self, sets: Sequence[Sequence[int]]) -> np.ndarray:
        """Whether each is an unmeasured combination whose departure from the sum no training condition shows, (U,)."""
        if self.shows_departures:
            return np.zeros(len(sets), dtype=bool)
        return np.array([len(nodes) > 1 for nodes in sets], dtype=bool) & (self.rows(sets) < 0)

    def rows(self, sets: Sequence[Sequence[int]]) -> np.ndarray:
        """Row of each set among the training conditions, -1 where it is none of them, (U,) int64."""
        return np.array([self._row_of.get(key, -1) for key in _keys(sets)], dtype=np.int64)

    def insert(self, sets: Sequence[Sequence[int]], change_UG: np.ndarray) -> np.ndarray:
        """The changes, with those of training conditions as measured; written into the array that is given."""
        row_U = self.rows(sets)
        change_UG[row_U >= 0] = self.change_CG[row_U[row_U >= 0]]
        return change_UG

    def shares(self, sets: Sequence[Sequence[int]], scale: float) -> np.ndarray:
        """Share of its own measurement that an average gene of each set keeps, 0 where there is none, (U,)."""
        row_U = self.rows(sets)
        variance_U, noise_U = scale * self.variance_C[row_U], self.noise_C[row_U] * self.noise_G.mean()
        return np.where(row_U < 0, 0.0, variance_U / (variance_U + noise_U))

    def known_better(self, row_U: np.ndarray, variance_UG: np.ndarray) -> np.ndarray:
        """Variances of predictions from other conditions, (U, G), lowered by each one's own measurement, in place."""
        at = np.flatnonzero(row_U >= 0)
        noise_RG = np.outer(self.noise_C[row_U[at]], self.noise_G)
        known = noise_RG / np.maximum(variance_UG[at] + noise_RG, np.finfo(float).tiny)
        if (is_measured_CG := self.is_measured_CG) is not None:
            known[~is_measured_CG[row_U[at]]] = 1.0
        variance_UG[at] *= known
        return variance_UG

    def arrays(self) -> dict[str, np.ndarray]:
        tables = (self.change_CG, self.variance_C, self.noise_C, self.noise_G)
        return {
            "measured_nodes": np.array([node for nodes in self.sets for node in nodes], dtype=np.int64),
            "measured_sizes": np.array([len(nodes) for nodes in self.sets], dtype=np.int64),
            "measured_contexts": contexts_of(self.sets),
            "measured_kinds": kinds_of(self.sets),
            **{f"measured_{name}": table for name, table in zip(_TABLES, tables, strict=True)},
            **({} if self.is_measured_SG is None else {"measured_genes": self.is_measured_SG}),
            **({} if self.is_measured_SG is None else {"measured_n_kinds": np.array(self.n_kinds)}),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Measured | None:
        """What :meth:`arrays` describes; None in files of earlier versions."""
        if "measured_nodes" not in arrays:
            return None
        bounds = np.cumsum(arrays["measured_sizes"])[:-1]
        sets = tuple(
            NodeSet(nodes.tolist(), context=int(context), kind=int(kind_of_set))
            for nodes, context, kind_of_set in zip(
                np.split(arrays["measured_nodes"], bounds),
                arrays["measured_contexts"],
                arrays["measured_kinds"],
                strict=True,
            )
        )
        tables: list[Any] = [arrays[f"measured_{name}"] for name in _TABLES]
        tables += [arrays.get("measured_genes"), int(arrays.get("measured_n_kinds", 1))]
        return cls(sets, *tables)


def _keys(sets: Sequence[Sequence[int]]) -> list[tuple[int, int, tuple[int, ...]]]:
    """Context, type and nodes of each set, whatever their order."""
    return [
        (context, kind, tuple(sorted(map(int, nodes))))
        for context, kind, nodes in zip(contexts_of(sets).tolist(), kinds_of(sets).tolist(), sets, strict=True)
    ]
