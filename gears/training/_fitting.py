"""Fitting a model to a screen: the prior, the network on what the prior leaves, its weight; the result; in folds."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import logging
import multiprocessing
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch

from gears.conditions import Condition
from gears.core._messages import count
from gears.core._numbers import whole_number
from gears.core._options import divided
from gears.core._progress import in_notebook
from gears.data.splits._make import folds_like
from gears.data.splits._split import Split
from gears.distributed._devices import one_thread
from gears.distributed._gpus import GpuIds
from gears.distributed._log import quiet, shown
from gears.distributed._world import World
from gears.evaluation.compare import CompareOptions, Comparison, compare
from gears.evaluation.intervals import model_name, summary_table
from gears.evaluation.verdict import closing_frame, closing_sentence, footnotes, short_table, verdict_table
from gears.files._paths import link_target, user_path
from gears.graphs._sources import with_sources as read_sources
from gears.model._card import write_card
from gears.model._folder import ModelParts, is_model, save_model
from gears.model.network import GEARSNetwork, begin_at_zero
from gears.prediction.predictions import Predictions
from gears.priors._source import prior_of, prior_rows
from gears.report.of_model import start_embedding
from gears.training._batches import training_batches
from gears.training._head import TrainedHead, train_head, with_head_of
from gears.training._run import Run, RunResult
from gears.training._run_folder import run_path
from gears.training._tasks import PairTables, condition_tables
from gears.training._validation import (
    FEWEST_CONDITIONS,
    FITTED_SHARE,
    NetworkWeight,
    Validation,
    choose_network_weight,
    drawn_to,
    share_fitted,
    train_mean,
    validation_of,
)
from gears.training._workers import plain_state
from gears.training.options import TrainOptions

if TYPE_CHECKING:
    from gears.data.screen._prepared import PreparedScreen
    from gears.model.config import ModelConfig
    from gears.pertdata import PertData
    from gears.priors._fit import FittedPrior

logger = logging.getLogger(__name__)


class Seconds(dict[str, float]):
    """Wall time by stage."""

    @contextlib.contextmanager
    def of(self, stage: str) -> Iterator[None]:
        """Add the time of the block to a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self[stage] = self.get(stage, 0.0) + time.perf_counter() - start

    def include(self, other: Mapping[str, float]) -> None:
        """Add the stages of another process; what "workers" took beside them is their start."""
        if "workers" in self:
            self["start of workers"] = max(0.0, self.pop("workers") - sum(other.values()))
        for stage, seconds in other.items():
            self[stage] = self.get(stage, 0.0) + seconds


