"""Settings without training conditions, of which the control cells are known: of the screen, or given later.

Such a setting takes what all settings share and a part of the mean of what those of its type have of their own; its
factor is that of its type, times the sensitivity of its genes, and a perturbed gene itself loses a share of its control
mean here. How much carries over, slopes and standard deviations are those of contexts held out in turn
(:func:`gears.priors._fit.fit_prior`).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gears.priors._elsewhere import Elsewhere
from gears.priors._head import Head
from gears.priors._prior import GenePrior
from gears.priors._uncertainty import Uncertainty


@dataclass(frozen=True)
class Controls:
    """Control cells of a context: their mean and standard deviation by gene, (G,), and their number."""

    mean_G: np.ndarray
    sd_G: np.ndarray
    n: float


def with_context(prior: GenePrior, controls: Controls) -> GenePrior:
    """The prior with one more context, that of these control cells; its number is that of the contexts so far.

    ValueError for a prior of an earlier version.
    """
    if prior.elsewhere is None:
        msg = "this model was saved by an earlier version, which cannot predict for another line; train it again"
        raise ValueError(msg)
    settings = len(prior.target_SG) + np.arange(prior.n_kinds)
    means = [np.tile(part, (len(settings), 1)) for part in (controls.mean_G, prior.elsewhere.variance_G / controls.n)]
    extended = filled(prior.elsewhere, prior, settings, *means)
    if extended.head is None:
        return extended
    return dataclasses.replace(extended, head=_with_controls(extended.head, settings, controls, prior.trained_settings))


def filled(
    elsewhere: Elsewhere, prior: GenePrior, settings: np.ndarray, control_mean_SG: np.ndarray, control_SG: np.ndarray
) -> GenePrior:
    """The prior with these settings, new ones or such as have no training conditions.

    `control_mean_SG`, `control_SG`: mean of the control cells of each, and its sampling variance.
    """
    kind_S = settings % prior.n_kinds
    more: dict[str, Any] = {
        "target_SG": _put(prior.target_SG, settings, elsewhere.share_K[kind_S, None] * control_mean_SG)
    }
    more["mean_SG"] = _put(prior.mean_SG, settings, prior.mean_SG.mean(axis=0))
    trained = prior.trained_settings
    if prior.within:
        within = list(prior.within)
        within += [within[0]] * (len(more["target_SG"]) - len(within))  # room, filled below
        for setting, kind in zip(settings.tolist(), kind_S.tolist(), strict=True):
            alike = [prior.within[other] for other in trained[trained % prior.n_kinds == kind].tolist()]
            share, first = elsewhere.carry / max(1, len(alike)), within[0]
            within[setting] = dataclasses.replace(
                first,
                shared_G=share * sum((part.shared_G for part in alike), np.zeros_like(first.shared_G)),
                coefficient_TG=share
                * sum((part.coefficient_TG for part in alike), np.zeros_like(first.coefficient_TG)),
            )
        more["within"] = tuple(within)
    if prior.scale is not None:
        scale_S1 = elsewhere.scale_K[kind_S, None]
        scale_SG = scale_S1 if elsewhere.sensitivity is None else scale_S1 * elsewhere.sensitivity(control_mean_SG)
        more["scale"] = _put(prior.scale, settings, scale_SG)
    placed = partial(_placed, elsewhere, prior, settings, control_SG)
    if prior.uncertainty is not None:
        more["uncertainty"] = placed(prior.uncertainty)
        if prior.basis is not None:
            more["basis"] = dataclasses.replace(prior.basis, covariance=more["uncertainty"].covariance)
    if elsewhere.uncertainty is not None:
        elsewhere = dataclasses.replace(elsewhere, uncertainty=placed(elsewhere.uncertainty))
    return dataclasses.replace(prior, elsewhere=elsewhere, **more)


def _placed(
    elsewhere: Elsewhere, prior: GenePrior, settings: np.ndarray, control_SG: np.ndarray, known: Uncertainty
) -> Uncertainty:
    """Standard deviations with these settings."""
    n_kinds, trained, n_known = prior.n_kinds, prior.trained_settings, len(prior.target_SG)
    covariance, kind_S = known.covariance, settings % n_kinds
    if covariance.within is not None:
        n = max(len(covariance.carried_SS), 1 + int(settings.max()))
        carried_SS = np.zeros((n, n))
        carried_SS[: len(covariance.carried_SS), : len(covariance.carried_SS)] = covariance.carried_SS
        # a setting without conditions shows nothing of its own: it takes the mean of those of its type
        carried_SS[settings] = 0.0
        for setting, kind in zip(settings.tolist(), kind_S.tolist(), strict=True):
            alike = trained[trained % n_kinds == kind]
            carried_SS[setting, alike] = elsewhere.carry / max(1, len(alike))
        more: dict[str, Any] = {"carried_SS": carried_SS}
        if covariance.scale_S is not None:
            more["scale_S"] = _put(covariance.scale_S, settings, elsewhere.scale_K[kind_S])
        covariance = dataclasses.replace(covariance, **more)
    control_G = known.control_G
    if control_G is not None:
        control_G = _put(np.broadcast_to(control_G, (n_known, control_SG.shape[1])), settings, control_SG)
    setting_S = None if known.setting_S is None else _put(known.setting_S, settings, 1.0)
    return dataclasses.replace(known, covariance=covariance, control_G=control_G, setting_S=setting_S)


def _put(table: np.ndarray, rows: np.ndarray, values: Any) -> np.ndarray:
    """A copy of a table with these rows, longer where they lie beyond it."""
    longer = np.zeros((max(len(table), 1 + int(rows.max())), *table.shape[1:]))
    longer[: len(table)] = table
    longer[rows] = values
    return longer


def _with_controls(head: Head, settings: np.ndarray, controls: Controls, trained: np.ndarray) -> Head:
    """The head with tables of these settings."""
    inputs = head.inputs
    alike = [trained[trained % inputs.n_kinds == setting % inputs.n_kinds] for setting in settings.tolist()]
    mean_SG = np.array([inputs.mean_SG[rows if len(rows) else trained].mean(axis=0) for rows in alike])
    tables: dict[str, Any] = {
        "control_mean_SG": _put(inputs.control_mean_SG, settings, controls.mean_G),
        "control_sd_SG": _put(inputs.control_sd_SG, settings, controls.sd_G),
        "mean_SG": _put(inputs.mean_SG, settings, mean_SG),
    }
    return dataclasses.replace(head, inputs=dataclasses.replace(inputs, **tables))
