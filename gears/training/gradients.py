"""Average gradients over workers in one collective, together with what workers must know of each other in a step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from gears.distributed.world import Reducer


class SharedGradients:
    """Gradients of all parameters as parts of one vector, which is reduced once per optimiser step.

    A hook per parameter, as DistributedDataParallel has it, could send a part while the others are still computed; but
    the parts are small beside the layers' activations, and each would be copied by a separate operator.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], reducer: Reducer) -> None:
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._reducer = reducer
        self._known = False

    def average(self, more_K: torch.Tensor) -> torch.Tensor:
        """Give every parameter the mean over workers of its gradient; returns the averaged vector, `more_K` last."""
        if not self._known:
            self._find_used()
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
        flat = torch.cat([*(gradient.reshape(-1) for gradient in gradients), more_K])
        flat.div_(self._reducer.world_size)
        flat = self._reducer.add_up(flat)
        parts = flat[: len(flat) - len(more_K)].split([gradient.numel() for gradient in gradients])
        for parameter, part in zip(self._parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter).to(parameter.dtype)
        return flat

    def _find_used(self) -> None:
        """Omit parameters that have no gradient on any worker (once: it waits for the device)."""
        device = self._parameters[0].device
        has_gradient = torch.tensor([float(p.grad is not None) for p in self._parameters], device=device)
        used = self._reducer.sum(has_gradient).tolist()
        self._parameters = [p for p, n_workers in zip(self._parameters, used, strict=True) if n_workers]
        self._known = True