@dataclass
class Fit:
    """A model under way from its screen to its final weights."""

    pert_data: PertData
    parts: ModelParts  # the model without weights; its prior and the network's weight in it are those found so far
    given: TrainOptions  # as the caller gave them; `options` have the defaults filled in
    worker: World
    seconds: Seconds

    def __post_init__(self) -> None:
        loader = (self.pert_data.dataloader or {}).get("train_loader")
        self.options = self.given.with_defaults(None if loader is None else loader.batch_size)
        self.choice: NetworkWeight | None = None  # None where there is no prior
        self.run: RunResult
        self.parts = with_sources(self.parts, self.pert_data, self.given)
        path = self.given.save_path
        self.run_path = None if path is None else run_path(path, resume=self.given.resume)

    def train(self, make_network: Callable[[], GEARSNetwork]) -> None:
        """Fit the prior, then train the network in place where one is requested, together with the other workers.

        Nothing here is slow on one worker alone, so that none waits for another at a collective.
        """
        if self.given.save_path is not None and not self.given.resume and is_model(self.given.save_path):
            self._log(f"{self.given.save_path} holds a model of this screen: it is replaced when this run is complete")
        if self.given.objective == "cells":
            self.pert_data.whole_screen.need_cells()
        had_prior = self.parts.prior is not None
        with one_thread(enabled=self.given.reproducible):
            with self.seconds.of("prior"):
                fitted = fitted_prior(self.pert_data, self.parts, self.given)
            with self.seconds.of("head"):
                fitted, head_stopped = self._add_head(fitted)
            # a head changes the prior, so the validation part is scored after it
            with self.seconds.of("prior"):
                validation = self._use_prior(fitted)
            untrained_because = head_stopped or self._untrained_because(validation)
            if untrained_because is None:
                with self.seconds.of("graphs"):
                    network = make_network()
                with self.seconds.of("training"):
                    # the first step starts at the prior itself; a network already trained beside one keeps its weights
                    if fitted is not None and not had_prior:
                        begin_at_zero(network)
                    run = self._run(network, fitted, validation)
                    with run.reported():
                        run.engine.train(**run.training)
                    self.run = run.result()
                    del run  # the memory of its tables and of the optimiser
            else:
                self.run = RunResult(
                    [], None, {}, head_stopped is not None, untrained_because, devices=(str(self.worker.device),)
                )
            if fitted is not None:
                self.choice = choose_network_weight(
                    self.run.condition_scores,
                    validation.of_prior[1],
                    lower_is_better=not validation.monitor.higher_is_better,
                    kept=self.run.kept,
                )
                self._use_weight(self.choice)
            if self.run.history and not self.run.stopped and (self.choice is None or self.choice.weight > 0):
                self._check_kept(network, fitted, validation)

    def conclude(self) -> None:
        """Refit the prior where it is used alone, report the weight of the network, and save the model."""
        choice, run = self.choice, self.run
        if choice is not None and choice.weight == 0 and self.given.refit and not run.stopped:
            with one_thread(enabled=self.given.reproducible), self.seconds.of("refit"):
                self._refit()
        if run.stopped:
            if self.worker.rank == 0 and multiprocessing.parent_process() is None:  # else the caller says it
                logger.warning("training was %s", run.stopped_because)
        elif choice is not None:
            for line in self._outcome(choice):
                self._log(line)
        if self.worker.rank == 0 and self.saved_in is not None:
            trained = bool(run.history) or run.stopped
            weights = run.best_state or plain_state(self.parts.network())
            save_model(self.saved_in, self.parts, weights, run=self.run_path if trained else None)
            write_card(self.saved_in, self.parts)
            if trained and self.run_path is not None and self.run_path != link_target(self.saved_in):
                shutil.rmtree(self.run_path, ignore_errors=True)
            self._log(f"the model was saved in {self.saved_in}")

    def result(self, table: pd.DataFrame | None) -> TrainResult:
        """What the caller gets; `table` has the scores of the test part."""
        run = self.run
        return TrainResult(
            history=run.history,
            best_epoch=run.best_epoch,
            table=table,
            stopped=run.stopped,
            stopped_because=run.stopped_because,
            epochs=self.options.epochs or len(run.history),
            network_weight=None if self.choice is None else self.choice.weight,
            refitted="val" in self.parts.fitted_parts,
            devices=run.devices,
            seconds=dict(self.seconds),
            save_path=None if self.saved_in is None else str(self.saved_in),
            rank=self.worker.rank,
        )

    @property
    def saved_in(self) -> Path | None:
        """Where the model is saved: `save_path`; for a run that was stopped, the folder in which it trained."""
        path = self.given.save_path
        return self.run_path if path is None or self.run.stopped else user_path(path)

    def _add_head(self, fitted: FittedPrior | None) -> tuple[FittedPrior | None, str | None]:
        """The prior with its head, where it earns a weight, and who stopped training before its end."""
        if fitted is None or self.given.epochs == 0:
            return fitted, None
        head = train_head(self.pert_data, fitted, self.given, self.worker)
        if head.stopped is None:
            self._log(_line_on_head(head))
        return head.fitted, head.stopped

    def _use_prior(self, fitted: FittedPrior | None) -> Validation:
        """Make the prior part of the model; returns the scorer of the validation part."""
        parts, pert_data = self.parts, self.pert_data
        prior = None if fitted is None else fitted.prior
        self.parts = dataclasses.replace(parts, prior=prior, fitted_parts=("train",))
        validation = validation_of(pert_data, self.options.monitored, prior, mask_target=parts.config.mask_target)
        if fitted is not None:
            scores, metric = validation.of_prior[0], validation.monitor.name
            score = f": validation {metric} {scores[f'val_{metric}']:.4f}" if scores else ""
            n_fitted = count(len(fitted.left_out_CG), "training condition")
            self._log(f"prior fitted to {n_fitted}{score}", scores)
        return validation

    def _untrained_because(self, validation: Validation) -> str | None:
        """Why no network is trained; None where one is."""
        if validation.prior is None:
            return None
        if self.given.epochs == 0:
            return "epochs=0: the prior alone was fitted"
        if not trains_network(self.given, self.parts.config):
            return "no network was requested"
        if validation.n_conditions < FEWEST_CONDITIONS:
            use = "predicts cell_sd only" if self.parts.config.uncertainty else "has no effect"
            conditions = count(validation.n_conditions, "validation condition")
            self._log(f"GEARS network {use} with {conditions}: give {FEWEST_CONDITIONS}, omit epochs, or prior=None")
        return None

    def _run(self, network: GEARSNetwork, fitted: FittedPrior | None, validation: Validation) -> Run:
        pert_data, config = self.pert_data, self.parts.config
        prior_CG = None if fitted is None else prior_rows(pert_data, fitted)
        tables = partial(condition_tables, pert_data, config=config, prior_CG=prior_CG)
        pairs = partial(PairTables, pert_data.screen.statistics, config.direction)
        batches = training_batches(pert_data, self.options, self.worker)
        assert pert_data.split is not None
        network.trains_on(pert_data.split.conditions("train"))
        path = None if self.run_path is None else str(self.run_path)
        options = dataclasses.replace(self.options, monitor=validation.monitor.name, save_path=path)
        return Run(network, tables, pairs, batches, self.parts, options, validation, device=self.worker.device)

    def _check_kept(self, network: GEARSNetwork, fitted: FittedPrior | None, validation: Validation) -> None:
        """Warn where the kept weights do not fit the training conditions; draw a network alone to the train mean."""
        if self.parts.config.no_perturb:
            return
        kept = copy.deepcopy(network)  # the network itself holds the weights of the last epoch
        kept.load_state_dict(self.run.best_state)
        share = share_fitted(kept, self.pert_data, None if fitted is None else prior_rows(self.pert_data, fitted))
        if share is not None and share < FITTED_SHARE and self.worker.rank == 0:
            logger.warning(
                "the network that is kept (epoch %s) predicts %.2f of the measured changes of its own training "
                "conditions: it is hardly trained; raise epochs or lr, or give a larger validation part",
                self.run.best_epoch,
                share,
            )
        if fitted is not None or not validation.n_conditions:
            return
        mean_G = train_mean(self.pert_data)
        slope = validation.slope_of(kept, mean_G)
        self.run.best_state = drawn_to(self.run.best_state, mean_G, slope)
        self.parts = dataclasses.replace(self.parts, provenance={**self.parts.provenance, "slope_of_network": slope})
        self._log(f"predictions are drawn to the train mean: {slope:.2f} of their deviation remains")

    def _use_weight(self, choice: NetworkWeight) -> None:
        """Put the weight of the network, and how it was chosen, into the model's prior."""
        prior = self.parts.prior
        assert prior is not None
        report = {**prior.report, **choice.report()}
        self.parts = dataclasses.replace(
            self.parts, prior=dataclasses.replace(prior, network_weight=choice.weight, report=report)
        )

    def _refit(self) -> None:
        """Fit the prior to training and validation conditions, which decide nothing more."""
        # head and network weight stay those of the training part: both were chosen on conditions that this fit has seen
        split, choice = self.pert_data.split, self.choice
        assert split is not None
        assert choice is not None
        fitted_parts = tuple(part for part in ("train", "val") if part in split.parts)
        fitted = prior_of(self.pert_data, fitted_parts, self.parts.inputs)
        assert fitted is not None
        prior = with_head_of(fitted.prior, self.parts.prior)
        self.parts = dataclasses.replace(self.parts, prior=prior, fitted_parts=fitted_parts)
        self._use_weight(choice)

    def _outcome(self, choice: NetworkWeight) -> list[str]:
        """Lines on what predictions are made of."""
        conditions = count(choice.n_conditions, "validation condition")
        if choice.weight > 0:
            chance = f"p = {choice.p_value:.2g}, {conditions}"
            return [f"predictions come from prior + {choice.weight:g} x GEARS network ({chance})"]
        assert self.parts.prior is not None
        used = "the prior" if self.parts.prior.head is None else "prior + correction network"
        how = "refitted" if "val" in self.parts.fitted_parts else "fitted"
        n_fitted = count(len(self.parts.fitted_conditions()), "condition")
        lines = [f"predictions come from {used}, {how} to {n_fitted}"]
        if choice.n_conditions >= FEWEST_CONDITIONS and (choice.tried is not None or self.run.history):
            lines.insert(0, f"GEARS network skipped: no significant gain on {conditions}")
        return lines

    def _log(self, line: str, scores: dict[str, float] | None = None) -> None:
        if self.worker.rank == 0 and self.given.verbose:
            logger.info("%s", line, extra={"scores": scores or {}})


