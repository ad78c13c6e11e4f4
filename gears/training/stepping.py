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
            The loss is not finite; nothing was changed.
        """
        optimizer.zero_grad(set_to_none=True)
        total = self._backward(wrapped, window, task, reducer)
        self.scaler.unscale_(optimizer)
        self._clip()
        self.scaler.step(optimizer)
        self.scaler.update()
        if self.ema is not None:
            self.ema.update_parameters(self.model)
        return total

    def _backward(self, wrapped: nn.Module, window: Sequence[Any], task: Task, reducer: Reducer) -> float:
        context = task.prepare_window(window, reducer)
        total = 0.0
        for position, batch in enumerate(window):
            with synchronised(wrapped, last=position == len(window) - 1):
                with torch.autocast(self.device.type, dtype=self.amp_dtype, enabled=self.use_amp):
                    loss = task.loss(wrapped, batch, context, position)
                self.scaler.scale(loss).backward()
            note_waiting(wrapped, reducer)
            total += float(loss.detach())
        if not math.isfinite(total):
            msg = f"the loss is {total}"
            raise FloatingPointError(msg)
        return total

    def _clip(self) -> None:
        if self.clip_value is not None:
            nn.utils.clip_grad_value_(self.model.parameters(), self.clip_value)
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_norm)
