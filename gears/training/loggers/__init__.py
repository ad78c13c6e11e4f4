"""Loggers of a run: CSV and JSONL files always, TensorBoard and Weights & Biases on request."""

from gears.training.loggers import files, tensorboard, wandb
from gears.training.loggers.registry import (
    LOGGERS,
    LoggerSetup,
    RunLogger,
    RunLoggers,
    check_loggers,
    flat,
    register,
    tracked,
)

__all__ = [
    "LOGGERS", "LoggerSetup", "RunLogger", "RunLoggers", "check_loggers", "files", "flat", "register", "tensorboard",
    "tracked", "wandb",
]  # fmt: skip
