"""Plots of a model, with scanpy's habits: ``gears.pl.volcano(model, "STAT1", show=None, save=None, return_fig=False)``.

Each function takes a trained :class:`gears.PerturbationModel` or :class:`gears.GEARS`, then names. It draws what the
function of the same name in :mod:`gears.plotting` draws of arrays, and takes the same options (``ax=``, ``title=``,
``n_labels=``, ...). Given that function's arrays or tables instead of a model, it draws these. Then:

- ``save="plot.pdf"`` writes the figure, PNG, SVG or PDF by its suffix; an earlier file is replaced.
- ``show``: a notebook shows the figure under the cell unless ``show=False``; elsewhere ``show=True`` opens a window.
- ``return_fig=True`` returns the figure. Otherwise the result is None where the figure was shown, else the Axes.

With ``ax=`` the plot is drawn there and the Axes are returned; show the figure yourself when it is complete.

`conditions` are by default those of the test part, or of the whole split where it has none. What the screen measured is
drawn where the model has its screen.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gears import plotting
from gears.conditions import Condition, check_one_change
from gears.core._intervals import sd_factor_at
from gears.core._messages import count
from gears.data.screen._prepared import PreparedScreen
from gears.design._interactions import interactions_table
from gears.evaluation.baselines._base import make_baseline
from gears.evaluation.interactions import observed_interactions, predicted_interactions
from gears.evaluation.intervals import difference_table
from gears.evaluation.metrics.differential import welch_p_values
from gears.evaluation.truth import Truth
from gears.evaluation.uncertainty import Calibration, calibration
from gears.gears import GEARS, AnyModel, gears_of
from gears.plotting._style import deliver, figure_of, in_notebook
from gears.prediction.predictions import Predictions

__all__ = [
    "coverage_curve", "delta_heat_map", "embedding", "error_against_spread", "evidence", "gene_changes",
    "go_neighbourhood", "interaction_map", "interaction_volcano", "method_differences", "plot_perturbation",
    "predicted_vs_true",
    "prediction_figure", "rate_calibration", "replay_curve", "training_curves", "volcano",
]  # fmt: skip

Query = str | Sequence[str] | Condition
Queries = Iterable[Query] | None
Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and named arguments of a function of :mod:`gears.plotting`."""
_OPTIONS = {"show": None, "save": None, "return_fig": False}


def __dir__() -> list[str]:
    return __all__


def _scanpy_like(plot: Callable[..., Any]) -> Callable[[Callable[..., Call]], Callable[..., Any]]:
    """Decorator of a function that turns a model and names into the arguments of `plot`.

    The decorated function draws; without a model its arguments are those of `plot`.
    """

    def decorate(call_of: Callable[..., Call]) -> Callable[..., Any]:
        of_model = inspect.signature(call_of)

        @functools.wraps(call_of)
        def drawn(
            *args: Any,
            show: bool | None = None,
            save: str | Path | None = None,
            return_fig: bool = False,
            **options: Any,
        ) -> Any:
            if args and _holds_model(args[0]):
                # arguments of the function of a model; the others are those of the plot
                names = {name: options.pop(name) for name in of_model.parameters if name in options}
                args, of_call = call_of(*args, **names)
                options = of_call | options
            elif args and not isinstance(args[0], Iterable) and not hasattr(args[0], "nodes"):
                msg = (
                    f"{call_of.__name__} takes a GEARS or a PerturbationModel first; gears.plotting.{plot.__name__} "
                    f"describes its arrays; found {type(args[0]).__name__}"
                )
                raise TypeError(msg)
            ax = plot(*args, **options)
            figure, is_whole = figure_of(ax), options.get("ax") is None and not return_fig
            show = show or (show is None and is_whole and in_notebook())
            deliver(figure, save=save, show=show)
            return figure if return_fig else None if show else ax

        parameters = dict(of_model.parameters) | {
            name: option
            for name, option in inspect.signature(plot).parameters.items()
            if option.kind is option.KEYWORD_ONLY and name not in of_model.parameters
        }
        parameters |= {
            name: inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value)
            for name, value in _OPTIONS.items()
        }
        drawn.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
        return drawn

    return decorate


def _holds_model(value: Any) -> bool:
    """Whether a value is a model, or models by name."""
    values = list(value.values()) if isinstance(value, Mapping) else [value]
    return bool(values) and all(isinstance(getattr(one, "gears", one), GEARS) for one in values)


