"""A trace of the first steps of a run, for chrome://tracing or ui.perfetto.dev."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import profiler

from gears.files import write_atomically

TRACE = "trace.json"
WARM_UP, RECORDED = 1, 8
"""Optimiser steps that are left out and recorded (a whole run would fill gigabytes)."""


@contextlib.contextmanager
def profiled(folder: Path | None, device: torch.device) -> Iterator[Callable[[], None]]:
    """Record while the block runs; what is yielded is to be called after each step.

    Parameters
    ----------
    folder
        Gets ``trace.json`` at the end; None records nothing.
    """
    if folder is None:
        yield lambda: None
        return
    activities = [profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(profiler.ProfilerActivity.CUDA)
    plan = profiler.schedule(wait=0, warmup=WARM_UP, active=RECORDED, repeat=1)
    with profiler.profile(activities=activities, schedule=plan, acc_events=True) as recorder:
        yield recorder.step
    # the folder is put in place as a whole by the first epoch: written only now
    if folder.is_dir() and recorder.profiler is not None and recorder.step_num > WARM_UP:
        write_atomically(folder / TRACE, lambda temporary: recorder.export_chrome_trace(str(temporary)))
