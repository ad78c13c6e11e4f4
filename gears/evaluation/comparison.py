"""Several methods, seeds and splits at once: one tidy table, costs, and paired differences to the baselines."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gears.conditions import Condition
from gears.data.splits.split import Split
from gears.data.unit_screen import SettingView
from gears.evaluation.baselines import make_baseline
from gears.evaluation.baselines.means_table import training_conditions
from gears.evaluation.cells import ScreenCells
from gears.evaluation.compared import RUN_COLUMNS, CompareOptions, Comparison
from gears.evaluation.measure import measured
from gears.evaluation.metrics import get_metric
from gears.evaluation.settings import BaselineBySetting, Scope, scopes_of
from gears.evaluation.table import score_table, with_scaled
from gears.evaluation.truth import Truth
from gears.messages import unknown_name
from gears.progress import followed

if TYPE_CHECKING:
    from gears.data.screen import PreparedScreen
    from gears.graphs.annotation import GeneAnnotation

log = logging.getLogger(__name__)

Method = (
    Any  # an estimator (fit, predict), or a callable that makes one (given the seed where there are seeds)
)


def compare(
    models: Mapping[str, Method],
    screen: PreparedScreen,
    splits: Split | Iterable[Split] | Mapping[str, Split],
    *,
    seeds: Sequence[int] = (),
    annotation: GeneAnnotation | None = None,
    **options: Any,
) -> Comparison:
    """Fit methods and baselines to the training part of every split and score them on its test part.

    Parameters
    ----------
    models
        By name: an object with ``fit(screen, split)`` and ``predict(conditions)``, or a callable that makes
        one. Predictions are means (U, G), or :class:`gears.Predictions`. May be empty: baselines alone.
    screen
        The prepared screen. In one of several contexts conditions are units, each scored within its own context;
        baselines see what trains there and, of conditions that train elsewhere only, their mean change there.
    splits
        One or more splits, such as ``folds(screen, 5, repeats=5)``, or splits by name.
    seeds
        Every model is made once per seed: its callable gets the seed.
    annotation
        GO terms for the baselines that use them; the packaged human ones by default.
    **options
        Fields of :class:`CompareOptions`.

    Raises
    ------
    ValueError
        Names that clash or are unknown, no split, a part without conditions.

    Examples
    --------
    >>> from gears.data.splits import folds
    >>> from gears.evaluation.baselines import make_baseline
    >>> mine = make_baseline("additive")  # anything with fit and predict
    >>> result = compare({"mine": mine}, screen, folds(screen, 3), baselines=["train_mean"], halvings=0)
    >>> sorted(result.table["method"].unique())
    ['mine', 'train_mean']
    """
    settings = CompareOptions(**options)
    named = _named(splits)
    _check_methods(models, settings, seeds)
    tables, runs = [], []
    left_out: dict[str, str] = {}
    for split_name, split in named.items():
        scored = _one_split(models, screen, split, seeds, annotation, settings)
        tables.append(scored.table.assign(split=split_name))
        runs.append(scored.runs.assign(split=split_name))
        prefix = f" ({split_name})" if len(named) > 1 else ""
        left_out |= {f"{name}{prefix}": reason for name, reason in scored.left_out.items()}
        log.info("compared %s: %d methods", split_name, scored.table["method"].nunique())
    table = pd.concat(tables, ignore_index=True)
    table = table[["split", "seed", *(c for c in table.columns if c not in ("split", "seed"))]]
    table.attrs.update(models=list(models), model=next(iter(models), None))
    return Comparison(table, pd.concat(runs, ignore_index=True)[RUN_COLUMNS], tuple(models), left_out)


def _one_split(
    models: Mapping[str, Method],
    screen: PreparedScreen,
    split: Split,
    seeds: Sequence[int],
    annotation: GeneAnnotation | None,
    settings: CompareOptions,
) -> Comparison:
    chosen = _evaluated(split, settings.part)
    train = training_conditions(split)
    predictions: dict[tuple[str, int | str], np.ndarray] = {}
    runs: list[tuple[Any, ...]] = []
    left_out: dict[str, str] = {}
    makers = _makers(models, seeds, annotation, settings)
    for (name, seed), make in followed(makers.items(), len(makers), "fitting", "methods"):
        try:
            with measured() as cost:
                method = make()
                method.fit(screen, split)
                predicted_UG = as_means(method.predict(chosen), chosen, len(screen.gene_names), name)
        except ValueError as error:
            left_out[name] = str(error)
            log.warning("%s is left out: %s", name, error)
            continue
        predictions[name, seed] = predicted_UG
        costs = (cost.seconds, cost.cpu_seconds, cost.peak_mb)
        runs.append(("", seed, name, len(train), len(chosen), *costs))
    keys = {f"{number}": key for number, key in enumerate(predictions)}
    methods = {short: predictions[key] for short, key in keys.items()}
    if not methods:
        msg = f"no method could be fitted: {left_out}"
        raise ValueError(msg)
    scopes = scopes_of(screen, chosen, train)
    table = pd.concat([_scored(scope, methods, settings) for scope in scopes], ignore_index=True)
    table.insert(0, "seed", table["method"].map(lambda short: keys[short][1]))
    table["method"] = table["method"].map(lambda short: keys[short][0])
    return Comparison(table, pd.DataFrame(runs, columns=RUN_COLUMNS), tuple(models), left_out)


def _scored(scope: Scope, methods: Mapping[str, np.ndarray], settings: CompareOptions) -> pd.DataFrame:
    """Values of all methods for conditions that are scored together."""
    with_cells = any(get_metric(name).needs_cells for name in settings.metrics)
    cells = ScreenCells(scope.screen, settings.max_cells, settings.seed) if with_cells else None
    truth = Truth.of(
        scope.screen,
        scope.conditions,
        scope.train,
        n_top=settings.n_top,
        cells=cells,
        reference_mean_G=scope.reference_mean_G,
    )
    own = {name: predicted_UG[scope.rows] for name, predicted_UG in methods.items()}
    if isinstance(scope.screen, SettingView):  # a baseline that could not be fitted here says nothing at all
        own = {
            name: predicted_UG for name, predicted_UG in own.items() if not np.isnan(predicted_UG).all()
        } or own
    table = score_table(own, truth, scope.subgroups, settings.metrics)
    if settings.halvings:
        table = with_scaled(table, own, scope.screen, truth, halvings=settings.halvings, seed=settings.seed)
    return scope.named(table)


def as_means(
    predicted: Any, conditions: Sequence[Condition], n_genes: int, name: str = "the method"
) -> np.ndarray:
    """Predicted means (U, G) float64 from an array or from :class:`gears.Predictions`; a wrong shape is refused."""
    predicted_UG = np.asarray(getattr(predicted, "expression_UG", predicted), dtype=np.float64)
    if predicted_UG.shape != (len(conditions), n_genes):
        msg = (
            f"{name} predicts an array of shape {predicted_UG.shape}; expected {(len(conditions), n_genes)}: one row "
            "per condition, one column per gene"
        )
        raise ValueError(msg)
    return predicted_UG


def split_name(split: Split) -> str:
    """What a split is called in tables."""
    arguments = split.arguments or {}
    if "fold" in arguments:
        return f"repeat {arguments.get('repeat', 0)} fold {arguments['fold']}"
    return f"{split.name} seed {split.seed}"


def _named(splits: Split | Iterable[Split] | Mapping[str, Split]) -> dict[str, Split]:
    if isinstance(splits, Mapping):
        named = {str(name): split for name, split in splits.items()}
    else:
        listed = [splits] if isinstance(splits, Split) else list(splits)
        names = [split_name(split) for split in listed]
        unique = len(set(names)) == len(names)
        named = {
            name if unique else f"{number}: {name}": split
            for number, (name, split) in enumerate(zip(names, listed, strict=True))
        }
    if not named:
        msg = "there is no split to compare on; give at least one, such as pert_data.split"
        raise ValueError(msg)
    return named


def _check_methods(models: Mapping[str, Method], settings: CompareOptions, seeds: Sequence[int]) -> None:
    twice = sorted(set(models) & set(settings.baselines))
    if twice:
        msg = f"models and baselines share names: {', '.join(twice)}; rename the models"
        raise ValueError(msg)
    for name, model in models.items():
        ready = hasattr(model, "fit") and hasattr(model, "predict") and not isinstance(model, type)
        if not (ready or callable(model)):
            msg = f"model {name!r} is a {type(model).__name__}; expected an object with fit and predict, or a callable"
            raise TypeError(msg)
        if ready and seeds:
            msg = f"model {name!r} is one object, but seeds={list(seeds)}: give a callable that makes one from a seed"
            raise ValueError(msg)


def _makers(
    models: Mapping[str, Method],
    seeds: Sequence[int],
    annotation: GeneAnnotation | None,
    settings: CompareOptions,
) -> dict[tuple[str, int | str], Callable[[], Any]]:
    """What makes each method, by its name and seed ("" where there is none)."""
    makers: dict[tuple[str, int | str], Callable[[], Any]] = {}
    for name, model in models.items():
        if hasattr(model, "fit") and not isinstance(model, type):
            makers[name, ""] = partial(_given, model)
        elif not seeds:
            makers[name, ""] = model
        else:
            for seed in seeds:
                makers[name, seed] = partial(model, seed)
    for name in settings.baselines:
        makers[name, ""] = partial(_baseline, name, settings.clip, annotation)
    return makers


def _baseline(name: str, clip: bool, annotation: GeneAnnotation | None) -> BaselineBySetting:
    return BaselineBySetting(make_baseline(name, clip=clip, annotation=annotation))


def _given(method: Any) -> Any:
    return method


def _evaluated(split: Split, part: str) -> list[Condition]:
    if part not in split.parts:
        raise ValueError(unknown_name("part of the split", part, list(split.parts)))
    chosen = [condition for condition in split.conditions(part) if not condition.is_control]
    if not chosen:
        msg = f"part {part!r} of the split holds no perturbed condition; there is nothing to evaluate"
        raise ValueError(msg)
    return list(dict.fromkeys(chosen))
