"""Fit the prior to the training conditions of a screen with one setting."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import sparse

from gears.files.mapped import row_blocks
from gears.priors.calibration import LeftOut, fit_uncertainty
from gears.priors.evidence import Weights, sample, settle_weights
from gears.priors.kernels import (
    MOST_EXACT,
    NAMES,
    AdditiveCovariance,
    GeneSimilarity,
    Similarity,
    gene_features,
    mixed,
    sizes_of,
    specific_covariance,
    training_kernels,
)
from gears.priors.magnitude import fit_magnitude
from gears.priors.posterior import ConditionCovariance, Posterior, left_out_variance
from gears.priors.prior import GenePrior, Prior, target_part
from gears.priors.regression import Spectrum, solve_in
from gears.priors.uncertainty import Uncertainty, condition_variance

SLOPES = (0.8, 0.9, 1.0, 1.1, 1.2)
_LEAST_TARGETS = 3
MEAN_MARGIN = 0.02  # that the criterion must gain before means alone are taken

Criterion = Callable[[np.ndarray], float]

# Conditions from which on shrinking what they share is tried: fewer do not tell what it does.
_SHRUNK_LEVEL = 15
_NOISE_FLOOR = 1e-3


@dataclass(frozen=True)
class FittedPrior:
    """A prior, and what it predicts for each training condition without that condition, (C, G)."""

    prior: Prior
    left_out_CG: np.ndarray


def fit_prior(data: PriorData, criterion: Criterion, judged: np.ndarray | None = None) -> FittedPrior:
    """Fit by evidence, then choose factor and slope by predictions of held-out conditions.

    Parameters
    ----------
    criterion
        Error of held-out predictions, lower is better; decides whether departures from
        additivity are predicted, whether the mean alone is better, and the slope.
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
        plain, summed_CG = _additive(data, rest_CG, process, covariance, target_G, free_level=free_level)
        candidates.append(plain)
        found = fit_magnitude(data.sets, rest_CG, summed_CG, plain.prior.genes)
        if found is not None:
            magnitude, factor_C = found
            changed = dataclasses.replace(plain.prior, magnitude=magnitude)
            candidates.append(dataclasses.replace(plain, prior=changed, factor_C=factor_C))
    mean = _mean_prior(data, rest_CG.mean(axis=0), target_G)
    candidates.append(_Candidate(mean, _means_of_others(rest_CG), covariance, None))
    place, slope, value = _choose(candidates, data, target_G, criterion, judged)
    chosen = candidates[place]
    report = {
        "kind": "additive Gaussian process",
        "conditions": len(data.sets),
        "weights": dict(zip((*NAMES, *data.further), process.weights.kernels, strict=True)),
        **process.report(),
        "factor": chosen.prior.magnitude is not None,
        "mean_only": chosen.mean_only,
        "shrunk_level": chosen.level is not None,
        "slope": slope,
        "criterion": value,
    }
    left_out_CG = np.empty_like(rest_CG)
    for block in row_blocks(*left_out_CG.shape):
        rows = np.arange(block.start, block.stop)
        left_out_CG[block] = slope * chosen.left_out(data, target_G, rows)
    uncertainty = _uncertainty(data, process, chosen, left_out_CG, slope * target_G)
    report["sd"] = uncertainty.report()
    prior = dataclasses.replace(chosen.prior, slope=slope, uncertainty=uncertainty, report=report)
    return FittedPrior(prior, left_out_CG)


