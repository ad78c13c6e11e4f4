"""One optimiser step over the micro-batches of a window, with precision, profiling and timing.

With W workers and the losses l_wb of the window's micro-batches b on worker w, a step uses

    gradient = mean over w of  sum over b of  d l_wb / d weights

which is the gradient of the global window's loss, because the task scales each l_wb by counts of the whole window.
Order: forward and backward of each micro-batch, which adds to ``.grad``; gradients are sent with the last one only;
then unscale (float16), check that loss and gradients are finite, clip the global gradient, update, moving average.
Running statistics of batch norms change in the forward, before the loss is known, so a copy is kept and put back if the
check fails: after an error the model is that of the step before. The check reads one number from the device per step.
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

from gears.distributed.world import Reducer
from gears.files.atomic import write_atomically
from gears.training.engine_options import EngineOptions
from gears.training.tasks import Task
from gears.training.wrapping import note_waiting, synchronised, unwrap

logger = logging.getLogger(__name__)

RUNNING = ("running_mean", "running_var", "num_batches_tracked")
"""Buffers of batch norms that a forward in training mode changes."""

COMPILERS = ("g++", "clang++", "c++", "cl")

TRACE = "trace.json"
WARM_UP, RECORDED = 1, 8
"""Optimiser steps before the trace and in it (the trace of a complete run would fill gigabytes)."""


@dataclass
class Stepper:
    """Forward, backward, clipping and update; the gradient is that of the global window.

    Attributes
    ----------
    scaler
        Scales gradients under float16; disabled otherwise.
    ema
        Moving average to update after each step, if one is kept.
    """

    model: nn.Module
    device: torch.device
    scaler: torch.amp.GradScaler
    ema: AveragedModel | None = None
    options: EngineOptions = field(default_factory=EngineOptions)

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
            ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(options.ema_decay))
        return cls(model, device, scaler, ema, options)

    def begin(self) -> None:
        """Collect the model's parameters and running statistics: once per training instead of once per step."""
        self._parameters = list(self.model.parameters())
        self._buffers = [b for name, b in self.model.named_buffers() if name.rpartition(".")[2] in RUNNING]

    def step(
        self,
        wrapped: nn.Module,
        window: Sequence[Any],
        task: Task,
        optimizer: torch.optim.Optimizer,
        reducer: Reducer,
    ) -> float:
        """Take one step and return this worker's loss; `wrapped` is the model to call, DDP with several workers.

        Raises FloatingPointError, and changes no weight, if the loss or a gradient is not finite.
        """
        optimizer.zero_grad(set_to_none=True)
        before = self._running()
        loss = self._backward(wrapped, window, task, reducer)
        self.scaler.unscale_(optimizer)
        try:
            total = self._checked(loss)
        except FloatingPointError:
            with torch.no_grad():
                for buffer, copy in before:
                    buffer.copy_(copy)
            raise
        if self.options.clip_value is not None:
            nn.utils.clip_grad_value_(self._parameters, self.options.clip_value)
        if self.options.clip_norm is not None:
            nn.utils.clip_grad_norm_(self._parameters, self.options.clip_norm)
        self.scaler.step(optimizer)
        self.scaler.update()
        if self.ema is not None:
            self.ema.update_parameters(self.model)
        return total

    def _running(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Running statistics with a copy of each; one fused call copies all that are floating point."""
        floats = [b for b in self._buffers if b.is_floating_point()]
        copies = torch._foreach_mul(floats, 1.0) if floats else ()
        counts = [b for b in self._buffers if not b.is_floating_point()]
        return [*zip(floats, copies, strict=True), *((b, b.clone()) for b in counts)]

    def _backward(
        self, wrapped: nn.Module, window: Sequence[Any], task: Task, reducer: Reducer
    ) -> torch.Tensor:
        """Gradients of the window; its loss as a float64 tensor that stays on the device."""
        options, context = self.options, task.prepare_window(window, reducer)
        total = torch.zeros(
            (), dtype=torch.float64 if self.device.type != "mps" else torch.float32, device=self.device
        )
        for position, batch in enumerate(window):
            with synchronised(wrapped, last=position == len(window) - 1):
                with torch.autocast(self.device.type, dtype=options.amp_dtype, enabled=options.use_amp):
                    loss = task.loss(wrapped, batch, context, position)
                self.scaler.scale(loss).backward()
            note_waiting(wrapped, reducer)
            total += loss.detach()
        return total

    def _checked(self, loss: torch.Tensor) -> float:
        """The loss as a number; raises unless it and every gradient are finite. Reads one number from the device.

        Under float16 scaling gradients overflow now and then: the scaler skips such steps itself.
        """
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        watched = loss
        if gradients and not self.scaler.is_enabled():
            # zero times the sum of norms is NaN as soon as one gradient is NaN, infinite, or too large to be squared
            norms = torch._foreach_norm(gradients)
            watched = loss + 0.0 * torch.stack(list(norms)).sum().to(loss)
        total = float(watched)
        if not math.isfinite(total):
            value = float(loss)
            bad_loss = not math.isfinite(value)
            msg = f"the loss is {value}" if bad_loss else f"a gradient is not finite (loss {value:g})"
            raise FloatingPointError(msg)
        return total


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
    if reason is not None:
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
    workers. On a GPU these are seconds of the host, which waits for the device in every step.
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
