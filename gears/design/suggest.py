"""A batch of perturbations to measure next, for a stated aim.

*Information.* With the posterior covariance of the prior (:mod:`gears.priors.joint`), candidates c and targets t,
measuring c with noise n_c lowers the mean variance of the targets by

    gain_c = mean_t cov(t, c)^2 / (var(c) + noise)

whatever its result will be. The variance is that of :attr:`gears.prediction.Predictions.sd` for an average gene: with
what is specific to a condition, such as a pair's departure from additivity, which only a measurement of itself tells.
A batch is chosen greedily: the best c, then cov and var given c,

    cov(t, u) -= cov(t, c) cov(c, u) / (var(c) + noise),

then the next. So a batch does not ask one question twice. Kept are cov(t, .) for the level and the genes, (L, T), not
for the candidates, of which each block sums the rows of its genes: a million pairs need the genes' rows only. Of more
than :data:`MOST_TARGETS` targets a fixed draw is used; the part of a candidate that is itself a target is computed
exactly, so that the draw does not prefer its members. The plain version tries every candidate with dense matrices
(``tests/design/test_suggest.py``).
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse

from gears.conditions import Condition
from gears.core._messages import brief, check_unique, shorten, unknown_name
from gears.core._numbers import is_number, plain_number, whole_number
from gears.data.screen._spelling import Spelling
from gears.design._candidates import (
    Candidates,
    Entries,
    Model,
    Settings,
    all_pairs,
    entries_of,
    expressed_genes,
    fitted_conditions,
    need_sd,
    parts_of,
    read_candidates,
    with_excluded,
)
from gears.design._interactions import departures
from gears.design.hits import Readout, Scorer, probabilities
from gears.jobs.ensemble import Ensemble
from gears.model._folder import ModelParts
from gears.prediction._stream import candidate_genes
from gears.priors._kernels import singles_in
from gears.priors._uncertainty import Uncertainty
from gears.priors.joint import JointCovariance, square_sums

logger = logging.getLogger(__name__)

AIMS = ("information", "effect", "interaction")
MOST_TARGETS = 1024
ALL_PAIRS = "+*"
"""Ends an entry that means every pair of a gene with the genes perturbed in training."""
ALIKE = 1.25
"""A best gain below this many times the median is no reason to prefer a candidate."""
_ROWS = 8192  # candidates of a block


def suggest(
    model: Model,
    candidates: Entries | int | None = None,
    n: int = 10,
    aim: str = "information",
    *,
    targets: Entries | None = None,
    readout: Readout = None,
    threshold: float | None = None,
    costs: Mapping[str, float] | pd.Series | None = None,
    measured: Entries = (),
    for_conditions: Entries | None = None,
) -> pd.DataFrame:
    """Choose the n perturbations to measure next.

    Parameters
    ----------
    model
        A trained GEARS or PerturbationModel with a prior; for the aims "effect" and "interaction" also an Ensemble.
    candidates
        Genes, or conditions such as "A+B"; the genes expressed in the screen when None. For "interaction" pairs; all
        pairs of the genes perturbed in training when None. A number is `n`, of the default candidates.
    n
        Size of the batch; all candidates where there are fewer.
    aim
        "information": what lowers the uncertainty of the predictions of `targets` most, as a batch. "effect": the most
        probable hits (:func:`gears.design.hits`). "interaction": the most probable departures from additivity
        (:func:`gears.design.interactions_table`).
    targets
        For "information": conditions whose predictions are to become certain; the candidates when None.
    readout, threshold
        For "effect": as in :func:`gears.design.hits`.
    costs
        Cost of a candidate by its name, 1 where it is not named; the aim's value is divided by it.
    measured
        Conditions that were measured since the model was trained: they are excluded, and "information" counts what they
        tell, with the noise of an average training condition.
    for_conditions
        For "information": what would change these predictions? A condition or several; "KLF1+*" means all pairs of
        KLF1 with genes perturbed in training. As `targets`, and the candidates are by default the conditions
        themselves, their genes alone and in pairs, and the genes expressed in the screen.

    Returns
    -------
    pd.DataFrame
        One row per chosen candidate, best first: ``rank``, ``condition``, ``cost``, and for "information" ``gain`` (by
        which share of its present value the mean variance of the targets falls with this candidate, by the
        covariances of the model: an upper bound, of which three fifths were found in simulations), ``remaining``
        (the share that is left after it) and ``sd`` (its root: the standard deviation that is left, as a share); else
        the columns of the aim's table. Excluded candidates with reasons are in ``attrs["excluded"]``.

    Raises
    ------
    ValueError
        An unknown aim, an argument that the aim does not use, a model without standard deviations, or no candidate is
        left.
    """
    if isinstance(candidates, int):
        n, candidates = candidates, None
    if aim not in AIMS:
        raise ValueError(unknown_name("aim", aim, AIMS))
    n = whole_number("n", n)
    need_sd(model)
    if for_conditions is not None:
        if targets is not None:
            msg = "targets= and for_conditions= both say which predictions are to become certain; give one of them"
            raise ValueError(msg)
        targets = _wanted_conditions(model, for_conditions)
        candidates = _informing_conditions(model, targets) if candidates is None else candidates
    _check_arguments(aim, targets, readout, threshold)
    parts = parts_of(model)
    since = [parts.spelling.condition(entry, parts.pert_names) for entry in entries_of(measured)]
    scorer = None if threshold is None else Scorer.of(readout, threshold, parts.gene_names)
    if candidates is None and aim == "interaction":
        candidates = all_pairs(model)
    usable = read_candidates(model, candidates, since)
    cost_C = _costs(usable, costs, parts.spelling)
    if aim == "information":
        table = _by_information(model, usable, n, cost_C, targets, since)
    else:
        table = departures(model, usable) if scorer is None else probabilities(model, usable, scorer)
        table["cost"] = cost_C[table.index]
        worth = table["probability"] / table["cost"]
        table = table.loc[worth.sort_values(ascending=False, kind="stable").index[:n]]
        table["rank"] = np.arange(1, len(table) + 1)
    return with_excluded(table.reset_index(drop=True), usable)


def _check_arguments(aim: str, targets: Entries | None, readout: Readout, threshold: float | None) -> None:
    """Raise for arguments that the aim needs or does not use."""
    if (threshold is None) == (aim == "effect"):
        problem = (
            "needs threshold=, the change of log expression that is a hit"
            if aim == "effect"
            else "does not use threshold=; omit it"
        )
        msg = f"aim={aim!r} {problem}"
        raise ValueError(msg)
    unused = {"readout": readout is not None and aim != "effect", "targets": targets is not None and aim != AIMS[0]}
    if any(unused.values()):
        names = " and ".join(f"{name}=" for name, is_unused in unused.items() if is_unused)
        msg = f"aim={aim!r} does not use {names}; omit it"
        raise ValueError(msg)


def _costs(candidates: Candidates, costs: Mapping[str, float] | pd.Series | None, spelling: Spelling) -> np.ndarray:
    """Cost of each candidate, (C,); raises for costs not above 0, names given twice, and names of no candidate."""
    cost_C = np.ones(len(candidates))
    if costs is None:
        return cost_C
    if not isinstance(costs, Mapping | pd.Series):
        msg = f'costs are a {type(costs).__name__}; expected numbers by candidate, such as {{"AHR+KLF1": 2.0}}'
        raise ValueError(msg)
    given: list[tuple[Condition, Any]] = [(spelling.condition(str(name)), cost) for name, cost in costs.items()]
    cost_of = {condition: plain_number(cost) for condition, cost in given}
    check_unique([condition.name for condition, _ in given], "candidates in costs")
    wrong = [f"{one.name}: {brief(cost)}" for one, cost in cost_of.items() if not is_number(cost) or cost <= 0]
    if wrong:
        msg = f"costs are numbers above 0; found {shorten(wrong, 3)}"
        raise ValueError(msg)
    named = set()
    for row, candidate in enumerate(candidates):
        for one in (candidate, candidate.plain):  # a cost without a setting holds in all of them
            if one in cost_of:
                cost_C[row] = cost_of[one]
                named.add(one)
                break
    excluded = {Condition.parse(name) for name in candidates.excluded}
    known = named | excluded | {one.plain for one in excluded}
    unknown = [one.name for one in cost_of if one not in known]
    if unknown:
        msg = f"costs name {shorten(unknown, 3)}, which are no candidates; give costs of candidates only"
        raise ValueError(msg)
    return cost_C


def _by_information(
    model: Model,
    candidates: Candidates,
    n: int,
    cost_C: np.ndarray,
    targets: Entries | None,
    since: Sequence[Condition],
) -> pd.DataFrame:
    """The table of a batch by information."""
    parts = parts_of(model)
    if isinstance(model, Ensemble) or parts.prior is None:
        msg = 'aim="information" needs the prior of a single model; give one of the models of the ensemble'
        raise ValueError(msg)
    uncertainty = parts.prior.uncertainty
    assert uncertainty is not None
    all_targets = candidates if targets is None else read_candidates(model, targets, keep_measured=True, what="target")
    since_SK, setting_of_since = _measured_since(parts, since)
    nodes = np.unique(np.concatenate([candidates.node_CK.ravel(), all_targets.node_CK.ravel(), since_SK.ravel()]))
    settings = np.concatenate([candidates.setting_C, all_targets.setting_C, setting_of_since])
    joint = JointCovariance.of(
        uncertainty, parts.go.edge_index, parts.go.weight, nodes[nodes >= 0].tolist(), settings.tolist()
    )
    search = _Search.of(joint, uncertainty, candidates, all_targets)
    of_since = joint.members(since_SK, setting_of_since)
    # what was measured since training is known as if it had been chosen already
    for member_L, alone in zip(of_since, _alone(uncertainty, since_SK), strict=True):
        search.target_variance -= search.measure(member_L, alone)
    present, records, is_free_C = search.target_variance, [], np.ones(len(candidates), dtype=bool)
    for rank in range(1, min(n, len(candidates)) + 1):
        gain_C = search.gains()
        if rank == 1:
            _report_alike(gain_C / present)
        row = int(np.argmax(np.where(is_free_C, gain_C / cost_C, -np.inf)))
        is_free_C[row] = False
        search.choose(row, gain_C[row])
        remaining = max(search.target_variance, 0.0) / present
        shares = gain_C[row] / present, remaining, np.sqrt(remaining)
        records.append((rank, candidates.condition(row).name, cost_C[row], *shares))
    return pd.DataFrame(records, columns=["rank", "condition", "cost", "gain", "remaining", "sd"])


def _report_alike(gain_C: np.ndarray) -> None:
    """Log where the screen does not tell candidates apart: each then informs about little more than itself."""
    best, median = float(gain_C.max()), float(np.median(gain_C))
    if len(gain_C) > 1 and best < ALIKE * median:
        logger.info(
            "this screen hardly tells the candidates apart: the best lowers the mean variance of the targets by "
            "%.2g %%, the median one by %.2g %%; choose by other knowledge, or by aim='effect'",
            100 * best, 100 * median,
        )  # fmt: skip


def _measured_since(parts: ModelParts, measured: Sequence[Condition]) -> tuple[np.ndarray, np.ndarray]:
    """Nodes (padded with -1) and settings of measured conditions that the model knows, but is not fitted to."""
    node_of = {name: node for node, name in enumerate(parts.pert_names)}
    fitted, settings = fitted_conditions(parts), Settings.of(parts)
    new = {
        one: setting
        for entry in measured
        for setting, one in zip(settings.meant_by(entry), settings.conditions(entry), strict=True)
        if not one.is_control and one not in fitted and node_of.keys() >= set(one.genes)
    }
    sets = [[node_of[gene] for gene in one.genes] for one in new]
    width = max(map(len, sets), default=1)
    padded = [nodes + [-1] * (width - len(nodes)) for nodes in sets]
    return np.array(padded, dtype=np.int32).reshape(-1, width), np.array(list(new.values()), dtype=np.int64)


@dataclass
class _Search:
    """Greedy choice by conditional variance; the module has the formulas."""

    joint: JointCovariance  # before anything is chosen
    member_CL: sparse.csr_matrix  # rows of the covariance that the candidates sum
    variance_C: np.ndarray  # variance of each candidate now, of the part that genes explain
    alone_C: np.ndarray  # that of what is specific to it
    noise: float  # sampling variance of a measurement
    target_LT: np.ndarray  # covariance of the level and the genes with the drawn targets now, float32
    target_variance: float  # mean variance of all targets now
    n_targets: int  # of all targets
    is_target_C: np.ndarray  # which candidates are targets
    drawn_2D: np.ndarray  # candidates that are drawn targets, and which
    _steps: list[tuple[np.ndarray, float]] = field(default_factory=list)

    @classmethod
    def of(
        cls, joint: JointCovariance, uncertainty: Uncertainty, candidates: Candidates, targets: Candidates
    ) -> _Search:
        """Before anything is chosen."""
        member_CL = joint.members(candidates.node_CK, candidates.setting_C)
        member_TL, drawn_T = joint.members(targets.node_CK, targets.setting_C), _draw(len(targets))
        variance_C, alone_C = joint.variance(member_CL), _alone(uncertainty, candidates.node_CK)
        if targets is candidates:
            is_target_C, total_T = np.ones(len(candidates), dtype=bool), variance_C + alone_C
            drawn_2D = np.stack([drawn_T, np.arange(len(drawn_T))])
        else:
            row_of, is_target_C = candidates.rows_of(targets), np.zeros(len(candidates), dtype=bool)
            is_target_C[list(row_of.values())] = True
            total_T = joint.variance(member_TL) + _alone(uncertainty, targets.node_CK)
            names = map(targets.condition, drawn_T.tolist())
            both = [(row_of[name], drawn) for drawn, name in enumerate(names) if name in row_of]
            drawn_2D = np.array(both, dtype=np.int64).reshape(-1, 2).T
        target_LT = joint.times(member_TL[drawn_T]).astype(np.float32)
        return cls(
            joint, member_CL, variance_C, alone_C, sampling_noise(uncertainty), target_LT, float(total_T.mean()),
            len(targets), is_target_C, drawn_2D,
        )  # fmt: skip

    def gains(self) -> np.ndarray:
        """By how much a measurement of each candidate lowers the mean variance of the targets, (C,).

        A candidate that is a target has its whole variance as covariance; the mean over the other targets is that over
        the drawn ones.
        """
        starts = range(0, len(self.variance_C), _ROWS)
        square_C = np.concatenate(
            [square_sums(self.member_CL[start : start + _ROWS] @ self.target_LT) for start in starts]
        )
        rows, drawn = self.drawn_2D
        own_D = np.asarray(self.member_CL[rows].multiply(self.target_LT.T[drawn]).sum(axis=1), dtype=np.float64)
        square_C[rows] -= own_D.ravel() ** 2
        n_others_C = np.full(len(square_C), float(self.target_LT.shape[1]))
        n_others_C[rows] -= 1
        square_C *= (self.n_targets - self.is_target_C) / np.maximum(n_others_C, 1)
        total_C = self.variance_C + self.alone_C
        square_C += np.where(self.is_target_C, total_C**2, 0.0)
        return np.maximum(square_C, 0.0) / self.n_targets / (total_C + self.noise)

    def choose(self, row: int, gain: float) -> None:
        """Condition everything on the measurement of a candidate, which is known up to its noise then."""
        drawn = self.drawn_2D[1, self.drawn_2D[0] == row]
        known_LD = self.target_LT[:, drawn] * (self.noise / (self.variance_C[row] + self.alone_C[row] + self.noise))
        self.measure(self.member_CL[row], self.alone_C[row])
        self.target_LT[:, drawn] = known_LD
        self.target_variance -= gain

    def measure(self, member_1L: sparse.csr_matrix, alone: float) -> float:
        """Condition everything on the measurement of one more condition, with this variance specific to it.

        Returns by how much that lowers the mean variance of the drawn targets, of the part that genes explain.
        """
        cov_L = self.joint.times(member_1L)[:, 0]
        for step_L, scale in self._steps:
            cov_L -= step_L * (float((member_1L @ step_L)[0]) / scale)
        scale = max(float((member_1L @ cov_L)[0]), 0.0) + alone + self.noise
        self._steps.append((cov_L, scale))
        cov_T = np.asarray(member_1L @ self.target_LT, dtype=np.float64).ravel()
        self.target_LT -= np.outer(cov_L, cov_T / scale).astype(np.float32)
        self.variance_C = np.maximum(self.variance_C - (self.member_CL @ cov_L) ** 2 / scale, 0.0)
        return float((cov_T**2).mean()) / scale


def sampling_noise(uncertainty: Uncertainty) -> float:
    """Variance of an average training condition's mean beside what genes explain, in the units of the prior.

    From the genes perturbed in training: a gene of prior variance k and posterior variance v was measured with the
    noise v k / (k - v), as far as nothing else informed it; the median.
    """
    covariance, posterior = uncertainty.covariance, uncertainty.posterior
    trained = np.flatnonzero(np.diag(covariance.carried_SS)).tolist() or [0]
    sets = [
        single
        for setting in trained
        for single in singles_in(setting, covariance.overall.genes.trained_T, covariance.n_kinds)
    ]
    prior_T = covariance.variance(sets)
    if posterior is None:
        return float(np.median(prior_T))
    left_T = posterior(covariance, sets)
    told_T = np.maximum(prior_T - left_T, 1e-9 * prior_T)
    noise = float(np.median(left_T * prior_T / told_T))
    return max(noise - covariance.nugget, 1e-6 * float(np.median(prior_T)))


def _alone(uncertainty: Uncertainty, node_UK: np.ndarray) -> np.ndarray:
    """Variance of what is specific to each condition, (U,)."""
    covariance = uncertainty.covariance
    return covariance.nugget + covariance.multiple * ((node_UK >= 0).sum(axis=1) > 1)


def _draw(n: int) -> np.ndarray:
    """Rows of a fixed draw of at most :data:`MOST_TARGETS` of n targets, ascending."""
    if n <= MOST_TARGETS:
        return np.arange(n)
    return np.sort(np.random.default_rng(n).choice(n, MOST_TARGETS, replace=False))


def _wanted_conditions(model: Model, entries: Entries) -> list[Condition]:
    """The conditions that entries mean, each once; "KLF1+*" means all pairs of KLF1."""
    wanted: list[Condition] = []
    for entry in entries_of(entries):
        if isinstance(entry, str) and entry.endswith(ALL_PAIRS):
            gene = entry.removesuffix(ALL_PAIRS)
            others = candidate_genes(parts_of(model), None)
            wanted += [Condition((gene, other)) for other in others if other != gene]
        else:
            wanted.append(Condition.of(entry))
    return list(dict.fromkeys(wanted))


def _informing_conditions(model: Model, wanted: list[Condition]) -> Iterator[Condition]:
    """What may tell of some conditions: these, their genes alone and in pairs, and all expressed genes."""
    genes = list(dict.fromkeys(gene for condition in wanted for gene in condition.genes))
    pairs = (Condition(pair) for condition in wanted for pair in itertools.combinations(condition.genes, 2))
    singles = (Condition((gene,)) for gene in [*genes, *expressed_genes(parts_of(model))])
    return iter(dict.fromkeys([*wanted, *singles, *pairs]))
