"""Predictions in memory and in files, and the loop that computes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gears.core._lazy import lazy_names

if TYPE_CHECKING:
    from gears.prediction.explain import Explanation
    from gears.prediction.predictions import Predictions

__all__ = ["Explanation", "Predictions"]

_HOMES = {"Explanation": "gears.prediction.explain", "Predictions": "gears.prediction.predictions"}
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
