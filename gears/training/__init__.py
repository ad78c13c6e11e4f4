"""Training: the engine, the tasks of GEARS, options, schedules, checkpoints and loggers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gears.core._lazy import lazy_names

if TYPE_CHECKING:
    from gears.training._fitting import TrainResult
    from gears.training._trainer import TrainingEngine
    from gears.training.options import TrainOptions

__all__ = ["TrainOptions", "TrainResult", "TrainingEngine"]

_HOMES = {
    "TrainOptions": "gears.training.options",
    "TrainResult": "gears.training._fitting",
    "TrainingEngine": "gears.training._trainer",
}
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
