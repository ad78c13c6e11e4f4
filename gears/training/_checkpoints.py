"""What a run leaves: records of its steps on the device, seconds of its epochs, its progress, its state as a file."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from gears.core._messages import count
from gears.distributed._world import Reducer
from gears.files.formats import read_tensors, write_tensors
from gears.training._workers import plain_state
from gears.training.options import TrainOptions

MOST_UNREAD = 16
"""Steps whose losses and checks are read at once."""
LONGEST_SECONDS = 10.0
"""Seconds after which workers learn of a request to stop; at most every :data:`MOST_UNREAD` steps."""


@dataclass(frozen=True)
class StepRecord:
    """What a step left on the device."""

    loss: float  # this worker's loss; that of all workers where the step was computed by shards
    finite: bool  # whether the losses and gradients of all workers are, in this step and all before
    # stop, seconds: mean over workers of a request to stop (1 or 0), and of the seconds that a step took
    stop: float = 0.0
    seconds: float = 0.0

    @property
    def broken(self) -> str:
        """What is not finite in the step."""
        if math.isfinite(self.loss):
            return f"a gradient is not finite (loss {self.loss:g})"
        return f"the loss is {self.loss}"


class StepRecords:
    """A table on the device with a row for each step since the last :meth:`read`, at most :data:`MOST_UNREAD`."""

    def __init__(self, device: torch.device, dtype: torch.dtype, world_size: int) -> None:
        self.exact = exact_dtype(device)
        # 1 once a loss or gradient was not finite; on the device, so that nobody waits for it
        self.broken = torch.zeros((), device=device, dtype=torch.float32)
        # what this worker sends with its gradients: 0 or NaN by the loss, a request to stop, seconds of a step
        self.message_3 = torch.zeros(3, dtype=dtype, device=device)
        # several workers learn together, by a common read, that training is to stop
        self.unread, self.stopping = 0, False
        self._world_size = world_size
        self._read_at, self._steps_between_reads = time.monotonic(), 1
        self._one = torch.ones((), device=device, dtype=torch.float32)
        self._table = torch.zeros(MOST_UNREAD, 4, dtype=self.exact, device=device)

    @property
    def is_due(self) -> bool:
        """Whether the steps are to be read now, the same on all workers."""
        return self.unread >= self._steps_between_reads or (self._world_size == 1 and self.stopping)

    def tell_stop(self) -> None:
        """Stop; several workers do once the next gradients have let all of them know."""
        if self._world_size == 1:
            self.stopping = True
        else:
            self.message_3[1].fill_(1.0)

    def message(self, loss: Tensor) -> Tensor:
        torch.mul(loss, 0.0, out=self.message_3[0])
        return self.message_3

    def message_of_shard(self, loss: Tensor) -> Tensor:
        """The same with the loss itself, in a separate tensor."""
        return torch.cat([loss.view(1).to(self.message_3.dtype), self.message_3[1:]])

    def add(self, loss: Tensor, gradients: Sequence[Tensor], averaged: Tensor | None, *, scaled: bool) -> None:
        """Record a step's loss, and whether it and all gradients (of all workers: `averaged`) are finite."""
        # under float16 scaling gradients overflow now and then: the scaler skips such steps itself
        if averaged is None:
            message_2, own_loss = self.message_3[1:], loss.to(self.message_3.dtype).view(1)
            checked = [own_loss] if scaled else [*gradients, own_loss]
        else:
            message_2, checked = averaged[-2:], [averaged[-3:] if scaled else averaged]
        row = [loss.view(1), self.broken.view(1), message_2]
        # sets `broken` to 1 where a value is not finite, else leaves it; the values themselves are multiplied by 1
        torch._amp_foreach_non_finite_check_and_unscale_(checked, self.broken, self._one)
        torch.cat(row, out=self._table[self.unread])
        self.unread += 1

    def read(self) -> list[StepRecord]:
        """Records of the steps since the last call; waits for the device."""
        rows = self._table[: self.unread].tolist()
        self.unread = 0
        records = [StepRecord(loss, broken == 0, stop, seconds) for loss, broken, stop, seconds in rows]
        self._steps_between_reads = MOST_UNREAD
        if self._world_size > 1:
            self.stopping |= any(record.stop > 0 for record in records)
            now = time.monotonic()
            self.message_3[2].fill_((now - self._read_at) / len(records))
            self._read_at = now
            # by the mean of what all workers found up to the read before; nothing is known before the first
            seconds = records[-1].seconds
            steps = LONGEST_SECONDS / seconds if seconds > 0 else 1
            self._steps_between_reads = max(1, min(MOST_UNREAD, int(steps)))
        return records


