"""What is scored: predicted means, with their standard deviations where a method states them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gears.conditions import Condition


@dataclass(frozen=True)
class Predicted:
    """Predicted mean expression of U conditions, (U, G) float64; `sd_UG` is its standard deviation, or None."""

    mean_UG: np.ndarray
    sd_UG: np.ndarray | None = None

    @classmethod
    def of(
        cls, predicted: object, conditions: Sequence[Condition], n_genes: int, name: str = "the method"
    ) -> Predicted:
        """From an array of means, from :class:`gears.Predictions` or another of these; ValueError for another shape."""
        mean: Any = getattr(predicted, "expression_UG", predicted)
        sd: Any = getattr(predicted, "sd", None)
        if isinstance(predicted, cls):
            mean, sd = predicted.mean_UG, predicted.sd_UG
        mean_UG = np.asarray(mean, dtype=np.float64)
        if mean_UG.shape != (len(conditions), n_genes):
            msg = (
                f"{name} predicts an array of shape {mean_UG.shape}; expected {(len(conditions), n_genes)}: one row "
                "per condition, one column per gene"
            )
            raise ValueError(msg)
        return cls(mean_UG, None if sd is None else np.asarray(sd, dtype=np.float64))

    def clipped(self) -> Predicted:
        """With means below 0 set to 0."""
        return replace(self, mean_UG=np.maximum(self.mean_UG, 0.0))

    def rows(self, rows: np.ndarray) -> Predicted:
        """Of some conditions."""
        return Predicted(self.mean_UG[rows], None if self.sd_UG is None else self.sd_UG[rows])
