"""Fit the prior to the training conditions of a screen with one setting."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import sparse

from gears.evaluation.interactions import FEWEST_COMBINATIONS
from gears.files.mapped import row_blocks
from gears.graphs.similarities import PriorInputs
from gears.priors.calibration import LeftOut, fit_uncertainty
from gears.priors.evidence import Weights, sample, settle_weights
from gears.priors.kernels import (
    KINDS,
    MOST_EXACT,
    N_KINDS,
    NAMES,
    NEW_KINDS,
    NEW_ONE,
    NEW_SEVERAL,
    AdditiveCovariance,
    GeneSimilarity,
    Similarity,
    gene_features,
    kinds_of_sets,
    mixed,
    sizes_of,
    specific_covariance,
    training_kernels,
)
from gears.priors.magnitude import fit_magnitude
from gears.priors.measured import Measured
from gears.priors.posterior import ConditionCovariance, Posterior, left_out_variance
from gears.priors.prior import GenePrior, Prior, target_part
from gears.priors.regression import Spectrum, solve_in
from gears.priors.uncertainty import Uncertainty

SLOPES = (1.0, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.2)
"""Factors on predictions that are tried; 1 where held-out predictions do not show that another is better."""
_LEAST_TARGETS = 3
MEAN_MARGIN = 0.02  # that the criterion must gain before means alone are taken
_FEWEST_OF_KIND = 5  # held-out conditions that decide about the unmeasured ones of their kind
_FEW_OF_KIND = 8  # up to so many, a gain counts minus its standard error; of more, minus a smaller part of it

Criterion = Callable[[np.ndarray], np.ndarray]
"""Error of each of some held-out predictions, (U, G) to (U,); lower is better, and only the mean counts."""

# Conditions from which on shrinking what they share is tried: fewer do not tell what it does.
_SHRUNK_LEVEL = 15
_NOISE_FLOOR = 1e-3
DEPARTURE_SHARE = 0.15
"""Variance of the departure of several genes from the sum of their effects, as a share of that of the sum, as long as
training has no combinations. Changes of Norman's pairs have a cosine of 0.93 with the sum, and 1 - 0.93^2 = 0.14."""
_SHARE_COUNTS_AS = 4.0  # combinations, where training has fewer


@dataclass(frozen=True)
class FittedPrior:
    """A prior, what it predicts for each training condition without that condition, (C, G), and what it was made of."""

    prior: Prior
    left_out_CG: np.ndarray
    inputs: PriorInputs = field(default_factory=PriorInputs)


def fit_prior(data: PriorData, criterion: Criterion, judged: np.ndarray | None = None) -> FittedPrior:
    """Fit by evidence, then choose factor and slope by predictions of held-out conditions.

    Parameters
    ----------
    criterion
        Error of held-out predictions. Its mean decides whether departures from additivity are predicted; by kind of
        condition (:data:`gears.priors.kernels.KINDS`) it decides whether the mean alone is better, and the slope.
    judged
        Rows of the conditions whose predictions `criterion` takes; all by default.
    """
    share = share_of_targets(target_part(data.sets, data.column_P, data.control_mean_G), data.delta_CG)
    target_G = share * data.control_mean_G
    rest_CG = data.delta_CG - target_part(data.sets, data.column_P, target_G)
    if len(data.sets) < 2 or not rest_CG.any():
        return _mean_only(data, target_G)
    process = Process.settled(data, rest_CG)
    covariance = mixed_covariance(data, process.weights.kernels[1:])
    candidates: list[_Candidate] = []
    for free_level in (False, True) if process.exact and len(data.sets) >= _SHRUNK_LEVEL else (True,):
        plain = _additive(data, rest_CG, process, covariance, target_G, free_level=free_level)
        candidates.append(plain)
        found = fit_magnitude(data.sets, rest_CG, plain.summed_CG, plain.prior.genes)
        if found is not None:
            magnitude, factor_C = found
            changed = dataclasses.replace(plain.prior, magnitude=magnitude)
            candidates.append(dataclasses.replace(plain, prior=changed, factor_C=factor_C))
    mean_CG = mean_of_others(rest_CG)
    choice = _choose(candidates, mean_CG, data, target_G, criterion, judged)
    chosen = candidates[choice.place]
    left_out_CG = np.empty_like(rest_CG)
    for block in row_blocks(*left_out_CG.shape):
        rows = np.arange(block.start, block.stop)
        left_out_CG[block] = choice.left_out(chosen, mean_CG, data, target_G, rows)
    uncertainty, measured = _uncertainty(data, process, chosen, choice, left_out_CG, target_G)
    report = {
        "kind": "additive Gaussian process",
        "conditions": len(data.sets),
        "weights": dict(zip((*NAMES, *data.further), process.weights.kernels, strict=True)),
        **process.report(),
        "factor": chosen.prior.magnitude is not None,
        "shrunk_level": chosen.spectrum.level is not None,
        **choice.report(),
        "sd": uncertainty.report(),
    }
    prior = dataclasses.replace(
        chosen.prior, slope_K=choice.slope_K, mean_only_K=choice.mean_only_K, uncertainty=uncertainty,
        report=report, measured=measured,
    )  # fmt: skip
    return FittedPrior(prior, left_out_CG)