def _by_name(models: AnyModel | Mapping[str, AnyModel]) -> dict[str, GEARS]:
    """Models by name; a single one is called gears."""
    named = models if isinstance(models, Mapping) else {"gears": models}
    return {name: gears_of(model) for name, model in named.items()}


def _predicted(model: AnyModel, query: Query) -> tuple[GEARS, Predictions]:
    """A model, and its prediction of one perturbed condition in one context."""
    gears = gears_of(model)
    predictions = gears.predict([gears._condition(query)])
    check_one_change(predictions.conditions, "plot")
    return gears, predictions


def _predicted_all(model: AnyModel, queries: Queries) -> tuple[GEARS, Predictions]:
    """A model, and its predictions of several conditions."""
    gears = gears_of(model)
    if queries is None:
        split = gears._need_model().split
        parts = () if split is None else ("test",) if "test" in split.parts else tuple(split.parts)
        conditions = [condition for part in parts for condition in split.conditions(part)] if split else []
        queries = [condition for condition in dict.fromkeys(conditions) if not condition.is_control]
        if not queries:
            msg = "the split of this model holds no perturbed condition to draw; give conditions="
            raise ValueError(msg)
    return gears, gears.predict(queries)


def _screen(gears: GEARS) -> PreparedScreen:
    return gears._need_data("this plot").screen


def _measured(gears: GEARS, conditions: Iterable[Condition]) -> tuple[np.ndarray, np.ndarray]:
    """Measured changes of conditions over their control (U, G), and sampling variances of their means."""
    screen = _screen(gears)
    rows = np.array([screen.id_of(condition) for condition in conditions], dtype=np.int64)
    return screen.statistics.delta(rows), screen.statistics.m2[rows] / screen.statistics.n[rows, None]


def _context_of(predictions: Predictions) -> tuple[str, str]:
    """The one context and type that all conditions are of."""
    settings = {(condition.context, condition.kind) for condition in predictions.conditions}
    if len(settings) > 1:
        msg = f"the conditions are of {len(settings)} contexts or types of perturbation; give those of one"
        raise ValueError(msg)
    return settings.pop()


def _truth(gears: GEARS, predictions: Predictions) -> Truth:
    """What the screen measured of predicted conditions, which are of one context."""
    where, screen = _context_of(predictions), _screen(gears)
    setting = screen.setting(*where) if any(where) else screen
    return Truth.of(setting, [condition.plain for condition in predictions.conditions])


@_scanpy_like(plotting.plot_perturbation)
def plot_perturbation(model: AnyModel, /, query: Query, save_file: str | Path | None = None) -> Call:
    """A condition's cells over the genes of largest measured change, and the prediction with its 90 % interval."""
    return (gears_of(model), query, save_file), {"show": False}


@_scanpy_like(plotting.gene_changes)
def gene_changes(model: AnyModel, /, condition: Query, *, baselines: Sequence[str] = (), n_genes: int = 20) -> Call:
    """A condition's measured mean changes with standard errors, the prediction with its 90 % interval, and baselines.

    `baselines` are names (``docs/evaluation.md``), at most five, fitted to the training part.
    """
    gears, predictions = _predicted(model, condition)
    truth, methods = _truth(gears, predictions), {"gears": predictions.delta_UG[0]}
    for name in baselines:
        baseline = make_baseline(name).fit(_screen(gears), gears.split)
        methods[name] = baseline.predict(predictions.conditions)[0] - truth.control_mean_G
    return (truth.delta_UG[0], methods, predictions.gene_names), {
        "n_genes": n_genes,
        "standard_error": truth.std_UG[0] / np.sqrt(truth.n_cells_U[0]),
        "sd": None if predictions.sd_change is None else {"gears": predictions.sd_change[0]},
        "title": predictions.conditions[0].name,
    }


@_scanpy_like(plotting.predicted_vs_true)
def predicted_vs_true(model: AnyModel, /, condition: Query) -> Call:
    """Predicted against measured change of every gene, the 20 top differential genes with their 90 % interval."""
    gears, predictions = _predicted(model, condition)
    truth = _truth(gears, predictions)
    return (predictions.delta_UG[0], truth.delta_UG[0], predictions.gene_names), {
        "top_de": truth.top_moderated()[0],
        "sd": None if predictions.sd_change is None else predictions.sd_change[0],
        "title": predictions.conditions[0].name,
    }


@_scanpy_like(plotting.prediction_figure)
def prediction_figure(model: AnyModel, /, conditions: Queries = None) -> Call:
    """A panel of :func:`predicted_vs_true` for each condition, by default for the first six; a Figure."""
    gears, predictions = _predicted_all(model, conditions)
    truth = _truth(gears, predictions)
    rows = None if conditions is None else list(range(len(predictions)))
    options = {"rows": rows, "sd": predictions.sd_change}
    return (predictions.expression_UG, truth, predictions.gene_names), options


