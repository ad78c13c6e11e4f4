"""Options of a training run, and the defaults that depend on the objective."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

import torch

from gears.core.options import Needs, Options, anything, number, one_of, option, options, switch, text, whole
from gears.files.paths import user_path
from gears.training.loggers import LOGGERS, check_loggers
from gears.training.schedules import LR_SCALINGS, SCHEDULES

_LEARNING = {"lr": 1e-2, "schedule": "one-cycle", "weight_decay": 0.0}
DEFAULTS: dict[str, dict[str, Any]] = {"moments": _LEARNING, "cells": {**_LEARNING, "batch_size": 32}}
"""Defaults of omitted options for each objective.

The published ones are ``lr=1e-3, schedule="step", weight_decay=5e-4``: with a rate that is halved after each epoch, a
network on a small screen stops learning before it fits the training conditions (docs/objectives.md).
"""
EPOCHS = 20
"""Default number of epochs (published)."""
MONITOR, MONITOR_ALONE = "relative_error", "mse_top20_de"
"""Default metric that selects epochs with a prior, and of the network alone (published)."""
CONDITIONS_PER_STEP = 32
"""Conditions of a step over all workers, where `batch_size` is omitted (moments)."""
STEPS_PER_EPOCH = 20
"""Fewest optimiser steps of an epoch over moments: 20 such epochs train a network (docs/objectives.md)."""
AUTO = "auto"
DTYPES = {"float32": torch.float32, "float64": torch.float64}
AMP_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def _may_stop_early(options: TrainOptions, run: Any) -> bool:
    patience, epochs = options.early_stopping, options.epochs
    return not isinstance(patience, int) or (run.validated and (epochs is None or patience < epochs))


_AMP = Needs(lambda options, run: options.use_amp, "use_amp=True")
_SCALING = Needs(
    lambda options, run: options.use_amp and options.amp_dtype == "float16" and run.device_type == "cuda",
    "use_amp=True, amp_dtype='float16' and CUDA",
)
_WORKERS = Needs(lambda options, run: run.world_size > 1, "several workers")
_SAVED = Needs(lambda options, run: options.save_path is not None, "save_path")
_WANDB = Needs(lambda options, run: "wandb" in options.loggers, "loggers=['wandb']")
_PRIOR = Needs(lambda options, run: options.prior is not None, "prior='auto'")
_TF32 = Needs(
    lambda options, run: run.device_type == "cuda" and options.dtype == "float32", "CUDA and dtype='float32'"
)
_FALLING = Needs(
    lambda options, run: options.schedule in ("cosine", "one-cycle"), "schedule='cosine' or 'one-cycle'"
)
_EMA = Needs(lambda options, run: options.use_ema, "use_ema=True")
_VALIDATED = Needs(lambda options, run: run.validated, "a validation condition to score")
_STOPPING = Needs(
    _may_stop_early,
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

    epochs: int | None = option(
        default=None,
        check=whole(0).or_none(),
        help="""epochs that run, 20 by default. Over cells an epoch is one pass over the training cells;
        over moments it is at least one pass over the training conditions and at least 20 optimiser
        steps. 0 fits the prior alone""",
    )
    lr: float | None = option(
        default=None,
        check=number(above=0).or_none(_BY_OBJECTIVE),
        help="learning rate of Adam, 1e-2 by default; published: 1e-3",
    )
    weight_decay: float | None = option(
        default=None,
        check=number(least=0).or_none(_BY_OBJECTIVE),
        help="weight decay of Adam, 0 by default; published: 5e-4",
        fixed=True,
    )
    steps: int | None = option(
        default=None,
        check=whole(1).or_none(),
        help="length of the run in optimiser steps instead of epochs; the last epoch may be incomplete",
    )
    objective: str = option(
        default="moments",
        check=one_of(list(DEFAULTS)),
        help="""what the loss is computed from: moments (each condition's moments over all pairs of its
        cells with control cells) or cells (every perturbed cell against a control cell drawn again each
        epoch, as published)""",
        fixed=True,
    )
    prior: str | None = option(
        default=AUTO,
        check=one_of([AUTO]).or_none("None for the network alone"),
        help="""auto: fit a Gaussian-process prior to the training conditions, train the network on the
        residuals, and choose the network's weight beside the prior on the validation conditions. None:
        train the network alone, as published""",
        fixed=True,
    )
    refit: bool = option(
        default=True,
        check=switch(),
        help="with network weight 0, fit the prior again to the training and validation conditions at the end",
        needs=_PRIOR,
    )
    schedule: str | None = option(
        default=None,
        check=one_of(list(SCHEDULES)).or_none(_BY_OBJECTIVE),
        help="""learning-rate schedule: one-cycle (the default), step (halved after each epoch, as published), constant
        or cosine""",
        fixed=True,
    )
    batch_size: int | None = option(
        default=None,
        check=whole(1).or_none(),
        help="""cells or conditions per worker and step; by default that of the loader, else 32 cells per
        worker, or 32 conditions over all workers""",
    )
    eval_every: int | None = option(
        default=None,
        check=whole(1).or_none(),
        help="epochs between evaluations (1); the last epoch is always evaluated",
        fixed=True,
    )
    warmup_steps: int = option(
        default=0,
        check=whole(0),
        help="steps over which the learning rate rises linearly",
        needs=_WARMED,
        fixed=True,
    )
    eta_min: float = option(
        default=0.0,
        check=number(least=0, most=1),
        help="lowest share of the learning rate",
        needs=_FALLING,
        fixed=True,
    )
    lr_scaling: str = option(
        default="none",
        check=one_of(list(LR_SCALINGS)),
        help="multiply lr by the number of workers (linear), by its root (sqrt), or not (none)",
        needs=_WORKERS,
    )
    clip_value: float | None = option(
        default=1.0,
        check=number(above=0).or_none(),
        help="clip each entry of the global gradient to this size (published: 1)",
        fixed=True,
    )
    clip_norm: float | None = option(
        default=None,
        check=number(above=0).or_none(),
        help="clip the norm of the global gradient to this size",
        fixed=True,
    )
    accumulation_steps: int = option(
        default=1, check=whole(1), help="micro-batches per optimiser step", fixed=True
    )
    use_amp: bool = option(default=False, check=switch(), help="automatic mixed precision", fixed=True)
    amp_dtype: str = option(
        default="bfloat16",
        check=one_of(list(AMP_DTYPES)),
        help="type of mixed precision: bfloat16 or float16",
        needs=_AMP,
        fixed=True,
    )
    init_scale: float = option(
        default=65536.0,
        check=number(above=0),
        help="first factor of the gradient scaling of float16 on CUDA",
        needs=_SCALING,
    )
    growth_interval: int = option(
        default=2000,
        check=whole(1),
        help="steps without overflow until the gradient scaling doubles",
        needs=_SCALING,
    )
    tf32: bool = option(
        default=False,
        check=switch(),
        help="on CUDA, multiply float32 matrices in TF32 while training",
        needs=_TF32,
        fixed=True,
    )
    compile: bool = option(
        default=False,
        check=switch(),
        help="train through torch.compile: minutes at the start, for long runs on large screens",
    )
    profile: bool = option(
        default=False,
        check=switch(),
        help="write a torch.profiler trace of the first steps of rank 0 to trace.json in save_path",
    )
    use_ema: bool = option(
        default=False,
        check=switch(),
        help="keep a moving average of the weights, and validate and save it",
        fixed=True,
    )
    ema_decay: float = option(
        default=0.999,
        check=number(above=0, below=1),
        help="decay of the moving average; at step t at most (1 + t) / (10 + t)",
        needs=_EMA,
        fixed=True,
    )
    early_stopping: int | str | None = option(
        default=AUTO,
        check=dataclasses.replace(
            whole(1),
            expected="a whole number of epochs of at least 1, 'auto' or None",
            valid=lambda value: value in (AUTO, None) or whole(1).valid(value),
        ),
        help="""a number: end after this many epochs without a better validation metric. auto: end when,
        after the learning rate has begun to fall, a quarter of the epochs in a row have beaten neither
        the prior nor the best epoch; without a prior the same as None, which runs every epoch""",
        needs=_STOPPING,
    )
    check_replicas: bool = option(
        default=False, check=switch(), help="compare all workers' weights after each epoch", needs=_WORKERS
    )
    reproducible: bool = option(
        default=False,
        check=switch(),
        help="""the same bits for 1, 2, 3, 4, 6 or 12 workers and any number of threads, on one kind of device and one
        prepared screen; slower (docs/distributed.md)""",
        fixed=True,
    )
    dtype: str = option(
        default="float32", check=one_of(list(DTYPES)), help="precision: float32 or float64", fixed=True
    )
    monitor: str | None = option(
        default=None,
        check=text().or_none(),
        help="""validation metric that selects the best epoch and the network weight; by default the decisive
        relative_error with a prior, and mse_top20_de, as published, without""",
        needs=_VALIDATED,
        fixed=True,
    )
    save_path: str | None = option(
        default=None,
        check=text().or_none(),
        help="""folder of the model, written whenever an epoch is the best so far; an existing model is
        replaced, a folder with other content is an error""",
    )
    resume: bool = option(
        default=False, check=switch(), help="continue the run whose checkpoints lie under save_path"
    )
    checkpoint_every: int | None = option(
        default=None, check=whole(1).or_none(), help="epochs between training checkpoints (1)", needs=_SAVED
    )
    checkpoint_every_steps: int | None = option(
        default=None,
        check=whole(1).or_none(),
        help="also write a training checkpoint every this many optimiser steps; a resumed run continues at that step",
        needs=_SAVED,
    )
    keep_last: int = option(
        default=2, check=whole(1), help="number of training checkpoints to keep", needs=_SAVED
    )
    loggers: tuple[str, ...] = option(
        default=(),
        check=anything(),
        help=f"log the numbers of each epoch to {' or '.join(LOGGERS)}, besides CSV and JSONL in save_path",
    )
    project: str | None = option(
        default=None, check=text().or_none(), help="project of the wandb run", needs=_WANDB
    )
    name: str | None = option(
        default=None, check=text().or_none(), help="name of the wandb run", needs=_WANDB
    )
    init_timeout: float = option(
        default=90.0, check=number(above=0), help="seconds to wait for wandb at the start", needs=_WANDB
    )
    verbose: bool = option(default=True, check=switch(), help="log a line per epoch and the final table")

    def check_together(self) -> None:
        """Raise where options contradict each other."""
        if self.save_path is not None:
            object.__setattr__(self, "save_path", str(user_path(self.save_path)))
        names = (self.loggers,) if isinstance(self.loggers, str) else tuple(self.loggers or ())
        object.__setattr__(self, "loggers", tuple(dict.fromkeys(names)))
        check_loggers(self.loggers, has_folder=self.save_path is not None)
        if self.epochs == 0 and self.prior is None:
            msg = "epochs=0 fits the prior alone, but prior=None has none; give at least 1 epoch, or prior='auto'"
            raise ValueError(msg)
        if self.use_amp and self.dtype == "float64":
            msg = "use_amp=True computes in half precision and dtype='float64' in double; omit one of them"
            raise ValueError(msg)
        if self.reproducible:
            others = {
                "compile=True": self.compile,
                f"lr_scaling={self.lr_scaling!r}": self.lr_scaling != "none",
            }
            conflicts = [name for name, is_set in others.items() if is_set]
            if conflicts:
                msg = f"reproducible=True cannot be used with {' and '.join(conflicts)}; omit reproducible or these"
                raise ValueError(msg)
        for name, why in (("resume", "continues the run under"), ("profile", "writes its trace into")):
            if getattr(self, name) and self.save_path is None:
                msg = f"{name}=True {why} save_path; give save_path"
                raise ValueError(msg)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Options from a caller's values; unknown names, and epochs together with steps, are errors."""
        cls.check_names(values)
        if values.get("epochs") is not None and values.get("steps") is not None:
            both = f"epochs={values['epochs']} and steps={values['steps']}"
            msg = f"{both} both say how long to train; omit one of them"
            raise ValueError(msg)
        return cls(**dict(values))

    @property
    def trains_on_request(self) -> bool:
        """Whether the caller requests a trained network, even where its weight can only be 0."""
        length = self.epochs is not None or self.steps is not None
        return self.epochs != 0 and (length or self.early_stopping is None)

    def with_defaults(self, loader_size: int | None = None) -> TrainOptions:
        """The same options with defaults filled in, except for the number of conditions of a step.

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
        if self.save_path is None:  # an explicit value stays, so that it is reported to have no effect
            del values["checkpoint_every"]
        omitted = {name: value for name, value in values.items() if getattr(self, name) is None}
        if self.early_stopping == AUTO and self.prior is None:
            omitted["early_stopping"] = None
        return dataclasses.replace(self, **omitted)

    @property
    def monitored(self) -> str:
        """The validation metric that selects epoch and network weight."""
        return self.monitor or (MONITOR_ALONE if self.prior is None else MONITOR)

    def conditions_per_step(self, n_conditions: int, world_size: int) -> int:
        """Conditions of a step over all workers, at most the `n_conditions` of training (moments)."""
        size = CONDITIONS_PER_STEP if self.batch_size is None else self.batch_size * world_size
        return min(size, n_conditions)
