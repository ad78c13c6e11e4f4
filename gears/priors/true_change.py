"""How likely a predicted change is a true one: many genes do not change at all, and others hardly.

The prior predicts each gene as if true changes had one size. They have many: the true change d of a gene is taken to
be Gaussian about 0 with one of K variances t_k, the first of which is 0. The predicted change c, with standard
deviation s, is a noisy reading of it. Of s^2 the share b does not follow the predicted change, and is there whether the
gene changes or not; what follows the change is an error of its size, and is there as far as the change is ::

    c = d / f + z + e,    z ~ N(0, u),    e ~ N(0, r^2 s^2 b^g / f^2)

z is what stays unknown of the error of the control mean, which predicted and measured changes share. So given c, with
E = r^2 s^2 b^g::

    T_k = t_k + f^2 u + E
    d ~ sum_k w_k N(f c t_k / T_k, t_k (f^2 u + E) / T_k + (t_k / T_k)^2 r^2 s^2 (1 - b))
    w_k ~ exp(o_k) N(f c; 0, T_k)^q

with q = 1 where predictions err as they say. o_k, f, r, g and q are found by the likelihood of training conditions that
are predicted without themselves, whose measured changes d + z have sampling noise of known variance in addition: for
conditions of one gene and of several, with and without a gene that is perturbed in no other condition. So a screen
shows how many perturbations do nothing, or how often one gene of a pair masks the other. Noise as large as the changes
hides how far small predictions err, and the likelihood then believes them too much; so r is pulled above 1, the more,
the larger the noise is beside the measured changes.

Two errors do not show in measured changes. The mean of the control cells errs for all conditions alike, and shows in
the mean change D over conditions: its true part is of one of several sizes between genes, as in adaptive shrinkage
(Stephens 2017, Biostatistics 18:275), and what D then shows of the control's error is taken off every change. And no
error is known better than as many noisy values show it: the least variance is the noise times (2 / n)^(1/2) for n
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
from scipy.special import softmax

from gears.priors._kernels import CORRELATED_GENES

_FEWEST = 8  # conditions of a group that its numbers are found from
_MOST_VALUES = 8192  # changes of a group that its numbers are found from
_PRIOR_VALUES = 5 * CORRELATED_GENES  # changes go together between genes, and between conditions of a gene
_SIZES = np.array([0.0, 0.5, 1.0, 2.0, 4.0, 8.0])  # of true changes, beside a typical standard deviation
_START = np.array([0.0, 0.0, 0.2, -0.4, *[0.0] * len(_SIZES)])  # log q, log r, log f, log g, o
_PULL = np.array([0.5, 0.5, 0.3, 1.0, *[2.0] * len(_SIZES)])  # how far from _START without values
_NOISY_R, _NOISY_VALUES = 1.0, 5000.0  # log r where measured changes are noise, and values of 1 that this counts as
_BOUNDS = [(-2.0, 2.0), (-1.5, 1.5), (-0.5, 1.5), (-2.0, 0.5), *[(-12.0, 8.0)] * len(_SIZES)]
_GAUSSIAN = np.array([1.0, 1.0, 1.0, 1.0, 1e12, -1e6, *[0.0] * (len(_SIZES) - 1)])  # any size: d is c minus errors
_MEAN_SIZES = np.array([0.0, *4.0 ** np.arange(-4, 4)])  # variances of mean changes, beside their average
_ROUNDS = 100  # in which the shares of the sizes of mean changes are found
_OPTIONS = {"maxiter": 60, "ftol": 1e-7}
_TINY = float(np.finfo(float).tiny)
_SHARES = np.geomspace(1e-3, 1.0, 61)  # of a pair's squared error, along its change
_PRIOR_PAIRS = 2  # pairs of the share 1 that count beside the training pairs


@dataclass(frozen=True)
class TrueChange:
    """Distribution of the true change of every gene, given the predicted one; the module has the formula."""

    groups: np.ndarray
    """q, r, f, g, the typical variance that `_SIZES` are relative to, and o_k: of conditions of one gene, of one gene
    that was not perturbed in training, of several genes, and of several with such a gene; a fifth row of measured
    conditions, whose errors are Gaussian, (5, 5 + K)."""
    shift_G: np.ndarray  # error of the control mean that is taken off
    control_G: np.ndarray  # variance of what stays unknown of it
    least_G: np.ndarray  # least variance of a prediction
    along: float = 1.0  # share of a pair's squared error along its change; 1 in files of earlier versions

    def __call__(
        self, group_U: np.ndarray, change_UG: np.ndarray, sd_UG: np.ndarray, still_UG: np.ndarray, is_own_UG: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Weight, mean and standard deviation of the true change for each of its sizes, (K, U, G) each.

        By the group of each condition (:func:`group_of`), predicted changes, their standard deviations, the share of
        the variance that does not follow the change, and which genes are perturbed themselves: their change is known to
        be there, and is no smaller than predicted.
        """
        change_UG = change_UG - self.shift_G
        q_U1, r_U1, f_U1, g_U1, typical_U1 = self.groups[group_U, :5].T[:, :, None]
        along_UG = r_U1**2 * sd_UG**2 * (1 - still_UG)  # errors of the size of the change
        hidden_UG = r_U1**2 * (sd_UG**2 * still_UG**g_U1 + self.least_G) + f_U1**2 * self.control_G
        size_KU1 = _SIZES[:, None, None] ** 2 * typical_U1
        total_KUG = np.maximum(size_KU1 + hidden_UG, _TINY)
        read_UG = f_U1 * change_UG
        log_KUG = self.groups[group_U, 5:].T[:, :, None] - 0.5 * q_U1 * (np.log(total_KUG) + read_UG**2 / total_KUG)
        share_KUG = size_KU1 / total_KUG
        mean_KUG = np.where(is_own_UG, change_UG, read_UG * share_KUG)
        own_UG = r_U1**2 * (sd_UG**2 + self.least_G) + self.control_G
        variance_KUG = np.where(is_own_UG, own_UG, share_KUG * hidden_UG + share_KUG**2 * along_UG)
        return softmax(log_KUG, axis=0), mean_KUG, np.sqrt(variance_KUG)

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
        if groups.shape[1] != len(_GAUSSIAN):  # of earlier versions, which had another formula
            groups = np.tile(_GAUSSIAN, (MEASURED + 1, 1))
        return cls(groups, shift_G, control_G, least_G, float(arrays.get("true_along", 1.0)))


