"""A model of the prior alone."""

from typing import Any

from gears import GEARS, PertData


def trained(pert_data: PertData, seed: int = 1, **training: Any) -> GEARS:
    """The prior alone by default."""
    model = GEARS(pert_data, device="cpu")
    model.model_initialize(hidden_size=8, seed=seed)
    model.train(**{"epochs": 0, "verbose": False, "evaluate_test": False} | training)
    return model
