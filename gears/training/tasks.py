"""What an engine trains: a task turns batches into losses that are right for the *global* batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn


class Reducer(Protocol):
    """Sums and gathers over workers (the identity in one process)."""

    rank: int
    world_size: int

    def sum(self, tensor: torch.Tensor) -> torch.Tensor: ...
    def gather(self, tensor: torch.Tensor) -> torch.Tensor: ...


class Task(Protocol):
    """A loss per micro-batch and metrics per epoch.

    The engine calls `prepare_window` once per optimiser step with all its micro-batches,
    on every worker, whatever they hold; the sum over micro-batches of the mean over
    workers of `loss` is the loss of the global window.
    """

    metric: str
    lower_is_better: bool

    def prepare_window(self, batches: Sequence[Any], reducer: Reducer) -> Any: ...
    def loss(self, model: nn.Module, batch: Any, window: Any, position: int) -> torch.Tensor: ...
    def evaluate(
        self, model: nn.Module, loader: Iterable[Any] | None, reducer: Reducer
    ) -> dict[str, float]: ...


@runtime_checkable
class Blaming(Protocol):
    """A task that can say which conditions of a step hold values that are not finite."""

    def broken_in(self, batches: Sequence[Any]) -> list[str]: ...


class SupervisedTask:
    """Inputs and targets with a criterion that means over samples (``reduction="mean"``).

    Parameters
    ----------
    criterion
        ``criterion(outputs, targets)`` giving the mean over the samples of a batch.
    device
        Where batches go.
    """

    metric = "val_loss"
    lower_is_better = True

    def __init__(self, criterion: Callable[..., torch.Tensor], device: torch.device) -> None:
        self.criterion = criterion
        self.device = device

    def prepare_window(self, batches: Sequence[Any], reducer: Reducer) -> float:
        """Samples in the global window, per worker."""
        count = torch.tensor([sum(len(inputs) for inputs, _ in batches)], dtype=torch.float32)
        return float(reducer.sum(count.to(self.device))) / reducer.world_size

    def loss(self, model: nn.Module, batch: Any, window: float, position: int) -> torch.Tensor:
        """The worker's share of the mean over the global window, times the number of workers."""
        inputs, targets = (part.to(self.device) for part in batch)
        return self.criterion(model(inputs), targets) * (len(inputs) / window)

    def evaluate(self, model: nn.Module, loader: Iterable[Any] | None, reducer: Reducer) -> dict[str, float]:
        """Mean loss over all workers' samples: sums and counts are reduced, never means."""
        if loader is None:
            return {}
        totals = torch.zeros(2, dtype=torch.float64)
        for inputs, targets in loader:
            value = self.criterion(model(inputs.to(self.device)), targets.to(self.device))
            totals += torch.tensor([float(value) * len(inputs), len(inputs)], dtype=torch.float64)
        total, count = reducer.sum(totals.to(self.device)).tolist()
        return {"val_loss": total / count if count else float("nan")}