@dataclass(frozen=True)
class _Candidate:
    """A prior without its slopes, and what it predicts for held-out conditions, without targets.

    Attributes
    ----------
    summed_CG
        Predictions of the training conditions from the others, without factor.
    factor_C
        Factor on the former; None for 1.
    """

    prior: GenePrior
    summed_CG: np.ndarray
    covariance: AdditiveCovariance
    spectrum: Spectrum
    factor_C: np.ndarray | None = None

    def left_out(self, rows: np.ndarray) -> np.ndarray:
        """Predictions of some conditions from the others."""
        summed_RG = self.summed_CG[rows]
        return summed_RG if self.factor_C is None else summed_RG * self.factor_C[rows][:, None]


@dataclass(frozen=True)
class _Choice:
    """Which candidate is taken, and by kind of condition its slope and whether the mean alone is better.

    Attributes
    ----------
    kind_C
        Kind of each training condition when it is held out.
    slope_K, mean_only_K
        By kind; see :class:`gears.priors.GenePrior`.
    value
        Mean of the criterion.
    """

    place: int
    kind_C: np.ndarray
    slope_K: np.ndarray
    mean_only_K: np.ndarray
    value: float

    def left_out(
        self, chosen: _Candidate, mean_CG: np.ndarray, data: PriorData, target_G: np.ndarray, rows: np.ndarray
    ) -> np.ndarray:
        """Predicted changes of some training conditions from the others."""
        kind_R = self.kind_C[rows]
        rest_RG = np.where(self.mean_only_K[kind_R, None], mean_CG[rows], chosen.left_out(rows))
        return self.slope_K[kind_R, None] * (rest_RG + _targets(data, target_G, rows))

    def report(self) -> dict[str, Any]:
        """The choices that concern a training condition when it is held out, in plain values."""
        kinds = {name: place for place, name in enumerate(KINDS) if place in self.kind_C}
        return {
            "mean_only": [name for name, place in kinds.items() if self.mean_only_K[place]],
            "slope": {name: float(self.slope_K[place]) for name, place in kinds.items()},
            "criterion": self.value,
        }


