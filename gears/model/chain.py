"""A perceptron over all genes and conditions with one value for each of them, block of genes by block.

Layers of linear map, batch norm and ReLU (the last one left out) as in :mod:`gears.model.blockwise`, in any
number: with v_k the values of layer k before its norm,

    x_1 = z,   v_k = W_k x_k,   x_{k+1} = ReLU(norm_k(v_k)),   output = norm_n(v_n)

Every norm needs sums over all rows of all workers before any row passes through it, forth (moments) and back
(sums of the gradient). So the blocks are gone through once for each layer in either direction. Values v_k are kept
where there is room; else each pass computes them again from the first layer on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gears.model.buffers import BufferPool
from gears.model.grid import MOST_KEPT, Grid, Layer, Slopes, sums_with, through_relu
from gears.model.reducer import Reducer
from gears.model.statistics import Moments


def one_value_each(
    base_GH: Tensor,
    effect_UH: Tensor,
    layers: Sequence[Layer],
    weight_U: Tensor,
    *,
    eps: float,
    reducer: Reducer,
    pool: BufferPool,
    most_kept: int | None = None,
    low: torch.dtype | None = None,
) -> tuple[Tensor, list[Moments]]:
    """Output of all genes and conditions in training mode, (G, U), and the statistics of every norm.

    Parameters
    ----------
    base_GH, effect_UH
        Normalised terms whose sums' ReLU the first layer takes.
    layers
        The last one has a single output.
    weight_U
        (U,) cells of each condition on this worker.
    pool, most_kept, low
        As for :func:`gears.model.blockwise.own_values`.
    """
    limit = MOST_KEPT if most_kept is None else most_kept
    parameters = [part for layer in layers for part in layer]
    value_GU, *statistics = _Chain.apply(
        base_GH, effect_UH, weight_U, eps, reducer, pool, limit, low, *parameters
    )
    return value_GU, [Moments(*statistics[at : at + 3]) for at in range(0, len(statistics), 3)]


class _Values(Grid):
    """Values of every layer, block by block."""

    def __init__(
        self, base_GH: Tensor, effect_UH: Tensor, layers: Sequence[Layer], low: torch.dtype | None
    ) -> None:
        super().__init__(base_GH, effect_UH, low)
        self.layers = list(layers)
        self.norms: list[tuple[Tensor, Tensor]] = []  # scale and shift of the layers that are known
        self.kept: list[Tensor] | None = None

    def inputs(self, genes: slice, layer: int) -> Tensor:
        """x_k, (rows, in): what layer number `layer` (from 0) takes."""
        if layer == 0:
            return self.rows(genes)
        scale_K, shift_K = self.norms[layer - 1]
        return torch.addcmul(shift_K, self.values(genes, layer - 1), scale_K).relu_()

    def values(self, genes: slice, layer: int, *, new: bool = False) -> Tensor:
        """v_k, (rows, out); `new` computes and keeps them."""
        weight = self.layers[layer].weight
        if self.kept is None:
            return self.product(self.inputs(genes, layer), weight.t())
        kept = self.kept[layer][genes].flatten(0, 1)
        return self.product(self.inputs(genes, layer), weight.t(), kept) if new else kept

    def settle(self, weight_U: Tensor, eps: float, reducer: Reducer) -> list[Moments]:
        """Statistics of every norm, one after another."""
        found = []
        for number, (weight, gamma, beta) in enumerate(self.layers):

            def value_of(genes: slice, number: int = number) -> Tensor:
                return self.values(genes, number, new=True)

            moments = self.moments(value_of, len(weight), weight_U, reducer)
            scale = gamma * torch.rsqrt(moments.var_H + eps)
            self.norms.append((scale, beta - moments.mean_H * scale))
            found.append(moments)
        return found

    def output(self) -> Tensor:
        """The last norm's output, (G, U)."""
        scale_1, shift_1 = self.norms[-1]
        value_GU = self.base_GH.new_empty(self.n_genes, self.n_conditions)
        for genes in self.slices():
            values = self.by_condition(self.values(genes, len(self.layers) - 1)).squeeze(-1)
            torch.addcmul(shift_1, values, scale_1, out=value_GU[genes])
        return value_GU

    def give_back(self, pool: BufferPool) -> None:
        """Return what was borrowed; from now on everything is computed again."""
        for kept in self.kept or ():
            pool.give(kept)
        self.kept = None


