"""What effects of another screen say here: a similarity of genes that is known for all of them, and a residual.

*Similarity.* Genes with effects there are compared by their cosine, C. Of a gene without, its place among the others is
taken from M, the correlation of effects by the other similarities, as the evidence weighs them: with p the trained
genes that have effects, its row is that of

    sum_p w_p x (effects of p) + a rest,   w = M_ip (M_pp + r I)^-1,   covariance of rests M_ij + r [i = j] - w_i M_pj

as a Gaussian process over M would predict it. So the completed matrix is a covariance (positive semi-definite) whatever
is missing; it is scaled to 1 on the diagonal. A gene that is like no gene with effects keeps what M says alone.

*Residual.* For genes that training does not perturb, what the prior leaves of a measured gene is regressed on that
gene's effects there, less their mean: a gain between 0 and 1 for each measured gene, drawn to the common one. It is
fitted to predictions of training conditions without themselves, and used where it makes these better.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import linalg

from gears.priors._data import Criterion, PriorData
from gears.priors._evidence import sample
from gears.priors._kernels import NEW_KINDS, AdditiveCovariance, ComputedSimilarity, GeneSimilarity
from gears.priors._prior import Residual

if TYPE_CHECKING:
    from gears.graphs._effects import NodeEffects

_RIDGE = 0.01  # r above: genes of the same M differ, if only a little
_COMPLETED_BY = 150  # conditions that M is fitted to
_SURE = 1.0  # standard errors that the gain of a residual must exceed
_FEWEST = 5  # held-out conditions that decide about a residual


@dataclass(frozen=True, eq=False)
class Completed:
    """Similarity of all nodes by effects of another screen, completed by other similarities."""

    effects: NodeEffects
    without: AdditiveCovariance

    @property
    def trained_T(self) -> np.ndarray:
        """Genes perturbed in training."""
        return self.without.genes.trained_T

    @cached_property
    def known_T(self) -> np.ndarray:
        """Which trained genes have effects there."""
        return np.isin(self.trained_T, self.effects.nodes_N)

    @cached_property
    def _cosine_KK(self) -> np.ndarray:
        """Of the trained genes with effects there."""
        return self._cosines(self.trained_T[self.known_T])

    @cached_property
    def _mean_KT(self) -> np.ndarray:
        return self._means(self.trained_T[self.known_T])

    @cached_property
    def _factor(self) -> tuple[np.ndarray, bool]:
        mean_KK = self._mean_KT[:, self.known_T]
        return linalg.cho_factor((mean_KK + mean_KK.T) / 2 + _RIDGE * np.eye(len(mean_KK)))

    def _cosines(self, nodes: np.ndarray) -> np.ndarray:
        """Of nodes that have effects with the trained ones that have, (A, K)."""
        unit_NM, nodes_N = self.effects.unit_NM, self.effects.nodes_N
        rows = [np.searchsorted(nodes_N, some) for some in (nodes, self.trained_T[self.known_T])]
        return np.asarray(unit_NM[rows[0]] @ unit_NM[rows[1]].T, dtype=np.float64)

    def _means(self, nodes: np.ndarray) -> np.ndarray:
        """Correlation of some nodes' effects with those of the trained genes without this screen, (A, T)."""
        own, similar = float(np.mean(self.without.own)), self.without.similar
        mean_AT = similar * np.asarray(self.without.genes.similar_PT[nodes].toarray(), dtype=np.float64)
        mean_AT += own * (nodes[:, None] == self.trained_T)
        return np.asarray(mean_AT / (own + similar))

    def _missing(self, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of nodes without effects w (B, K) and their rows of M (B, T), by the root of their variance."""
        mean_BT = self._means(nodes)
        mean_BK = mean_BT[:, self.known_T]
        weight_BK = linalg.cho_solve(self._factor, mean_BK.T).T if self.known_T.any() else mean_BK
        explained_B = (weight_BK * mean_BK).sum(axis=1)
        variance_B = ((weight_BK @ self._cosine_KK) * weight_BK).sum(axis=1) + 1 + _RIDGE - explained_B
        return weight_BK / np.sqrt(variance_B)[:, None], mean_BT / np.sqrt(variance_B)[:, None]

    @cached_property
    def _missing_trained(self) -> tuple[np.ndarray, np.ndarray]:
        return self._missing(self.trained_T[~self.known_T])

    def between(self, nodes_A: np.ndarray, nodes_B: np.ndarray) -> np.ndarray:
        """Similarity of any nodes to trained ones, (A, B)."""
        at_B = np.searchsorted(self.trained_T, nodes_B)
        # w of every trained gene; one with effects is placed by itself
        weight_TK = np.zeros((len(self.trained_T), int(self.known_T.sum())))
        weight_TK[self.known_T] = np.eye(weight_TK.shape[1])
        weight_TK[~self.known_T], mean_BT = self._missing_trained
        scale_T = np.zeros(len(self.trained_T))  # 1 / root of the variance: M of a gene with itself is 1
        scale_T[~self.known_T] = mean_BT[np.arange(len(mean_BT)), np.flatnonzero(~self.known_T)]
        has_A = np.isin(nodes_A, self.effects.nodes_N)
        similar_AT = np.empty((len(nodes_A), len(self.trained_T)))
        similar_AT[has_A] = self._cosines(nodes_A[has_A]) @ weight_TK.T
        if not has_A.all():
            weight_BK, mean_BT = self._missing(nodes_A[~has_A])
            rest_BT = (mean_BT - weight_BK @ self._mean_KT) * scale_T
            similar_AT[~has_A] = weight_BK @ self._cosine_KK @ weight_TK.T + rest_BT
        return similar_AT[:, at_B]


def with_effects(data: PriorData, covariance_of: Callable[[PriorData, np.ndarray], AdditiveCovariance]) -> PriorData:
    """The data with a similarity by each other screen, completed by the covariance that is fitted without them.

    `covariance_of`: fits it to data and rows of its conditions; a sample of many is enough to complete with.
    """
    if not data.effects:
        return data
    rows = sample(len(data.sets), _COMPLETED_BY)
    groups = None if data.groups is None else data.groups[rows]
    some = dataclasses.replace(
        data, sets=tuple(data.sets_of(rows)), delta_CG=data.delta_CG[rows], n_C=data.n_C[rows], groups=groups
    )
    without = covariance_of(some, rows)
    nodes, n_nodes = without.genes.trained_T, without.genes.similar_PT.shape[0]
    similar = {
        name: ComputedSimilarity(Completed(effects, without).between, nodes, n_nodes)
        for name, effects in data.effects.items()
    }
    return dataclasses.replace(data, further={**data.further, **similar})


@dataclass(frozen=True)
class _Gain:
    """Gain of each measured gene from sums over conditions."""

    square_G: np.ndarray
    product_G: np.ndarray
    ridge_G: np.ndarray  # sum of squares that the common gain counts as

    @classmethod
    def of(cls, change_RG: np.ndarray, rest_RG: np.ndarray) -> _Gain:
        square_G, product_G = (change_RG**2).sum(axis=0), (change_RG * rest_RG).sum(axis=0)
        common = product_G.sum() / max(square_G.sum(), np.finfo(float).tiny)
        noise_G = ((rest_RG - common * change_RG) ** 2).mean(axis=0)
        some_G = square_G > 0
        # variance of gains over genes, by moments: what their errors do not explain
        off_G = (product_G[some_G] - common * square_G[some_G]) ** 2 - noise_G[some_G] * square_G[some_G]
        variance = max(float(off_G.sum() / max((square_G[some_G] ** 2).sum(), np.finfo(float).tiny)), 1e-6)
        return cls(square_G, product_G, noise_G / variance)

    def gains(self) -> np.ndarray:
        """Between 0 and 1, (G,)."""
        return self._drawn(self.square_G, self.product_G)

    def without(self, change_RG: np.ndarray, rest_RG: np.ndarray) -> np.ndarray:
        """The same from all conditions but each of these, (R, G)."""
        return self._drawn(self.square_G - change_RG**2, self.product_G - change_RG * rest_RG)

    def _drawn(self, square: np.ndarray, product: np.ndarray) -> np.ndarray:
        common = product.sum(axis=-1, keepdims=True) / np.maximum(square.sum(axis=-1, keepdims=True), 1e-30)
        gain = (product + self.ridge_G * common) / np.maximum(square + self.ridge_G, 1e-30)
        return np.clip(gain, 0.0, 1.0)


def fit_residual(
    data: PriorData, left_out_CG: np.ndarray, kind_C: np.ndarray, criterion: Criterion, judged: np.ndarray
) -> tuple[Residual | None, np.ndarray, dict[str, Any]]:
    """The residual of other screens, predictions of training conditions without themselves that hold it, and a report.

    `left_out_CG` and `kind_C` are these predictions without it, and the kind of each condition there.
    """
    total_NG: dict[int, np.ndarray] = {}
    report: dict[str, Any] = {}
    for name, effects in data.effects.items():
        here_NG = _in_units_of(data, effects)
        change_RG, rows = _summed_unknown(data, effects.nodes_N, here_NG, kind_C)
        report[name] = {"hash": effects.table.content_hash, "genes": len(effects.nodes_N), "gain": 0.0}
        report[name]["measured"] = int((effects.column_G >= 0).sum())
        at = np.flatnonzero(np.isin(judged, rows))
        if len(at) < _FEWEST:
            continue
        rest_RG = data.delta_CG[rows] - left_out_CG[rows]
        gain = _Gain.of(change_RG, rest_RG)
        tried_CG = left_out_CG.copy()
        tried_CG[rows] += gain.without(change_RG, rest_RG) * change_RG
        better = np.atleast_2d(criterion(left_out_CG[judged]) - criterion(tried_CG[judged])).sum(axis=0)[at]
        if better.mean() <= _SURE * better.std(ddof=1) / np.sqrt(len(better)):
            continue
        left_out_CG = tried_CG
        gain_G = gain.gains()
        report[name]["gain"] = float(gain_G[gain.square_G > 0].mean())
        for node, change_G in zip(effects.nodes_N.tolist(), gain_G * here_NG, strict=True):
            total_NG[node] = total_NG.get(node, 0.0) + change_G
    nodes_N = np.setdiff1d(np.array(sorted(total_NG), dtype=np.int64), data.genes.trained_T)
    if not len(nodes_N):
        return None, left_out_CG, report
    change_NG = np.array([total_NG[node] for node in nodes_N.tolist()], dtype=np.float32)
    return Residual(nodes_N, change_NG), left_out_CG, report


def _in_units_of(data: PriorData, effects: NodeEffects) -> np.ndarray:
    """Effects there in the units of this screen, (N, G): by the s.d. of a cell, or by that over conditions."""
    scale_G = data.delta_CG.std(axis=0) if effects.table.sd is None else np.sqrt(data.variance_G)
    return effects.here() * scale_G.astype(np.float32)


def _summed_unknown(
    data: PriorData, nodes_N: np.ndarray, here_NG: np.ndarray, kind_C: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Effects there of the genes that each condition perturbs and no other group does, and the rows that have any."""
    group_C = np.unique(data.group_C, return_inverse=True)[1]
    groups_of: dict[int, set[int]] = {}
    for group, nodes in zip(group_C.tolist(), data.sets, strict=True):
        for node in nodes:
            groups_of.setdefault(node, set()).add(group)
    unknown = [tuple(node for node in nodes if len(groups_of[node]) == 1) for nodes in data.sets]
    members = GeneSimilarity(nodes_N, None).members(unknown)  # type: ignore[arg-type]
    rows = np.flatnonzero((members.getnnz(axis=1) > 0) & np.isin(kind_C, NEW_KINDS))
    return np.asarray(members[rows] @ here_NG, dtype=np.float64), rows
