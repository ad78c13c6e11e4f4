"""Batch norm over weighted rows and over all workers.

Rows are a tensor (L, U, H): U conditions, each with L rows (genes; 1 for layers whose rows are conditions) of H
features. A condition is computed once, however many cells it has, so row (l, u) counts weight_u times, the number of
its cells. With N = L sum_u weight_u, summed over all workers,

    mean   = sum_lu weight_u x_lu / N
    var    = sum_lu weight_u (x_lu - mean)^2 / N
    out_lu = beta + gamma y_lu,    y_lu = (x_lu - mean) / sqrt(var + eps)

and, because each row moves mean and var,

    dL/dx_lu = gamma / sqrt(var + eps) * (g_lu - weight_u / N * (sum g + y_lu sum (g y))),    g = dL/dout

where both sums run over the rows of all workers and need no weight: g of condition u is already summed over its cells.
Forward costs one gather (N, mean and squares of each worker), backward one sum over workers; in evaluation this is
plain batch norm without communication. The plain version repeats each row weight_u times and calls torch's
``BatchNorm1d`` (``tests/model/test_model_batchnorm.py``). Parameters and buffers have the names of ``BatchNorm1d``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gears.distributed.world import IDENTITY, Reducer


class WeightedBatchNorm(nn.Module):
    """Batch norm of H features whose rows carry weights; `eps` and `momentum` as in torch's ``BatchNorm1d``."""

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.register_buffer("num_batches_tracked", torch.tensor(0, dtype=torch.long))

    def forward(
        self,
        rows: Tensor,
        weight: Tensor | None = None,
        count: Tensor | float | None = None,
        reducer: Reducer = IDENTITY,
        *,
        relu: bool = False,
    ) -> Tensor:
        """Normalise rows, and apply a ReLU if `relu`.

        Parameters
        ----------
        rows
            (U, H), or (G, U, H) for layers over genes and conditions.
        weight
            (U,) number of cells of each condition on this worker. None: all
            rows count once and are the same on every worker (no collective).
        count
            Number of rows for the running variance's N/(N-1) where it is not
            the sum of weights (the trunk: cells times genes).
        reducer
            Sums over workers; used in training and with weights only.
        relu
            Fused here because it saves a pass over the largest tensors.
        """
        if not self.training:  # fixed statistics: no weights, no collective
            flat, mean_H, var_H = rows.reshape(-1, self.num_features), self.running_mean, self.running_var
            out = F.batch_norm(flat, mean_H, var_H, self.weight, self.bias, False, self.momentum, self.eps)
            out = out.reshape(rows.shape)
            return F.relu(out) if relu else out
        if weight is None:
            rows_LUH, weight, reducer = rows.reshape(-1, 1, self.num_features), rows.new_ones(1), IDENTITY
        else:
            rows_LUH = rows if rows.ndim == 3 else rows.unsqueeze(0)
        # counts and sums in the type of the statistics: float16 counts to 2,048 only
        weight = weight.to(statistics_dtype(rows.dtype))
        out, mean_H, var_H, n_rows = _NormaliseRows.apply(
            rows_LUH, self.weight, self.bias, weight, self.eps, relu, reducer
        )
        if count is not None:
            n_rows = torch.as_tensor(count, dtype=n_rows.dtype, device=n_rows.device)
        self.track(Moments(mean_H, var_H, n_rows))
        return out.reshape(rows.shape)

    def outer_sum(
        self, base_GH: Tensor, effect_UH: Tensor, weight_U: Tensor, reducer: Reducer = IDENTITY
    ) -> Tensor:
        """ReLU of the normalised sums ``base[g] + effect[u]`` of all genes and conditions, (G, U, H).

        Over all pairs (g, u) the two terms are independent, so mean and variance of the sum are the sums of means and
        variances: the statistics cost G + U rows instead of G x U, and the terms are normalised before they are added.
        `base_GH` is equal on all workers.
        """
        base_GH, effect_UH = self.outer_terms(base_GH, effect_UH, weight_U, reducer)
        return (base_GH.unsqueeze(1) + effect_UH).relu_()

    def outer_terms(
        self, base_GH: Tensor, effect_UH: Tensor, weight_U: Tensor, reducer: Reducer = IDENTITY
    ) -> tuple[Tensor, Tensor]:
        """Terms whose sums are the normalised sums of :meth:`outer_sum`, (G, H) and (U, H)."""
        dtype = base_GH.dtype
        exact = statistics_dtype(dtype)
        with torch.autocast(base_GH.device.type, enabled=False):
            base_GH, effect_UH = base_GH.to(exact), effect_UH.to(exact)
            if self.training:
                base_var_H, base_mean_H = torch.var_mean(base_GH, dim=0, correction=0)
                effect_mean_H, effect_var_H, cells = GlobalMoments.apply(
                    effect_UH.unsqueeze(0), weight_U.to(exact), reducer
                )
                mean_H, var_H = base_mean_H + effect_mean_H, base_var_H + effect_var_H
                self.track(Moments(mean_H.detach(), var_H.detach(), cells * base_GH.shape[0]))
            else:
                mean_H, var_H = self.running_mean, self.running_var
            scale_H = self.weight * torch.rsqrt(var_H + self.eps)
            base_GH = torch.addcmul(self.bias, base_GH - mean_H, scale_H).to(dtype)
            return base_GH, (effect_UH * scale_H).to(dtype)

    @torch.no_grad()
    def track(self, moments: Moments, shift_H: Tensor | float = 0.0) -> None:
        """Update the running statistics; without any row they stay unchanged.

        `shift_H` is a constant that was subtracted from every row before the moments were computed.
        """
        n_rows = moments.n_rows
        has_rows = (n_rows > 0).to(self.running_mean.dtype)
        step = self.momentum * has_rows
        unbiased_H = moments.var_H * (n_rows / (n_rows - 1).clamp(min=1))
        self.running_mean += step * (moments.mean_H + shift_H - self.running_mean)
        self.running_var += step * (unbiased_H - self.running_var)
        self.num_batches_tracked += (n_rows > 0).to(torch.long)

    def extra_repr(self) -> str:
        """Shown by ``print(network)``."""
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}"


