"""Sum and gather over workers, as layers use them; the identity in a single process."""

from __future__ import annotations

from typing import Any

from torch import Tensor


class Reducer:
    """Reductions over workers; this class is for a single process.

    With several workers training passes a subclass whose methods are collectives: every worker must then call them in
    the same order with tensors of the same shape and dtype. Results carry no gradient.
    """

    world_size: int = 1
    rank: int = 0

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum of `tensor` over workers, as a new tensor of the same shape."""
        return tensor.detach().clone()

    def gather(self, tensor: Tensor) -> Tensor:
        """Every worker's `tensor`, shape (world_size, *tensor.shape), in rank order."""
        return tensor.detach().unsqueeze(0)

    def __deepcopy__(self, memo: dict[int, Any]) -> Reducer:
        """A copied network (such as a moving average) uses the same reducer."""
        return self


IDENTITY = Reducer()
