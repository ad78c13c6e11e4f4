"""Fit the prior of a screen with several settings: what all share, and what each has alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse

from gears.priors.calibration import LeftOut, fit_uncertainty
from gears.priors.fit import (
    MEAN_MARGIN,
    SLOPES,
    Criterion,
    FittedPrior,
    PriorData,
    Process,
    measured_of,
    mixed_covariance,
    share_of_targets,
    unseen_when_left_out,
)
from gears.priors.kernels import (
    MOST_FEATURES,
    N_KINDS,
    NAMES,
    AdditiveCovariance,
    Features,
    gene_features,
    sizes_of,
)
from gears.priors.posterior import ConditionCovariance, Posterior
from gears.priors.prior import ContextPrior, GenePrior, target_part
from gears.priors.regression import Spectrum, solve_in
from gears.priors.uncertainty import condition_variance

MOST_FOLDS = 10
FEW_FOLDS = 3  # of very many conditions, which fewer folds predict as well
CARRIES = (1.0, 0.0)
NEAR_SLOPES = tuple(sorted(slope for slope in SLOPES if slope >= 1))
"""Slopes that are tried. Held-out groups say how far unseen genes carry over, not how far a gene that other contexts
show does: there nothing is shrunk."""
FAR_SLOPES = (0.25, 0.5, 0.75, 0.9)
"""Slopes that are tried besides for contexts that training never sees: little carries over to them."""


def fit_context_prior(
    data: SettingData, criterion: Criterion, judged: np.ndarray | None = None
) -> FittedPrior:
    """Fit by evidence around a level of each setting.

    Every covariance of departures from the level (see :data:`gears.priors.kernels.NAMES`) counts once over all
    conditions and once within settings: how much a gene does alike in all contexts is found, not assumed.
    `criterion` chooses, on predictions of groups that were held out whole, the slope, whether the levels alone are
    better, and whether a setting without conditions takes the mean of what the others have of their own or none of
    it. It takes the predictions of the conditions `judged` (rows; all by default).
    """
    target_SG = _target_changes(data)
    targets_CG = _own_targets(data, target_SG)
    rest_CG = data.conditions.delta_CG - targets_CG
    fitted = SettingProcess.settled(data, rest_CG)
    candidates = {(False, carry): np.zeros_like(rest_CG) for carry in CARRIES}
    candidates[True, CARRIES[0]] = means_CG = np.zeros_like(rest_CG)
    variances = {carry: np.zeros(len(rest_CG)) for carry in CARRIES}
    for fold in _folds(data.group_C, MOST_FOLDS if fitted.process.exact else FEW_FOLDS):
        rows, out = np.flatnonzero(~fold), np.flatnonzero(fold)
        level_SG, coefficient_CG, spectrum = fitted.solved(rows)
        means_CG[out] = level_SG[data.setting_C[out]]
        out_sets = [data.conditions.sets[row] for row in out.tolist()]
        posterior = None
        for carry in CARRIES:
            departure_CG = fitted.across(out, rows, carry) @ coefficient_CG
            candidates[False, carry][out] = means_CG[out] + departure_CG
            covariance, member_CR = fitted.covariance(rows, carry)
            posterior = posterior or fitted.posterior(
                spectrum, member_CR
            )  # it does not depend on what is carried
            variances[carry][out] = condition_variance(covariance, posterior, out_sets)
    slopes = (*FAR_SLOPES, *NEAR_SLOPES) if _leaves_settings_out(data) else NEAR_SLOPES
    at = slice(None) if judged is None else judged
    tried = {
        (*choice, slope): float(criterion(slope * candidate_CG[at] + _kept(slope) * targets_CG[at]).mean())
        for choice, candidate_CG in candidates.items()
        for slope in slopes
    }
    # of equal ones the first: the mean is carried where nothing tells against it
    best = min(tried, key=lambda choice: round(tried[choice] + MEAN_MARGIN * choice[0], 9))
    mean_only, carry, slope = best
    level_SG, coefficient_CG, spectrum = fitted.solved(np.arange(len(rest_CG)))
    # the slope multiplies everything, and so undoes this
    target_SG = _kept(slope) / slope * target_SG
    prior = fitted.prior(level_SG, coefficient_CG * (not mean_only), target_SG, slope, carry)
    left_out_CG = slope * candidates[mean_only, carry] + _kept(slope) * targets_CG
    covariance, member_CR = fitted.covariance(np.arange(len(rest_CG)), carry)
    posterior = fitted.posterior(None if mean_only else spectrum, member_CR)
    own_CG, unseen_C = _kept(slope) * targets_CG, unseen_when_left_out(data.conditions, data.group_C)
    variance_C = condition_variance(covariance, None, data.conditions.sets) if mean_only else variances[carry]
    left_out = LeftOut(data.conditions, left_out_CG, own_CG.__getitem__, variance_C, unseen_C)
    uncertainty = fit_uncertainty(left_out, covariance, posterior)
    report = {
        "kind": "additive Gaussian process over condition x context",
        "conditions": len(rest_CG),
        "settings": len(np.unique(data.setting_C)),
        **fitted.report(),
        "mean_only": mean_only,
        "carried": carry,
        "slope": slope,
        "criterion": tried[best],
        "sd": uncertainty.report(),
    }
    measured = measured_of(left_out, uncertainty, (fitted.process.noise_C, fitted.process.noise_G))
    prior = dataclasses.replace(prior, report=report, uncertainty=uncertainty, measured=measured)
    return FittedPrior(prior, left_out_CG)


def _leaves_settings_out(data: SettingData) -> bool:
    """Whether each setting is held out whole, as where predictions are for contexts that training never sees."""
    pairs = np.unique(np.stack([data.setting_C, data.group_C]), axis=1)
    return len(np.unique(data.group_C)) > 1 and pairs.shape[1] == len(np.unique(data.setting_C))


def _kept(slope: float) -> float:
    """Factor on what a perturbation does to its own gene: it is not shrunk with what carries over to other contexts."""
    return max(slope, 1.0)


def _own_targets(data: SettingData, target_SG: np.ndarray) -> np.ndarray:
    """A value of each setting and gene, for the genes that each condition perturbs and 0 elsewhere, (C, G)."""
    plain = data.conditions
    parts = [
        target_part([nodes], plain.column_P, target_SG[setting])
        for nodes, setting in zip(plain.sets, data.setting_C, strict=True)
    ]
    return np.concatenate(parts)


def _target_changes(data: SettingData) -> np.ndarray:
    """Change of each gene by its own perturbation in each setting: a type's share of the control mean, (S, G)."""
    as_mean_CG, kind_C = _own_targets(data, data.control_mean_SG), data.setting_C % data.n_kinds
    target_SG = data.control_mean_SG.copy()
    for kind in range(data.n_kinds):
        rows = kind_C == kind
        target_SG[kind :: data.n_kinds] *= share_of_targets(as_mean_CG[rows], data.conditions.delta_CG[rows])
    return target_SG


