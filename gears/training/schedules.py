"""Learning-rate schedules: pure functions of the step, in one registry."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from gears.core.registry import Registry
from gears.messages import unknown_name


@dataclass(frozen=True)
class Horizon:
    """How long a run is: optimiser steps per epoch and epochs, or a number of steps in all."""

    steps_per_epoch: int
    epochs: int
    most: int | None = None

    @property
    def steps(self) -> int:
        steps = self.steps_per_epoch * self.epochs
        return max(1, steps if self.most is None else min(steps, self.most))


Factor = Callable[[int, Horizon, float], float]
SCHEDULES: Registry[Factor] = Registry("schedule")


def register(name: str) -> Callable[[Factor], Factor]:
    """Add a schedule: ``factor(step, horizon, eta_min) -> multiplier`` of the learning rate."""

    return lambda factor: SCHEDULES.add(name, factor)


@register("step")
def halving(step: int, horizon: Horizon, eta_min: float) -> float:
    """Half the rate after each epoch (the published schedule)."""
    return 0.5 ** (step // max(1, horizon.steps_per_epoch))


@register("constant")
def constant(step: int, horizon: Horizon, eta_min: float) -> float:
    """The same rate throughout."""
    return 1.0


@register("cosine")
def cosine(step: int, horizon: Horizon, eta_min: float) -> float:
    """Half a cosine from 1 to `eta_min` (a share of the initial rate)."""
    share = min(1.0, step / horizon.steps)
    return eta_min + (1.0 - eta_min) * 0.5 * (1.0 + math.cos(math.pi * share))


@register("one-cycle")
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
    """Multiplier of the learning rate at a step; linear warm-up multiplies the schedule.

    Raises
    ------
    ValueError
        The schedule is unknown.
    """
    factor = SCHEDULES[name]

    def rate(step: int) -> float:
        warm = min(1.0, (step + 1) / (warmup_steps + 1)) if warmup_steps else 1.0
        return warm * factor(step, horizon, eta_min)

    return rate


def rising_epochs(rate: Callable[[int], float], horizon: Horizon) -> int:
    """Epochs that end before the learning rate is at its highest for the last time before it falls.

    0 where it falls or stays from the first step on.

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


def make_scheduler(
    optimizer: torch.optim.Optimizer, rate: Callable[[int], float]
) -> torch.optim.lr_scheduler.LambdaLR:
    """Scheduler to be stepped after each optimiser step."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, rate)


LR_SCALINGS: dict[str, Callable[[int], float]] = {
    "none": lambda world_size: 1.0,
    "linear": lambda world_size: float(world_size),
    "sqrt": math.sqrt,
}


def scaled_lr(lr: float, scaling: str, world_size: int) -> float:
    """Learning rate for `world_size` workers: unchanged, times W, or times the root of W."""
    if scaling not in LR_SCALINGS:
        raise ValueError(unknown_name("lr_scaling", scaling, list(LR_SCALINGS)))
    return lr * LR_SCALINGS[scaling](world_size)
