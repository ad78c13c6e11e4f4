"""Where a run stands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Progress:
    """Where a run stands; plain values, saved in checkpoints."""

    epoch: int = 0
    step: int = 0
    best_epoch: int | None = None
    best_metric: float | None = None
    epochs_without_improvement: int = 0
    loss_sum: float = 0.0
    finished: bool = False
    history: list[dict[str, Any]] = field(default_factory=list)
