"""What the plots are drawn from."""

from typing import Any

import numpy as np
import pytest


@pytest.fixture
def by_label():
    """Collections and lines of Axes by their label."""

    def find(ax: Any) -> dict[str, Any]:
        return {artist.get_label(): artist for artist in [*ax.collections, *ax.lines]}

    return find


@pytest.fixture
def names():
    return [f"GENE{gene}" for gene in range(12)]


@pytest.fixture
def delta_UG():
    """Changes of five conditions over twelve genes."""
    return np.random.default_rng(1).normal(0, 0.5, (5, 12))


@pytest.fixture
def conditions():
    return ["A+ctrl", "B+ctrl", "A+B", "C+ctrl", "A+C"]