def _targets(data: PriorData, target_G: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Changes of perturbed genes themselves under some of the training conditions, (R, G)."""
    return target_part([data.sets[row] for row in rows.tolist()], data.column_P, target_G)


def _choose(
    candidates: Sequence[_Candidate],
    mean_CG: np.ndarray,
    data: PriorData,
    target_G: np.ndarray,
    criterion: Criterion,
    judged: np.ndarray | None,
) -> _Choice:
    """The candidate of least criterion, of equal ones the first, each with its own slopes and means."""
    rows = np.arange(len(data.sets)) if judged is None else judged
    kind_C = kinds_when_left_out(data, np.arange(len(data.sets)))
    target_RG = _targets(data, target_G, rows)

    def errors(left_out_RG: np.ndarray) -> np.ndarray:
        return np.stack([criterion(slope * (left_out_RG + target_RG)) for slope in SLOPES])

    mean_SR = errors(mean_CG[rows])
    sums = [errors(candidate.left_out(rows)) for candidate in candidates]
    # one slope for all kinds: the many choices by kind would favour a candidate by chance
    place = min(range(len(candidates)), key=lambda one: (round(float(sums[one].mean(axis=1).min()), 9), one))
    sum_SR, slope_K, mean_only_K, total = sums[place], np.ones(N_KINDS), np.zeros(N_KINDS, dtype=bool), 0.0
    for kind in np.unique(kind_C[rows]).tolist():
        at = np.flatnonzero(kind_C[rows] == kind)
        best, of_mean = _best_slope(sum_SR[:, at]), _best_slope(mean_SR[:, at])
        gain_R = sum_SR[best, at] - mean_SR[of_mean, at]
        # a gene that other conditions perturb is known: what they show is given up on good evidence only
        margin = MEAN_MARGIN if kind in NEW_KINDS else max(MEAN_MARGIN, _error_of_mean(gain_R))
        mean_only_K[kind] = len(at) >= min(_FEWEST_OF_KIND, len(rows)) and gain_R.mean() > margin
        slope_K[kind] = SLOPES[of_mean if mean_only_K[kind] else best]
        total += float((mean_SR[of_mean, at] if mean_only_K[kind] else sum_SR[best, at]).sum())
    if not (kind_C[rows] == NEW_SEVERAL).any():  # what is found for one new gene holds for several
        slope_K[NEW_SEVERAL], mean_only_K[NEW_SEVERAL] = slope_K[NEW_ONE], mean_only_K[NEW_ONE]
    return _Choice(place, kind_C, slope_K, mean_only_K, total / len(rows))


def _best_slope(error_SR: np.ndarray) -> int:
    """Place of the best slope; of few conditions 1, unless another gains more than the standard error of its gain."""
    if error_SR.shape[1] < 2:
        return 0
    gain_SR, caution = error_SR[0] - error_SR, min(1.0, _FEW_OF_KIND / error_SR.shape[1])
    sure_S = gain_SR.mean(axis=1) - caution * np.array([_error_of_mean(gain_R) for gain_R in gain_SR])
    return int(np.argmax(sure_S))


def _error_of_mean(value_R: np.ndarray) -> float:
    """Standard error of the mean of some values, infinite for one."""
    return float(value_R.std(ddof=1) / np.sqrt(len(value_R))) if len(value_R) > 1 else math.inf


def mean_of_others(values_CG: np.ndarray) -> np.ndarray:
    """Mean over the other rows, for each row (C, G); of a single row itself."""
    if len(values_CG) < 2:
        return values_CG
    return np.asarray((values_CG.sum(axis=0) - values_CG) / (len(values_CG) - 1))


def share_of_targets(as_mean_CG: np.ndarray, delta_CG: np.ndarray) -> float:
    """Share of its control mean by which a gene changes when it is perturbed itself, shrunk.

    Zero with fewer than three perturbed genes that are measured.
    `as_mean_CG` is the control mean of the genes that each condition perturbs, 0 elsewhere.
    """
    at = as_mean_CG != 0
    if at.sum() < _LEAST_TARGETS:
        return 0.0
    squares = float((as_mean_CG[at] ** 2).sum())
    return float((as_mean_CG[at] * delta_CG[at]).sum()) / (squares * (1 + 1 / at.sum()))


def _mean_only(data: PriorData, target_G: np.ndarray) -> FittedPrior:
    """With a single condition, or no change at all: its change halved, for everything but itself."""
    shape = (len(data.genes.trained_T), data.delta_CG.shape[1])
    zero_G, (noise_C, noise_G) = np.zeros(shape[1]), data.sampling_noise()
    mean_G = 0.5 * data.delta_CG.mean(axis=0) if len(data.sets) else zero_G
    report = {"kind": "mean of one condition", "conditions": len(data.sets), "slope": {}, "factor": False}
    size_C, of_noise_C = (data.delta_CG**2).sum(axis=1), noise_C * noise_G.sum()
    share_C = 1 - of_noise_C / np.maximum(np.maximum(size_C, of_noise_C), np.finfo(float).tiny)
    change_CG = (share_C[:, None] * data.delta_CG).astype(np.float32)
    measured = Measured(data.sets, change_CG, size_C / shape[1], noise_C, noise_G)
    prior = GenePrior(
        data.genes, mean_G, zero_G, 0.0, 0.0, np.zeros(shape), data.column_P, zero_G, mean_G, report=report,
        measured=measured,
    )  # fmt: skip
    return FittedPrior(prior, np.zeros_like(data.delta_CG))


def mixed_covariance(data: PriorData, weights: Sequence[float]) -> AdditiveCovariance:
    """The covariance with the weights of the kernels beside the offset (:data:`gears.priors.kernels.NAMES`)."""
    shared, own, *each = weights
    return AdditiveCovariance(
        mixed((data.genes, *data.further.values()), each), shared, own, float(sum(each))
    )


@dataclass(frozen=True)
class Process:
    """The Gaussian process of some conditions: weights of its covariances by their evidence, and the noise.

    Attributes
    ----------
    weights
        Of the covariances: without settings of all kernels; with settings of every kernel but the offset over all
        conditions, then of each within settings.
    noise_C, noise_G
        Sampling variance of each condition and gene is the product of these.
    typical
        Size of `noise_G`.
    """

    weights: Weights
    noise_C: np.ndarray
    noise_G: np.ndarray
    typical: float

    @classmethod
    def settled(
        cls,
        data: PriorData,
        rest_CG: np.ndarray,
        setting_C: np.ndarray | None = None,
        level_SG: np.ndarray | None = None,
    ) -> Process:
        """With weights by the evidence of the conditions (a fixed sample of many).

        `setting_C` is the setting of each condition, `level_SG` the level of each setting that changes depart from.
        """
        noise_C, noise_G = data.sampling_noise()
        size = float(noise_G.mean()) or _NOISE_FLOOR * float((rest_CG**2).mean()) or 1.0
        rows = sample(len(rest_CG))
        sets, departure_CG = [data.sets[row] for row in rows.tolist()], rest_CG[rows]
        kernels = training_kernels(
            sets, data.genes.among(sets), *(part.among(sets) for part in data.further.values())
        )
        further = list(range(len(kernels) - len(data.further), len(kernels)))
        if setting_C is not None and level_SG is not None:  # instead of the offset
            departure_CG = departure_CG - level_SG[setting_C[rows]]
            same_CC = setting_C[rows][:, None] == setting_C[rows][None, :]
            kernels = [*kernels[1:], *(kernel * same_CC for kernel in kernels[1:])]
            further = [place - 1 + shift for shift in (0, len(kernels) // 2) for place in further]
        if not departure_CG.any():
            departure_CG = np.full_like(departure_CG, np.sqrt(size))
        weights = settle_weights(departure_CG, kernels, size * noise_C[rows], sizes_of(sets), further)
        weights = _with_departures(
            weights, sizes_of(sets), sum(weights.kernels[1:] if setting_C is None else weights.kernels)
        )
        noise_G = np.maximum(weights.noise * noise_G, _NOISE_FLOOR * size)
        return cls(weights, noise_C, noise_G, weights.noise * size)

    @property
    def exact(self) -> bool:
        """Whether all pairs of conditions are looked at; features of genes replace them for very many conditions."""
        return len(self.noise_C) <= MOST_EXACT

    def report(self) -> dict[str, Any]:
        """Noise and unexplained variances in plain values."""
        return {
            "exact": self.exact,
            "noise": self.weights.noise,
            "unexplained": self.weights.nugget,
            "unexplained_several_genes": self.weights.multiple,
        }


def _with_departures(weights: Weights, size_C: np.ndarray, gene: float) -> Weights:
    """The weights with a variance for departures of combinations, of which training has none or few.

    `gene` is the variance of a single gene's effects.
    """
    n = int((size_C > 1).sum())
    if n >= FEWEST_COMBINATIONS or n == len(size_C):
        return weights
    variance = n * weights.multiple + _SHARE_COUNTS_AS * DEPARTURE_SHARE * 2 * gene
    return dataclasses.replace(weights, multiple=variance / (n + _SHARE_COUNTS_AS))


def _additive(
    data: PriorData,
    rest_CG: np.ndarray,
    process: Process,
    part: AdditiveCovariance,
    target_G: np.ndarray,
    *,
    free_level: bool,
) -> _Candidate:
    """Sum of genes' effects without a factor."""
    sets, noise_C = data.sets, process.noise_C
    unexplained_C = process.weights.unexplained(sizes_of(sets))
    if process.exact:
        signal_CC = specific_covariance(sets, part.genes, part.shared, part.own, part.similar)
        signal_CC[np.diag_indices(len(signal_CC))] += unexplained_C
        spectrum = Spectrum.of(signal_CC, noise_C, None if free_level else process.weights.kernels[0])
    else:
        features = gene_features(part.genes.members(sets), part.genes, part.shared, part.own, part.similar)
        spectrum = Spectrum.of_features(features, unexplained_C, noise_C, process.typical)
        part = dataclasses.replace(part, omitted=features.omitted)
    found = solve_in(spectrum, rest_CG, process.noise_G)
    more = {"column_P": data.column_P, "target_G": target_G, "mean_G": rest_CG.mean(axis=0)}
    prior = GenePrior.of(part, sets, found.coefficient_CG, found.level_G, **more)
    return _Candidate(prior, found.left_out_CG, part, spectrum)


def _uncertainty(
    data: PriorData,
    process: Process,
    chosen: _Candidate,
    choice: _Choice,
    left_out_CG: np.ndarray,
    target_G: np.ndarray,
) -> tuple[Uncertainty, Measured]:
    """Of the chosen candidate, by what it predicts for training conditions without themselves; and these themselves."""
    covariance, member_CR = ConditionCovariance.of(
        data.sets, chosen.covariance, chosen.spectrum.level or 0.0, process.weights
    )
    posterior = Posterior.of(chosen.spectrum, member_CR, process.typical)
    variance_C = left_out_variance(chosen.spectrum, process.noise_C, process.typical)

    def own(rows: np.ndarray) -> np.ndarray:
        return choice.slope_K[choice.kind_C[rows], None] * _targets(data, target_G, rows)

    unseen_C = unseen_when_left_out(data, np.arange(len(data.sets)))
    left_out = LeftOut(data, left_out_CG, own, variance_C, unseen_C)
    uncertainty = fit_uncertainty(left_out, covariance, posterior)
    return uncertainty, measured_of(left_out, uncertainty, (process.noise_C, process.noise_G))


def measured_of(
    left_out: LeftOut, uncertainty: Uncertainty, noise: tuple[np.ndarray, np.ndarray]
) -> Measured:
    """The training conditions, from their predictions without themselves and the sampling noise (C,), (G,)."""
    data, variance_C = left_out.data, np.empty(len(left_out.variance_C))

    def sd_of(rows: np.ndarray) -> np.ndarray:
        parts = ([data.sets[row] for row in rows.tolist()], left_out.change_CG[rows], left_out.own(rows))
        variance_C[rows] = uncertainty.variance(*parts, left_out.variance_C[rows], left_out.unseen_C[rows])
        return uncertainty.spread(*parts, variance_C[rows])

    return Measured.of(data.sets, data.delta_CG, left_out.change_CG, noise, variance_C, sd_of)


def unseen_when_left_out(data: PriorData, group_C: np.ndarray) -> np.ndarray:
    """Whether a gene of each condition is perturbed in no condition of another group, (C,) bool."""
    return np.asarray(np.isin(kinds_when_left_out(data, group_C), NEW_KINDS))


def kinds_when_left_out(data: PriorData, group_C: np.ndarray) -> np.ndarray:
    """Place in :data:`gears.priors.kernels.KINDS` of each condition, predicted from those of other groups, (C,)."""
    member_CT = data.genes.members(data.sets)
    group_CC = sparse.csr_matrix((np.ones(len(group_C)), (group_C, np.arange(len(group_C)))))
    n_groups_T = (group_CC @ member_CT).getnnz(axis=0)
    return kinds_of_sets(np.asarray(member_CT @ (n_groups_T > 1)), sizes_of(data.sets))


@dataclass(frozen=True)
class PriorData:
    """What the prior is fitted to: the training conditions, without the control.

    Attributes
    ----------
    sets
        Perturbation-graph nodes of each of the C conditions.
    delta_CG
        Their mean expression minus the control mean, float64.
    variance_G
        Variance of a cell's expression within a condition, pooled.
    n_C
        Cells of each condition.
    column_P
        Column of each node among the measured genes, -1 where it is not measured.
    further
        More similarities by name, to the same trained nodes.
    n_control
        Control cells; infinite where their mean is exact.
    """

    sets: tuple[tuple[int, ...], ...]
    delta_CG: np.ndarray
    variance_G: np.ndarray
    n_C: np.ndarray
    control_mean_G: np.ndarray
    column_P: np.ndarray
    genes: GeneSimilarity
    further: Mapping[str, Similarity] = field(default_factory=dict)
    n_control: float = math.inf

    def __post_init__(self) -> None:
        n_conditions, n_genes = self.delta_CG.shape
        for name, length in (("sets", n_conditions), ("n_C", n_conditions), ("variance_G", n_genes)):
            if len(getattr(self, name)) != length:
                msg = f"{name} has {len(getattr(self, name))} entries; the changes are {self.delta_CG.shape}"
                raise ValueError(msg)
        if any(not nodes for nodes in self.sets):
            msg = "the prior is fitted to perturbed conditions; leave the control out"
            raise ValueError(msg)

    def sampling_noise(self) -> tuple[np.ndarray, np.ndarray]:
        """Sampling variance of every condition and gene as a product: (C,), around 1, and (G,)."""
        typical = 1 / float((1 / self.n_C).mean())
        return typical / self.n_C, self.variance_G / typical
