"""How the conditions of a global batch are divided over workers, and what their layers exchange.

Everything that depends on conditions alone, a few vectors of H numbers each, is computed by every worker for all
conditions of the global batch: its norms then need no collective, forward or backward. What depends on genes as well is
computed by the worker that has the condition's cells. With the layers of :class:`gears.model.network.GEARSNetwork` a
step has, without uncertainty,

    2 gathers, 2 sums     the norms of ``recovery_w``, one after the other: each needs the one before
    1 gather, 1 sum       the inputs of the norms of ``cross_gene_state``, (U, H) of each worker (:func:`gathered`)
    1 sum                 all gradients

The norms depend on each other in this order, so fewer collectives are possible only by computing rows twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from gears.distributed._world import Reducer
from gears.model._batchnorm import statistics_dtype


@dataclass(frozen=True)
class Division:
    """Which conditions of the global batch each worker computes; the same on all workers."""

    rows_WU: Tensor
    """(W, U) int64 rows of the global batch's conditions; U is the largest number of any worker. Padding is 0."""
    weight_WU: Tensor  # (W, U) cells of the condition on that worker; 0 for padding
    sizes: tuple[int, ...]  # number of conditions of each worker
    reducer: Reducer  # sums over workers, and this worker's rank

    @property
    def own_rows(self) -> Tensor:
        """Rows of this worker's conditions, (n,)."""
        return self.rows_WU[self.reducer.rank, : self.sizes[self.reducer.rank]]

    @property
    def own_weight(self) -> Tensor:
        """Cells of this worker's conditions, (n,)."""
        return self.weight_WU[self.reducer.rank, : self.sizes[self.reducer.rank]]

    def gathered(self, values_UH: Tensor) -> Tensor:
        """Rows of all workers, (W U, H), from this worker's; differentiable."""
        values_UH = values_UH.to(statistics_dtype(values_UH.dtype))
        return _Gathered.apply(values_UH, self.rows_WU.shape[1], self.reducer)

    def own(self, rows_WUH: Tensor) -> Tensor:
        """This worker's rows of those of all workers, (n, H)."""
        start = self.reducer.rank * self.rows_WU.shape[1]
        return rows_WUH[start : start + self.sizes[self.reducer.rank]]


class _Gathered(torch.autograd.Function):
    """Rows of all workers; the gradient of a row is the sum of what it has on every worker."""

    @staticmethod
    def forward(ctx: Any, values_UH: Tensor, n_rows: int, reducer: Reducer) -> Tensor:
        ctx.n_own, ctx.n_rows, ctx.reducer = len(values_UH), n_rows, reducer
        return reducer.gather(F.pad(values_UH, (0, 0, 0, n_rows - len(values_UH)))).flatten(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        start = ctx.reducer.rank * ctx.n_rows
        return ctx.reducer.sum(grad)[start : start + ctx.n_own], None, None
