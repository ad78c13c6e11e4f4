"""The objective over moments: the exact mean of the cells' objective over all pairs of cells.

With d = y - x, y a cell of the condition, x a control cell, drawn independently,
the mean over all pairs is a polynomial in the network's output; its
coefficients are moments, computed once for a screen. No cell is touched during
training and the gradient carries no sampling noise from cells.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gears.model.config import ModelConfig
from gears.model.losses import gene_weights, required_logvar, smooth_direction, with_uncertainty


class PairMoments(NamedTuple):
    """Moments of U conditions and G genes over all pairs (observed cell, control cell).

    Attributes
    ----------
    mean_d
        (U, G) mean of y - x.
    v2, v3, v4
        (U, G) central moments of y - x, see :func:`pair_moments`.
    sign_mean, sign_sq
        (U, G) means of sign(y - mu) and of its square.
    mask_UG
        Genes that count for each condition, or their weights, as in :func:`gears.model.losses.cell_loss`.
    condition_weight_U
        Weight of each condition, 1/K for K conditions in the whole step (times W over W workers).
    """

    mean_d: Tensor
    v2: Tensor
    v3: Tensor
    v4: Tensor
    sign_mean: Tensor
    sign_sq: Tensor
    mask_UG: Tensor
    condition_weight_U: Tensor


class CentralMoments(NamedTuple):
    """Mean and central moments of expression, divided by the number of cells; any shape, float64."""

    mean: Tensor
    m2: Tensor
    m3: Tensor
    m4: Tensor


def pair_moments(y: CentralMoments, x: CentralMoments) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean and central moments 2 to 4 of d = y - x over independent pairs: (mean_d, v2, v3, v4).

    A condition whose cells pair with themselves (the control) has mean_d = v2 = v3 = v4 = 0
    instead; its direction moments stay those of its cells.
    """
    return y.mean - x.mean, y.m2 + x.m2, y.m3 - x.m3, y.m4 + x.m4 + 6 * y.m2 * x.m2


def moment_loss(
    delta_UG: Tensor, logvar_UG: Tensor | None, moments: PairMoments, config: ModelConfig
) -> Tensor:
    """Weighted sum over conditions of the objective's mean over all pairs of cells.

    Parameters
    ----------
    delta_UG, logvar_UG
        What the network returned for the conditions of `moments`.
    moments
        Of the conditions, in the network's order.
    config
        Chooses the terms, as for cells. ``direction="sign"`` compares with the sign
        of delta, from the mean prediction, and has no gradient.

    Returns
    -------
    Tensor
        A scalar.
    """
    dtype = delta_UG.dtype
    mean_d, v2, v3, v4, sign_mean, sign_sq = (moment.to(dtype) for moment in moments[:6])
    error_UG = delta_UG - mean_d
    square_UG = error_UG.square()
    if config.loss == "evidence":
        term_UG = square_UG + v2
    else:
        term_UG = square_UG.square() + 6 * v2 * square_UG - 4 * v3 * error_UG + v4
    if config.uncertainty:
        term_UG = with_uncertainty(term_UG, square_UG + v2, required_logvar(logvar_UG), config)
    if config.loss != "evidence":
        smooth = config.direction == "smooth"
        predicted_UG = smooth_direction(delta_UG, config) if smooth else torch.sign(delta_UG.detach())
        direction_UG = sign_sq - 2 * predicted_UG * sign_mean + predicted_UG.square()
        term_UG = term_UG + config.direction_lambda * direction_UG
    weight_U1 = moments.condition_weight_U.to(dtype).unsqueeze(1)
    return (gene_weights(moments.mask_UG, dtype) * term_UG * weight_U1).sum()
