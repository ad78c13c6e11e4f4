"""The objective over cells: every perturbed cell is compared with the control cell it is paired with.

For cell i of condition p, with control expression x, observed expression y and
prediction x + delta_p, over the genes S_p that the condition expresses:

    l_i = mean over S_p of  (x + delta - y)^4 + uncertainty + lambda (sign(y - mu) - t)^2

The batch's loss is the mean over conditions of the mean over their cells; the
caller states it as one weight per cell, so that batches may be spread over
workers or accumulated (weight = W / (n_c K): n_c cells of the cell's condition
and K conditions in the whole batch, W workers whose gradients get averaged).
"""

from __future__ import annotations

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
    """Weighted sum of the cells' losses, ``sum_i cell_weight[i] * l_i``.

    Parameters
    ----------
    delta_UG, logvar_UG
        What the network returned; `logvar_UG` only with ``config.uncertainty``.
    row_B
        (B,) int64, each cell's row in `delta_UG`.
    x_BG, y_BG
        Control expression each cell is paired with, and observed expression (log scale).
    mask_UG
        bool, genes that count for each condition: those whose mean over all of its cells in
        the screen is not 0, all for the control. A condition without any has loss 0. Or their weights.
    mu_G
        Mean expression of the control cells that training uses; (B, G) where each cell has its own.
    cell_weight_B
        Weight of each cell, from counts over the whole batch.
    config
        Chooses the power of the errors and the direction and uncertainty terms.

    Returns
    -------
    Tensor
        A scalar; 0, with zero gradients, for a batch without cells.
    """
    delta_BG = delta_UG.index_select(0, row_B)
    dtype = delta_BG.dtype
    x_BG, y_BG, mu_G = x_BG.to(dtype), y_BG.to(dtype), mu_G.to(dtype)
    square_BG = (x_BG + delta_BG - y_BG).square()
    term_BG = square_BG if config.loss == "evidence" else square_BG.square()
    if config.uncertainty:
        logvar_BG = required_logvar(logvar_UG).index_select(0, row_B)
        term_BG = with_uncertainty(term_BG, square_BG, logvar_BG, config)
    if config.loss != "evidence":
        if config.direction == "smooth":
            predicted_BG = smooth_direction(delta_UG, config).index_select(0, row_B)
        else:
            predicted_BG = torch.sign((x_BG + delta_BG).detach() - mu_G)
        term_BG = term_BG + config.direction_lambda * (torch.sign(y_BG - mu_G) - predicted_BG).square()
    gene_weight_BG = gene_weights(mask_UG, dtype).index_select(0, row_B)
    return (gene_weight_BG * term_BG * cell_weight_B.to(dtype).unsqueeze(1)).sum()


def with_uncertainty(fourth: Tensor, square: Tensor, logvar: Tensor, config: ModelConfig) -> Tensor:
    """Add the uncertainty term to a power of the errors, given their squares.

    ``"gears"`` shrinks with the log-variance s without end; ``"nll"`` is least at
    s = log(square).
    """
    precision = torch.exp(-logvar)
    if config.uncertainty_kind == "gears":
        return fourth * (1 + config.uncertainty_reg * precision)
    return fourth + config.uncertainty_reg * (precision * square + logvar)


def smooth_direction(delta_UG: Tensor, config: ModelConfig) -> Tensor:
    """Predicted direction, from -1 to 1, of the mean prediction mu + delta relative to mu."""
    return torch.tanh(delta_UG / config.tau)


def gene_weights(mask_UG: Tensor, dtype: torch.dtype) -> Tensor:
    """Weights that take the (weighted) mean over each row's masked genes; zeros where there is none."""
    return mask_UG.to(dtype) / (mask_UG != 0).sum(1, keepdim=True).clamp(min=1)


def required_logvar(logvar_UG: Tensor | None) -> Tensor:
    """The log-variances, or an error that says why there are none."""
    if logvar_UG is None:
        msg = (
            "the objective has an uncertainty term but the network returned no log-variance; "
            "build the network with uncertainty=True in its ModelConfig"
        )
        raise ValueError(msg)
    return logvar_UG