def _folds(group_C: np.ndarray, most: int) -> Iterator[np.ndarray]:
    """Groups dealt into at most `most` folds; which conditions are out, (C,) bool."""
    groups = np.unique(group_C)
    order = np.random.Generator(np.random.Philox(key=len(groups))).permutation(len(groups))
    n_folds = min(most, len(groups))
    for fold in range(n_folds):
        yield np.isin(group_C, groups[order[fold::n_folds]])


@dataclass(frozen=True)
class SettingData:
    """What the prior of several settings is fitted to.

    Attributes
    ----------
    conditions
        The training conditions; ``control_mean_G`` is not looked at.
    setting_C
        Setting of each condition.
    n_kinds
        Types of perturbation; settings are numbered ``context x n_kinds + kind``.
    group_C
        Conditions of the same number are held out together: a condition in all its contexts, or all of one context.
    """

    conditions: PriorData
    setting_C: np.ndarray
    control_mean_SG: np.ndarray
    n_kinds: int
    group_C: np.ndarray


@dataclass(frozen=True)
class SettingProcess:
    """The Gaussian process of the conditions of several settings: weights over all conditions, then within settings."""

    data: SettingData
    rest_CG: np.ndarray
    process: Process

    @classmethod
    def settled(cls, data: SettingData, rest_CG: np.ndarray) -> SettingProcess:
        """With weights by the evidence of departures from the level of each setting."""
        level_SG = levels(rest_CG, data.setting_C, len(data.control_mean_SG), data.n_kinds)
        return cls(data, rest_CG, Process.settled(data.conditions, rest_CG, data.setting_C, level_SG))

    @cached_property
    def _parts(self) -> tuple[AdditiveCovariance, AdditiveCovariance]:
        """The covariance over all conditions, and that within settings."""
        kernels, plain = self.process.weights.kernels, self.data.conditions
        n = len(kernels) // 2
        shared, own = mixed_covariance(plain, kernels[:n]), mixed_covariance(plain, kernels[n:])
        if not self.process.exact:
            omitted = _features(shared, plain.sets, MOST_FEATURES // 2).omitted
            shared = dataclasses.replace(shared, omitted=omitted)
        return shared, own

    def across(self, out: np.ndarray, rows: np.ndarray, carry: float) -> np.ndarray:
        """Covariance of conditions that are held out with some others, (out, rows).

        A condition whose setting is not among the others takes `carry` times the mean of the settings of its type.
        """
        setting, kind = self.data.setting_C, self.data.setting_C % self.data.n_kinds
        same = (setting[out][:, None] == setting[rows][None, :]).astype(float)
        for row in np.flatnonzero(~np.isin(setting[out], setting[rows])).tolist():
            alike = kind[rows] == kind[out[row]]
            same[row] = carry * alike / max(1, len(np.unique(setting[rows][alike])))
        sets = [[self.data.conditions.sets[row] for row in part.tolist()] for part in (out, rows)]
        shared, own = self._parts
        same *= _covariance(own, *sets)
        same += _covariance(shared, *sets)
        return same

    def solved(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, Spectrum | None]:
        """Level of every setting, and coefficients of the departures, from some of the conditions.

        With their spectrum, None for a single condition, which has no departure.
        """
        setting = self.data.setting_C[rows]
        data = self.data
        level_SG = levels(self.rest_CG[rows], setting, len(data.control_mean_SG), data.n_kinds)
        departure_CG = self.rest_CG[rows] - level_SG[setting]
        if len(rows) < 2:
            return level_SG, np.zeros_like(departure_CG), None
        spectrum = self._spectrum(rows)
        found = solve_in(spectrum, departure_CG, self.process.noise_G)
        return level_SG + found.level_G, found.coefficient_CG, spectrum

    def _spectrum(self, rows: np.ndarray) -> Spectrum:
        process, sets = self.process, [self.data.conditions.sets[row] for row in rows.tolist()]
        unexplained_C, noise_C = process.weights.unexplained(sizes_of(sets)), process.noise_C[rows]
        if process.exact:
            signal_CC = self.across(rows, rows, 0.0)
            signal_CC[np.diag_indices(len(rows))] += unexplained_C
            return Spectrum.of(signal_CC, noise_C)
        return Spectrum.of_features(self._features(rows), unexplained_C, noise_C, process.typical)

    def covariance(self, rows: np.ndarray, carry: float) -> tuple[ConditionCovariance, sparse.csr_matrix]:
        """Covariance of any condition with some of the training conditions, and which columns these are members of."""
        setting_C, n_kinds = self.data.setting_C[rows], self.data.n_kinds
        known, carried_SS = np.unique(setting_C), np.eye(len(self.data.control_mean_SG))
        for setting in np.setdiff1d(np.arange(len(carried_SS)), known).tolist():
            alike = known[known % n_kinds == setting % n_kinds]
            carried_SS[setting] = 0.0
            carried_SS[setting, alike] = carry / max(1, len(alike))
        sets = [self.data.conditions.sets[row] for row in rows.tolist()]
        shared, own = self._parts
        more = {"within": own, "carried_SS": carried_SS, "n_kinds": n_kinds}
        return ConditionCovariance.of(sets, shared, 0.0, self.process.weights, **more)

    def posterior(self, spectrum: Spectrum | None, member_CR: sparse.csr_matrix) -> Posterior | None:
        """Posterior variance of any condition; None without the spectrum of the conditions."""
        return None if spectrum is None else Posterior.of(spectrum, member_CR, self.process.typical)

    def _features(self, rows: np.ndarray) -> Features:
        """Features of what all conditions share, and beside them of each setting's own."""
        shared, own = self._parts
        sets, setting = [self.data.conditions.sets[row] for row in rows.tolist()], self.data.setting_C[rows]
        settings = np.unique(setting).tolist()
        found = _features(shared, sets, MOST_FEATURES // 2)
        blocks, rest_C = [found.feature_CM], found.rest_C.copy()
        for number in settings:
            at = np.flatnonzero(setting == number)
            part = _features(own, [sets[row] for row in at.tolist()], MOST_FEATURES // (2 * len(settings)))
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
        shared, own = self._parts
        plain, setting_C, n_kinds = self.data.conditions, self.data.setting_C, self.data.n_kinds
        nothing_G = np.zeros(coefficient_CG.shape[1])
        more = {"column_P": plain.column_P, "mean_G": nothing_G, "slope_K": np.full(N_KINDS, slope)}
        pooled = GenePrior.of(shared, plain.sets, coefficient_CG, nothing_G, target_G=nothing_G, **more)
        parts = []
        for setting in range(len(target_SG)):
            rows, factor = np.flatnonzero(setting_C == setting), 1.0
            if not len(rows):
                rows = np.flatnonzero(setting_C % n_kinds == setting % n_kinds)
                factor = carry / max(1, len(np.unique(setting_C[rows])))
            sets = [plain.sets[row] for row in rows.tolist()]
            coefficient_RG, target_G = factor * coefficient_CG[rows], target_SG[setting]
            parts.append(
                GenePrior.of(own, sets, coefficient_RG, level_SG[setting], target_G=target_G, **more)
            )
        return ContextPrior(pooled, tuple(parts), n_kinds)

    def report(self) -> dict[str, object]:
        """Weights in plain values."""
        names, kernels = (*NAMES[1:], *self.data.conditions.further), self.process.weights.kernels
        n = len(kernels) // 2
        return {
            "weights": dict(zip(names, kernels[:n], strict=True)),
            "weights_within_settings": dict(zip(names, kernels[n:], strict=True)),
            **self.process.report(),
        }


def _covariance(
    part: AdditiveCovariance, out: Sequence[Sequence[int]], sets: Sequence[Sequence[int]]
) -> np.ndarray:
    """Between two lists of sets, (out, sets)."""
    genes, half = part.genes, part.similar / 2
    own_T = np.full(len(genes.trained_T), part.own)
    if part.omitted is not None:
        own_T -= part.omitted.excess(1.0)
    own_TT = sparse.diags(own_T)
    found = np.asarray((genes.members(out) @ own_TT @ genes.members(sets).T).toarray())
    found += half * np.asarray((genes.members(sets) @ genes.similarity(out).T).T)
    found += half * np.asarray(genes.members(out) @ genes.similarity(sets).T)
    return found + np.outer(part.shared * sizes_of(out), sizes_of(sets))


def _features(part: AdditiveCovariance, sets: Sequence[Sequence[int]], most: int) -> Features:
    """Of some sets; genes that these do not hold are excluded."""
    genes = part.genes.among(sets)
    return gene_features(genes.members(sets), genes, part.shared, part.own, part.similar, most)


def levels(change_CG: np.ndarray, setting_C: np.ndarray, n_settings: int, n_kinds: int = 1) -> np.ndarray:
    """Mean change of each setting's conditions, (S, G).

    A setting without conditions gets the mean of the settings of its type that have any (of all, where there is none),
    one with a single condition lies halfway.
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
