"""Where a run stands."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Progress:
    """Where a run stands; plain values, saved in checkpoints.

    Attributes
    ----------
    epoch, step, total_steps
        Complete epochs, optimiser steps of the present one and of the whole run.
    loss_sum
        This worker's losses of the present epoch.
    """

    epoch: int = 0
    step: int = 0
    total_steps: int = 0
    best_epoch: int | None = None
    best_metric: float | None = None
    epochs_without_improvement: int = 0
    loss_sum: float = 0.0
    finished: bool = False
    history: list[dict[str, Any]] = field(default_factory=list)

    def note(self, epoch: int, value: float, *, lower_is_better: bool) -> bool:
        """Whether `epoch` (from 1) is the best so far; an undefined metric never counts as better."""
        best = self.best_metric
        better = not math.isnan(value) and (
            best is None or (value < best if lower_is_better else value > best)
        )
        if better:
            self.best_metric, self.best_epoch = value, epoch
            self.epochs_without_improvement = 0
        else:
            self.epochs_without_improvement += 1
        return better
