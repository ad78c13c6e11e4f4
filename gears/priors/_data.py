"""What the prior is fitted to: the training conditions of one setting or several."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from gears.priors._kernels import NAMES, GeneSimilarity, Similarity, settings_of

if TYPE_CHECKING:
    from gears.graphs._effects import NodeEffects


Criterion = Callable[[np.ndarray], np.ndarray]
"""Error of each of some held-out predictions, (U, G) to (U,), or E parts of it that are added, (E, U), first its size.
Lower is better, and only the mean counts."""


def errors_at_slopes(
    criterion: Criterion,
    slope_S: np.ndarray,
    change_UG: np.ndarray,
    of_target_S: np.ndarray,
    target_UG: np.ndarray,
) -> np.ndarray:
    """Criterion of ``slope change + of_target target`` at each of S slopes, (S, E, U); by its own faster way if any."""
    if (at_slopes := getattr(criterion, "at_slopes", None)) is not None:
        return np.asarray(at_slopes(slope_S, change_UG, of_target_S, target_UG))
    each = zip(slope_S.tolist(), of_target_S.tolist(), strict=True)
    return np.stack([np.atleast_2d(criterion(slope * change_UG + factor * target_UG)) for slope, factor in each])


@dataclass(frozen=True)
class PriorData:
    """What the prior is fitted to: the training conditions, without the control."""

    sets: tuple[tuple[int, ...], ...]
    """Perturbation-graph nodes of each of the C conditions, with context and type where the screen has several
    (:class:`gears.conditions.NodeSet`)."""
    delta_CG: np.ndarray  # their mean expression minus the control mean of their setting, float64
    variance_G: np.ndarray  # variance of a cell's expression within a condition, pooled
    n_C: np.ndarray  # cells that each change is as exact as
    control_mean_SG: np.ndarray  # control mean of each setting; (G,) for one
    column_P: np.ndarray  # column of each node among the measured genes, -1 where it is not measured
    genes: GeneSimilarity
    further: Mapping[str, Similarity] = field(default_factory=dict)  # more similarities, to the same trained nodes
    effects: Mapping[str, NodeEffects] = field(default_factory=dict)  # of other screens, by their similarity's name
    n_control: float | np.ndarray = math.inf
    """Control cells, of each setting (S,) where there are several; infinite where their mean is exact."""
    groups: np.ndarray | None = None
    """Conditions of the same number are held out together; None where each is by itself."""
    n_kinds: int = 1  # types of perturbation; settings are numbered ``context x n_kinds + kind``
    sign_K: tuple[float, ...] = (1.0,)  # sign that the changes of each type are expected to have
    is_measured_SG: np.ndarray | None = None  # which genes each setting measures; None where all measure all

    def __post_init__(self) -> None:
        object.__setattr__(self, "control_mean_SG", np.atleast_2d(self.control_mean_SG))
        n_conditions, n_genes = self.delta_CG.shape
        for name, length in (("sets", n_conditions), ("n_C", n_conditions), ("variance_G", n_genes)):
            if len(getattr(self, name)) != length:
                msg = f"{name} has {len(getattr(self, name))} entries; the changes are {self.delta_CG.shape}"
                raise ValueError(msg)
        if any(not nodes for nodes in self.sets):
            msg = "the prior is fitted to perturbed conditions; leave the control out"
            raise ValueError(msg)
        if taken := sorted(set(NAMES) & set(self.further)):
            msg = f"a similarity of genes is named {taken[0]!r}, as a part of the prior is; choose another name"
            raise ValueError(msg)

    @property
    def n_settings(self) -> int:
        """Number of settings, S, with and without training conditions."""
        return len(self.control_mean_SG)

    @property
    def setting_C(self) -> np.ndarray:
        """Setting of each condition."""
        return settings_of(self.sets, self.n_kinds)

    @property
    def context_C(self) -> np.ndarray:
        """Context of each condition, whose types share their control cells."""
        return np.asarray(self.setting_C // self.n_kinds)

    @property
    def group_C(self) -> np.ndarray:
        """What is held out together."""
        return np.arange(len(self.sets)) if self.groups is None else self.groups

    @property
    def holds_settings_out(self) -> bool:
        """Whether each setting is held out whole, as where predictions are for contexts that training never sees."""
        pairs = np.unique(np.stack([self.setting_C, self.group_C]), axis=1)
        n_settings = len(np.unique(self.setting_C))
        return self.n_settings > 1 and len(np.unique(self.group_C)) > 1 and pairs.shape[1] == n_settings

    def control_variance(self) -> np.ndarray:
        """Sampling variance of the control mean, (G,), of several settings (S, G)."""
        if isinstance(self.n_control, np.ndarray):
            return np.outer(1 / self.n_control, self.variance_G)
        return self.variance_G / self.n_control

    def sampling_noise(self) -> tuple[np.ndarray, np.ndarray]:
        """Sampling variance of every condition and gene as a product: (C,), around 1, and (G,)."""
        typical = 1 / float((1 / self.n_C).mean())
        return typical / self.n_C, self.variance_G / typical

    def sets_of(self, rows: np.ndarray) -> list[tuple[int, ...]]:
        """Sets of some conditions."""
        return [self.sets[row] for row in rows.tolist()]
