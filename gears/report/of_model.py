"""Evaluate a model: its scores beside the baselines, and the report: tables as CSV and JSON, figures, and the page."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gears.conditions import Condition
from gears.core._messages import count, shorten
from gears.core._numbers import clipped
from gears.core._options import anything, list_of_names, option, options, switch, text
from gears.data.splits._split import PARTS, Split
from gears.evaluation._beside import baseline_predictions, comparison_table, folds_table
from gears.evaluation._fitted import fitted_conditions, subgroup_line
from gears.evaluation._scoring import N_SPLIT_HALF, Predicted, ScoreOptions, split_half
from gears.evaluation.baselines import DEFAULT_BASELINES
from gears.evaluation.compare import Comparison
from gears.evaluation.intervals import DEFAULT_BOOTSTRAP, Bootstrap
from gears.evaluation.truth import ScreenCells, Truth
from gears.evaluation.verdict import MIN_CONDITIONS, Results, check_report_folder
from gears.files._atomic import write_atomically
from gears.files._paths import user_path
from gears.files.formats import write_text
from gears.graphs._embeddings import GeneEmbedding
from gears.plotting._style import image_bytes
from gears.prediction._stream import predict
from gears.prediction.explain import explain
from gears.prediction.predictions import Predictions
from gears.priors._source import fold_predictions, groups_of, perturbed_conditions
from gears.report._page import Profiles, build_page, report_figures

if TYPE_CHECKING:
    from gears.model._folder import ModelParts
    from gears.model.network import GEARSNetwork
    from gears.pertdata import PertData

logger = logging.getLogger(__name__)

PRIOR_ALONE, FOLDS, N_FOLDS = "prior alone", "folds", 5
DRAWN = ("additive", "matching_mean", "train_mean")  # baselines in the figures of single conditions


@options
class EvaluateCall(ScoreOptions):
    """Arguments of :meth:`gears.GEARS.evaluate`: what is scored, how, and where the report goes."""

    # fmt: off
    part: str | None = option(None, text().or_none(), formerly="split",
        help="part of the split: test, val or train; folds: every condition, by priors fitted in five folds without "
        "it; default: test, or folds where test has fewer than ten conditions and the prior alone predicts")
    _: KW_ONLY
    baselines: Sequence[str] = option(DEFAULT_BASELINES, list_of_names(),
        help="names of baselines (docs/evaluation.md describes each)")
    n_split_half: int = split_half(N_SPLIT_HALF)
    mask_target: bool | None = option(None, switch().or_none(),  # type: ignore[assignment]
        help="exclude each condition's own target genes from its metrics; by default as in the training")
    embedding: GeneEmbedding | None = option(None, anything(), command="",
        help="gene embeddings for the baseline embedding_ridge; by default those that the network started from")
    name: str = option("gears", text(), help="name of the model in the table")
    report: str | Path | None = option(None, text().or_none(),
        help="folder for the HTML page, CSV, JSON and figures (gears.report.write_report)")
    shown: Sequence[str] = option((), anything(), command="", help="conditions in the report's figures")
    # fmt: on


def evaluate_model(
    pert_data: PertData, network: GEARSNetwork | None, parts: ModelParts, options: EvaluateCall
) -> pd.DataFrame | None:
    """Evaluate a model; see :meth:`gears.GEARS.evaluate`."""
    split, report = pert_data.split, options.report
    assert split is not None
    part, profiles = options.part or _part_to_score(split, parts), None
    conditions = [] if part == FOLDS else [one for one in split.conditions(part) if not one.is_control]
    if report is not None:
        check_report_folder(report, "report")
    if part == FOLDS:
        where, table = "in folds", _table_of_folds(pert_data, parts, options)
    elif conditions:
        fitted, predictions = _fitted(pert_data, parts), _predictions(network, parts, conditions, options.name)
        where, table = f"part {part}", _table_of_part(pert_data, parts, part, fitted, predictions, options)
        if report is not None and not any(one.suffix for one in conditions):  # figures of conditions need one control
            profiles = _profiles(pert_data, network, parts, part, fitted, predictions[options.name], options)
    else:
        logger.info("part %r of the split has no perturbed condition to evaluate", part)
        return None
    if report is not None:
        details = {"screen": str(pert_data.dataset_name), "split": f"{split.name}, seed {split.seed}, {where}"}
        write_report(table, report, title=f"{options.name} on {details['screen']}", profiles=profiles, details=details)
    return table


def _part_to_score(split: Split, parts: ModelParts) -> str:
    """The test part, or where it has few conditions all of them in folds, if the prior alone predicts."""
    few = 0 < len(fitted_conditions(split, ["test"])) < MIN_CONDITIONS
    return FOLDS if few and parts.prior is not None and not parts.uses_network else "test"


def _fitted(pert_data: PertData, parts: ModelParts) -> list[Condition]:
    """Conditions of the screen that the model is fitted to, or will be: baselines are fitted to the same."""
    split = pert_data.split if parts.split is None else parts.split
    assert split is not None
    in_screen = set(pert_data.screen.conditions)
    perturbed = fitted_conditions(split, parts.fitted_parts or ("train",))
    return [condition for condition in perturbed if condition in in_screen]


def _scoring(pert_data: PertData, parts: ModelParts, options: EvaluateCall) -> dict[str, Any]:
    """Arguments that the tables of a part and of folds share: by default the model's mask and gene embeddings."""
    arguments: dict[str, Any] = {name: getattr(options, name) for name in (*ScoreOptions.names(), "baselines")}
    if options.mask_target is None:
        arguments["mask_target"] = parts.config.mask_target
    arguments["embedding"] = start_embedding(parts) if options.embedding is None else options.embedding
    return arguments | {"method": options.name, "annotation": pert_data.annotation}


