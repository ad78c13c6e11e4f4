"""Small models of prepared screens."""

from typing import Any

from gears import GEARS, PertData


def network_of(data: PertData, **network: Any) -> GEARS:
    """A network of 8 hidden values, not trained."""
    model = GEARS(data, device="cpu")
    model.model_initialize(**{"hidden_size": 8} | network)
    return model


def trained_on(data: PertData, seed: int = 1, **training: Any) -> GEARS:
    """The prior alone by default."""
    model = network_of(data, seed=seed)
    model.train(**{"epochs": 0, "verbose": False, "evaluate_test": False} | training)
    return model
