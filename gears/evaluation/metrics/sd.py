"""Metrics of stated uncertainty: intervals of 90 % from the standard deviation of each predicted mean.

An interval is ``m +- 1.645 sqrt(sd^2 + v / n)``: it is compared with a measured mean of n cells, whose sampling
variance ``v / n`` comes on top of what the prediction does not know.
"""

from __future__ import annotations

import math

import numpy as np

from gears.evaluation.metrics.registry import register
from gears.evaluation.truth import Truth
from gears.evaluation.uncertainty import half_width, interval_score

LEVEL = 0.9
_INTERVAL = "m +- 1.645 sqrt(sd^2 + v / n), v the variance of the condition's n cells"


@register(
    "interval_score_90",
    formula=f"mean over genes of the width of the 90 % interval {_INTERVAL}, plus 20 x the distance of mu outside it",
    higher_is_better=False,
    bounds=(0.0, math.inf),
    source="Gneiting and Raftery 2007; rewards narrow intervals that hold the measured mean",
    needs_sd=True,
)
def interval_score_90(predicted_UG: np.ndarray, truth: Truth, sd_UG: np.ndarray) -> np.ndarray:
    """Interval score of 90 % intervals, mean over genes, (U,)."""
    total_UG = _total(truth, sd_UG)
    return np.asarray(interval_score(predicted_UG - truth.mean_UG, total_UG, LEVEL).mean(axis=1))


@register(
    "coverage_90",
    formula=f"share of genes whose measured mean lies within {_INTERVAL}",
    higher_is_better=None,
    ideal=LEVEL,
    bounds=(0.0, 1.0),
    source="standard; to be read beside the width",
    needs_sd=True,
)
def coverage_90(predicted_UG: np.ndarray, truth: Truth, sd_UG: np.ndarray) -> np.ndarray:
    """Share of genes within their 90 % interval, (U,)."""
    half_UG = half_width(LEVEL) * _total(truth, sd_UG)
    return np.asarray((np.abs(predicted_UG - truth.mean_UG) <= half_UG).mean(axis=1))


@register(
    "interval_width_90",
    formula="mean over genes of 2 x 1.645 sd: the width without the sampling noise of the measured mean",
    higher_is_better=None,
    bounds=(0.0, math.inf),
    source="standard; of two methods with the right coverage the narrower says more",
    needs_sd=True,
)
def interval_width_90(predicted_UG: np.ndarray, truth: Truth, sd_UG: np.ndarray) -> np.ndarray:
    """Width of 90 % intervals of the expected mean, (U,)."""
    return np.asarray(2 * half_width(LEVEL) * sd_UG.mean(axis=1))


def _total(truth: Truth, sd_UG: np.ndarray) -> np.ndarray:
    """Standard deviation of the difference to the measured mean, (U, G)."""
    noise_UG = truth.std_UG**2 / np.maximum(truth.n_cells_U, 1)[:, None]
    return np.sqrt(sd_UG**2 + np.nan_to_num(noise_UG))
