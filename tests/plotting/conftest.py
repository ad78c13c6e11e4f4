"""What the plots are drawn from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest


@pytest.fixture
def by_label() -> Callable[[Any], dict[str, Any]]:
    """Collections and lines of Axes by their label."""

    def find(ax: Any) -> dict[str, Any]:
        return {artist.get_label(): artist for artist in [*ax.collections, *ax.lines]}

    return find


@pytest.fixture
def names() -> list[str]:
    return [f"GENE{gene}" for gene in range(12)]


@pytest.fixture
def delta_UG() -> np.ndarray:
    """Changes of five conditions over twelve genes."""
    return np.random.default_rng(1).normal(0, 0.5, (5, 12))


@pytest.fixture
def conditions() -> list[str]:
    return ["A+ctrl", "B+ctrl", "A+B", "C+ctrl", "A+C"]
