"""Fit the prior to the training conditions of a screen."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gears.priors.amplitudes import solve
from gears.priors.context_prior import Prior
from gears.priors.evidence import Weights, sample, settle_weights
from gears.priors.gene_prior import GenePrior, target_part
from gears.priors.kernels import (
    NAMES,
    GeneSimilarity,
    mixed,
    sizes_of,
    specific_covariance,
    training_kernels,
)
from gears.priors.magnitude import fit_magnitude

SLOPES = (0.975, 1.0, 1.1, 1.2, 1.3)
_LEAST_TARGETS = 3
# Conditions from which on shrinking what they share is tried: fewer do not tell what it does.
_SHRUNK_LEVEL = 15
_MEAN_MARGIN = 0.02  # that the criterion must gain before the mean alone is taken
_NOISE_FLOOR = 1e-3

Criterion = Callable[[np.ndarray], float]


@dataclass(frozen=True)
class PriorData:
    """What the prior is fitted to: the training conditions, control left out.

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
    control_mean_G
        Mean of the control cells.
    column_P
        Column of each node among the measured genes, -1 where it is not measured.
    genes
        Similarity of nodes.
    further
        More similarities, to the same trained nodes.
    """

    sets: tuple[tuple[int, ...], ...]
    delta_CG: np.ndarray
    variance_G: np.ndarray
    n_C: np.ndarray
    control_mean_G: np.ndarray
    column_P: np.ndarray
    genes: GeneSimilarity
    further: tuple[GeneSimilarity, ...] = ()

    def __post_init__(self) -> None:
        n_conditions, n_genes = self.delta_CG.shape
        for name, length in (("sets", n_conditions), ("n_C", n_conditions), ("variance_G", n_genes)):
            if len(getattr(self, name)) != length:
                msg = f"{name} has {len(getattr(self, name))} entries; the changes are {self.delta_CG.shape}"
                raise ValueError(msg)
        if any(not nodes for nodes in self.sets):
            msg = "the prior is fitted to perturbed conditions; leave the control out"
            raise ValueError(msg)

    def subset(self, rows: list[int]) -> PriorData:
        """Some of the conditions; the variance of a cell stays that of all."""
        sets = tuple(self.sets[row] for row in rows)
        genes, *further = (part.among(sets) for part in (self.genes, *self.further))
        return dataclasses.replace(
            self,
            sets=sets,
            delta_CG=self.delta_CG[rows],
            n_C=self.n_C[rows],
            genes=genes,
            further=tuple(further),
        )


@dataclass(frozen=True)
class FittedPrior:
    """A prior, and what it predicts for each training condition without that condition.

    Attributes
    ----------
    prior
        For any condition.
    left_out_CG
        Changes of the training conditions, each predicted without itself.
    """

    prior: Prior
    left_out_CG: np.ndarray


def fit_prior(data: PriorData, criterion: Criterion) -> FittedPrior:
    """Fit by evidence, then choose factor and slope by predictions of left-out conditions.

    Parameters
    ----------
    data
        The training conditions.
    criterion
        Error of left-out predictions (C, G), lower is better; decides whether departures from
        additivity are predicted, whether the mean alone is better, and the slope.
    """
    target_G = _target_change(data)
    targets_CG = target_part(data.sets, data.column_P, target_G)
    rest_CG = data.delta_CG - targets_CG
    if len(data.sets) < 2 or not rest_CG.any():
        return _mean_only(data, target_G)
    weights = _settled(data, rest_CG)
    part = _sum_of(data, rest_CG, weights)
    candidates: list[tuple[GenePrior, np.ndarray]] = []
    shrunk: list[int] = []
    for free_level in (True,) if len(data.sets) < _SHRUNK_LEVEL else (False, True):
        prior, summed_CG = _fit_sum(data, rest_CG, target_G, part, free_level=free_level)
        candidates.append((prior, summed_CG))
        found = fit_magnitude(data.sets, rest_CG, summed_CG, prior.genes)
        if found is not None:
            magnitude, factor_C = found
            candidates.append(
                (dataclasses.replace(prior, magnitude=magnitude), summed_CG * factor_C[:, None])
            )
        shrunk += [] if free_level else range(len(candidates))
    candidates.append((_mean_prior(data, rest_CG.mean(axis=0), target_G), mean_of_others(rest_CG)))
    tried = {
        (place, slope): criterion(slope * (left_out_CG + targets_CG))
        for place, (_, left_out_CG) in enumerate(candidates)
        for slope in SLOPES
    }
    mean = len(candidates) - 1
    place, slope = min(
        tried, key=lambda choice: (round(tried[choice] + _MEAN_MARGIN * (choice[0] == mean), 9), choice)
    )
    prior, left_out_CG = candidates[place]
    report = {
        "kind": "additive Gaussian process",
        "conditions": len(data.sets),
        "weights": dict(zip(NAMES, weights.kernels, strict=False)),
        "noise": weights.noise,
        "unexplained": weights.nugget,
        "unexplained_several_genes": weights.multiple,
        "factor": prior.magnitude is not None,
        "mean_only": place == mean,
        "shrunk_level": place in shrunk,
        "slope": slope,
        "criterion": tried[place, slope],
    }
    return FittedPrior(
        dataclasses.replace(prior, slope=slope, report=report), slope * (left_out_CG + targets_CG)
    )


def mean_of_others(values_CG: np.ndarray) -> np.ndarray:
    """Mean over the other rows, for each row (C, G); of a single row itself."""
    if len(values_CG) < 2:
        return values_CG
    return np.asarray((values_CG.sum(axis=0) - values_CG) / (len(values_CG) - 1))


def _noise(data: PriorData, rest_CG: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Sampling variance as factors of conditions (C,) and genes (G,), and the latter's typical size."""
    typical = 1 / float((1 / data.n_C).mean())
    noise_G = data.variance_G / typical
    size = float(noise_G.mean()) or _NOISE_FLOOR * float((rest_CG**2).mean())
    return typical / data.n_C, noise_G, size


