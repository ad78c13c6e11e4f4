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
