"""What both objectives of GEARS share: tables, settings, and the metrics of an epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gears.model.config import ModelConfig
from gears.training.tables import ConditionTables
from gears.training.tasks import Reducer

Evaluate = Callable[[nn.Module, Reducer], dict[str, float]]


class Objective:
    """Part of a GEARS task that does not depend on what its batches hold.

    Parameters
    ----------
    tables
        Conditions as tensors on the training device.
    config
        The model's settings (objective options among them).
    evaluate
        ``evaluate(network, reducer) -> metrics``, the same on all workers.
    monitor, lower_is_better
        The metric that chooses the best epoch.
    """

    def __init__(
        self,
        tables: ConditionTables,
        config: ModelConfig,
        evaluate: Evaluate,
        *,
        monitor: str,
        lower_is_better: bool = True,
    ) -> None:
        self.tables, self.config = tables, config
        self._evaluate = evaluate
        self.metric, self.lower_is_better = f"val_{monitor}", lower_is_better

    @property
    def device(self) -> torch.device:
        return self.tables.control_mean_G.device

    def broken(self, batch: Any) -> Tensor:
        """Ids of conditions of a batch whose data are not finite."""
        raise NotImplementedError

    def broken_in(self, batches: Sequence[Any]) -> list[str]:
        """Names of conditions of a step whose data are not finite (control means and priors included)."""
        found = {int(number) for batch in batches for number in self.broken(batch).tolist()}
        names = self.tables.names
        return [names[number] if names else f"condition {number}" for number in sorted(found)]

    def evaluate(self, model: nn.Module, loader: Iterable[Any] | None, reducer: Reducer) -> dict[str, float]:
        """Metrics of condition means; no cell is read, so `loader` is not used."""
        return self._evaluate(model, reducer)
