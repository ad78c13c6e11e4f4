"""How strongly each setting reacts: a factor, with its sign, on what conditions do alike in all settings.

*Of each setting.*

For two settings that measured the same conditions, with summed squares a and b of how far these depart from their mean
(sampling noise taken off), the log ratio is log(b / a) / 2. Its error follows from leaving out each condition,
and the ratio is drawn to 1 by James and Stein's factor 1 - (error / ratio)^2. The factors of the settings fit the
ratios of all pairs by least squares. The sign of a type of perturbation is that of its products with the first type,
where these are beyond chance; else that of its name (CRISPRa raises what CRISPRi lowers).

*Of each gene in a setting.* A change of the log rate moves E[log1p] by rate / (1 + rate), that is 1 - exp(-control
mean): what a setting hardly expresses can hardly change there. A power of this sensitivity, 0, 1/2 or 1, is chosen by
predicting departures from the mean of each setting by those of the others, as the slope times its sensitivity times
sum_s T_s d_s / (sum_s T_s^2 + 0.05).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from gears.priors._data import PriorData

_FEWEST = 3  # conditions that both settings measured
_FACTORS = (0.2, 5.0)  # least and largest
_SURE = 3.0  # standard errors of a mean product that show its sign
_RIDGE = 1.0  # conditions that a factor of 1 counts as
_POWERS = (0.0, 0.5, 1.0)
_POOLED = 0.05  # added to the summed squares of sensitivities
_KNOWN = 0.1  # squared sensitivity, relative to the average setting, at which a change counts half


@dataclass(frozen=True)
class Sensitivity:
    """How far genes can change where their control mean is known."""

    power: float
    average_G: np.ndarray  # over the training conditions, which have a factor around 1

    def __call__(self, control_mean_SG: np.ndarray) -> np.ndarray:
        """Factor of each gene in each setting, (S, G)."""
        return _sensitive(control_mean_SG) ** self.power / self.average_G


def _sensitive(control_mean_SG: np.ndarray) -> np.ndarray:
    return 1 - np.exp(-np.maximum(control_mean_SG, 0.0))


def scales_of(data: PriorData, rest_CG: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Factor of each setting, (S,), and of any other of each type, (K,).

    1 where there is one setting, or where nothing shows another.
    """
    n_settings, setting_C = data.n_settings, data.setting_C
    if n_settings == 1:
        return np.ones(1), np.ones(1)
    noise_C = data.variance_G.sum() / data.n_C
    rows = [
        {tuple(sorted(data.sets[row])): row for row in np.flatnonzero(setting_C == setting).tolist()}
        for setting in range(n_settings)
    ]
    left_LL, right_L = _RIDGE * np.eye(n_settings), np.zeros(n_settings)
    products: dict[int, list[float]] = {kind: [] for kind in range(1, data.n_kinds)}
    has_pair_S = np.zeros(n_settings, dtype=bool)
    for one, other in combinations(range(n_settings), 2):
        keys = sorted(rows[one].keys() & rows[other].keys())
        if len(keys) < _FEWEST:
            continue
        first, second = (np.array([rows[setting][key] for key in keys]) for setting in (one, other))
        first_PG, second_PG = (rest_CG[at] - rest_CG[at].mean(axis=0) for at in (first, second))
        cross_P = (first_PG * second_PG).sum(axis=1)
        kinds = {one % data.n_kinds, other % data.n_kinds}
        if 0 in kinds and len(kinds) == 2:
            products[max(kinds)] += cross_P.tolist()
        of_noise = 1 - 1 / len(keys)
        square_P = (first_PG**2).sum(axis=1) - of_noise * noise_C[first]
        other_square_P = (second_PG**2).sum(axis=1) - of_noise * noise_C[second]
        if min(square_P.sum(), other_square_P.sum()) <= 0:
            continue
        ratio = 0.5 * np.log(other_square_P.sum() / square_P.sum())
        influence_P = 0.5 * (other_square_P / other_square_P.sum() - square_P / square_P.sum())
        ratio *= max(0.0, 1 - float((influence_P**2).sum()) / max(ratio**2, np.finfo(float).tiny))
        weight = float(len(keys))
        left_LL[[one, other], [one, other]] += weight
        left_LL[one, other] -= weight
        left_LL[other, one] -= weight
        right_L[[one, other]] += -weight * ratio, weight * ratio
        has_pair_S[[one, other]] = True
    log_S, log_K = np.linalg.solve(left_LL, right_L), np.zeros(data.n_kinds)
    for kind in range(data.n_kinds):  # a setting without such conditions reacts as the others of its type
        of_kind = np.arange(n_settings) % data.n_kinds == kind
        if (of_kind & has_pair_S).any():
            log_K[kind] = log_S[of_kind & has_pair_S].mean()
            log_S[of_kind & ~has_pair_S] = log_K[kind]
    average = log_S[setting_C].mean()
    sign_K = [1.0, *(_sign(values, data.sign_K[kind] * data.sign_K[0]) for kind, values in products.items())]
    of_settings, of_types = (np.clip(np.exp(log - average), *_FACTORS) for log in (log_S, log_K))
    return of_settings * np.tile(sign_K, n_settings // data.n_kinds), of_types * sign_K


def _sign(products: list[float], expected: float) -> float:
    """Sign of the mean of some products; `expected` where they do not show it."""
    if len(products) < _FEWEST:
        return expected
    mean, error = float(np.mean(products)), float(np.std(products, ddof=1) / np.sqrt(len(products)))
    return expected if abs(mean) <= _SURE * error else float(np.sign(mean))


def sensitivity_of(data: PriorData, rest_CG: np.ndarray) -> Sensitivity | None:
    """How far genes can change; None where that does not depend on the setting."""
    if data.n_settings == 1 or data.control_mean_SG.min() < 0:
        return None
    sensitive_SG = _sensitive(data.control_mean_SG)
    elsewhere = [(row, others) for row, others in enumerate(_elsewhere(data)) if len(others)]
    if len(elsewhere) < _FEWEST:
        return None
    setting_C, rows = data.setting_C, np.array([row for row, _ in elsewhere])
    level_SG = np.zeros_like(sensitive_SG)
    for setting in np.unique(setting_C).tolist():
        level_SG[setting] = rest_CG[setting_C == setting].mean(axis=0)
    rest_CG = rest_CG - level_SG[setting_C]  # all conditions of a setting have the errors of its level alike
    errors = []
    for power in _POWERS:
        factor_SG = sensitive_SG**power
        guess_RG = np.empty((len(rows), rest_CG.shape[1]))
        for at, (row, others) in enumerate(elsewhere):
            factor_OG = factor_SG[setting_C[others]]
            pooled_G = (factor_OG * rest_CG[others]).sum(axis=0) / ((factor_OG**2).sum(axis=0) + _POOLED)
            guess_RG[at] = factor_SG[setting_C[row]] * pooled_G
        slope = float((guess_RG * rest_CG[rows]).sum() / max((guess_RG**2).sum(), np.finfo(float).tiny))
        errors.append(((rest_CG[rows] - slope * guess_RG) ** 2).sum(axis=1))
    gain_PR = errors[0] - np.stack(errors)
    sure_P = gain_PR.mean(axis=1) - _SURE * gain_PR.std(axis=1) / np.sqrt(len(rows))
    power = _POWERS[int(np.argmax(sure_P))]
    if power == 0:
        return None
    average_G = (sensitive_SG**power)[setting_C].mean(axis=0)
    return Sensitivity(power, np.maximum(average_G, np.finfo(float).tiny))


def without_sensitivity(data: PriorData, rest_CG: np.ndarray, factor_SG: np.ndarray) -> np.ndarray:
    """Changes as in the average setting, (C, G); those that a setting can hardly show are taken from the others."""
    factor_CG = factor_SG[data.setting_C]
    known_CG = factor_CG**2 / (factor_CG**2 + _KNOWN)
    average_CG = rest_CG * known_CG / np.maximum(factor_CG, np.sqrt(np.finfo(float).tiny))
    filled_CG = average_CG.copy()
    for row, others in enumerate(_elsewhere(data)):
        if len(others):
            weight_OG = known_CG[others]
            mean_G = average_CG[others].sum(axis=0) / np.maximum(weight_OG.sum(axis=0), _KNOWN)
            filled_CG[row] += (1 - known_CG[row]) * mean_G
    return filled_CG


def _elsewhere(data: PriorData) -> list[np.ndarray]:
    """For each condition those of the same genes and type in other contexts."""
    kind_C = data.setting_C % data.n_kinds
    keys = [(tuple(sorted(nodes)), kind) for nodes, kind in zip(data.sets, kind_C.tolist(), strict=True)]
    by_genes: dict[tuple[tuple[int, ...], int], list[int]] = {}
    for row, key in enumerate(keys):
        by_genes.setdefault(key, []).append(row)
    return [
        np.array([other for other in by_genes[key] if other != row], dtype=np.int64) for row, key in enumerate(keys)
    ]
