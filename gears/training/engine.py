"""The engine that trains GEARS or any other model, in one process or in several."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from gears.core.messages import shorten
from gears.distributed import group, signals, world
from gears.distributed.world import IDENTITY, Reducer
from gears.training import checkpoints, step
from gears.training.checkpoints import EarlyStopping, Progress
from gears.training.engine_options import EngineOptions
from gears.training.shards import sharded
from gears.training.step import MOST_UNREAD, Clock, Stepper, StepRecord, not_finite
from gears.training.tasks import SupervisedTask, Task
from gears.training.wrapping import for_several_workers, unwrap

LONGEST_SECONDS = 10.0
"""Workers hear about this often of a wish to stop; at most every :data:`MOST_UNREAD` steps."""


class TrainingEngine:
    """Trains a model on this worker's device, alone or with the others of its process group.

    W workers with batch b take the same steps as one worker with batch W b, if the task's loss is a mean over
    the global batch (see :class:`gears.training.tasks.Task`).

    Parameters
    ----------
    model
        The bare module; one already wrapped (DDP, ``torch.compile``) is unwrapped.
    device
        Device of this worker.
    distributed
        Whether to train with the other workers of the running process group (see `setup_distributed`).
    local_rank, world_size
        Rank on this machine and number of workers, checked against the running group.
    backend
        ``torch.distributed`` backend of a group that the engine joins itself.
    experiment_name, folder
        Folder of what `train` saves; its name is `experiment_name` where `folder` is omitted.
    **options
        Fields of :class:`gears.training.engine_options.EngineOptions`.
    """

    def __init__(
        self,
        model: nn.Module,
        device: str | torch.device = "cpu",
        *,
        distributed: bool = False,
        local_rank: int = 0,
        world_size: int = 1,
        backend: str | None = None,
        experiment_name: str = "experiment",
        folder: str | Path | None = None,
        **options: Any,
    ) -> None:
        self.options = EngineOptions(**options)
        patience = self.options.early_stopping
        self.early_stopping = EarlyStopping(patience) if isinstance(patience, int) else patience
        self.device = torch.device(device.lower() if isinstance(device, str) else device)
        self.model = unwrap(model).to(self.device)
        if distributed:
            self.model = for_several_workers(self.model, self.device, convert=self.options.sync_batchnorm)
        self.distributed = distributed
        self.local_rank = local_rank
        self.world_size = world_size
        self.backend = backend
        self.experiment_name = experiment_name
        self.folder = Path(folder) if folder is not None else Path(experiment_name)
        self._num_epochs = 0
        self.stepper = Stepper.of(self.model, self.device, self.options)
        self.progress = Progress()
        self._read_at, self._steps_between_reads, self._stopping = time.monotonic(), 1, False
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
            Rank of this process and number of workers (see :func:`gears.train_distributed.setup_ddp`, which reads
            ``MASTER_ADDR`` and ``MASTER_PORT``); by default from torchrun's variables.
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
        this_worker = group.setup_ddp(rank, world_size, backend=backend, timeout=timeout)
        return this_worker.rank, this_worker.local_rank, this_worker.world_size

    @staticmethod
    def cleanup_distributed() -> None:
        """End the process group of this worker, if one is running."""
        group.cleanup_ddp()

    def _join_workers(self) -> None:
        """Use the running process group, or join the one that torchrun describes."""
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
        """Raise if models differ between workers (initial weights drawn without a common seed)."""
        checkpoints.check_replicas(self.model, self.reducer)

    def reduce_tensor(self, tensor: torch.Tensor, op: str = "mean") -> torch.Tensor:
        """Mean (or ``"sum"``, ``"max"``, ``"min"``) over the engine's workers; the tensor itself in one process.

        A mean of means is wrong where the workers' counts differ: reduce sums and counts with ``op="sum"``, and divide.
        """
        return self.reducer.reduce(tensor, op)

    _reduce_tensor = reduce_tensor  # name in published guides

    @property
    def is_main(self) -> bool:
        return self.reducer.rank == 0

    @property
    def scaler(self) -> torch.amp.GradScaler:
        """Scales gradients under float16."""
        return self.stepper.scaler

    @property
    def ema(self) -> AveragedModel | None:
        """Moving average of the weights, if one is kept."""
        return self.stepper.ema

    @property
    def evaluated_model(self) -> nn.Module:
        """The module that is validated and saved: the moving average where one is kept."""
        return self.ema.module if self.ema is not None else self.model

    # -- training ----------------------------------------------------------------------

    @torch.enable_grad()
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
            if self.is_main:
                self.options.warn_without_effect(self.device.type, self.reducer.world_size)
        self.optimizer, self.scheduler = optimizer, scheduler
        self._num_epochs, self._task, self._train_loader = num_epochs, task, train_loader
        self.stepper.begin(self.reducer)
        if self.reducer.world_size > 1:
            share_start(self.model, self.reducer)
        if self.distributed:
            check_equal_lengths(train_loader, self.reducer, self.device)
        with (
            step.tf32(self.options.tf32, self.device),
            step.compiled(self.model, self.device, enabled=self.options.compile) as called,
            sharded(
                self.model, self.device, self.reducer, enabled=self.options.reproducible
            ) as self.stepper.shards,
        ):
            while self.progress.epoch < num_epochs and not self.progress.finished:
                record = self._epoch(called, train_loader, val_loader, task, scheduler_interval)
                if record is None:
                    break
                improved = self._note_metric(record, task)
                if self.evaluates(record["epoch"]):
                    self._stop_early()
                if self.on_epoch_end is not None:
                    self.on_epoch_end(self, record, improved)
                for enabled, name in ((save_best and improved, "best.pt"), (save_last, "last.pt")):
                    if enabled:
                        self.save_checkpoint(self.folder / name)
        return self.progress.history

    def evaluates(self, epoch: int) -> bool:
        """Whether an epoch (from 1) is evaluated."""
        return epoch % self.options.eval_every == 0 or epoch >= self._num_epochs

    def _epoch(
        self,
        called: nn.Module,
        train_loader: Iterable[Any],
        val_loader: Iterable[Any] | None,
        task: Task,
        interval: str,
    ) -> dict[str, Any] | None:
        """One epoch of steps and its evaluation; None if the run is stopped during the epoch."""
        clock = Clock(self.reducer)
        set_epoch(train_loader, self.progress.epoch)
        self.model.train()
        batches = windows(
            train_loader,
            self.options.accumulation_steps,
            skip=self.progress.step,
            skipped=self._restore_random,
        )
        for window in clock.timed(batches):
            if self.options.max_steps is not None and self.progress.total_steps >= self.options.max_steps:
                break
            assert self.optimizer is not None
            self.stepper.step(called, window, task, self.optimizer)
            self.progress.step += 1
            self.progress.total_steps += 1
            if self.scheduler is not None and interval == "step":
                self.scheduler.step()
            stopping = self._stop_requested()
            if stopping or self.stepper.unread >= self._steps_between_reads:
                self.read_steps()
            if self.on_step_end is not None:
                self.on_step_end(self)
            if stopping or self._stopping:
                self.read_steps()
                return None
        if self.scheduler is not None and interval == "epoch":
            self.scheduler.step()
        self.read_steps()
        return self._close_epoch(task, val_loader, clock)

    def read_steps(self) -> None:
        """Read the losses of the steps since the last call; waits for the device.

        All workers read after the same steps, so that they learn at the same step that one of them is to stop.
        FloatingPointError names the first step whose loss or gradient is not finite, and what in its data was not.
        """
        n_unread = self.stepper.unread
        if not n_unread:
            return
        records = self.stepper.read()
        for place, record in enumerate(records):
            if not record.finite:
                raise FloatingPointError(self._broken_step(record, self.progress.step - n_unread + place))
            self.progress.loss_sum += record.loss
        self._stopping |= any(record.stop > 0 for record in records)
        self._plan_next_read(records[-1], n_unread)

    def _plan_next_read(self, last: StepRecord, n_steps: int) -> None:
        """Set the number of steps until the next read, the same on all workers."""
        self._steps_between_reads = MOST_UNREAD
        if self.reducer.world_size == 1:
            return
        now = time.monotonic()
        self.stepper.vote(seconds=(now - self._read_at) / n_steps)
        self._read_at = now
        # by the mean of what all workers found up to the read before; nothing is known before the first
        steps = LONGEST_SECONDS / last.seconds if last.seconds > 0 else 1
        self._steps_between_reads = max(1, min(MOST_UNREAD, int(steps)))

    def _broken_step(self, record: StepRecord, place: int) -> str:
        """Message on a step, at a place from 0 in the epoch, that is not finite."""
        names: list[str] = []
        if hasattr(self._task, "broken_in"):
            set_epoch(self._train_loader, self.progress.epoch)
            window = next(windows(self._train_loader, self.options.accumulation_steps, skip=place), [])
            names = self._task.broken_in(window)
        data = f": the data of {shorten(names)} are not finite" if names else ""
        return (
            f"{not_finite(record)} in epoch {self.progress.epoch + 1}, step {place + 1}{data}; the weights are "
            "those of the step before; lower the learning rate or look for extreme values in the data"
        )

    def _close_epoch(self, task: Task, val_loader: Iterable[Any] | None, clock: Clock) -> dict[str, Any]:
        """Evaluate, record, and advance to the next epoch."""
        metrics: dict[str, float] = {}
        if self.evaluates(self.progress.epoch + 1):
            model = self.evaluated_model
            model.eval()
            with torch.no_grad(), clock.evaluating():
                # the bits of a prediction depend on what is predicted with it: each worker predicts all conditions
                reducer = IDENTITY if self.options.reproducible else self.reducer
                metrics = task.evaluate(model, val_loader, reducer)
        sums = self.reducer.sum(checkpoints.epoch_sums(self, clock.seen)).tolist()
        # the loss of a step over shards is that of all workers
        loss = self.progress.loss_sum if self.options.reproducible else sums[0] / self.reducer.world_size
        if self.options.check_replicas:
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
            record["epoch"],
            value,
            lower_is_better=task.lower_is_better,
            rule=self.early_stopping,
            after=self.options.best_after,
        )
        if improved:
            self.best_state = checkpoints.plain_state(self.evaluated_model)
        return improved

    def _stop_early(self) -> None:
        rule, progress = self.early_stopping, self.progress
        # without any defined metric there is no improvement to wait for
        if rule is None or progress.best_epoch is None or progress.epoch >= self._num_epochs:
            return
        if progress.epochs_without_success >= rule.patience:
            progress.finished, progress.stopped_because = True, rule.reason

    def _stop_requested(self) -> bool:
        """Whether this process is to stop now; several workers stop together, after a common read (`read_steps`)."""
        stop = signals.stop_requested()
        if self.reducer.world_size == 1:
            return stop
        if stop:
            self.stepper.vote(stop=True)
        return False

    def _restore_random(self) -> None:
        """Restore the random state of a checkpoint, after the batches before it were skipped."""
        if self.restored_random is not None:
            torch.set_rng_state(self.restored_random)
            self.restored_random = None

    # -- files ----------------------------------------------------------------------------

    def save_checkpoint(self, path: str | Path, *, metadata: dict[str, Any] | None = None) -> None:
        """Write weights and training state (rank 0, atomically); a failure is raised on every rank."""
        checkpoints.save(self, path, metadata or {})

    def load_checkpoint(self, path: str | Path) -> dict[str, Any]:
        """Continue from a checkpoint, at the step at which it was written; returns its metadata.

        On the CPU, with the same number of workers (any, with ``reproducible=True``), the run continues bit for bit if
        the order of a loader's batches depends on the epoch alone (samplers with ``set_epoch``).
        """
        content = checkpoints.read(path, self.device)
        checkpoints.restore(self, content)
        return content["metadata"]


def share_start(model: nn.Module, reducer: Reducer) -> None:
    """Give all workers the weights and buffers of rank 0."""
    tensors = list(model.state_dict().values())
    for dtype in sorted({tensor.dtype for tensor in tensors}, key=str):
        reducer.from_main([tensor for tensor in tensors if tensor.dtype == dtype])


def set_epoch(loader: Any, epoch: int) -> None:
    """Call ``set_epoch`` of a loader, its sampler and its data set, where they have it."""
    for target in (loader, getattr(loader, "sampler", None), getattr(loader, "dataset", None)):
        method = getattr(target, "set_epoch", None)
        if method is not None:
            method(epoch)


def windows(
    loader: Iterable[Any], size: int, *, skip: int = 0, skipped: Callable[[], None] | None = None
) -> Iterator[list[Any]]:
    """Group batches into windows of `size` (the last may be smaller), without the first `skip` windows.

    `skipped` is called after the last skipped batch is read and before the next one; with ``skip=0`` before the
    loader is opened, because opening may draw random numbers.
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
    """Raise ValueError before the first step if the workers' loaders have different numbers of batches."""
    if not isinstance(loader, Sized):
        return
    length = torch.tensor([float(len(loader))], dtype=torch.float32, device=device)
    lengths = reducer.gather(length).flatten().tolist()
    if len(set(lengths)) > 1:
        msg = f"the workers' loaders have different numbers of batches: {[int(n) for n in lengths]}"
        raise ValueError(msg)
