"""Evaluation: metrics with a registry, baselines, and the table that puts them beside the model."""

from gears.evaluation._beside import comparison_table
from gears.evaluation._scoring import Predicted, ScoreOptions, score
from gears.evaluation.baselines import DEFAULT_BASELINES
from gears.evaluation.baselines._base import BASELINES, Baseline, Estimator, make_baseline
from gears.evaluation.compare import Comparison, compare
from gears.evaluation.intervals import Bootstrap, difference_table, interval_table, summary_table, wide_summary
from gears.evaluation.metrics._registry import (
    DECISIVE,
    DEFAULT,
    METRICS,
    Metric,
    condition_metrics,
    metric_table,
    register,
    set_metrics,
)
from gears.evaluation.truth import Truth
from gears.evaluation.verdict import render_table, short_table, verdict, verdict_lines, verdict_table

__all__ = [
    "BASELINES", "DECISIVE", "DEFAULT", "DEFAULT_BASELINES", "METRICS", "Baseline", "Bootstrap", "Comparison",
    "Estimator", "Metric", "Predicted", "ScoreOptions", "Truth", "compare", "comparison_table", "condition_metrics",
    "difference_table", "interval_table", "make_baseline", "metric_table", "register", "render_table", "score",
    "set_metrics", "short_table", "summary_table", "verdict", "verdict_lines", "verdict_table",
    "wide_summary",
]  # fmt: skip
