"""Learning-rate schedules, and an Adam that does not import torch's compiler."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from gears.core._registry import Registry


@dataclass(frozen=True)
class Horizon:
    """Length of a run: steps per epoch and epochs, or at most a number of steps."""

    steps_per_epoch: int
    epochs: int
    most: int | None = None

    @property
    def steps(self) -> int:
        steps = self.steps_per_epoch * self.epochs
        return max(1, steps if self.most is None else min(steps, self.most))


Factor = Callable[[int, Horizon, float], float]
SCHEDULES: Registry[Factor] = Registry("schedule")
"""``factor(step, horizon, eta_min) -> multiplier`` of the learning rate, by name."""


@SCHEDULES.register("step")
def halving(step: int, horizon: Horizon, eta_min: float) -> float:
    """Half the rate after each epoch (the published schedule)."""
    return 0.5 ** (step // max(1, horizon.steps_per_epoch))


@SCHEDULES.register("constant")
def constant(step: int, horizon: Horizon, eta_min: float) -> float:
    """The same rate throughout."""
    return 1.0


@SCHEDULES.register("cosine")
def cosine(step: int, horizon: Horizon, eta_min: float) -> float:
    """Half a cosine from 1 to `eta_min` (a share of the initial rate)."""
    share = min(1.0, step / horizon.steps)
    return eta_min + (1.0 - eta_min) * 0.5 * (1.0 + math.cos(math.pi * share))


@SCHEDULES.register("one-cycle")
def one_cycle(step: int, horizon: Horizon, eta_min: float) -> float:
    """Cosine rise from 1/25 over the first 30 % of the steps, then cosine fall to `eta_min` or 1e-4."""
    share = min(1.0, step / horizon.steps)
    low, end, rise = 1.0 / 25.0, max(eta_min, 1e-4), 0.3
    if share < rise:
        return low + (1.0 - low) * 0.5 * (1.0 - math.cos(math.pi * share / rise))
    return end + (1.0 - end) * 0.5 * (1.0 + math.cos(math.pi * (share - rise) / (1.0 - rise)))


def learning_rate(
    name: str, horizon: Horizon, *, warmup_steps: int = 0, eta_min: float = 0.0
) -> Callable[[int], float]:
    """Multiplier of the learning rate at a step; linear warm-up multiplies the schedule."""
    factor = SCHEDULES[name]

    def rate(step: int) -> float:
        warm = min(1.0, (step + 1) / (warmup_steps + 1)) if warmup_steps else 1.0
        return warm * factor(step, horizon, eta_min)

    return rate


def rising_epochs(rate: Callable[[int], float], horizon: Horizon) -> int:
    """Number of epochs that end before the learning rate reaches its maximum; 0 for a rate that never rises.

    Examples
    --------
    >>> horizon = Horizon(steps_per_epoch=20, epochs=20)
    >>> rising_epochs(learning_rate("one-cycle", horizon), horizon)
    6
    >>> rising_epochs(learning_rate("step", horizon), horizon)
    0
    """
    rates = [rate(step) for step in range(horizon.steps)]
    return rates.index(max(rates)) // horizon.steps_per_epoch


LR_SCALINGS: dict[str, Callable[[int], float]] = {
    "none": lambda world_size: 1.0,
    "linear": lambda world_size: float(world_size),
    "sqrt": math.sqrt,
}


def scaled_lr(lr: float, scaling: str, world_size: int) -> float:
    """Learning rate for `world_size` workers: unchanged, times W, or times the root of W."""
    return lr * LR_SCALINGS[scaling](world_size)


def _bare(function: Callable[..., Any]) -> Callable[..., Any]:
    """A method without the wrapper (if any) by which torch keeps it out of compiled graphs."""
    return getattr(function, "__wrapped__", function)


_step = _bare(torch.optim.Adam.step)
_ASKS_OF_GRAPHS = ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check")
_asks_of_graphs = next(getattr(torch.optim.Adam, name) for name in _ASKS_OF_GRAPHS if hasattr(torch.optim.Adam, name))


class Adam(torch.optim.Adam):
    """``torch.optim.Adam``, the same in steps and saved state, whose construction does not import ``torch._dynamo``."""

    # that import takes one to two CPU seconds and some 100 MB in every worker, for optimisers that are compiled

    add_param_group = _bare(torch.optim.Optimizer.add_param_group)
    state_dict = _bare(torch.optim.Optimizer.state_dict)
    load_state_dict = _bare(torch.optim.Optimizer.load_state_dict)
    zero_grad = _bare(torch.optim.Optimizer.zero_grad)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step; see ``torch.optim.Adam``."""
        return _step(self, closure)

    def _accelerator_graph_capture_health_check(self) -> None:
        """Torch's question whether a CUDA graph is recorded, which initialises CUDA, for parameters on a GPU only."""
        if any(parameter.is_cuda for group in self.param_groups for parameter in group["params"]):
            _asks_of_graphs(self)

    _cuda_graph_capture_health_check = _accelerator_graph_capture_health_check  # its name in older releases
