"""Layers over all genes and conditions in training mode, computed in blocks of genes.

For every gene g and condition u, with n layers of a linear map W_k and a batch norm over all rows (g, u) of all
workers,

    x_1     = ReLU(base_g + effect_u)          the two terms come from WeightedBatchNorm.outer_terms
    v_k     = W_k x_k                          without bias: the norm takes a shift out again
    x_{k+1} = ReLU(norm_k(v_k))                k < n
    value   = <norm_n(v_n), w_g>               w_g: the decoder's weights of gene g, or 1 for a single output

The plain version writes this as whole tensors (G, U, H) and lets torch differentiate it; that takes nearly all time and
memory of a step, most of it spent waiting for memory. ``tests/model/test_model_blockwise.py`` compares the two.

*Blocks.* A block holds some genes with all their conditions, (rows, width) with rows = genes x U, few enough to stay
in the processor's cache through all operations that need no statistics. A norm needs sums over the rows of all workers
before any row goes through it: the moments of v_k forward, two sums of its gradient backward. So the outer loop is
over layers, the inner loop over blocks, with one collective between two layers. Every worker does the same
collectives, also one without conditions.

*What is kept.* The v_k of all rows, and in the backward the gradient of norm_1's output, if the v_k fit in `most_kept`
bytes; x_k is always one cheap operation on v_{k-1}. If they do not fit, nothing is kept: every loop over blocks
computes its values again from base and effect, and memory stays bounded whatever the number of genes and conditions.

*The last norm* is affine, so it is folded into the decoder: value = <v_n, w_g * scale> + <w_g, shift>. Its output, and
the gradient of its output (grad_gu * w_g), never exist, and the sums of that gradient over all rows are products of
(G, U) and (G, H) matrices.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gears.distributed._world import Reducer
from gears.model._batchnorm import (
    Moments,
    NormTerms,
    Weights,
    merged,
)

BLOCK_ROWS = {"cpu": 2048}
"""Rows (genes x conditions) of a block: what stays in a cache of a few MiB. Other devices take OTHER_BLOCK_ROWS."""
OTHER_BLOCK_ROWS = 1 << 18
MOST_KEPT = 1 << 30
"""Bytes of hidden values that a step keeps for its gradient; beyond this they are computed again."""
MOST_HELD = 5
"""Free buffers that a pool holds: the wide and narrow values of two stacks of layers, and a gradient."""


class Layer(NamedTuple):
    """A linear map without its bias, and the batch norm after it."""

    weight: Tensor  # (out, in)
    gamma: Tensor  # (out,)
    beta: Tensor  # (out,)


def gene_values(
    base_GH: Tensor,
    effect_UH: Tensor,
    layers: Sequence[Layer],
    weights: Weights,
    *,
    decoder_GH: Tensor | None = None,
    eps: float,
    reducer: Reducer,
    pool: BufferPool,
    most_kept: int | None = None,
    matmul_dtype: torch.dtype | None = None,
) -> tuple[Tensor, list[Moments]]:
    """Value of every gene in every condition, (G, U), and the statistics of every norm.

    `base_GH`, `effect_UH`: normalised terms of the sum of which the first layer takes the ReLU.
    `weights`: cells of the U conditions on this worker.
    `decoder_GH`: weights of each gene on the last layer's outputs; None where that layer has a single output.
    `most_kept`: bytes that may be kept for the gradient (:data:`gears.model._blockwise.MOST_KEPT` by default).
    `matmul_dtype`: type of matrix products under autocast; None: that of `base_GH`.
    """
    if decoder_GH is None:
        decoder_GH = base_GH.new_ones(len(base_GH), 1)
    limit = MOST_KEPT if most_kept is None else most_kept
    parameters = [tensor for layer in layers for tensor in layer]
    value_GU, *statistics = _GeneValues.apply(
        base_GH, effect_UH, decoder_GH, weights, eps, reducer, pool, limit, matmul_dtype, *parameters
    )
    return value_GU, [Moments(*statistics[i : i + 3]) for i in range(0, len(statistics), 3)]


class _GeneValues(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        base_GH: Tensor,
        effect_UH: Tensor,
        decoder_GH: Tensor,
        weights: Weights,
        eps: float,
        reducer: Reducer,
        pool: BufferPool,
        most_kept: int,
        matmul_dtype: torch.dtype | None,
        *parameters: Tensor,
    ) -> tuple[Tensor, ...]:
        layers = [Layer(*parameters[i : i + 3]) for i in range(0, len(parameters), 3)]
        blocks = _Blocks(base_GH, effect_UH, layers, matmul_dtype)
        blocks.borrow(pool, most_kept)
        # products choose their own type: sums of many rows in half precision would lose digits
        with torch.autocast(base_GH.device.type, enabled=False):
            moments = blocks.fit_norms(weights, eps, reducer)
            value_GU = blocks.decoded(decoder_GH)
        ctx.save_for_backward(base_GH, effect_UH, decoder_GH, *parameters)
        ctx.blocks, ctx.moments, ctx.weights = blocks, moments, weights
        ctx.reducer, ctx.pool = reducer, pool
        statistics = [tensor for each in moments for tensor in each]
        ctx.mark_non_differentiable(*statistics)
        return (value_GU, *statistics)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_GU: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        _, _, decoder_GH, *_ = ctx.saved_tensors  # raises if a parameter was changed since
        with torch.autocast(grad_GU.device.type, enabled=False):
            gradient = _Gradient(ctx.blocks, grad_GU.contiguous(), decoder_GH, ctx.moments)
            grad_decoder_GH, *of_norms = gradient.parameters(ctx.weights, ctx.reducer, ctx.pool)
            grad_base_GH, grad_effect_UH = gradient.terms()
            of_layers = zip(gradient.of_weights(), of_norms[::2], of_norms[1::2], strict=True)
            gradient.give_back(ctx.pool)
            ctx.blocks.give_back(ctx.pool)
        return (grad_base_GH, grad_effect_UH, grad_decoder_GH, *[None] * 6, *itertools.chain(*of_layers))


class _Blocks:
    """Hidden values of one step, block by block: looked up where they are kept, else computed again.

    Layers are numbered from 0. What lies behind a norm can be computed once :meth:`fit_norms` has added the norm.
    """

    def __init__(
        self, base_GH: Tensor, effect_UH: Tensor, layers: Sequence[Layer], matmul_dtype: torch.dtype | None
    ) -> None:
        self.base_GH, self.effect_UH = base_GH, effect_UH
        self.layers, self.matmul_dtype = list(layers), matmul_dtype
        self.n_genes, self.n_conditions = len(base_GH), len(effect_UH)
        self.norms: list[tuple[Tensor, Tensor]] = []  # scale and shift, (out,) each
        self.inverses: list[Tensor] = []  # 1 / standard deviation, (out,)
        self.kept: list[Tensor] | None = None  # v_k of all rows, (G, U, out)

    def borrow(self, pool: BufferPool, most_kept: int) -> None:
        """Borrow buffers for the values of all layers if they take no more than `most_kept` bytes."""
        widths = [len(layer.weight) for layer in self.layers]
        n_bytes = self.n_genes * self.n_conditions * sum(widths) * self.base_GH.element_size()
        if n_bytes <= most_kept:
            shapes = [(self.n_genes, self.n_conditions, width) for width in widths]
            self.kept = [pool.take(shape, self.base_GH) for shape in shapes]

    def give_back(self, pool: BufferPool) -> None:
        """Return what was borrowed; a second backward computes everything again."""
        for buffer in self.kept or ():
            pool.give(buffer)
        self.kept = None

    def __iter__(self) -> Iterator[slice]:
        """Genes of each block; no block where there is no condition."""
        if not self.n_conditions:
            return
        n_rows = BLOCK_ROWS.get(self.base_GH.device.type, OTHER_BLOCK_ROWS)
        n_genes = max(1, n_rows // self.n_conditions)
        for start in range(0, self.n_genes, n_genes):
            yield slice(start, min(start + n_genes, self.n_genes))

    def inputs(self, genes: slice, layer: int) -> Tensor:
        """What a layer takes, x_k, (rows, in)."""
        if layer == 0:
            return (self.base_GH[genes].unsqueeze(1) + self.effect_UH).relu_().flatten(0, 1)
        scale_K, shift_K = self.norms[layer - 1]
        return torch.addcmul(shift_K, self.values(genes, layer - 1), scale_K).relu_()

    def values(self, genes: slice, layer: int, *, new: bool = False) -> Tensor:
        """A layer's values before its norm, v_k, (rows, out); `new` computes and keeps them."""
        weight = self.layers[layer].weight
        if self.kept is None:
            return self.product(self.inputs(genes, layer), weight.t())
        buffer = self.kept[layer][genes].flatten(0, 1)
        return self.product(self.inputs(genes, layer), weight.t(), buffer) if new else buffer

    def by_condition(self, rows: Tensor) -> Tensor:
        """Rows of a block as (genes, U, width)."""
        return rows.view(-1, self.n_conditions, rows.shape[-1])

    def product(self, left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
        """Product of two matrices, in `matmul_dtype`."""
        if self.matmul_dtype is None:
            return torch.mm(left, right) if out is None else torch.mm(left, right, out=out)
        product = torch.mm(left.to(self.matmul_dtype), right.to(self.matmul_dtype)).to(left.dtype)
        return product if out is None else out.copy_(product)

    def add_product(self, total: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
        """Add the product of two matrices to `total`, in place; None: nothing yet."""
        if total is None:
            return self.product(left, right)
        if self.matmul_dtype is None:
            return total.addmm_(left, right)
        return total.add_(self.product(left, right))

    def fit_norms(self, weights: Weights, eps: float, reducer: Reducer) -> list[Moments]:
        """Compute the values of all layers and the statistics of their norms, one layer after the other."""
        moments = []
        # layers outside, blocks inside (in _moments): no row may go through a norm before all rows of all workers have
        # been summed. scale and shift are one multiplication and addition per value later
        for layer, (_, gamma_K, beta_K) in enumerate(self.layers):
            statistics = self._moments(layer, weights, reducer)
            self.inverses.append(torch.rsqrt(statistics.var_H + eps))
            scale_K = gamma_K * self.inverses[-1]
            self.norms.append((scale_K, torch.addcmul(beta_K, statistics.mean_H, scale_K, value=-1)))
            moments.append(statistics)
        return moments

    def _moments(self, layer: int, weights: Weights, reducer: Reducer) -> Moments:
        """Moments of a layer's values over all rows of all workers."""
        # each block gives (U, K) means and variances, so that (rows, K) values are read once, while they are in the
        # cache
        blocks = [condition_moments(self.by_condition(self.values(genes, layer, new=True))) for genes in self]
        if not blocks:  # no condition on this worker: it takes part in the collective all the same
            mean_UK, var_UK = self.base_GH.new_zeros(self.n_conditions, len(self.layers[layer].weight)), None
        elif len(blocks) == 1:
            mean_UK, var_UK = blocks[0]
        else:
            mean_UK, var_UK = self._over_blocks(blocks)
        return merged(mean_UK, var_UK, self.n_genes, weights, reducer)

    def _over_blocks(self, blocks: list[tuple[Tensor, Tensor | None]]) -> tuple[Tensor, Tensor]:
        """Means and variances of each condition's genes from those of the blocks, (U, K) each."""
        # the variance of all genes = mean over blocks, by size, of the block's variance + (its mean - mean)^2
        mean_BUK = torch.stack([mean_UK for mean_UK, _ in blocks])
        sizes = [genes.stop - genes.start for genes in self]  # equal but for the last one
        share_B11 = mean_BUK.new_full((len(sizes), 1, 1), sizes[0] / self.n_genes)
        share_B11[-1] = sizes[-1] / self.n_genes
        mean_UK = (share_B11 * mean_BUK).sum(0)
        var_BUK = (mean_BUK - mean_UK).square_()
        if blocks[0][1] is not None:
            var_BUK += torch.stack([torch.zeros_like(mean) if var is None else var for mean, var in blocks])
        return mean_UK, (share_B11 * var_BUK).sum(0)

    def decoded(self, decoder_GH: Tensor) -> Tensor:
        """<norm_n(v_n), w_g> of every gene and condition, (G, U)."""
        scale_H, shift_H = self.norms[-1]
        # the last norm, folded into the decoder: G rows instead of G x U
        self.scaled_GH = decoder_GH * scale_H
        value_GU1 = decoder_GH.new_empty(self.n_genes, self.n_conditions, 1)
        for genes in self:
            value_NUH = self.by_condition(self.values(genes, len(self.layers) - 1))
            torch.bmm(value_NUH, self.scaled_GH[genes].unsqueeze(-1), out=value_GU1[genes])
        return value_GU1.squeeze(-1).add_((decoder_GH @ shift_H).unsqueeze(1))

    def weighted_sums(self, grad_GU: Tensor) -> Tensor:
        """Sum over conditions of grad_gu * (v_n)_gu, (G, H)."""
        shape = (self.n_genes, 1, len(self.layers[-1].weight))
        sums_G1H = grad_GU.new_empty(shape) if self.n_conditions else grad_GU.new_zeros(shape)
        for genes in self:
            value_NUH = self.by_condition(self.values(genes, len(self.layers) - 1))
            torch.bmm(grad_GU[genes].unsqueeze(1), value_NUH, out=sums_G1H[genes])
        return sums_G1H.squeeze(1)


class _Gradient:
    """The backward of one step, from the last layer down: one loop over the blocks per layer, one for the two terms.

    Layer -1 means the sum base_g + effect_u, which has no norm.
    """

    def __init__(self, blocks: _Blocks, grad_GU: Tensor, decoder_GH: Tensor, moments: Sequence[Moments]) -> None:
        self.blocks, self.grad_GU, self.decoder_GH, self.moments = blocks, grad_GU, decoder_GH, moments
        self.norm_terms: dict[int, NormTerms] = {}  # of the layers whose sums are complete
        self.weights: list[Tensor | None] = [None] * len(blocks.layers)  # their gradients
        self.kept: Tensor | None = None  # gradient of norm_1's output, (G, U, out)

    def parameters(self, weights: Weights, reducer: Reducer, pool: BufferPool) -> list[Tensor]:
        """Gradients of the decoder and of each layer's gamma and beta.

        They are this worker's own and are averaged with the others' later.
        """
        blocks, last = self.blocks, len(self.blocks.layers) - 1
        grad_decoder_GH, sums_K, products_K = self._last_sums()
        gradients: list[Tensor] = []
        share_U = share_of_all(weights, blocks.n_genes, self.moments[0], reducer)
        # one loop over the blocks and one collective per layer, from the last one down: the gradient of v_k needs the
        # sums of norm_k, which need the gradient of v_{k+1}; what is not kept of it is computed again in each loop
        for layer in range(last, -1, -1):
            if layer < last:
                sums_K, products_K = self._sums(layer, pool)
            gradients = [products_K, sums_K, *gradients]
            self.norm_terms[layer] = NormTerms.of(
                self.moments[layer].mean_H,
                blocks.inverses[layer],
                blocks.norms[layer][0],
                summed(sums_K, products_K, reducer),
                share_U,
            )
        return [grad_decoder_GH, *gradients]

    def _last_sums(self) -> tuple[Tensor, Tensor, Tensor]:
        """Gradient of the decoder, (G, H), and the sums of :meth:`_sums` for the last layer.

        The gradient of the last norm's output is grad_gu * w_g, so that all sums over rows are sums over conditions,
        then over genes: sum_u grad_gu, and sum_u grad_gu * normalised (v_n)_gu.
        """
        layer, mean_H = self.blocks.layers[-1], self.moments[-1].mean_H
        sum_G1 = self.grad_GU.sum(1, keepdim=True)
        products_GH = self.blocks.weighted_sums(self.grad_GU)
        normalised_GH = products_GH.addcmul_(sum_G1, mean_H, value=-1).mul_(self.blocks.inverses[-1])
        sums_H, products_H = self.decoder_GH.t() @ sum_G1.squeeze(1), (self.decoder_GH * normalised_GH).sum(0)
        return torch.addcmul(sum_G1 * layer.beta, normalised_GH, layer.gamma), sums_H, products_H

    def _sums(self, layer: int, pool: BufferPool) -> tuple[Tensor, Tensor]:
        """Sums over rows of the gradient of a norm's output, and of its product with the normalised input, (K,) each.

        They are the gradients of beta and gamma.
        """
        blocks, mean_K = self.blocks, self.moments[layer].mean_H
        # the gradient of the first norm's output is kept, because terms() needs it again
        if layer == 0 and blocks.kept is not None:
            self.kept = pool.take((blocks.n_genes, blocks.n_conditions, len(mean_K)), self.grad_GU)
        sums_2K: list[Tensor] = []
        for genes in blocks:
            grad = self._of_output(genes, layer, new=True)
            block_2K = column_sums(grad, blocks.values(genes, layer), mean_K)
            if sums_2K:
                torch._foreach_add_(sums_2K, block_2K)
            else:
                sums_2K = list(block_2K)
        if not sums_2K:
            return torch.zeros_like(mean_K), torch.zeros_like(mean_K)
        return sums_2K[0], sums_2K[1] * blocks.inverses[layer]

    def terms(self) -> tuple[Tensor, Tensor]:
        """Gradients of the two terms of the sum, (G, H) and (U, H)."""
        blocks = self.blocks
        if not blocks.n_conditions:
            return torch.zeros_like(blocks.base_GH), torch.zeros_like(blocks.effect_UH)
        grad_base_GH, grad_effect_UH = torch.empty_like(blocks.base_GH), None
        for genes in blocks:
            # the sum over conditions is complete in a block, that over genes adds up over blocks
            grad_NUH = blocks.by_condition(self._of_output(genes, -1, new=True))
            torch.sum(grad_NUH, 1, out=grad_base_GH[genes])
            sum_UH = grad_NUH.sum(0)
            grad_effect_UH = sum_UH if grad_effect_UH is None else grad_effect_UH.add_(sum_UH)
        assert grad_effect_UH is not None
        return grad_base_GH, grad_effect_UH

    def of_weights(self) -> list[Tensor]:
        """Gradients of the layers' weights, after :meth:`terms`."""
        pairs = zip(self.weights, self.blocks.layers, strict=True)
        return [torch.zeros_like(layer.weight) if grad is None else grad for grad, layer in pairs]

    def give_back(self, pool: BufferPool) -> None:
        """Return what was borrowed."""
        if self.kept is not None:
            pool.give(self.kept)
            self.kept = None

    def _of_output(self, genes: slice, layer: int, *, new: bool = False) -> Tensor:
        """Gradient of a norm's output, (rows, out): through the layer above it and the ReLU between them.

        `new` also keeps the gradient, where there is a buffer, and adds to the gradient of the weight of the layer
        above: each loop over the blocks meets one layer for the first time, and those above it again.
        """
        blocks = self.blocks
        buffer = self.kept[genes].flatten(0, 1) if layer == 0 and self.kept is not None else None
        if buffer is not None and not new:
            return buffer
        above = layer + 1
        # recursion towards the last layer, block by block: what is not kept is computed again here
        grad, inputs = self._of_values(genes, above), blocks.inputs(genes, above)
        if new:
            self.weights[above] = blocks.add_product(self.weights[above], grad.t(), inputs)
        below = blocks.product(grad, blocks.layers[above].weight, buffer)
        # the gradient where the ReLU's output is positive, in place
        return torch.ops.aten.threshold_backward.grad_input(below, inputs, 0, grad_input=below)

    def _of_values(self, genes: slice, layer: int) -> Tensor:
        """Gradient of a layer's values v_k, (rows, out): through its norm, statistics included."""
        blocks = self.blocks
        if layer == len(blocks.layers) - 1:
            # (N, U, K) as a product of (N, U, 1) and (N, 1, K): the gradient of all rows never exists at once
            grad_NUK = self.grad_GU[genes].unsqueeze(-1) * blocks.scaled_GH[genes].unsqueeze(1)
        else:
            # in place: a kept gradient is read once only
            grad_NUK = blocks.by_condition(self._of_output(genes, layer).mul_(blocks.norms[layer][0]))
        value_NUK = blocks.by_condition(blocks.values(genes, layer))
        return self.norm_terms[layer].subtract_from(grad_NUK, value_NUK).flatten(0, 1)


class BufferPool:
    """Lends uninitialised tensors and takes them back.

    Allocating a tensor of some MiB in each step costs as much in fresh memory pages as the arithmetic on it. A buffer
    that is never given back is simply forgotten. Copies of a network and other processes begin with an empty pool.
    """

    def __init__(self) -> None:
        self._free: list[Tensor] = []  # flat, the smallest first

    def take(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """A tensor of a shape, with the dtype and device of another one; its values are arbitrary."""
        size = math.prod(shape)
        for position, flat in enumerate(self._free):
            if flat.numel() >= size and flat.dtype == like.dtype and flat.device == like.device:
                return self._free.pop(position)[:size].view(shape)
        if self._free:
            self._free.pop()  # too small: a larger one takes its place, so that the pool does not hold both
        return torch.empty(size, dtype=like.dtype, device=like.device).view(shape)

    def give(self, tensor: Tensor) -> None:
        """Take back a tensor that :meth:`take` lent and that nothing reads any more."""
        buffer = tensor._base if tensor._base is not None else tensor.flatten()
        self._free.append(buffer)
        # the smallest that fits is lent; beyond MOST_HELD the smallest go, because the largest cost most to allocate
        self._free.sort(key=torch.numel)
        del self._free[:-MOST_HELD]

    def clear(self) -> None:
        """Free all buffers."""
        self._free.clear()

    def __deepcopy__(self, memo: dict[int, Any]) -> BufferPool:
        return BufferPool()

    def __reduce__(self) -> tuple[type[BufferPool], tuple[()]]:
        return BufferPool, ()


def share_of_all(weights: Weights, n_rows: int, moments: Moments, reducer: Reducer) -> Tensor:
    """Part of the rows of all workers that a single row of each condition is, (U,): weight_u / N."""
    if reducer.world_size == 1:
        return weights.share_U if n_rows == 1 else weights.share_U / n_rows
    return weights.share_U * (weights.n_cells / moments.n_rows.clamp(min=1))


def summed(one_H: Tensor, other_H: Tensor, reducer: Reducer) -> Sequence[Tensor]:
    """Sums of two vectors over all workers, in one collective; the vectors themselves where there is one worker."""
    return (one_H, other_H) if reducer.world_size == 1 else reducer.sum(torch.stack([one_H, other_H])).unbind()


def condition_moments(rows_LUH: Tensor) -> tuple[Tensor, Tensor | None]:
    """Mean and variance over the L rows of every condition, each (U, H); no variance where there is one row."""
    n_rows, n_conditions, n_features = rows_LUH.shape
    if n_rows == 1:
        return rows_LUH[0], None
    if rows_LUH.numel() == 0:
        return rows_LUH.new_zeros(n_conditions, n_features), None
    # as a matrix (L, U H) its columns are single features of single conditions, whose moments torch's batch norm kernel
    # computes while it reads the rows once (several times faster than torch.var_mean over the first axis)
    mean, var = torch.batch_norm_update_stats(rows_LUH.reshape(n_rows, -1), None, None, 0.0)
    return mean.view(n_conditions, n_features), var.view(n_conditions, n_features)


def column_sums(grad: Tensor, rows: Tensor, mean_K: Tensor) -> tuple[Tensor, Tensor]:
    """Sums over rows, (L, K), of a gradient, and of its product with the centred rows, (K,) each.

    The backward kernel of a batch norm with fixed statistics (mean, variance 1) computes both while it reads the rows
    once. The CPU kernel takes the running statistics, the CUDA kernel the saved ones, so both are given.
    """
    one_K = torch.ones_like(mean_K)
    _, products_K, sums_K = torch.ops.aten.native_batch_norm_backward(
        grad, rows, one_K, mean_K, one_K, mean_K, one_K, False, 0.0, [False, True, True]
    )
    return sums_K, products_K