def _table_of_part(
    pert_data: PertData,
    parts: ModelParts,
    part: str,
    fitted: Sequence[Condition],
    predictions: Mapping[str, Predictions],
    options: EvaluateCall,
) -> pd.DataFrame:
    """Scores of the conditions of a part, by the model and its variants."""
    split, name = pert_data.split, options.name
    assert split is not None
    conditions = predictions[name].conditions
    table = comparison_table(
        predictions[name],
        conditions,
        pert_data.screen,
        split if parts.split is None else parts.split,
        others={method: one for method, one in predictions.items() if method != name},
        part_screen=pert_data.screen_of(part),
        fitted_parts=parts.fitted_parts or ("train",),
        fitted=fitted,
        **_scoring(pert_data, parts, options),
    )
    line = subgroup_line(split, part, conditions, fitted)
    table.attrs["notes"] += [] if line is None else [line]
    known = len(set(conditions) & set(fitted))
    if known:
        table.attrs["notes"].append(
            f"the model was fitted to {known} of these {count(len(conditions), 'condition')}: their scores do not say "
            "how good predictions of unseen ones are"
        )
    if parts.prior is not None and parts.prior.network_weight == 0:
        table.attrs["labels"] = {name: f"{name} (the prior alone)"}
    return table


def _table_of_folds(pert_data: PertData, parts: ModelParts, options: EvaluateCall) -> pd.DataFrame:
    """Scores of every condition of the split by priors that have not seen it; see :meth:`gears.GEARS.evaluate`."""
    split, screen = pert_data.split, pert_data.screen
    assert split is not None
    if parts.prior is None or parts.uses_network:
        msg = f"part={FOLDS!r} needs a model whose predictions come from the prior alone; use cross_validate()"
        raise ValueError(msg)
    if parts.provenance.get("sources") and not parts.inputs.has_sources:
        sources = shorten(parts.provenance["sources"])
        logger.warning(
            "the model was trained with %s, which the folds do not have: it is better than they say", sources
        )
    conditions = perturbed_conditions(pert_data, tuple(part for part in PARTS if part in split.parts))
    groups = groups_of(pert_data, conditions)
    numbers = {group: number % N_FOLDS for number, group in enumerate(dict.fromkeys(groups))}
    fold_U = np.array([numbers[group] for group in groups])
    change_UG, sd_UG = fold_predictions(pert_data, conditions, fold_U, parts.inputs)
    control_ids = screen.control_of[[screen.id_of(condition) for condition in conditions]]
    predicted = Predicted(np.asarray(screen.statistics.mean[control_ids] + change_UG), sd_UG)
    table = folds_table(predicted, conditions, fold_U, screen, **_scoring(pert_data, parts, options))
    n_test = count(len(fitted_conditions(split, ["test"])), "test condition")
    head = "" if parts.prior.head is None else "; its correction network is not scored here"
    table.attrs["notes"] = [
        f"{n_test}, so all {len(conditions)} in {count(len(set(fold_U.tolist())), 'fold')}, "
        f"by priors fitted to the other folds{head}"
    ]
    table.attrs["advice"] = [
        f"{n_test}: too few, so priors fitted in folds predict all {len(conditions)}{head}",
        "stricter, held out as in the split: model.cross_validate()",
    ]
    return table


