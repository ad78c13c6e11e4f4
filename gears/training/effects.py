"""Options that were given and change nothing in the chosen mode: said once, before the first step."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass

from gears.training.options import TrainOptions

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Length:
    """How long a run is, and whether there is a validation condition to score."""

    steps: int
    validated: bool = True


def without_effect(
    options: TrainOptions, device_type: str, world_size: int, length: Length | None = None
) -> list[str]:
    """Sentences on options that differ from their defaults and have no effect.

    Parameters
    ----------
    options
        With nothing left open.
    device_type
        ``"cpu"``, ``"cuda"`` or ``"mps"``.
    world_size
        Number of workers.
    length
        Of the run, where it is known.
    """
    steps, validated = (None, True) if length is None else (length.steps, length.validated)
    patience = options.early_stopping if isinstance(options.early_stopping, int) else 0
    epochs = options.epochs
    scaling = options.use_amp and options.amp_dtype == "float16" and device_type == "cuda"
    falls = options.schedule in ("cosine", "one-cycle")
    needed = {
        "amp_dtype": (options.use_amp, "use_amp=True"),
        "init_scale": (scaling, "use_amp=True, amp_dtype='float16' and CUDA"),
        "growth_interval": (scaling, "use_amp=True, amp_dtype='float16' and CUDA"),
        "ema_decay": (options.use_ema, "use_ema=True"),
        "eta_min": (falls, "schedule='cosine' or 'one-cycle'"),
        "refit": (options.prior is not None, "prior='auto'"),
        "lr_scaling": (world_size > 1, "several workers"),
        "gradient_compression": (world_size > 1, "several workers"),
        "check_replicas": (world_size > 1, "several workers"),
        "tf32": (device_type == "cuda" and options.dtype == "float32", "CUDA and dtype='float32'"),
        "keep_last": (options.save_path is not None, "save_path"),
        "checkpoint_every": (options.save_path is not None, "save_path"),
        "checkpoint_every_steps": (options.save_path is not None, "save_path"),
        "monitor": (validated, "a validation condition to score"),
        "early_stopping": (
            validated and (epochs is None or patience < epochs),
            f"a validation condition to score and more than {patience} epochs",
        ),
        "warmup_steps": (
            steps is None or options.warmup_steps < steps,
            f"more than {options.warmup_steps} steps (the run has {steps} and never reaches its learning rate)",
        ),
        "project": ("wandb" in options.loggers, "loggers=['wandb']"),
        "name": ("wandb" in options.loggers, "loggers=['wandb']"),
        "init_timeout": ("wandb" in options.loggers, "loggers=['wandb']"),
    }
    return [
        f"{field.name}={getattr(options, field.name)!r} has no effect without {needed[field.name][1]}"
        for field in dataclasses.fields(options)
        if field.name in needed
        and getattr(options, field.name) != field.default
        and not needed[field.name][0]
    ]


def warn_without_effect(
    options: TrainOptions, device_type: str, world_size: int, length: Length | None = None
) -> None:
    """Log each sentence of :func:`without_effect` as a warning."""
    for sentence in without_effect(options, device_type, world_size, length):
        logger.warning("%s", sentence)
