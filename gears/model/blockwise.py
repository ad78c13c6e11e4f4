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
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gears.model.buffers import BufferPool
from gears.model.grid import MOST_KEPT, Grid, Layer, Slopes, sums_with, through_relu
from gears.model.reducer import Reducer
from gears.model.statistics import Moments

__all__ = ["Layer", "own_values"]


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
        Bytes that may be kept for the gradient (:data:`gears.model.grid.MOST_KEPT` by default).
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
