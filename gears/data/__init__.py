"""Screens: reading and checking, per-condition statistics, splits and loaders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gears.core._lazy import lazy_names

if TYPE_CHECKING:
    from gears.data._loaders import CellBatch
    from gears.data._published import read_published_split
    from gears.data.checks._options import ProcessingOptions
    from gears.data.checks._report import inspect_screen
    from gears.data.reading._guides import add_guides
    from gears.data.reading._open import open_screen
    from gears.data.screen._prepared import PreparedScreen

__all__ = [
    "CellBatch", "PreparedScreen", "ProcessingOptions", "add_guides", "inspect_screen", "open_screen",
    "read_published_split",
]  # fmt: skip

_HOMES = {
    "CellBatch": "gears.data._loaders",
    "PreparedScreen": "gears.data.screen._prepared",
    "ProcessingOptions": "gears.data.checks._options",
    "add_guides": "gears.data.reading._guides",
    "inspect_screen": "gears.data.checks._report",
    "open_screen": "gears.data.reading._open",
    "read_published_split": "gears.data._published",
}
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
