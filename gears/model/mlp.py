"""The published multi-layer perceptron: Linear, batch norm, ReLU; the very last ReLU left out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import cast

from torch import Tensor, nn

from gears.model.batchnorm import WeightedBatchNorm
from gears.model.blank import BlankLinear
from gears.model.grid import Layer
from gears.model.reducer import IDENTITY, Reducer
from gears.model.statistics import Moments


class MLP(nn.Module):
    """Layers of the given sizes, named ``network.0``, ``network.1``, ... as published.

    Weights are left uninitialised: the network that owns them fills them from
    a local generator.

    Parameters
    ----------
    sizes
        Input size, hidden sizes, output size.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for n_in, n_out in pairwise(sizes):
            layers += [BlankLinear(n_in, n_out), WeightedBatchNorm(n_out), nn.ReLU()]
        self.network = nn.Sequential(*layers[:-1])

    def parts(self) -> tuple[list[BlankLinear], list[WeightedBatchNorm]]:
        """Linear maps and batch norms, layer by layer."""
        layers = range(0, len(self.network), 3)
        linears = [cast(BlankLinear, self.network[i]) for i in layers]
        return linears, [cast(WeightedBatchNorm, self.network[i + 1]) for i in layers]

    def forward(
        self,
        rows: Tensor,
        weight: Tensor | None = None,
        count: Tensor | float | None = None,
        reducer: Reducer = IDENTITY,
    ) -> Tensor:
        """Apply to rows (U, H) or (G, U, H); arguments as in :class:`WeightedBatchNorm`."""
        last = len(self.network) - 1
        for i in range(0, last, 3):
            linear, norm = self.network[i], self.network[i + 1]
            rows = norm(linear(rows), weight, count, reducer, relu=i + 1 < last)
        return rows


def layers_of(mlp: MLP) -> list[Layer]:
    """Linear maps and the norms after them, for passes that go block by block."""
    return [Layer(linear.weight, norm.weight, norm.bias) for linear, norm in zip(*mlp.parts(), strict=True)]


def tracked(mlp: MLP, statistics: Sequence[Moments], output: Tensor) -> Tensor:
    """Output of a perceptron that went block by block, whose running statistics are moved here."""
    for linear, norm, moments in zip(*mlp.parts(), statistics, strict=True):
        norm.track(moments, linear.bias)
        output = output + 0.0 * linear.bias.sum()  # a gradient of zero, as for every shift
    return output
