"""Layers whose weights are filled later: made without drawing random numbers.

``torch.nn.utils.skip_init`` does the same by way of the meta device, whose first use imports
the whole of ``torch._dynamo`` (seconds in every worker and every loaded model).
"""

from __future__ import annotations

from torch import nn


class BlankEmbedding(nn.Embedding):
    """An embedding table with uninitialised rows."""

    def reset_parameters(self) -> None:
        """Leave the weights as they are."""


class BlankLinear(nn.Linear):
    """A linear layer with uninitialised weights."""

    def reset_parameters(self) -> None:
        """Leave the weights as they are."""
