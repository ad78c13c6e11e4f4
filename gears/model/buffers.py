"""Large tensors that one training step hands to the next."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

MOST_HELD = 4


class BufferPool:
    """Lends uninitialised tensors and takes them back.

    A tensor of some MiB that is made anew in each step costs as much in fresh memory pages as in
    arithmetic. A buffer that is never given back is simply forgotten. Copies of a network and
    other processes begin with an empty pool.
    """

    def __init__(self) -> None:
        self._free: list[Tensor] = []

    def take(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """A tensor of a shape, with the dtype and device of another one; its values are arbitrary."""
        size = math.prod(shape)
        for position, flat in enumerate(self._free):
            if flat.numel() >= size and flat.dtype == like.dtype and flat.device == like.device:
                return self._free.pop(position)[:size].view(shape)
        return torch.empty(size, dtype=like.dtype, device=like.device).view(shape)

    def give(self, tensor: Tensor) -> None:
        """Take back a tensor that :meth:`take` lent and nobody reads any more."""
        whole = tensor._base if tensor._base is not None else tensor.flatten()
        self._free.append(whole)
        self._free.sort(key=torch.numel)
        del self._free[:-MOST_HELD]

    def clear(self) -> None:
        """Let go of everything."""
        self._free.clear()

    def __deepcopy__(self, memo: dict[int, Any]) -> BufferPool:
        return BufferPool()

    def __reduce__(self) -> tuple[type[BufferPool], tuple[()]]:
        return BufferPool, ()
