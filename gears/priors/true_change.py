"""How likely a predicted change is a true one: many genes do not change at all, and large predictions are too large.

Standard deviations of predictions hold nine of ten errors, but errors are not Gaussian. Given the predicted change c
and its standard deviation s, the true change of a gene is taken to be ::

    0                     with probability  p = logistic(a - k c^2 / 2 s^2)
    N(m, r^2 s^2)         else,             m = c / (1 + b |c|)

For Gaussian effects of which a share is absent the log odds have exactly this form, with k = 1. a, k, b and r are
found by the likelihood of training conditions that are predicted without themselves, whose measured changes have
sampling noise of known variance in addition: for conditions of one gene and of several, with and without a gene that
is perturbed in no other condition. So a screen shows how many perturbations do nothing, or how often one gene of a pair
masks the other.

Before that two errors are added that measured changes do not show. The mean of the control cells errs for all
conditions alike: of the mean change D over conditions, with variance t between genes, the share v / (t + v + w) is
taken off every change, v and w the sampling variances of control and D, and v (t + w) / (t + v + w) stays unknown. And
no error is known better than as many noisy values show it: the least variance is the noise times (2 / n)^(1/2) for n
independent values.

Errors of the genes of one condition go together, but not all of them: of the squared error of a pair's change, a share
lies along the change itself, as where two genes enhance each other. If all genes erred alike, the slope of the true
change over c would have the standard deviation h = sum_g |c_g| s_g / sum_g c_g^2. The variance of the measured slopes
of held-out pairs is taken to be the share times h^2, plus sampling noise; the share is found by their likelihood.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, log_expit

from gears.priors._kernels import CORRELATED_GENES

_FEWEST = 8  # conditions of a group that its numbers are found from
_MOST_VALUES = 8192  # changes of a group that its numbers are found from
_PRIOR_VALUES = 5 * CORRELATED_GENES  # changes go together between genes, and between conditions of a gene
_START = np.array([-2.0, -0.5, 0.0, 0.01])  # a, log k, log r, b times the typical change
_SD = np.array([2.0, 1.0, 0.5, 0.1])  # of the numbers about these, without training conditions
_BOUNDS = [(-12.0, 8.0), (-6.0, 1.5), (-1.5, 1.5), (0.0, 1.0)]
_GAUSSIAN = (-50.0, 1.0, 1.0, 0.0)
_SHARES = np.geomspace(1e-3, 1.0, 61)  # of a pair's squared error, along its change
_PRIOR_PAIRS = 2  # pairs of the share 1 that count beside the training pairs


@dataclass(frozen=True)
class TrueChange:
    """Distribution of the true change of every gene, given the predicted one; the module has the formula.

    Attributes
    ----------
    groups
        a, k, r and b of conditions of one gene, of one gene that was not perturbed in training, of several genes, and
        of several with such a gene; a fifth row of measured conditions, whose errors are Gaussian, (5, 4).
    shift_G
        Error of the control mean that is taken off.
    control_G
        Variance of what stays unknown of it.
    least_G
        Least variance of a prediction.
    along
        Share of a pair's squared error that lies along its change; 1 in files of earlier versions.
    """

    groups: np.ndarray
    shift_G: np.ndarray
    control_G: np.ndarray
    least_G: np.ndarray
    along: float = 1.0

    def __call__(
        self, group_U: np.ndarray, change_UG: np.ndarray, sd_UG: np.ndarray, is_own_UG: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Probability of no change, and mean and standard deviation of the change if there is one, (U, G) each.

        Parameters
        ----------
        group_U
            :func:`group_of` of each condition.
        change_UG, sd_UG
            Predicted changes and their standard deviations.
        is_own_UG
            Which genes are perturbed themselves: their change is known to be there, and is no smaller than predicted.
        """
        change_UG = change_UG - self.shift_G
        variance_UG = sd_UG**2 + self.least_G
        a_U1, k_U1, r_U1, b_U1 = self.groups[group_U].T[:, :, None]
        ratio_UG = np.divide(change_UG**2, 2 * variance_UG, out=np.zeros_like(change_UG), where=variance_UG > 0)
        absent_UG = np.where(is_own_UG, 0.0, expit(a_U1 - k_U1 * ratio_UG))
        mean_UG = np.where(is_own_UG, change_UG, change_UG / (1 + b_U1 * np.abs(change_UG)))
        return absent_UG, mean_UG, np.sqrt(r_U1**2 * variance_UG + self.control_G)

    def of_genes(self, columns: np.ndarray | slice) -> TrueChange:
        """The same for some genes."""
        per_gene = (self.shift_G[columns], self.control_G[columns], self.least_G[columns])
        return TrueChange(self.groups, *per_gene, self.along)

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything, as arrays for a file."""
        return {
            "true_groups": self.groups,
            "true_shift": self.shift_G,
            "true_control": self.control_G,
            "true_least": self.least_G,
            "true_along": np.array(self.along),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> TrueChange:
        """What :meth:`arrays` describes."""
        groups, shift_G, control_G, least_G = (
            arrays[f"true_{name}"] for name in ("groups", "shift", "control", "least")
        )
        groups = np.vstack([groups, _GAUSSIAN])[: MEASURED + 1]  # files of earlier versions have four rows
        return cls(groups, shift_G, control_G, least_G, float(arrays.get("true_along", 1.0)))


MEASURED = 4
"""Row of :attr:`TrueChange.groups` of conditions that were measured."""


def group_of(size_U: np.ndarray, unseen_U: np.ndarray) -> np.ndarray:
    """Row of :attr:`TrueChange.groups` of each condition, by its number of genes and whether one was not perturbed."""
    return np.asarray(2 * (size_U > 1) + unseen_U, dtype=np.int64)


@dataclass(frozen=True)
class Values:
    """Held-out predictions of R conditions and their measured changes, for a sample of T genes.

    Attributes
    ----------
    group_R
        :func:`group_of` of each condition, as it was predicted.
    genes_T
        Columns of the genes.
    change_RT, sd_RT
        Predicted changes and their standard deviations.
    measured_RT, noise_RT
        Measured changes and their sampling variances; 0 where a value does not count.
    """

    group_R: np.ndarray
    genes_T: np.ndarray
    change_RT: np.ndarray
    sd_RT: np.ndarray
    measured_RT: np.ndarray
    noise_RT: np.ndarray


def fit_true_change(
    values: Values, mean_G: np.ndarray, noise_of_mean_G: np.ndarray, control_G: np.ndarray, least_G: np.ndarray
) -> TrueChange:
    """Find the numbers of every group.

    Parameters
    ----------
    mean_G, noise_of_mean_G
        Mean measured change over conditions, and its sampling variance.
    control_G
        Sampling variance of the control mean.
    least_G
        Least variance of a prediction.
    """
    between = max(float((mean_G**2 - control_G - noise_of_mean_G).mean()), 0.0)
    total_G = np.maximum(between + control_G + noise_of_mean_G, np.finfo(float).tiny)
    shift_G, unknown_G = control_G / total_G * mean_G, control_G * (between + noise_of_mean_G) / total_G
    groups: dict[int, tuple[float, ...]] = {}
    for group in np.unique(values.group_R).tolist():
        is_row_R = values.group_R == group
        at_RT = is_row_R[:, None] & (values.noise_RT > 0)
        if is_row_R.sum() < _FEWEST or not at_RT.any():
            continue
        column_N = values.genes_T[np.nonzero(at_RT)[1]]
        groups[group] = _fit(
            values.change_RT[at_RT] - shift_G[column_N],
            values.sd_RT[at_RT] ** 2 + least_G[column_N],
            values.measured_RT[at_RT] - shift_G[column_N],
            values.noise_RT[at_RT],
        )
    # of a kind with too few held-out conditions: known genes as known ones of the other size, new genes as any
    likes = ((0, 2), (1, 0, 3, 2), (2, 0), (3, 2, 1, 0), (MEASURED,))
    table = [next((groups[like] for like in alike if like in groups), _GAUSSIAN) for alike in likes]
    return TrueChange(np.array(table), shift_G, unknown_G, least_G, _share_along(values, shift_G))


def _share_along(values: Values, shift_G: np.ndarray) -> float:
    """:attr:`TrueChange.along`, of pairs whose genes occur in other conditions, or of all pairs where these are few."""
    is_used_R = values.group_R == 2
    if is_used_R.sum() < _FEWEST:
        is_used_R = values.group_R >= 2
    is_counted_PT = values.noise_RT[is_used_R] > 0
    change_PT = np.where(is_counted_PT, values.change_RT[is_used_R] - shift_G[values.genes_T], 0.0)
    size_P = (change_PT**2).sum(axis=1)
    if (size_P > 0).sum() < _FEWEST:
        return 1.0
    weight_PT = change_PT[size_P > 0] / size_P[size_P > 0, None]
    error_PT, sd_PT, noise_PT = (
        values_RT[is_used_R][size_P > 0]
        for values_RT in (values.measured_RT - values.change_RT, values.sd_RT, values.noise_RT)
    )
    square_P = (weight_PT * error_PT).sum(axis=1) ** 2
    together_P = (np.abs(weight_PT) * sd_PT).sum(axis=1) ** 2
    variance_SP = np.outer(_SHARES, together_P) + (weight_PT**2 * noise_PT).sum(axis=1)
    log_likelihood_S = -0.5 * (np.log(variance_SP) + square_P / variance_SP).sum(axis=1)
    log_likelihood_S -= 0.5 * _PRIOR_PAIRS * (np.log(_SHARES) + 1 / _SHARES)
    return float(_SHARES[np.argmax(log_likelihood_S)])


def _fit(
    change_N: np.ndarray, variance_N: np.ndarray, measured_N: np.ndarray, noise_N: np.ndarray
) -> tuple[float, ...]:
    """a, k, r and b by the likelihood of the measured changes."""
    from scipy.optimize import minimize  # a worker finds the prior in the cache, and does without it

    weight = _PRIOR_VALUES / len(change_N)
    typical = float(np.sqrt((change_N**2).mean())) or 1.0
    some = np.arange(len(change_N))
    if len(some) > _MOST_VALUES:
        some = np.random.Generator(np.random.Philox(key=len(some))).choice(len(some), _MOST_VALUES, replace=False)
    change, variance, measured, noise = change_N[some], variance_N[some], measured_N[some], noise_N[some]
    half_ratio = np.minimum(change**2 / (2 * variance), 1e6)
    log_absent = -0.5 * (np.log(noise) + measured**2 / noise)

    def negative_likelihood(numbers: np.ndarray) -> tuple[float, np.ndarray]:
        k, spread = np.exp(numbers[1]), np.exp(2 * numbers[2]) * variance
        odds, total = numbers[0] - k * half_ratio, spread + noise
        mean = change / (1 + numbers[3] * np.abs(change) / typical)
        error = measured - mean
        there = log_expit(-odds) - 0.5 * (np.log(total) + error**2 / total)
        absent = log_expit(odds) + log_absent
        joint = np.logaddexp(there, absent)
        is_there = np.exp(there - joint)
        by_odds = 1 - is_there - expit(odds)
        gradient = np.array(
            [
                by_odds.mean(),
                -(by_odds * k * half_ratio).mean(),
                (is_there * (error**2 / total - 1) * spread / total).mean(),
                -(is_there * error / total * mean * np.abs(mean)).mean() / typical,
            ]
        )
        away = (numbers - _START) / _SD
        return float(-joint.mean() + 0.5 * weight * (away**2).sum()), -gradient + weight * away / _SD

    fitted = minimize(negative_likelihood, _START, jac=True, method="L-BFGS-B", bounds=_BOUNDS).x
    return float(fitted[0]), float(np.exp(fitted[1])), float(np.exp(fitted[2])), float(fitted[3]) / typical
