"""One optimiser step over the micro-batches of a window, with precision, profiling and timing.

With W workers and the losses l_wb of the window's micro-batches b on worker w, a step uses

    gradient = mean over w of  sum over b of  d l_wb / d weights

which is the gradient of the global window's loss, because the task scales each l_wb by counts of the whole window.
Order: forward and backward of each micro-batch, which adds to ``.grad``; one reduction over workers; then unscale
(float16), check that loss and gradients are finite, clip the global gradient, update, moving average.

A device is not waited for: loss and check of each step are written to a table on it, which :meth:`Stepper.read` reads
every few steps. From the first step that is not finite on, the update is skipped on the device (the optimiser's
``found_inf``) and the running statistics of batch norms are put back, so that after an error the model is that of the
step before. Optimisers that cannot skip a step on the device are waited for in every step.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import math
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn, profiler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from gears.distributed.world import IDENTITY, Reducer, is_main_process
from gears.files.atomic import write_atomically
from gears.training.engine_options import EngineOptions
from gears.training.gradients import SharedGradients
from gears.training.shards import Shards
from gears.training.tasks import Task
from gears.training.wrapping import RUNNING, unwrap

logger = logging.getLogger(__name__)

MOST_UNREAD = 16
"""Steps whose losses and checks are read at once."""

COMPILERS = ("g++", "clang++", "c++", "cl")

TRACE = "trace.json"
WARM_UP, RECORDED = 1, 8
"""Optimiser steps before the trace and in it (the trace of a complete run would fill gigabytes)."""


@dataclass(frozen=True)
class StepRecord:
    """What a step left on the device.

    Attributes
    ----------
    loss
        This worker's loss; that of all workers where the step was computed by shards.
    finite
        Whether the losses and gradients of all workers are, in this step and all before.
    stop, seconds
        Mean over workers of what they passed to :meth:`Stepper.vote`.
    """

    loss: float
    finite: bool
    stop: float = 0.0
    seconds: float = 0.0


@dataclass
class Stepper:
    """Forward, backward, clipping and update; the gradient is that of the global window.

    Attributes
    ----------
    scaler
        Scales gradients under float16; disabled otherwise.
    ema
        Moving average to update after each step, if one is kept.
    unread
        Steps since the last :meth:`read`.
    """

    model: nn.Module
    device: torch.device
    scaler: torch.amp.GradScaler
    ema: AveragedModel | None = None
    options: EngineOptions = field(default_factory=EngineOptions)
    unread: int = 0
    shards: Shards | None = None

    def __post_init__(self) -> None:
        self.begin()

    @classmethod
    def of(cls, model: nn.Module, device: torch.device, options: EngineOptions) -> Stepper:
        """A stepper with the gradient scaling and the moving average that the options name."""
        scaling = options.use_amp and options.amp_dtype == torch.float16 and device.type == "cuda"
        scaler = torch.amp.GradScaler(
            device.type,
            init_scale=options.init_scale,
            growth_interval=options.growth_interval,
            enabled=scaling,
        )
        ema = None
        if options.use_ema:
            ema = MovingAverage(model, options.ema_decay)
        return cls(model, device, scaler, ema, options)

    def begin(self, reducer: Reducer = IDENTITY) -> None:
        """Collect the model's parameters and running statistics: once per training instead of once per step."""
        self._parameters = [p for p in self.model.parameters() if p.requires_grad]
        buffers = [b for name, b in self.model.named_buffers() if name.rpartition(".")[2] in RUNNING]
        by_kind = ([b for b in buffers if b.is_floating_point() == floating] for floating in (True, False))
        self._buffers = [some for some in by_kind if some]
        self._reducer, self.unread = reducer, 0
        exact = torch.float64 if self.device.type != "mps" else torch.float32
        dtype = next((p.dtype for p in self._parameters), torch.float32)
        self._broken = torch.zeros((), device=self.device, dtype=torch.float32)
        self._one = torch.ones((), device=self.device, dtype=torch.float32)
        self._records = torch.zeros(MOST_UNREAD, 4, dtype=exact, device=self.device)
        self._said_3 = torch.zeros(3, dtype=dtype, device=self.device)  # 0 or NaN by the loss; stop; seconds
        self._shared = None
        if reducer.world_size > 1:
            self._shared = SharedGradients(self._parameters, reducer)

    def vote(self, *, stop: bool | None = None, seconds: float | None = None) -> None:
        """Let the other workers know, with the next gradients, a wish to stop and the seconds of a step."""
        for place, value in ((1, stop), (2, seconds)):
            if value is not None:
                self._said_3[place].fill_(float(value))

    def step(
        self, called: nn.Module, window: Sequence[Any], task: Task, optimizer: torch.optim.Optimizer
    ) -> None:
        """Take one step; `called` is the model or what ``torch.compile`` made of it.

        Changes no weight if the loss or a gradient is not finite, now or in a step before, which :meth:`read` says; it
        has to be called within :data:`MOST_UNREAD` steps.
        """
        optimizer.zero_grad(set_to_none=True)
        before = [torch.cat([buffer.view(-1) for buffer in some]) for some in self._buffers]
        loss, shared = self._gradients(called, window, task)
        self._check(loss, shared)
        self.scaler.unscale_(optimizer)
        self._put_back(before)
        if not self._skips(optimizer) and bool(self._broken):
            return
        if self.options.clip_value is not None:
            nn.utils.clip_grad_value_(self._parameters, self.options.clip_value)
        if self.options.clip_norm is not None:
            nn.utils.clip_grad_norm_(self._parameters, self.options.clip_norm)
        self._update(optimizer)
        if self.ema is not None:
            self.ema.update_parameters(self.model)

    def read(self) -> list[StepRecord]:
        """Records of the steps since the last call; waits for the device."""
        rows = self._records[: self.unread].tolist() if self.unread else []
        self.unread = 0
        return [StepRecord(loss, broken == 0, stop, seconds) for loss, broken, stop, seconds in rows]

    def _gradients(
        self, called: nn.Module, window: Sequence[Any], task: Task
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Gradients of all workers; the loss, and what :meth:`SharedGradients.average` returns where it was called."""
        if self.shards is not None:
            return self._gradients_of_shards(self.shards, window, task)
        loss = self._backward(called, window, task, self._reducer)
        if self._shared is None:
            return loss, None
        torch.mul(loss, 0.0, out=self._said_3[0])
        return loss, self._shared.average(self._said_3)

    def _gradients_of_shards(
        self, shards: Shards, window: Sequence[Any], task: Task
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The same shard by shard; the loss is that of all workers."""
        windows = shards.divided(window)

        def of_shard(position: int) -> torch.Tensor:
            module = shards.models[position]
            module.zero_grad(set_to_none=True)
            loss = self._backward(module, windows[position], task, shards.reducers[position])
            said_3 = torch.cat([loss.view(1).to(self._said_3.dtype), self._said_3[1:]])
            return shards.gradients[position].average(said_3)

        flat, *_ = shards.run(of_shard)
        return flat[-3], flat

    def _backward(
        self, called: nn.Module, window: Sequence[Any], task: Task, reducer: Reducer
    ) -> torch.Tensor:
        """Gradients of the window; its loss, which stays on the device, as float64."""
        options, context = self.options, task.prepare_window(window, reducer)
        total: torch.Tensor | None = None
        for position, batch in enumerate(window):
            with torch.autocast(self.device.type, dtype=options.amp_dtype, enabled=options.use_amp):
                loss = task.loss(called, batch, context, position)
            if self.scaler.is_enabled():  # which skips steps by their gradients alone
                loss = loss / (1 - self._broken)
            self.scaler.scale(loss).backward()
            exact = loss.detach().to(self._records.dtype)
            total = exact if total is None else total + exact
        assert total is not None
        return total

    def _check(self, loss: torch.Tensor, shared: torch.Tensor | None) -> None:
        """Record the loss, and whether it and all gradients are finite, on the device.

        Under float16 scaling gradients overflow now and then: the scaler skips such steps itself.
        """
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        row = [loss.view(1), self._broken.view(1)]
        if shared is not None:
            said_3 = shared[-3:]
            row.append(said_3[1:])
            watched = [said_3 if self.scaler.is_enabled() else shared]
        else:
            row.append(self._said_3[1:])
            finite = loss.to(self._said_3.dtype).view(1)
            watched = [finite] if self.scaler.is_enabled() else [*gradients, finite]
        # sets `broken` to 1 where a value is not finite, else leaves it; the values themselves are multiplied by 1
        torch._amp_foreach_non_finite_check_and_unscale_(watched, self._broken, self._one)
        torch.cat(row, out=self._records[self.unread])
        self.unread += 1

    def _put_back(self, before: Sequence[torch.Tensor]) -> None:
        """Put running statistics back where this step, or one before, is not finite."""
        for some, old in zip(self._buffers, before, strict=True):
            new = torch.cat([buffer.view(-1) for buffer in some])
            parts = torch.where(self._broken > 0, old, new).split([buffer.numel() for buffer in some])
            torch._foreach_copy_(some, [part.view_as(b) for part, b in zip(parts, some, strict=True)])

    def _skips(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether the optimiser can skip a step without the host."""
        return bool(getattr(optimizer, "_step_supports_amp_scaling", False))

    def _update(self, optimizer: torch.optim.Optimizer) -> None:
        if self.scaler.is_enabled() or not self._skips(optimizer):
            self.scaler.step(optimizer)
            self.scaler.update()
            return
        optimizer.grad_scale, optimizer.found_inf = None, self._broken  # type: ignore[attr-defined]
        optimizer.step()
        del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]


class MovingAverage(AveragedModel):
    """Moving average of weights whose decay at step t is (1 + t) / (10 + t), and at most `decay`.

    With a fixed decay of 0.999 two thirds of the average of a run of 400 steps would be the first weights.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        super().__init__(model, multi_avg_fn=self._average)
        self.decay = decay

    def _average(self, averaged: Any, current: Any, _: Any) -> None:
        steps = int(self.n_averaged)  # on the host, unlike the copy that is passed
        get_ema_multi_avg_fn(min(self.decay, (1 + steps) / (10 + steps)))(averaged, current, steps)


def not_finite(record: StepRecord) -> str:
    """What is not finite in a step."""
    if math.isfinite(record.loss):
        return f"a gradient is not finite (loss {record.loss:g})"
    return f"the loss is {record.loss}"


@contextlib.contextmanager
def tf32(enabled: bool, device: torch.device) -> Iterator[None]:
    """On CUDA, multiply float32 matrices in TF32 (10 bits of mantissa); restores the previous precision."""
    if not enabled or device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextlib.contextmanager
def compiled(model: nn.Module, device: torch.device, *, enabled: bool = True) -> Iterator[Any]:
    """The model through ``torch.compile``, or unchanged and with a warning where there is no compiler.

    The methods that a model lists in ``hand_written()`` (pairs of a module and a method's name, with a hand-written
    backward and collectives) are called and not traced.
    """
    reason = no_compiler(device.type) if enabled else None
    if reason is not None and is_main_process():
        logger.warning("compile=True has no effect: %s", reason)
    if not enabled or reason is not None:
        yield model
        return
    untraced: list[tuple[nn.Module, str]] = getattr(unwrap(model), "hand_written", list)()
    for module, method in untraced:
        setattr(module, method, torch.compiler.disable(getattr(module, method)))
    try:
        # batches differ in their numbers of conditions: sizes are left open
        yield torch.compile(model, dynamic=True)
    finally:
        for module, method in untraced:
            delattr(module, method)  # uncovers the class's method


def no_compiler(device_type: str) -> str | None:
    """What ``torch.compile`` lacks on this machine for a device type; None if nothing."""
    cxx = os.environ.get("CXX")
    compilers = (cxx,) if cxx else COMPILERS
    if not any(shutil.which(name) for name in compilers):
        return f"no C++ compiler was found (looked for {', '.join(compilers)}; CXX names another)"
    if device_type == "cuda" and importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    return None


@contextlib.contextmanager
def profiled(folder: Path | None, device: torch.device) -> Iterator[Callable[[], None]]:
    """Record ``trace.json`` in `folder` (None: nothing) while the block runs; yields a function to call each step."""
    if folder is None:
        yield lambda: None
        return
    activities = [profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(profiler.ProfilerActivity.CUDA)
    plan = profiler.schedule(wait=0, warmup=WARM_UP, active=RECORDED, repeat=1)
    with profiler.profile(activities=activities, schedule=plan, acc_events=True) as recorder:
        yield recorder.step
    # written at the end, because the first epoch replaces the folder
    if folder.is_dir() and recorder.profiler is not None and recorder.step_num > WARM_UP:
        write_atomically(folder / TRACE, lambda temporary: recorder.export_chrome_trace(str(temporary)))


def size_of(batch: Any) -> int:
    """Cells, conditions or samples of a batch: length of its ``condition``, of its first element, or of itself."""
    if hasattr(batch, "condition"):
        return len(batch.condition)
    return len(batch[0]) if isinstance(batch, tuple | list) and batch else len(batch)


class Clock:
    """Seconds of an epoch on this worker: waiting for data, communication, evaluation, and compute (the remainder).

    Communication is the time in which the worker could do nothing else: its sums and gathers,
    and sending gradients after the last one was computed. It includes waiting for slower
    workers. On a GPU these are seconds of the host, which waits for the device every few steps.
    """

    def __init__(self, reducer: Any) -> None:
        self._start = time.perf_counter()
        self._reducer = reducer
        self._communication = self._spent()
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
                self.seen += sum(size_of(batch) for batch in item)
            yield item

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Measure a block as evaluation, without its communication."""
        start, spent = time.perf_counter(), self._spent()
        yield
        self._evaluation += time.perf_counter() - start - (self._spent() - spent)

    def report(self, seen: float, unit: str) -> dict[str, float]:
        """Seconds by part, and the rate of all workers together over `seen` cells (conditions)."""
        total = time.perf_counter() - self._start
        communication = self._spent() - self._communication
        compute = max(0.0, total - self._data - communication - self._evaluation)
        return {
            "total": total,
            "data": self._data,
            "compute": compute,
            "communication": communication,
            "evaluation": self._evaluation,
            f"{unit}_per_second": seen / max(total - self._evaluation, 1e-9),
        }

    def _spent(self) -> float:
        return getattr(self._reducer, "seconds", 0.0)