class _Chain(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        base_GH: Tensor,
        effect_UH: Tensor,
        weight_U: Tensor,
        eps: float,
        reducer: Reducer,
        pool: BufferPool,
        most_kept: int,
        low: torch.dtype | None,
        *parameters: Tensor,
    ) -> tuple[Tensor, ...]:
        layers = [Layer(*parameters[at : at + 3]) for at in range(0, len(parameters), 3)]
        values = _Values(base_GH, effect_UH, layers, low)
        values.kept = values.room(tuple(len(layer.weight) for layer in layers), pool, most_kept)
        with torch.autocast(base_GH.device.type, enabled=False):
            moments = values.settle(weight_U, eps, reducer)
            value_GU = values.output()
        ctx.save_for_backward(base_GH, effect_UH, weight_U, *parameters)
        ctx.values, ctx.moments = values, moments
        ctx.eps, ctx.reducer, ctx.pool = eps, reducer, pool
        statistics = [part for each in moments for part in each]
        ctx.mark_non_differentiable(*statistics)
        return (value_GU, *statistics)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_GU: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        weight_U = ctx.saved_tensors[2]  # and a look at whether a parameter was changed since
        with torch.autocast(grad_GU.device.type, enabled=False):
            back = _Backwards(ctx.values, grad_GU.contiguous(), ctx.moments, ctx.eps)
            parameters = back.parameters(weight_U, ctx.reducer)
            grad_base_GH, grad_effect_UH = back.terms()
            ctx.values.give_back(ctx.pool)
        return (grad_base_GH, grad_effect_UH, *[None] * 6, *parameters)


class _Backwards:
    """The gradient, from the last layer down: a pass over the blocks for each norm, and one for the terms."""

    def __init__(self, values: _Values, grad_GU: Tensor, moments: Sequence[Moments], eps: float) -> None:
        self.values, self.grad_GU, self.moments = values, grad_GU, moments
        self.inverses = [torch.rsqrt(each.var_H + eps) for each in moments]
        self.slopes: dict[int, Slopes] = {}  # of the layers whose sums are known
        self.weights = [torch.zeros_like(layer.weight) for layer in values.layers]

    def parameters(self, weight_U: Tensor, reducer: Reducer) -> list[Tensor]:
        """Gradients of all layers' parameters, but for the first one's weight, which :meth:`terms` completes."""
        found: list[Tensor] = []
        for layer in reversed(range(len(self.values.layers))):
            moments, inverse = self.moments[layer], self.inverses[layer]
            sums_2K = torch.zeros(2, len(inverse), dtype=inverse.dtype, device=inverse.device)
            for genes in self.values.slices():
                grad = self._after(genes, layer, weight_of=layer + 1)
                sums_K, products_K = sums_with(grad, self.values.values(genes, layer), moments.mean_H)
                sums_2K += torch.stack([sums_K, products_K * inverse])
            all_2K = reducer.sum(sums_2K.clone())
            self.slopes[layer] = Slopes.of(moments, inverse, self.values.norms[layer][0], all_2K, weight_U)
            found = [self.weights[layer], sums_2K[1], sums_2K[0], *found]
        return found

    def terms(self) -> tuple[Tensor, Tensor]:
        """Gradients of the two terms of the sum, (G, H) and (U, H)."""
        values = self.values
        grad_base_GH, grad_effect_UH = torch.zeros_like(values.base_GH), torch.zeros_like(values.effect_UH)
        for genes in values.slices():
            grad_NUH = values.by_condition(self._after(genes, -1, weight_of=0))
            torch.sum(grad_NUH, 1, out=grad_base_GH[genes])
            grad_effect_UH += grad_NUH.sum(0)
        return grad_base_GH, grad_effect_UH

    def _after(self, genes: slice, layer: int, *, weight_of: int) -> Tensor:
        """Gradient of a norm's output (of the sum below the first layer: -1), (rows, out).

        On its way the gradient of one layer's weight is added up: each is in one pass only.
        """
        values = self.values
        last = len(values.layers) - 1
        grad = self.grad_GU[genes].reshape(-1, 1).clone()
        for number in range(last, layer, -1):
            grad = grad * values.norms[number][0]
            shaped = values.by_condition(grad)
            self.slopes[number].take_from(shaped, values.by_condition(values.values(genes, number)))
            inputs = values.inputs(genes, number)
            if number == weight_of:
                values.add_product(self.weights[number], grad.t(), inputs)
            grad = through_relu(values.product(grad, values.layers[number].weight), inputs)
        return grad
