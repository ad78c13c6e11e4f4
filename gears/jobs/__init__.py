"""Whole runs: a training job on chosen devices, several trainings, methods for `compare`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gears.jobs.ensemble import Ensemble, EnsemblePredictions, RunOutcome, ensemble_configs, train_many
    from gears.jobs.estimators import GEARSEstimator, PriorEstimator, load_with_screen

__all__ = [
    "Ensemble",
    "EnsemblePredictions",
    "GEARSEstimator",
    "PriorEstimator",
    "RunOutcome",
    "ensemble_configs",
    "load_with_screen",
    "train_many",
]

_HOMES = {
    "Ensemble": "gears.jobs.ensemble",
    "EnsemblePredictions": "gears.jobs.ensemble",
    "GEARSEstimator": "gears.jobs.estimators",
    "PriorEstimator": "gears.jobs.estimators",
    "RunOutcome": "gears.jobs.ensemble",
    "ensemble_configs": "gears.jobs.ensemble",
    "load_with_screen": "gears.jobs.estimators",
    "train_many": "gears.jobs.ensemble",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        msg = f"module 'gears.jobs' has no attribute {name!r}; public names: {', '.join(__all__)}"
        raise AttributeError(msg)
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
