"""Options of a training run: a frozen dataclass that checks itself, and the defaults that depend on the objective."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gears.messages import unknown_name
from gears.training.loggers import check_loggers
from gears.training.schedules import LR_SCALINGS, SCHEDULES
from gears.training.wrapping import COMPRESSIONS

DEFAULTS: dict[str, dict[str, Any]] = {
    "moments": {"lr": 1e-2, "schedule": "one-cycle", "weight_decay": 0.0},
    "cells": {"lr": 1e-3, "schedule": "step", "weight_decay": 5e-4, "batch_size": 32},
}
"""What an omitted option becomes under each objective; those of cells are the published ones."""
EPOCHS = 20
"""Epochs of a run that names no length (published)."""
CONDITIONS_PER_STEP = 32
"""Conditions of a step over all workers, where `batch_size` is omitted (moments)."""
STEPS_PER_EPOCH = 20
"""Optimiser steps of an epoch over moments, at least: 20 epochs of them train a network (docs/objectives.md)."""
AUTO = "auto"
DTYPES = {"float32": torch.float32, "float64": torch.float64}
AMP_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_FILLED_COUNTS = ("steps", "batch_size", "eval_every", "checkpoint_every", "checkpoint_every_steps")
_SWITCHES = (
    "use_amp",
    "tf32",
    "compile",
    "profile",
    "use_ema",
    "check_replicas",
    "refit",
    "resume",
    "verbose",
)


@dataclass(frozen=True)
class TrainOptions:
    """How a model is trained. Every field is an option of :meth:`gears.GEARS.train`.

    Attributes
    ----------
    epochs
        Epochs that run, 20 by default. Over cells an epoch is one pass over the training cells; over moments it is
        at least one pass over the training conditions and at least 20 optimiser steps. 0 fits the prior alone.
    lr, weight_decay
        Adam's learning rate and weight decay; by default 1e-2 and 0 over moments, 1e-3 and 5e-4 over cells.
    steps
        Length of the run in optimiser steps instead of epochs; the last epoch may be a part.
    objective
        ``"moments"``: each condition's moments over all pairs of its cells with control
        cells. ``"cells"``: every perturbed cell against a control cell drawn again each epoch, as published.
    prior
        ``"auto"``: a Gaussian-process prior is fitted to the training conditions' means, and the network
        learns what it leaves (see :mod:`gears.priors`). How much the network counts beside it, its network weight,
        is chosen at the end on the validation conditions. None: the network alone, as published.
    refit
        With network weight 0, fit the prior again to the training and validation conditions at the end.
    schedule, warmup_steps, eta_min
        Learning-rate schedule (``"step"`` halves it after each epoch, as published; the default over cells),
        steps of linear warm-up, lowest share of the rate. Over moments the default is ``"one-cycle"``.
    batch_size
        Cells or conditions per worker and step; by default that of the loader, else 32 cells per worker, or 32
        conditions over all workers.
    eval_every
        Epochs between evaluations; the last epoch is always evaluated. Best epoch and
        early stopping are decided where there is an evaluation.
    lr_scaling
        Multiply `lr` by the number of workers (``"linear"``), its root (``"sqrt"``), or not.
    clip_value, clip_norm
        Clip the global gradient by value (published: 1.0) or by norm.
    accumulation_steps
        Micro-batches per optimiser step.
    use_amp, amp_dtype
        Mixed precision.
    init_scale, growth_interval
        Gradient scaling of float16 on CUDA: first factor, steps without overflow until it doubles.
    tf32
        On CUDA, multiply float32 matrices in TF32 while training.
    compile
        Train through ``torch.compile`` (minutes at the start, for long runs on large screens).
    profile
        Write a ``torch.profiler`` trace of the first steps of rank 0 to ``trace.json`` in `save_path`.
    use_ema, ema_decay
        Moving average of the weights; it is what is validated and saved.
    early_stopping
        A number: end after this many epochs without a better validation metric. ``"auto"``: end when, after the
        learning rate has begun to fall, a quarter of the epochs in a row have beaten neither the prior nor the best
        epoch; without a prior the same as None, which runs every epoch.
    gradient_compression
        Send gradients as ``"fp16"`` or ``"bf16"`` (no longer exact in the number of workers).
    check_replicas
        Compare all workers' weights after each epoch.
    dtype
        ``"float32"`` or ``"float64"``.
    monitor
        Validation metric that chooses the best epoch.
    save_path
        Folder of the model; written as soon as an epoch is best. A model that is there is
        replaced, a folder that is no model is refused.
    resume
        Continue the run whose checkpoints lie under `save_path`.
    checkpoint_every, keep_last
        Epochs between training checkpoints and how many of them are kept.
    checkpoint_every_steps
        Also write one after every so many optimiser steps, within an epoch too; a resumed run goes
        on at that step. Without it a checkpoint within an epoch is written at SIGTERM only.
    loggers
        Where the numbers of each epoch go, besides CSV and JSONL in `save_path`: any of
        ``"tensorboard"`` (into `save_path`) and ``"wandb"``.
    project, name, init_timeout
        Project and name of the wandb run, and seconds to wait for the service at the start.
    verbose
        Log a line per epoch and the final table.
    """

    epochs: int | None = None
    lr: float | None = None
    weight_decay: float | None = None
    steps: int | None = None
    objective: str = "moments"
    prior: str | None = AUTO
    refit: bool = True
    schedule: str | None = None
    batch_size: int | None = None
    eval_every: int | None = None
    warmup_steps: int = 0
    eta_min: float = 0.0
    lr_scaling: str = "none"
    clip_value: float | None = 1.0
    clip_norm: float | None = None
    accumulation_steps: int = 1
    use_amp: bool = False
    amp_dtype: str = "bfloat16"
    init_scale: float = 65536.0
    growth_interval: int = 2000
    tf32: bool = False
    compile: bool = False
    profile: bool = False
    use_ema: bool = False
    ema_decay: float = 0.999
    early_stopping: int | str | None = AUTO
    gradient_compression: str | None = None
    check_replicas: bool = False
    dtype: str = "float32"
    monitor: str = "mse_top20_de"
    save_path: str | None = None
    resume: bool = False
    checkpoint_every: int | None = None
    checkpoint_every_steps: int | None = None
    keep_last: int = 2
    loggers: tuple[str, ...] = ()
    project: str | None = None
    name: str | None = None
    init_timeout: float = 90.0
    verbose: bool = True

    def __post_init__(self) -> None:
        for name in self.names():
            if isinstance(getattr(self, name), np.generic):
                object.__setattr__(self, name, getattr(self, name).item())
        for name, valid in (
            ("objective", tuple(DEFAULTS)),
            ("schedule", tuple(SCHEDULES)),
            ("lr_scaling", tuple(LR_SCALINGS)),
            ("dtype", tuple(DTYPES)),
            ("amp_dtype", tuple(AMP_DTYPES)),
        ):
            optional = name == "schedule" and self.schedule is None
            if not optional and getattr(self, name) not in valid:
                raise ValueError(unknown_name(name, str(getattr(self, name)), valid))
        if self.gradient_compression is not None and self.gradient_compression not in COMPRESSIONS:
            raise ValueError(
                unknown_name("gradient_compression", self.gradient_compression, list(COMPRESSIONS))
            )
        if self.prior not in (AUTO, None):
            raise ValueError(unknown_name("prior", str(self.prior), [AUTO, "None"]))
        _expect(
            "epochs",
            self.epochs,
            self.epochs is None or _whole(self.epochs, 0),
            "a whole number of at least 0",
        )
        if self.epochs == 0 and self.prior is None:
            msg = "epochs=0 fits the prior alone, but prior=None has none; give at least 1 epoch, or prior='auto'"
            raise ValueError(msg)
        for name in (*_FILLED_COUNTS, "accumulation_steps", "keep_last", "growth_interval"):
            value = getattr(self, name)
            optional = name in _FILLED_COUNTS and value is None
            _expect(name, value, optional or _whole(value, 1), "a whole number of at least 1")
        for name in ("lr", "clip_value", "clip_norm", "init_scale"):
            value = getattr(self, name)
            _expect(name, value, value is None or (_number(value) and value > 0), "a number above 0")
        for name in _SWITCHES:
            _expect(name, getattr(self, name), isinstance(getattr(self, name), bool), "True or False")
        for name in ("weight_decay", "warmup_steps", "eta_min"):
            value = getattr(self, name)
            optional = name == "weight_decay" and value is None
            _expect(name, value, optional or (_number(value) and value >= 0), "a number of at least 0")
        _expect("warmup_steps", self.warmup_steps, _whole(self.warmup_steps, 0), "a whole number of steps")
        _expect("eta_min", self.eta_min, self.eta_min <= 1, "a share of the learning rate, at most 1")
        _expect(
            "ema_decay", self.ema_decay, _number(self.ema_decay) and 0 < self.ema_decay < 1, "between 0 and 1"
        )
        patience = self.early_stopping
        _expect(
            "early_stopping", patience, patience in (AUTO, None) or _whole(patience, 1),
            "a whole number of epochs of at least 1, 'auto' or None",
        )  # fmt: skip
        if self.save_path is not None:
            object.__setattr__(self, "save_path", str(Path(self.save_path).expanduser()))
        if self.use_amp and self.dtype == "float64":
            msg = (
                "use_amp=True computes in half precision and dtype='float64' in double; leave one of them out"
            )
            raise ValueError(msg)
        self._check_logging()
        if self.resume and self.save_path is None:
            msg = "resume=True continues the run under save_path; give save_path"
            raise ValueError(msg)

    def _check_logging(self) -> None:
        names = (self.loggers,) if isinstance(self.loggers, str) else tuple(self.loggers or ())
        object.__setattr__(self, "loggers", tuple(dict.fromkeys(names)))
        check_loggers(self.loggers, has_folder=self.save_path is not None)
        timeout = self.init_timeout
        _expect("init_timeout", timeout, _number(timeout) and timeout > 0, "seconds above 0")
        if self.profile and self.save_path is None:
            msg = "profile=True writes its trace into the model's folder; give save_path"
            raise ValueError(msg)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Names of all options."""
        return tuple(field.name for field in dataclasses.fields(cls))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> TrainOptions:
        """Options from plain values; an unknown name is an error that gives the nearest one."""
        for name in values:
            if name not in cls.names():
                raise ValueError(unknown_name("training option", str(name), list(cls.names())))
        if values.get("epochs") is not None and values.get("steps") is not None:
            both = f"epochs={values['epochs']} and steps={values['steps']}"
            msg = f"{both} both say how long to train; leave one of them out"
            raise ValueError(msg)
        return cls(**dict(values))

    @property
    def trains_on_request(self) -> bool:
        """Whether the caller asks for a trained network, even where its weight can only be 0."""
        length = self.epochs is not None or self.steps is not None
        return self.epochs != 0 and (length or self.early_stopping is None)

    def with_defaults(self, loader_size: int | None = None) -> TrainOptions:
        """The same with every omitted option filled in, but for the number of conditions of a step.

        Parameters
        ----------
        loader_size
            Batch size per worker of the caller's loader of cells, if there is one.
        """
        values: dict[str, Any] = {"eval_every": 1, "checkpoint_every": 1, "batch_size": loader_size}
        values |= {
            name: value for name, value in DEFAULTS[self.objective].items() if values.get(name) is None
        }
        if self.steps is None:
            values["epochs"] = EPOCHS
        if self.save_path is None:  # nothing is written: what was given stays visible as having no effect
            del values["checkpoint_every"]
        omitted = {name: value for name, value in values.items() if getattr(self, name) is None}
        if self.early_stopping == AUTO and self.prior is None:
            omitted["early_stopping"] = None
        return dataclasses.replace(self, **omitted)

    def conditions_per_step(self, n_conditions: int, world_size: int) -> int:
        """Conditions of a step over all workers, of `n_conditions` that train (moments)."""
        size = CONDITIONS_PER_STEP if self.batch_size is None else self.batch_size * world_size
        return min(size, n_conditions)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return dataclasses.asdict(self)


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _expect(name: str, value: object, good: bool, expected: str) -> None:
    if not good:
        msg = f"{name} is {value!r}; expected {expected}"
        raise ValueError(msg)
