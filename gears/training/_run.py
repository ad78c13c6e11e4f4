"""The training of a GEARS network: what the engine trains it with, and the files, log lines and loggers around it."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gears.core._messages import count
from gears.core._progress import progress
from gears.distributed import _signals as signals
from gears.distributed._launch import memory_is_full
from gears.distributed._world import IDENTITY, is_running
from gears.model._blockwise import MOST_KEPT
from gears.model._folder import ModelParts
from gears.model.network import GEARSNetwork
from gears.training._batches import Loader
from gears.training._checkpoints import EarlyStopping
from gears.training._loggers import LoggerSetup, RunLoggers
from gears.training._modes import profiled, warn_without_effect
from gears.training._run_folder import RunFolder, run_facts
from gears.training._schedules import Adam, Horizon, learning_rate, rising_epochs, scaled_lr
from gears.training._tasks import CellsTask, ConditionTables, MomentsTask, PairTables
from gears.training._trainer import TrainingEngine
from gears.training._validation import Validation, kept_epoch
from gears.training._workers import N_SHARDS, plain_state
from gears.training.options import DTYPES, TrainOptions

logger = logging.getLogger(__name__)

KEPT_SHARE = 4
"""On a GPU, hidden values of a step are kept for its gradient in a quarter of the memory that is free at the start."""


@dataclass
class RunResult:
    """Result of a run (see :class:`gears.training.TrainResult`)."""

    history: list[dict[str, Any]]
    best_epoch: int | None
    best_state: dict[str, torch.Tensor] = field(repr=False)  # of the kept epoch; the last one if no metric was defined
    stopped: bool = False
    stopped_because: str | None = None
    # monitored metric by network weight and validation condition, (K, U), of each evaluated epoch after the rise of the
    # learning rate; `kept`: place of the kept epoch among them
    condition_scores: list[np.ndarray] = field(default_factory=list, repr=False)
    devices: tuple[str, ...] = ()
    kept: int | None = None


class Run:
    """Everything that a bare network is trained with, in place, in one process or as one of several workers.

        with run.reported():
            run.engine.train(**run.training)
        result = run.result()

    `tables` and `pairs` make the condition tables for a device and precision, and the moments where the objective needs
    them. `options` have their defaults filled in (:meth:`TrainOptions.with_defaults`).
    """

    def __init__(
        self,
        network: GEARSNetwork,
        tables: Callable[[torch.device, torch.dtype], ConditionTables],
        pairs: Callable[[], PairTables],
        loader: Loader,
        parts: ModelParts,
        options: TrainOptions,
        validation: Validation,
        *,
        device: torch.device,
    ) -> None:
        steps_per_epoch = -(-len(loader) // options.accumulation_steps)
        if options.steps is not None:
            options = dataclasses.replace(options, epochs=-(-options.steps // steps_per_epoch))
        assert options.epochs is not None
        assert options.schedule is not None
        self.network, self.loader, self.parts = network, loader, parts
        self.options, self.validation, self.num_epochs = options, validation, options.epochs
        self.horizon = Horizon(steps_per_epoch, options.epochs, options.steps)
        dtype = DTYPES[options.dtype]
        network.to(device, dtype)
        network.most_kept = _most_kept(options, device)  # after the weights, before the tables
        rate = learning_rate(options.schedule, self.horizon, warmup_steps=options.warmup_steps, eta_min=options.eta_min)
        rising = rising_epochs(rate, self.horizon)
        self.rule = None
        if options.early_stopping is not None and validation.n_conditions:
            self.rule = EarlyStopping(options.early_stopping, after=rising)
        self.engine = engine = TrainingEngine(
            network,
            device,
            distributed=is_running(),
            options=options,
            early_stopping=self.rule,
            best_after=rising,
            max_steps=options.steps,
        )
        self.world_size = engine.reducer.world_size
        if self.world_size > 1:
            network.reducer = engine.reducer
        self.optimizer = engine.optimizer = self._optimizer()
        self.scheduler = engine.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, rate)
        self.devices = _devices(engine)
        if engine.is_main:
            validated = validation.n_conditions > 0
            warn_without_effect(options, device, engine.reducer, self.horizon.steps, validated=validated)
            if options.verbose:
                for line in self._header():
                    logger.info("%s", line)
        self.folder: RunFolder | None = None
        if options.save_path is not None:
            facts = run_facts(options, loader.per_step, self.world_size)
            self.folder = RunFolder(options, parts, facts)
        self.task = self._task(tables(device, dtype), pairs)
        if self.folder is not None and options.resume:
            self.folder.resume(engine)
        self.training: dict[str, Any] = {
            "train_loader": loader, "val_loader": None, "optimizer": self.optimizer, "scheduler": self.scheduler,
            "num_epochs": options.epochs, "task": self.task, "scheduler_interval": "step",
        }  # fmt: skip
        self._stopped_because: str | None = None

    def _optimizer(self) -> torch.optim.Optimizer:
        options = self.options
        assert options.lr is not None
        assert options.weight_decay is not None
        return Adam(
            self.network.parameters(),
            lr=scaled_lr(options.lr, options.lr_scaling, self.world_size),
            weight_decay=options.weight_decay,
            fused=self.engine.device.type != "mps",  # one pass over each tensor: a fifth of the time on the CPU
        )

    def _task(self, tables: ConditionTables, pairs: Callable[[], PairTables]) -> CellsTask | MomentsTask:
        metric = self.validation.monitor
        monitor: Any = {"monitor": metric.name, "lower_is_better": not metric.higher_is_better}
        if self.options.objective == "moments":
            return MomentsTask(tables, pairs(), self.parts.config, self.validation, **monitor)
        return CellsTask(tables, self.parts.config, self.validation, **monitor)

    def _header(self) -> list[str]:
        """Lines that say what is about to run, and where."""
        options, horizon, rule = self.options, self.horizon, self.rule
        unit = "conditions" if options.objective == "moments" else "cells"
        size = f"{self.loader.per_step * options.accumulation_steps} {unit}"
        length = count(horizon.epochs, "epoch") if horizon.most is None else count(horizon.most, "step")
        if horizon.most is None:
            length += f" x {count(horizon.steps_per_epoch, 'step')}"
        devices = ", ".join(dict.fromkeys(self.devices))
        lines = [
            f"GEARS network: {length} of {size}, {count(len(self.devices), 'worker')} ({devices}), "
            f"lr {self.optimizer.param_groups[0]['initial_lr']:g}"
        ]
        if rule is not None:
            start = f", from epoch {rule.after + 1}" if rule.after else ""
            lines.append(f"early stopping: patience {rule.patience}{start}")
        return lines

    @contextlib.contextmanager
    def reported(self) -> Iterator[None]:
        """The run's progress bar, trace, files and loggers, while the engine trains within the block."""
        engine, options, folder = self.engine, self.options, self.folder
        shown = options.verbose and engine.is_main
        traced = folder is not None and options.profile and engine.is_main
        facts = {"training": options.to_dict(), "model": self.parts.config.to_dict(), "data": self.parts.provenance}
        saved_in = None if options.save_path is None else Path(options.save_path)
        n_logged = len(engine.progress.history)
        setup = LoggerSetup(saved_in, facts, options.project, options.name, options.init_timeout, n_logged)
        self._loggers = RunLoggers(options.loggers, setup, active=engine.is_main)
        self._of_prior = self.validation.of_prior[0].get(self.task.metric) if shown else None
        try:
            with (
                self._loggers,
                full_memory_explained(self.loader, options),
                profiled(folder.path if folder is not None and traced else None, engine.device) as trace_step,
                progress(self.horizon.steps, "training", "steps", enabled=shown) as self._advance,
            ):
                self._advance(engine.progress.total_steps)

                def after_step(engine: TrainingEngine) -> None:
                    trace_step()
                    self._advance(1)
                    if folder is not None:
                        folder.step_end(engine)

                engine.on_step_end, engine.on_epoch_end = after_step, self._epoch_end
                yield
            if engine.progress.epoch < self.num_epochs and not engine.progress.finished:
                self._stopped_because = self._who_stopped()
        finally:
            engine.on_step_end = engine.on_epoch_end = None  # no circle: the memory is free once the run is
            self.network.reducer, self.network.most_kept = IDENTITY, None
            self.network.pool.clear()

    def _epoch_end(self, engine: TrainingEngine, record: dict[str, Any], improved: bool) -> None:
        """After an evaluated epoch: a line for the user (rank 0) and for the bar, files and loggers."""
        if not engine.evaluates(record["epoch"]):
            return
        # while the learning rate rises, an epoch is no candidate: it would be best by chance
        if self.validation.n_conditions and record["epoch"] > engine.best_after:
            engine.progress.condition_scores.append(torch.from_numpy(self.validation.condition_scores))
        if engine.is_main and self.options.verbose:
            logger.info("%s", self._line(record, improved))
            metric = f", {self.task.metric} {record[self.task.metric]:.4g}" if self.task.metric in record else ""
            self._advance(0, f"epoch {record['epoch']}, loss {record['train_loss']:.4g}{metric}")
        if self.folder is not None:
            self.folder.epoch_end(engine, record, improved)
        self._loggers.log(engine.progress.history)

    def _line(self, record: dict[str, Any], improved: bool) -> str:
        name, epoch = self.task.metric, f"epoch {record['epoch']:>3}/{self.options.epochs}"
        shown = [epoch, f"loss {record['train_loss']:.4f}"]
        shown += [f"{name} {record[name]:.4f}"] if name in record else []
        shown += [f"weight {record['network_weight']:g}"] if "network_weight" in record else []
        of_prior = self._of_prior
        is_best = improved and (of_prior is None or self.validation.monitor.better(record[name], of_prior))
        return "  ".join([*shown, f"{record['seconds']['total']:.1f} s", *(["(best)"] if is_best else [])])

    def _who_stopped(self) -> str:
        """Who was stopped, by which signal and when, and the checkpoint, which is written here."""
        engine, progress = self.engine, self.engine.progress
        when = f"after epoch {progress.epoch}"
        if progress.step:
            when = f"in epoch {progress.epoch + 1}, after {count(progress.step, 'step')} of it"
        reason = f"stopped by {signals.who_was_asked(engine.reducer, engine.device)} {when}"
        checkpoint = "without save_path there is no checkpoint"
        if self.folder is not None:
            checkpoint = f"the checkpoint is {self.folder.checkpoint(engine)}; resume=True continues from it"
        return f"{reason}; {checkpoint}"

    def result(self) -> RunResult:
        """History, weights and the epoch that is kept."""
        engine, task, progress = self.engine, self.task, self.engine.progress
        stopped = self._stopped_because is not None
        reason = self._stopped_because or progress.stopped_because
        scores_EKU = [scores_KU.cpu().numpy() for scores_KU in progress.condition_scores]
        best_state, best_epoch, kept = engine.best_state, progress.best_epoch, None
        if best_state is None:
            if engine.is_main and not stopped:
                logger.warning(
                    "%s was never defined (no validation condition to score?): the weights of the last epoch are kept",
                    task.metric,
                )
            best_state = plain_state(engine.evaluated_model)
        elif scores_EKU:
            evaluated = [record["epoch"] for record in progress.history if task.metric in record]
            candidates = evaluated[-len(scores_EKU) :]
            if reason is None and self._keeps_last(scores_EKU):
                if best_epoch != candidates[-1] and engine.is_main and self.options.verbose:
                    logger.info("the last epoch is kept: epoch %s is not better beyond chance", best_epoch)
                best_epoch, best_state = candidates[-1], plain_state(engine.evaluated_model)
            kept = candidates.index(best_epoch)
        return RunResult(progress.history, best_epoch, best_state, stopped, reason, scores_EKU, self.devices, kept)

    def _keeps_last(self, scores_EKU: list[np.ndarray]) -> bool:
        """Whether the last epoch is kept, by its scores at the network weight with the best mean."""
        lower_is_better, scores_EU = self.task.lower_is_better, []
        for scores_KU in scores_EKU:
            # as np.nanmean, which warns where all values are undefined
            mean_K = np.nansum(scores_KU, axis=1) / np.maximum((~np.isnan(scores_KU)).sum(axis=1), 1)
            scores_EU.append(scores_KU[mean_K.argmin() if lower_is_better else mean_K.argmax()])
        return kept_epoch(np.stack(scores_EU), lower_is_better=lower_is_better) == len(scores_EU) - 1


