"""Options of the training engine, for GEARS and for any other model."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass

import torch

from gears.training.checkpoints import EarlyStopping
from gears.training.options import AMP_DTYPES, RunSetup, TrainOptions

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EngineOptions:
    """How :class:`gears.training.engine.TrainingEngine` trains.

    Attributes
    ----------
    use_amp, amp_dtype
        Automatic mixed precision: bfloat16, or float16 with gradient scaling.
    init_scale, growth_interval
        First factor of the gradient scaling, and steps without overflow until it doubles.
    tf32
        On CUDA, multiply float32 matrices in TF32 during `train`.
    compile
        Train through ``torch.compile``; without a compiler this has no effect but a warning.
    sync_batchnorm
        With several workers on CUDA, compute ordinary batch norms of the model over the global batch.
    use_ema, ema_decay
        Keep an exponential moving average of the weights; it is validated and saved.
    accumulation_steps
        Micro-batches per optimiser step.
    clip_value, clip_norm
        Gradient clipping by value or by norm, of the global gradient.
    check_replicas
        Compare a checksum of parameters and buffers over workers after each epoch.
    reproducible
        The same bits for any number of workers (:mod:`gears.training.shards`). Batches have a method ``part``, and the
        model has no batch norms of torch.
    early_stopping
        End after this many epochs without improvement, or by a rule.
    best_after
        Epochs up to this one (from 1) cannot be the best: while the learning rate rises, a metric over few samples is
        best by chance.
    eval_every
        Epochs between evaluations; the last epoch is always evaluated. The best epoch is an
        evaluated one, and a run ends early at one.
    max_steps
        Optimiser steps after which the current epoch is the last.
    """

    use_amp: bool = False
    amp_dtype: torch.dtype = torch.bfloat16
    init_scale: float = 65536.0
    growth_interval: int = 2000
    tf32: bool = False
    compile: bool = False
    sync_batchnorm: bool = True
    use_ema: bool = False
    ema_decay: float = 0.999
    accumulation_steps: int = 1
    clip_value: float | None = None
    clip_norm: float | None = None
    check_replicas: bool = False
    reproducible: bool = False
    early_stopping: int | EarlyStopping | None = None
    best_after: int = 0
    eval_every: int = 1
    max_steps: int | None = None

    def warn_without_effect(self, device_type: str, world_size: int) -> None:
        """Warn about options that have no effect here, as training a GEARS model does."""
        needy = {field.name for field in dataclasses.fields(TrainOptions) if field.metadata["needs"]}
        names = needy & {field.name for field in dataclasses.fields(self)} - {"early_stopping"}
        values = {name: getattr(self, name) for name in names | {"use_amp", "use_ema"}}
        amp_names = {dtype: name for name, dtype in AMP_DTYPES.items()}
        values["amp_dtype"] = amp_names.get(self.amp_dtype, "bfloat16")
        for sentence in TrainOptions(**values).without_effect(RunSetup(device_type, world_size)):
            logger.warning("%s", sentence)
