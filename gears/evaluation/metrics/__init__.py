"""Metrics: a registry of plain functions, per condition first (see :mod:`gears.evaluation.metrics._registry`)."""

from gears.evaluation.metrics import _decisive as decisive
from gears.evaluation.metrics import _published as published
from gears.evaluation.metrics import differential, distributions
from gears.evaluation.metrics._registry import (
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
)

__all__ = [
    "ALL", "DECISIVE", "DEFAULT", "METRICS", "Metric", "condition_metrics", "decisive", "differential",
    "distributions", "get_metric", "metric_table", "published", "register", "set_metrics",
]  # fmt: skip
