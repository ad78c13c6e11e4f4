"""The prior's prediction of a condition as a sum over training conditions and over the steps after them.

A measured condition is predicted as measured, shrunk by its sampling noise: with f the prediction from the others, each
gene keeps a share of the measured change and takes 1 minus that of f, whose parts are those of the others' regression.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gears.priors._elsewhere import is_elsewhere
from gears.priors._explain import Basis, Functional
from gears.priors._kernels import kinds_of_sets, singles_in
from gears.priors._prior import GenePrior, slopes_of_targets

OFFSET, SHARED, FACTOR, SLOPE, TARGET = "offset", "shared", "factor for several genes", "slope", "on-target"
MEAN = "mean of the training conditions"
OTHERS = "effects of other screens"  # that the weighted sum of training conditions does not hold
STEPS = (OFFSET, SHARED, FACTOR, MEAN, SLOPE, TARGET, OTHERS)
MEASURED = "measured"
"""Link of a condition with its own measurement, and of a single with what it shows beyond the effect of its gene."""


@dataclass(frozen=True)
class Single:
    """A measured single of a combination's gene: what it shows beyond the gene's effect carries over to it."""

    row: int
    share: float  # of what it shows, which a combination in another setting takes
    beyond_G: np.ndarray
    function: Functional  # its predicted sum
    scale_G: np.ndarray


@dataclass(frozen=True)
class Decomposition:
    """Parts of the prior's prediction of one condition, without its head, for all genes."""

    rows_R: np.ndarray  # the training condition of each part
    links: tuple[str, ...]  # what links it: "own", the name of a similarity, or "measured"
    weight_RG: np.ndarray  # weight of its measured change before factor and slope; NaN where there is none
    change_RG: np.ndarray  # what it adds before these by what it shows beyond the mean of its setting's conditions
    steps: dict[str, np.ndarray]  # what the steps of STEPS add, (G,) each
    _basis: Basis
    _function: Functional | None  # None where the mean of the training conditions is predicted
    _mean_function: Functional | None  # of the share of the mean beside it; None for a mean of one setting
    _mean_factor_G: np.ndarray  # of that share, as _factor_G
    _singles: tuple[Single, ...]
    _scale_G: np.ndarray
    _factor_G: np.ndarray  # of factor, slope, and what is not kept of a condition's own measurement
    _own_row: int  # of a measured condition; -1
    _own_removed_G: np.ndarray

    def without(self, rows: Sequence[int]) -> np.ndarray:
        """Change of the prediction without each of some training conditions, (R, G).

        By a fit without it with the same variances, strengths, factor and slope.
        """
        basis, own = self._basis, self._own_row
        others = np.array([row for row in rows if row != own], dtype=np.int64)
        rows_of_basis = others - ((own >= 0) & (others > own))  # it holds the others alone
        change_RG = self._removed(self._function, rows_of_basis)
        for single in self._singles:
            of_single_RG = single.share * single.scale_G * basis.removed(single.function, rows_of_basis)
            of_single_RG[others == single.row] = single.beyond_G
            change_RG -= of_single_RG
        change_RG = self._factor_G * change_RG
        if self._mean_factor_G.any():
            change_RG += self._mean_factor_G * self._removed(self._mean_function, rows_of_basis)
        change_of = dict(zip(others.tolist(), change_RG, strict=True)) | {own: self._own_removed_G}
        return np.array([change_of[row] for row in rows]).reshape(len(rows), len(self._scale_G))

    def _removed(self, function: Functional | None, rows_of_basis: np.ndarray) -> np.ndarray:
        """Change of a linear function, or of the mean of one setting, without each of some conditions, (R, G)."""
        if function is not None:
            return self._scale_G * self._basis.removed(function, rows_of_basis)
        rest_CG = self._basis.rest_CG
        return np.asarray((rest_CG.mean(axis=0) - rest_CG[rows_of_basis]) / max(1, len(rest_CG) - 1))


@dataclass
class _Sum:
    """Parts that are found so far."""

    n_genes: int
    steps: dict[str, np.ndarray] = field(default_factory=dict)
    rows: list[int] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    weights: list[np.ndarray] = field(default_factory=list)
    changes: list[np.ndarray] = field(default_factory=list)

    def add(self, rows: Sequence[int], link: str, weight_RG: np.ndarray, change_RG: np.ndarray) -> None:
        """Parts of training conditions that one link connects."""
        self.rows += rows
        self.links += [link] * len(rows)
        self.weights.append(weight_RG.reshape(-1, self.n_genes))
        self.changes.append(change_RG.reshape(-1, self.n_genes))

    @property
    def change_RG(self) -> np.ndarray:
        return np.concatenate([np.zeros((0, self.n_genes)), *self.changes])

    @property
    def total_G(self) -> np.ndarray:
        return np.asarray(self.change_RG.sum(axis=0) + sum(self.steps.values()))

    def times(self, factor_G: np.ndarray) -> None:
        """Multiply every part."""
        self.weights = [factor_G * weight_RG for weight_RG in self.weights]
        self.changes = [factor_G * change_RG for change_RG in self.changes]
        self.steps = {name: factor_G * step_G for name, step_G in self.steps.items()}


