"""Bootstrap over conditions: intervals of means, of scaled scores, and of paired differences to baselines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from gears.evaluation.halving import scaled_by_weights, weighted_mean
from gears.evaluation.metrics import ALL, get_metric
from gears.evaluation.summary import EVERY, model_name

N_BOOTSTRAP = 2000
LEVEL = 0.95
HALF_COLUMNS = ["half_value", "half_floor", "half_ceiling"]


@dataclass(frozen=True)
class Bootstrap:
    """How intervals are drawn.

    Parameters
    ----------
    n
        Resamples of the conditions.
    level
        Coverage of the percentile intervals.
    seed
        Of the draws.
    """

    n: int = N_BOOTSTRAP
    level: float = LEVEL
    seed: int = 0

    def __post_init__(self) -> None:
        if self.n < 1 or not 0 < self.level < 1:
            msg = f"a bootstrap needs n of at least 1 and a level between 0 and 1; found {self.n} and {self.level}"
            raise ValueError(msg)

    def weights(self, n_conditions: int) -> np.ndarray:
        """How often each condition is drawn in each resample, (n, n_conditions)."""
        rng = np.random.default_rng(self.seed)
        share = np.full(n_conditions, 1.0 / n_conditions)
        return rng.multinomial(n_conditions, share, size=self.n).astype(np.float64)

    def bounds(self, values_B: np.ndarray) -> tuple[float, float]:
        """Percentile interval of resampled values; resamples without a value are left out."""
        defined = values_B[np.isfinite(values_B)]
        if not len(defined):
            return float("nan"), float("nan")
        tail = (1 - self.level) / 2
        low, high = np.quantile(defined, [tail, 1 - tail])
        return float(low), float(high)


DEFAULT_BOOTSTRAP = Bootstrap()


def interval_table(table: pd.DataFrame, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> pd.DataFrame:
    """Mean and scaled score with intervals, per subgroup, method and metric.

    A condition that was evaluated in several splits enters once, with its mean over them.

    Returns
    -------
    pd.DataFrame
        Columns ``subgroup``, ``method``, ``metric``, ``mean``, ``low``,
        ``high``, ``scaled``, ``scaled_low``, ``scaled_high``,
        ``n_conditions``, ``n_undefined`` (value), ``n_unscaled`` (conditions
        that the scaled score leaves out).
    """
    records = []
    for subgroup, metric, wide in _groups(table):
        weights = bootstrap.weights(len(wide["value"]))
        higher = get_metric(metric).higher_is_better
        for method in wide["value"].columns:
            value_U = wide["value"][method].to_numpy()
            low, high = _mean_bounds(bootstrap, weights, value_U)
            record = [subgroup, method, metric, _mean(value_U), low, high]
            scaled, n_unscaled = [np.nan] * 3, len(value_U)
            if HALF_COLUMNS[0] in wide:
                parts = [wide[column][method].to_numpy() for column in HALF_COLUMNS]
                point = scaled_by_weights(np.ones((1, len(value_U))), *parts, higher_is_better=higher)
                resampled = scaled_by_weights(weights, *parts, higher_is_better=higher)
                kept = np.isfinite(parts[0]) & np.isfinite(parts[2])
                scaled = [float(point[0]), *bootstrap.bounds(resampled if kept.sum() > 1 else resampled[:0])]
                n_unscaled = int((~kept).sum())
            records.append([*record, *scaled, len(value_U), int(np.isnan(value_U).sum()), n_unscaled])
    columns = ["subgroup", "method", "metric", "mean", "low", "high", "scaled", "scaled_low", "scaled_high"]
    result = pd.DataFrame(records, columns=[*columns, "n_conditions", "n_undefined", "n_unscaled"])
    result.attrs.update(table.attrs)
    return result


def difference_table(
    table: pd.DataFrame,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    *,
    method: str | None = None,
) -> pd.DataFrame:
    """The model minus each other method, paired by condition.

    Only conditions where the model's value is defined count; an undefined
    value of the other method (a constant has no correlation) enters as 0.

    Returns
    -------
    pd.DataFrame
        Columns ``subgroup``, ``metric``, ``against``, ``model_mean``,
        ``other_mean``, ``difference``, ``low``, ``high``, ``better``
        (``"model"``, ``"other"``, or ``"undecided"`` where the interval holds
        0), ``n_conditions``, ``n_undefined`` (conditions left out).
    """
    model = model_name(table, method)
    records = []
    for subgroup, metric, wide in _groups(table):
        values = wide["value"]
        if model not in values:
            continue
        own_U = values[model].to_numpy()
        kept = np.isfinite(own_U)
        weights = bootstrap.weights(int(kept.sum())) if kept.any() else np.zeros((0, 0))
        for other in values.columns:
            if other == model:
                continue
            rival_U = np.nan_to_num(values[other].to_numpy()[kept], nan=0.0)
            difference_U = own_U[kept] - rival_U
            low, high = _mean_bounds(bootstrap, weights, difference_U)
            means = (_mean(own_U[kept]), _mean(rival_U), _mean(difference_U))
            better = _better(low, high, higher_is_better=get_metric(metric).higher_is_better)
            n_left_out = int((~kept).sum())
            records.append([subgroup, metric, other, *means, low, high, better, int(kept.sum()), n_left_out])
    columns = [
        "subgroup",
        "metric",
        "against",
        "model_mean",
        "other_mean",
        "difference",
        "low",
        "high",
        "better",
    ]
    return pd.DataFrame(records, columns=[*columns, "n_conditions", "n_undefined"])


def _better(low: float, high: float, *, higher_is_better: bool) -> str:
    if low > 0:
        return "model" if higher_is_better else "other"
    if high < 0:
        return "other" if higher_is_better else "model"
    return "undecided"


def _groups(table: pd.DataFrame) -> Iterator[tuple[str, str, dict[str, pd.DataFrame]]]:
    """Per subgroup and metric: tables condition x method of each kind of value, averaged over splits."""
    single = table[table["condition"] != EVERY]
    kinds = ["value", *(column for column in HALF_COLUMNS if column in single)]
    metrics, methods = (list(dict.fromkeys(single[column])) for column in ("metric", "method"))
    keys = ["subgroup", "metric", "condition", "method"]
    means = single.groupby(keys, sort=False, observed=True)[kinds].mean()
    whole = single.groupby(keys[1:], sort=False, observed=True)[kinds].mean()
    subgroups = sorted(set(single["subgroup"]))
    for subgroup in [ALL, *subgroups]:
        rows = whole if subgroup == ALL else means.xs(subgroup, level="subgroup")
        for metric in metrics:
            part = rows.xs(metric, level="metric")
            yield subgroup, metric, {kind: part[kind].unstack("method")[methods] for kind in kinds}


def _mean_bounds(bootstrap: Bootstrap, weights_BU: np.ndarray, value_U: np.ndarray) -> tuple[float, float]:
    """Interval of a mean; one condition alone has none."""
    several = np.isfinite(value_U).sum() > 1
    return bootstrap.bounds(weighted_mean(weights_BU if several else weights_BU[:0], value_U))


def _mean(values: np.ndarray) -> float:
    defined = values[np.isfinite(values)]
    return float(defined.mean()) if len(defined) else float("nan")