class _NormaliseRows(torch.autograd.Function):
    """Weighted, global batch norm of rows (L, U, H), with an optional ReLU."""

    @staticmethod
    def forward(
        ctx: Any,
        rows_LUH: Tensor,
        gamma_H: Tensor,
        beta_H: Tensor,
        weight_U: Tensor,
        eps: float,
        relu: bool,
        reducer: Reducer,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        with torch.autocast(rows_LUH.device.type, enabled=False):
            exact_LUH = rows_LUH.to(weight_U.dtype)
            moments = merged_moments(exact_LUH, weight_U, reducer)
            inverse_H = torch.rsqrt(moments.var_H + eps)
            # out = beta + gamma (x - mean) / s.d. as one multiplication and addition per value
            scale_H = gamma_H * inverse_H
            out = torch.addcmul(beta_H - moments.mean_H * scale_H, exact_LUH, scale_H).to(rows_LUH.dtype)
            if relu:
                out.relu_()
        ctx.save_for_backward(
            rows_LUH, gamma_H, weight_U, moments.mean_H, inverse_H, moments.n_rows, out if relu else None
        )
        ctx.reducer = reducer
        ctx.mark_non_differentiable(*moments)
        return (out, *moments)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_LUH: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        rows_LUH, gamma_H, weight_U, mean_H, inverse_H, count, relu_out = ctx.saved_tensors
        with torch.autocast(rows_LUH.device.type, enabled=False):
            if relu_out is not None:
                grad_LUH = torch.ops.aten.threshold_backward(grad_LUH, relu_out, 0)
            rows, grad = rows_LUH.to(weight_U.dtype), grad_LUH.to(weight_U.dtype)
            sums_UH, products_UH = condition_products(grad, rows, mean_H)
            # the parameters' gradients stay local, since DDP averages them later; those of the rows need the sums over
            # all workers, because each row moves the statistics of every worker
            grad_beta_H, grad_gamma_H = sums_UH.sum(0), products_UH.sum(0) * inverse_H
            sums_2H = ctx.reducer.sum(torch.stack([grad_beta_H, grad_gamma_H]))
            scale_H = gamma_H * inverse_H
            terms = NormTerms.of(mean_H, count, inverse_H, scale_H, sums_2H, weight_U)
            # a gradient that a conversion or the ReLU has just made is overwritten: one tensor of this size less
            may_overwrite = relu_out is not None or grad is not grad_LUH
            grad = grad.mul_(scale_H) if may_overwrite else grad * scale_H
            grad_rows = terms.subtract_from(grad, rows)
        return grad_rows.to(rows_LUH.dtype), grad_gamma_H, grad_beta_H, None, None, None, None


class Moments(NamedTuple):
    """Weighted moments over the rows of all workers."""

    mean_H: Tensor
    var_H: Tensor  # divided by the number of rows
    n_rows: Tensor  # (), number of rows: sum of weights times L


class NormTerms(NamedTuple):
    """What a batch norm's gradient has beside ``scale * gradient``, because each row moves the statistics.

    With sums over all rows of all workers (N rows, condition u counted weight_u times), x the input and y its
    normalised value,

        dL/dx = scale * dL/dout  -  weight_u / N * scale * (sum dL/dout + y * sum (dL/dout * y))

    The second term is affine in x: ``slope * x + offset``, (U, H) each.
    """

    slope: Tensor
    offset: Tensor

    @classmethod
    def of(
        cls,
        mean_H: Tensor,
        n_rows: Tensor,
        inverse_H: Tensor,
        scale_H: Tensor,
        sums_2H: Tensor,
        weight_U: Tensor,
    ) -> NormTerms:
        """From sums over all workers: of the output's gradient, and of its product with the normalised input."""
        share_U1 = (weight_U / n_rows.clamp(min=torch.finfo(n_rows.dtype).tiny)).unsqueeze(-1)
        slope_UH = share_U1 * scale_H * inverse_H * sums_2H[1]
        return cls(slope_UH, share_U1 * scale_H * sums_2H[0] - slope_UH * mean_H)

    def subtract_from(self, grad_NUH: Tensor, value_NUH: Tensor) -> Tensor:
        """Subtract the term from a gradient, in place."""
        return grad_NUH.addcmul_(value_NUH, self.slope, value=-1).sub_(self.offset)


def statistics_dtype(dtype: torch.dtype) -> torch.dtype:
    """Type of the statistics: float64 for float64 rows, else float32, also under autocast."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def merged_moments(rows_LUH: Tensor, weight_U: Tensor, reducer: Reducer) -> Moments:
    """Mean and variance of weighted rows over all workers (Chan, Golub, LeVeque 1979).

    One gather of (number of rows, mean, sum of squared deviations). Means and squared deviations are merged instead of
    sums of x and x^2, whose difference would lose digits where the mean is large. A worker without rows, or with
    weights 0, contributes nothing; without any row on any worker the moments are 0.
    """
    return merged(*condition_moments(rows_LUH), rows_LUH.shape[0], weight_U, reducer)


def merged(mean_UH: Tensor, squares_UH: Tensor, n_rows: int, weight_U: Tensor, reducer: Reducer) -> Moments:
    """:func:`merged_moments` from each condition's mean and squared deviations over its `n_rows` rows, (U, H) each."""
    # merged twice by the same formula: conditions of this worker (weights weight_u n_rows), then workers (weights
    # count_w)
    total = weight_U.sum()
    mean_H = (weight_U @ mean_UH) / _positive(total)
    squares_H = weight_U @ (squares_UH + n_rows * (mean_UH - mean_H).square())
    # one collective for all three
    local = torch.cat([(total * n_rows).reshape(1), mean_H, squares_H])
    workers = reducer.gather(local)

    n_features = mean_UH.shape[-1]
    count_W1, mean_WH, squares_WH = workers.split([1, n_features, n_features], dim=1)
    count = count_W1.sum()
    mean_H = (count_W1 * mean_WH).sum(0) / _positive(count)
    squares_H = (squares_WH + count_W1 * (mean_WH - mean_H).square()).sum(0)
    return Moments(mean_H, squares_H / _positive(count), count)


def condition_moments(rows_LUH: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and sum of squared deviations over the L rows of every condition, each (U, H)."""
    n_rows, n_conditions, n_features = rows_LUH.shape
    shape = (n_conditions, n_features)
    if n_rows == 1 or rows_LUH.numel() == 0:
        mean = rows_LUH[0] if n_rows == 1 else rows_LUH.new_zeros(shape)
        return mean, torch.zeros_like(mean)
    # as a matrix (L, U H) its columns are single features of single conditions, whose moments torch's batch norm kernel
    # computes while it reads the rows once (several times faster than torch.var_mean over the first axis)
    columns = rows_LUH.reshape(n_rows, -1)
    mean, var = torch.batch_norm_update_stats(columns, None, None, 0.0)
    return mean.reshape(shape), (var * n_rows).reshape(shape)


def condition_products(grad_LUH: Tensor, rows_LUH: Tensor, mean_H: Tensor) -> tuple[Tensor, Tensor]:
    """Sums over the L rows of ``grad`` and of ``grad * (rows - mean)``, each (U, H)."""
    n_rows, n_conditions, n_features = rows_LUH.shape
    shape = (n_conditions, n_features)
    if n_rows == 1 or rows_LUH.numel() == 0:
        return grad_LUH.sum(0), (grad_LUH * (rows_LUH - mean_H)).sum(0)
    # columns (L, U H), as in condition_moments
    sums, products = column_sums(
        grad_LUH.reshape(n_rows, -1), rows_LUH.reshape(n_rows, -1), mean_H.repeat(n_conditions)
    )
    return sums.reshape(shape), products.reshape(shape)


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


class GlobalMoments(torch.autograd.Function):
    """Differentiable :func:`merged_moments`; the backward is one sum over workers."""

    @staticmethod
    def forward(
        ctx: Any, rows_LUH: Tensor, weight_U: Tensor, reducer: Reducer
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Mean (H,), variance (H,) and number of rows ()."""
        with torch.autocast(rows_LUH.device.type, enabled=False):
            moments = merged_moments(rows_LUH, weight_U, reducer)
        ctx.save_for_backward(rows_LUH, weight_U, moments.mean_H, moments.n_rows)
        ctx.reducer = reducer
        ctx.mark_non_differentiable(moments.n_rows)
        return moments

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_mean_H: Tensor, grad_var_H: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
        """Gradient of the rows, (L, U, H); every worker's loss depends on every worker's rows.

        dL/dx_lu = weight_u / N * (dL/dmean + 2 (x_lu - mean) dL/dvar), with gradients summed over workers.
        """
        rows_LUH, weight_U, mean_H, count = ctx.saved_tensors
        grad_mean_H, grad_var_H = ctx.reducer.sum(torch.stack([grad_mean_H, grad_var_H]))
        share_U1 = (weight_U / _positive(count)).unsqueeze(-1)
        return share_U1 * (grad_mean_H + 2 * (rows_LUH - mean_H) * grad_var_H), None, None


def _positive(count: Tensor) -> Tensor:
    """`count` as a divisor: 1 where it is 0 (the dividend is 0 there as well)."""
    return torch.where(count > 0, count, torch.ones_like(count))
