"""Where the numbers of a run go: CSV and JSONL always, TensorBoard and Weights & Biases when asked."""

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
    "LOGGERS",
    "LoggerSetup",
    "RunLogger",
    "RunLoggers",
    "check_loggers",
    "files",
    "flat",
    "register",
    "tensorboard",
    "tracked",
    "wandb",
]
