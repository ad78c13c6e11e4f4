"""Options of a training run, and the defaults that depend on the objective."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import Any, Self

import torch

from gears.core._options import Needs, Options, anything, number, one_of, option, options, switch, text, whole
from gears.files._paths import named_sources, user_path
from gears.training._loggers import LOGGERS, check_loggers
from gears.training._schedules import LR_SCALINGS, SCHEDULES

_LEARNING = {"lr": 1e-2, "schedule": "one-cycle", "weight_decay": 0.0}
DEFAULTS: dict[str, dict[str, Any]] = {"moments": _LEARNING, "cells": {**_LEARNING, "batch_size": 32}}
"""Defaults of omitted options for each objective.

The published ones are ``lr=1e-3, schedule="step", weight_decay=5e-4``: with a rate that is halved after each epoch, a
network on a small screen stops learning before it fits the training conditions (docs/training.md).
"""
EPOCHS = 20
"""Default number of epochs (published)."""
MONITOR, MONITOR_ALONE = "relative_error", "mse_top20_de"
"""Default metric that selects epochs with a prior, and of the network alone (published)."""
CONDITIONS_PER_STEP = 32
"""Conditions of a step over all workers, where `batch_size` is omitted (moments)."""
STEPS_PER_EPOCH = 20
"""Fewest optimiser steps of an epoch over moments: 20 such epochs train a network (docs/training.md)."""
AUTO = "auto"
DTYPES = {"float32": torch.float32, "float64": torch.float64}
AMP_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


_AMP = Needs(lambda options, run: options.use_amp, "use_amp=True")
_SCALING = Needs(
    lambda options, run: options.use_amp and options.amp_dtype == "float16" and run.device_type == "cuda",
    "use_amp=True, amp_dtype='float16' and CUDA",
)
_WORKERS = Needs(lambda options, run: run.world_size > 1, "several workers")
_SAVED = Needs(lambda options, run: options.save_path is not None, "save_path")
_WANDB = Needs(lambda options, run: "wandb" in options.loggers, "loggers=['wandb']")
_PRIOR = Needs(lambda options, run: options.prior is not None, "prior='auto'")
_TF32 = Needs(lambda options, run: run.device_type == "cuda" and options.dtype == "float32", "CUDA and dtype='float32'")
_FALLING = Needs(lambda options, run: options.schedule in ("cosine", "one-cycle"), "schedule='cosine' or 'one-cycle'")
_EMA = Needs(lambda options, run: options.use_ema, "use_ema=True")
_VALIDATED = Needs(lambda options, run: run.validated, "a validation condition to score")
_STOPPING = Needs(
    lambda options, run: (
        options.early_stopping is None
        or (run.validated and (options.epochs is None or options.early_stopping < options.epochs))
    ),
    lambda options, run: f"a validation condition to score and more than {options.early_stopping} epochs",
)
_WARMED = Needs(
    lambda options, run: run.steps is None or options.warmup_steps < run.steps,
    lambda options, run: (
        f"more than {options.warmup_steps} steps (the run has {run.steps} and never reaches its learning rate)"
    ),
)
_BY_OBJECTIVE = "by objective"


@options
class TrainOptions(Options):
    """How a model is trained: options of :meth:`gears.GEARS.train`."""

    kind = "training option"

    # fmt: off
    epochs: int | None = option(None, whole(0).or_none(),
        help="""epochs of the GEARS network. Beside a prior it is trained where epochs, steps or early_stopping are
        given, or with uncertainty=True; 20 epochs by default, also with prior=None. Over cells an epoch is one pass
        over the training cells; over moments it is at least one pass over the training conditions and at least 20
        optimiser steps. 0 fits the prior alone, without its correction network""")
    lr: float | None = option(None, number(above=0).or_none(_BY_OBJECTIVE),
        help="learning rate of Adam, 1e-2 by default; published: 1e-3")
    weight_decay: float | None = option(None, number(least=0).or_none(_BY_OBJECTIVE), fixed=True,
        help="weight decay of Adam, 0 by default; published: 5e-4")
    _: KW_ONLY
    steps: int | None = option(None, whole(1).or_none(),
        help="length of the run in optimiser steps instead of epochs; the last epoch may be incomplete")
    objective: str = option("moments", one_of(list(DEFAULTS)), fixed=True,
        help="""what the loss is computed from: moments (each condition's moments over all pairs of its cells with
        control cells) or cells (every perturbed cell against a control cell drawn again each epoch, as published)""")
    prior: str | None = option(AUTO, one_of([AUTO]).or_none("None for the network alone"), fixed=True,
        help="""auto: fit a Gaussian-process prior to the training conditions; a network is trained on its residuals,
        and the network's weight beside the prior chosen on the validation conditions. prior=None trains the network
        alone, as published""")
    effects_of: str | list[Any] | dict[str, Any] | Any | None = option(None, anything(), needs=_PRIOR,
        help="""other screens of the same genes, or tables of effects (gears effects writes one), which tell what genes
        are alike here and what unseen ones do: one, a list, or names with sources (docs/evidence.md)""")
    similarities: dict[str, Any] | None = option(None, anything(), needs=_PRIOR,
        help="""knowledge about genes by name: tables of edges (STRING, ...) or a vector of each gene (embeddings), each
        a similarity in the prior with a weight by evidence""")
    refit: bool = option(True, switch(), needs=_PRIOR,
        help="with network weight 0, fit the prior again to the training and validation conditions at the end")
    schedule: str | None = option(None, one_of(list(SCHEDULES)).or_none(_BY_OBJECTIVE), fixed=True,
        help="""learning-rate schedule: one-cycle (the default), step (halved after each epoch, as published), constant
        or cosine""")
    batch_size: int | None = option(None, whole(1).or_none(),
        help="""cells or conditions per worker and step; by default that of the loader, else 32 cells per worker, or 32
        conditions over all workers""")
    eval_every: int | None = option(None, whole(1).or_none(), fixed=True,
        help="epochs between evaluations (1); the last epoch is always evaluated")
    warmup_steps: int = option(0, whole(0), needs=_WARMED, fixed=True,
        help="steps over which the learning rate rises linearly")
    eta_min: float = option(0.0, number(least=0, most=1), needs=_FALLING, fixed=True,
        help="lowest share of the learning rate")
    lr_scaling: str = option("none", one_of(list(LR_SCALINGS)), needs=_WORKERS,
        help="multiply lr by the number of workers (linear), by its root (sqrt), or not (none)")
    clip_value: float | None = option(1.0, number(above=0).or_none(), fixed=True,
        help="clip each entry of the global gradient to this size (published: 1)")
    clip_norm: float | None = option(None, number(above=0).or_none(), fixed=True,
        help="clip the norm of the global gradient to this size")
    accumulation_steps: int = option(1, whole(1), fixed=True, help="micro-batches per optimiser step")
    use_amp: bool = option(False, switch(), fixed=True, help="automatic mixed precision")
    amp_dtype: str = option("bfloat16", one_of(list(AMP_DTYPES)), needs=_AMP, fixed=True,
        help="type of mixed precision: bfloat16 or float16")
    init_scale: float = option(65536.0, number(above=0), needs=_SCALING,
        help="first factor of the gradient scaling of float16 on CUDA")
    growth_interval: int = option(2000, whole(1), needs=_SCALING,
        help="steps without overflow until the gradient scaling doubles")
    tf32: bool = option(False, switch(), needs=_TF32, fixed=True,
        help="on CUDA, multiply float32 matrices in TF32 while training")
    compile: bool = option(False, switch(),
        help="train through torch.compile: minutes at the start, for long runs on large screens")
    profile: bool = option(False, switch(),
        help="write a torch.profiler trace of the first steps of rank 0 to trace.json in save_path")
    use_ema: bool = option(False, switch(), fixed=True,
        help="keep a moving average of the weights, and validate and save it")
    ema_decay: float = option(0.999, number(above=0, below=1), needs=_EMA, fixed=True,
        help="decay of the moving average; at step t at most (1 + t) / (10 + t)")
    early_stopping: int | None = option(None, whole(1).or_none(), needs=_STOPPING,
        help="end after this many epochs without a better validation metric; by default every epoch runs")
    check_replicas: bool = option(False, switch(), needs=_WORKERS,
        help="compare all workers' weights after each epoch")
    reproducible: bool = option(False, switch(), fixed=True,
        help="""the same bits for 1, 2, 3, 4, 6 or 12 workers and any number of threads, on one kind of device and one
        prepared screen; slower (docs/distributed.md)""")
    dtype: str = option("float32", one_of(list(DTYPES)), fixed=True, help="precision: float32 or float64")
    monitor: str | None = option(None, text().or_none(), needs=_VALIDATED, fixed=True,
        help="""validation metric that selects the best epoch and the network weight; by default the decisive
        relative_error with a prior, and mse_top20_de, as published, without""")
    save_path: str | Path | None = option(None, text().or_none(),
        help="""folder of the model, written whenever an epoch is the best so far; an existing model is replaced, a
        folder with other content is an error""")
    resume: bool = option(False, switch(), help="continue the run whose checkpoints lie under save_path")
    checkpoint_every: int | None = option(None, whole(1).or_none(), needs=_SAVED,
        help="epochs between training checkpoints (1)")
    checkpoint_every_steps: int | None = option(None, whole(1).or_none(), needs=_SAVED,
        help="also write a training checkpoint every this many optimiser steps; a resumed run continues at that step")
    keep_last: int = option(2, whole(1), needs=_SAVED, help="number of training checkpoints to keep")
    loggers: Sequence[str] = option((), anything(),
        help=f"log the numbers of each epoch to {' or '.join(LOGGERS)}, besides CSV and JSONL in save_path")
    project: str | None = option(None, text().or_none(), needs=_WANDB, help="project of the wandb run")
    name: str | None = option(None, text().or_none(), needs=_WANDB, help="name of the wandb run")
    init_timeout: float = option(90.0, number(above=0), needs=_WANDB,
        help="seconds to wait for wandb at the start")
    evaluate_test: bool = option(True, switch(), command="",
        help="score the test part beside the baselines at the end (rank 0)")
    verbose: bool = option(True, switch(), command="", help="log a line per epoch and the final table")
    # fmt: on

    def check_together(self) -> None:
        """Raise where options contradict each other."""
        if self.save_path is not None:
            object.__setattr__(self, "save_path", str(user_path(self.save_path)))
        names = (self.loggers,) if isinstance(self.loggers, str) else tuple(self.loggers or ())
        object.__setattr__(self, "loggers", tuple(dict.fromkeys(names)))
        check_loggers(self.loggers, has_folder=self.save_path is not None)
        for name in ("effects_of", "similarities"):
            named_sources(getattr(self, name), name)  # raises for missing files
        if self.epochs == 0 and self.prior is None:
            msg = "epochs=0 fits the prior alone, but prior=None has none; give at least 1 epoch, or prior='auto'"
            raise ValueError(msg)
        if self.use_amp and self.dtype == "float64":
            msg = "use_amp=True computes in half precision and dtype='float64' in double; omit one of them"
            raise ValueError(msg)
        if self.reproducible:
            others = {"compile=True": self.compile, f"lr_scaling={self.lr_scaling!r}": self.lr_scaling != "none"}
            conflicts = [name for name, is_set in others.items() if is_set]
            if conflicts:
                msg = f"reproducible=True cannot be used with {' and '.join(conflicts)}; omit reproducible or these"
                raise ValueError(msg)
        for name, why in (("resume", "continues the run under"), ("profile", "writes its trace into")):
            if getattr(self, name) and self.save_path is None:
                msg = f"{name}=True {why} save_path; give save_path"
                raise ValueError(msg)

    def to_dict(self) -> dict[str, Any]:
        """Values by name; sources of the prior may be objects."""
        return {name: getattr(self, name) for name in self.names()}

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Options from a caller's values; unknown names, and epochs together with steps, are errors."""
        if values.get("epochs") is not None and values.get("steps") is not None:
            both = f"epochs={values['epochs']} and steps={values['steps']}"
            msg = f"{both} both say how long to train; omit one of them"
            raise ValueError(msg)
        return super().from_mapping(values)

    def with_defaults(self, loader_size: int | None = None) -> TrainOptions:
        """The same options with defaults filled in, except for the number of conditions of a step.

        Parameters
        ----------
        loader_size
            Batch size per worker of the caller's loader of cells, if there is one.
        """
        values: dict[str, Any] = {"eval_every": 1, "checkpoint_every": 1, "batch_size": loader_size}
        values |= {name: value for name, value in DEFAULTS[self.objective].items() if values.get(name) is None}
        if self.steps is None:
            values["epochs"] = EPOCHS
        if self.save_path is None:  # an explicit value stays, so that it is reported to have no effect
            del values["checkpoint_every"]
        omitted = {name: value for name, value in values.items() if getattr(self, name) is None}
        return dataclasses.replace(self, **omitted)

    @property
    def monitored(self) -> str:
        """The validation metric that selects epoch and network weight."""
        return self.monitor or (MONITOR_ALONE if self.prior is None else MONITOR)

    def conditions_per_step(self, n_conditions: int, world_size: int) -> int:
        """Conditions of a step over all workers, at most the `n_conditions` of training (moments)."""
        size = CONDITIONS_PER_STEP if self.batch_size is None else self.batch_size * world_size
        return min(size, n_conditions)


@options
class TrainCall(TrainOptions):
    """Arguments of :meth:`gears.GEARS.train`: the options, and what concerns one call."""

    # fmt: off
    _: KW_ONLY
    distributed: bool = option(False, switch(), command="",
        help="train together with the other workers of torchrun (a process group that already runs is always used)")
    # fmt: on
