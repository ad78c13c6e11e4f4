"""Fit the prior of a screen with contexts: one Gaussian process over all units, shared and own parts by evidence."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from gears.priors.context_process import UnitData, UnitProcess
from gears.priors.fit import SLOPES, Criterion, FittedPrior
from gears.priors.gene_prior import target_part

MOST_FOLDS = 10
FEW_FOLDS = 3  # of very many units, which fewer folds predict as well
CARRIES = (1.0, 0.0)
FAR_SLOPES = (0.25, 0.5, 0.75, 0.9)
"""Slopes that are tried besides for contexts that training never sees: little carries over to them."""
_LEAST_TARGETS = 3
_MEAN_MARGIN = 0.02  # that the criterion must gain before the means of the settings alone are taken


def fit_context_prior(data: UnitData, criterion: Criterion, judged: np.ndarray | None = None) -> FittedPrior:
    """Fit by evidence around a level of each setting.

    Every covariance of departures from the level (see :data:`gears.priors.kernels.NAMES`) counts once over
    all units and once within settings: how much a gene does alike in all contexts is found, not assumed. `criterion`
    chooses, on predictions of groups that were left out whole, the slope, whether the levels alone are better, and
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
    """Whether each setting is left out whole, as where predictions are for contexts that training never sees."""
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
