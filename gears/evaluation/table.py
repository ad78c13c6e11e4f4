"""Score a model beside the baselines in one table, with lines that describe what methods were fitted to."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from gears.conditions import Condition
from gears.core.messages import count, shorten
from gears.core.progress import followed
from gears.data.splits.split import subgroup_names
from gears.evaluation.baselines import DEFAULT_BASELINES
from gears.evaluation.baselines.base import fitted_conditions, make_baseline
from gears.evaluation.baselines.regression import with_embedding
from gears.evaluation.predicted import Predicted
from gears.evaluation.scoring import ScoreOptions, predict_baseline, score, settings_of

if TYPE_CHECKING:
    from gears.data.screen.prepared import PreparedScreen
    from gears.data.splits.split import Split
    from gears.graphs.annotation import GeneAnnotation
    from gears.graphs.embeddings import GeneEmbedding

log = logging.getLogger(__name__)

PART_WORDS = {"train": "training", "val": "validation"}


def comparison_table(
    predicted: Any,
    conditions: Iterable[Condition | str],
    screen: PreparedScreen,
    split: Split,
    *,
    baselines: Sequence[str] = DEFAULT_BASELINES,
    others: Mapping[str, Any] | None = None,
    method: str = "model",
    annotation: GeneAnnotation | None = None,
    embedding: GeneEmbedding | None = None,
    part_screen: PreparedScreen | None = None,
    fitted_parts: Sequence[str] = ("train",),
    fitted: Sequence[Condition] | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Score a model's predictions and those of the baselines on the same conditions.

    Parameters
    ----------
    predicted
        Predicted means of the model, (U, G), or :class:`gears.Predictions`, whose standard deviations are scored too.
    conditions
        The U evaluated conditions.
    screen, split
        The prepared screen and the split that the model was fitted to.
    baselines
        Names of baselines. One that cannot be fitted is excluded, with a warning;
        ``table.attrs["left_out"]`` has the reason.
    others
        Further predictions by method name; in the verdict they are no baselines.
    method
        Name of the model in the table.
    annotation
        GO terms for the baselines that use them; the packaged human ones by default.
    embedding
        Gene embeddings: ``"embedding_ridge"`` is added to the baselines.
    part_screen
        The screen with the control cells that true changes are relative to; `screen` by default.
    fitted_parts
        Parts of the split that the model is fitted to, and so the baselines as well.
    fitted
        The conditions that the methods are fitted to, instead of those of `fitted_parts`.
    **options
        Fields of :class:`gears.evaluation.scoring.ScoreOptions`.

    Returns
    -------
    pd.DataFrame
        As :func:`gears.evaluation.scoring.score`. ``attrs`` hold the methods that are no baselines
        (``"models"``), the evaluated one (``"model"``), and lines to show above the table (``"notes"``).
    """
    evaluated = [Condition.of(condition) for condition in conditions]
    if fitted is None:
        fitted = fitted_conditions(split, fitted_parts)
    predictions = {method: predicted, **(others or {})}
    baseline_values, left_out = baseline_predictions(
        evaluated, screen, fitted, baselines, annotation=annotation, embedding=embedding
    )
    score_options = ScoreOptions.from_mapping(options)
    table = score(
        predictions | baseline_values,
        evaluated,
        screen,
        screen if part_screen is None else part_screen,
        fitted,
        score_options,
    )
    notes = [fitted_line({"all methods": [count_parts(split, fitted_parts, fitted)]})]
    table.attrs.update(left_out=left_out, model=method, models=list(predictions), notes=notes)
    return table


def baseline_predictions(
    conditions: Sequence[Condition],
    screen: PreparedScreen,
    fitted: Sequence[Condition],
    names: Sequence[str] = DEFAULT_BASELINES,
    *,
    annotation: GeneAnnotation | None = None,
    embedding: GeneEmbedding | None = None,
) -> tuple[dict[str, Predicted], dict[str, str]]:
    """Predictions of baselines by name, not clipped, and reasons of those that could not be fitted.

    With an `embedding`, ``"embedding_ridge"`` is one of them.
    """
    predictions: dict[str, Predicted] = {}
    left_out: dict[str, str] = {}
    if not conditions:
        return predictions, left_out
    settings = settings_of(screen, conditions, fitted)
    names = with_embedding(names, embedding)
    for name in followed(names, len(names), "fitting", "baselines"):
        baseline = make_baseline(name, clip=False, annotation=annotation, embedding=embedding)
        try:
            predictions[name], reasons = predict_baseline(baseline, settings, name)
        except ValueError as error:
            left_out[name] = str(error)
            log.warning("baseline %s is excluded: %s", name, error)
        else:
            left_out |= reasons
    return predictions, left_out


def count_parts(
    split: Split, parts: Iterable[str], fitted: Iterable[Condition] | None = None
) -> dict[str, int]:
    """Number of perturbed conditions by part (of those among `fitted`) that a method is fitted to."""
    counted = None if fitted is None else set(fitted)
    conditions_of = {part: fitted_conditions(split, [part]) for part in parts}
    return {
        part: len([c for c in conditions if counted is None or c in counted])
        for part, conditions in conditions_of.items()
    }


def fitted_line(counts: Mapping[str, Sequence[Mapping[str, int]]]) -> str:
    """Line about the conditions that methods were fitted to.

    Parameters
    ----------
    counts
        By method: the number of conditions by part of the split (:func:`count_parts`), of each split.

    Examples
    --------
    >>> fitted_line({"all methods": [{"train": 24, "val": 4}]})
    'all methods fitted to 24 training and 4 validation conditions'
    >>> fitted_line({"a": [{"train": 24}], "b": [{"train": 25, "val": 0}, {"train": 24, "val": 3}]})
    'a fitted to 24 training conditions; b fitted to 24 to 25 training and 0 to 3 validation conditions'
    """
    methods: dict[str, list[str]] = {}
    for method, splits in counts.items():
        parts = {part: None for split in splits for part in split}
        numbers = {part: [split.get(part, 0) for split in splits] for part in parts}
        numbers_of_parts = [
            f"{_range(n)} {PART_WORDS.get(part, part)}"
            for part, n in numbers.items()
            if any(n) or part == "train"
        ]
        largest = sum(max(n) for n in numbers.values())
        text = f"{' and '.join(numbers_of_parts)} condition{'' if largest == 1 else 's'}"
        methods.setdefault(text, []).append(method)
    if len(methods) == 1 and sum(map(len, methods.values())) > 1:
        methods = {text: ["all methods"] for text in methods}
    return "; ".join(f"{shorten(names, 4)} fitted to {text}" for text, names in methods.items())


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low}" if low == high else f"{low} to {high}"


def subgroup_line(
    split: Split, part: str, conditions: Sequence[Condition], fitted: Sequence[Condition]
) -> str | None:
    """One line if subgroups, counted from the fitted conditions, differ from those of the split; else None."""
    published = split.subgroup_by_condition(part)
    counted = zip(conditions, subgroup_names(conditions, fitted), strict=True)
    differing = [
        f"{condition.name} {name}, there {published[condition]}"
        for condition, name in counted
        if published.get(condition, name) != name
    ]
    if not differing:
        return None
    return (
        f"subgroups count genes of the {count(len(fitted), 'fitted condition')}; the split file names "
        f"{len(differing)} of {count(len(conditions), 'condition')} otherwise: {shorten(differing, 3)}"
    )