@_scanpy_like(plotting.volcano)
def volcano(model: AnyModel, /, condition: Query) -> Call:
    """Predicted change of every gene against its p value.

    Where the screen measured the condition, p is that of Welch's test of its cells; else 1 - p is the level at which
    the prediction's interval ends at no change.
    """
    gears, predictions = _predicted(model, condition)
    delta_UG, sd_UG, name = predictions.delta_UG, predictions.sd_change, predictions.conditions[0].name
    if gears.pert_data is not None and predictions.conditions[0] in gears.pert_data.screen.conditions:
        p_UG, evidence = welch_p_values(_truth(gears, predictions)), "p of the observed cells"
    elif sd_UG is None:
        msg = (
            f"{name} was not measured, and this model predicts no sd of its mean changes: there are no p values; "
            'train one with a prior, train(prior="auto")'
        )
        raise ValueError(msg)
    else:
        if predictions.width_UL is not None:  # errors of predictions have longer tails than a Gaussian
            size_UG = np.divide(np.abs(delta_UG), sd_UG, out=np.zeros_like(delta_UG), where=sd_UG > 0)
            sd_UG = sd_UG * sd_factor_at(size_UG, predictions.width_UL)
        p_UG, evidence = plotting.spread_p_values(delta_UG, sd_UG), "p of the prediction"
    return (delta_UG[0], p_UG[0], predictions.gene_names), {"title": f"{name}: predicted change", "evidence": evidence}


@_scanpy_like(plotting.delta_heat_map)
def delta_heat_map(model: AnyModel, /, conditions: Queries = None) -> Call:
    """Heat map of the predicted changes of conditions, in the genes that differ most between them."""
    _, predictions = _predicted_all(model, conditions)
    return (predictions.delta_UG, predictions.conditions, predictions.gene_names), {}


@_scanpy_like(plotting.embedding)
def embedding(model: AnyModel, /, conditions: Queries = None) -> Call:
    """Predicted conditions in the plane of two principal components, with the truth where all were measured."""
    gears, predictions = _predicted_all(model, conditions)
    sizes = [count(len(condition), "gene") for condition in predictions.conditions]
    data = gears.pert_data
    is_measured = data is not None and set(predictions.conditions) <= set(data.screen.conditions)
    return (predictions.delta_UG, predictions.conditions), {
        "groups": sizes if len(set(sizes)) > 1 else None,
        "true_delta": _measured(gears, predictions.conditions)[0] if is_measured else None,
    }


@_scanpy_like(plotting.training_curves)
def training_curves(model: AnyModel | Mapping[str, AnyModel], /, names: str | Sequence[str] = "train_loss") -> Call:
    """Losses and metrics of the last training of a model by epoch; of several models by name in a dict."""
    histories = {}
    for name, gears in _by_name(model).items():
        if gears.result is None or not gears.result.history:
            msg = "this training ran no epoch" if gears.result else "this model was loaded, not trained here"
            msg += ": there is no curve; train(epochs=...) trains the network, and its run folder keeps metrics.jsonl"
            raise ValueError(msg)
        histories[name] = gears.result.history
    if isinstance(model, Mapping):
        return (histories, names), {}
    result = gears_of(model).result
    return (histories["gears"], names), {"best_epoch": result.best_epoch if result else None}


@_scanpy_like(plotting.go_neighbourhood)
def go_neighbourhood(model: AnyModel, /, gene: str) -> Call:
    """A gene and its neighbours in the model's GO graph; squares were perturbed in training."""
    parts = gears_of(model)._need_model()
    known = {parts.pert_names[node] for node in parts.trained_nodes()}
    return (parts.go, gene), {"known": known}


@_scanpy_like(plotting.interaction_map)
def interaction_map(model: AnyModel, /, pairs: Queries = None) -> Call:
    """Predicted scores of pairs above the diagonal, observed ones below it where there are any.

    By default the pairs of the split whose genes it holds alone, too.
    """
    gears = gears_of(model)
    if pairs is None:
        split = gears._need_model().split
        every = set() if split is None else {condition for part in split.parts for condition in split.conditions(part)}
        both = [pair for pair in every if len(pair) == 2]
        pairs = sorted(pair for pair in both if all(replace(pair, genes=(gene,)) in every for gene in pair.genes))
    requested = [gears._condition(pair) for pair in pairs]
    if not requested:
        msg = "the split of this model holds no pair with both genes alone; give pairs="
        raise ValueError(msg)
    singles = [replace(pair, genes=(gene,)) for pair in requested for gene in pair.genes]
    predictions = gears.predict([*singles, *requested])
    _context_of(predictions)
    upper, lower = predicted_interactions(predictions), None
    if gears.pert_data is not None:
        lower = observed_interactions(gears.pert_data.screen)
        lower = lower[lower["condition"].isin(upper["condition"])]
    return (upper,), {"lower": lower if lower is not None and len(lower) else None}


