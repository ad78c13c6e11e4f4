"""Training: the engine, what GEARS adds to it, schedules and checkpoints. Knows no GPU ids, spawns nothing."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gears.training.engine import TrainingEngine
    from gears.training.options import TrainOptions
    from gears.training.results import TrainResult

__all__ = [
    "TrainOptions",
    "TrainResult",
    "TrainingEngine",
]

_HOMES = {
    "TrainOptions": "gears.training.options",
    "TrainResult": "gears.training.results",
    "TrainingEngine": "gears.training.engine",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        msg = f"module 'gears.training' has no attribute {name!r}; public names: {', '.join(__all__)}"
        raise AttributeError(msg)
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
