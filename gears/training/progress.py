"""Where a run stands, and the reducer of a run in one process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch


class OneProcess:
    """The reducer of a run with one process: every sum is the value itself."""

    rank = 0
    world_size = 1
    seconds = 0.0

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().clone()

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().unsqueeze(0)


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
