"""The network in the published form: called with a batch of cells, it predicts every cell's expression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gears.node_sets import NodeSet, contexts_of, kinds_of

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
        ([-1] for a control cell): a batch of the loaders, or one of torch-geometric. For a network of several
        contexts they say where each cell is (:class:`gears.node_sets.NodeSet`), as those of the loaders do.

    Returns
    -------
    Tensor, or (Tensor, Tensor) with ``config.uncertainty``
        (B, G) expression, and log-variances.
    """
    placed = not network.placing.is_trivial
    if placed and not all(isinstance(nodes, NodeSet) for nodes in batch.pert_idx):
        msg = (
            "the batches do not say in which context a cell is, and this network has several; take the loaders of the "
            "PertData, or GEARS.predict(..., context=...)"
        )
        raise ValueError(msg)
    cells = [_placed(nodes) for nodes in batch.pert_idx]
    conditions = list(dict.fromkeys(cells))
    row_of = {condition: row for row, condition in enumerate(conditions)}
    sets = [NodeSet(nodes, context=context, kind=kind) for nodes, context, kind in conditions]
    device = batch.x.device
    row_B = torch.tensor([row_of[cell] for cell in cells], dtype=torch.long, device=device)
    where = {"context": contexts_of(sets), "kind": kinds_of(sets)} if placed else {}
    change_UG, logvar_UG = network(
        torch.tensor([row for row, nodes in enumerate(sets) for _ in nodes], dtype=torch.long, device=device),
        torch.tensor([node for nodes in sets for node in nodes], dtype=torch.long, device=device),
        torch.bincount(row_B, minlength=len(conditions)).to(torch.float32),
        **{name: torch.from_numpy(numbers).to(device) for name, numbers in where.items()},
    )
    expression_BG = batch.x.reshape(len(cells), -1) + _complete(network, sets, change_UG)[row_B]
    return expression_BG if logvar_UG is None else (expression_BG, logvar_UG[row_B])


def _placed(nodes: Sequence[int]) -> tuple[tuple[int, ...], int, int]:
    """Sorted nodes without the mark of a control, context and type of a cell."""
    own = tuple(sorted(int(node) for node in nodes if int(node) >= 0))
    return own, getattr(nodes, "context", 0), getattr(nodes, "kind", 0)


def _complete(network: GEARSNetwork, sets: Sequence[NodeSet], change_UG: Tensor) -> Tensor:
    """The model's whole changes: where a closed form is below the network, both."""
    prior = network.prior
    if prior is None:
        return change_UG
    known_UG = np.asarray(prior(sets))
    return torch.as_tensor(known_UG).to(change_UG) + prior.network_weight * change_UG
