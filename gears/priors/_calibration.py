"""Fit the uncertainty of a prior to its predictions of training conditions without themselves.

Squared errors without sampling noise, divided by the posterior variance of the condition, give the scale of each gene,
shrunk towards the mean of the genes; each counts less, the more of it may be noise. The size of a condition's errors
relative to these may follow its expected effect size: the exponent is chosen by the log score of each condition from
the others, separately for conditions whose genes are all perturbed in others and for those with an unseen gene; it is 0
where none is better by a margin. The share of the variance that lies where the predicted change does is chosen by the
score of intervals of 90 %. A factor on all scales then lets these intervals hold 90 % of the measured means, whose
sampling noise is added: for conditions with an unseen gene by these, for all others by combinations; it is 1 where too
few are held out. The scales that intervals of a condition are judged with are made without its own errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from gears.core._intervals import LEVELS, half_width
from gears.evaluation.uncertainty import interval_score
from gears.files._mapped import row_blocks
from gears.priors._evidence import sample
from gears.priors._kernels import CORRELATED_GENES, sizes_of, target_cells
from gears.priors._magnitude import fit_size, log_score, log_size, margin
from gears.priors._posterior import ConditionCovariance, Posterior
from gears.priors._uncertainty import Uncertainty, expected_log_size, size_factor
from gears.priors.true_change import TrueChange, Values, fit_true_change, group_of

if TYPE_CHECKING:
    from gears.priors._data import PriorData

LEVEL = 0.9
"""Level of the intervals that are calibrated."""
_MOST_VALUES = 1 << 22  # held-out predictions x genes that the scales are fitted to
_FEWEST_ROWS = 100
_TRIED_VALUES = 1 << 17  # of these, what candidates are compared on
_SHRUNK_BY = 2.0  # conditions that the mean of the genes counts as in a gene's scale; 0.5 to 5 score alike
_LEAST_SCALE = 0.03  # of a gene, as a share of the mean
_LEAST_CHANGE = 1e-3  # of a predicted mean squared change, as a share of the average over conditions
_LEAST_FACTOR = 1e-3  # of the variances, where errors are no larger than sampling noise
_SETTING_FACTORS = (0.2, 5.0)  # on the variances of a setting, least and largest
_FEWEST = 8  # conditions that show how errors follow sizes
_EXPONENTS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5)
_SHARES = (0.0, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85)


@dataclass(frozen=True)
class LeftOut:
    """Predictions of training conditions without themselves, and how far they are known."""

    data: PriorData  # the training conditions
    change_CG: np.ndarray  # predicted changes
    own: sparse.csr_matrix  # the part of them that is the change of perturbed genes themselves, CSR (C, G)
    variance_C: np.ndarray  # posterior variance of each condition
    unseen_C: np.ndarray
    """Whether a gene of the condition occurs in none of the conditions that it was predicted from."""
    held_C: np.ndarray  # share of the error of its context's control mean that the prediction holds


def fit_uncertainty(
    found: LeftOut, covariance: ConditionCovariance, posterior: Posterior | None, *, tells_changes: bool = True
) -> Uncertainty:
    """The uncertainty of a prior with this posterior variance (None: of the mean alone).

    `tells_changes`: with the distribution of true changes, which costs as much as all else.
    """
    data, genes = found.data, covariance.overall.genes
    size, left_out_C = fit_size(*_log_sizes(data), data.sets, genes)
    errors = _Errors.of(found)
    expected_R = expected_log_size(left_out_C[errors.rows], errors.mean_R)
    exponents = _fit_exponents(errors, expected_R)
    variance_R = errors.variance_R * size_factor(exponents, expected_R, errors.unseen_R)
    share, factor_2, base_RT = _fit_share(errors, variance_R)
    exponents = np.hstack([exponents, factor_2[:, None]])
    variance_R = errors.variance_R * size_factor(exponents, expected_R, errors.unseen_R)
    gene_G = errors.scales(variance_R / factor_2[errors.unseen_R.astype(np.int64)])
    setting_S = None
    if data.n_settings > 1:
        setting_S = _fit_settings(data, errors, share, variance_R)
        factor_R = setting_S[data.setting_C[errors.rows]]
        variance_R, base_RT = variance_R * factor_R, base_RT * factor_R[:, None]
    target = _target_error(found, errors, variance_R, gene_G, share)
    true_change = _true_change(found, errors, variance_R, gene_G, share) if tells_changes else None
    return Uncertainty(
        covariance, posterior, gene_G, share, size, exponents, errors.least, target, true_change,
        data.control_variance(), _share_held(data.delta_CG.mean(axis=0), found.change_CG.mean(axis=0)),
        errors.widths(base_RT), setting_S,
    )  # fmt: skip


def _share_held(measured_SG: np.ndarray, found_SG: np.ndarray) -> float:
    """Share of measured levels that predictions hold, 0 to 1."""
    measured_N, found_N = measured_SG.ravel(), found_SG.ravel()
    held = float(found_N @ measured_N) / max(float(measured_N @ measured_N), np.finfo(float).tiny)
    return min(max(held, 0.0), 1.0)


def _log_sizes(data: PriorData) -> tuple[np.ndarray, np.ndarray]:
    """Log effect size of each condition, without the change of perturbed genes themselves, and its error, (C,) each."""
    found = []
    for block in row_blocks(*data.delta_CG.shape):
        square_BG, noise_BG = data.delta_CG[block] ** 2, np.outer(1 / data.n_C[block], data.variance_G)
        at = target_cells(data.sets[block], data.column_P)
        square_BG[at] = noise_BG[at] = 0.0
        found.append(log_size(square_BG, noise_BG))
    value_C, error_C = (np.concatenate(part) for part in zip(*found, strict=True))
    return value_C, error_C


@dataclass(frozen=True)
class _Errors:
    """Errors of the held-out predictions of R conditions (a fixed sample of many), 0 for perturbed genes themselves."""

    rows: np.ndarray  # the conditions
    genes: np.ndarray  # a sample of T genes
    # excess_RG, noise_RG: squared errors minus their sampling noise, and this noise: infinite for perturbed genes
    # themselves, which do not count
    excess_RG: np.ndarray
    noise_RG: np.ndarray
    # error_RT, noise_RT, change_RT: errors, sampling variances and squared predicted changes of the sample of genes
    error_RT: np.ndarray
    noise_RT: np.ndarray
    change_RT: np.ndarray
    # mean_R, least: mean squared predicted change of each condition, and the smallest that counts
    mean_R: np.ndarray
    least: float
    variance_R: np.ndarray
    unseen_R: np.ndarray
    combined_R: np.ndarray
    """Whether it is a combination of known genes, or of a gene that other settings perturb: what is found for these is
    not mixed with known single genes of one setting, of which less is known than their variance says."""

    @classmethod
    def of(cls, found: LeftOut) -> _Errors:
        data, n_genes = found.data, found.change_CG.shape[1]
        rows = sample(len(data.sets), max(_FEWEST_ROWS, _MOST_VALUES // n_genes))
        genes = sample(n_genes, max(1, _TRIED_VALUES // len(rows)))
        at = target_cells([data.sets[row] for row in rows.tolist()], data.column_P)
        change_RG = found.change_CG[rows]
        error_RG = data.delta_CG[rows] - change_RG
        change_RG -= found.own[rows].toarray()
        noise_RG = np.outer(1 / data.n_C[rows], data.variance_G)
        if isinstance(data.n_control, np.ndarray):  # the error of its control mean that other settings do not share
            foreign_R = (1 - found.held_C[rows]) ** 2 / data.n_control[data.setting_C[rows]]
            noise_RG += np.outer(foreign_R, data.variance_G)
        error_RG[at] = noise_RG[at] = 0.0
        change_RG **= 2
        mean_R = change_RG.mean(axis=1)
        least = max(_LEAST_CHANGE * float(mean_R.mean()), np.finfo(float).tiny)
        error_RT, noise_RT = error_RG[:, genes], noise_RG[:, genes]
        error_RG **= 2
        error_RG -= noise_RG
        noise_RG[at] = np.inf
        return cls(
            rows, genes, error_RG, noise_RG, error_RT, noise_RT, change_RG[:, genes], np.maximum(mean_R, least), least,
            found.variance_C[rows], found.unseen_C[rows],
            ~found.unseen_C[rows] & ((sizes_of([data.sets[row] for row in rows.tolist()]) > 1) | (data.n_settings > 1)),
        )  # fmt: skip

    def scales(self, variance_R: np.ndarray) -> np.ndarray:
        """Scale of each gene, (G,), shrunk towards their mean."""
        mean, ratio_RG, weight_RG = self._ratios(variance_R, slice(None))
        scale_G = (ratio_RG.sum(axis=0) + _SHRUNK_BY * mean) / (weight_RG.sum(axis=0) + _SHRUNK_BY)
        return np.asarray(np.maximum(scale_G, _LEAST_SCALE * mean))

    def left_out_scales(self, variance_R: np.ndarray) -> np.ndarray:
        """Scale of each of the sampled genes without each condition, (R, T)."""
        mean, ratio_RT, weight_RT = self._ratios(variance_R, self.genes)
        scale_RT = ratio_RT.sum(axis=0) - ratio_RT + _SHRUNK_BY * mean
        scale_RT /= weight_RT.sum(axis=0) - weight_RT + _SHRUNK_BY
        return np.maximum(scale_RT, _LEAST_SCALE * mean)

    def _ratios(self, variance_R: np.ndarray, genes: np.ndarray | slice) -> tuple[float, np.ndarray, np.ndarray]:
        """Mean scale, and for some genes the weighted ratios of errors and variances with their weights."""
        mean = self._mean_scale(variance_R)
        known_R1 = np.maximum(mean * variance_R, np.finfo(float).tiny)[:, None]
        weight_RG = (known_R1 / (known_R1 + self.noise_RG[:, genes])) ** 2
        return mean, weight_RG * self.excess_RG[:, genes] / variance_R[:, None], weight_RG

    def scored(self, base_RT: np.ndarray) -> tuple[float, np.ndarray]:
        """Mean score of intervals with these variances times the factors they need; these, of (known, new) genes."""
        factor_2 = np.ones(2)
        for row, at_RT in self._judged():
            factor_2[row] = _factor(self.error_RT[at_RT], base_RT[at_RT], self.noise_RT[at_RT])
        sd_RT = np.sqrt(factor_2[self.unseen_R.astype(np.int64), None] * base_RT + self.noise_RT)
        return float(interval_score(self.error_RT, sd_RT, LEVEL).mean()), factor_2

    def widths(self, base_RT: np.ndarray) -> np.ndarray:
        """:attr:`Uncertainty.widths`, with these variances of the predictions before the factor."""
        z_L = half_width(np.array(LEVELS))
        width_2L = np.ones((2, len(LEVELS)))
        for row, at_RT in self._judged():
            parts = (self.error_RT[at_RT], base_RT[at_RT], self.noise_RT[at_RT])
            width_2L[row] = np.sqrt([_factor(*parts, level) for level in LEVELS])
        centre = LEVELS.index(LEVEL)
        width_2L *= z_L / width_2L[:, [centre]]
        # a larger level has no narrower interval
        width_2L[:, centre:] = np.maximum.accumulate(width_2L[:, centre:], axis=1)
        width_2L[:, : centre + 1] = np.minimum.accumulate(width_2L[:, centre::-1], axis=1)[:, ::-1]
        return np.asarray(width_2L / z_L)

    def _judged(self) -> Iterator[tuple[int, np.ndarray]]:
        """Number of each group that has enough conditions, and its values: combinations of known genes, new genes."""
        # neither perturbed genes nor silent ones
        is_counted_RT = (self.noise_RT > 0) | (self.error_RT != 0)
        for row, is_row_R in enumerate((self.combined_R, self.unseen_R)):
            at_RT = is_counted_RT & is_row_R[:, None]
            if is_row_R.sum() >= min(_FEWEST, len(is_row_R)) and at_RT.any():
                yield row, at_RT

    def _mean_scale(self, variance_R: np.ndarray) -> float:
        mean = float((self.excess_RG.mean(axis=1) / variance_R).mean())
        least = _LEAST_FACTOR * float((self.noise_RT.mean(axis=1) / variance_R).mean())
        return max(mean, least, np.finfo(float).tiny)


def _fit_exponents(errors: _Errors, expected_R: np.ndarray) -> np.ndarray:
    """:attr:`Uncertainty.exponents`, by the log score of the size of each condition's errors from the others'."""
    base_RT = errors.variance_R[:, None] * errors.left_out_scales(errors.variance_R)
    error_R, _ = log_size(errors.error_RT**2 / base_RT, errors.noise_RT / base_RT)
    table = np.zeros((2, 4))
    for row, is_row_R in enumerate((~errors.unseen_R, errors.unseen_R)):
        n, expected_S = int(is_row_R.sum()), expected_R[is_row_R]
        if n < _FEWEST:
            continue
        departure_S = expected_S - expected_S.mean()
        scores = []
        for exponent in _EXPONENTS:
            rest_S = error_R[is_row_R] - exponent * departure_S
            left_out_S = (rest_S - rest_S.mean()) * n / (n - 1)
            scores.append(log_score(left_out_S, np.ones(n)) - margin(n) * (exponent > 0))
        best = _EXPONENTS[int(np.argmax(scores))]
        table[row] = best, expected_S.mean(), expected_S.min(), expected_S.max()
    return table


def _fit_share(errors: _Errors, variance_R: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """:attr:`Uncertainty.share`, the factor on all variances of conditions with (known, new) genes, and these."""
    scale_RT = errors.left_out_scales(variance_R)
    change_RT = errors.change_RT * (scale_RT.mean() / errors.mean_R)[:, None]

    def base_of(share: float) -> np.ndarray:
        return ((1 - share) * scale_RT + share * change_RT) * variance_R[:, None]

    fitted = [errors.scored(base_of(share)) for share in _SHARES]
    best = int(np.argmin([score for score, _ in fitted]))
    return _SHARES[best], fitted[best][1], base_of(_SHARES[best])


def _fit_settings(data: PriorData, errors: _Errors, share: float, variance_R: np.ndarray) -> np.ndarray:
    """Factor on the variances of each setting, (S,): 1 where all of them are held out whole."""
    factor_S, setting_R = np.ones(data.n_settings), data.setting_C[errors.rows]
    if data.holds_settings_out:
        return factor_S
    scale_RT = errors.left_out_scales(variance_R)
    change_RT = errors.change_RT * (scale_RT.mean() / errors.mean_R)[:, None]
    base_RT = ((1 - share) * scale_RT + share * change_RT) * variance_R[:, None]
    is_counted_RT = (errors.noise_RT > 0) | (errors.error_RT != 0)
    for setting in np.unique(setting_R).tolist():
        at_RT = is_counted_RT & (setting_R == setting)[:, None]
        if at_RT.any():
            n = float((setting_R == setting).sum())
            factor = _factor(errors.error_RT[at_RT], base_RT[at_RT], errors.noise_RT[at_RT])
            factor_S[setting] = np.exp(n / (n + _FEWEST) * np.log(np.clip(factor, *_SETTING_FACTORS)))
    return factor_S


def _factor(error_N: np.ndarray, variance_N: np.ndarray, noise_N: np.ndarray, level: float = LEVEL) -> float:
    """Factor on variances with which a share `level` of the errors lie within their intervals, noise included."""
    needed_N = ((error_N / half_width(level)) ** 2 - noise_N) / variance_N
    return max(float(np.quantile(needed_N, level)), _LEAST_FACTOR)


def _target_error(found: LeftOut, errors: _Errors, variance_R: np.ndarray, gene_G: np.ndarray, share: float) -> float:
    """:attr:`Uncertainty.target`: root of the mean squared error beyond what other genes have, as a share."""
    data = found.data
    rows, columns = target_cells([data.sets[row] for row in errors.rows.tolist()], data.column_P)
    if not len(rows):
        return 0.0
    own_N = np.asarray(found.own[errors.rows[rows], columns]).ravel()
    total = float((own_N**2).sum())
    if total == 0:
        return 0.0
    at = errors.rows[rows]
    change_N = found.change_CG[at, columns]
    excess_N = (data.delta_CG[at, columns] - change_N) ** 2 - data.variance_G[columns] / data.n_C[at]
    there_N = gene_G.mean() * (change_N - own_N) ** 2 / errors.mean_R[rows]
    excess_N -= variance_R[rows] * ((1 - share) * gene_G[columns] + share * there_N)
    return float(np.sqrt(np.maximum(excess_N, 0.0).sum() / total))


def _true_change(
    found: LeftOut, errors: _Errors, variance_R: np.ndarray, gene_G: np.ndarray, share: float
) -> TrueChange:
    """:attr:`Uncertainty.true_change`, by the same held-out predictions."""
    data, at = found.data, np.ix_(errors.rows, errors.genes)
    sets = [data.sets[row] for row in errors.rows.tolist()]
    still_T = (1 - share) * gene_G[errors.genes]
    spread_RT = still_T + share * gene_G.mean() * errors.change_RT / errors.mean_R[:, None]
    sd_RT = np.sqrt(variance_R[:, None] * spread_RT)
    groups = group_of(sizes_of(sets), errors.unseen_R)
    values = Values(
        groups, errors.genes, found.change_CG[at], sd_RT, still_T / spread_RT, data.delta_CG[at], errors.noise_RT
    )
    noise_G = data.variance_G * float((1 / data.n_C).mean())
    return fit_true_change(
        values,
        data.delta_CG.mean(axis=0),
        noise_G / len(data.sets),
        data.variance_G * float(np.mean(1 / np.asarray(data.n_control))),
        noise_G * np.sqrt(2 * CORRELATED_GENES / (len(errors.rows) * len(noise_G))),
    )
