"""Calibration of predicted variances: coverage of intervals, and errors against the predicted spread."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gears.core._intervals import half_width, sd_factor
from gears.evaluation.truth import CellSource

if TYPE_CHECKING:
    from gears.conditions import Condition

CURVE = tuple(np.linspace(0.05, 0.95, 19).round(2).tolist())


@dataclass(frozen=True)
class Calibration:
    """Agreement of predicted variances with the errors.

    Attributes
    ----------
    coverage
        ``level``, ``observed`` (share of values within the central Gaussian interval of that level),
        ``n`` (number of values).
    bins
        Values grouped by predicted s.d.: ``predicted_sd`` and ``error`` (root mean squares), ``n``.
    rank_correlation
        Spearman's, of absolute error with predicted s.d.; NaN where either is constant.
    nll
        Mean Gaussian negative log-likelihood of a value.
    standardised
        Root mean square of error over predicted s.d.: 1 is calibrated, above 1 the variances are too small.
    n_excluded
        Number of excluded values, without a finite positive variance.
    """

    coverage: pd.DataFrame
    bins: pd.DataFrame
    rank_correlation: float
    nll: float
    standardised: float
    n_excluded: int = 0

    def observed(self, level: float) -> float:
        """Observed coverage of one level."""
        return float(self.coverage.loc[self.coverage["level"] == level, "observed"].iloc[0])


def calibration(
    mean: np.ndarray,
    variance: np.ndarray,
    true: np.ndarray,
    *,
    true_variance: np.ndarray | float = 0.0,
    levels: Sequence[float] = CURVE,
    n_bins: int = 10,
    width: np.ndarray | None = None,
) -> Calibration:
    """Calibration of predictions against true values.

    Parameters
    ----------
    mean, variance, true
        Predictions, their variances, and true values, of one shape.
    true_variance
        Sampling variance of the true values, which is added: for observed means of n cells, the cells'
        variance over n. Without it, the noise of a measured mean is part of the model's error.
    levels
        Levels of the intervals.
    n_bins
        Groups of equal size by predicted s.d.
    width
        Widths of intervals beside a Gaussian's (``predictions.width_UL``), for values of shape (U, G); by default
        intervals are Gaussian.

    Raises
    ------
    ValueError
        If shapes disagree, or no value has a finite positive variance.
    """
    mean, true = np.asarray(mean, dtype=np.float64), np.asarray(true, dtype=np.float64)
    total = np.asarray(variance, dtype=np.float64) + true_variance
    if not mean.shape == true.shape == total.shape:
        shapes = (mean.shape, total.shape, true.shape)
        msg = f"mean, variance and true values have shapes {shapes}; expected one shape"
        raise ValueError(msg)
    is_defined = np.isfinite(total) & (total > 0) & np.isfinite(mean) & np.isfinite(true)
    if not is_defined.any():
        msg = "no value has a finite variance above zero; there is no uncertainty to evaluate"
        raise ValueError(msg)
    error, sd = np.abs(mean - true)[is_defined], np.sqrt(total[is_defined])
    standard = error / sd
    ordered = np.sort(levels)
    from scipy import stats  # a worker does without it

    def ratio(level: float) -> np.ndarray | float:
        if width is None:
            return 1.0
        square = sd_factor(level, width) ** 2 * np.asarray(variance, dtype=np.float64) + true_variance
        return np.sqrt(square[is_defined]) / sd

    observed = [float((standard <= half_width(level) * ratio(level)).mean()) for level in ordered.tolist()]
    varies = np.ptp(sd) > 0 and np.ptp(error) > 0
    return Calibration(
        coverage=pd.DataFrame({"level": ordered, "observed": observed, "n": len(error)}),
        bins=_bins(error, sd, n_bins),
        rank_correlation=float(stats.spearmanr(error, sd).statistic) if varies else float("nan"),
        nll=float((0.5 * (standard**2 + np.log(2 * math.pi * sd**2))).mean()),
        standardised=float(np.sqrt((standard**2).mean())),
        n_excluded=int((~is_defined).sum()),
    )


def calibration_by_condition(
    mean: np.ndarray,
    sd: np.ndarray,
    true: np.ndarray,
    *,
    true_variance: np.ndarray | float = 0.0,
    level: float = 0.9,
) -> pd.DataFrame:
    """Intervals and errors of each condition, over genes: conditions are the unit, since errors of genes go together.

    Parameters
    ----------
    mean, sd, true
        Predicted means, their standard deviations, and true means.
    true_variance
        Sampling variance of the true means, which is added: the variance of cells divided by their number.
    level
        Level of the intervals.

    Returns
    -------
    pd.DataFrame
        One row per condition: ``coverage`` (share of genes within the interval), ``interval_score``
        (:func:`interval_score`, mean over genes), ``error`` and ``predicted_error`` (root mean squares over genes).
    """
    error_UG = np.asarray(mean, dtype=np.float64) - true
    total_UG = np.sqrt(np.asarray(sd, dtype=np.float64) ** 2 + true_variance)
    inside_UG = np.abs(error_UG) <= half_width(level) * total_UG
    return pd.DataFrame(
        {
            "coverage": inside_UG.mean(axis=1),
            "interval_score": interval_score(error_UG, total_UG, level).mean(axis=1),
            "error": np.sqrt((error_UG**2).mean(axis=1)),
            "predicted_error": np.sqrt((total_UG**2).mean(axis=1)),
        }
    )


def cell_calibration(
    mean: np.ndarray,
    variance: np.ndarray,
    control_mean: np.ndarray,
    conditions: Sequence[Condition],
    cells: CellSource,
    *,
    seed: int = 0,
    **options: Any,
) -> Calibration:
    """Calibration of the variance of a model that is trained on pairs of cells, as with ``uncertainty_kind="nll"``.

    Such a model predicts the spread of a perturbed cell about a *control cell* plus the predicted change, with the
    noise of the control cell; so each cell is compared with a random control cell. Log-normalised counts are far from
    Gaussian where most cells are zero; there coverage is off even for the correct variance.

    Parameters
    ----------
    mean, variance
        Predicted mean of cells, and predicted variance, (U, G).
    control_mean
        Mean of the control cells.
    conditions
        The U conditions.
    cells
        Source of the cells.
    seed
        Seed of the random control cells.
    **options
        Options of :func:`calibration`.
    """
    rng = np.random.default_rng(seed)
    control_NG = cells.control()
    means, variances, true = [], [], []
    for mean_G, variance_G, condition in zip(mean, variance, conditions, strict=True):
        cells_NG = cells.of(condition)
        paired_NG = control_NG[rng.integers(len(control_NG), size=len(cells_NG))]
        means.append(paired_NG + (mean_G - control_mean))
        variances.append(np.broadcast_to(variance_G, cells_NG.shape))
        true.append(cells_NG)
    return calibration(np.concatenate(means), np.concatenate(variances), np.concatenate(true), **options)


def _bins(error: np.ndarray, sd: np.ndarray, n_bins: int) -> pd.DataFrame:
    order = np.argsort(sd, kind="stable")
    groups = [group for group in np.array_split(order, n_bins) if len(group)]
    return pd.DataFrame(
        {
            "predicted_sd": [float(np.sqrt((sd[group] ** 2).mean())) for group in groups],
            "error": [float(np.sqrt((error[group] ** 2).mean())) for group in groups],
            "n": [len(group) for group in groups],
        }
    )


def interval_score(error: np.ndarray, sd: np.ndarray, level: float = 0.9) -> np.ndarray:
    """Score of central Gaussian intervals: their width, plus what errors lie outside times 2 / (1 - level).

    Lower is better; it is smallest on the average for the true quantiles. Gneiting and Raftery 2007, section 6.2.

    Parameters
    ----------
    error, sd
        Errors of the predictions, and their standard deviations, of one shape.
    level
        Share of values that an interval is to hold.
    """
    half = half_width(level) * sd
    return np.asarray(2 * half + 2 / (1 - level) * np.maximum(np.abs(error) - half, 0.0))