def _line_on_head(head: TrainedHead) -> str:
    if head.why is not None:
        return f"correction network skipped: {head.why}"
    words = {"single": "singles", "several": "combinations"}
    weights = {words[stratum]: weight.weight for stratum, weight in head.weights.items()}
    used = [f"{weight:.2g} for {word}" for word, weight in weights.items() if weight]
    if not used:
        return "correction network skipped: no gain on held-out training conditions"
    skipped = [f"skipped for {word}" for word, weight in weights.items() if not weight]
    return "; ".join([f"correction network: weight {', '.join(used)}", *skipped])


def trains_network(options: TrainOptions, config: ModelConfig) -> bool:
    """Whether a training trains the network: where it is requested, or where there is no prior."""
    length_is_given = any(value is not None for value in (options.epochs, options.steps, options.early_stopping))
    is_requested = options.epochs != 0 and (length_is_given or config.uncertainty)
    return is_requested or options.prior is None or config.no_perturb


def fitted_prior(pert_data: PertData, parts: ModelParts, options: TrainOptions) -> FittedPrior | None:
    """The prior of a model, fitted to the training conditions; None where the options or the model have none.

    ValueError for a network over contexts that measure different genes.
    """
    if pert_data.screen.is_measured_KG is not None and trains_network(options, parts.config):
        msg = (
            "the contexts of this screen measure different genes, of which a network learns nothing: train the prior "
            "(omit epochs, steps, uncertainty and prior=None), or prepare the screens with genes='shared'"
        )
        raise ValueError(msg)
    if options.prior is None or parts.config.no_perturb:
        return None
    return prior_of(pert_data, inputs=parts.inputs)