def _settled(data: PriorData, rest_CG: np.ndarray) -> Weights:
    """Weights of the additive part's kernels by evidence."""
    noise_C, _, size = _noise(data, rest_CG)
    rows = sample(len(rest_CG))
    sets = [data.sets[row] for row in rows]
    kernels = training_kernels(sets, data.genes, *data.further)
    return settle_weights(rest_CG[rows], kernels, size * noise_C[rows], sizes_of(sets))


@dataclass(frozen=True)
class _Sum:
    """What the additive part is made of, whether its level is shrunk or free."""

    genes: GeneSimilarity
    offset: float
    shared: float
    own: float
    similar: float
    signal_CC: np.ndarray
    noise_C: np.ndarray
    noise_G: np.ndarray


def _sum_of(data: PriorData, rest_CG: np.ndarray, weights: Weights) -> _Sum:
    noise_C, noise_G, size = _noise(data, rest_CG)
    offset, shared, own, *each = weights.kernels
    genes, similar = mixed((data.genes, *data.further), each), float(sum(each))
    signal_CC = specific_covariance(data.sets, genes, shared, own, similar)
    signal_CC[np.diag_indices(len(signal_CC))] += weights.unexplained(sizes_of(data.sets))
    noise_G = np.maximum(weights.noise * noise_G, _NOISE_FLOOR * size)
    return _Sum(genes, offset, shared, own, similar, signal_CC, noise_C, noise_G)


def _fit_sum(
    data: PriorData, rest_CG: np.ndarray, target_G: np.ndarray, part: _Sum, *, free_level: bool
) -> tuple[GenePrior, np.ndarray]:
    """The additive part: the prior without factor and slope, and left-one-out predictions."""
    found = solve(rest_CG, part.signal_CC, part.noise_C, part.noise_G, None if free_level else part.offset)
    prior = GenePrior(
        part.genes,
        found.level_G,
        part.shared * (sizes_of(data.sets) @ found.coefficient_CG),
        part.own,
        part.similar,
        part.genes.membership(data.sets).T @ found.coefficient_CG,
        data.column_P,
        target_G,
    )
    return prior, found.left_out_CG


def _target_change(data: PriorData) -> np.ndarray:
    """Change of each gene by its own perturbation: a share of its control mean, shrunk, (G,).

    Zero with fewer than three perturbed genes that are measured.
    """
    as_mean_CG = target_part(data.sets, data.column_P, data.control_mean_G)
    at = as_mean_CG != 0
    if at.sum() < _LEAST_TARGETS:
        return np.zeros_like(data.control_mean_G)
    squares = float((as_mean_CG[at] ** 2).sum())
    share = float((as_mean_CG[at] * data.delta_CG[at]).sum()) / (squares * (1 + 1 / at.sum()))
    return share * data.control_mean_G


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
