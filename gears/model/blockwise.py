"""The layers over genes and conditions, from the first sum to the per-gene value, block of genes by block.

For every gene g and condition u

    z = ReLU(base_g + effect_u)                      what outer_terms of a batch norm gives
    r = ReLU(norm_1(W_1 z)),  h = norm_2(W_2 r)      recovery_w
    own_gu = <h, w_g>                                the decoder's per-gene weights

with batch norms over all rows (g, u) of all workers. These are nearly all of a step's work and memory.
Written as single operations on tensors of genes x conditions x hidden they wait for memory most of the
time; here each block of genes passes through all operations that need no statistic while it lies in the
processor's cache. Of such tensors only W_1 z and W_2 r are kept for the gradient, or neither: then they
are computed again, and memory is bounded whatever the number of genes and conditions. The last norm is
folded into the per-gene weights, so that its output, and the gradient of its output, never exist.

Layers of linear map, batch norm and ReLU (without the last one) as in :mod:`gears.model.blockwise`, in any
number: with v_k the values of layer k before its norm,

    x_1 = z,   v_k = W_k x_k,   x_{k+1} = ReLU(norm_k(v_k)),   output = norm_n(v_n)

Every norm needs sums over all rows of all workers before any row passes through it, forth (moments) and back
(sums of the gradient). So the blocks are gone through once for each layer in either direction. Values v_k are kept
where there is room; else each pass computes them again from the first layer on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gears.model.batchnorm import Moments, condition_moments, merged
from gears.model.reducer import Reducer

BLOCK_ROWS = {"cpu": 2048}
"""Rows (genes x conditions) of a block: what stays in a cache of a few MiB; other devices take more."""
OTHER_BLOCK_ROWS = 1 << 18
MOST_KEPT = 1 << 30
"""Bytes of hidden values that a step keeps for its gradient; beyond, they are computed again."""

MOST_HELD = 4


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


def own_values(
    base_GH: Tensor,
    effect_UH: Tensor,
    first: Layer,
    second: Layer,
    decoder_GH: Tensor,
    weight_U: Tensor,
    *,
    eps: float,
    reducer: Reducer,
    pool: BufferPool,
    most_kept: int | None = None,
    low: torch.dtype | None = None,
) -> tuple[Tensor, Moments, Moments]:
    """Per-gene values of all conditions in training mode, (G, U), and the statistics of the two norms.

    Parameters
    ----------
    base_GH, effect_UH
        Normalised terms of the first sum.
    first, second
        Layers of ``recovery_w``.
    decoder_GH
        Per-gene weights.
    weight_U
        (U,) cells of each condition on this worker.
    pool
        Lends the large buffers.
    most_kept
        Bytes that may be kept for the gradient (:data:`gears.model.blockwise.MOST_KEPT` by default).
    low
        Type of the products of matrices under autocast.
    """
    limit = MOST_KEPT if most_kept is None else most_kept
    own_GU, *statistics = _OwnValues.apply(
        base_GH, effect_UH, *first, *second, decoder_GH, weight_U, eps, reducer, pool, limit, low
    )
    return own_GU, Moments(*statistics[:3]), Moments(*statistics[3:])


class _Blocks(Grid):
    """Hidden values of one step, block by block: kept ones are looked up, others computed again.

    `norm_1` (scale, shift) must be set before anything behind the first norm is asked for.
    """

    def __init__(
        self, base_GH: Tensor, effect_UH: Tensor, weight_1: Tensor, weight_2: Tensor, low: torch.dtype | None
    ) -> None:
        super().__init__(base_GH, effect_UH, low)
        self.weight_1, self.weight_2 = weight_1, weight_2
        self.kept_1: Tensor | None = None
        self.kept_2: Tensor | None = None
        self.norm_1: tuple[Tensor, Tensor] | None = None

    def keep(self, pool: BufferPool, most: int) -> None:
        """Borrow room for both layers' values if they take no more than `most` bytes."""
        room = self.room((len(self.weight_1), len(self.weight_2)), pool, most)
        if room is not None:
            self.kept_1, self.kept_2 = room

    def give_back(self, pool: BufferPool) -> None:
        """Return what was borrowed; from now on everything is computed again."""
        for kept in (self.kept_1, self.kept_2):
            if kept is not None:
                pool.give(kept)
        self.kept_1 = self.kept_2 = None

    def first(self, genes: slice, *, new: bool = False) -> Tensor:
        """W_1 z, (rows, K); `new` computes and keeps it."""
        if self.kept_1 is None:
            return self.product(self.rows(genes), self.weight_1.t())
        kept = self.kept_1[genes].flatten(0, 1)
        return self.product(self.rows(genes), self.weight_1.t(), kept) if new else kept

    def hidden(self, genes: slice) -> Tensor:
        """r, (rows, K)."""
        assert self.norm_1 is not None
        scale_K, shift_K = self.norm_1
        return torch.addcmul(shift_K, self.first(genes), scale_K).relu_()

    def second(self, genes: slice, *, new: bool = False) -> Tensor:
        """W_2 r, (rows, H)."""
        if self.kept_2 is None:
            return self.product(self.hidden(genes), self.weight_2.t())
        kept = self.kept_2[genes].flatten(0, 1)
        return self.product(self.hidden(genes), self.weight_2.t(), kept) if new else kept

    def moments_of(self, layer: int, weight_U: Tensor, reducer: Reducer) -> Moments:
        """Moments of a layer's values over all rows of all workers; computes and keeps the values."""
        value_of, weight = ((self.first, self.weight_1), (self.second, self.weight_2))[layer - 1]
        return self.moments(lambda genes: value_of(genes, new=True), len(weight), weight_U, reducer)


