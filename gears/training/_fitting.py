"""Fitting a model to a screen: the prior, the network on what the prior leaves, and the weight of the network."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import logging
import multiprocessing
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gears.core._messages import count
from gears.distributed._world import World, is_running
from gears.files._paths import link_target, user_path
from gears.graphs._sources import with_sources as read_sources
from gears.model._folder import ModelParts, is_model, save_model
from gears.model.network import GEARSNetwork, begin_at_zero
from gears.priors._source import prior_of, prior_rows
from gears.training._batches import training_batches
from gears.training._head import TrainedHead, train_head, with_head_of
from gears.training._network_weight import FEWEST_CONDITIONS, NetworkWeight, choose_network_weight
from gears.training._run import Run, RunResult
from gears.training._run_folder import run_path
from gears.training._shards import one_thread
from gears.training._tasks import condition_tables, pair_tables
from gears.training._validation import FITTED_SHARE, Validation, drawn_to, share_fitted, train_mean, validation_of
from gears.training._workers import plain_state
from gears.training.options import TrainOptions

if TYPE_CHECKING:
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
    """A model under way from its screen to its final weights.

    `given`, `options`: training options as the caller gave them, and with defaults filled in.
    `choice`: the weight of the network; None where there is no prior.
    """

    pert_data: PertData
    parts: ModelParts
    """The model without weights; its prior and the weight of the network in it are those found so far."""
    given: TrainOptions
    worker: World
    seconds: Seconds

    def __post_init__(self) -> None:
        loader = (self.pert_data.dataloader or {}).get("train_loader")
        self.options = self.given.with_defaults(None if loader is None else loader.batch_size)
        self.choice: NetworkWeight | None = None
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
        had_prior = self.parts.prior is not None
        with one_thread(enabled=self.given.reproducible):
            with self.seconds.of("prior"):
                fitted = fitted_prior(self.pert_data, self.parts, self.given)
            with self.seconds.of("head"):
                fitted, head_stopped = self._add_head(fitted)
            with self.seconds.of("prior"):
                validation, prior_U = self._use_prior(fitted)
            untrained_because = head_stopped or self._untrained_because(validation)
            if untrained_because is None:
                with self.seconds.of("graphs"):
                    network = make_network()
                with self.seconds.of("training"):
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
                    prior_U,
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
            if trained and self.run_path is not None and self.run_path != link_target(self.saved_in):
                shutil.rmtree(self.run_path, ignore_errors=True)
            self._log(f"the model was saved in {self.saved_in}")

    @property
    def saved_in(self) -> Path | None:
        """Where the model is saved: `save_path`; for a run that was stopped, the folder in which it trained."""
        path = self.given.save_path
        return self.run_path if path is None or self.run.stopped else user_path(path)

    def _add_head(self, fitted: FittedPrior | None) -> tuple[FittedPrior | None, str | None]:
        """The prior with its head, where it earns a weight, and who stopped training before its end."""
        if fitted is None or self.given.epochs == 0:
            return fitted, None
        worker = self.worker
        head = train_head(
            self.pert_data,
            fitted,
            self.given,
            device=worker.device,
            rank=worker.rank,
            world_size=worker.world_size,
            distributed=is_running(),
        )
        if head.stopped is None:
            self._log(_line_on_head(head))
        return head.fitted, head.stopped

    def _use_prior(self, fitted: FittedPrior | None) -> tuple[Validation, np.ndarray]:
        """Make the prior part of the model; the scorer of the validation part, and the prior's scores there."""
        parts, pert_data = self.parts, self.pert_data
        prior = None if fitted is None else fitted.prior
        self.parts = dataclasses.replace(parts, prior=prior, fitted_parts=("train",))
        validation = validation_of(pert_data, self.options.monitored, prior, mask_target=parts.config.mask_target)
        scores, prior_U = validation.of_prior()
        if fitted is not None:
            metric = validation.monitor.name
            score = f": validation {metric} {scores[f'val_{metric}']:.4f}" if scores else ""
            n_fitted = count(len(fitted.left_out_CG), "training condition")
            self._log(f"prior fitted to {n_fitted}{score}", scores)
        return validation, prior_U

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
            found = count(validation.n_conditions, "validation condition")
            self._log(f"GEARS network {use}: {found}; give {FEWEST_CONDITIONS}, or prior=None")
        return None

    def _run(self, network: GEARSNetwork, fitted: FittedPrior | None, validation: Validation) -> Run:
        pert_data, parts, worker = self.pert_data, self.parts, self.worker
        prior_CG = None if fitted is None else prior_rows(pert_data, fitted)
        batches = training_batches(pert_data, self.options, worker)
        assert pert_data.split is not None
        network.trains_on(pert_data.split.conditions("train"))
        return Run(
            network,
            partial(condition_tables, pert_data, config=parts.config, prior_CG=prior_CG),
            partial(pair_tables, pert_data, parts.config),
            batches,
            parts,
            dataclasses.replace(
                self.options,
                monitor=validation.monitor.name,
                save_path=None if self.run_path is None else str(self.run_path),
            ),
            validation,
            device=worker.device,
            distributed=is_running(),
        )

    def _check_kept(self, network: GEARSNetwork, fitted: FittedPrior | None, validation: Validation) -> None:
        """Warn where the kept weights do not fit the training conditions; draw a network alone to the train mean."""
        if self.parts.config.no_perturb:
            return
        kept = copy.deepcopy(network)
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
        named = tuple(part for part in ("train", "val") if part in self.pert_data.split.parts)  # type: ignore[union-attr]
        fitted = prior_of(self.pert_data, named, self.parts.inputs)
        assert fitted is not None
        assert self.choice is not None
        self.parts = dataclasses.replace(
            self.parts, prior=with_head_of(fitted.prior, self.parts.prior), fitted_parts=named
        )
        self._use_weight(self.choice)

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
    weights = [f"{weight.weight:.2g} for {words[kind]}" for kind, weight in head.weights.items() if weight.weight]
    if not weights:
        return "correction network skipped: no gain on held-out training conditions"
    skipped = [words[kind] for kind, weight in head.weights.items() if not weight.weight]
    return "; ".join([f"correction network: weight {', '.join(weights)}", *(f"skipped for {one}" for one in skipped)])


def trains_network(options: TrainOptions, config: ModelConfig) -> bool:
    """Whether a training trains the network: where it is requested, or where there is no prior."""
    is_requested = options.trains_on_request or (config.uncertainty and options.epochs != 0)
    return is_requested or options.prior is None or config.no_perturb


def fitted_prior(pert_data: PertData, parts: ModelParts, options: TrainOptions) -> FittedPrior | None:
    """The prior of a model, fitted to the training conditions; None where the options or the model have none."""
    if options.prior is None or parts.config.no_perturb:
        return None
    return prior_of(pert_data, inputs=parts.inputs)


def with_sources(parts: ModelParts, pert_data: PertData, options: TrainOptions) -> ModelParts:
    """The model whose prior reads the sources that the options name, and whose record holds their content hashes."""
    if options.effects_of is None and options.similarities is None and not parts.inputs.has_sources:
        return parts
    inputs = read_sources(parts.inputs, pert_data, options.effects_of, options.similarities)
    return dataclasses.replace(parts, inputs=inputs, provenance={**parts.provenance, "sources": inputs.record()})
