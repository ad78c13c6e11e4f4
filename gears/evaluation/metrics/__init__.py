"""Metrics: a registry of plain functions, per condition first (see :mod:`gears.evaluation.metrics.registry`)."""

from gears.evaluation.metrics import correlation, decisive, differential, distributions, errors, ranking, sd
from gears.evaluation.metrics.registry import (
    ALL,
    DECISIVE,
    DEFAULT,
    METRICS,
    Metric,
    condition_metrics,
    get_metric,
    metric_table,
    register,
    set_metrics,
    summarise,
)

__all__ = [
    "ALL", "DECISIVE", "DEFAULT", "METRICS", "Metric", "condition_metrics", "correlation", "decisive", "differential",
    "distributions", "errors", "get_metric", "metric_table", "ranking", "register", "sd", "set_metrics", "summarise",
]  # fmt: skip