def _most_kept(options: TrainOptions, device: torch.device) -> int | None:
    """Bytes of hidden values that a step keeps for its gradient; of each shard where a step has shards."""
    most_kept = torch.cuda.mem_get_info(device)[0] // KEPT_SHARE if device.type == "cuda" else None
    if options.reproducible:
        return (MOST_KEPT if most_kept is None else most_kept) // N_SHARDS
    return most_kept


def _devices(engine: TrainingEngine) -> tuple[str, ...]:
    """Device of each worker, rank by rank."""
    index = -1 if engine.device.index is None else engine.device.index
    index_1 = torch.tensor([index], dtype=torch.int64, device=engine.device)
    indices = engine.reducer.gather(index_1).flatten().tolist()
    name = engine.device.type
    return tuple(name if index < 0 else f"{name}:{index}" for index in indices)


@contextlib.contextmanager
def full_memory_explained(loader: Loader, options: TrainOptions) -> Iterator[None]:
    """Where the memory of the GPU or of the machine is full, name the batch size and the remedies in the error."""
    # Only remedies that lower the peak are named (tests/training/test_pretended_gpu.py): mixed precision raises it,
    # because both precisions of a value are in memory while it is converted.
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        on_gpu = isinstance(error, torch.OutOfMemoryError)
        if not on_gpu and not memory_is_full(error):
            raise
        size, as_many = loader.batch_size, ""
        if options.objective == "cells":
            twice = 2 * options.accumulation_steps
            as_many = f"; with accumulation_steps={twice} beside it a step has as many cells as now"
        owner, fewer = ("GPU", "") if on_gpu else ("machine", ", or use fewer workers")
        remedy = f"lower batch_size (say {max(1, size // 2)}){as_many}{fewer}"
        msg = f"the {owner}'s memory is full with batch_size={size}: {remedy}. {error}"
        raise (torch.OutOfMemoryError if on_gpu else MemoryError)(msg) from error
