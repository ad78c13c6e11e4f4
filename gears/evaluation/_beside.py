"""Score a model's predictions beside those of the baselines, on the same conditions."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gears.conditions import Condition
from gears.core._progress import followed
from gears.distributed._log import quiet
from gears.evaluation._fitted import control_lines, count_parts, fitted_conditions, fitted_line, settings_of
from gears.evaluation._scoring import Predicted, ScoreOptions, by_fold, predict_baseline, score
from gears.evaluation.baselines import DEFAULT_BASELINES
from gears.evaluation.baselines._base import make_baseline
from gears.evaluation.baselines._regression import with_embedding

if TYPE_CHECKING:
    from gears.data.screen._prepared import PreparedScreen
    from gears.data.splits._split import Split
    from gears.graphs._annotation import GeneAnnotation
    from gears.graphs._embeddings import GeneEmbedding

logger = logging.getLogger(__name__)


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
        Fields of :class:`gears.evaluation._scoring.ScoreOptions`.

    Returns
    -------
    pd.DataFrame
        As :func:`gears.evaluation._scoring.score`. ``attrs`` hold the methods that are no baselines
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
    notes = [fitted_line({"all methods": [count_parts(split, fitted_parts, fitted)]}), *control_lines(table)]
    table.attrs.update(left_out=left_out, model=method, models=list(predictions), notes=notes)
    return table


def folds_table(
    predicted: Any,
    conditions: Sequence[Condition],
    fold_U: np.ndarray,
    screen: PreparedScreen,
    *,
    baselines: Sequence[str] = DEFAULT_BASELINES,
    method: str = "model",
    annotation: GeneAnnotation | None = None,
    embedding: GeneEmbedding | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Score predictions of the conditions of each fold from the other folds, beside baselines fitted to the same.

    Arguments and table are those of :func:`comparison_table`; ``attrs["folds"]`` has the number of folds.
    """
    predictions = {method: predicted}
    left_out: dict[str, str] = {}
    parts: dict[str, list[Predicted]] = {}
    rows_of_folds = []
    with quiet():  # the same warning in every fold; the table says what is excluded
        for rows, held_out, known in by_fold(conditions, fold_U):
            rows_of_folds.append(rows)
            of_fold, reasons = baseline_predictions(
                held_out, screen, known, baselines, annotation=annotation, embedding=embedding
            )
            left_out |= reasons
            for name, one in of_fold.items():
                parts.setdefault(name, []).append(one)
    # from the order of the folds to that of the conditions
    back_U = np.argsort(np.concatenate(rows_of_folds))
    for name, of_folds in parts.items():
        if len(of_folds) == len(rows_of_folds):
            predictions[name] = Predicted.joined(of_folds).rows(back_U)
    score_options = ScoreOptions.from_mapping(options)
    table = score(predictions, conditions, screen, screen, conditions, score_options, fold_U)
    table.attrs.update(
        left_out=left_out, model=method, models=[method], notes=control_lines(table), folds=len(rows_of_folds)
    )
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
            logger.warning("baseline %s is excluded: %s", name, error)
        else:
            left_out |= reasons
    return predictions, left_out
