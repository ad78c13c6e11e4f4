"""One optimiser step over the micro-batches of a window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from gears.training.tasks import Reducer, Task
from gears.training.wrapping import note_waiting, synchronised

RUNNING = ("running_mean", "running_var", "num_batches_tracked")
"""Buffers of batch norms."""


@dataclass
class Stepper:
    """Forward, backward, clipping and update; the gradient is that of the global window.

    Attributes
    ----------
    model, device
        The bare module and where it lives.
    scaler
        Scales gradients under float16; disabled otherwise.
    ema
        Moving average to update after each step, if one is kept.
    use_amp, amp_dtype
        Mixed precision.
    clip_value, clip_norm
        Clipping of the global gradient by value or by norm.
    """

    model: nn.Module
    device: torch.device
    scaler: torch.amp.GradScaler
    ema: AveragedModel | None = None
    use_amp: bool = False
    amp_dtype: torch.dtype = torch.bfloat16
    clip_value: float | None = None
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Look up the model's parameters and running statistics: once a training, not once a step."""
        self._parameters = list(self.model.parameters())
        self._buffers = [b for name, b in self.model.named_buffers() if name.rpartition(".")[2] in RUNNING]

    def step(
        self,
        wrapped: nn.Module,
        window: Sequence[Any],
        task: Task,
        optimizer: torch.optim.Optimizer,
        reducer: Reducer,
    ) -> float:
        """Take one step; returns this worker's loss.

        Parameters
        ----------
        wrapped
            The model as gradients need it (DDP with several workers).
        window
            The micro-batches of the step.

        Raises
        ------
        FloatingPointError
            The loss or a gradient is not finite; no weight was changed.
        """
        optimizer.zero_grad(set_to_none=True)
        before = self._running()
        loss = self._backward(wrapped, window, task, reducer)
        self.scaler.unscale_(optimizer)
        try:
            total = self._checked(loss)
        except FloatingPointError:
            self._put_back(before)
            raise
        self._clip()
        self.scaler.step(optimizer)
        self.scaler.update()
        if self.ema is not None:
            self.ema.update_parameters(self.model)
        return total

    def _running(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Running statistics, which a forward pass changes before its loss is known, with a copy of each."""
        floats = [b for b in self._buffers if b.is_floating_point()]
        copies = torch._foreach_mul(floats, 1.0) if floats else ()
        counts = [b for b in self._buffers if not b.is_floating_point()]
        return [*zip(floats, copies, strict=True), *((b, b.clone()) for b in counts)]

    @staticmethod
    @torch.no_grad()
    def _put_back(before: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        for buffer, copy in before:
            buffer.copy_(copy)

    def _backward(
        self, wrapped: nn.Module, window: Sequence[Any], task: Task, reducer: Reducer
    ) -> torch.Tensor:
        """Gradients of the window; its loss as a float64 tensor that stays on the device."""
        context = task.prepare_window(window, reducer)
        total = torch.zeros(
            (), dtype=torch.float64 if self.device.type != "mps" else torch.float32, device=self.device
        )
        for position, batch in enumerate(window):
            with synchronised(wrapped, last=position == len(window) - 1):
                with torch.autocast(self.device.type, dtype=self.amp_dtype, enabled=self.use_amp):
                    loss = task.loss(wrapped, batch, context, position)
                self.scaler.scale(loss).backward()
            note_waiting(wrapped, reducer)
            total += loss.detach()
        return total

    def _checked(self, loss: torch.Tensor) -> float:
        """The loss as a number, once it and every gradient are known to be finite: one read from the device.

        Under float16 scaling the gradients may overflow now and then: the scaler leaves such steps out itself.
        """
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        watched = loss
        if gradients and not self.scaler.is_enabled():
            # zero times the sum of norms is NaN as soon as one gradient is NaN, infinite, or too large to be squared
            norms = torch._foreach_norm(gradients)
            watched = loss + 0.0 * torch.stack(list(norms)).sum().to(loss)
        total = float(watched)
        if not math.isfinite(total):
            value = float(loss)
            msg = (
                f"the loss is {value}"
                if not math.isfinite(value)
                else f"a gradient is not finite (loss {value:g})"
            )
            raise FloatingPointError(msg)
        return total

    def _clip(self) -> None:
        if self.clip_value is not None:
            nn.utils.clip_grad_value_(self._parameters, self.clip_value)
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(self._parameters, self.clip_norm)