def decompose(prior: GenePrior, nodes: Sequence[int]) -> Decomposition:
    """Parts of the prediction of one perturbed condition; ValueError for a prior that does not keep what it needs."""
    if prior.measured is not None and prior.measured.is_measured_SG is not None:
        msg = "contexts of this model measure different genes, and predictions are explained over shared ones only"
        raise ValueError(f"{msg}: prepare the screens with genes='shared'")
    if prior.basis is None or prior.measured is None:
        msg = (
            "this model does not keep the measured changes that its predictions are made of (the prior of more than "
            "3,000 conditions or of a single one, or a model of an earlier version); train it again to explain them"
        )
        raise ValueError(msg)
    own, kind = int(prior.measured.rows([nodes])[0]), int(prior.kinds_of([nodes])[0])
    basis, kept = prior.basis, np.arange(len(prior.basis.sets))
    if own >= 0:
        # a measured condition is predicted from the others first, then mixed with its own measurement
        basis, kept = basis.without(own), np.delete(kept, own)
        n_known = prior.genes.among(basis.sets).members([nodes]).getnnz(axis=1)
        kind = int(kinds_of_sets(n_known, np.array([float(len(nodes))]))[0])
    scale_G = np.broadcast_to(prior.scale_S[prior._settings_of([nodes])[0]], (prior.n_genes,))
    parts, singles = _Sum(prior.n_genes), tuple[Single, ...]()
    function = _add_regression(parts, prior, basis, kept, nodes, kind)
    mean_share = float(_by_kind(prior, nodes)[1][kind])
    if own < 0 and len(nodes) > 1 and prior._carries_singles and mean_share < 1:
        singles = _singles(prior, nodes)
        for one in singles:
            parts.add([one.row], MEASURED, np.full(prior.n_genes, np.nan), one.share * one.beyond_G)
    factor, of_mean = _add_steps(parts, prior, nodes, kind)
    factor_G, mean_factor_G = np.full(prior.n_genes, factor), np.full(prior.n_genes, of_mean)
    removed_G = np.zeros(prior.n_genes)
    if own >= 0:
        others_G, change_G = parts.total_G, prior.measured.change_CG[own].astype(np.float64)
        measured_G = scale_G * prior.basis.rest_CG[own] + prior._targets([nodes])[0]
        kept_G = _kept(change_G, others_G, measured_G)
        parts.times(1 - kept_G)
        parts.add([own], MEASURED, kept_G, change_G - (1 - kept_G) * others_G)
        factor_G, mean_factor_G = (1 - kept_G) * factor_G, (1 - kept_G) * mean_factor_G
        removed_G = others_G - change_G
    weight_RG = np.concatenate([np.zeros((0, prior.n_genes)), *parts.weights])
    rows_R = np.array(parts.rows, dtype=np.int64)
    return Decomposition(
        rows_R, tuple(parts.links), weight_RG, parts.change_RG, parts.steps, basis, function,
        _mean_function(prior, basis, nodes), mean_factor_G, singles, scale_G, factor_G, own, removed_G,
    )  # fmt: skip


def _add_regression(
    parts: _Sum, prior: GenePrior, basis: Basis, kept: np.ndarray, nodes: Sequence[int], kind: int
) -> Functional | None:
    """Add what each training condition gives, what all share and the offset; returns the function that these are.

    `kept` are the rows of the conditions of `basis` among all. None where the mean of one setting is predicted.
    """
    if len(kept) < 2:
        parts.steps[OFFSET] = prior._means([nodes])[0]
        return None
    setting, none_C, mean_CG = prior._settings_of([nodes])[0], np.zeros(len(kept)), basis.mean_CG
    links = {name: link_UC[0] for name, link_UC in basis.links([nodes]).items()}
    level = _level(basis, nodes)
    if _by_kind(prior, nodes)[1][kind] == 1:
        parts.steps[OFFSET] = prior._means([nodes])[0]
        return _mean_function(prior, basis, nodes)
    scale_G, shared_G = prior.scale_S[setting], np.zeros(prior.n_genes)
    for name, link_C in links.items():
        shared_G += scale_G * basis.value(Functional(link_C, none_C))
        if name != SHARED:
            rows = np.flatnonzero(link_C)
            weight_RG = scale_G * basis.weights(link_C, rows)
            change_RG = weight_RG * (basis.rest_CG[rows] - mean_CG[rows])
            shared_G -= change_RG.sum(axis=0)
            parts.add(kept[rows].tolist(), name, weight_RG, change_RG)
    parts.steps |= {OFFSET: scale_G * basis.value(level), SHARED: shared_G}
    return level.plus(Functional(np.sum(list(links.values()), axis=0), none_C))


