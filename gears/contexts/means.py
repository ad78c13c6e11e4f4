"""What is known of one context from all of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gears.conditions import Condition
from gears.contexts.names import ModelContexts
from gears.data.screen import PreparedScreen
from gears.data.unit_screen import UnitScreen


def model_contexts(screen: UnitScreen) -> ModelContexts:
    """Names and control means of a screen's contexts."""
    return ModelContexts(screen.contexts, screen.kinds, control_means(screen))


def control_means(screen: UnitScreen) -> np.ndarray:
    """Mean of each context's control cells, (K, G) float64, in the order of the names."""
    names = screen.contexts or ("",)
    ids = [screen.id_of(Condition((), name)) for name in names]
    return np.asarray(screen.statistics.mean[ids], dtype=np.float64)


def overall_control_mean(screen: UnitScreen) -> np.ndarray:
    """Mean over the control cells of all contexts, (G,)."""
    ids = screen.control_ids
    n_K = np.asarray(screen.statistics.n[ids], dtype=np.float64)
    return np.asarray(n_K @ screen.statistics.mean[ids] / n_K.sum(), dtype=np.float64)


def control_mean_of(screen: PreparedScreen, conditions: Sequence[Condition]) -> np.ndarray:
    """Mean of the control cells that conditions start from: (G,), or of each context's (U, G)."""
    if isinstance(screen, UnitScreen):
        return model_contexts(screen).control_means(conditions)
    return np.asarray(screen.statistics.mean[screen.control_id], dtype=np.float64)
