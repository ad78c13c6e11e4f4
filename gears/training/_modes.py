"""How a training runs: TF32, ``torch.compile``, a trace of its first steps, a moving average of its weights."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn, profiler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from gears.core._messages import unknown_name
from gears.distributed._world import Reducer, is_main_process
from gears.files._atomic import write_atomically
from gears.training._workers import unwrap
from gears.training.options import TrainOptions

logger = logging.getLogger(__name__)

OF_ANY_MODEL = (
    "use_amp", "amp_dtype", "init_scale", "growth_interval", "tf32", "compile", "use_ema", "ema_decay",
    "accumulation_steps", "clip_value", "clip_norm", "check_replicas", "reproducible", "eval_every",
)  # fmt: skip
"""Training options that do not depend on the model."""

COMPILERS = ("g++", "clang++", "c++", "cl")

TRACE = "trace.json"
WARM_UP, RECORDED = 1, 8
"""Optimiser steps before the trace and in it (the trace of a complete run would fill gigabytes)."""


def options_of_any_model(values: Mapping[str, Any]) -> TrainOptions:
    """Training options from those of :data:`OF_ANY_MODEL`; gradients are not clipped by default."""
    for name in values:
        if name not in OF_ANY_MODEL:
            raise ValueError(unknown_name("option of TrainingEngine", name, OF_ANY_MODEL))
    amp_dtype = str(values.get("amp_dtype", "bfloat16")).removeprefix("torch.")
    return TrainOptions(**{"prior": None, "clip_value": None, **values, "amp_dtype": amp_dtype})


def warn_without_effect(
    options: TrainOptions, device: torch.device, reducer: Reducer, steps: int | None = None, *, validated: bool = True
) -> None:
    """Warn about options that have no effect in a run of so many steps, with validation conditions or without."""
    facts = {"device_type": device.type, "world_size": reducer.world_size, "steps": steps}
    for sentence in options.without_effect(**facts, validated=validated):
        logger.warning("%s", sentence)


class MovingAverage(AveragedModel):
    """Moving average of weights whose decay at step t is (1 + t) / (10 + t), and at most `decay`."""

    # with a fixed decay of 0.999 two thirds of the average of a run of 400 steps would be the first weights

    def __init__(self, model: nn.Module, decay: float) -> None:
        super().__init__(model, multi_avg_fn=self._average)
        self.decay = decay

    def _average(self, averaged: Any, current: Any, _: Any) -> None:
        steps = int(self.n_averaged)  # on the host, unlike the copy that is passed
        get_ema_multi_avg_fn(min(self.decay, (1 + steps) / (10 + steps)))(averaged, current, steps)


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
    """The model through ``torch.compile``, or unchanged and with a warning where there is no compiler."""
    reason = no_compiler(device.type) if enabled else None
    if reason is not None and is_main_process():
        logger.warning("compile=True has no effect: %s", reason)
    if not enabled or reason is not None:
        yield model
        return
    # pairs of a module and a method's name, with a hand-written backward and collectives: called and not traced
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
