"""Rows of genes x conditions, block of genes by block: what layers over them share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from gears.model.buffers import BufferPool
from gears.model.reducer import Reducer
from gears.model.statistics import Moments, condition_moments, merged

BLOCK_ROWS = {"cpu": 2048}
"""Rows (genes x conditions) of a block: what stays in a cache of a few MiB; other devices take more."""
OTHER_BLOCK_ROWS = 1 << 18
MOST_KEPT = 1 << 30
"""Bytes of hidden values that a step keeps for its gradient; beyond, they are computed again."""


class Layer(NamedTuple):
    """A linear map without its bias (which the batch norm takes out again) and the norm after it."""

    weight: Tensor  # (out, in)
    gamma: Tensor  # (out,)
    beta: Tensor  # (out,)


class Grid:
    """The rows ``ReLU(base_g + effect_u)`` of every gene g and condition u.

    Parameters
    ----------
    base_GH, effect_UH
        Normalised terms of the sum.
    low
        Type that products of matrices are computed in (autocast), or None.
    """

    def __init__(self, base_GH: Tensor, effect_UH: Tensor, low: torch.dtype | None = None) -> None:
        self.base_GH, self.effect_UH, self.low = base_GH, effect_UH, low
        self.n_genes, self.n_conditions = len(base_GH), len(effect_UH)

    def slices(self) -> Iterator[slice]:
        """Blocks of genes; none where there is no condition."""
        if not self.n_conditions:
            return
        rows = BLOCK_ROWS.get(self.base_GH.device.type, OTHER_BLOCK_ROWS)
        step = max(1, rows // self.n_conditions)
        for start in range(0, self.n_genes, step):
            yield slice(start, min(start + step, self.n_genes))

    def rows(self, genes: slice) -> Tensor:
        """z, (rows, H)."""
        return (self.base_GH[genes].unsqueeze(1) + self.effect_UH).relu_().flatten(0, 1)

    def by_condition(self, values: Tensor) -> Tensor:
        """Rows of a block as (genes, U, width)."""
        return values.view(-1, self.n_conditions, values.shape[-1])

    def product(self, rows: Tensor, weight: Tensor, out: Tensor | None = None) -> Tensor:
        """Product of two matrices."""
        if self.low is None:
            return torch.mm(rows, weight) if out is None else torch.mm(rows, weight, out=out)
        made = torch.mm(rows.to(self.low), weight.to(self.low)).to(rows.dtype)
        return made if out is None else out.copy_(made)

    def add_product(self, total: Tensor, left: Tensor, right: Tensor) -> None:
        """Add the product of two matrices to a third."""
        if self.low is None:
            total.addmm_(left, right)
        else:
            total.add_(self.product(left, right))

    def room(self, widths: tuple[int, ...], pool: BufferPool, most: int) -> list[Tensor] | None:
        """Borrowed room for values of all genes and conditions, if it takes no more than `most` bytes."""
        size = self.n_genes * self.n_conditions * sum(widths) * self.base_GH.element_size()
        if size > most:
            return None
        return [pool.take((self.n_genes, self.n_conditions, width), self.base_GH) for width in widths]

    def moments(
        self, value_of: Callable[[slice], Tensor], width: int, weight_U: Tensor, reducer: Reducer
    ) -> Moments:
        """Moments of values (rows, width) over all rows of all workers."""
        means, squares, sizes = [], [], []
        for genes in self.slices():
            mean_UH, squares_UH = condition_moments(self.by_condition(value_of(genes)))
            means.append(mean_UH)
            squares.append(squares_UH)
            sizes.append(float(genes.stop - genes.start))
        if not means:
            empty = self.base_GH.new_zeros(self.n_conditions, width)
            return merged(empty, empty, self.n_genes, weight_U, reducer)
        size_B11 = torch.tensor(sizes, dtype=self.base_GH.dtype, device=self.base_GH.device)[:, None, None]
        mean_BUH = torch.stack(means)
        mean_UH = (size_B11 * mean_BUH).sum(0) / self.n_genes
        spread_UH = (size_B11 * (mean_BUH - mean_UH).square()).sum(0)
        return merged(mean_UH, torch.stack(squares).sum(0) + spread_UH, self.n_genes, weight_U, reducer)


class Slopes(NamedTuple):
    """The part of a batch norm's gradient that is affine in its input: ``slope * x + offset``, (U, H)."""

    slope: Tensor
    offset: Tensor

    @classmethod
    def of(
        cls, moments: Moments, inverse: Tensor, scale: Tensor, sums_2H: Tensor, weight_U: Tensor
    ) -> Slopes:
        """From sums over all workers: of the output's gradient, and of its product with the normalised input."""
        share_U1 = (weight_U / moments.n_rows.clamp(min=torch.finfo(inverse.dtype).tiny)).unsqueeze(-1)
        slope = share_U1 * scale * inverse * sums_2H[1]
        return cls(slope, share_U1 * scale * sums_2H[0] - slope * moments.mean_H)

    def take_from(self, grad_NUH: Tensor, value_NUH: Tensor) -> Tensor:
        """Subtract the part from a gradient, in place."""
        return grad_NUH.addcmul_(value_NUH, self.slope, value=-1).sub_(self.offset)


def through_relu(grad: Tensor, output: Tensor) -> Tensor:
    """The gradient where a ReLU's output is positive, in place."""
    return torch.ops.aten.threshold_backward.grad_input(grad, output, 0, grad_input=grad)


def sums_with(grad: Tensor, value: Tensor, mean_K: Tensor) -> tuple[Tensor, Tensor]:
    """Sums over rows of a gradient, and of its product with the centred values, (K,) each.

    The backward kernel of a batch norm with fixed statistics takes both in one pass; the CPU kernel reads the
    running statistics, the CUDA kernel the saved ones.
    """
    one_K = torch.ones_like(mean_K)
    _, products_K, sums_K = torch.ops.aten.native_batch_norm_backward(
        grad, value, one_K, mean_K, one_K, mean_K, one_K, False, 0.0, [False, True, True]
    )
    return sums_K, products_K
