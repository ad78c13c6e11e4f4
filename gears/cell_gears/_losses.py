"""The loss functions of cell-gears' ``gears.utils``, for training steps written by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gears.conditions import CONTROL_LABEL
from gears.model._losses import cell_loss
from gears.model.config import ModelConfig


def loss_fct(
    pred: Tensor,
    y: Tensor,
    perts: Sequence[str],
    ctrl: Tensor | None = None,
    direction_lambda: float = 1e-3,
    dict_filter: Mapping[str, np.ndarray] | None = None,
) -> Tensor:
    """The published objective of a batch of cells (:mod:`gears.model._losses`, ``direction="sign"``).

    Parameters
    ----------
    pred, y
        Predicted and observed expression, (B, G).
    perts
        Labels of the B cells.
    ctrl
        Mean of the control cells, (G,), relative to which directions are; 0 by default.
    direction_lambda
        Weight of the direction of changes.
    dict_filter
        Positions of the genes that count for each label but "ctrl", such as ``model.dict_filter``.
    """
    return _loss(pred, None, y, perts, ctrl, dict_filter, direction_lambda=direction_lambda)


def uncertainty_loss_fct(
    pred: Tensor,
    logvar: Tensor,
    y: Tensor,
    perts: Sequence[str],
    reg: float = 0.1,
    ctrl: Tensor | None = None,
    direction_lambda: float = 1e-3,
    dict_filter: Mapping[str, np.ndarray] | None = None,
) -> Tensor:
    """The same with log-variances, (B, G), weighted by `reg` (``uncertainty_kind="gears"``)."""
    options = {"uncertainty": True, "uncertainty_kind": "gears", "uncertainty_reg": reg}
    return _loss(pred, logvar, y, perts, ctrl, dict_filter, direction_lambda=direction_lambda, **options)


def _loss(
    pred: Tensor,
    logvar: Tensor | None,
    y: Tensor,
    perts: Sequence[str],
    ctrl: Tensor | None,
    dict_filter: Mapping[str, np.ndarray] | None,
    **options: Any,
) -> Tensor:
    """Mean over labels of the mean over their cells; the predicted expression takes the place of the change from 0."""
    cells, zero = Counter(perts), torch.zeros_like(y)
    mask_BG = torch.ones_like(y, dtype=torch.bool)
    for row, label in enumerate(perts):
        if dict_filter is not None and label != CONTROL_LABEL:
            mask_BG[row] = False
            mask_BG[row, torch.as_tensor(np.asarray(dict_filter[label]), device=y.device)] = True
    weight_B = torch.tensor([1 / (cells[label] * len(cells)) for label in perts], device=y.device)
    rows = torch.arange(len(perts), device=y.device)
    mean_G = zero[0] if ctrl is None else ctrl
    config = ModelConfig(direction="sign", **options)
    return cell_loss(pred, logvar, rows, zero, y, mask_BG, mean_G, weight_B, config)
