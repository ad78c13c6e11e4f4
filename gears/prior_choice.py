"""The prior of a run: fitted to the training conditions, its network's weight chosen on inner folds of them."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gears.assembly import condition_tables, pair_tables, perturbed_in, validation_of
from gears.caching import cached_arrays
from gears.conditions import Condition
from gears.contexts.prior import PriorSource, prior_source
from gears.files import content_hash
from gears.model.network import GEARSNetwork
from gears.priors import FittedPrior, Prior, read_prior
from gears.priors.evidence import sample
from gears.priors.screen import most_judged
from gears.progress import followed
from gears.training.conditions import ConditionLoader
from gears.training.defaults import settle
from gears.training.model_folder import ModelParts
from gears.training.options import TrainOptions
from gears.training.run import run_training
from gears.training.tables import predict_changes
from gears.training.tasks import Reducer

if TYPE_CHECKING:
    from gears.pertdata import PertData

logger = logging.getLogger(__name__)

FORMAT = 8  # raise when a prior of the same key would come out differently
GATES = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
"""What the network's change may be multiplied by."""
N_FOLDS = 3
INNER_STEPS = 100
"""Optimiser steps of an inner run, about: what a network has not begun to learn then it does not learn."""
LEAST_CONDITIONS = 20
"""With fewer training conditions inner folds say nothing: the network's weight is then 0."""
MARGIN = 0.02
"""How much the criterion must gain before the network counts at all."""


def prior_of(pert_data: PertData, parts: ModelParts, options: TrainOptions) -> FittedPrior | None:
    """The prior for a run, from the screen's cache where it was made before; None where none is asked for.

    It depends on the screen, the training conditions, the annotation, the graphs and the
    network's settings, on nothing else: neither on held-out conditions nor on the number of workers.
    """
    conditions = _perturbed_train(pert_data)
    if options.prior is None or parts.config.no_perturb or not conditions:
        return None
    screen = pert_data.screen
    key = {
        "format": FORMAT,
        "screen": screen.content_hash,
        "conditions": [screen.id_of(condition) for condition in conditions],
        "groups": [str(group) for group in prior_source(pert_data).groups(conditions)],
        "nodes": list(parts.pert_names),
        "annotation": pert_data.annotation.content_hash,
        "graphs": [parts.go.hash, parts.coexpress.hash],
        "model": parts.config.to_dict(),
        "start": None if parts.start_PH is None else content_hash(parts.start_PH),
    }
    arrays = cached_arrays(
        screen.folder / "priors", "prior", key, lambda: _built(pert_data, parts, conditions)
    )
    report = json.loads(str(arrays.pop("report")))
    left_out_CG = arrays.pop("left_out")
    return FittedPrior(read_prior(arrays, report), left_out_CG)


def take_up_prior(
    pert_data: PertData, parts: ModelParts, options: TrainOptions, network: GEARSNetwork
) -> tuple[ModelParts, np.ndarray | None]:
    """The model with the prior of a run, and what that knows of each condition of the screen, (C, G).

    The network's change starts at zero where it gets a prior for the first time.
    """
    fitted = prior_of(pert_data, parts, options)
    if fitted is None:
        return dataclasses.replace(parts, prior=None), None
    if parts.prior is None:
        begin_at_zero(network)
    return dataclasses.replace(parts, prior=fitted.prior), prior_rows(
        pert_data, _perturbed_train(pert_data), fitted
    )


def prior_rows(pert_data: PertData, conditions: Sequence[Condition], fitted: FittedPrior) -> np.ndarray:
    """Changes by condition of the screen, (C, G) float32: those fitted to each predicted without itself, else 0.

    So the network learns the errors that the prior makes on conditions that it has not seen.
    """
    screen = pert_data.screen
    rows_CG = np.zeros((len(screen.conditions), len(screen.gene_names)), dtype=np.float32)
    rows_CG[[screen.id_of(condition) for condition in conditions]] = fitted.left_out_CG
    return rows_CG


def begin_at_zero(network: GEARSNetwork) -> None:
    """Let the network's change start at zero: its last layer is set to zero."""
    with torch.no_grad():
        network.indv_w2.zero_()
        network.indv_b2.zero_()


def _perturbed_train(pert_data: PertData) -> list[Condition]:
    """Perturbed training conditions by their id, so that the order of a split does not matter."""
    return sorted(perturbed_in(pert_data.split, "train"), key=pert_data.screen.id_of)


def _built(pert_data: PertData, parts: ModelParts, conditions: Sequence[Condition]) -> dict[str, np.ndarray]:
    source = prior_source(pert_data)
    data = source.data(conditions, parts.start_PH)
    fitted = source.fit(conditions, data)
    _tell_score(pert_data, fitted.prior)
    gate, tried = _gate(source, parts, conditions, data)
    report = {**fitted.prior.report, "gate": gate, "gates": tried}
    prior = dataclasses.replace(fitted.prior, network_weight=gate, report=report)
    return {**prior.arrays(), "report": np.array(json.dumps(report)), "left_out": fitted.left_out_CG}


