"""One training run of a GEARS network: engine, objective, optimiser, schedule and files."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gears.core.messages import count
from gears.core.progress import Advance, progress
from gears.distributed import signals
from gears.distributed.worker import memory_is_full
from gears.distributed.world import IDENTITY
from gears.model.blockwise import MOST_KEPT
from gears.model.folder import ModelParts
from gears.model.network import GEARSNetwork
from gears.training.batches import with_other_workers
from gears.training.checkpoints import EarlyStopping, plain_state, run_facts
from gears.training.engine import TrainingEngine
from gears.training.engine_options import EngineOptions
from gears.training.loggers.registry import LoggerSetup, RunLoggers
from gears.training.network_weight import kept_epoch
from gears.training.options import AMP_DTYPES, DTYPES, RunSetup, TrainOptions
from gears.training.run_folder import RunFolder
from gears.training.schedules import Adam, Horizon, learning_rate, rising_epochs, scaled_lr
from gears.training.shards import N_SHARDS
from gears.training.step import profiled
from gears.training.tables import ConditionTables
from gears.training.tasks import CellsTask, MomentsTask, PairTables

if TYPE_CHECKING:
    from gears.training.validation import Validation

logger = logging.getLogger(__name__)

KEPT_SHARE = 4
"""On a GPU, hidden values of a step are kept for its gradient in a quarter of the memory that is free at the start."""


@dataclass
class RunResult:
    """Result of a run (see :class:`gears.training.results.TrainResult`).

    `best_state` has the weights of the epoch that is kept, of the last one when no metric was defined;
    `condition_scores` the monitored metric by network weight and validation condition, (K, U), for each evaluated epoch
    after the rise of the learning rate, and `kept` is the place of the kept epoch among them.
    """

    history: list[dict[str, Any]]
    best_epoch: int | None
    best_state: dict[str, torch.Tensor] = field(repr=False)
    stopped: bool = False
    stopped_because: str | None = None
    condition_scores: list[np.ndarray] = field(default_factory=list, repr=False)
    devices: tuple[str, ...] = ()
    kept: int | None = None


def run_training(
    network: GEARSNetwork,
    tables: Callable[[torch.device, torch.dtype], ConditionTables],
    pairs: Callable[[], PairTables],
    loader: Any,
    parts: ModelParts,
    options: TrainOptions,
    validation: Validation,
    *,
    device: torch.device,
    distributed: bool = False,
) -> RunResult:
    """Train a bare network in place, in one process or as one of several workers.

    `tables` and `pairs` make the condition tables for a device and precision, and the moments where the objective needs
    them. `loader` yields this worker's batches, of cells or of conditions. `parts` is the model without weights, for
    the files of the run, and `options` have defaults filled in (:meth:`TrainOptions.with_defaults`).
    """
    batches = len(loader) if isinstance(loader, Sized) else 1
    steps_per_epoch = max(1, -(-batches // options.accumulation_steps))
    if options.steps is not None:
        options = dataclasses.replace(options, epochs=-(-options.steps // steps_per_epoch))
    assert options.epochs is not None
    assert options.schedule is not None
    dtype = DTYPES[options.dtype]
    network.to(device, dtype)
    if device.type == "cuda":  # after the weights, before the tables
        network.most_kept = torch.cuda.mem_get_info(device)[0] // KEPT_SHARE
    if options.reproducible:
        most_kept = MOST_KEPT if network.most_kept is None else network.most_kept
        network.most_kept = most_kept // N_SHARDS
    horizon = Horizon(steps_per_epoch, options.epochs, options.steps)
    rate = learning_rate(
        options.schedule, horizon, warmup_steps=options.warmup_steps, eta_min=options.eta_min
    )
    rising = rising_epochs(rate, horizon)
    rule = _stopping_rule(options, validation, rising)
    engine = TrainingEngine(
        network,
        device,
        distributed=distributed,
        **_engine_options(options),
        early_stopping=rule,
        best_after=rising,
    )
    world_size = engine.reducer.world_size
    if world_size > 1:
        network.reducer = engine.reducer
    if hasattr(loader, "pin_memory"):
        loader.pin_memory = (
            device.type == "cuda"
        )  # pinning initialises CUDA, which a run on the CPU leaves alone
    if world_size > 1 or options.reproducible:
        loader = with_other_workers(loader, world_size)
    engine.optimizer = _optimizer(network, options, device, world_size)
    devices = _devices(engine)
    if engine.is_main:
        setup = RunSetup(device.type, world_size, horizon.steps, validated=validation.n_conditions > 0)
        for sentence in options.without_effect(setup):
            logger.warning("%s", sentence)
        if options.verbose:
            logger.info("%s", _header(options, loader, horizon, devices, rule))
    engine.scheduler = torch.optim.lr_scheduler.LambdaLR(engine.optimizer, rate)
    folder = None
    if options.save_path is not None:
        facts = run_facts(options, _batch_over_workers(loader, world_size), world_size)
        folder = RunFolder(options, parts, facts)
    metric = validation.monitor
    monitor: Any = {"monitor": metric.name, "lower_is_better": not metric.higher_is_better}
    task: CellsTask | MomentsTask
    if options.objective == "moments":
        task = MomentsTask(tables(device, dtype), pairs(), parts.config, validation, **monitor)
    else:
        task = CellsTask(tables(device, dtype), parts.config, validation, **monitor)
    if folder is not None and options.resume:
        folder.resume(engine)
    try:
        _train(engine, task, loader, options, horizon, folder, _loggers(engine, options, parts), validation)
        stopped = engine.progress.epoch < options.epochs and not engine.progress.finished
        stopped_because = None
        if stopped:
            stopped_because = _stopped_because(engine, folder)
    finally:
        network.reducer, network.most_kept = IDENTITY, None
        network.pool.clear()
    return _result(engine, task, stopped_because, devices, verbose=options.verbose)


def _engine_options(options: TrainOptions) -> dict[str, Any]:
    """Options of the engine, most of which have the same name."""
    names = {field.name for field in dataclasses.fields(EngineOptions)} & set(TrainOptions.names())
    values = {name: getattr(options, name) for name in names - {"early_stopping"}}
    return values | {
        "amp_dtype": AMP_DTYPES[options.amp_dtype],
        "eval_every": options.eval_every or 1,
        "max_steps": options.steps,
    }


def _optimizer(
    network: GEARSNetwork, options: TrainOptions, device: torch.device, world_size: int
) -> torch.optim.Optimizer:
    assert options.lr is not None
    assert options.weight_decay is not None
    return Adam(
        network.parameters(),
        lr=scaled_lr(options.lr, options.lr_scaling, world_size),
        weight_decay=options.weight_decay,
        fused=device.type in ("cpu", "cuda"),  # one pass over each tensor: a fifth of the time on the CPU
    )


def _train(
    engine: TrainingEngine,
    task: CellsTask | MomentsTask,
    loader: Any,
    options: TrainOptions,
    horizon: Horizon,
    folder: RunFolder | None,
    loggers: RunLoggers,
    validation: Validation,
) -> None:
    """Run the engine with its progress bar, trace, files and loggers."""
    optimizer, epochs = engine.optimizer, options.epochs
    assert optimizer is not None
    assert epochs is not None
    trace_folder = folder.path if folder is not None and options.profile and engine.is_main else None
    shown = options.verbose and engine.is_main
    of_prior = validation.of_prior()[0].get(task.metric) if shown else None
    with (
        loggers,
        full_memory_explained(loader, options),
        profiled(trace_folder, engine.device) as trace_step,
        progress(horizon.steps, "training", "steps", enabled=shown) as advance,
    ):
        engine.on_epoch_end = _Report(folder, options, task.metric, loggers, of_prior, validation, advance)
        advance(engine.progress.total_steps)

        def after_step(engine: TrainingEngine) -> None:
            trace_step()
            advance(1)
            if folder is not None:
                folder.step_end(engine)

        engine.on_step_end = after_step
        engine.train(
            loader, None, optimizer, None, engine.scheduler, epochs, task=task, scheduler_interval="step"
        )


def untrained(network: GEARSNetwork, device: torch.device) -> RunResult:
    """Result of a run that trains no network: its initial weights."""
    network.to(device)
    return RunResult([], None, plain_state(network), devices=(str(device),))


def _stopping_rule(options: TrainOptions, validation: Validation, rising: int) -> EarlyStopping | None:
    """The rule that `early_stopping` names; none without validation conditions."""
    patience = options.early_stopping
    if patience is None or not validation.n_conditions:
        return None
    if isinstance(patience, int):
        return EarlyStopping(patience, after=rising)
    assert options.epochs is not None
    to_beat = None
    if validation.prior is not None:
        to_beat = validation.of_prior()[0][f"val_{validation.monitor.name}"]
    return EarlyStopping(max(1, -(-options.epochs // 4)), after=rising, to_beat=to_beat)


def _devices(engine: TrainingEngine) -> tuple[str, ...]:
    """Device of each worker, rank by rank."""
    index = -1 if engine.device.index is None else engine.device.index
    index_1 = torch.tensor([index], dtype=torch.int64, device=engine.device)
    indices = engine.reducer.gather(index_1).flatten().tolist()
    name = engine.device.type
    return tuple(name if index < 0 else f"{name}:{index}" for index in indices)


def _header(
    options: TrainOptions, loader: Any, horizon: Horizon, devices: Sequence[str], rule: EarlyStopping | None
) -> str:
    """One line that says what is about to run, and where."""
    assert options.lr is not None
    lr = scaled_lr(options.lr, options.lr_scaling, len(devices))
    unit = "conditions" if options.objective == "moments" else "cells"
    size = _batch_over_workers(loader, len(devices))
    per_step = "batches" if size is None else f"{size * options.accumulation_steps} {unit}"
    if size is not None and size >= len(getattr(loader, "conditions", range(size + 1))):
        per_step += " (all, with the control)"
    workers = count(len(devices), "worker")
    line = (
        f"training the network: {count(horizon.epochs, 'epoch')} x {count(horizon.steps_per_epoch, 'step')} of "
        f"{per_step} on {workers} ({', '.join(devices)}), lr {lr:g}"
    )
    if horizon.most is not None:
        line += f", {count(horizon.most, 'step')} in all"
    if rule is not None:
        start = f", counted after epoch {rule.after}," if rule.after else ""
        epochs = count(rule.patience, "epoch")
        verb = "does" if rule.patience == 1 else "in a row do"
        line += f"; training ends early when {epochs}{start} {verb} not beat {rule.beaten}"
    return line


def _stopped_because(engine: TrainingEngine, folder: RunFolder | None) -> str:
    """Who was stopped, by which signal and when, and the checkpoint, which is written here."""
    progress = engine.progress
    when = f"after epoch {progress.epoch}"
    if progress.step:
        when = f"in epoch {progress.epoch + 1}, after {count(progress.step, 'step')} of it"
    reason = f"stopped by {signals.who_was_asked(engine.reducer, engine.device)} {when}"
    kept = "without save_path there is no checkpoint"
    if folder is not None:
        kept = f"the checkpoint is {folder.checkpoint(engine)}; resume=True continues from it"
    return f"{reason}; {kept}"


def _result(
    engine: TrainingEngine,
    task: CellsTask | MomentsTask,
    stopped_because: str | None,
    devices: tuple[str, ...],
    *,
    verbose: bool,
) -> RunResult:
    best_state, progress, stopped = engine.best_state, engine.progress, stopped_because is not None
    reason = stopped_because or progress.stopped_because
    scores_EKU = [table.cpu().numpy() for table in progress.condition_scores]
    best_epoch, kept = progress.best_epoch, None
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
        if reason is None:
            scores_EU = np.stack([_best_row(scores_KU, task) for scores_KU in scores_EKU])
            if kept_epoch(scores_EU, lower_is_better=task.lower_is_better) == len(candidates) - 1:
                if best_epoch != candidates[-1] and engine.is_main and verbose:
                    logger.info(
                        "the weights of the last epoch are kept: that epoch %s is better on %s is not beyond chance",
                        best_epoch,
                        count(scores_EU.shape[1], "validation condition"),
                    )
                best_epoch, best_state = candidates[-1], plain_state(engine.evaluated_model)
        kept = candidates.index(best_epoch)
    return RunResult(progress.history, best_epoch, best_state, stopped, reason, scores_EKU, devices, kept)


def _best_row(scores_KU: np.ndarray, task: CellsTask | MomentsTask) -> np.ndarray:
    """Scores by condition at the network weight with the best mean."""
    mean_K = np.nansum(scores_KU, axis=1) / np.maximum((~np.isnan(scores_KU)).sum(axis=1), 1)
    return scores_KU[mean_K.argmin() if task.lower_is_better else mean_K.argmax()]


def _batch_over_workers(loader: Any, world_size: int) -> int | None:
    """Conditions or cells of a micro-batch over all workers."""
    if hasattr(loader, "per_step"):
        return int(loader.per_step)
    size = getattr(loader, "batch_size", None)
    return None if size is None else int(size) * world_size


def _loggers(engine: TrainingEngine, options: TrainOptions, parts: ModelParts) -> RunLoggers:
    """Loggers of the run besides its files, on rank 0."""
    folder = None if options.save_path is None else Path(options.save_path)
    config = {"training": options.to_dict(), "model": parts.config.to_dict(), "data": dict(parts.provenance)}
    run = (options.project, options.name, options.init_timeout, len(engine.progress.history))
    return RunLoggers(options.loggers, LoggerSetup(folder, config, *run), active=engine.is_main)


@contextlib.contextmanager
def full_memory_explained(loader: Any, options: TrainOptions) -> Iterator[None]:
    """Where the memory of the GPU or of the machine is full, name the batch size and the remedies in the error.

    Only remedies that lower the peak are named (``tests/training/test_pretended_gpu.py``): mixed precision raises it,
    because both precisions of a value are in memory while it is converted.
    """
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        on_gpu = isinstance(error, torch.OutOfMemoryError)
        if not on_gpu and not memory_is_full(error):
            raise
        size = getattr(loader, "batch_size", None)
        if size is None and hasattr(loader, "per_step"):
            size = -(-loader.per_step // loader.world_size)
        smaller = "" if size is None else f" (say {max(1, int(size) // 2)})"
        whole = ""
        if options.objective == "cells":
            twice = 2 * options.accumulation_steps
            whole = f"; with accumulation_steps={twice} beside it a step has as many cells as now"
        owner, fewer = ("GPU", "") if on_gpu else ("machine", ", or use fewer workers")
        msg = f"the {owner}'s memory is full with batch_size={size}: lower batch_size{smaller}{whole}{fewer}. {error}"
        raise (torch.OutOfMemoryError if on_gpu else MemoryError)(msg) from error


@dataclass
class _Report:
    """After each evaluated epoch: a line for the user (rank 0) and for the bar, the files of the run, its loggers."""

    folder: RunFolder | None
    options: TrainOptions
    metric: str
    loggers: RunLoggers
    of_prior: float | None
    validation: Validation
    advance: Advance

    def __call__(self, engine: TrainingEngine, record: dict[str, Any], improved: bool) -> None:
        if not engine.evaluates(record["epoch"]):
            return
        if self.validation.n_conditions and record["epoch"] > engine.options.best_after:
            engine.progress.condition_scores.append(torch.from_numpy(self.validation.condition_scores))
        if engine.is_main and self.options.verbose:
            logger.info("%s", self._line(record, improved))
            self.advance(0, self._note(record))
        if self.folder is not None:
            self.folder.epoch_end(engine, record, improved)
        self.loggers.log(engine.progress.history)

    def _line(self, record: dict[str, Any], improved: bool) -> str:
        shown = [f"{self.metric} {record[self.metric]:.4f}"] if self.metric in record else []
        if "val_pearson_delta" in record and self.metric != "val_pearson_delta":
            shown.append(f"val_pearson_delta {record['val_pearson_delta']:.4f}")
        if "network_weight" in record:
            shown.append(f"network weight {record['network_weight']:g}")
        return (
            f"epoch {record['epoch']:>3}/{self.options.epochs}  train_loss {record['train_loss']:.5f}  "
            f"{'  '.join(shown)}  {record['seconds']['total']:.1f} s{self._mark(record) if improved else ''}"
        )

    def _mark(self, record: dict[str, Any]) -> str:
        """What the line of the best epoch so far ends with: the prior alone may still be better than it."""
        if self.of_prior is None or self.validation.monitor.better(record[self.metric], self.of_prior):
            return "  (best)"
        return "  (best epoch, not better than the prior)"

    def _note(self, record: dict[str, Any]) -> str:
        """Loss and validation for the bar."""
        note = f"epoch {record['epoch']}, loss {record['train_loss']:.4g}"
        return f"{note}, {self.metric} {record[self.metric]:.4g}" if self.metric in record else note
