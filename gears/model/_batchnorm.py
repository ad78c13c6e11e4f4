"""Batch norm over weighted rows.

Rows are a tensor (L, U, H): U conditions, each with L rows (genes in :mod:`gears.model._blockwise`, else 1) of H
features. A condition is computed once, however many cells it has, so row (l, u) counts weight_u times, the number of
its cells. With N = L sum_u weight_u, summed over all workers,

    mean   = sum_lu weight_u x_lu / N
    var    = sum_lu weight_u (x_lu - mean)^2 / N
    out_lu = beta + gamma y_lu,    y_lu = (x_lu - mean) / sqrt(var + eps)

and, because each row moves mean and var,

    dL/dx_lu = gamma / sqrt(var + eps) * (g_lu - weight_u / N * (sum g + y_lu sum (g y))),    g = dL/dout

where both sums run over the rows of all workers and need no weight: g of condition u is already summed over its cells.
Every worker computes the rows of all conditions, so that :class:`WeightedBatchNorm` needs no communication. Rows of
genes and conditions are divided over workers; there (:mod:`gears.model._blockwise`) forward costs one gather (N, mean
and variance of each worker, :func:`merged`), backward one sum. The plain version repeats each row weight_u times and
calls torch's ``BatchNorm1d`` (``tests/model/test_model_batchnorm.py``), whose names parameters and buffers have.

On a GPU the number of operators is what a step costs, not the arithmetic on vectors of H numbers: weights are divided
by their sum once for all norms (:class:`Weights`), and the running statistics of all norms of a network change in one
go (:func:`track`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gears.distributed._world import IDENTITY, Reducer


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
        self.shifts_all = False  # whether what follows takes a shift out again: then the bias takes no part in training
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.register_buffer("num_batches_tracked", torch.tensor(0, dtype=torch.long))

    def forward(
        self,
        rows: Tensor,
        weight: Weights | Tensor | None = None,
        count: Tensor | float | None = None,
        *,
        relu: bool = False,
        notes: list[Note] | None = None,
        shift: Tensor | None = None,
    ) -> Tensor:
        """Normalise rows, and apply a ReLU if `relu`.

        `rows`: (U, H).
        `weight`: (U,) number of cells of each condition. None: all rows count once.
        `count`: number of rows for the running variance's N/(N-1) where it is not the sum of weights (the trunk: cells
            times genes).
        `relu`: fused here because it saves a pass over the largest tensors.
        `notes`: list to which the moments are added for a later :func:`track`; None: the running statistics change now.
        `shift`: constant that was not added to the rows, because the norm takes it out again.
        """
        if not self.training:  # fixed statistics: no weights
            flat, mean_H, var_H = rows.reshape(-1, self.num_features), self.running_mean, self.running_var
            out = F.batch_norm(flat, mean_H, var_H, self.weight, self.bias, False, self.momentum, self.eps)
            out = out.reshape(rows.shape)
            return F.relu(out) if relu else out
        exact = statistics_dtype(rows.dtype)  # of counts and sums too: float16 counts to 2,048 only
        if weight is None:
            out, mean_H, var_H = self._plain(rows, exact)
            out = F.relu(out) if relu else out
        else:
            weights = weight if isinstance(weight, Weights) else Weights.of(weight.to(exact))
            out, mean_H, var_H, n_rows = _NormaliseRows.apply(rows, self.weight, self.bias, weights, self.eps, relu)
            count = n_rows if count is None else count
        if not isinstance(count, Tensor):
            n_all = float(rows.numel() // self.num_features if count is None else count)
            count = torch.full((), n_all, dtype=exact, device=rows.device)
        self._note(Note(self, Moments(mean_H, var_H, count), shift), notes)
        return out

    @staticmethod
    def _note(note: Note, notes: list[Note] | None) -> None:
        if notes is None:
            track([note])
        else:
            notes.append(note)

    def _plain(self, rows: Tensor, exact: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """Torch's own batch norm of rows that count once, with their mean and variance."""
        with torch.autocast(rows.device.type, enabled=False):
            out, mean_H, inverse_H = torch.native_batch_norm(
                rows.reshape(-1, self.num_features).to(exact),
                self.weight, self.bias.detach() if self.shifts_all else self.bias, None, None, True, 0.0, self.eps,
            )  # fmt: skip
            var_H = inverse_H.detach().pow(-2).sub_(self.eps)
        return out.reshape(rows.shape).to(rows.dtype), mean_H.detach(), var_H

    def outer_terms(
        self, base_GH: Tensor, effect_UH: Tensor, weight: Weights | Tensor, notes: list[Note] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Terms (G, H) and (U, H) whose sums are the normalised sums ``base[g] + effect[u]``, in training mode.

        Over all pairs (g, u) the two terms are independent, so mean and variance of the sum are the sums of means and
        variances: the statistics cost G + U rows instead of G x U, and the terms are normalised before they are added.
        """
        dtype = base_GH.dtype
        exact = statistics_dtype(dtype)
        with torch.autocast(base_GH.device.type, enabled=False):
            base_GH, effect_UH = base_GH.to(exact), effect_UH.to(exact)
            weights = weight if isinstance(weight, Weights) else Weights.of(weight.to(exact))
            base_GH, effect_UH, *statistics = _OuterTerms.apply(
                base_GH, effect_UH, self.weight, self.bias, weights, self.eps
            )
            self._note(Note(self, Moments(*statistics), None), notes)
            return base_GH.to(dtype), effect_UH.to(dtype)

    def extra_repr(self) -> str:
        """Shown by ``print(network)``."""
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}"


class Weights(NamedTuple):
    """How often the rows of each condition count; made once for all norms of a step."""

    share_U: Tensor  # (U,) part of all cells, of those of a worker where rows are divided; all 0 without any
    n_cells: Tensor  # ()

    @classmethod
    def of(cls, weight_U: Tensor) -> Weights:
        """From numbers of cells, (U,)."""
        n_cells = weight_U.sum()
        return cls(weight_U / n_cells.clamp(min=1), n_cells)


class Moments(NamedTuple):
    """Weighted moments over the rows of all workers."""

    mean_H: Tensor
    var_H: Tensor  # divided by the number of rows
    n_rows: Tensor  # (), number of rows: sum of weights times L


class Note(NamedTuple):
    """Moments that a norm's running statistics are to follow, and what was not added to its rows, or None."""

    norm: WeightedBatchNorm
    moments: Moments
    shift_H: Tensor | None


@torch.no_grad()
def track(notes: Sequence[Note]) -> None:
    """Update the running statistics of several norms; those of a norm without any row stay unchanged.

    running += momentum (new - running) for all of them at once: vectors one after the other, then back.
    """
    norms, moments = [note.norm for note in notes], [note.moments for note in notes]
    means, widths = [each.mean_H for each in moments], [norm.num_features for norm in norms]
    shifts = {place: note.shift_H for place, note in enumerate(notes) if note.shift_H is not None}
    if shifts:
        sums = torch._foreach_add([means[place] for place in shifts], list(shifts.values()))
        for place, mean_H in zip(shifts, sums, strict=True):
            means[place] = mean_H
    n_K = torch.stack([each.n_rows for each in moments])
    has_rows_K = n_K > 0
    factors_2K = torch.stack([n_K / (n_K - 1).clamp_(min=1), has_rows_K.to(n_K.dtype) * norms[0].momentum])
    columns = zip(factors_2K.unbind(1), widths, strict=True)
    unbiased_F, step_F = torch.cat([pair_2.unsqueeze(1).expand(2, width) for pair_2, width in columns], dim=1)
    new_2F = torch.cat([*means, *(each.var_H for each in moments)]).view(2, -1)
    new_2F[1] *= unbiased_F
    buffers = [*(norm.running_mean for norm in norms), *(norm.running_var for norm in norms)]
    running_2F = torch.cat(buffers).view(2, -1).lerp_(new_2F, step_F)
    torch._foreach_copy_(buffers, running_2F.view(-1).split(widths * 2))
    counts = [norm.num_batches_tracked for norm in norms]
    torch._foreach_copy_(counts, (torch.stack(counts) + has_rows_K).unbind())


class _NormaliseRows(torch.autograd.Function):
    """Weighted batch norm of rows (U, H), with an optional ReLU."""

    @staticmethod
    def forward(
        ctx: Any, rows_UH: Tensor, gamma_H: Tensor, beta_H: Tensor, weights: Weights, eps: float, relu: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        with torch.autocast(rows_UH.device.type, enabled=False):
            exact_UH = rows_UH.to(weights.share_U.dtype)
            moments = merged(exact_UH, None, 1, weights)
            inverse_H = torch.rsqrt(moments.var_H + eps)
            # out = beta + gamma (x - mean) / s.d. as one multiplication and addition per value
            scale_H = gamma_H * inverse_H
            shift_H = torch.addcmul(beta_H, moments.mean_H, scale_H, value=-1)
            out = torch.addcmul(shift_H, exact_UH, scale_H).to(rows_UH.dtype)
            if relu:
                out.relu_()
        ctx.save_for_backward(rows_UH, scale_H, weights.share_U, moments.mean_H, inverse_H, out if relu else None)
        ctx.mark_non_differentiable(*moments)
        return (out, *moments)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_UH: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        rows_UH, scale_H, share_U, mean_H, inverse_H, relu_out = ctx.saved_tensors
        with torch.autocast(rows_UH.device.type, enabled=False):
            if relu_out is not None:
                grad_UH = torch.ops.aten.threshold_backward(grad_UH, relu_out, 0)
            rows, grad = rows_UH.to(share_U.dtype), grad_UH.to(share_U.dtype)
            grad_beta_H = grad.sum(0)
            grad_gamma_H = (grad * (rows - mean_H)).sum(0) * inverse_H
            terms = NormTerms.of(mean_H, inverse_H, scale_H, (grad_beta_H, grad_gamma_H), share_U)
            # a gradient that a conversion or the ReLU has just made is overwritten: one tensor of this size less
            may_overwrite = relu_out is not None or grad is not grad_UH
            grad = grad.mul_(scale_H) if may_overwrite else grad * scale_H
            grad_rows = terms.subtract_from(grad, rows)
        return grad_rows.to(rows_UH.dtype), grad_gamma_H, grad_beta_H, None, None, None


class _OuterTerms(torch.autograd.Function):
    """Normalised terms of ``base[g] + effect[u]`` (see :meth:`WeightedBatchNorm.outer_terms`)."""

    @staticmethod
    def forward(
        ctx: Any, base_GH: Tensor, effect_UH: Tensor, gamma_H: Tensor, beta_H: Tensor, weights: Weights, eps: float
    ) -> tuple[Tensor, ...]:
        n_genes = len(base_GH)
        base_var_H, base_mean_H = torch.var_mean(base_GH, dim=0, correction=0)
        effects = merged(effect_UH, None, 1, weights)
        mean_H, var_H = base_mean_H + effects.mean_H, base_var_H + effects.var_H
        inverse_H = torch.rsqrt(var_H + eps)
        scale_H = gamma_H * inverse_H
        centred_GH = base_GH - mean_H
        ctx.save_for_backward(centred_GH, effect_UH, scale_H, inverse_H, weights.share_U, effects.mean_H)
        statistics = (mean_H, var_H, effects.n_rows * n_genes)
        ctx.mark_non_differentiable(*statistics)
        return torch.addcmul(beta_H, centred_GH, scale_H), effect_UH * scale_H, *statistics

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_base_GH: Tensor, grad_effect_UH: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        """Through scale and mean to the moments, and from them to the rows.

        dL/dbase_g = scale dL/dout_g + (dL/dmean + 2 (base_g - mean of base) dL/dvar) / G, with base's own share of the
        gradients of the moments, and dL/deffect_u likewise, with share_u.
        """
        centred_GH, effect_UH, scale_H, inverse_H, share_U, effect_mean_H = ctx.saved_tensors
        grad_beta_H = grad_base_GH.sum(0)
        grad_scale_H = (grad_base_GH * centred_GH).sum(0) + (grad_effect_UH * effect_UH).sum(0)
        grad_gamma_H = grad_scale_H * inverse_H
        # dscale/dvar = -scale inverse^2 / 2: `half` is -1/2 dL/dvar
        grad_mean_H, half_H = -grad_beta_H * scale_H, grad_gamma_H * scale_H * inverse_H
        n_genes = len(centred_GH)
        grad_base_GH = torch.addcmul(grad_mean_H / n_genes, grad_base_GH, scale_H)
        grad_base_GH.addcmul_(centred_GH + effect_mean_H, half_H, value=-1 / n_genes)
        moved_UH = torch.addcmul(grad_mean_H, effect_UH - effect_mean_H, half_H, value=-1)
        grad_effect_UH = torch.addcmul(grad_effect_UH * scale_H, share_U.unsqueeze(1), moved_UH)
        return grad_base_GH, grad_effect_UH, grad_gamma_H, grad_beta_H, None, None


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
        cls, mean_H: Tensor, inverse_H: Tensor, scale_H: Tensor, sums: Sequence[Tensor], share_U: Tensor
    ) -> NormTerms:
        """From sums over all workers: of the output's gradient, and of its product with the normalised input.

        `share_U` is a row's part of all rows (:func:`share_of_all`).
        """
        slope_H = scale_H * inverse_H * sums[1]
        offset_H = torch.addcmul(scale_H * sums[0], slope_H, mean_H, value=-1)
        share_U1 = share_U.unsqueeze(-1)
        return cls(share_U1 * slope_H, share_U1 * offset_H)

    def subtract_from(self, grad_NUH: Tensor, value_NUH: Tensor) -> Tensor:
        """Subtract the term from a gradient, in place."""
        return grad_NUH.addcmul_(value_NUH, self.slope, value=-1).sub_(self.offset)


def statistics_dtype(dtype: torch.dtype) -> torch.dtype:
    """Type of the statistics: float64 for float64 rows, else float32, also under autocast."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def merged(
    mean_UH: Tensor, var_UH: Tensor | None, n_rows: int, weights: Weights, reducer: Reducer = IDENTITY
) -> Moments:
    """Mean and variance of weighted rows, where they are divided over all workers (Chan, Golub, LeVeque 1979).

    `mean_UH` and `var_UH` (None: 0) are those of each condition's `n_rows` rows. Means and variances are merged instead
    of sums of x and x^2, whose difference would lose digits where the mean is large. A worker without rows, or with
    weights 0, contributes nothing; without any row on any worker the moments are 0.
    """
    mean_H, var_H = _mixed(weights.share_U, mean_UH, var_UH)
    count = weights.n_cells * n_rows
    if reducer.world_size == 1:
        return Moments(mean_H, var_H, count)
    # the same formula for workers; one collective for all three
    workers = reducer.gather(torch.cat([count.reshape(1), mean_H, var_H]))
    count_W1, mean_WH, var_WH = workers.split([1, len(mean_H), len(mean_H)], dim=1)
    of_workers = Weights.of(count_W1.squeeze(1))
    return Moments(*_mixed(of_workers.share_U, mean_WH, var_WH), of_workers.n_cells)


def _mixed(share_U: Tensor, mean_UH: Tensor, var_UH: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mean and variance of a mixture of groups of rows, from those of the groups."""
    mean_H = share_U @ mean_UH
    square_UH = (mean_UH - mean_H).square_()
    return mean_H, share_U @ (square_UH if var_UH is None else square_UH.add_(var_UH))
