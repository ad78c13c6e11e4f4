"""The training conditions of a prior, and the Gaussian process over them in one setting or several.

A *setting* is a context with a type of perturbation. With one, every covariance (:data:`gears.priors._kernels.NAMES`)
counts once, the level is regressed with the effects, and the prediction of each condition from the others follows from
the same decomposition. With several, changes depart from the mean of each setting, and every covariance but the offset
counts over all conditions and again within settings: how much a gene does alike in all of them is found, not assumed.
What is held out together there (:attr:`PriorData.group_C`) is predicted by a regression without it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse

from gears.conditions import FEWEST_COMBINATIONS
from gears.priors._data import PriorData
from gears.priors._evidence import EvidenceWeights, fit_weights, sample
from gears.priors._explain import Basis
from gears.priors._kernels import (
    MOST_EXACT,
    MOST_FEATURES,
    NAMES,
    AdditiveCovariance,
    Features,
    counted,
    gene_features,
    mixed,
    sizes_of,
    specific_covariance,
    training_kernels,
)
from gears.priors._posterior import ConditionCovariance, Posterior, left_out_variance
from gears.priors._prior import Effects
from gears.priors._regression import Spectrum, solve_in
from gears.priors._scales import Sensitivity, scales_of, sensitivity_of, without_sensitivity
from gears.priors._uncertainty import condition_variance
from gears.priors._unmeasured import blocks, over_shared

# Conditions from which on shrinking what they share is tried: fewer do not tell what it does.
_SHRUNK_LEVEL = 15
_NOISE_FLOOR = 1e-3
_RELEASED = 60  # conditions from which on a similarity that the evidence holds back is tried with a weight
_HELD_BACK = 1e-3  # weight of one that is, as a share of the variance of a gene's effects
DEPARTURE_SHARE = 0.15
"""Variance of the departure of several genes from the sum of their effects, as a share of that of the sum, as long as
training has no combinations. Changes of Norman's pairs have a cosine of 0.93 with the sum, and 1 - 0.93^2 = 0.14."""
_SHARE_COUNTS_AS = 4.0  # combinations, where training has fewer
MOST_FOLDS = 10
FEW_FOLDS = 3  # of very many conditions, which fewer folds predict as well
CARRIES = (1.0, 0.0)
"""Factors on the mean of what settings have of their own, for a setting without conditions."""
WITHIN = "within "
"""Begins the names of covariances within settings."""


@dataclass(frozen=True)
class Regression:
    """Effects by one way of regressing, and what it predicts for held-out conditions; both without targets."""

    process: Process
    # level_SG, coefficient_CG: level of each setting, and coefficients of the departures from it
    level_G: np.ndarray
    coefficient_CG: np.ndarray
    # held_out_CG, mean_CG, variance_C: prediction of each condition without its group, the level there, and the
    # variance of the prediction
    held_out_CG: np.ndarray
    mean_CG: np.ndarray
    variance_C: np.ndarray
    held_C: np.ndarray  # share of the error of its context's control mean that the prediction of each condition holds
    overall: AdditiveCovariance  # covariance over all conditions, with what its features omit
    spectrum: Spectrum | None  # of all conditions; None for a single one, which has no departure
    carry: float = CARRIES[0]
    """Factor on the mean of what other settings have of their own, for a setting without conditions."""
    share_MG: np.ndarray | None = None  # posterior weight of each strength for each gene

    @property
    def is_level_shrunk(self) -> bool:
        """Whether the level is shrunk with each gene's strength."""
        return self.spectrum is not None and self.spectrum.level is not None

    def effects(self) -> tuple[Effects, tuple[Effects, ...]]:
        """Effects over all conditions, and those that each setting has besides: none with one setting.

        Those of settings without conditions are 0 (:mod:`gears.priors._elsewhere`).
        """
        data, within = self.process.data, self.process.within
        of = partial(Effects.of, is_level_free=not self.is_level_shrunk)
        overall = of(self.overall, data.sets, self.coefficient_CG, self.level_G)
        if within is None:
            return overall, ()
        setting_C, parts = data.setting_C, []
        for setting in range(data.n_settings):
            rows = np.flatnonzero(setting_C == setting)
            parts.append(of(within, data.sets_of(rows), self.coefficient_CG[rows], np.zeros_like(self.level_G)))
        return overall, tuple(parts)

    def basis(self, covariance: ConditionCovariance) -> Basis | None:
        """What it was made from, to explain predictions; None for one by features, or of a single condition."""
        process = self.process
        if not process.exact or self.share_MG is None:
            return None
        data, weight_of = process.data, process.weights.kernels
        similarities = {NAMES[-1]: data.genes, **data.further}
        weight_2N = np.array([[weight_of.get(part + name, 0.0) for name in similarities] for part in ("", WITHIN)])
        used = sorted({number for row in weight_2N for number in counted(row.tolist())}) or [0]
        used.sort(key=lambda number: -float(weight_2N[:, number].sum()))
        names = tuple(list(similarities)[number] for number in used)
        return Basis(
            covariance, data.sets, process.rest_CG, process.noise_C, process.noise_G, data.n_C, self.share_MG, names,
            weight_2N[:, used], {name: similarities[name].similar_PT for name in names[1:]},
            not self.is_level_shrunk and bool(np.all(sizes_of(data.sets) == 1)),
        )  # fmt: skip

    def certainty(self) -> tuple[ConditionCovariance, Posterior | None]:
        """Covariance of any condition with the training conditions, and what these explain of its variance."""
        process, rows = self.process, np.arange(len(self.coefficient_CG))
        level = 0.0 if self.spectrum is None else self.spectrum.level or 0.0
        covariance, member_CR = process.condition_covariance(self.overall, rows, level, self.carry)
        if self.spectrum is None:
            return covariance, None
        return covariance, process.posterior(self.spectrum, member_CR, rows)