class _OwnValues(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        base_GH: Tensor,
        effect_UH: Tensor,
        weight_1: Tensor,
        gamma_1: Tensor,
        beta_1: Tensor,
        weight_2: Tensor,
        gamma_2: Tensor,
        beta_2: Tensor,
        decoder_GH: Tensor,
        weight_U: Tensor,
        eps: float,
        reducer: Reducer,
        pool: BufferPool,
        most_kept: int,
        low: torch.dtype | None,
    ) -> tuple[Tensor, ...]:
        blocks = _Blocks(base_GH, effect_UH, weight_1, weight_2, low)
        blocks.keep(pool, most_kept)
        with torch.autocast(base_GH.device.type, enabled=False):
            moments_1 = blocks.moments_of(1, weight_U, reducer)
            scale_1 = gamma_1 * torch.rsqrt(moments_1.var_H + eps)
            blocks.norm_1 = scale_1, beta_1 - moments_1.mean_H * scale_1
            moments_2 = blocks.moments_of(2, weight_U, reducer)
            scale_2 = gamma_2 * torch.rsqrt(moments_2.var_H + eps)
            shift_2 = beta_2 - moments_2.mean_H * scale_2
            own_GU = _per_gene(blocks, decoder_GH * scale_2).add_((decoder_GH @ shift_2).unsqueeze(1))
        ctx.save_for_backward(
            base_GH, effect_UH, weight_1, gamma_1, beta_1, weight_2, gamma_2, beta_2, decoder_GH, weight_U
        )
        ctx.blocks, ctx.statistics = blocks, (moments_1, moments_2)
        ctx.eps, ctx.reducer, ctx.pool = eps, reducer, pool
        ctx.mark_non_differentiable(*moments_1, *moments_2)
        return (own_GU, *moments_1, *moments_2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_GU: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        with torch.autocast(grad_GU.device.type, enabled=False):
            return _gradients(ctx, grad_GU.contiguous())


def _gradients(ctx: Any, grad_GU: Tensor) -> tuple[Tensor | None, ...]:
    _, _, _, gamma_1, _, _, gamma_2, beta_2, decoder_GH, weight_U = ctx.saved_tensors
    blocks, reducer = ctx.blocks, ctx.reducer
    moments_1, moments_2 = ctx.statistics
    inverse_1, inverse_2 = (torch.rsqrt(m.var_H + ctx.eps) for m in (moments_1, moments_2))
    scale_1, scale_2 = gamma_1 * inverse_1, gamma_2 * inverse_2

    # the second norm: its output's gradient is grad_gu * decoder_g, so all sums are small products
    sum_G1 = grad_GU.sum(1, keepdim=True)
    centred_GH = (_grad_times_second(blocks, grad_GU) - sum_G1 * moments_2.mean_H) * inverse_2
    grad_beta_2, grad_gamma_2 = (decoder_GH * sum_G1).sum(0), (decoder_GH * centred_GH).sum(0)
    grad_decoder_GH = centred_GH * gamma_2 + sum_G1 * beta_2
    all_2 = reducer.sum(torch.stack([grad_beta_2, grad_gamma_2]))
    slopes_2 = Slopes.of(moments_2, inverse_2, scale_2, all_2, weight_U)

    inner = _Inner(blocks, grad_GU, decoder_GH * scale_2, slopes_2)
    sums_1 = inner.sums(moments_1.mean_H, ctx.pool)
    grad_beta_1, grad_gamma_1 = sums_1[0], sums_1[1] * inverse_1
    all_1 = reducer.sum(torch.stack([grad_beta_1, grad_gamma_1]))
    slopes_1 = Slopes.of(moments_1, inverse_1, scale_1, all_1, weight_U)
    grad_base_GH, grad_effect_UH, grad_weight_1 = inner.outer(slopes_1, scale_1)
    inner.give_back(ctx.pool)
    blocks.give_back(ctx.pool)
    parts = (grad_base_GH, grad_effect_UH, grad_weight_1, grad_gamma_1, grad_beta_1)
    return (*parts, inner.grad_weight_2, grad_gamma_2, grad_beta_2, grad_decoder_GH, *[None] * 6)


class _Inner:
    """The gradient between the two norms and below, in two passes over the blocks."""

    def __init__(self, blocks: _Blocks, grad_GU: Tensor, scaled_GH: Tensor, slopes_2: Slopes) -> None:
        self.blocks, self.grad_GU, self.scaled_GH, self.slopes_2 = blocks, grad_GU, scaled_GH, slopes_2
        self.grad_weight_2 = torch.zeros_like(blocks.weight_2)
        self._kept: Tensor | None = None

    def sums(self, mean_K: Tensor, pool: BufferPool) -> Tensor:
        """Sums of the first norm's output gradient and of its product with the centred input, (2, K)."""
        blocks = self.blocks
        width = len(blocks.weight_1)
        if blocks.kept_1 is not None:  # what is kept forth is kept back
            self._kept = pool.take((blocks.n_genes, blocks.n_conditions, width), self.grad_GU)
        total_2K = mean_K.new_zeros(2, width)
        for genes in blocks.slices():
            grad = self._after_first(genes, weight_gradient=True)
            sums_K, products_K = sums_with(grad, blocks.first(genes), mean_K)
            total_2K[0] += sums_K
            total_2K[1] += products_K
        return total_2K

    def outer(self, slopes_1: Slopes, scale_K: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of base, effects and the first weight."""
        blocks = self.blocks
        grad_base_GH, grad_effect_UH = torch.zeros_like(blocks.base_GH), torch.zeros_like(blocks.effect_UH)
        grad_weight = torch.zeros_like(blocks.weight_1)
        for genes in blocks.slices():
            shape = (-1, blocks.n_conditions, len(blocks.weight_1))
            kept = self._kept
            grad = self._after_first(genes) if kept is None else kept[genes].flatten(0, 1)
            slopes_1.take_from(grad.mul_(scale_K).view(shape), blocks.first(genes).view(shape))
            rows = blocks.rows(genes)
            blocks.add_product(grad_weight, grad.t(), rows)
            grad_rows = through_relu(blocks.product(grad, blocks.weight_1), rows).view(
                -1, *blocks.effect_UH.shape
            )
            torch.sum(grad_rows, 1, out=grad_base_GH[genes])
            grad_effect_UH += grad_rows.sum(0)
        return grad_base_GH, grad_effect_UH, grad_weight

    def give_back(self, pool: BufferPool) -> None:
        """Return what was borrowed."""
        if self._kept is not None:
            pool.give(self._kept)
            self._kept = None

    def _after_first(self, genes: slice, *, weight_gradient: bool = False) -> Tensor:
        """Gradient of the first norm's output, (rows, K); kept where there is room."""
        blocks = self.blocks
        grad_NUH = self.grad_GU[genes].unsqueeze(-1) * self.scaled_GH[genes].unsqueeze(1)
        grad = self.slopes_2.take_from(grad_NUH, blocks.second(genes).view(grad_NUH.shape)).flatten(0, 1)
        hidden = blocks.hidden(genes)
        if weight_gradient:
            blocks.add_product(self.grad_weight_2, grad.t(), hidden)
        out = None if self._kept is None else self._kept[genes].flatten(0, 1)
        return through_relu(blocks.product(grad, blocks.weight_2, out), hidden)


def _per_gene(blocks: _Blocks, scaled_GH: Tensor) -> Tensor:
    """<W_2 r, scaled_g> of every gene and condition, (G, U)."""
    own_GU = scaled_GH.new_empty(blocks.n_genes, blocks.n_conditions)
    for genes in blocks.slices():
        second_NUH = blocks.second(genes).view(-1, blocks.n_conditions, scaled_GH.shape[1])
        own_GU[genes] = torch.bmm(second_NUH, scaled_GH[genes].unsqueeze(-1)).squeeze(-1)
    return own_GU


def _grad_times_second(blocks: _Blocks, grad_GU: Tensor) -> Tensor:
    """Sum over conditions of grad_gu * (W_2 r)_gu, (G, H)."""
    sums_GH = grad_GU.new_zeros(blocks.n_genes, len(blocks.weight_2))
    for genes in blocks.slices():
        second_NUH = blocks.second(genes).view(-1, blocks.n_conditions, sums_GH.shape[1])
        sums_GH[genes] = torch.bmm(grad_GU[genes].unsqueeze(1), second_NUH).squeeze(1)
    return sums_GH


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


class BufferPool:
    """Lends uninitialised tensors and takes them back.

    A tensor of some MiB that is allocated again in each step costs as much in fresh memory pages as in
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
