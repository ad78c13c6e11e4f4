"""Predictions in memory and in files, and the loop that makes them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gears.prediction.predictions import Predictions

__all__ = [
    "Predictions",
]

_HOMES = {
    "Predictions": "gears.prediction.predictions",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        msg = f"module 'gears.prediction' has no attribute {name!r}; public names: {', '.join(__all__)}"
        raise AttributeError(msg)
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
