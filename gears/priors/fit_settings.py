"""Fit the prior of a screen with several settings: what all share, and what each has alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gears.priors.evidence import Weights, sample, settle_weights
from gears.priors.fit import SLOPES, Criterion, FittedPrior, PriorData
from gears.priors.kernels import (
    MOST_EXACT,
    MOST_FEATURES,
    NAMES,
    Features,
    GeneSimilarity,
    gene_features,
    mixed,
    sizes_of,
    training_kernels,
)
from gears.priors.prior import ContextPrior, GenePrior, target_part
from gears.priors.regression import Solution, Spectrum, solve, solve_in

MOST_FOLDS = 10
FEW_FOLDS = 3  # of very many units, which fewer folds predict as well
CARRIES = (1.0, 0.0)
FAR_SLOPES = (0.25, 0.5, 0.75, 0.9)
"""Slopes that are tried besides for contexts that training never sees: little carries over to them."""
_LEAST_TARGETS = 3
_MEAN_MARGIN = 0.02  # that the criterion must gain before the means of the settings alone are taken

_NOISE_FLOOR = 1e-3


def fit_context_prior(data: UnitData, criterion: Criterion, judged: np.ndarray | None = None) -> FittedPrior:
    """Fit by evidence around a level of each setting.

    Every covariance of departures from the level (see :data:`gears.priors.kernels.NAMES`) counts once over
    all units and once within settings: how much a gene does alike in all contexts is found, not assumed. `criterion`
    chooses, on predictions of groups that were held out whole, the slope, whether the levels alone are better, and
    whether a setting without units takes the mean of what the others have of their own or none of it. It takes the
    predictions of the units `judged` (rows; all by default).
    """
    target_SG = _target_changes(data)
    targets_CG = _own_targets(data, target_SG)
    rest_CG = data.units.delta_CG - targets_CG
    process = UnitProcess.settle(data, rest_CG)
    candidates = {(False, carry): np.zeros_like(rest_CG) for carry in CARRIES}
    candidates[True, CARRIES[0]] = means_CG = np.zeros_like(rest_CG)
    for fold in _folds(data.group_C, MOST_FOLDS if process.exact else FEW_FOLDS):
        rows, out = np.flatnonzero(~fold), np.flatnonzero(fold)
        level_SG, coefficient_CG = process.solved(rows)
        means_CG[out] = level_SG[data.setting_C[out]]
        for carry in CARRIES:
            departure_CG = process.across(out, rows, carry) @ coefficient_CG
            candidates[False, carry][out] = means_CG[out] + departure_CG
    slopes = (*FAR_SLOPES, *SLOPES) if _leaves_settings_out(data) else SLOPES
    at = slice(None) if judged is None else judged
    tried = {
        (*choice, slope): criterion(slope * candidate_CG[at] + _kept(slope) * targets_CG[at])
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
    """Whether each setting is held out whole, as where predictions are for contexts that training never sees."""
    pairs = np.unique(np.stack([data.setting_C, data.group_C]), axis=1)
    return len(np.unique(data.group_C)) > 1 and pairs.shape[1] == len(np.unique(data.setting_C))


def _kept(slope: float) -> float:
    """Factor on what a perturbation does to its own gene: it is not shrunk with what carries over to other contexts."""
    return max(slope, min(SLOPES))


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


def _folds(group_C: np.ndarray, most: int) -> Iterator[np.ndarray]:
    """Groups dealt into at most `most` folds; which units are out, (C,) bool."""
    groups = np.unique(group_C)
    order = np.random.Generator(np.random.Philox(key=len(groups))).permutation(len(groups))
    n_folds = min(most, len(groups))
    for fold in range(n_folds):
        yield np.isin(group_C, groups[order[fold::n_folds]])


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
        Units of the same number are held out together: those of one condition, or of one context.
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


@dataclass(frozen=True)
class UnitProcess:
    """The Gaussian process of some units: weights of covariances, and noise.

    Attributes
    ----------
    data, rest_CG
        The units, and their changes without those of perturbed genes themselves.
    weights
        Of every covariance over all units, then of each within settings.
    noise_C, noise_G
        Sampling variance of each unit and gene is the product of these.
    typical
        Size of `noise_G`.
    """

    data: UnitData
    rest_CG: np.ndarray
    weights: Weights
    noise_C: np.ndarray
    noise_G: np.ndarray
    typical: float

    @classmethod
    def settle(cls, data: UnitData, rest_CG: np.ndarray) -> UnitProcess:
        """Find the weights by evidence (of a fixed sample of many units)."""
        units, setting_C = data.units, data.setting_C
        noise_C, noise_G = units.sampling_noise()
        level = float(noise_G.mean()) or _NOISE_FLOOR * float((rest_CG**2).mean()) or 1.0
        rows = sample(len(rest_CG))
        sets = [units.sets[row] for row in rows.tolist()]
        # without the offset, which is each setting's level
        kernels = training_kernels(
            sets, units.genes.among(sets), *(part.among(sets) for part in units.further)
        )[1:]
        same_CC = setting_C[rows][:, None] == setting_C[rows][None, :]
        kernels += [kernel * same_CC for kernel in kernels]
        level_SG = levels(rest_CG, setting_C, len(data.control_mean_SG), data.n_kinds)
        departure_CG = rest_CG[rows] - level_SG[setting_C[rows]]
        if not departure_CG.any():
            departure_CG = np.full_like(departure_CG, np.sqrt(level))
        weights = settle_weights(departure_CG, kernels, level * noise_C[rows], sizes_of(sets))
        noise_G = np.maximum(weights.noise * noise_G, _NOISE_FLOOR * level)
        return cls(data, rest_CG, weights, noise_C, noise_G, weights.noise * level)

    @property
    def exact(self) -> bool:
        """Whether all pairs of units are looked at; features of genes stand for very many units."""
        return len(self.data.sets) <= MOST_EXACT

    @cached_property
    def _halves(self) -> tuple[_Half, _Half]:
        """The covariance over all units, and that within settings."""
        kernels, units = self.weights.kernels, self.data.units
        halves = kernels[: len(kernels) // 2], kernels[len(kernels) // 2 :]
        return _Half.of(units, halves[0]), _Half.of(units, halves[1])

    def across(self, out: np.ndarray, rows: np.ndarray, carry: float) -> np.ndarray:
        """Covariance of units that are held out with some others, (out, rows).

        A unit whose setting is not among the others takes `carry` times the mean of the settings of its type.
        """
        setting, kind = self.data.setting_C, self.data.setting_C % self.data.n_kinds
        same = (setting[out][:, None] == setting[rows][None, :]).astype(float)
        for row in np.flatnonzero(~np.isin(setting[out], setting[rows])).tolist():
            alike = kind[rows] == kind[out[row]]
            same[row] = carry * alike / max(1, len(np.unique(setting[rows][alike])))
        sets = [[self.data.units.sets[row] for row in part.tolist()] for part in (out, rows)]
        shared, own = self._halves
        same *= own.covariance(*sets)
        same += shared.covariance(*sets)
        return same

    def solved(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Level of every setting, and coefficients of the departures, from some of the units."""
        setting = self.data.setting_C[rows]
        data = self.data
        level_SG = levels(self.rest_CG[rows], setting, len(data.control_mean_SG), data.n_kinds)
        departure_CG = self.rest_CG[rows] - level_SG[setting]
        if len(rows) < 2:
            return level_SG, np.zeros_like(departure_CG)
        found = self._solution(rows, departure_CG)
        return level_SG + found.level_G, found.coefficient_CG

    def _solution(self, rows: np.ndarray, departure_CG: np.ndarray) -> Solution:
        unexplained_C = self.weights.unexplained(
            sizes_of([self.data.units.sets[row] for row in rows.tolist()])
        )
        if self.exact:
            signal_CC = self.across(rows, rows, 0.0)
            signal_CC[np.diag_indices(len(rows))] += unexplained_C
            return solve(departure_CG, signal_CC, self.noise_C[rows], self.noise_G)
        spectrum = Spectrum.of_features(self._features(rows), unexplained_C, self.noise_C[rows], self.typical)
        return solve_in(spectrum, departure_CG, self.noise_G)

    def _features(self, rows: np.ndarray) -> Features:
        """Features of what all units share, and beside them of each setting's own."""
        shared, own = self._halves
        sets, setting = [self.data.units.sets[row] for row in rows.tolist()], self.data.setting_C[rows]
        settings = np.unique(setting).tolist()
        found = shared.features(sets, MOST_FEATURES // 2)
        blocks, rest_C = [found.feature_CM], found.rest_C.copy()
        for number in settings:
            at = np.flatnonzero(setting == number)
            part = own.features([sets[row] for row in at.tolist()], MOST_FEATURES // (2 * len(settings)))
            block = np.zeros((len(rows), part.feature_CM.shape[1]))
            block[at] = part.feature_CM
            rest_C[at] += part.rest_C
            blocks.append(block)
        return Features(np.hstack(blocks), rest_C)

    def prior(
        self,
        level_SG: np.ndarray,
        coefficient_CG: np.ndarray,
        target_SG: np.ndarray,
        slope: float,
        carry: float,
    ) -> ContextPrior:
        """The prior for any condition: what settings share, and what each has of its own."""
        shared, own = self._halves
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
            part = self._part(own, coefficient_CG, chosen_C, level_G, target_G, slope)
            shared_G, coefficient_TG = factor * part.shared_G, factor * part.coefficient_TG
            parts.append(dataclasses.replace(part, shared_G=shared_G, coefficient_TG=coefficient_TG))
        return ContextPrior(pooled, tuple(parts), n_kinds)

    def _part(
        self,
        half: _Half,
        coefficient_CG: np.ndarray,
        chosen_C: np.ndarray,
        level_G: np.ndarray,
        target_G: np.ndarray,
        slope: float,
    ) -> GenePrior:
        """What some units say, with the weights of their covariances."""
        units = self.data.units
        rows = np.flatnonzero(chosen_C).tolist()
        sets, coefficient = [units.sets[row] for row in rows], coefficient_CG[rows]
        return GenePrior(
            half.genes,
            level_G,
            half.shared * (sizes_of(sets) @ coefficient),
            half.own,
            half.similar,
            np.asarray(half.genes.members(sets).T @ coefficient),
            units.column_P,
            target_G,
            slope=slope,
        )

    def report(self) -> dict[str, object]:
        """Weights in plain values."""
        names, weights = NAMES[1:], self.weights
        n = len(weights.kernels) // 2
        return {
            "exact": self.exact,
            "weights": dict(zip(names, weights.kernels[:n], strict=False)),
            "weights_within_settings": dict(zip(names, weights.kernels[n:], strict=False)),
            "noise": weights.noise,
            "unexplained": weights.nugget,
            "unexplained_several_genes": weights.multiple,
        }


@dataclass(frozen=True)
class _Half:
    """Weights of one additive covariance: of all genes alike, each gene's own, that of similar genes."""

    genes: GeneSimilarity
    shared: float
    own: float
    similar: float

    @classmethod
    def of(cls, units: PriorData, weights: Sequence[float]) -> _Half:
        """With several similarities in the proportion of their weights."""
        shared, own, *each = weights
        return cls(mixed((units.genes, *units.further), each), shared, own, float(sum(each)))

    def covariance(self, out: Sequence[Sequence[int]], sets: Sequence[Sequence[int]]) -> np.ndarray:
        """Between two lists of sets, (out, sets)."""
        genes, half = self.genes, self.similar / 2
        found = np.asarray((self.own * genes.members(out) @ genes.members(sets).T).toarray())
        found += half * np.asarray((genes.members(sets) @ genes.similarity(out).T).T)
        found += half * np.asarray(genes.members(out) @ genes.similarity(sets).T)
        return found + np.outer(self.shared * sizes_of(out), sizes_of(sets))

    def features(self, sets: Sequence[Sequence[int]], most: int) -> Features:
        """Of some sets; genes that these do not hold are excluded."""
        genes = self.genes.among(sets)
        return gene_features(genes.members(sets), genes, self.shared, self.own, self.similar, most)


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
