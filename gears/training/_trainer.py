"""The training loop of GEARS, or of any other model, in one process or in several: epoch, step, read.

With W workers and the losses l_wb of a window's micro-batches b on worker w, a step uses

    gradient = mean over w of  sum over b of  d l_wb / d weights

which is the gradient of the global window's loss, because the task scales each l_wb by counts of the whole window.
Order: forward and backward of each micro-batch, which adds to ``.grad``; one reduction over workers; then unscale
(float16), check that loss and gradients are finite, clip the global gradient, update, moving average.

A device is not waited for: loss and check of each step are written to a table on it, which
:meth:`TrainingEngine.read_steps` reads every few steps. From the first step that is not finite on, the update is
skipped on the device (the optimiser's ``found_inf``) and the running statistics of batch norms are put back, so that
after an error the model is that of the step before. Optimisers that cannot skip a step on the device are waited for in
every step.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from gears.core._messages import shorten
from gears.distributed import _group as group
from gears.distributed import _signals as signals
from gears.distributed import _world as world
from gears.distributed._world import IDENTITY, Reducer
from gears.training import _checkpoints as checkpoints
from gears.training import _modes as modes
from gears.training import _workers as workers
from gears.training._batches import check_equal_lengths, set_epoch, windows
from gears.training._checkpoints import Clock, EarlyStopping, Progress, StepRecord, StepRecords
from gears.training._tasks import Objective, SupervisedTask, Task
from gears.training._workers import Shards, sharded
from gears.training.options import AMP_DTYPES, TrainOptions


@dataclass
class Training:
    """What a call of :meth:`TrainingEngine.train` trains with."""

    task: Task
    train_loader: Iterable[Any]
    val_loader: Iterable[Any] | None
    num_epochs: int
    schedules_steps: bool
    optimizer: torch.optim.Optimizer
    called: nn.Module  # the model, or what ``torch.compile`` made of it
    reducer: InitVar[Reducer]
    device: InitVar[torch.device]
    shards: Shards | None = None

    def __post_init__(self, reducer: Reducer, device: torch.device) -> None:
        self.parameters = [p for p in self.called.parameters() if p.requires_grad]
        self.running = workers.RunningStatistics(self.called)
        dtype = next((p.dtype for p in self.parameters), torch.float32)
        self.records = StepRecords(device, dtype, reducer.world_size)
        # averages gradients over workers, where there are several
        self.shared = workers.SharedGradients(self.parameters, reducer) if reducer.world_size > 1 else None
        # whether the optimiser can skip a step without the host
        self.skips_on_device = bool(getattr(self.optimizer, "_step_supports_amp_scaling", False))


class TrainingEngine:
    """Trains a model on this worker's device, alone or with the others of its process group.

    W workers with batch b take the same steps as one worker with batch W b, if the task's loss is a mean over
    the global batch (see :class:`gears.training._tasks.Task`).

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
    sync_batchnorm
        With several workers on CUDA, compute ordinary batch norms of the model over the global batch.
    early_stopping
        End after this many epochs without improvement, or by a rule.
    best_after
        Epochs up to this one (from 1) cannot be the best: while the learning rate rises, a metric over few samples is
        best by chance.
    max_steps
        Optimiser steps after which the current epoch is the last.
    options
        All training options, instead of single ones.
    **more
        Single options of :class:`gears.training.TrainOptions`: ``use_amp``, ``amp_dtype`` (also a torch type),
        ``init_scale``, ``growth_interval``, ``tf32``, ``compile``, ``use_ema``, ``ema_decay``, ``accumulation_steps``,
        ``clip_value`` and ``clip_norm`` (both None by default), ``check_replicas``, ``eval_every`` and
        ``reproducible`` (batches have a method ``part``, and the model has no batch norms of torch).
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
        sync_batchnorm: bool = True,
        early_stopping: int | EarlyStopping | None = None,
        best_after: int = 0,
        max_steps: int | None = None,
        options: TrainOptions | None = None,
        **more: Any,
    ) -> None:
        self.options = modes.options_of_any_model(more) if options is None else options
        self.early_stopping = EarlyStopping(early_stopping) if isinstance(early_stopping, int) else early_stopping
        self.best_after, self.max_steps = best_after, max_steps
        self.device = torch.device(device.lower() if isinstance(device, str) else device)
        self.model = workers.unwrap(model).to(self.device)
        if distributed:
            self.model = workers.for_several_workers(self.model, self.device, convert=sync_batchnorm)
        self.distributed, self.backend = distributed, backend
        self.local_rank, self.world_size = local_rank, world_size
        self.experiment_name = experiment_name
        self.folder = Path(folder) if folder is not None else Path(experiment_name)
        device_type, is_float16 = self.device.type, self.options.use_amp and self.options.amp_dtype == "float16"
        self.scaler = torch.amp.GradScaler(
            device_type,
            init_scale=self.options.init_scale,
            growth_interval=self.options.growth_interval,
            enabled=is_float16 and device_type == "cuda",
        )
        self.ema: AveragedModel | None = None
        if self.options.use_ema:
            self.ema = modes.MovingAverage(self.model, self.options.ema_decay)
        self.progress = Progress()
        self.best_state: dict[str, Tensor] | None = None
        self.restored_random: Tensor | None = None
        self.reducer: Reducer = IDENTITY
        self.optimizer: torch.optim.Optimizer | None = None
        self.scheduler: Any = None
        self.on_epoch_end: Callable[[TrainingEngine, dict[str, Any], bool], None] | None = None
        self.on_step_end: Callable[[TrainingEngine], None] | None = None
        self._training: Training | None = None
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

        Arguments are those of :func:`gears.train_distributed.setup_ddp`; without `rank` and `world_size` torchrun's
        variables say them. Returns rank, rank on this machine and number of workers; (0, 0, 1) without a group.
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

    def reduce_tensor(self, tensor: Tensor, op: str = "mean") -> Tensor:
        """Mean (or ``"sum"``, ``"max"``, ``"min"``) over the engine's workers; the tensor itself in one process.

        A mean of means is wrong where the workers' counts differ: reduce sums and counts with ``op="sum"``, and divide.
        """
        return self.reducer.reduce(tensor, op)

    _reduce_tensor = reduce_tensor  # name in published guides

    @property
    def is_main(self) -> bool:
        return self.reducer.rank == 0

    @property
    def evaluated_model(self) -> nn.Module:
        """The module that is validated and saved: the moving average where one is kept."""
        return self.ema.module if self.ema is not None else self.model

    # -- epoch, step, read -------------------------------------------------------------

    @torch.enable_grad()
    def train(
        self,
        train_loader: Iterable[Any],
        val_loader: Iterable[Any] | None,
        optimizer: torch.optim.Optimizer,
        criterion: Callable[..., Tensor] | None = None,
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
                modes.warn_without_effect(self.options, self.device, self.reducer)
        self.optimizer, self.scheduler = optimizer, scheduler
        self._training = training = Training(
            task, train_loader, val_loader, num_epochs, scheduler_interval == "step", optimizer, self.model,
            self.reducer, self.device,
        )  # fmt: skip
        if self.reducer.world_size > 1:
            workers.share_start(self.model, self.reducer)
        if self.distributed:
            check_equal_lengths(train_loader, self.reducer, self.device)
        options = self.options
        with (
            modes.tf32(options.tf32, self.device),
            modes.compiled(self.model, self.device, enabled=options.compile) as training.called,
            sharded(self.model, self.device, self.reducer, enabled=options.reproducible) as training.shards,
        ):
            while self.progress.epoch < num_epochs and not self.progress.finished:
                record = self._epoch(training)
                if record is None:
                    break
                improved = self._decide(record, training)
                if self.on_epoch_end is not None:
                    self.on_epoch_end(self, record, improved)
                if save_best and improved:
                    self.save_checkpoint(self.folder / "best.pt")
                if save_last:
                    self.save_checkpoint(self.folder / "last.pt")
        return self.progress.history

    def evaluates(self, epoch: int) -> bool:
        """Whether an epoch (from 1) is evaluated."""
        last = self._training is not None and epoch >= self._training.num_epochs
        return last or epoch % (self.options.eval_every or 1) == 0

    def _epoch(self, training: Training) -> dict[str, Any] | None:
        """One epoch of steps and its evaluation; None if the run is stopped during the epoch."""
        progress, clock = self.progress, Clock(self.reducer)
        set_epoch(training.train_loader, progress.epoch)
        self.model.train()
        batches = windows(
            training.train_loader, self.options.accumulation_steps, skip=progress.step, skipped=self._restore_random
        )
        for window in clock.timed(batches):
            if self.max_steps is not None and progress.total_steps >= self.max_steps:
                break
            self._step(training, window)
            progress.step += 1
            progress.total_steps += 1
            if self.scheduler is not None and training.schedules_steps:
                self.scheduler.step()
            if signals.stop_requested():
                training.records.tell_stop()
            if training.records.is_due:
                self.read_steps()
            if self.on_step_end is not None:
                self.on_step_end(self)
            if training.records.stopping:
                self.read_steps()
                return None
        if self.scheduler is not None and not training.schedules_steps:
            self.scheduler.step()
        self.read_steps()
        return self._close_epoch(training, clock)

    def _step(self, training: Training, window: Sequence[Any]) -> None:
        """Take one step over the micro-batches of a window."""
        # no weight changes if the loss or a gradient is not finite, now or in a step before, which read_steps reports
        optimizer, records, averaged = training.optimizer, training.records, None
        optimizer.zero_grad(set_to_none=True)
        before = training.running.values()
        if training.shards is not None:
            backward = functools.partial(self._backward, training)
            averaged = training.shards.gradients_of(window, backward, records.message_of_shard)
            loss = averaged[-3]
        else:
            loss = self._backward(training, training.called, window, self.reducer)
            if training.shared is not None:
                averaged = training.shared.average(records.message(loss))
        gradients = [p.grad for p in training.parameters if p.grad is not None]
        records.add(loss, gradients, averaged, scaled=self.scaler.is_enabled())
        self.scaler.unscale_(optimizer)
        training.running.put_back(before, records.broken)
        if not training.skips_on_device and bool(records.broken):
            return
        if self.options.clip_value is not None:
            nn.utils.clip_grad_value_(training.parameters, self.options.clip_value)
        if self.options.clip_norm is not None:
            nn.utils.clip_grad_norm_(training.parameters, self.options.clip_norm)
        if self.scaler.is_enabled() or not training.skips_on_device:
            self.scaler.step(optimizer)
            self.scaler.update()
        else:
            # with `found_inf` above 0 the optimiser leaves weights and state unchanged, and the host need not wait
            optimizer.grad_scale, optimizer.found_inf = None, records.broken  # type: ignore[attr-defined]
            optimizer.step()
            del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]
        if self.ema is not None:
            self.ema.update_parameters(self.model)

    def _backward(self, training: Training, called: nn.Module, window: Sequence[Any], reducer: Reducer) -> Tensor:
        """Gradients of the window; its loss, which stays on the device, as float64."""
        options, task, records = self.options, training.task, training.records
        context, amp_dtype = task.prepare_window(window, reducer), AMP_DTYPES[options.amp_dtype]
        total: Tensor | None = None
        for position, batch in enumerate(window):
            with torch.autocast(self.device.type, dtype=amp_dtype, enabled=options.use_amp):
                loss = task.loss(called, batch, context, position)
            if self.scaler.is_enabled():  # which skips steps by their gradients alone: after a broken step all are inf
                loss = loss / (1 - records.broken)
            self.scaler.scale(loss).backward()
            exact = loss.detach().to(records.exact)
            total = exact if total is None else total + exact
        assert total is not None
        return total

    def read_steps(self) -> None:
        """Read the losses of the steps since the last call; FloatingPointError for the first that is not finite."""
        # waits for the device; all workers read after the same steps, so that they learn together that one is to stop
        training = self._training
        if training is None or not training.records.unread:
            return
        records = training.records.read()
        for step, record in enumerate(records, start=self.progress.step - len(records)):
            if not record.finite:
                raise FloatingPointError(self._broken_step(training, record, step))
            self.progress.loss_sum += record.loss

    def _broken_step(self, training: Training, record: StepRecord, step: int) -> str:
        """Message on a step, from 0 in the epoch, that is not finite."""
        names: list[str] = []
        if isinstance(training.task, Objective):
            set_epoch(training.train_loader, self.progress.epoch)
            batches = windows(training.train_loader, self.options.accumulation_steps, skip=step)
            names = training.task.broken_in(next(batches, []))
        data = f": the data of {shorten(names)} are not finite" if names else ""
        return (
            f"{record.broken} in epoch {self.progress.epoch + 1}, step {step + 1}{data}; the weights are "
            "those of the step before; lower the learning rate or look for extreme values in the data"
        )

    def _close_epoch(self, training: Training, clock: Clock) -> dict[str, Any]:
        """Evaluate, record, and advance to the next epoch."""
        progress, task, metrics = self.progress, training.task, dict[str, float]()
        if self.evaluates(progress.epoch + 1):
            model = self.evaluated_model
            model.eval()
            with torch.no_grad(), clock.evaluating():
                # the bits of a prediction depend on what is predicted with it: each worker predicts all conditions
                reducer = IDENTITY if self.options.reproducible else self.reducer
                metrics = task.evaluate(model, training.val_loader, reducer)
        loss_sum, seen = self.reducer.sum(checkpoints.epoch_sums(self, clock.seen)).tolist()
        # the loss of a step over shards is that of all workers
        loss = progress.loss_sum if self.options.reproducible else loss_sum / self.reducer.world_size
        if self.options.check_replicas:
            workers.check_replicas(self.model, self.reducer)
        record: dict[str, Any] = {
            "epoch": progress.epoch + 1,
            "train_loss": loss / max(1, progress.step),
            **metrics,
            "lr": training.optimizer.param_groups[0]["lr"],
            "seconds": clock.report(seen, task.unit if isinstance(task, Objective) else "samples"),
        }
        progress.history.append(record)
        progress.epoch += 1
        progress.step, progress.loss_sum = 0, 0.0
        return record

    def _decide(self, record: dict[str, Any], training: Training) -> bool:
        """Whether the epoch is the best so far, whose weights are kept; ends training where the rule says so."""
        progress, rule, task = self.progress, self.early_stopping, training.task
        value, after = float(record.get(task.metric, math.nan)), self.best_after
        improved = progress.note(record["epoch"], value, lower_is_better=task.lower_is_better, rule=rule, after=after)
        if improved:
            self.best_state = workers.plain_state(self.evaluated_model)
        # without any defined metric there is no improvement to wait for
        may_end = progress.best_epoch is not None and progress.epoch < training.num_epochs
        failed = rule is not None and progress.epochs_without_success >= rule.patience
        if rule is not None and failed and may_end and self.evaluates(record["epoch"]):
            progress.finished, progress.stopped_because = True, rule.reason
        return improved

    # -- files ----------------------------------------------------------------------------

    def save_checkpoint(self, path: str | Path, *, metadata: dict[str, Any] | None = None) -> None:
        """Write weights and training state (rank 0, atomically); a failure is raised on every rank."""
        self.read_steps()
        checkpoints.save(self, path, metadata or {})

    def load_checkpoint(self, path: str | Path) -> dict[str, Any]:
        """Continue from a checkpoint, at the step at which it was written; returns its metadata.

        On the CPU, with the same number of workers (any, with ``reproducible=True``), the run continues bit for bit if
        the order of a loader's batches depends on the epoch alone (samplers with ``set_epoch``).
        """
        content = checkpoints.read(path, self.device)
        checkpoints.restore(self, content)
        return content["metadata"]

    def _restore_random(self) -> None:
        """Restore the random state of a checkpoint, after the batches before it were skipped."""
        if self.restored_random is not None:
            torch.set_rng_state(self.restored_random)
            self.restored_random = None
