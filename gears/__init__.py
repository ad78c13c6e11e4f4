"""gears: predict how every gene's expression answers to perturbing one or more genes.

Public names are loaded on first use, so that ``import gears`` itself needs neither
torch nor scanpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gears._install import __version__, check_for_cell_gears

if TYPE_CHECKING:
    from gears.conditions import Condition
    from gears.ensemble import Ensemble
    from gears.gears import GEARS
    from gears.many import train_many
    from gears.pertdata import PertData
    from gears.simulate import simulated_screen
    from gears.train_distributed import train_multi_gpu

__all__ = [
    "GEARS",
    "Condition",
    "Ensemble",
    "PertData",
    "__version__",
    "simulated_screen",
    "train_many",
    "train_multi_gpu",
]

_HOMES = {
    "Condition": "gears.conditions",
    "Ensemble": "gears.ensemble",
    "GEARS": "gears.gears",
    "PertData": "gears.pertdata",
    "simulated_screen": "gears.simulate",
    "train_many": "gears.many",
    "train_multi_gpu": "gears.train_distributed",
}

check_for_cell_gears()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        msg = f"module 'gears' has no attribute {name!r}; public names: {', '.join(__all__)}"
        raise AttributeError(msg)
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
