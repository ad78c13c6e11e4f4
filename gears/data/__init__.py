"""Screens: reading and checking, per-condition statistics, splits and loaders."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gears.data.checks.options import ProcessingOptions
    from gears.data.checks.report import inspect_screen
    from gears.data.loaders import CellBatch
    from gears.data.published import read_published_split
    from gears.data.reading.guides import add_guides
    from gears.data.reading.open import open_screen
    from gears.data.screen.prepared import PreparedScreen

__all__ = [
    "CellBatch",
    "PreparedScreen",
    "ProcessingOptions",
    "add_guides",
    "inspect_screen",
    "open_screen",
    "read_published_split",
]

_HOMES = {
    "CellBatch": "gears.data.loaders",
    "PreparedScreen": "gears.data.screen.prepared",
    "ProcessingOptions": "gears.data.checks.options",
    "add_guides": "gears.data.reading.guides",
    "inspect_screen": "gears.data.checks.report",
    "open_screen": "gears.data.reading.open",
    "read_published_split": "gears.data.published",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        msg = f"module 'gears.data' has no attribute {name!r}; public names: {', '.join(__all__)}"
        raise AttributeError(msg)
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