@dataclass(frozen=True)
class Process:
    """The Gaussian process of some conditions: weights of its covariances by their evidence, and the noise."""

    data: PriorData
    rest_CG: np.ndarray  # changes without those of perturbed genes themselves, by the factor of their setting
    weights: EvidenceWeights
    # noise_C, noise_G: sampling variance of each condition and gene is the product of these
    noise_C: np.ndarray
    noise_G: np.ndarray
    typical: float  # size of `noise_G`
    # overall, within: covariance over all conditions, and that within settings; None with one setting
    overall: AdditiveCovariance
    within: AdditiveCovariance | None
    scale_S: np.ndarray  # factor of each setting (:mod:`gears.priors._scales`)
    scale_K: np.ndarray  # factor of a setting of each type that training does not show
    sensitivity: Sensitivity | None = None  # of genes in settings; None where it is 1
    released: str | None = None
    """The further similarity that has a weight although the evidence holds it back, or None."""

    @classmethod
    def tried(cls, data: PriorData, rest_CG: np.ndarray) -> list[Process]:
        """By the evidence, and where that holds similarities back, with the one that would have the largest weight."""
        process = cls.of(data, rest_CG)
        held_back = [name for name in data.further if process.weights.kernels[name] < _HELD_BACK * process.signal]
        if data.n_settings > 1 or len(data.sets) < _RELEASED or not held_back:
            return [process]
        noise = (process.rest_CG, process.noise_C, float(process.noise_G.mean() / process.weights.noise))
        weight_of = _weights(data, *noise, held_back).kernels
        strongest = max(held_back, key=lambda name: weight_of[name])
        released = cls.of(data, rest_CG, _weights(data, *noise, (strongest,)))
        return [process, dataclasses.replace(released, released=strongest)]

    @property
    def signal(self) -> float:
        """Variance of the effects of a single gene."""
        return sum(weight for name, weight in self.weights.kernels.items() if name != "offset")

    @classmethod
    def of(
        cls,
        data: PriorData,
        rest_CG: np.ndarray,
        weights: EvidenceWeights | None = None,
        released: Collection[str] = (),
        start: EvidenceWeights | None = None,
    ) -> Process:
        """With weights by the evidence of the conditions (a fixed sample of many), found from a start."""
        noise_C, noise_G = data.sampling_noise()
        sensitivity = sensitivity_of(data, rest_CG)
        if sensitivity is not None:
            rest_CG = without_sensitivity(data, rest_CG, sensitivity(data.control_mean_SG))
        is_whole = data.is_measured_SG is None
        shared, shared_CN = (data, rest_CG) if is_whole else over_shared(data, rest_CG)
        scale_S, scale_K = scales_of(shared, shared_CN)
        if data.n_settings > 1:
            scale_C = scale_S[data.setting_C]
            rest_CG, noise_C = rest_CG / scale_C[:, None], noise_C / scale_C**2
        size = float(noise_G.mean()) or _NOISE_FLOOR * float((rest_CG**2).mean()) or 1.0
        if weights is None:
            departure_CG = rest_CG if is_whole else over_shared(data, rest_CG)[1]
            weights = _weights(data, departure_CG, noise_C, size, released, start)
        noise_G = np.maximum(weights.noise * noise_G, _NOISE_FLOOR * size)
        overall = _mixed_covariance(data, weights.kernels)
        within = _mixed_covariance(data, weights.kernels, WITHIN) if data.n_settings > 1 else None
        process = cls(
            data, rest_CG, weights, noise_C, noise_G, weights.noise * size, overall, within, scale_S, scale_K,
            sensitivity,
        )  # fmt: skip
        if process.exact or within is None:
            return process
        omitted = _features(overall, data.sets, MOST_FEATURES).omitted
        return dataclasses.replace(process, overall=dataclasses.replace(overall, omitted=omitted))

    def factors(self) -> np.ndarray:
        """Factor on the changes in each setting, (S, 1) or of each gene (S, G)."""
        scale_S1 = self.scale_S[:, None]
        return scale_S1 if self.sensitivity is None else scale_S1 * self.sensitivity(self.data.control_mean_SG)

    @property
    def exact(self) -> bool:
        """Whether all pairs of conditions are looked at; features of genes replace them for very many conditions."""
        return len(self.noise_C) <= MOST_EXACT

    def regressions(self, *, is_level_shrunk: bool | None = None) -> list[Regression]:
        """Ways of regressing, among which held-out predictions choose; the first where they do not tell.

        With one setting a level that is shrunk with each gene's strength, and a free one, or one of them as
        `is_level_shrunk` says. With several, settings without conditions take the mean of what the others have of their
        own, or none of it.
        """
        if self.within is not None:
            return self._by_folds()
        tried = (True, False) if self.exact and len(self.data.sets) >= _SHRUNK_LEVEL else (False,)
        if is_level_shrunk in tried:
            tried = (bool(is_level_shrunk),)
        mean_CG = mean_of_others(self.rest_CG)
        return [self._leave_one_out(mean_CG, free_level=not shrunk) for shrunk in tried]

    def _leave_one_out(self, mean_CG: np.ndarray, *, free_level: bool) -> Regression:
        """With one setting, whose conditions are held out one by one."""
        part, sets, noise_C = self.overall, self.data.sets, self.noise_C
        unexplained_C = self.weights.unexplained(sizes_of(sets))
        if self.exact:
            signal_CC = specific_covariance(sets, part.genes, part.shared, part.own, part.similar)
            signal_CC[np.diag_indices(len(signal_CC))] += unexplained_C
            spectrum = Spectrum.of(signal_CC, noise_C, None if free_level else self.weights.kernels["offset"])
        else:
            features = gene_features(part.genes.members(sets), part.genes, part.shared, part.own, part.similar)
            spectrum = Spectrum.of_features(features, unexplained_C, noise_C, self.typical)
            part = dataclasses.replace(part, omitted=features.omitted)
        solution = solve_in(spectrum, self.rest_CG, self.noise_G)
        return Regression(
            self,
            solution.level_G,
            solution.coefficient_CG,
            solution.left_out_CG,
            mean_CG,
            left_out_variance(spectrum, noise_C, self.typical),
            np.ones(len(noise_C)),
            part,
            spectrum,
            share_MG=solution.share_MG,
        )

    def _by_folds(self) -> list[Regression]:
        """With several settings, by groups of conditions; one regression for each of :data:`CARRIES`.

        Only the first where every fold leaves conditions of each setting, so that nothing is carried.
        """
        data, every = self.data, np.arange(len(self.rest_CG))
        folds = list(_folds(data.group_C, MOST_FOLDS if self.exact else FEW_FOLDS))
        is_carried = any(np.setdiff1d(data.setting_C[out], data.setting_C[~out]).size for out in folds)
        carries = CARRIES if is_carried else CARRIES[:1]
        held_out = {carry: np.zeros_like(self.rest_CG) for carry in carries}
        variance, held = ({carry: np.zeros(len(every)) for carry in carries} for _ in range(2))
        mean_CG = np.zeros_like(self.rest_CG)
        for is_out_C in folds:
            rows, out = np.flatnonzero(~is_out_C), np.flatnonzero(is_out_C)
            level_G, coefficient_RG, _, spectrum = self._solved(rows)
            level = 0.0 if spectrum is None else spectrum.level or 0.0
            posterior = None
            for carry in carries:
                held_out[carry][out], common_OG = self._predicted(out, rows, level_G, coefficient_RG, carry)
                if carry == CARRIES[0]:
                    mean_CG[out] = common_OG
                covariance, member_CR = self.condition_covariance(self.overall, rows, level, carry)
                if posterior is None and spectrum is not None:  # it does not depend on what is carried
                    posterior = self.posterior(spectrum, member_CR, rows)
                variance[carry][out] = condition_variance(covariance, posterior, data.sets_of(out))
                if posterior is not None:
                    held[carry][out] = posterior.held(covariance, data.sets_of(out))
        level_G, coefficient_CG, share_MG, spectrum = self._solved(every)
        factor_CG = self.factors()[data.setting_C]
        mean_CG *= factor_CG
        for held_out_CG in held_out.values():
            held_out_CG *= factor_CG
        return [
            Regression(
                self, level_G, coefficient_CG, held_out[carry], mean_CG, variance[carry], held[carry], self.overall,
                spectrum, carry, share_MG,
            )
            for carry in carries
        ]  # fmt: skip

    def _predicted(
        self, out: np.ndarray, rows: np.ndarray, level_G: np.ndarray, coefficient_RG: np.ndarray, carry: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Changes of held-out conditions from others, and the part that does not depend on their genes, (out, G) each.

        Covariances add up over genes, so effects do, and no table of conditions by conditions is needed.
        """
        assert self.within is not None
        data, setting_R = self.data, self.data.setting_C[rows]
        setting_O = data.setting_C[out]
        change_OG, common_OG = np.empty((2, len(out), len(level_G)))
        carried_SS = self._carried(setting_R, carry)
        overall = Effects.of(self.overall, data.sets_of(rows), coefficient_RG, level_G, is_level_free=False)
        for setting in np.unique(setting_O).tolist():
            weight_R = carried_SS[setting, setting_R]
            used, at = np.flatnonzero(weight_R), np.flatnonzero(setting_O == setting)
            weighed_RG = weight_R[used, None] * coefficient_RG[used]
            none_G, sets = np.zeros_like(level_G), data.sets_of(out[at])
            within = Effects.of(self.within, data.sets_of(rows[used]), weighed_RG, none_G, is_level_free=False)
            change_OG[at] = overall(sets) + within(sets)
            common_OG[at] = overall.common(sets) + within.common(sets)
        return change_OG, common_OG

    def posterior(self, spectrum: Spectrum, member_CR: sparse.csr_matrix, rows: np.ndarray) -> Posterior:
        """What some of the training conditions explain of the variance of any."""
        if self.within is None:
            return Posterior.of(spectrum, member_CR, self.typical)
        data = self.data
        error_CK = np.eye(data.n_settings // data.n_kinds)[data.context_C[rows]]
        error_CK /= self.scale_S[data.setting_C[rows], None]
        return Posterior.of(spectrum, member_CR, self.typical, error_CK)

    def _solved(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, Spectrum | None]:
        """Level of all settings, coefficients of the departures from it, shares of the strengths, and spectrum."""
        rest_RG = self.rest_CG[rows]
        if len(rows) < 2:
            return rest_RG.mean(axis=0) / 2, np.zeros_like(rest_RG), None, None
        spectrum = self._spectrum(rows)
        if self.data.is_measured_SG is None:
            solution = solve_in(spectrum, rest_RG, self.noise_G, left_out=False)
            return solution.level_G, solution.coefficient_CG, solution.share_MG, spectrum
        level_G, coefficient_RG = np.zeros(rest_RG.shape[1]), np.zeros_like(rest_RG)
        for genes, settings in blocks(self.data.is_measured_SG):
            at = np.flatnonzero(settings[self.data.setting_C[rows]])
            if len(at) > 1:  # else nothing tells of these genes
                part = spectrum if len(at) == len(rows) else self._spectrum(rows[at])
                solution = solve_in(part, rest_RG[np.ix_(at, genes)], self.noise_G[genes], left_out=False)
                level_G[genes], coefficient_RG[np.ix_(at, genes)] = solution.level_G, solution.coefficient_CG
        return level_G, coefficient_RG, None, spectrum

    def _spectrum(self, rows: np.ndarray) -> Spectrum:
        """Of some conditions."""
        sets, noise_R = self.data.sets_of(rows), self.noise_C[rows]
        unexplained_R = self.weights.unexplained(sizes_of(sets))
        if not self.exact:
            return Spectrum.of_features(self._features(rows), unexplained_R, noise_R, self.typical)
        assert self.within is not None
        setting_R = self.data.setting_C[rows]
        signal_RR, within_RR = (
            specific_covariance(sets, part.genes, part.shared, part.own, part.similar)
            for part in (self.overall, self.within)
        )
        signal_RR += within_RR * (setting_R[:, None] == setting_R)
        signal_RR[np.diag_indices(len(rows))] += unexplained_R
        return Spectrum.of(signal_RR, noise_R, self.weights.kernels["offset"])

    def _carried(self, setting_R: np.ndarray, carry: float) -> np.ndarray:
        """How much of each setting's own part a condition of any setting takes, (S, S).

        A setting without conditions takes `carry` times the mean of the settings of its type.
        """
        n_kinds, known, carried_SS = self.data.n_kinds, np.unique(setting_R), np.eye(self.data.n_settings)
        for setting in np.setdiff1d(np.arange(len(carried_SS)), known).tolist():
            alike = known[known % n_kinds == setting % n_kinds]
            carried_SS[setting] = 0.0
            carried_SS[setting, alike] = carry / max(1, len(alike))
        return carried_SS

    def condition_covariance(
        self, overall: AdditiveCovariance, rows: np.ndarray, level: float, carry: float
    ) -> tuple[ConditionCovariance, sparse.csr_matrix]:
        """Covariance of any condition with some of the training conditions, and which columns these are members of."""
        more: dict[str, Any] = {}
        if self.within is not None:
            carried_SS = self._carried(self.data.setting_C[rows], carry)
            more = {
                "within": self.within, "carried_SS": carried_SS, "n_kinds": self.data.n_kinds, "scale_S": self.scale_S,
            }  # fmt: skip
        return ConditionCovariance.of(self.data.sets_of(rows), overall, level, self.weights, **more)

    def _features(self, rows: np.ndarray) -> Features:
        """Features of what all conditions share, and beside them of each setting's own."""
        assert self.within is not None
        sets, setting_R = self.data.sets_of(rows), self.data.setting_C[rows]
        settings = np.unique(setting_R).tolist()
        shared = _features(self.overall, sets, MOST_FEATURES)
        blocks, rest_R = [shared.feature_CM], shared.rest_C.copy()
        for setting in settings:
            at = np.flatnonzero(setting_R == setting)
            part = _features(self.within, [sets[row] for row in at.tolist()], MOST_FEATURES // (2 * len(settings)))
            block = np.zeros((len(rows), part.feature_CM.shape[1]))
            block[at] = part.feature_CM
            rest_R[at] += part.rest_C
            blocks.append(block)
        return Features(np.hstack(blocks), rest_R)

    def report(self) -> dict[str, Any]:
        """Weights, noise and unexplained variances in plain values."""
        parts: dict[str, dict[str, float]] = {"weights": {}}
        for name, weight in self.weights.kernels.items():
            part = "weights_within_settings" if name.startswith(WITHIN) else "weights"
            parts.setdefault(part, {})[name.removeprefix(WITHIN)] = weight
        return {
            **parts,
            "exact": self.exact,
            **({"scale": self.scale_S.tolist()} if len(self.scale_S) > 1 else {}),
            **({"released": self.released} if self.released else {}),
            **({} if self.sensitivity is None else {"sensitivity": self.sensitivity.power}),
            "noise": self.weights.noise,
            "unexplained": self.weights.nugget,
            "unexplained_several_genes": self.weights.multiple,
        }


def levels(change_RG: np.ndarray, data: PriorData, rows: np.ndarray | None = None) -> np.ndarray:
    """Mean change of each setting's conditions (those of `rows`; all by default), (S, G).

    A setting without conditions gets the mean of the settings of its type that have any (of all, where there is none),
    one with a single condition lies halfway.
    """
    n_settings, n_kinds = data.n_settings, data.n_kinds
    setting_R = data.setting_C if rows is None else data.setting_C[rows]
    level_SG = np.zeros((n_settings, change_RG.shape[1]))
    n_S = np.bincount(setting_R, minlength=n_settings)
    for setting in np.flatnonzero(n_S):
        level_SG[setting] = change_RG[setting_R == setting].mean(axis=0)
    known = level_SG.copy()
    for setting in np.flatnonzero(n_S < 2):
        alike = (np.arange(n_settings) % n_kinds == setting % n_kinds) & (n_S > 0)
        others = known[alike] if alike.any() else known[n_S > 0]
        if len(others):
            level_SG[setting] = (n_S[setting] * known[setting] + others.mean(axis=0)) / (n_S[setting] + 1)
    return level_SG


def mean_of_others(values_CG: np.ndarray) -> np.ndarray:
    """Mean over the other rows, for each row (C, G); of a single row itself."""
    if len(values_CG) < 2:
        return values_CG
    return np.asarray((values_CG.sum(axis=0) - values_CG) / (len(values_CG) - 1))


def _folds(group_C: np.ndarray, most: int) -> Iterator[np.ndarray]:
    """Groups dealt into at most `most` folds; which conditions are out, (C,) bool."""
    groups = np.unique(group_C)
    order = np.random.Generator(np.random.Philox(key=len(groups))).permutation(len(groups))
    n_folds = min(most, len(groups))
    for fold in range(n_folds):
        yield np.isin(group_C, groups[order[fold::n_folds]])


def _mixed_covariance(data: PriorData, weight_of: Mapping[str, float], prefix: str = "") -> AdditiveCovariance:
    """The covariance with the weights whose names begin so: all similarities in the proportion of theirs."""
    similarities = {"GO": data.genes, **data.further}
    weights = [weight_of[prefix + name] for name in similarities]
    return AdditiveCovariance(
        mixed(tuple(similarities.values()), weights),
        weight_of[prefix + "shared"],
        weight_of[prefix + "own"],
        float(sum(weights)),
    )


def _weights(
    data: PriorData,
    rest_CG: np.ndarray,
    noise_C: np.ndarray,
    size: float,
    released: Collection[str] = (),
    start: EvidenceWeights | None = None,
) -> EvidenceWeights:
    """Weights by the evidence of the conditions (a fixed sample of many).

    `size`: that of the sampling noise, (C,).
    `released`: further similarities whose weight is not drawn to 0.
    """
    rows, further = sample(len(rest_CG)), set(data.further) - set(released)
    sets, departure_CG = data.sets_of(rows), rest_CG[rows]
    kernels = training_kernels(
        sets, data.genes.among(sets), {name: part.among(sets) for name, part in data.further.items()}
    )
    if data.n_settings > 1:
        # what every gene adds within a setting is the setting's level
        setting_R = data.setting_C[rows]
        same_RR = setting_R[:, None] == setting_R[None, :]
        kernels |= {WITHIN + name: kernel * same_RR for name, kernel in kernels.items() if name != "offset"}
        further |= {WITHIN + name for name in data.further}
    if not departure_CG.any():
        # nothing to explain: the evidence of noise alone, since that of zeros has no maximum
        departure_CG = np.full_like(departure_CG, np.sqrt(size))
    weights = fit_weights(departure_CG, kernels, size * noise_C[rows], sizes_of(sets), further, start)
    gene = sum(weight for name, weight in weights.kernels.items() if name != "offset")
    return _with_departures(weights, sizes_of(sets), gene)


def _with_departures(weights: EvidenceWeights, size_C: np.ndarray, gene: float) -> EvidenceWeights:
    """The weights with a variance for departures of combinations, of which training has none or few.

    `gene` is the variance of a single gene's effects.
    """
    n = int((size_C > 1).sum())
    if n >= FEWEST_COMBINATIONS or n == len(size_C):
        return weights
    variance = n * weights.multiple + _SHARE_COUNTS_AS * DEPARTURE_SHARE * 2 * gene
    return dataclasses.replace(weights, multiple=variance / (n + _SHARE_COUNTS_AS))


def _features(part: AdditiveCovariance, sets: Sequence[Sequence[int]], most: int) -> Features:
    """Of some sets; genes that these do not hold are excluded."""
    genes = part.genes.among(sets)
    return gene_features(genes.members(sets), genes, part.shared, part.own, part.similar, most)