def with_sources(parts: ModelParts, pert_data: PertData, options: TrainOptions) -> ModelParts:
    """The model whose prior reads the sources that the options name, and whose record holds their content hashes."""
    if options.effects_of is None and options.similarities is None and not parts.inputs.has_sources:
        return parts
    inputs = read_sources(parts.inputs, pert_data, options.effects_of, options.similarities)
    return dataclasses.replace(parts, inputs=inputs, provenance={**parts.provenance, "sources": inputs.record()})


@dataclass
class Fold:
    """A model that is made and trained on each split that it is fitted to: a method of :func:`compare`."""

    make: Callable[[Split, torch.device | None], Any]  # the model, not trained, from a split and a device
    training: Mapping[str, Any]  # arguments of its `train`
    device: torch.device | None  # None: that of the worker
    fitted_parts: tuple[str, ...] = ("train",)

    def fit(self, screen: PreparedScreen, split: Split) -> None:
        """Train, with warnings alone, in one thread: sums do not depend on how many folds share the cores."""
        with quiet(logging.WARNING), one_thread():
            self.model = self.make(split, self.device)
            self.model.train(**{**self.training, "evaluate_test": False, "verbose": False})
        self.fitted_parts = self.model.parts.fitted_parts

    def predict(self, conditions: Sequence[Condition]) -> Predictions:
        """Predictions of the fitted model, not clipped."""
        return self.model.predict(conditions, clip=False)


def cross_validated(
    make: Callable[[Split, torch.device | None], Any],
    pert_data: PertData,
    parts: ModelParts,
    device: torch.device,
    folds: int,
    gpu_ids: GpuIds,
    n_at_once: int | None,
    options: Mapping[str, Any],
) -> Comparison:
    """Cross-validate; see :meth:`gears.GEARS.cross_validate`."""
    folds = whole_number("folds", folds, 2)
    training, scoring = divided("cross_validate", options, TrainOptions, CompareOptions)
    if training.save_path is not None:
        msg = "cross_validate keeps no model, so save_path has no effect; omit it"
        raise ValueError(msg)
    assert pert_data.split is not None
    splits = folds_like(pert_data.whole_screen, pert_data.split, folds)
    in_this_process = gpu_ids is None and n_at_once is None
    with shown(training.verbose):
        result = compare(
            {"gears": Fold(make, training.given(), device if in_this_process else None)},
            pert_data.screen,
            {f"fold {number}": split for number, split in enumerate(splits, start=1)},
            annotation=pert_data.annotation,
            embedding=start_embedding(parts),
            gpu_ids=gpu_ids,
            n_at_once=n_at_once,
            device=device.type if gpu_ids is None else None,
            **{"n_split_half": 0, "mask_target": parts.config.mask_target, **scoring.given()},
        )
        logger.info("%s", str(result).partition("\n")[0] if in_notebook() else result)
    return result