MEASURED = 4
"""Row of :attr:`TrueChange.groups` of conditions that were measured."""


def group_of(size_U: np.ndarray, unseen_U: np.ndarray) -> np.ndarray:
    """Row of :attr:`TrueChange.groups` of each condition, by its number of genes and whether one was not perturbed."""
    return np.asarray(2 * (size_U > 1) + unseen_U, dtype=np.int64)


@dataclass(frozen=True)
class Values:
    """Held-out predictions of R conditions and their measured changes, for a sample of T genes."""

    group_R: np.ndarray  # group_of each condition, as it was predicted
    genes_T: np.ndarray  # columns of the genes
    change_RT: np.ndarray  # predicted changes
    sd_RT: np.ndarray  # their standard deviations
    still_RT: np.ndarray  # share of the variances that does not follow the predicted change
    measured_RT: np.ndarray  # measured changes
    noise_RT: np.ndarray  # their sampling variances; 0 where a value does not count


def fit_true_change(
    values: Values, mean_G: np.ndarray, noise_of_mean_G: np.ndarray, control_G: np.ndarray, least_G: np.ndarray
) -> TrueChange:
    """Find the numbers of every group.

    `mean_G`, `noise_of_mean_G`: mean measured change over conditions, and its sampling variance.
    `control_G`: sampling variance of the control mean. `least_G`: least variance of a prediction.
    """
    shift_G, unknown_G = _control_error(mean_G, noise_of_mean_G, control_G)
    groups: dict[int, np.ndarray] = {}
    for group in np.unique(values.group_R).tolist():
        is_row_R = values.group_R == group
        at_RT = is_row_R[:, None] & (values.noise_RT > 0)
        if is_row_R.sum() < _FEWEST or not at_RT.any():
            continue
        column_N = values.genes_T[np.nonzero(at_RT)[1]]
        groups[group] = _fit(
            values.change_RT[at_RT] - shift_G[column_N],
            values.sd_RT[at_RT] ** 2,
            values.still_RT[at_RT],
            least_G[column_N],
            values.measured_RT[at_RT] - shift_G[column_N],
            values.noise_RT[at_RT],
            unknown_G[column_N],
        )
    # of a kind with too few held-out conditions: known genes as known ones of the other size, new genes as any
    likes = ((0, 2), (1, 0, 3, 2), (2, 0), (3, 2, 1, 0), (MEASURED,))
    table = [next((groups[like] for like in alike if like in groups), _GAUSSIAN) for alike in likes]
    return TrueChange(np.array(table), shift_G, unknown_G, least_G, _share_along(values, shift_G))