def closed_form(pert_data: PertData, parts: Sequence[str] = ("train",)) -> Prior:
    """The prior alone, without a network, fitted to the conditions of some parts of the split."""
    named = [condition for part in parts for condition in perturbed_in(pert_data.split, part)]
    conditions = sorted(named, key=pert_data.screen.id_of)
    source = prior_source(pert_data)
    fitted = source.fit(conditions, source.data(conditions))
    return dataclasses.replace(fitted.prior, network_weight=0.0)


def network_counts(parts: ModelParts) -> bool:
    """Whether anything that a network learns shows in the model's predictions."""
    return parts.prior is None or parts.prior.network_weight > 0 or parts.config.uncertainty


def without_training(filled: TrainOptions, given: TrainOptions, *, told: bool) -> TrainOptions:
    """Options of a run whose network does not count: one step, unless the caller asked for a length."""
    wanted = given.epochs is not None or given.steps is not None
    if told:
        length = "is trained as asked" if wanted else "takes one step"
        logger.info(
            "the closed-form prediction is best alone on this screen: the network %s and does not count "
            "(prior=None trains the network alone)",
            length,
        )
    if wanted:
        return filled
    return dataclasses.replace(filled, epochs=None, steps=1, warmup_steps=0, early_stopping=None)


def _tell_score(pert_data: PertData, prior: Prior) -> None:
    """Log what the closed form alone reaches on the validation part: it is there before any training."""
    validation, monitor = validation_of(pert_data, TrainOptions().monitor)
    scores = validation.of_changes(prior(validation.nodes))
    if scores:
        value = scores[f"val_{monitor}"]
        logger.info("closed form alone: validation %s %.4f", monitor, value, extra={"scores": scores})


def _gate(
    source: PriorSource, parts: ModelParts, conditions: Sequence[Condition], data: Any
) -> tuple[float, dict[str, float]]:
    """Weight of the network by inner folds, and the criterion of each weight tried (lower is better).

    A first fold on which the network gains nothing decides alone. Of very many conditions a fixed sample of those
    left out is predicted.
    """
    if len(conditions) < LEAST_CONDITIONS:
        return 0.0, {}
    known, learned, order, means = [], [], [], []
    best, tried = 0.0, {}
    groups = source.groups(conditions)
    n_folds, judged = min(N_FOLDS, len(set(groups))), most_judged(len(parts.gene_names))
    for fold, (kept, out) in enumerate(followed(_folds(groups), n_folds, "weighing the network", "folds")):
        out = [out[place] for place in sample(len(out), judged // n_folds).tolist()]
        inner, held_out = [conditions[row] for row in kept], [conditions[row] for row in out]
        fitted = source.fit(inner, data.subset(kept))
        network = _trained(source.pert_data, parts, inner, fitted, seed=fold)
        nodes = [data.sets[row] for row in out]
        known.append(fitted.prior(nodes))
        learned.append(predict_changes(network, nodes)[0])
        order += held_out
        means.append(source.known_means(inner, held_out))
        criterion = source.judge(order, np.concatenate(means))
        known_UG, learned_UG = np.concatenate(known), np.concatenate(learned)
        tried = {gate: criterion(known_UG + gate * learned_UG) for gate in GATES}
        best = min(GATES, key=lambda gate: (round(tried[gate], 9), gate))
        if tried[0.0] - tried[best] < MARGIN:
            best = 0.0
        if best == 0 and fold == 0:
            break
    logger.info(
        "inner folds: the network counts %g (criterion %.3f, without it %.3f)", best, tried[best], tried[0.0]
    )
    return best, {f"{gate:g}": value for gate, value in tried.items()}


def _folds(groups: Sequence[Hashable]) -> Iterator[tuple[list[int], list[int]]]:
    """Rows of the conditions that are kept and left out; those of one group go together."""
    place = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    order = np.random.Generator(np.random.Philox(key=len(place))).permutation(len(place))
    for fold in range(min(N_FOLDS, len(place))):
        gone = set(order[fold::N_FOLDS].tolist())
        held = [place[group] in gone for group in groups]
        yield [row for row, out in enumerate(held) if not out], [row for row, out in enumerate(held) if out]


def _trained(
    pert_data: PertData, parts: ModelParts, inner: Sequence[Condition], fitted: FittedPrior, *, seed: int
) -> GEARSNetwork:
    """A network trained on what the prior leaves over of some training conditions."""
    known_CG = prior_rows(pert_data, inner, fitted)
    tables = partial(condition_tables, pert_data, config=parts.config, prior_CG=known_CG)
    ids = np.array([pert_data.screen.id_of(condition) for condition in inner])
    plan = settle(TrainOptions(objective="moments", verbose=False), len(inner))
    network = parts.network(seed=seed)
    begin_at_zero(network)
    loader = ConditionLoader(ids, plan.per_step, seed=seed)
    pairs = partial(pair_tables, pert_data)
    epochs = max(1, round(INNER_STEPS / len(loader)))
    chosen = dataclasses.replace(plan.options, epochs=epochs, eval_every=epochs)
    device = torch.device("cpu")
    run_training(network, tables, pairs, loader, parts, chosen, _unjudged, device=device)
    return network


def _unjudged(network: torch.nn.Module, reducer: Reducer) -> dict[str, float]:
    """No epoch of an inner run is better than another: held-out conditions are not looked at before its end."""
    return {f"val_{TrainOptions().monitor}": 0.0}
