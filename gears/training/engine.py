"""The engine of every training run: one process or many, GEARS or another model."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from gears.core.messages import shorten
from gears.distributed import group, signals, world
from gears.model.reducer import IDENTITY
from gears.training import checkpoints, step
from gears.training.checkpoints import EarlyStopping, Progress
from gears.training.step import Clock, Stepper
from gears.training.tasks import Blaming, Reducer, SupervisedTask, Task
from gears.training.wrapping import for_several_workers, unwrap, wrap

MOST_STEPS, LONGEST_SECONDS = 16, 10.0
"""Between two votes on stopping: steps at most, and seconds about."""


class TrainingEngine:
    """Trains a model on this worker's device, alone or with the others of its process group.

    W workers with batch b take the same steps as one worker with batch W b, provided that
    the task's loss counts over the global batch (see :class:`gears.training.tasks.Task`).

    Parameters
    ----------
    model
        The bare module; one already wrapped (DDP, ``torch.compile``) is unwrapped.
    device
        Device of this worker.
    distributed
        Whether to work with the others of the running process group (see `setup_distributed`).
    local_rank, world_size
        Place on this machine and number of workers, checked against the running group.
    use_amp
        Automatic mixed precision: bfloat16, or float16 with gradient scaling
        (`amp_dtype`).
    init_scale, growth_interval
        Of the gradient scaling: its first factor, and steps without overflow until it doubles.
    tf32
        On CUDA, multiply float32 matrices in TF32 during `train`.
    compile
        Train through ``torch.compile``; where no compiler exists, without it and with a warning.
    sync_batchnorm
        With several workers on CUDA, let ordinary batch norms of the model see the global batch.
    use_ema, ema_decay
        Keep an exponential moving average of the weights; it is validated and saved.
    accumulation_steps
        Micro-batches per optimiser step.
    clip_value, clip_norm
        Gradient clipping by value or by norm, of the global gradient.
    gradient_compression
        ``"fp16"`` or ``"bf16"``: gradients travel in half precision (no longer exact in W).
    check_replicas
        Compare a checksum of parameters and buffers over workers after each epoch.
    early_stopping
        End after this many epochs without improvement, or by a rule.
    eval_every
        Epochs between evaluations; the last epoch is always evaluated. The best epoch is an
        evaluated one, and a run ends early at one.
    max_steps
        Optimiser steps after which the epoch under way is the last.
    experiment_name
        Folder name for what `train` saves.
    """

    def __init__(
        self,
        model: nn.Module,
        device: str | torch.device = "cpu",
        *,
        distributed: bool = False,
        local_rank: int = 0,
        world_size: int = 1,
        use_amp: bool = False,
        amp_dtype: torch.dtype = torch.bfloat16,
        init_scale: float = 65536.0,
        growth_interval: int = 2000,
        tf32: bool = False,
        compile: bool = False,
        sync_batchnorm: bool = True,
        use_ema: bool = False,
        ema_decay: float = 0.999,
        accumulation_steps: int = 1,
        clip_value: float | None = None,
        clip_norm: float | None = None,
        gradient_compression: str | None = None,
        check_replicas: bool = False,
        early_stopping: int | EarlyStopping | None = None,
        eval_every: int = 1,
        max_steps: int | None = None,
        backend: str | None = None,
        experiment_name: str = "experiment",
        folder: str | Path | None = None,
    ) -> None:
        self.device = torch.device(device)
        self.model = unwrap(model).to(self.device)
        if distributed:
            self.model = for_several_workers(self.model, self.device, convert=sync_batchnorm)
        self.distributed = distributed
        self.local_rank = local_rank
        self.world_size = world_size
        self.backend = backend
        self.experiment_name = experiment_name
        self.folder = Path(folder) if folder is not None else Path(experiment_name)
        self.accumulation_steps = accumulation_steps
        self.gradient_compression = gradient_compression
        self.check_replicas = check_replicas
        rule = EarlyStopping(early_stopping) if isinstance(early_stopping, int) else early_stopping
        self.early_stopping, self.eval_every = rule, eval_every
        self._num_epochs = 0
        self.max_steps = max_steps
        self.tf32, self.compile = tf32, compile
        scaling = use_amp and amp_dtype == torch.float16 and self.device.type == "cuda"
        self.scaler = torch.amp.GradScaler(
            self.device.type, init_scale=init_scale, growth_interval=growth_interval, enabled=scaling
        )
        self.ema: AveragedModel | None = None
        if use_ema:
            self.ema = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(ema_decay))
        self.stepper = Stepper(
            self.model, self.device, self.scaler, self.ema, use_amp, amp_dtype, clip_value, clip_norm
        )
        self.progress = Progress()
        self._voted, self._steps_between_votes = (0, time.monotonic()), 1
        self.best_state: dict[str, torch.Tensor] | None = None
        self.restored_random: torch.Tensor | None = None
        self.reducer: Reducer = IDENTITY
        self.optimizer: torch.optim.Optimizer | None = None
        self.scheduler: Any = None
        self.on_epoch_end: Callable[[TrainingEngine, dict[str, Any], bool], None] | None = None
        self.on_step_end: Callable[[TrainingEngine], None] | None = None
        if distributed:
            self._join_workers()

    # -- processes ---------------------------------------------------------------------

    @staticmethod
    def setup_distributed(
        rank: int | None = None,
        world_size: int | None = None,
        *,
        backend: str | None = None,
        timeout: float | None = None,
    ) -> tuple[int, int, int]:
        """Join a process group, before engines with ``distributed=True`` are made.

        Parameters
        ----------
        rank, world_size
            Place of this process among the workers (:func:`gears.train_distributed.setup_ddp`, which reads
            ``MASTER_ADDR`` and ``MASTER_PORT``); by default what torchrun says.
        backend, timeout
            As for ``setup_ddp``.

        Returns
        -------
        tuple of int
            Rank, rank on this machine, number of workers; (0, 0, 1) without a group.
        """
        if (rank is None) != (world_size is None):
            msg = f"rank={rank} and world_size={world_size}: give both, or neither under torchrun"
            raise ValueError(msg)
        if rank is None or world_size is None:
            return group.setup_distributed(backend=backend, timeout=timeout)
        place = group.setup_ddp(rank, world_size, backend=backend, timeout=timeout)
        return place.rank, place.local_rank, place.world_size

    @staticmethod
    def cleanup_distributed() -> None:
        """End the process group of this worker, if one is running."""
        group.cleanup_ddp()

    def _join_workers(self) -> None:
        """Work with the running process group, or with the one that torchrun describes."""
        if not world.is_running():
            group.setup_distributed(backend=self.backend)
        if not world.is_running():
            msg = "distributed=True but no process group is running; call setup_ddp(rank, world_size) first"
            raise RuntimeError(msg)
        self.reducer = world.GroupReducer()
        if self.world_size not in (1, self.reducer.world_size):
            msg = f"world_size={self.world_size} but the running group has {self.reducer.world_size} workers"
            raise ValueError(msg)
        self.world_size = self.reducer.world_size
        self.distributed = True

    def check_same_start(self) -> None:
        """Refuse to train models that differ between workers (initial weights drawn without a common seed)."""
        checkpoints.check_replicas(self.model, self.reducer)

    def reduce_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over workers (the value itself in one process): reduce sums and counts, then divide."""
        return self.reducer.sum(tensor)

    _reduce_tensor = reduce_tensor  # under this name in guides

    @property
    def is_main(self) -> bool:
        return self.reducer.rank == 0

    @property
    def evaluated_model(self) -> nn.Module:
        """The module that is validated and saved: the moving average where one is kept."""
        return self.ema.module if self.ema is not None else self.model

    # -- training ----------------------------------------------------------------------

    def train(
        self,
        train_loader: Iterable[Any],
        val_loader: Iterable[Any] | None,
        optimizer: torch.optim.Optimizer,
        criterion: Callable[..., torch.Tensor] | None = None,
        scheduler: Any = None,
        num_epochs: int = 10,
        save_best: bool = False,
        save_last: bool = False,
        *,
        task: Task | None = None,
        scheduler_interval: str = "epoch",
    ) -> list[dict[str, Any]]:
        """Train up to `num_epochs` and return one record per epoch.

        Parameters
        ----------
        train_loader, val_loader
            Iterables of batches; with several workers each yields this worker's share, in
            equal numbers of batches. A sampler's ``set_epoch`` is called each epoch.
        optimizer
            Optimiser over the bare model's parameters.
        criterion
            Mean loss of (outputs, targets); or give a `task`.
        scheduler, scheduler_interval
            Learning-rate scheduler, stepped per ``"epoch"`` or per optimiser ``"step"``.
        save_best, save_last
            Write ``best.pt`` / ``last.pt`` into the engine's folder (rank 0).

        Returns
        -------
        list of dict
            epoch, train_loss, the task's metrics (of evaluated epochs), lr, seconds per part.
        """
        if task is None:
            if criterion is None:
                msg = "train needs a criterion or a task"
                raise ValueError(msg)
            task = SupervisedTask(criterion, self.device)
        self.optimizer, self.scheduler = optimizer, scheduler
        self._num_epochs = num_epochs
        wrapped = self._wrapped_model()
        self.stepper.begin()
        if self.distributed:
            check_equal_lengths(train_loader, self.reducer, self.device)
        with (
            step.tf32(self.tf32, self.device),
            step.compiled(wrapped, self.device, wanted=self.compile) as wrapped,
        ):
            while self.progress.epoch < num_epochs and not self.progress.finished:
                record = self._epoch(wrapped, train_loader, val_loader, task, scheduler_interval)
                if record is None:
                    break
                improved = self._note_metric(record, task)
                if self.evaluates(record["epoch"]):
                    self._stop_early()
                if self.on_epoch_end is not None:
                    self.on_epoch_end(self, record, improved)
                self._save(save_best and improved, save_last)
        return self.progress.history

    def evaluates(self, epoch: int) -> bool:
        """Whether an epoch (from 1) is evaluated."""
        return epoch % self.eval_every == 0 or epoch >= self._num_epochs

    def _epoch(
        self,
        wrapped: nn.Module,
        train_loader: Iterable[Any],
        val_loader: Iterable[Any] | None,
        task: Task,
        interval: str,
    ) -> dict[str, Any] | None:
        """One epoch of steps and its evaluation; None when a stop was asked for on the way."""
        clock = Clock(self.reducer)
        set_epoch(train_loader, self.progress.epoch)
        self.model.train()
        batches = windows(
            train_loader, self.accumulation_steps, skip=self.progress.step, skipped=self._restore_random
        )
        for window in clock.timed(batches):
            if self.max_steps is not None and self.progress.total_steps >= self.max_steps:
                break
            self.progress.loss_sum += self._step(wrapped, window, task)
            self.progress.step += 1
            self.progress.total_steps += 1
            if self.scheduler is not None and interval == "step":
                self.scheduler.step()
            if self.on_step_end is not None:
                self.on_step_end(self)
            if self._asked_to_stop():
                return None
        if self.scheduler is not None and interval == "epoch":
            self.scheduler.step()
        return self._close_epoch(task, val_loader, clock)

    def _step(self, wrapped: nn.Module, window: list[Any], task: Task) -> float:
        """One optimiser step; returns this worker's loss. A loss that is not finite names the place."""
        assert self.optimizer is not None
        try:
            return self.stepper.step(wrapped, window, task, self.optimizer, self.reducer)
        except FloatingPointError as error:
            names = task.broken_in(window) if isinstance(task, Blaming) else []
            data = f": the data of {shorten(names)} are not finite" if names else ""
            msg = (
                f"{error} in epoch {self.progress.epoch + 1}, step {self.progress.step + 1}{data}; the weights are "
                "those of the step before; lower the learning rate or look for extreme values in the data"
            )
            raise FloatingPointError(msg) from None

    def _close_epoch(self, task: Task, val_loader: Iterable[Any] | None, clock: Clock) -> dict[str, Any]:
        """Evaluate, record, and move the progress to the next epoch."""
        metrics: dict[str, float] = {}
        if self.evaluates(self.progress.epoch + 1):
            model = self.evaluated_model
            model.eval()
            with torch.no_grad(), clock.evaluating():
                metrics = task.evaluate(model, val_loader, self.reducer)
        sums = self.reducer.sum(checkpoints.epoch_sums(self, clock.seen)).tolist()
        loss = sums[0] / self.reducer.world_size
        if self.check_replicas:
            checkpoints.check_replicas(self.model, self.reducer)
        assert self.optimizer is not None
        record: dict[str, Any] = {
            "epoch": self.progress.epoch + 1,
            "train_loss": loss / max(1, self.progress.step),
            **metrics,
            "lr": self.optimizer.param_groups[0]["lr"],
            "seconds": clock.report(sums[1], getattr(task, "unit", "samples")),
        }
        self.progress.history.append(record)
        self.progress.epoch += 1
        self.progress.step, self.progress.loss_sum = 0, 0.0
        return record

    # -- decisions, the same on all workers --------------------------------------------

    def _note_metric(self, record: dict[str, Any], task: Task) -> bool:
        """Whether this epoch is the best so far; its weights are kept."""
        value = float(record.get(task.metric, math.nan))
        improved = self.progress.note(
            record["epoch"], value, lower_is_better=task.lower_is_better, rule=self.early_stopping
        )
        if improved:
            self.best_state = checkpoints.plain_state(self.evaluated_model)
        return improved

    def _stop_early(self) -> None:
        rule, progress = self.early_stopping, self.progress
        # where no metric was ever defined, nothing can be said to have stopped improving
        if rule is None or progress.best_epoch is None or progress.epoch >= self._num_epochs:
            return
        if progress.epochs_without_success >= rule.patience:
            progress.finished, progress.stopped_because = True, rule.reason

    def _asked_to_stop(self) -> bool:
        """Whether any worker was asked to stop: all leave at the same step.

        Workers ask each other every 16 steps, or more often where steps are long: every 10 seconds or so.
        """
        if not self.distributed:
            return signals.stop_requested()
        steps = self.progress.total_steps - self._voted[0]
        if 0 < steps < self._steps_between_votes:
            return False
        seconds = 0.0 if steps <= 0 else (time.monotonic() - self._voted[1]) / steps
        mine = [float(signals.stop_requested()), seconds]
        stops, seconds = self.reducer.sum(torch.tensor(mine, dtype=torch.float32).to(self.device)).tolist()
        mean = seconds / self.reducer.world_size  # the same on all workers
        self._steps_between_votes = max(1, min(MOST_STEPS, int(LONGEST_SECONDS / max(mean, 1e-6))))
        self._voted = self.progress.total_steps, time.monotonic()
        return stops > 0

    # -- parts of a step ----------------------------------------------------------------

    def _wrapped_model(self) -> nn.Module:
        """The model as gradients need it: DDP with several workers, bare in one process."""
        wrapped = self.model
        if self.reducer.world_size > 1:
            wrapped = wrap(self.model, self.device, compression=self.gradient_compression)
        return wrapped

    def _restore_random(self) -> None:
        """Go on with the random numbers of a checkpoint, now that no batch before it is read again."""
        if self.restored_random is not None:
            torch.set_rng_state(self.restored_random)
            self.restored_random = None

    # -- files ----------------------------------------------------------------------------

    def _save(self, best: bool, last: bool) -> None:
        for wanted, name in ((best, "best.pt"), (last, "last.pt")):
            if wanted:
                self.save_checkpoint(self.folder / name)

    def save_checkpoint(
        self, path: str | Path, include_optimizer: bool = True, metadata: dict[str, Any] | None = None
    ) -> None:
        """Write weights and training state (rank 0, atomically); a failure is raised on every rank."""
        checkpoints.save(self, path, include_optimizer=include_optimizer, metadata=metadata or {})

    def load_checkpoint(self, path: str | Path) -> dict[str, Any]:
        """Continue from a checkpoint, at the step at which it was written; returns its metadata.

        On the CPU the run goes on bit for bit with as many workers, provided that the order of
        a loader's batches follows from the epoch alone (samplers with ``set_epoch``).
        """
        content = checkpoints.read(path, self.device)
        checkpoints.restore(self, content)
        return content["metadata"]


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell a loader, its sampler and its data set which epoch begins."""
    for part in (loader, getattr(loader, "sampler", None), getattr(loader, "dataset", None)):
        tell = getattr(part, "set_epoch", None)
        if tell is not None:
            tell(epoch)


def windows(
    loader: Iterable[Any], size: int, *, skip: int = 0, skipped: Callable[[], None] | None = None
) -> Iterator[list[Any]]:
    """Group batches into windows of `size` (the last may be smaller), leaving out the first `skip`.

    `skipped` is called between the last batch that is excluded and the reading of the next; before
    the loader is opened where none is excluded, since opening may draw random numbers.
    """
    if skipped is not None and skip == 0:
        skipped()
    batches = iter(loader)
    for _ in range(skip * size):
        next(batches, None)
    if skipped is not None and skip > 0:
        skipped()
    while window := list(itertools.islice(batches, size)):
        yield window


def check_equal_lengths(loader: Iterable[Any], reducer: Reducer, device: torch.device) -> None:
    """All workers must take the same number of steps; said before the first.

    Raises
    ------
    ValueError
        The workers' loaders have different numbers of batches.
    """
    if not isinstance(loader, Sized):
        return
    length = torch.tensor([float(len(loader))], dtype=torch.float32, device=device)
    lengths = reducer.gather(length).flatten().tolist()
    if len(set(lengths)) > 1:
        msg = f"the workers' loaders have different numbers of batches: {[int(n) for n in lengths]}"
        raise ValueError(msg)
