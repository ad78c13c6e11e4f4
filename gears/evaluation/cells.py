"""Cells of evaluated conditions, for the metrics that compare distributions and not only means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from gears.conditions import Condition
    from gears.data.screen import PreparedScreen

MAX_CELLS = 300
"""Cells of a condition (and of the control) that distribution metrics look at, unless told otherwise."""


class CellSource(Protocol):
    """Where a truth finds the cells of its conditions."""

    def control(self) -> np.ndarray:
        """Control cells, (n, G) float64."""
        ...

    def of(self, condition: Condition) -> np.ndarray:
        """Cells of a condition, (n, G) float64."""
        ...


@dataclass(frozen=True)
class ScreenCells:
    """Cells of a prepared screen, at most `max_cells` of each condition, the same at every call.

    Parameters
    ----------
    screen
        The prepared screen.
    max_cells
        Where a condition has more, this many are drawn without replacement.
    seed
        Of the draw, which is separate for each condition.
    """

    screen: PreparedScreen
    max_cells: int = MAX_CELLS
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_cells < 2:
            msg = f"max_cells must be at least 2 (a distance needs two cells); found {self.max_cells}"
            raise ValueError(msg)

    def control(self) -> np.ndarray:
        """Control cells, (n, G) float64."""
        return self._rows(self.screen.control_id)

    def of(self, condition: Condition) -> np.ndarray:
        """Cells of a condition, (n, G) float64."""
        return self._rows(self.screen.id_of(condition))

    def _rows(self, condition_id: int) -> np.ndarray:
        ids = self.screen.cells_of(condition_id)
        if len(ids) > self.max_cells:
            rng = np.random.default_rng([self.seed, condition_id])
            ids = np.sort(rng.choice(ids, self.max_cells, replace=False))
        return dense_rows(self.screen, ids)


def dense_rows(screen: PreparedScreen, ids: np.ndarray) -> np.ndarray:
    """Expression of some cells, (n, G) float64."""
    return np.asarray(screen.cells.rows(ids), dtype=np.float64)


def moved_cells(control_NG: np.ndarray, control_mean_G: np.ndarray, predicted_G: np.ndarray) -> np.ndarray:
    """Predicted cells of a model that predicts a mean: control cells moved from their mean to it, (N, G).

    A gene that rises is shifted; one that falls is scaled down, so that no
    value becomes negative and the mean is met exactly. Genes predicted below
    zero, or falling from a control mean that is not positive, are shifted.

    Parameters
    ----------
    control_NG
        Control cells, or a sample of them.
    control_mean_G, predicted_G
        Mean of all control cells and predicted mean.
    """
    falls_G = (predicted_G < control_mean_G) & (predicted_G >= 0)
    factor_G = np.divide(predicted_G, control_mean_G, out=np.ones_like(predicted_G), where=falls_G)
    return control_NG * factor_G + np.where(falls_G, 0.0, predicted_G - control_mean_G)
