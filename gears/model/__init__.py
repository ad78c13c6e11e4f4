"""Network, batch norm over weighted rows and all workers, objectives. Reads and writes no files."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gears.model.config import ModelConfig

__all__ = [
    "ModelConfig",
]

_HOMES = {
    "ModelConfig": "gears.model.config",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        msg = f"module 'gears.model' has no attribute {name!r}; public names: {', '.join(__all__)}"
        raise AttributeError(msg)
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
