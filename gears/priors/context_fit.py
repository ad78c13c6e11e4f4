"""Fit the prior of a screen with contexts: one Gaussian process over all units, shared and own parts by evidence."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gears.priors.amplitudes import solve
from gears.priors.context_prior import ContextPrior
from gears.priors.data import PriorData
from gears.priors.evidence import Weights, sample, settle_weights
from gears.priors.fit import SLOPES, Criterion, FittedPrior
from gears.priors.gene_prior import GenePrior, target_part
from gears.priors.kernels import NAMES, mixed, sizes_of, training_kernels

MOST_FOLDS = 10
CARRIES = (1.0, 0.0)
FAR_SLOPES = (0.25, 0.5, 0.75, 0.9)
"""Slopes that are tried besides for contexts that training never sees: little carries over to them."""
_LEAST_TARGETS = 3
_NOISE_FLOOR = 1e-3
_MEAN_MARGIN = 0.02  # that the criterion must gain before the means of the settings alone are taken


@dataclass(frozen=True)
class UnitData:
    """What the prior of several settings is fitted to.

    Attributes
    ----------
    units
        The training units as conditions; ``control_mean_G`` is not looked at.
    setting_C
        Setting of each unit.
    control_mean_SG
        Control mean of each setting.
    n_kinds
        Types of perturbation; settings are numbered ``context x n_kinds + kind``.
    group_C
        Units of the same number are left out together: those of one condition, or of one context.
    sets
        Node sets of the units, with context and type.
    """

    units: PriorData
    setting_C: np.ndarray
    control_mean_SG: np.ndarray
    n_kinds: int
    group_C: np.ndarray
    sets: Sequence[Sequence[int]]

    def subset(self, rows: list[int]) -> UnitData:
        """Some of the units."""
        return dataclasses.replace(
            self,
            units=self.units.subset(rows),
            setting_C=self.setting_C[rows],
            group_C=self.group_C[rows],
            sets=[self.sets[row] for row in rows],
        )


def fit_context_prior(data: UnitData, criterion: Criterion) -> FittedPrior:
    """Fit by evidence around a level of each setting.

    Every covariance of departures from the level (see :data:`gears.priors.kernels.NAMES`) counts once over
    all units and once within settings: how much a gene does alike in all contexts is found, not assumed. `criterion`
    chooses, on predictions of groups that were left out whole, the slope, whether the levels alone are better, and
    whether a setting without units takes the mean of what the others have of their own or none of it.
    """
    target_SG = _target_changes(data)
    targets_CG = _own_targets(data, target_SG)
    rest_CG = data.units.delta_CG - targets_CG
    process = _Process.settle(data, rest_CG)
    candidates = {(False, carry): np.zeros_like(rest_CG) for carry in CARRIES}
    candidates[True, CARRIES[0]] = means_CG = np.zeros_like(rest_CG)
    for fold in _folds(data.group_C):
        rows, out = np.flatnonzero(~fold), np.flatnonzero(fold)
        level_SG, coefficient_CG = process.solved(rows)
        means_CG[out] = level_SG[data.setting_C[out]]
        for carry in CARRIES:
            departure_CG = process.across(out, rows, carry) @ coefficient_CG
            candidates[False, carry][out] = means_CG[out] + departure_CG
    slopes = (*FAR_SLOPES, *SLOPES) if _leaves_settings_out(data) else SLOPES
    tried = {
        (*choice, slope): criterion(slope * candidate_CG + _kept(slope) * targets_CG)
        for choice, candidate_CG in candidates.items()
        for slope in slopes
    }
    # of equal ones the first: the mean is carried where nothing tells against it
    best = min(tried, key=lambda choice: round(tried[choice] + _MEAN_MARGIN * choice[0], 9))
    mean_only, carry, slope = best
    level_SG, coefficient_CG = process.solved(np.arange(len(rest_CG)))
    # the slope multiplies everything, and so undoes this
    target_SG = _kept(slope) / slope * target_SG
    prior = process.prior(level_SG, coefficient_CG * (not mean_only), target_SG, slope, carry)
    report = {
        "kind": "additive Gaussian process over condition x context",
        "conditions": len(rest_CG),
        "settings": len(np.unique(data.setting_C)),
        **process.report(),
        "mean_only": mean_only,
        "carried": carry,
        "slope": slope,
        "criterion": tried[best],
    }
    left_out_CG = slope * candidates[mean_only, carry] + _kept(slope) * targets_CG
    return FittedPrior(dataclasses.replace(prior, report=report), left_out_CG)


def _leaves_settings_out(data: UnitData) -> bool:
    """Whether each setting is left out whole, as where predictions are for contexts that training never sees."""
    pairs = np.unique(np.stack([data.setting_C, data.group_C]), axis=1)
    return len(np.unique(data.group_C)) > 1 and pairs.shape[1] == len(np.unique(data.setting_C))


def _kept(slope: float) -> float:
    """Factor on what a perturbation does to its own gene: it is not shrunk with what carries over to other contexts."""
    return max(slope, min(SLOPES))


@dataclass(frozen=True)
class _Process:
    """The Gaussian process of some units: weights, covariances, noise."""

    data: UnitData
    rest_CG: np.ndarray
    weights: Weights
    shared_CC: np.ndarray
    within_CC: np.ndarray
    noise_C: np.ndarray
    noise_G: np.ndarray

    @classmethod
    def settle(cls, data: UnitData, rest_CG: np.ndarray) -> _Process:
        """Find the weights by evidence."""
        units, setting_C = data.units, data.setting_C
        size_C = sizes_of(units.sets)
        typical = 1 / float((1 / units.n_C).mean())
        noise_C, noise_G = typical / units.n_C, units.variance_G / typical
        level = float(noise_G.mean()) or _NOISE_FLOOR * float((rest_CG**2).mean()) or 1.0
        # without the offset, which is each setting's level
        kernels = training_kernels(units.sets, units.genes, *units.further)[1:]
        same_CC = setting_C[:, None] == setting_C[None, :]
        n = len(kernels)
        kernels += [kernel * same_CC for kernel in kernels]
        departure_CG = (
            rest_CG - levels(rest_CG, setting_C, len(data.control_mean_SG), data.n_kinds)[setting_C]
        )
        if not departure_CG.any():
            departure_CG = np.full_like(rest_CG, np.sqrt(level))
        rows = sample(len(rest_CG))
        part = [kernel[np.ix_(rows, rows)] for kernel in kernels]
        weights = settle_weights(departure_CG[rows], part, level * noise_C[rows], size_C[rows])
        # the second half of the kernels is zero between settings; unmasked it is the first half again
        halves = weights.kernels[:n], weights.kernels[n:]
        shared_CC, within_CC = (
            np.asarray(sum(weight * kernel for weight, kernel in zip(half, kernels, strict=False)))
            for half in halves
        )
        noise_G = np.maximum(weights.noise * noise_G, _NOISE_FLOOR * level)
        return cls(data, rest_CG, weights, shared_CC, within_CC, noise_C, noise_G)

    def across(self, out: np.ndarray, rows: np.ndarray, carry: float) -> np.ndarray:
        """Covariance of units that are left out with some others, (out, rows).

        A unit whose setting is not among the others takes `carry` times the mean of the settings of its type.
        """
        setting, kind = self.data.setting_C, self.data.setting_C % self.data.n_kinds
        same = (setting[out][:, None] == setting[rows][None, :]).astype(float)
        for row in np.flatnonzero(~np.isin(setting[out], setting[rows])).tolist():
            alike = kind[rows] == kind[out[row]]
            same[row] = carry * alike / max(1, len(np.unique(setting[rows][alike])))
        at = np.ix_(out, rows)
        return self.shared_CC[at] + self.within_CC[at] * same

    def solved(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Level of every setting, and coefficients of the departures, from some of the units."""
        setting = self.data.setting_C[rows]
        data = self.data
        level_SG = levels(self.rest_CG[rows], setting, len(data.control_mean_SG), data.n_kinds)
        departure_CG = self.rest_CG[rows] - level_SG[setting]
        if len(rows) < 2:
            return level_SG, np.zeros_like(departure_CG)
        signal_CC = self.across(rows, rows, 0.0)
        size = sizes_of([self.data.units.sets[row] for row in rows])
        signal_CC[np.diag_indices(len(rows))] += self.weights.unexplained(size)
        found = solve(departure_CG, signal_CC, self.noise_C[rows], self.noise_G)
        return level_SG + found.level_G, found.coefficient_CG

    def prior(
        self,
        level_SG: np.ndarray,
        coefficient_CG: np.ndarray,
        target_SG: np.ndarray,
        slope: float,
        carry: float,
    ) -> ContextPrior:
        """The prior for any condition: what settings share, and what each has of its own."""
        shared, own = self._halves()
        nothing_G = np.zeros(coefficient_CG.shape[1])
        every = np.ones(len(coefficient_CG), dtype=bool)
        pooled = self._part(shared, coefficient_CG, every, nothing_G, nothing_G, slope)
        setting_C, n_kinds = self.data.setting_C, self.data.n_kinds
        parts = []
        for setting in range(len(target_SG)):
            chosen_C, factor = setting_C == setting, 1.0
            if not chosen_C.any():
                chosen_C = setting_C % n_kinds == setting % n_kinds
                factor = carry / max(1, len(np.unique(setting_C[chosen_C])))
            level_G, target_G = level_SG[setting], target_SG[setting]
            parts.append(self._part(own, factor * coefficient_CG, chosen_C, level_G, target_G, slope))
        return ContextPrior(pooled, tuple(parts), n_kinds)

    def _part(
        self,
        weights: tuple[float, ...],
        coefficient_CG: np.ndarray,
        chosen_C: np.ndarray,
        level_G: np.ndarray,
        target_G: np.ndarray,
        slope: float,
    ) -> GenePrior:
        """What some units say, with the weights of their covariances."""
        units, (shared, own, *each) = self.data.units, weights
        genes = mixed((units.genes, *units.further), each)
        rows = np.flatnonzero(chosen_C).tolist()
        sets, coefficient = [units.sets[row] for row in rows], coefficient_CG[rows]
        return GenePrior(
            genes,
            level_G,
            shared * (sizes_of(sets) @ coefficient),
            own,
            float(sum(each)),
            genes.membership(sets).T @ coefficient,
            units.column_P,
            target_G,
            slope=slope,
        )

    def _halves(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Weights over all units, and within settings."""
        kernels = self.weights.kernels
        return kernels[: len(kernels) // 2], kernels[len(kernels) // 2 :]

    def report(self) -> dict[str, object]:
        """Weights in plain values."""
        names, weights = NAMES[1:], self.weights
        shared, own = self._halves()
        return {
            "weights": dict(zip(names, shared, strict=False)),
            "weights_within_settings": dict(zip(names, own, strict=False)),
            "noise": weights.noise,
            "unexplained": weights.nugget,
            "unexplained_several_genes": weights.multiple,
        }


def levels(change_CG: np.ndarray, setting_C: np.ndarray, n_settings: int, n_kinds: int = 1) -> np.ndarray:
    """Mean change of each setting's units, (S, G).

    A setting without units gets the mean of the settings of its type that have any (of all, where there is none),
    one with a single unit lies halfway.
    """
    level_SG = np.zeros((n_settings, change_CG.shape[1]))
    n_S = np.bincount(setting_C, minlength=n_settings)
    for setting in np.flatnonzero(n_S):
        level_SG[setting] = change_CG[setting_C == setting].mean(axis=0)
    known = level_SG.copy()
    for setting in np.flatnonzero(n_S < 2):
        alike = (np.arange(n_settings) % n_kinds == setting % n_kinds) & (n_S > 0)
        others = known[alike] if alike.any() else known[n_S > 0]
        if len(others):
            level_SG[setting] = (n_S[setting] * known[setting] + others.mean(axis=0)) / (n_S[setting] + 1)
    return level_SG


def _own_targets(data: UnitData, target_SG: np.ndarray) -> np.ndarray:
    units = data.units
    parts = [
        target_part([nodes], units.column_P, target_SG[setting])
        for nodes, setting in zip(units.sets, data.setting_C, strict=True)
    ]
    return np.concatenate(parts)


def _target_changes(data: UnitData) -> np.ndarray:
    """Change of each gene by its own perturbation in each setting: a type's share of the control mean, (S, G)."""
    units = data.units
    target_SG = np.zeros_like(data.control_mean_SG)
    for kind in range(data.n_kinds):
        squares, products, n = 0.0, 0.0, 0
        for row in np.flatnonzero(data.setting_C % data.n_kinds == kind).tolist():
            mean_G = data.control_mean_SG[data.setting_C[row]]
            at = target_part([units.sets[row]], units.column_P, mean_G)[0]
            squares, products = squares + float(at @ at), products + float(at @ units.delta_CG[row])
            n += int((at != 0).sum())
        if n >= _LEAST_TARGETS and squares > 0:
            share = products / (squares * (1 + 1 / n))
            target_SG[kind :: data.n_kinds] = share * data.control_mean_SG[kind :: data.n_kinds]
    return target_SG


def _folds(group_C: np.ndarray) -> Iterator[np.ndarray]:
    """Groups dealt into at most :data:`MOST_FOLDS` folds; which units are out, (C,) bool."""
    groups = np.unique(group_C)
    order = np.random.Generator(np.random.Philox(key=len(groups))).permutation(len(groups))
    n_folds = min(MOST_FOLDS, len(groups))
    for fold in range(n_folds):
        yield np.isin(group_C, groups[order[fold::n_folds]])