@dataclass
class TrainResult:
    """Result of :meth:`gears.GEARS.train` and :func:`gears.train_multi_gpu`; printed, it compares with the baselines.

    Attributes
    ----------
    history
        One record per epoch: losses, validation metrics, learning rate, seconds.
    best_epoch
        Epoch (from 1) whose weights are kept; None when no validation metric was defined.
    table
        Scores of the model beside the baselines on the test part, tidy (condition, subgroup, n_cells, method, metric,
        value); with fewer than ten test conditions on all conditions in folds (:meth:`gears.GEARS.evaluate`). None
        without a test part or on a worker other than rank 0.
    stopped
        Whether a signal stopped the run before its end.
    stopped_because
        Why fewer epochs ran than planned; None where all ran.
    epochs
        Planned epochs; ``len(history)`` were run.
    network_weight
        Factor on the network's change beside the prior; None without a prior.
    refitted
        Whether the prior was fitted again to training and validation conditions.
    devices
        Device of each worker, rank by rank.
    seconds
        Wall time by stage.
    save_path
        Folder of the model (:meth:`gears.GEARS.from_pretrained` loads it); None where none was written.
    rank
        0, except on the other workers of a process group that torchrun started.
    """

    history: list[dict[str, Any]]
    best_epoch: int | None
    table: pd.DataFrame | None = None
    stopped: bool = False
    stopped_because: str | None = None
    epochs: int = 0
    network_weight: float | None = None
    refitted: bool = False
    devices: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    save_path: str | None = None
    rank: int = 0

    @property
    def world_size(self) -> int:
        """Number of workers."""
        return len(self.devices)

    @property
    def summary(self) -> pd.DataFrame | None:
        """Means over conditions per subgroup, method and metric."""
        return None if self.table is None else summary_table(self.table)

    @property
    def test_metrics(self) -> dict[str, float]:
        """Mean of each metric over the conditions of `table`, of the model itself."""
        summary = self.summary
        if summary is None:
            return {}
        model_rows = summary[(summary["method"] == "gears") & (summary["subgroup"] == "all")]
        means = model_rows.set_index("metric")["mean"]
        return {str(name): float(value) for name, value in means.items()}

    def _repr_html_(self) -> str:
        table, html = self.table, ""
        if table is not None and len(rows := verdict_table(table)):
            notes = "".join(f"<p>{escape(line)}</p>" for line in footnotes(rows, table))
            frame = closing_frame(rows, model_name(table)).to_html(index=False, border=0)
            sentence = escape(closing_sentence(rows, table))
            html = f'<p>{sentence}</p><div style="overflow-x: auto">{frame}</div>{notes}'
        facts = "; ".join(f"{name}: {text}" for name, text in self._facts().items())
        return f"{html}<p>{escape(facts)}</p>"

    def __repr__(self) -> str:
        table = "test part: not scored" if self.table is None else short_table(self.table)
        facts = (f"{name:<12}{text}" for name, text in self._facts().items())
        return "\n".join([table, "", *facts])

    def _facts(self) -> dict[str, str]:
        best = f", best {self.best_epoch}" if self.best_epoch and self.network_weight != 0 else ""
        epochs = f"{len(self.history)} of {count(self.epochs, 'epoch')}{best}"
        if self.stopped_because:
            epochs += f" ({self.stopped_because})"
        if self.network_weight is None:
            predictions = "the network alone (prior=None)"
        elif self.network_weight > 0:
            predictions = f"prior + {self.network_weight:g} x network"
        else:
            conditions = "training and validation" if self.refitted else "training"
            predictions = f"the prior, fitted to {conditions} conditions"
        stages = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self.seconds.items() if seconds >= 0.05)
        facts = {
            "predictions": predictions,
            "epochs": epochs,
            "devices": ", ".join(self.devices),
            "seconds": stages,
            "saved in": self.save_path or "nothing was saved",
        }
        if not self.history and not self.stopped:
            del facts["epochs"]
        return facts
