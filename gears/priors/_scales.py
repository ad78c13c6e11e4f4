"""How strongly each setting reacts: a factor, with its sign, on what conditions do alike in all settings.

For two settings that measured the same conditions, with summed squares a and b of their changes (sampling noise of
conditions and controls taken off), the log ratio is log(b / a) / 2. Its error follows from leaving out each condition,
and the ratio is drawn to 1 by James and Stein's factor 1 - (error / ratio)^2. The factors of the settings fit the
ratios of all pairs by least squares. The sign of a type of perturbation is that of its products with the first type,
where these are beyond chance; else that of its name (CRISPRa raises what CRISPRi lowers).
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from gears.priors._data import PriorData

_FEWEST = 3  # conditions that both settings measured
_FACTORS = (0.2, 5.0)  # least and largest
_SURE = 3.0  # standard errors of a mean product that show its sign
_RIDGE = 1.0  # conditions that a factor of 1 counts as


def scales_of(data: PriorData, rest_CG: np.ndarray) -> np.ndarray:
    """Factor of each setting, (S,): 1 where there is one setting, or where nothing shows another."""
    n_settings, setting_C = data.n_settings, data.setting_C
    if n_settings == 1:
        return np.ones(1)
    noise_C = data.noise_of_changes().sum(axis=1)
    rows = [
        {tuple(sorted(data.sets[row])): row for row in np.flatnonzero(setting_C == setting).tolist()}
        for setting in range(n_settings)
    ]
    left_LL, right_L = _RIDGE * np.eye(n_settings), np.zeros(n_settings)
    products: dict[int, list[float]] = {kind: [] for kind in range(1, data.n_kinds)}
    has_pair_S = np.zeros(n_settings, dtype=bool)
    for one, other in combinations(range(n_settings), 2):
        keys = sorted(rows[one].keys() & rows[other].keys())
        if not keys:
            continue
        first, second = (np.array([rows[setting][key] for key in keys]) for setting in (one, other))
        cross_P = (rest_CG[first] * rest_CG[second]).sum(axis=1)
        kinds = {one % data.n_kinds, other % data.n_kinds}
        if 0 in kinds and len(kinds) == 2:
            products[max(kinds)] += cross_P.tolist()
        square_P, other_square_P = ((rest_CG[at] ** 2).sum(axis=1) - noise_C[at] for at in (first, second))
        if len(keys) < _FEWEST or min(square_P.sum(), other_square_P.sum()) <= 0:
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
    log_S = np.linalg.solve(left_LL, right_L)
    for kind in range(data.n_kinds):  # a setting without such conditions reacts as the others of its type
        of_kind = np.arange(n_settings) % data.n_kinds == kind
        if (of_kind & has_pair_S).any():
            log_S[of_kind & ~has_pair_S] = log_S[of_kind & has_pair_S].mean()
    log_S -= log_S[setting_C].mean()
    sign_K = [1.0, *(_sign(values, data.sign_K[kind] * data.sign_K[0]) for kind, values in products.items())]
    return np.clip(np.exp(log_S), *_FACTORS) * np.tile(sign_K, n_settings // data.n_kinds)


def _sign(products: list[float], expected: float) -> float:
    """Sign of the mean of some products; `expected` where they do not show it."""
    if len(products) < _FEWEST:
        return expected
    mean, error = float(np.mean(products)), float(np.std(products, ddof=1) / np.sqrt(len(products)))
    return expected if abs(mean) <= _SURE * error else float(np.sign(mean))