@_scanpy_like(plotting.interaction_volcano)
def interaction_volcano(model: AnyModel, /, pairs: Queries = None) -> Call:
    """Predicted departures of pairs from additivity against their score (:func:`gears.design.interactions_table`)."""
    return (interactions_table(model, pairs, scores=False),), {}


@_scanpy_like(plotting.method_differences)
def method_differences(model: AnyModel, /, metric: str = "pearson_delta_ref", *, split: str = "test") -> Call:
    """Gain of a model over each baseline on a part of the split, with intervals from resampled conditions."""
    table = gears_of(model).evaluate(split, metrics=[metric], n_split_half=0)
    if table is None:
        msg = f"part {split!r} of the split has no perturbed condition to evaluate; choose another"
        raise ValueError(msg)
    return (difference_table(table, subgroups=False), metric), {"model": "gears"}


def _calibrations(models: AnyModel | Mapping[str, AnyModel], queries: Queries) -> dict[str, Calibration]:
    """Calibration of the predicted changes of models by name."""
    judged = {}
    for name, model in _by_name(models).items():
        gears, predictions = _predicted_all(model, queries)
        variance_UG = predictions.to_frame("sd_change").to_numpy() ** 2
        true_UG, noise_UG = _measured(gears, predictions.conditions)
        judged[name] = calibration(
            predictions.delta_UG, variance_UG, true_UG, true_variance=noise_UG, width=predictions.width_UL
        )
    return judged


@_scanpy_like(plotting.coverage_curve)
def coverage_curve(model: AnyModel | Mapping[str, AnyModel], /, conditions: Queries = None) -> Call:
    """Share of measured changes within the predicted interval against its level; of several models by name in a dict.

    The sampling noise of the measured means is added to the predicted variance.
    """
    return (_calibrations(model, conditions),), {}


@_scanpy_like(plotting.error_against_spread)
def error_against_spread(model: AnyModel | Mapping[str, AnyModel], /, conditions: Queries = None) -> Call:
    """Error of predicted changes against their standard deviation, as in :func:`coverage_curve`."""
    return (_calibrations(model, conditions),), {}


@_scanpy_like(plotting.rate_calibration)
def rate_calibration(model: AnyModel, /, threshold: float = 0.2, conditions: Queries = None) -> Call:
    """Share of genes measured beyond a threshold against their probability (:func:`gears.design.hits`).

    In ten bins, of which those with fewer than 20 genes are not drawn.
    """
    gears, predictions = _predicted_all(model, conditions)
    predictions.to_frame("sd")  # an error where there is none
    probability = predictions.true_changes().beyond(threshold).ravel()
    true_UG, _ = _measured(gears, predictions.conditions)
    is_hit = (true_UG > threshold if threshold > 0 else true_UG < threshold).ravel()
    table = pd.DataFrame({"readout": "gene", "p": probability, "hit": is_hit})
    bins = table.groupby(["readout", np.minimum((10 * probability).astype(int), 9)])
    table = bins.agg(expected=("p", "mean"), observed=("hit", "mean"), n=("hit", "size")).reset_index()
    return (table[table["n"] >= 20],), {}


@_scanpy_like(plotting.evidence)
def evidence(model: AnyModel, /, condition: Query, *, genes: str | Iterable[str] | None = None, n: int = 10) -> Call:
    """What a prediction rests on: the share of training conditions and of the steps of the model (`GEARS.explain`)."""
    explanation = gears_of(model).explain(condition, genes, n)
    return (explanation.table,), {"title": f"{explanation.condition.name}: what the prediction rests on"}


@_scanpy_like(plotting.replay_curve)
def replay_curve(table: pd.DataFrame, /) -> Call:
    """Error on held-out conditions while a screen is measured in rounds; of the records of a replay, not of a model."""
    msg = "a model has no replay to draw; give the records of one, a row a round (gears.plotting.replay_curve)"
    raise TypeError(msg)
