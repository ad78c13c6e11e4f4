"""Screens: reading and checking, per-condition statistics, splits and loaders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gears.core.lazy import lazy_names

if TYPE_CHECKING:
    from gears.data.checks.options import ProcessingOptions
    from gears.data.checks.report import inspect_screen
    from gears.data.loaders import CellBatch
    from gears.data.published import read_published_split
    from gears.data.reading.guides import add_guides
    from gears.data.reading.open import open_screen
    from gears.data.screen.prepared import PreparedScreen

__all__ = [
    "CellBatch", "PreparedScreen", "ProcessingOptions", "add_guides", "inspect_screen", "open_screen",
    "read_published_split",
]  # fmt: skip

_HOMES = {
    "CellBatch": "gears.data.loaders",
    "PreparedScreen": "gears.data.screen.prepared",
    "ProcessingOptions": "gears.data.checks.options",
    "add_guides": "gears.data.reading.guides",
    "inspect_screen": "gears.data.checks.report",
    "open_screen": "gears.data.reading.open",
    "read_published_split": "gears.data.published",
}
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
