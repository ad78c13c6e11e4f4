"""The network in the published form: called with a batch of cells, it predicts every cell's expression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from gears.model.network import GEARSNetwork


def predict_cells(network: GEARSNetwork, batch: Any) -> Tensor | tuple[Tensor, Tensor]:
    """Expression of every cell of a batch: its control cell's plus the change of its condition.

    Parameters
    ----------
    network
        Each distinct condition is computed once; in training mode batch norms count its cells.
    batch
        Has ``x`` (B * G, 1), control expression, and ``pert_idx``, the B cells' perturbation nodes
        ([-1] for a control cell): a batch of the loaders, or one of torch-geometric.

    Returns
    -------
    Tensor, or (Tensor, Tensor) with ``config.uncertainty``
        (B, G) expression, and log-variances.
    """
    cells = [tuple(sorted(int(node) for node in nodes if int(node) >= 0)) for nodes in batch.pert_idx]
    conditions = list(dict.fromkeys(cells))
    row_of = {condition: row for row, condition in enumerate(conditions)}
    device = batch.x.device
    row_B = torch.tensor([row_of[cell] for cell in cells], dtype=torch.long, device=device)
    change_UG, logvar_UG = network(
        torch.tensor([row_of[c] for c in conditions for _ in c], dtype=torch.long, device=device),
        torch.tensor([node for c in conditions for node in c], dtype=torch.long, device=device),
        torch.bincount(row_B, minlength=len(conditions)).to(torch.float32),
    )
    expression_BG = batch.x.reshape(len(cells), -1) + _complete(network, conditions, change_UG)[row_B]
    return expression_BG if logvar_UG is None else (expression_BG, logvar_UG[row_B])


def _complete(network: GEARSNetwork, conditions: Sequence[Sequence[int]], change_UG: Tensor) -> Tensor:
    """The model's whole changes: where a closed form is below the network, both."""
    prior = network.prior
    if prior is None:
        return change_UG
    known_UG = np.asarray(prior([list(condition) for condition in conditions]))
    return torch.as_tensor(known_UG).to(change_UG) + prior.gate * change_UG