@dataclass(frozen=True)
class _Candidate:
    """A prior without its slope, and what it predicts for held-out rows, without target and factor.

    With the covariance beside the offset, and the spectrum of the training conditions; None for their mean.
    """

    prior: GenePrior
    summed: Callable[[np.ndarray], np.ndarray]
    covariance: AdditiveCovariance
    spectrum: Spectrum | None
    factor_C: np.ndarray | None = None

    @property
    def mean_only(self) -> bool:
        """Whether it is the mean of the conditions."""
        return self.spectrum is None

    @property
    def level(self) -> float | None:
        """Variance of a level that is shrunk."""
        return None if self.spectrum is None else self.spectrum.level

    def left_out(self, data: PriorData, target_G: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Predicted changes of some conditions."""
        change_RG = target_part([data.sets[row] for row in rows.tolist()], data.column_P, target_G)
        if self.factor_C is None:
            return change_RG + self.summed(rows)
        return change_RG + self.summed(rows) * self.factor_C[rows][:, None]


def _choose(
    candidates: list[_Candidate],
    data: PriorData,
    target_G: np.ndarray,
    criterion: Criterion,
    judged: np.ndarray | None,
) -> tuple[int, float, float]:
    """Place of the best candidate, its slope and criterion; of equal ones the first."""
    rows = np.arange(len(data.sets)) if judged is None else judged
    tried: dict[tuple[int, float], float] = {}
    for place, candidate in enumerate(candidates):
        left_out_RG = candidate.left_out(data, target_G, rows)
        tried |= {(place, slope): criterion(slope * left_out_RG) for slope in SLOPES}
    place, slope = min(
        tried,
        key=lambda choice: (round(tried[choice] + MEAN_MARGIN * candidates[choice[0]].mean_only, 9), choice),
    )
    return place, slope, tried[place, slope]


def _means_of_others(values_CG: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """:func:`mean_of_others` of some rows, of two or more in all."""
    total_G = values_CG.sum(axis=0)
    return lambda rows: np.asarray((total_G - values_CG[rows]) / (len(values_CG) - 1))


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


def _mean_prior(data: PriorData, mean_G: np.ndarray, target_G: np.ndarray) -> GenePrior:
    """The same for every condition, but for what a perturbation does to its own gene."""
    zero_G, zero_TG = np.zeros_like(mean_G), np.zeros((len(data.genes.trained_T), len(mean_G)))
    return GenePrior(data.genes, mean_G, zero_G, 0.0, 0.0, zero_TG, data.column_P, target_G)


def _mean_only(data: PriorData, target_G: np.ndarray) -> FittedPrior:
    """With a single condition, or no change at all: its change halved, for everything."""
    n_genes = data.delta_CG.shape[1]
    mean_G = 0.5 * data.delta_CG.mean(axis=0) if len(data.sets) else np.zeros(n_genes)
    prior = _mean_prior(data, mean_G, 0 * target_G)
    report = {"kind": "mean of one condition", "conditions": len(data.sets), "slope": 1.0, "factor": False}
    return FittedPrior(dataclasses.replace(prior, report=report), np.zeros_like(data.delta_CG))


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


def _additive(
    data: PriorData,
    rest_CG: np.ndarray,
    process: Process,
    part: AdditiveCovariance,
    target_G: np.ndarray,
    *,
    free_level: bool,
) -> tuple[_Candidate, np.ndarray]:
    """Sum of genes' effects without a factor, and left-one-out predictions of `rest_CG`."""
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
    targets = {"column_P": data.column_P, "target_G": target_G}
    prior = GenePrior.of(part, sets, found.coefficient_CG, found.level_G, **targets)
    return _Candidate(prior, found.left_out_CG.__getitem__, part, spectrum), found.left_out_CG


def _uncertainty(
    data: PriorData, process: Process, chosen: _Candidate, left_out_CG: np.ndarray, own_G: np.ndarray
) -> Uncertainty:
    """Of the chosen candidate, by what it predicts for training conditions without themselves."""
    covariance, member_CR = ConditionCovariance.of(
        data.sets, chosen.covariance, chosen.level or 0.0, process.weights
    )
    posterior = None
    if chosen.spectrum is None:
        variance_C = condition_variance(covariance, None, data.sets)
    else:
        posterior = Posterior.of(chosen.spectrum, member_CR, process.typical)
        variance_C = left_out_variance(chosen.spectrum, process.noise_C, process.typical)

    def own(rows: np.ndarray) -> np.ndarray:
        return target_part([data.sets[row] for row in rows.tolist()], data.column_P, own_G)

    unseen_C = unseen_when_left_out(data, np.arange(len(data.sets)))
    return fit_uncertainty(LeftOut(data, left_out_CG, own, variance_C, unseen_C), covariance, posterior)


def unseen_when_left_out(data: PriorData, group_C: np.ndarray) -> np.ndarray:
    """Whether a gene of each condition is perturbed in no condition of another group, (C,) bool."""
    member_CT = data.genes.members(data.sets)
    group_CC = sparse.csr_matrix((np.ones(len(group_C)), (group_C, np.arange(len(group_C)))))
    n_groups_T = (group_CC @ member_CT).getnnz(axis=0)
    return np.asarray(member_CT @ (n_groups_T == 1) > 0)


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
