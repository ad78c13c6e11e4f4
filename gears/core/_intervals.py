"""Half-widths of intervals: a Gaussian's, and how far those of predictions depart from them."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import special

LEVELS = (0.1, 0.25, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98, 0.99, 0.998)
"""Levels at which the width of intervals is known; between them it is interpolated."""


def half_width(level: float | np.ndarray) -> Any:
    """Half of the central interval of a standard normal value that holds a share `level` of them."""
    return np.sqrt(2) * special.erfinv(level)


def sd_factor(level: float, width_UL: np.ndarray) -> np.ndarray:
    """Factor on standard deviations with which Gaussian intervals of a level are as wide as they should be, (U, 1).

    `width_UL` is the width at each of :data:`LEVELS` beside a Gaussian's; between them it follows the quantiles of a
    Gaussian.
    """
    at, place_L = half_width(level), half_width(np.array(LEVELS))
    right = int(np.clip(np.searchsorted(place_L, at), 1, len(LEVELS) - 1))
    share = np.clip((at - place_L[right - 1]) / (place_L[right] - place_L[right - 1]), 0.0, 1.0)
    return np.asarray((1 - share) * width_UL[:, right - 1] + share * width_UL[:, right])[:, None]


def sd_factor_at(size_UG: np.ndarray, width_UL: np.ndarray) -> np.ndarray:
    """Factor on standard deviations with which an interval that reaches `size_UG` of them is a Gaussian's, (U, G).

    :func:`sd_factor` at the level at which intervals are so wide; beyond the last level the factor stays.
    """
    place_L, factor_UG = half_width(np.array(LEVELS)), np.empty_like(size_UG)
    for size_G, width_L, factor_G in zip(size_UG, width_UL, factor_UG, strict=True):
        reached_L = np.maximum.accumulate(width_L * place_L)
        z_G = np.interp(size_G, [0.0, *reached_L], [0.0, *place_L])
        factor_G[:] = np.divide(size_G, z_G, out=np.full_like(z_G, width_L[0]), where=z_G > 0)
        factor_G[size_G > reached_L[-1]] = width_L[-1]
    return factor_UG
