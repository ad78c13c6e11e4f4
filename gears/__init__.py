"""gears: predict how every gene's expression responds to perturbing one or more genes.

Public names are loaded on first use, so that ``import gears`` itself needs neither
torch nor scanpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gears.core._installation import __version__, check_for_cell_gears
from gears.core._lazy import lazy_names

if TYPE_CHECKING:
    from gears import design, pl, plotting
    from gears.conditions import Condition
    from gears.gears import GEARS
    from gears.jobs._job import train_multi_gpu
    from gears.jobs.ensemble import Ensemble, train_many
    from gears.pertdata import PertData
    from gears.perturbation_model import PerturbationModel
    from gears.simulate._screen import simulated_screen

__all__ = [
    "GEARS", "Condition", "Ensemble", "PertData", "PerturbationModel", "__version__", "design", "pl", "plotting",
    "simulated_screen", "train_many", "train_multi_gpu",
]  # fmt: skip

_HOMES = {
    "Condition": "gears.conditions",
    "Ensemble": "gears.jobs.ensemble",
    "GEARS": "gears.gears",
    "PertData": "gears.pertdata",
    "PerturbationModel": "gears.perturbation_model",
    "design": "gears.design",
    "pl": "gears.pl",
    "plotting": "gears.plotting",
    "simulated_screen": "gears.simulate",
    "train_many": "gears.jobs.ensemble",
    "train_multi_gpu": "gears.train_distributed",
}

check_for_cell_gears()
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