def _level(basis: Basis, nodes: Sequence[int]) -> Functional:
    """The level of a condition: half of it counts once for each of its genes where singles alone show it."""
    return basis.level.times((1 + len(nodes)) / 2 if basis.is_level_halved else 1.0)


def _mean_function(prior: GenePrior, basis: Basis, nodes: Sequence[int]) -> Functional | None:
    """What the mean of the conditions of several settings is of the measured changes; None with one setting."""
    if prior.scale is None or len(basis.sets) < 2:
        return None
    shared_C = basis.links([nodes])[SHARED][0]
    level = _level(basis, nodes)
    return level.plus(Functional(shared_C, np.zeros(len(basis.sets))))


def _add_steps(parts: _Sum, prior: GenePrior, nodes: Sequence[int], kind: int) -> tuple[float, float]:
    """Add what factor, mean, slope and the change of perturbed genes themselves give.

    Returns what the sum over conditions and the mean of the training conditions are multiplied by.
    """
    slope_K, mean_share_K = _by_kind(prior, nodes)
    factor, slope, share = 1.0, float(slope_K[kind]), float(mean_share_K[kind])
    if prior.magnitude is not None and share < 1:
        factor = float(prior.magnitude.factor([nodes], prior.genes)[0])
    parts.steps[FACTOR] = (factor - 1) * parts.total_G
    if 0 < share < 1:  # with the mean alone it is the offset
        parts.times(np.full(prior.n_genes, 1 - share))
        parts.steps[MEAN] = share * prior._means([nodes])[0]
        factor *= 1 - share
    parts.steps[SLOPE] = (slope - 1) * parts.total_G
    of_targets_K = slopes_of_targets(slope_K, len(prior.target_SG))
    parts.steps[TARGET] = of_targets_K[kind] * prior._targets([nodes])[0]
    if prior.of_others is not None:
        parts.steps[OTHERS] = prior.of_others([nodes])[0]
    return factor * slope, share * slope if share < 1 else 0.0


def _by_kind(prior: GenePrior, nodes: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Slopes, and the share of the mean that is predicted, by kind of condition in the setting of a condition."""
    other = prior.elsewhere
    if other is not None and is_elsewhere([nodes], prior.trained_settings, prior.n_kinds)[0]:
        return other.slope_K, other.mean_share_K
    return prior.slope_K, prior.mean_share_K


def _singles(prior: GenePrior, nodes: Sequence[int]) -> tuple[Single, ...]:
    """What the measured singles of a combination's genes show beyond their genes' effects."""
    basis, measured = prior.basis, prior.measured
    assert basis is not None
    assert measured is not None
    setting, known = int(prior._settings_of([nodes])[0]), np.intersect1d(nodes, prior.genes.trained_T)
    singles: list[Single] = []
    share_S = prior._taken_by(setting)
    for other in np.flatnonzero(share_S).tolist():
        for single in singles_in(other, known, prior.n_kinds):
            row = int(measured.rows([single])[0])
            if row < 0:
                continue
            expected_G = (prior.summed([single]) + prior._targets([single]))[0]
            links = [link_UC[0] for link_UC in basis.links([single]).values()]
            function = basis.level.plus(Functional(np.sum(links, axis=0), np.zeros(len(basis.sets))))
            scale_G = np.broadcast_to(prior.scale_S[other], expected_G.shape)
            beyond_G = measured.change_CG[row] - expected_G
            singles.append(Single(row, float(share_S[other]), beyond_G, function, scale_G))
    return tuple(singles)


def _kept(change_G: np.ndarray, others_G: np.ndarray, measured_G: np.ndarray) -> np.ndarray:
    """Share of its own measurement that each gene keeps."""
    gap_G = measured_G - others_G
    return np.clip(np.divide(change_G - others_G, gap_G, out=np.ones_like(gap_G), where=np.abs(gap_G) > 1e-9), 0, 1)
