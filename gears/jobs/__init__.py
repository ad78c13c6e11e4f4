"""Whole runs: a training job on chosen devices, several trainings, methods for `compare`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gears.core._lazy import lazy_names

if TYPE_CHECKING:
    from gears.jobs.ensemble import Ensemble, EnsemblePredictions, RunOutcome, ensemble_configs, train_many
    from gears.jobs.estimators import GEARSEstimator, PriorEstimator, load_with_screen

__all__ = [
    "Ensemble", "EnsemblePredictions", "GEARSEstimator", "PriorEstimator", "RunOutcome", "ensemble_configs",
    "load_with_screen", "train_many",
]  # fmt: skip

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
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
