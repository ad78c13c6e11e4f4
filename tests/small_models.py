"""Small models of prepared screens."""

from pathlib import Path
from typing import Any

from driving import gears_of as network_of

from gears import GEARS, PertData


def trained_on(data: PertData, seed: int = 1, **training: Any) -> GEARS:
    """The prior alone by default."""
    model = network_of(data, seed=seed)
    model.train(**{"epochs": 0, "verbose": False, "evaluate_test": False} | training)
    return model


def trained_alone(folder: Path, **training: Any) -> GEARS:
    """What two workers are compared with: one process on the prepared screen "small", over cells."""
    data = PertData(folder, default_pert_graph=False)
    data.load("small")
    data.prepare_split("simulation", seed=1)
    return trained_on(data, **{"epochs": 2, "objective": "cells", "batch_size": 24, "dtype": "float64"} | training)
