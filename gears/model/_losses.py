"""The objectives over cells and over moments.

For cell i of condition p, with control expression x, observed expression y and
prediction x + delta_p, over the genes S_p that the condition expresses,

    l_i = mean over S_p of  (x + delta - y)^4 + uncertainty + lambda (a - t)^2

with the observed direction a and the predicted one t. As published, a = sign(y - mu) and t = sign(x + delta - mu),
which has no gradient. With ``direction="smooth"``, t = tanh(delta / tau) and a = sign(y - mu) - sign(x - mu): most
cells have no count of a sparse gene and are below its mean, control cells as well, which says nothing about it.

The batch's loss is the mean over conditions of the mean over their cells; the caller passes it as one weight per cell,
so that batches can be split over workers or accumulated (weight = W / (n_c K): n_c cells of the cell's condition and K
conditions in the whole batch, W workers whose gradients are averaged).

Over moments, y is a cell of the condition and x a control cell, drawn independently, and d = y - x has mean m and
central moments v2, v3, v4. With e = delta - m the mean of the fourth power over all pairs is a polynomial in the
network's output,

    mean (delta - d)^4 = e^4 + 6 v2 e^2 - 4 v3 e + v4

and the moments of d follow from those of y and x (:func:`pair_moments`), which are computed once for a screen. Training
reads no cell and the gradient has no sampling noise from cells. The plain version is :func:`cell_loss` over all pairs
(``tests/model/test_model_losses_moments.py``). Terms are (U, G), or (B, G) over cells, until the last sum.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gears.model.config import ModelConfig


def cell_loss(
    delta_UG: Tensor,
    logvar_UG: Tensor | None,
    row_B: Tensor,
    x_BG: Tensor,
    y_BG: Tensor,
    mask_UG: Tensor,
    mu_G: Tensor,
    cell_weight_B: Tensor,
    config: ModelConfig,
) -> Tensor:
    """Weighted sum of the cells' losses, ``sum_i cell_weight[i] * l_i``; 0, with zero gradients, without cells.

    `delta_UG`, `logvar_UG`: outputs of the network; `logvar_UG` only with ``config.uncertainty``.
    `row_B`: (B,) int64, each cell's row in `delta_UG`.
    `x_BG`, `y_BG`: control expression each cell is paired with, and observed expression (log scale).
    `mask_UG`: bool, genes whose errors are included in each condition, or weights of the genes. A condition without any
        has loss 0.
    `mu_G`: mean expression of the control cells that training uses; (B, G) where it differs between cells.
    `cell_weight_B`: weight of each cell, from counts over the whole batch.
    """
    delta_BG = delta_UG.index_select(0, row_B)
    dtype = delta_BG.dtype
    x_BG, y_BG, mu_G = x_BG.to(dtype), y_BG.to(dtype), mu_G.to(dtype)
    square_BG = (x_BG + delta_BG - y_BG).square()
    term_BG = square_BG if config.loss == "evidence" else square_BG.square()
    if config.uncertainty:
        assert logvar_UG is not None  # the network has the same options
        logvar_BG = logvar_UG.index_select(0, row_B)
        term_BG = with_uncertainty(term_BG, square_BG, logvar_BG, config)
    if config.loss != "evidence":
        if config.direction == "smooth":
            sign_2BG = torch.sign(torch.stack((y_BG, x_BG)) - mu_G)
            observed_BG = sign_2BG[0] - sign_2BG[1]
            predicted_BG = smooth_direction(delta_UG, config).index_select(0, row_B)
        else:
            observed_BG = torch.sign(y_BG - mu_G)
            predicted_BG = torch.sign((x_BG + delta_BG).detach() - mu_G)
        error_BG = observed_BG - predicted_BG
        term_BG = torch.addcmul(term_BG, error_BG, error_BG, value=config.direction_lambda)
    weight_BG = gene_weights(mask_UG, dtype).index_select(0, row_B) * cell_weight_B.to(dtype).unsqueeze(1)
    return (weight_BG * term_BG).sum()


def with_uncertainty(fourth: Tensor, square: Tensor, logvar: Tensor, config: ModelConfig) -> Tensor:
    """Add the uncertainty term to a power of the errors, given their squares.

    ``"gears"`` falls with the log-variance s without a minimum; ``"nll"`` has its minimum at s = log(square).
    """
    precision = torch.exp(-logvar)
    if config.uncertainty_kind == "gears":
        return fourth * (1 + config.uncertainty_reg * precision)
    return fourth + config.uncertainty_reg * (precision * square + logvar)


def smooth_direction(delta_UG: Tensor, config: ModelConfig) -> Tensor:
    """Predicted direction, from -1 to 1, of the mean prediction mu + delta relative to mu."""
    return torch.tanh(delta_UG / config.tau)


def gene_weights(mask_UG: Tensor, dtype: torch.dtype) -> Tensor:
    """Weights of the (weighted) mean over each row's masked genes, (U, G); zeros in rows without any."""
    return mask_UG.to(dtype) / (mask_UG != 0).sum(1, keepdim=True).clamp(min=1)


class PairMoments(NamedTuple):
    """Moments of U conditions and G genes over all pairs (observed cell, control cell)."""

    mean_d: Tensor  # (U, G) mean of y - x
    # v2, v3, v4: (U, G) central moments of y - x, see
    # :meth:`gears.data.screen._statistics.ConditionStatistics.pair_moments`
    v2: Tensor
    v3: Tensor
    v4: Tensor
    # sign_mean, sign_sq: (U, G) means of the observed direction and of its square
    sign_mean: Tensor
    sign_sq: Tensor
    mask_UG: Tensor
    """Genes that count for each condition, or their weights, as in :func:`gears.model._losses.cell_loss`."""
    condition_weight_U: Tensor
    """Weight of each condition, 1/K for K conditions in the whole step (times W over W workers)."""


def moment_loss(delta_UG: Tensor, logvar_UG: Tensor | None, moments: PairMoments, config: ModelConfig) -> Tensor:
    """Weighted sum over conditions of the objective's mean over all pairs of cells.

    ``direction="sign"`` uses the sign of delta, the direction of the mean prediction, and has no gradient.
    """
    dtype = delta_UG.dtype
    mean_d, v2, v3, v4, sign_mean, sign_sq = (moment.to(dtype) for moment in moments[:6])
    # means over all pairs of (delta - d)^2, (delta - d)^4 and (observed - predicted direction)^2
    error_UG = delta_UG - mean_d
    square_UG = error_UG.square()
    if config.loss == "evidence":
        term_UG = square_UG + v2
    else:
        term_UG = square_UG.square() + 6 * v2 * square_UG - 4 * v3 * error_UG + v4
    if config.uncertainty:
        assert logvar_UG is not None
        term_UG = with_uncertainty(term_UG, square_UG + v2, logvar_UG, config)
    if config.loss != "evidence":
        smooth = config.direction == "smooth"
        predicted_UG = smooth_direction(delta_UG, config) if smooth else torch.sign(delta_UG.detach())
        direction_UG = sign_sq - 2 * predicted_UG * sign_mean + predicted_UG.square()
        term_UG = term_UG + config.direction_lambda * direction_UG
    weight_UG = gene_weights(moments.mask_UG, dtype) * moments.condition_weight_U.to(dtype).unsqueeze(1)
    return (weight_UG * term_UG).sum()
