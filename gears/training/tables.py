"""What a loss needs to know of the conditions, as tensors on the training device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gears.model.network import GEARSNetwork
from gears.node_sets import contexts_of, kinds_of
from gears.priors import Prior


@dataclass(frozen=True)
class ConditionTables:
    """Tables indexed by condition id (C conditions, G genes).

    Attributes
    ----------
    first, nodes
        Perturbation-graph nodes of condition c are ``nodes[first[c]:first[c + 1]]``.
    mask_CG
        Genes that count in the loss of each condition (bool), or their weights.
    control_mean_G
        Mean of the control cells.
    prior_CG
        Known change of each condition, to which the network's is added, or None.
    names
        Of the conditions, for messages.
    context_C, kind_C
        Numbers of each condition's context and type of perturbation; None where all are 0.
    control_mean_SG, cell_stratum
        Where controls are matched: mean of each stratum's control cells, and every cell's stratum.
    """

    first: Tensor
    nodes: Tensor
    mask_CG: Tensor
    control_mean_G: Tensor
    prior_CG: Tensor | None = None
    names: tuple[str, ...] = ()
    context_C: Tensor | None = None
    kind_C: Tensor | None = None
    control_mean_SG: Tensor | None = None
    cell_stratum: Tensor | None = None

    @classmethod
    def build(
        cls,
        nodes: Sequence[Sequence[int]],
        mask_CG: np.ndarray,
        control_mean_G: np.ndarray,
        prior_CG: np.ndarray | None = None,
        *,
        device: torch.device,
        dtype: torch.dtype,
        names: Sequence[str] = (),
    ) -> ConditionTables:
        """From the node list of each condition (empty for the control) and numpy tables."""
        lengths = [len(members) for members in nodes]
        first = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
        flat = np.fromiter(
            (node for members in nodes for node in members), dtype=np.int64, count=int(first[-1])
        )
        return cls(
            torch.from_numpy(first).to(device),
            torch.from_numpy(flat).to(device),
            torch.from_numpy(np.array(mask_CG)).to(device),
            torch.from_numpy(np.array(control_mean_G)).to(device, dtype),
            None if prior_CG is None else torch.from_numpy(prior_CG).to(device, dtype),
            tuple(names),
            _numbers(contexts_of(nodes), device),
            _numbers(kinds_of(nodes), device),
        )

    def matched(self, control_mean_SG: np.ndarray, cell_stratum: np.ndarray) -> ConditionTables:
        """The same with control means by stratum (for objectives over cells)."""
        like = self.control_mean_G
        means = torch.from_numpy(np.array(control_mean_SG)).to(like.device, like.dtype)
        strata = torch.from_numpy(np.asarray(cell_stratum).astype(np.int64))
        return replace(self, control_mean_SG=means, cell_stratum=strata)

    def origin(self, batch: Any) -> Tensor:
        """Mean of the control cells that each cell of a batch is compared with: (B, G), or (G,) where it is one."""
        if self.control_mean_SG is None or self.cell_stratum is None:
            return self.control_mean_G
        return self.control_mean_SG[self.cell_stratum[batch.cell.cpu()].to(self.control_mean_G.device)]

    def placing(self, ids_U: Tensor) -> dict[str, Tensor]:
        """Context and type of U conditions, as the network's forward takes them."""
        named = {"context": self.context_C, "kind": self.kind_C}
        return {name: table[ids_U] for name, table in named.items() if table is not None}

    def change(self, network_UG: Tensor, ids_U: Tensor) -> Tensor:
        """Change of U conditions: the network's, on top of what is known, (U, G)."""
        return network_UG if self.prior_CG is None else self.prior_CG[ids_U] + network_UG

    def members(self, ids_U: Tensor) -> tuple[Tensor, Tensor]:
        """Rows (0 to U - 1) and nodes of the perturbed genes of U conditions, (M,) each."""
        start, length = self.first[ids_U], self.first[ids_U + 1] - self.first[ids_U]
        row = torch.repeat_interleave(torch.arange(len(ids_U), device=ids_U.device), length)
        within = torch.arange(len(row), device=ids_U.device) - (length.cumsum(0) - length)[row]
        return row, self.nodes[start[row] + within]


def _numbers(numbers_C: np.ndarray, device: torch.device) -> Tensor | None:
    """Numbers on a device; None where all are 0."""
    return torch.from_numpy(numbers_C).to(device) if numbers_C.any() else None


@torch.no_grad()
def predict_changes(
    network: GEARSNetwork,
    nodes: Sequence[Sequence[int]],
    *,
    prior: Prior | None = None,
    chunk: int = 32,
) -> tuple[np.ndarray, np.ndarray | None]:
    """Change of every gene (and its log-variance) under each set of nodes, in evaluation mode.

    Parameters
    ----------
    network
        The bare network; its mode is restored afterwards.
    nodes
        Perturbation-graph nodes of each condition, (U,) lists.
    prior
        What the network's changes are added to.
    chunk
        Conditions per forward pass (bounds memory; the result does not depend on it).

    Returns
    -------
    tuple
        (U, G) float64 changes and log-variances (None without uncertainty).
    """
    if prior is not None and prior.network_weight == 0 and not network.config.uncertainty:
        return prior(nodes), None
    n_genes = network.n_genes
    delta_UG = np.empty((len(nodes), n_genes))
    logvar_UG = np.empty((len(nodes), n_genes)) if network.config.uncertainty else None
    prepared = network.prepared()
    for begin in range(0, len(nodes), chunk):
        delta, logvar = prepared(nodes[begin : begin + chunk])
        delta_UG[begin : begin + chunk] = delta.cpu().double().numpy()
        if logvar_UG is not None and logvar is not None:
            logvar_UG[begin : begin + chunk] = logvar.cpu().double().numpy()
    return delta_UG if prior is None else prior.complete(nodes, delta_UG), logvar_UG
