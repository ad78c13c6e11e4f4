"""Registry of metrics, and their values by condition."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gears.core._registry import Registry

if TYPE_CHECKING:
    from gears.evaluation.truth import Truth

MetricFunction = Callable[..., Any]

DECISIVE = (
    "pearson_delta_ref", "discrimination_ref", "relative_error", "direction_changed", "hit_recall_10",
    "average_precision", "interval_score_90",
)  # fmt: skip
"""The metrics that decide whether a model is better than the baselines: none is gained by scaling a prediction.

The last is computed for methods that state standard deviations.
"""

# After them what intervals hold, how large predictions are, and metrics that other packages report.
DEFAULT = (
    *DECISIVE, "brier_changed", "coverage_90", "interval_width_90", "amplitude_slope", "pearson_delta", "mse_top20_de",
    "mse", "mae", "discrimination", "pearson",
)  # fmt: skip
ALL = "all"  # name of the subgroup that holds every condition
EVERY = "*"  # entry of the column `condition` for a value of a set of conditions


@dataclass(frozen=True)
class Metric:
    """A metric with its description in tables and pages.

    Parameters
    ----------
    function
        ``function(predicted_UG, truth)`` returns one value per condition, (U,), NaN where undefined; one
        number for ``scope="set"``. With `needs_sd` the standard deviations, (U, G), are a third argument.
    formula
        In plain text: m predicted mean, mu true mean, c control mean, O the mean of the training conditions' means.
    higher_is_better
        None for a number that only describes predictions: no method is better by it.
    bounds
        Least and greatest possible value.
    needs_all
        Whether it uses the *predictions* of all evaluated conditions, which
        a worker's shard does not have: gather the predictions first.
    needs_de
        Whether it is NaN without a ranking of differential genes.
    needs_cells
        Whether it is NaN without the truth's cells (``truth.cells``).
    scope
        ``"condition"``, or ``"set"`` for one number over a set of conditions.
    needs_sd
        Whether it is NaN without standard deviations of the predicted means.
    ideal
        The right value of a number by which no method is better, where there is one.
    """

    name: str
    function: MetricFunction
    formula: str
    higher_is_better: bool | None
    bounds: tuple[float, float]
    source: str
    needs_all: bool = False
    needs_de: bool = False
    scope: str = "condition"
    needs_cells: bool = False
    needs_sd: bool = False
    ideal: float | None = None

    def better(self, a: float, b: float) -> bool:
        """Whether `a` is strictly better than `b`; a number is better than NaN."""
        if np.isnan(a) or np.isnan(b):
            return bool(np.isnan(b) and not np.isnan(a))
        return a > b if self.higher_is_better else a < b

    @property
    def direction(self) -> str:
        """``"higher"`` or ``"lower"``: which values are better; ``"near 1"`` or ``"-"`` where none is by itself."""
        if self.higher_is_better is None:
            return "-" if self.ideal is None else f"near {self.ideal:g}"
        return "higher" if self.higher_is_better else "lower"


METRICS: Registry[Metric] = Registry("metric")


def register(
    name: str, *, formula: str | None = None, **description: Any
) -> Callable[[MetricFunction], MetricFunction]:
    """Add a function to :data:`METRICS`; the decorated function itself is returned unchanged.

    `description` are the other fields of :class:`Metric`: ``higher_is_better``, ``bounds`` and ``source`` are required.
    Without `formula` it is the first paragraph of the function's docstring, with what a ``partial`` sets in place of
    ``{its name}``.
    """

    def add(function: MetricFunction) -> MetricFunction:
        described = formula or _first_paragraph(function)
        if not described:
            msg = f"metric {name!r} has no formula; begin the function's docstring with it, or give formula"
            raise ValueError(msg)
        METRICS.add(name, Metric(name, function, described, **description))
        return function

    return add


def register_table(*rows: tuple[Any, ...]) -> None:
    """Add the metrics of a file: rows of name, function, better values, bounds, source, and what it needs.

    Better values are ``"higher"``, ``"lower"``, ``"near 0.9"`` or ``"-"``, as :attr:`Metric.direction` gives them.
    Needs are fields of :class:`Metric` that are True; ``"whole_set"`` marks one number for a set of conditions.
    """
    for name, function, better, bounds, source, *needs in rows:
        description: dict[str, Any] = dict.fromkeys((need for need in needs if need != "whole_set"), True)
        if "whole_set" in needs:
            description["scope"] = "set"
        if better.startswith("near "):
            description["ideal"] = float(better.removeprefix("near "))
        higher = {"higher": True, "lower": False}.get(better)
        register(name, higher_is_better=higher, bounds=bounds, source=source, **description)(function)


def _first_paragraph(function: MetricFunction) -> str:
    settings = function.keywords if isinstance(function, partial) else {}
    text = inspect.getdoc(function.func if isinstance(function, partial) else function) or ""
    paragraph = " ".join(text.split("\n\n")[0].split())
    return paragraph.format(**settings) if settings else paragraph


def get_metric(name: str) -> Metric:
    """The metric of that name; the error for an unknown one suggests similar names."""
    return METRICS["average_precision" if name == "average_precision_changed" else name]  # its longer name


def condition_metrics(
    predicted_UG: np.ndarray,
    truth: Truth,
    names: Sequence[str] = DEFAULT,
    *,
    sd_UG: np.ndarray | None = None,
    mask_target: bool = False,
) -> np.ndarray:
    """Values of per-condition metrics, NaN where undefined.

    A shard (``truth.subset(rows)`` with the same rows of the predictions) gives the values of its conditions, so
    workers can share the work; metrics with ``needs_all`` raise on a shard.

    Parameters
    ----------
    predicted_UG
        Predicted mean expression, (U, G), in the order of ``truth.conditions``.
    sd_UG
        Standard deviations of the predicted means, (U, G), for metrics with ``needs_sd``: NaN without.
    mask_target
        Exclude the measured target genes of each condition. Metrics that compare all predictions at once
        (``needs_all``) or cells use every gene.

    Returns
    -------
    np.ndarray
        (U, M) float64. All values of a row are NaN if a prediction of the row is not finite.
    """
    predicted_UG = _checked(predicted_UG, truth)
    if len(truth.unmeasured):
        sd_UG = None if sd_UG is None else np.delete(sd_UG, truth.unmeasured, axis=1)
        predicted_UG, truth = np.delete(predicted_UG, truth.unmeasured, axis=1), truth.over_measured
    if mask_target:
        return _without_targets(predicted_UG, truth, names, sd_UG)
    finite_U = np.isfinite(predicted_UG).all(axis=1)
    values_UM = np.full((len(predicted_UG), len(names)), np.nan)
    # the whole truth keeps what it has computed for other methods
    finite_truth = truth if finite_U.all() else truth.subset(finite_U)
    finite_UG = predicted_UG[finite_U]
    for column, name in enumerate(names):
        metric = get_metric(name)
        if metric.scope != "condition":
            msg = f"{name!r} is one number for a set of conditions; compute it with set_metrics"
            raise ValueError(msg)
        if metric.needs_all and not truth.is_whole:
            msg = (
                f"{name!r} compares with the predictions of all {len(truth.panel_mean_VG)} conditions, but this "
                f"shard has {len(truth.conditions)}; gather the predictions and compute it once"
            )
            raise ValueError(msg)
        if not finite_U.any() or (metric.needs_all and not finite_U.all()):
            continue
        if not metric.needs_sd:
            values_UM[finite_U, column] = metric.function(finite_UG, finite_truth)
        elif sd_UG is not None:
            values_UM[finite_U, column] = metric.function(finite_UG, finite_truth, sd_UG[finite_U])
    return values_UM


def _without_targets(
    predicted_UG: np.ndarray, truth: Truth, names: Sequence[str], sd_UG: np.ndarray | None
) -> np.ndarray:
    """Per-condition metrics over the genes that a condition does not target."""
    over_all_genes = [name for name in names if get_metric(name).needs_all or get_metric(name).needs_cells]
    values_UM = np.full((len(predicted_UG), len(names)), np.nan)
    positions = [names.index(name) for name in over_all_genes]
    values_UM[:, positions] = condition_metrics(predicted_UG, truth, over_all_genes)
    over_others = [name for name in names if name not in over_all_genes]
    columns = [names.index(name) for name in over_others]
    rows_of: dict[tuple[int, ...], list[int]] = {}
    for row, genes in enumerate(truth.targets):
        rows_of.setdefault(tuple(sorted(genes.tolist())), []).append(row)
    for targets, rows in rows_of.items():
        genes = np.array(targets, dtype=np.int64)
        group_truth = truth.subset(rows) if not targets else truth.subset(rows).without_genes(genes)
        values_UM[np.ix_(rows, columns)] = condition_metrics(
            np.delete(predicted_UG[rows], genes, axis=1),
            group_truth,
            over_others,
            sd_UG=None if sd_UG is None else np.delete(sd_UG[rows], genes, axis=1),
        )
    return values_UM


def set_metrics(predicted_UG: np.ndarray, truth: Truth, names: Sequence[str] = ("spread",)) -> dict[str, float]:
    """Metrics that are one number for a set of conditions, by name."""
    predicted_UG = np.delete(_checked(predicted_UG, truth), truth.unmeasured, axis=1)
    truth, values = truth.over_measured, {}
    for name in names:
        metric = get_metric(name)
        if metric.scope != "set":
            msg = f"{name!r} has one value per condition; compute it with condition_metrics"
            raise ValueError(msg)
        values[name] = float(metric.function(predicted_UG, truth)) if np.isfinite(predicted_UG).all() else np.nan
    return values


def metric_table() -> pd.DataFrame:
    """Every registered metric: formula, better direction, bounds, source, and what it needs."""
    columns = [
        "name", "formula", "direction", "bounds", "source", "needs_all", "needs_de", "needs_cells", "scope",
    ]  # fmt: skip
    return pd.DataFrame([[getattr(m, column) for column in columns] for m in METRICS.values()], columns=columns)


def _checked(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    predicted_UG = np.ascontiguousarray(predicted_UG, dtype=np.float64)
    if predicted_UG.shape != truth.mean_UG.shape:
        msg = (
            f"predictions have shape {predicted_UG.shape}; expected {truth.mean_UG.shape}: one row per "
            "evaluated condition, one column per gene"
        )
        raise ValueError(msg)
    return predicted_UG