class Clock:
    """Seconds of an epoch on this worker: waiting for data, communication, evaluation, and compute (the remainder)."""

    # Communication is the time in which the worker could do nothing else: its sums and gathers, and sending gradients
    # after the last one was computed. It includes waiting for slower workers. On a GPU these are seconds of the host,
    # which waits for the device every few steps.

    def __init__(self, reducer: Reducer) -> None:
        self._start = time.perf_counter()
        self._reducer = reducer
        self._communication = reducer.seconds
        self._data = self._evaluation = 0.0
        self.seen = 0

    def timed(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield windows of batches; adds up the time until each arrives and its number of samples."""
        iterator = iter(items)
        while True:
            start = time.perf_counter()
            try:
                item = next(iterator)
            except StopIteration:
                return
            finally:
                self._data += time.perf_counter() - start
            with contextlib.suppress(TypeError):  # batches of other loaders may have no length
                for batch in item:  # of (inputs, targets) the samples are counted
                    self.seen += len(batch[0]) if isinstance(batch, tuple | list) and batch else len(batch)
            yield item

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Measure a block as evaluation, without its communication."""
        start, communication = time.perf_counter(), self._reducer.seconds
        yield
        self._evaluation += time.perf_counter() - start - (self._reducer.seconds - communication)

    def report(self, seen: float, unit: str) -> dict[str, float]:
        """Seconds by part, and the rate of all workers together over `seen` cells (conditions)."""
        total = time.perf_counter() - self._start
        communication = self._reducer.seconds - self._communication
        compute = max(0.0, total - self._data - communication - self._evaluation)
        return {
            "total": total,
            "data": self._data,
            "compute": compute,
            "communication": communication,
            "evaluation": self._evaluation,
            f"{unit}_per_second": seen / max(total - self._evaluation, 1e-9),
        }


FORMAT = 2
_LONGEST_REASON = 1000


def on_main(trained: Trained, what: str, write: Callable[[], None]) -> None:
    """Write on rank 0; all ranks wait for it, and all raise with its reason if it failed."""
    reducer, device = trained.reducer, trained.device
    failure: BaseException | None = None
    if reducer.rank == 0:
        try:
            write()
        except (OSError, ValueError, RuntimeError) as error:
            failure = error
    failed_here = torch.tensor([float(failure is not None)], dtype=torch.float32, device=device)
    if float(reducer.sum(failed_here)) == 0:
        return
    # a text of rank 0 on all ranks: whichever is heard first names the cause
    characters = torch.zeros(_LONGEST_REASON, dtype=torch.float32, device=device)
    if reducer.rank == 0:
        reason = str(failure or "").encode()[:_LONGEST_REASON]
        characters[: len(reason)] = torch.tensor(list(reason), dtype=torch.float32)
    reducer.from_main([characters])
    if failure is not None:
        raise failure
    reason_of_main = bytes(map(int, characters.tolist())).rstrip(b"\0").decode(errors="replace")
    msg = f"rank 0 could not write {what}: {reason_of_main}"
    raise OSError(msg)


@dataclass(frozen=True)
class EarlyStopping:
    """Rule that ends a run before its last epoch."""

    patience: int  # epochs in a row without success after which the run ends
    after: int = 0  # epochs up to this one (from 1) are not counted

    @property
    def reason(self) -> str:
        """Why a run ended, for messages."""
        return f"early stopping: {count(self.patience, 'epoch')} in a row did not beat the best epoch"


@dataclass
class Progress:
    """Progress of a run; plain values and tensors, saved in checkpoints."""

    # epoch, step, total_steps: complete epochs, optimiser steps of the current one and of the run
    epoch: int = 0
    step: int = 0
    total_steps: int = 0
    # best_epoch, best_metric: best evaluated epoch (from 1) and its metric
    best_epoch: int | None = None
    best_metric: float | None = None
    epochs_without_success: int = 0  # epochs since the last success (see :class:`EarlyStopping`)
    loss_sum: float = 0.0  # sum of this worker's losses of the current epoch
    finished: bool = False
    stopped_because: str | None = None  # why it ended before its last epoch; None where it did not
    history: list[dict[str, Any]] = field(default_factory=list)
    condition_scores: list[torch.Tensor] = field(default_factory=list)
    """The monitored metric by network weight and validation condition, (K, U), for each evaluated epoch."""

    def note(
        self, epoch: int, value: float, *, lower_is_better: bool, rule: EarlyStopping | None = None, after: int = 0
    ) -> bool:
        """Record an epoch's metric; True if `epoch` (from 1, and after `after`) is the best so far; NaN never is."""
        best = self.best_metric
        beats = best is None or (value < best if lower_is_better else value > best)
        better = not math.isnan(value) and epoch > after and beats
        if better:
            self.best_metric, self.best_epoch = value, epoch
        if better or (rule is not None and epoch <= rule.after):
            self.epochs_without_success = 0
        else:
            self.epochs_without_success += 1
        return better


class Trained(Protocol):
    """What is saved and restored of a training: the part of ``TrainingEngine`` that this file reads and sets."""

    model: nn.Module
    ema: AveragedModel | None
    scaler: torch.amp.GradScaler
    optimizer: torch.optim.Optimizer | None
    scheduler: Any
    progress: Progress
    best_state: dict[str, Tensor] | None
    restored_random: Tensor | None
    reducer: Reducer
    device: torch.device
    options: TrainOptions


def save(trained: Trained, path: str | Path, metadata: Mapping[str, Any]) -> None:
    """Write a checkpoint on rank 0 (see :func:`on_main`)."""
    of_workers = {
        "random": trained.reducer.gather(torch.get_rng_state().to(trained.device)).cpu(),
        "losses": trained.reducer.gather(epoch_sums(trained)).cpu(),
        "metadata": dict(metadata),
    }
    on_main(trained, str(path), lambda: write_tensors(path, _content(trained) | of_workers))


def epoch_sums(trained: Trained, *more: float) -> Tensor:
    """This worker's losses of the current epoch (and other sums), in the widest type of the device."""
    device = trained.device
    return torch.tensor([trained.progress.loss_sum, *more], dtype=exact_dtype(device), device=device)


def exact_dtype(device: torch.device) -> torch.dtype:
    """The widest type of real numbers that a device has."""
    return torch.float32 if device.type == "mps" else torch.float64


def _content(trained: Trained) -> dict[str, Any]:
    """What is the same on all workers."""
    state: dict[str, Any] = {
        "format": FORMAT,
        "model": plain_state(trained.model),
        "progress": dataclasses.asdict(trained.progress),
        "world_size": trained.reducer.world_size,
    }
    if trained.best_state is not None:
        state["best"] = trained.best_state
    if trained.ema is not None:
        state["ema"] = trained.ema.state_dict()
    if trained.optimizer is not None:
        state["optimizer"] = trained.optimizer.state_dict()
        state["scaler"] = trained.scaler.state_dict()
        if trained.scheduler is not None:
            state["scheduler"] = _plain_values(trained.scheduler.state_dict())
    return state


def read(path: str | Path, device: str | torch.device = "cpu") -> dict[str, Any]:
    """The content of a checkpoint; raises ValueError for a damaged file or another format."""
    content = read_tensors(path, device)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        description = content.get("format") if isinstance(content, dict) else type(content).__name__
        msg = f"{path} is no training checkpoint of format {FORMAT}; found {description}"
        raise ValueError(msg)
    return content


def restore(trained: Trained, content: Mapping[str, Any], *, restore_random: bool = True) -> None:
    """Load a checkpoint's content, with optimiser and scheduler where they are set."""
    trained.model.load_state_dict(content["model"])
    trained.progress = Progress(**content["progress"])
    if "best" in content:
        trained.best_state = {key: value.cpu() for key, value in content["best"].items()}
    if trained.ema is not None and "ema" in content:
        trained.ema.load_state_dict(content["ema"])
    if trained.optimizer is not None and "optimizer" in content:
        trained.optimizer.load_state_dict(content["optimizer"])
        trained.scaler.load_state_dict(content["scaler"])
    if trained.scheduler is not None and "scheduler" in content:
        trained.scheduler.load_state_dict(content["scheduler"])
    same_workers = content["world_size"] == trained.reducer.world_size
    losses = content.get("losses")
    if losses is not None:  # an early release wrote none
        # with another number of workers each takes the mean of all losses: the epoch's mean loss stays the same
        loss_sum = losses[trained.reducer.rank] if same_workers else losses.mean()
        if trained.options.reproducible:  # all are equal, and their mean would be rounded
            loss_sum = losses[0]
        trained.progress.loss_sum = float(loss_sum)
    if restore_random and same_workers:
        trained.restored_random = content["random"][trained.reducer.rank].cpu()


def _plain_values(state: Any) -> Any:
    """State of a scheduler without its functions: only numbers are saved."""
    if isinstance(state, dict):
        return {key: _plain_values(item) for key, item in state.items() if not callable(item)}
    if isinstance(state, list | tuple):
        return [None if callable(item) else _plain_values(item) for item in state]
    return state
