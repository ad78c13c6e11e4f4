"""Evaluation: metrics with a registry, baselines, and the table that puts them beside the model."""

from gears.evaluation.baselines import BASELINES, DEFAULT_BASELINES, Baseline, Estimator, make_baseline
from gears.evaluation.comparison import Comparison, compare
from gears.evaluation.intervals import Bootstrap, difference_table, interval_table
from gears.evaluation.metrics import (
    DEFAULT,
    METRICS,
    Metric,
    condition_metrics,
    metric_table,
    register,
    set_metrics,
    summarise,
)
from gears.evaluation.report import Profiles, write_report
from gears.evaluation.table import (
    beating_baselines,
    comparison_table,
    render_table,
    summary_table,
    verdict,
    wide_summary,
)
from gears.evaluation.truth import Truth, seen_subgroups

__all__ = [
    "BASELINES",
    "DEFAULT",
    "DEFAULT_BASELINES",
    "METRICS",
    "Baseline",
    "Bootstrap",
    "Comparison",
    "Estimator",
    "Metric",
    "Profiles",
    "Truth",
    "beating_baselines",
    "compare",
    "comparison_table",
    "condition_metrics",
    "difference_table",
    "interval_table",
    "make_baseline",
    "metric_table",
    "register",
    "render_table",
    "seen_subgroups",
    "set_metrics",
    "summarise",
    "summary_table",
    "verdict",
    "wide_summary",
    "write_report",
]
