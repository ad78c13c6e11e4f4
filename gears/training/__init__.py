"""Training: the engine, the tasks of GEARS, options, schedules, checkpoints and loggers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gears.core.lazy import lazy_names

if TYPE_CHECKING:
    from gears.training.options import TrainOptions
    from gears.training.results import TrainResult
    from gears.training.trainer import TrainingEngine

__all__ = ["TrainOptions", "TrainResult", "TrainingEngine"]

_HOMES = {
    "TrainOptions": "gears.training.options",
    "TrainResult": "gears.training.results",
    "TrainingEngine": "gears.training.trainer",
}
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