def _control_error(
    mean_G: np.ndarray, noise_of_mean_G: np.ndarray, control_G: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """What the mean change over conditions shows of the error of the control mean, and the variance of the rest."""
    noise_G = control_G + noise_of_mean_G
    between = max(float((mean_G**2 - noise_G).mean()), _TINY)
    total_KG = np.maximum(between * _MEAN_SIZES[:, None] + noise_G, _TINY)
    log_KG = -0.5 * (np.log(total_KG) + mean_G**2 / total_KG)
    fits_KG = np.exp(log_KG - log_KG.max(axis=0))
    share_K1 = np.full((len(_MEAN_SIZES), 1), 1 / len(_MEAN_SIZES))
    for _ in range(_ROUNDS):
        is_KG = share_K1 * fits_KG
        is_KG /= is_KG.sum(axis=0)
        share_K1 = is_KG.mean(axis=1, keepdims=True)
    part_KG = control_G / total_KG
    shift_G = (is_KG * part_KG).sum(axis=0) * mean_G
    rest_KG = control_G * (1 - part_KG) + (part_KG * mean_G - shift_G) ** 2
    return shift_G, (is_KG * rest_KG).sum(axis=0)


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
    change_N: np.ndarray, variance_N: np.ndarray, still_N: np.ndarray, least_N: np.ndarray, measured_N: np.ndarray,
    noise_N: np.ndarray, control_N: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """Row of :attr:`TrueChange.groups` by the likelihood of the measured changes."""
    from scipy.optimize import minimize  # a worker finds the prior in the cache, and does without it

    n = len(change_N)
    pull = _PRIOR_VALUES / n / _PULL**2
    noisy = _NOISY_VALUES / n * min(float(noise_N.mean() / (measured_N**2).mean()), 1.0) ** 3
    values_7N = np.stack([change_N, variance_N, still_N, least_N, measured_N, noise_N, control_N])
    if n > _MOST_VALUES:
        rng = np.random.Generator(np.random.Philox(key=n))
        values_7N = values_7N[:, rng.choice(n, _MOST_VALUES, replace=False)]
    # the mean: of sparse counts the median gene hardly varies, and changes of others would be larger than any size
    typical = max(float(np.mean(values_7N[1] + values_7N[3])), _TINY)

    def negative_likelihood(numbers: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = _likelihood(numbers, typical, *values_7N)
        away, above = numbers - _START, numbers[1] - _NOISY_R
        gradient -= pull * away
        gradient[1] -= noisy * above
        return 0.5 * float((pull * away**2).sum() + noisy * above**2) - value, -gradient

    fitted = minimize(negative_likelihood, _START, jac=True, method="L-BFGS-B", bounds=_BOUNDS, options=_OPTIONS).x
    return np.array([*np.exp(fitted[:4]), typical, *fitted[4:]])


def _likelihood(
    numbers: np.ndarray, typical: float, change_N: np.ndarray, variance_N: np.ndarray, still_N: np.ndarray,
    least_N: np.ndarray, measured_N: np.ndarray, noise_N: np.ndarray, control_N: np.ndarray,
) -> tuple[float, np.ndarray]:  # fmt: skip
    """Mean log likelihood of the measured changes given the predicted ones, and its gradient by the numbers.

    With S_k = t_k + f u, the covariance of d + z and f c, it is log sum_k exp(l_k + g_k) - log sum_k exp(l_k), where
    l_k = o_k - q / 2 (log T_k + f^2 c^2 / T_k), and g_k is the log density of the measured change about f c S_k / T_k
    with the variance ((t_k + u) E + t_k u (f - 1)^2) / T_k + (S_k / T_k)^2 r^2 s^2 (1 - b) plus noise.
    """
    q, r, f, g = np.exp(numbers[:4])
    error_N, along_N = r**2 * (variance_N * still_N**g + least_N), r**2 * variance_N * (1 - still_N)
    read_N, size_K1 = f * change_N, _SIZES[:, None] ** 2 * typical
    shown_KN = size_K1 + f * control_N
    total_KN = np.maximum(size_K1 + f**2 * control_N + error_N, _TINY)
    square_KN, share_KN = read_N**2 / total_KN, shown_KN / total_KN
    fits_KN = -0.5 * q * (np.log(total_KN) + square_KN)
    log_KN = numbers[4:, None] + fits_KN
    mean_KN = read_N * share_KN
    still_KN = ((size_K1 + control_N) * error_N + size_K1 * control_N * (f - 1) ** 2) / total_KN
    variance_KN = still_KN + share_KN**2 * along_N + noise_N
    off_KN = (measured_N - mean_KN) / variance_KN
    wide_KN = off_KN * (measured_N - mean_KN) - 1
    joint_KN = log_KN + 0.5 * (-np.log(variance_KN) - wide_KN)
    (is_KN, norm_N), (before_KN, total_N) = _shares(joint_KN), _shares(log_KN)
    apart_KN = is_KN - before_KN
    by_total_KN = apart_KN * 0.5 * q * (square_KN - 1) / total_KN
    by_variance_KN = is_KN * 0.5 * wide_KN / variance_KN
    by_mean_KN = is_KN * off_KN
    # of T, and of the variance and mean through T alone
    through_KN = by_total_KN - by_mean_KN * mean_KN / total_KN
    through_KN -= by_variance_KN * (still_KN + 2 * share_KN**2 * along_N) / total_KN
    by_error_KN = through_KN + by_variance_KN * (size_K1 + control_N) / total_KN
    by_shown_KN = (by_mean_KN * read_N + by_variance_KN * 2 * share_KN * along_N) / total_KN
    by_f_KN = by_mean_KN * mean_KN - apart_KN * q * square_KN + 2 * f**2 * control_N * through_KN
    by_f_KN += f * control_N * by_shown_KN + by_variance_KN * 2 * f * (f - 1) * size_K1 * control_N / total_KN
    by_g_N = g * np.log(still_N) * r**2 * variance_N * still_N**g
    gradient = [
        (apart_KN * fits_KN).sum(),
        2 * (by_error_KN * error_N + by_variance_KN * share_KN**2 * along_N).sum(),
        by_f_KN.sum(),
        (by_error_KN * by_g_N).sum(),
        *apart_KN.sum(axis=1),
    ]
    return float((norm_N - total_N).mean()), np.array(gradient) / len(change_N)


def _shares(log_KN: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Softmax over rows, (K, N), and the logarithm of the sum of the exponentials, (N,), from the same exponentials."""
    most_N = log_KN.max(axis=0)
    share_KN = np.exp(log_KN - most_N)
    sum_N = share_KN.sum(axis=0)
    share_KN /= sum_N
    return share_KN, most_N + np.log(sum_N)