def start_embedding(parts: ModelParts) -> GeneEmbedding | None:
    """The embeddings that the network started from; None where there are none, as after loading."""
    start_PH = parts.inputs.start_PH
    if start_PH is None:
        return None
    known_P = np.flatnonzero(~np.isnan(start_PH).any(axis=1))
    names = tuple(parts.pert_names[node] for node in known_P)
    return GeneEmbedding(names, start_PH[known_P]) if names else None


def _predictions(
    network: GEARSNetwork | None, parts: ModelParts, conditions: Sequence[Condition], name: str
) -> dict[str, Predictions]:
    """Predictions, not clipped, of the model, of its prior alone, or with the best network weight above 0."""
    predictions = {name: predict(network, parts, conditions, clip=False)}
    prior = parts.prior
    if prior is None:
        return predictions
    weights = {PRIOR_ALONE: 0.0}
    if prior.network_weight == 0:
        tried = prior.report.get("best_weight_tried")
        weights = {f"prior + network x {tried:g}": float(tried)} if tried else {}
    for label, weight in weights.items():
        variant = dataclasses.replace(parts, prior=dataclasses.replace(prior, network_weight=weight))
        predictions[label] = predict(network, variant, conditions, clip=False)
    return predictions


def _profiles(
    pert_data: PertData,
    network: GEARSNetwork | None,
    parts: ModelParts,
    part: str,
    fitted: Sequence[Condition],
    predicted: Predictions,
    options: EvaluateCall,
) -> Profiles:
    """What the report's figures show of the model and of the baselines :data:`DRAWN`."""
    conditions, screen = predicted.conditions, pert_data.screen_of(part)
    truth = Truth.of(screen, conditions, fitted, cells=ScreenCells(screen) if screen.has_cells else None)
    drawn, _ = baseline_predictions(conditions, pert_data.screen, fitted, DRAWN, annotation=pert_data.annotation)
    means = {options.name: predicted.expression_UG} | {name: one.mean_UG for name, one in drawn.items()}
    profiles = {name: clipped(mean_UG, options.clip, screen.nonnegative) for name, mean_UG in means.items()}
    shown = [Condition.of(condition).name for condition in options.shown]
    has_basis = parts.prior is not None and parts.prior.basis is not None
    explained = partial(explain, network, parts) if has_basis else None
    return Profiles(truth, profiles, pert_data.screen.gene_names, shown, predicted.sd, explained)


def write_report(
    evaluation: pd.DataFrame | Comparison,
    folder: str | Path,
    *,
    title: str | None = None,
    models: Sequence[str] = (),
    runs: pd.DataFrame | None = None,
    left_out: Mapping[str, str] | None = None,
    profiles: Profiles | None = None,
    details: Mapping[str, str] | None = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> dict[str, Path]:
    """Write the page of an evaluation into a folder, with its tables as CSV and JSON and its figures.

    Parameters
    ----------
    evaluation
        The result of :func:`gears.evaluation.compare`, or a tidy table such as that of
        :func:`gears.evaluation.comparison_table`.
    folder
        Folder of the report, created if missing; an earlier report there is replaced.
    title
        Title of the page; "Comparison" or "Evaluation" by default.
    models
        Methods that are compared with all others; by default the models of the comparison, or the table's first.
    runs, left_out
        Costs of fits, and excluded methods with the reason; by default those of the comparison or the table.
    profiles
        Profiles for the figures of changes; without them the page has no such figures.
    details
        Further facts about the data, by name.
    bootstrap
        Options of the intervals.

    Returns
    -------
    dict
        Paths by kind: ``table``, ``summary``, ``differences``, ``json``, ``page``, and a figure's name.
    """
    folder = user_path(folder)
    if isinstance(evaluation, Comparison):
        title, models = title or "Comparison", models or evaluation.models
        runs = evaluation.runs if runs is None else runs
        left_out = evaluation.left_out if left_out is None else left_out
        evaluation = evaluation.table
    results = Results.of(
        evaluation, title=title or "Evaluation", models=models, runs=runs, left_out=left_out, details=details,
        bootstrap=bootstrap,
    )  # fmt: skip
    written = results.save(folder)
    images = {}
    for name, (figure, caption) in report_figures(results, profiles).items():
        images[name] = (image_bytes(figure), caption)
        for suffix, data in (("png", images[name][0]), ("svg", image_bytes(figure, "svg"))):
            path = folder / "figures" / f"{name}.{suffix}"
            written[f"{name}.{suffix}"] = write_atomically(path, partial(Path.write_bytes, data=data))
    written["page"] = write_text(folder / "report.html", build_page(results, images))
    return written
