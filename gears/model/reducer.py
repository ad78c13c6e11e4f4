"""What a layer needs to know of other workers: a sum and a gather, identity by default."""

from __future__ import annotations

from typing import Any

from torch import Tensor


class Reducer:
    """Reductions over workers as seen by one worker; this class is the case of a single one.

    The distributed part of the package hands in a subclass whose methods are
    collectives: every worker must then call them in the same order with
    tensors of the same shape and dtype. No method is differentiated through.

    Attributes
    ----------
    world_size, rank
        Number of workers and this worker's place among them.
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
        """A copied network (an average of weights, say) keeps talking to the same workers."""
        return self


IDENTITY = Reducer()
