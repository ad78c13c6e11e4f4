"""The registry of metrics: what each one is, and how it is found by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gears.core.registry import Registry
from gears.evaluation.truth import Truth

MetricFunction = Callable[[np.ndarray, Truth], Any]


@dataclass(frozen=True)
class Metric:
    """A metric with everything that a table or a page says about it.

    Parameters
    ----------
    name
        How it is called in tables.
    function
        ``function(predicted_UG, truth)`` gives one value per condition, shape
        (U,), NaN where undefined; one number for ``scope="set"``.
    formula
        In plain text: m predicted mean, mu true mean, c control mean, O the
        mean of the training conditions' means.
    higher_is_better
        Direction.
    bounds
        Least and greatest possible value.
    source
        Where the definition comes from.
    needs_all
        It compares with the *predictions* of all evaluated conditions, so
        that a worker's shard is not enough: gather the predictions first.
    needs_de
        It is NaN without a ranking of differential genes.
    needs_cells
        It is NaN without the truth's cells (``truth.cells``).
    scope
        ``"condition"``, or ``"set"`` for one number over a set of conditions.
    """

    name: str
    function: MetricFunction
    formula: str
    higher_is_better: bool
    bounds: tuple[float, float]
    source: str
    needs_all: bool = False
    needs_de: bool = False
    scope: str = "condition"
    needs_cells: bool = False

    def better(self, a: float, b: float) -> bool:
        """Whether `a` is strictly better than `b`; a number is better than NaN."""
        if np.isnan(a) or np.isnan(b):
            return bool(np.isnan(b) and not np.isnan(a))
        return a > b if self.higher_is_better else a < b

    @property
    def direction(self) -> str:
        """``"higher"`` or ``"lower"``: which values are better."""
        return "higher" if self.higher_is_better else "lower"


METRICS: Registry[Metric] = Registry("metric")


def register(
    name: str,
    *,
    formula: str,
    higher_is_better: bool,
    bounds: tuple[float, float],
    source: str,
    needs_all: bool = False,
    needs_de: bool = False,
    scope: str = "condition",
    needs_cells: bool = False,
) -> Callable[[MetricFunction], MetricFunction]:
    """Add a function to :data:`METRICS`; the decorated function itself is returned unchanged."""

    def add(function: MetricFunction) -> MetricFunction:
        metric = Metric(
            name, function, formula, higher_is_better, bounds, source, needs_all, needs_de, scope, needs_cells
        )
        METRICS.add(name, metric)
        return function

    return add


def get_metric(name: str) -> Metric:
    """The metric of that name.

    Raises
    ------
    ValueError
        With near matches, if there is none.
    """
    return METRICS[name]
