"""Fit the prior to the training conditions of a screen: regress, then choose by predictions of held-out conditions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from gears.files._mapped import row_blocks
from gears.graphs._similarities import PriorInputs
from gears.priors._calibration import LeftOut, fit_uncertainty
from gears.priors._data import Criterion, PriorData, errors_at_slopes
from gears.priors._elsewhere import OWN_SHARE, Elsewhere
from gears.priors._evidence import EvidenceWeights
from gears.priors._kernels import KINDS, N_KINDS, NEW_KINDS, NEW_ONE, NEW_SEVERAL, kinds_of_sets, sizes_of, target_cells
from gears.priors._magnitude import fit_magnitude
from gears.priors._measured import Measured
from gears.priors._new_settings import filled
from gears.priors._other_screens import fit_residual, with_effects
from gears.priors._prior import Effects, GenePrior, slopes_of_targets
from gears.priors._process import WITHIN, Process, Regression, levels
from gears.priors._unmeasured import filled_in, with_errors

if TYPE_CHECKING:
    from gears.priors._posterior import ConditionCovariance, Posterior
    from gears.priors._uncertainty import Uncertainty

SLOPES = (1.0, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.2)
"""Factors on predictions that are tried; 1 where held-out predictions do not show that another is better."""
FAR_SLOPES = (*SLOPES, 0.25)
"""Those for contexts that training never sees: little carries over to them."""
_LEAST_TARGETS = 3
MEAN_MARGIN = 0.02  # that the criterion must gain before means alone are taken
MEAN_SHARE = 0.9
"""Share of the mean where predictions of a kind with a new gene have no surely smaller error than it; the rest keeps
their pattern."""
CANDIDATE_MARGIN = 0.02  # that the criterion must gain before the evidence is overruled, or large changes are cut
_CUT = 6.0  # robust standard deviations of a gene's changes over conditions, beyond which changes are cut
_LEAST_CUT = 0.01  # share of the changes that lie there, before this is tried
_FEWEST_OF_KIND = 5  # held-out conditions that decide about the unmeasured ones of their kind
_FEW_OF_KIND = 8  # up to so many, a gain counts minus its standard error; of more, minus a smaller part of it


@dataclass(frozen=True)
class FittedPrior:
    """A prior, what it predicts for each training condition without that condition, (C, G), and what it was made of."""

    prior: GenePrior
    left_out_CG: np.ndarray
    inputs: PriorInputs = field(default_factory=PriorInputs)


@dataclass(frozen=True)
class Inherited:
    """What priors of some of the conditions take over from the prior of all: which candidates they try.

    Weights (from a start at those of all), factors and slopes are found from their own conditions. So inner folds cost
    a third of fits that try everything.
    """

    start: EvidenceWeights
    released: tuple[str, ...]
    is_cut: bool
    is_level_shrunk: bool

    @classmethod
    def from_report(cls, report: Mapping[str, Any]) -> Inherited | None:
        """From :attr:`GenePrior.report`; None for a prior that is the mean alone."""
        if "weights" not in report:
            return None
        within = {WITHIN + name: weight for name, weight in report.get("weights_within_settings", {}).items()}
        unexplained = (report["unexplained"], report["unexplained_several_genes"])
        start = EvidenceWeights({**report["weights"], **within}, report["noise"], *unexplained)
        released = (report["released"],) if "released" in report else ()
        return cls(start, released, report["cut"], report["shrunk_level"])

    def candidates(self, data: PriorData, rest_CG: np.ndarray, target_SG: np.ndarray) -> list[_Candidate]:
        """Without and with a factor."""
        if self.is_cut:
            rest_CG = _cut(data, rest_CG)
        process = Process.of(data, rest_CG, released=self.released, start=self.start)
        regressions = process.regressions(is_level_shrunk=self.is_level_shrunk)
        return list(_candidates(regressions, rest_CG, target_SG))


def fit_prior(
    data: PriorData, criterion: Criterion, judged: np.ndarray | None = None, inherited: Inherited | None = None
) -> FittedPrior:
    """Fit by evidence, then choose regression, factor and slope by predictions of held-out conditions.

    Parameters
    ----------
    criterion
        Error of held-out predictions. Its mean decides how settings carry over to one without conditions, and whether
        departures from additivity are predicted; by kind of condition (:data:`gears.priors._kernels.KINDS`) it decides
        whether the mean alone is better, and the slope.
    judged
        Rows of the conditions whose predictions `criterion` takes; all by default.
    inherited
        What is taken over from a prior of more conditions; such a prior predicts changes, not how probable they are.
    """
    share_K = _shares_of_targets(data)
    target_SG = data.control_mean_SG * np.resize(share_K, data.n_settings)[:, None]
    targets = targets_of(data, target_SG)
    if data.is_measured_SG is not None:
        data = filled_in(data)
    # a knocked-down gene loses a share of its control mean, whatever similar genes do: taken out, added at the end
    rest_CG = data.delta_CG - targets.toarray()
    if len(data.sets) < 2 or not rest_CG.any():  # nothing tells what conditions share from what is their own
        return _mean_only(data, target_SG, share_K)
    data = with_effects(data, lambda some, rows: Process.of(some, rest_CG[rows]).overall)
    if inherited is None:
        candidates = list(_all_candidates(data, rest_CG, target_SG))
    else:
        candidates = inherited.candidates(data, rest_CG, target_SG)
    found = _Chosen.of(candidates, targets, criterion, judged)
    of_others, left_out_CG, effects_report = fit_residual(
        data, found.left_out_CG, found.choice.kind_C, criterion, np.arange(len(data.sets)) if judged is None else judged
    )
    found = dataclasses.replace(found, left_out_CG=left_out_CG, tells_changes=inherited is None)
    candidate, choice = found.candidate, found.choice
    certainty = candidate.regression.certainty()
    uncertainty = found.uncertainty(targets, certainty)
    elsewhere = _elsewhere(found, share_K, targets, uncertainty, criterion, judged)
    report = {
        "kind": "additive Gaussian process" + (" over condition x context" if data.n_settings > 1 else ""),
        "conditions": len(data.sets),
        "settings": len(np.unique(data.setting_C)),
        **candidate.regression.process.report(),
        "cut": candidate.is_cut,
        "factor": candidate.prior.magnitude is not None,
        "shrunk_level": candidate.regression.is_level_shrunk,
        "carried": elsewhere.carry,
        **choice.report(),
        "sd": uncertainty.report(),
        **({"effects_of": effects_report} if data.effects else {}),
    }
    prior = dataclasses.replace(
        candidate.prior, slope_K=choice.slope_K, mean_share_K=choice.mean_share_K, uncertainty=uncertainty,
        report=report, measured=found.measured(targets, uncertainty), elsewhere=elsewhere,
        of_others=of_others,
        basis=found.candidate.regression.basis(uncertainty.covariance),
    )  # fmt: skip
    others = np.setdiff1d(np.arange(data.n_settings), prior.trained_settings)
    if len(others):
        control_SG = np.broadcast_to(data.control_variance(), data.control_mean_SG.shape)
        prior = filled(elsewhere, prior, others, data.control_mean_SG[others], control_SG[others])
    if data.is_measured_SG is not None:
        prior = dataclasses.replace(prior, measured=_predicted_where_unmeasured(prior, data))
    return FittedPrior(prior, found.left_out_CG)


def _elsewhere(
    found: _Chosen,
    share_K: np.ndarray,
    targets: sparse.csr_matrix,
    uncertainty: Uncertainty,
    criterion: Criterion,
    judged: np.ndarray | None,
) -> Elsewhere:
    """What is predicted of settings without training conditions: by contexts held out in turn, where several train."""
    process, here = found.candidate.regression.process, found
    data, own = process.data, None
    if len(np.unique(data.context_C)) < 2:  # nothing tells how much carries over
        covariance = uncertainty.covariance
        parts = [covariance.overall, *([] if covariance.within is None else [covariance.within])]
        signal = sum(part.shared + part.own + part.similar for part in parts)
        covariance = dataclasses.replace(covariance, nugget=covariance.nugget + OWN_SHARE * signal)
        own = dataclasses.replace(uncertainty, covariance=covariance)
    elif not data.holds_settings_out:
        process = dataclasses.replace(process, data=dataclasses.replace(data, groups=data.context_C))
        rest_CG = data.delta_CG - targets.toarray()
        every = _candidates(process.regressions(), rest_CG, found.candidate.prior.target_SG)
        candidates = _with_factor(every, wanted=found.candidate.factor_C is not None)
        here = _Chosen.of(candidates, targets, criterion, judged, tells_changes=found.tells_changes)
        own = here.uncertainty(targets, (uncertainty.covariance, uncertainty.posterior))
    return Elsewhere(
        here.candidate.regression.carry, share_K, process.scale_K, data.variance_G, here.choice.slope_K,
        here.choice.mean_share_K, data.holds_settings_out, process.sensitivity, own,
    )  # fmt: skip


def _predicted_where_unmeasured(prior: GenePrior, data: PriorData) -> Measured:
    """The training conditions, with what the prior predicts of genes that their setting does not measure."""
    assert prior.measured is not None
    change_CG = prior.measured.change_CG.copy()
    found = dataclasses.replace(
        prior.measured, change_CG=change_CG, is_measured_SG=data.is_measured_SG, n_kinds=data.n_kinds
    )
    if (is_measured_CG := found.is_measured_CG) is not None:
        predicted_CG = dataclasses.replace(prior, measured=None).without_head(data.sets)
        change_CG[~is_measured_CG] = predicted_CG[~is_measured_CG]
    return found


@dataclass(frozen=True)
class _Candidate:
    """A prior without its slopes, its regression, and the factor on held-out predictions, (C,); None for 1."""

    prior: GenePrior
    regression: Regression
    factor_C: np.ndarray | None = None
    margin: float = 0.0  # that the criterion must gain before it is taken
    is_cut: bool = False  # whether it is fitted to changes of which the largest are cut

    def left_out(self, rows: np.ndarray) -> np.ndarray:
        """Predictions of some conditions from the others, without targets."""
        summed_RG = self.regression.held_out_CG[rows]
        return summed_RG if self.factor_C is None else summed_RG * self.factor_C[rows][:, None]


def _all_candidates(data: PriorData, rest_CG: np.ndarray, target_SG: np.ndarray) -> Iterator[_Candidate]:
    """Priors by the evidence, then with a similarity that it holds back, then without single huge changes."""
    process, *released = Process.tried(data, rest_CG)
    yield from _candidates(process.regressions(), rest_CG, target_SG)
    for other in released:
        yield from _candidates(other.regressions(), rest_CG, target_SG, margin=CANDIDATE_MARGIN)
    if data.n_settings == 1:
        cut_CG = _cut(data, rest_CG)
        if (cut_CG != rest_CG).mean() > _LEAST_CUT:
            regressions = Process.of(data, cut_CG).regressions()
            yield from _candidates(regressions, cut_CG, target_SG, margin=CANDIDATE_MARGIN, is_cut=True)


def _candidates(
    regressions: Sequence[Regression], rest_CG: np.ndarray, target_SG: np.ndarray, **candidate: Any
) -> Iterator[_Candidate]:
    """Priors by some ways of regressing, each without and with a factor on several genes."""
    for regression in regressions:
        process, data = regression.process, regression.process.data
        overall, within = regression.effects()
        prior = GenePrior(overall, data.column_P, target_SG, levels(rest_CG, data), within, data.n_kinds)
        if within:
            prior = dataclasses.replace(prior, scale=process.factors())
        yield _Candidate(prior, regression, **candidate)
        # several genes may do less than their sum: a candidate beside the plain sum, not in its place
        fitted = fit_magnitude(data.sets, rest_CG, regression.held_out_CG, overall.genes)
        if fitted is not None:
            magnitude, factor_C = fitted
            yield _Candidate(dataclasses.replace(prior, magnitude=magnitude), regression, factor_C, **candidate)


def _with_factor(candidates: Iterable[_Candidate], *, wanted: bool) -> list[_Candidate]:
    """Those with a factor, or without; all where there are none."""
    found = list(candidates)
    return [one for one in found if (one.factor_C is not None) == wanted] or found


def _cut(data: PriorData, rest_CG: np.ndarray) -> np.ndarray:
    """The changes, of each gene cut at some robust standard deviations about its median.

    A huge change that a condition has alone says nothing of others, but squared errors follow it. The limits hardly
    depend on any one condition, so that predictions of each from the others stay honest.
    """
    median_G = np.median(rest_CG, axis=0)
    sd_G = 1.4826 * np.median(np.abs(rest_CG - median_G), axis=0)
    limit_G = _CUT * np.sqrt(np.maximum(sd_G**2, data.variance_G * (1 / data.n_C).mean()))
    return np.clip(rest_CG, median_G - limit_G, median_G + limit_G)


@dataclass(frozen=True)
class _Choice:
    """Which candidate is taken, and by kind of condition its slope and how much of the mean replaces the sum."""

    index: int
    kind_C: np.ndarray  # kind of each training condition when it is held out
    # slope_K, mean_share_K: by kind; see :class:`gears.priors.GenePrior`
    slope_K: np.ndarray
    mean_share_K: np.ndarray
    of_targets_K: np.ndarray  # factor on the change of perturbed genes themselves, by kind
    value: float  # mean of the criterion

    def left_out(self, candidate: _Candidate, targets: sparse.csr_matrix, rows: np.ndarray) -> np.ndarray:
        """Predicted changes of some training conditions from the others."""
        kind_R = self.kind_C[rows]
        share_R1 = self.mean_share_K[kind_R, None]
        rest_RG = (1 - share_R1) * candidate.left_out(rows) + share_R1 * candidate.regression.mean_CG[rows]
        of_targets_K = self.of_targets_K / self.slope_K  # 1 unless settings differ
        return self.slope_K[kind_R, None] * (rest_RG + of_targets_K[kind_R, None] * targets[rows].toarray())

    def report(self) -> dict[str, Any]:
        """The choices that concern a training condition when it is held out, in plain values."""
        kinds = {name: kind for kind, name in enumerate(KINDS) if kind in self.kind_C}
        return {
            "mean_only": [name for name, kind in kinds.items() if self.mean_share_K[kind] == 1],
            "share_of_mean": {name: float(self.mean_share_K[kind]) for name, kind in kinds.items()},
            "slope": {name: float(self.slope_K[kind]) for name, kind in kinds.items()},
            "criterion": self.value,
        }


@dataclass(frozen=True)
class _Chosen:
    """The candidate that held-out predictions choose, with what it predicts for each condition without its group."""

    candidate: _Candidate
    choice: _Choice
    left_out_CG: np.ndarray
    tells_changes: bool = True  # whether probabilities of change are wanted

    @classmethod
    def of(
        cls,
        candidates: Sequence[_Candidate],
        targets: sparse.csr_matrix,
        criterion: Criterion,
        judged: np.ndarray | None,
        *,
        tells_changes: bool = True,
    ) -> _Chosen:
        """Among some candidates, which are fitted to the same conditions."""
        data = candidates[0].regression.process.data
        choice = _choose(candidates, data, targets, criterion, judged)
        candidate, left_out_CG = candidates[choice.index], np.empty_like(data.delta_CG)
        for block in row_blocks(*left_out_CG.shape):
            rows = np.arange(block.start, block.stop)
            left_out_CG[block] = choice.left_out(candidate, targets, rows)
        return cls(candidate, choice, left_out_CG, tells_changes)

    def _targets(self, targets: sparse.csr_matrix) -> sparse.csr_matrix:
        return sparse.csr_matrix(sparse.diags(self.choice.of_targets_K[self.choice.kind_C]) @ targets)

    @property
    def _unseen_C(self) -> np.ndarray:
        return np.isin(self.choice.kind_C, NEW_KINDS)

    def uncertainty(
        self, targets: sparse.csr_matrix, certainty: tuple[ConditionCovariance, Posterior | None]
    ) -> Uncertainty:
        """By what is predicted for training conditions without their groups."""
        regression = self.candidate.regression
        data = regression.process.data
        if data.is_measured_SG is not None:
            data = with_errors(data, self.left_out_CG)
        left_out = LeftOut(
            data, self.left_out_CG, self._targets(targets), regression.variance_C, self._unseen_C, regression.held_C
        )
        uncertainty = fit_uncertainty(left_out, *certainty, tells_changes=self.tells_changes)
        if data.is_measured_SG is None:
            return uncertainty
        # of a gene that no training condition measures nothing is known: as far off as an average one
        is_known_G = data.is_measured_SG[np.unique(data.setting_C)].any(axis=0)
        gene_G = np.where(is_known_G, uncertainty.gene_G, uncertainty.gene_G[is_known_G].mean())
        return dataclasses.replace(uncertainty, gene_G=gene_G)

    def measured(self, targets: sparse.csr_matrix, uncertainty: Uncertainty) -> Measured:
        """The training conditions themselves."""
        regression, targets, unseen_C = self.candidate.regression, self._targets(targets), self._unseen_C
        process, data, left_out_CG = regression.process, regression.process.data, self.left_out_CG
        if data.is_measured_SG is not None:
            data = with_errors(data, left_out_CG)
        variance_C = np.empty(len(data.sets))

        def sd_of(rows: np.ndarray) -> np.ndarray:
            parts = (data.sets_of(rows), left_out_CG[rows], targets[rows].toarray())
            variance_C[rows] = uncertainty.variance(*parts, regression.variance_C[rows], unseen_C[rows])
            return uncertainty.spread(*parts, variance_C[rows])

        # errors of the control mean are in a measured change and in its prediction from the others alike
        noise = (data.sampling_noise()[0], process.noise_G)
        return Measured.of(data.sets, data.delta_CG, left_out_CG, noise, variance_C, sd_of)


def targets_of(data: PriorData, target_SG: np.ndarray) -> sparse.csr_matrix:
    """A value of each setting and gene, for the measured genes that each condition perturbs, CSR (C, G)."""
    rows, columns = target_cells(data.sets, data.column_P)
    values = target_SG[data.setting_C[rows], columns]
    return sparse.csr_matrix((values, (rows, columns)), shape=data.delta_CG.shape)


def _shares_of_targets(data: PriorData) -> np.ndarray:
    """Change of a gene by its own perturbation as a share of its control mean, by type, (K,)."""
    known = 1.0 if data.is_measured_SG is None else data.is_measured_SG
    as_mean, kind_C = targets_of(data, data.control_mean_SG * known), data.setting_C % data.n_kinds
    rows_K = [np.flatnonzero(kind_C == kind) for kind in range(data.n_kinds)]
    return np.array([share_of_targets(as_mean[rows].toarray(), data.delta_CG[rows]) for rows in rows_K])


def _choose(
    candidates: Sequence[_Candidate],
    data: PriorData,
    targets: sparse.csr_matrix,
    criterion: Criterion,
    judged: np.ndarray | None,
) -> _Choice:
    """The candidate of least criterion, of equal ones the first, each with its own slopes and means."""
    rows = np.arange(len(data.sets)) if judged is None else judged
    kind_C, target_RG = kinds_when_left_out(data), targets[rows].toarray()
    slopes = np.array(FAR_SLOPES if data.holds_settings_out else SLOPES)
    if data.n_settings > 1:  # evidence-weighted errors favour large predictions, which truth does not
        slopes = slopes[slopes <= 1]
    of_targets = slopes_of_targets(slopes, data.n_settings)

    def errors(left_out_RG: np.ndarray) -> np.ndarray:
        """Parts of the criterion at each slope, (S, E, R)."""
        return errors_at_slopes(criterion, slopes, left_out_RG, of_targets, target_RG)

    sums = [errors(candidate.left_out(rows)) for candidate in candidates]
    # one slope for all kinds: the many choices by kind would favour a candidate by chance; rounded, so that of
    # candidates that agree but for rounding the same one is taken on every machine
    value = [
        float(sum_SER.sum(axis=1).mean(axis=1).min()) + candidate.margin
        for sum_SER, candidate in zip(sums, candidates, strict=True)
    ]
    index = min(range(len(candidates)), key=lambda one: (round(value[one], 9), one))
    sum_RG, mean_RG = candidates[index].left_out(rows), candidates[index].regression.mean_CG[rows]
    tried, size_of_mean_R = {0.0: sums[index], 1.0: errors(mean_RG)}, np.atleast_2d(criterion(mean_RG))[0]
    slope_K, mean_share_K, total = np.ones(N_KINDS), np.zeros(N_KINDS), 0.0
    for kind in np.unique(kind_C[rows]).tolist():
        at = np.flatnonzero(kind_C[rows] == kind)
        decides, is_new = len(at) >= min(_FEWEST_OF_KIND, len(rows)), kind in NEW_KINDS
        share, slope = _mean_or_sum(tried, at, is_new=is_new, decides=decides)
        gain_R = size_of_mean_R[at] - tried[0.0][slope, 0, at]
        if share == 0 and is_new and decides and gain_R.mean() < _error_of_mean(gain_R):
            share, slope = MEAN_SHARE, 0
            if MEAN_SHARE not in tried:
                tried[MEAN_SHARE] = errors((1 - MEAN_SHARE) * sum_RG + MEAN_SHARE * mean_RG)
        mean_share_K[kind], slope_K[kind] = share, slopes[slope]
        total += float(tried[share][slope, :, at].sum())
    if not (kind_C[rows] == NEW_SEVERAL).any():  # what is found for one new gene holds for several
        slope_K[NEW_SEVERAL], mean_share_K[NEW_SEVERAL] = slope_K[NEW_ONE], mean_share_K[NEW_ONE]
    of_targets_K = slopes_of_targets(slope_K, data.n_settings)
    return _Choice(index, kind_C, slope_K, mean_share_K, of_targets_K, total / len(rows))


def _mean_or_sum(
    tried: Mapping[float, np.ndarray], at: np.ndarray, *, is_new: bool, decides: bool
) -> tuple[float, int]:
    """Whether the mean (1) or the sum (0) is better for some conditions, and the place of its slope.

    A gene that other conditions perturb is known: what they show is given up on good evidence only.
    """
    sum_SR, mean_SR = (tried[share].sum(axis=1)[:, at] for share in (0.0, 1.0))
    best, of_mean = _best_slope(sum_SR), _best_slope(mean_SR)
    gain_R = sum_SR[best] - mean_SR[of_mean]
    margin = MEAN_MARGIN if is_new else max(MEAN_MARGIN, _error_of_mean(gain_R))
    return (1.0, of_mean) if decides and gain_R.mean() > margin else (0.0, best)


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


def share_of_targets(as_mean_CG: np.ndarray, delta_CG: np.ndarray) -> float:
    """Share of its control mean by which a gene changes when it is perturbed itself, shrunk.

    Zero with fewer than three perturbed genes that are measured.
    `as_mean_CG` is the control mean of the genes that each condition perturbs, 0 elsewhere.
    """
    # least squares through 0, shrunk as by one more gene that does not change
    at = as_mean_CG != 0
    if at.sum() < _LEAST_TARGETS:
        return 0.0
    squares = float((as_mean_CG[at] ** 2).sum())
    return float((as_mean_CG[at] * delta_CG[at]).sum()) / (squares * (1 + 1 / at.sum()))


def _mean_only(data: PriorData, target_SG: np.ndarray, share_K: np.ndarray) -> FittedPrior:
    """With a single condition, or no change at all: its change halved, for everything but itself."""
    shape = (len(data.genes.trained_T), data.delta_CG.shape[1])
    zero_G, (noise_C, noise_G) = np.zeros(shape[1]), data.sampling_noise()
    mean_G = 0.5 * data.delta_CG.mean(axis=0) if len(data.sets) else zero_G
    report = {"kind": "mean of one condition", "conditions": len(data.sets), "slope": {}, "factor": False}
    # measured conditions keep the share of their squared change that sampling noise does not explain
    size_C, of_noise_C = (data.delta_CG**2).sum(axis=1), noise_C * noise_G.sum()
    share_C = 1 - of_noise_C / np.maximum(np.maximum(size_C, of_noise_C), np.finfo(float).tiny)
    change_CG = (share_C[:, None] * data.delta_CG).astype(np.float32)
    measured = Measured(data.sets, change_CG, size_C / shape[1], noise_C, noise_G)
    effects = Effects(data.genes, mean_G, zero_G, 0.0, 0.0, np.zeros(shape))
    zero_SG, mean_SG = np.zeros_like(target_SG), np.tile(mean_G, (data.n_settings, 1))
    none_K = np.zeros(N_KINDS, dtype=bool)
    elsewhere = Elsewhere(1.0, 0 * share_K, np.ones_like(share_K), data.variance_G, np.ones(N_KINDS), none_K)
    prior = GenePrior(
        effects, data.column_P, zero_SG, mean_SG, n_kinds=data.n_kinds, report=report, measured=measured,
        elsewhere=elsewhere,
    )  # fmt: skip
    return FittedPrior(prior, np.zeros_like(data.delta_CG))


def kinds_when_left_out(data: PriorData) -> np.ndarray:
    """Place in :data:`gears.priors._kernels.KINDS` of each condition, predicted from those of other groups, (C,)."""
    member_CT, group_C = data.genes.members(data.sets), np.unique(data.group_C, return_inverse=True)[1]
    group_CC = sparse.csr_matrix((np.ones(len(group_C)), (group_C, np.arange(len(group_C)))))
    n_groups_T = (group_CC @ member_CT).getnnz(axis=0)
    return kinds_of_sets(np.asarray(member_CT @ (n_groups_T > 1)), sizes_of(data.sets))
