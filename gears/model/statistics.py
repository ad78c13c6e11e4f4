"""Moments of weighted rows, merged over workers; the arithmetic beneath the batch norm.

Rows come as a tensor (L, U, H): U conditions, each with L rows (genes; 1 for
layers whose rows are conditions) of H features. Condition u counts `weight[u]`
times, which is the number of cells that carry it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gears.model.reducer import Reducer


class Moments(NamedTuple):
    """Weighted moments over the rows of all workers."""

    mean_H: Tensor
    var_H: Tensor  # divided by the number of rows
    n_rows: Tensor  # (), number of rows: sum of weights times L


def statistics_dtype(dtype: torch.dtype) -> torch.dtype:
    """Statistics are float64 for float64 rows and float32 for all others, autocast ones included."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def merged_moments(rows_LUH: Tensor, weight_U: Tensor, reducer: Reducer) -> Moments:
    """Mean and variance of weighted rows over all workers (Chan, Golub, LeVeque 1979).

    One gather of (number of rows, mean, sum of squared deviations). A worker
    without rows, or with weights 0, contributes nothing; without any row at
    all the moments are 0.
    """
    return merged(*condition_moments(rows_LUH), rows_LUH.shape[0], weight_U, reducer)


def merged(mean_UH: Tensor, squares_UH: Tensor, n_rows: int, weight_U: Tensor, reducer: Reducer) -> Moments:
    """:func:`merged_moments` from each condition's mean and squared deviations over its `n_rows` rows."""
    total = weight_U.sum()
    mean_H = (weight_U @ mean_UH) / _positive(total)
    squares_H = weight_U @ (squares_UH + n_rows * (mean_UH - mean_H).square())
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
    # conditions and features side by side are the columns of one matrix, whose moments torch's
    # own batch norm kernel takes in a single call (several times faster than torch.var_mean)
    columns = rows_LUH.reshape(n_rows, -1)
    mean, var = torch.batch_norm_update_stats(columns, None, None, 0.0)
    return mean.reshape(shape), (var * n_rows).reshape(shape)


def condition_products(grad_LUH: Tensor, rows_LUH: Tensor, mean_H: Tensor) -> tuple[Tensor, Tensor]:
    """Sums over the L rows of ``grad`` and of ``grad * (rows - mean)``, each (U, H)."""
    n_rows, n_conditions, n_features = rows_LUH.shape
    shape = (n_conditions, n_features)
    if n_rows == 1 or rows_LUH.numel() == 0:
        return grad_LUH.sum(0), (grad_LUH * (rows_LUH - mean_H)).sum(0)
    columns, mean = rows_LUH.reshape(n_rows, -1), mean_H.repeat(n_conditions)
    # backward kernel of a batch norm with fixed statistics (mean, variance 1): both sums in one pass
    # over memory; the CPU kernel reads the running statistics, the CUDA kernel the saved ones
    one = torch.ones_like(mean)
    _, products, sums = torch.ops.aten.native_batch_norm_backward(
        grad_LUH.reshape(n_rows, -1), columns, one, mean, one, mean, one, False, 0.0, [False, True, True]
    )
    return sums.reshape(shape), products.reshape(shape)


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
        """Every worker's loss depends on every worker's rows."""
        rows_LUH, weight_U, mean_H, count = ctx.saved_tensors
        grad_mean_H, grad_var_H = ctx.reducer.sum(torch.stack([grad_mean_H, grad_var_H]))
        share_U1 = (weight_U / _positive(count)).unsqueeze(-1)
        return share_U1 * (grad_mean_H + 2 * (rows_LUH - mean_H) * grad_var_H), None, None


def _positive(count: Tensor) -> Tensor:
    """`count` as a divisor: 1 where it is 0 (what is divided is 0 there as well)."""
    return torch.where(count > 0, count, torch.ones_like(count))
