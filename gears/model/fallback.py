"""What stands for perturbation nodes of which nothing is known: no neighbour, and no training condition."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn


class Fallback(nn.Module):
    """Gives nodes without neighbours that training never perturbed the mean of the trained nodes' messages.

    Their own embedding is as random as it began; with it the network would predict noise. In
    training mode nothing changes, for no training condition holds such a node.
    """

    unknown: Tensor
    trained: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("unknown", "trained"):
            self.register_buffer(name, torch.zeros(0, dtype=torch.int64), persistent=False)

    def set(self, edge_index: np.ndarray, n_nodes: int, trained: Iterable[int]) -> None:
        """Find the nodes from a graph's edges (2, E) and the nodes perturbed in training."""
        trained_T = np.unique(np.fromiter(trained, dtype=np.int64))
        alone_P = np.ones(n_nodes, dtype=bool)
        # what a node sends reaches others, not itself
        alone_P[edge_index[1, edge_index[0] != edge_index[1]]] = False
        alone_P[trained_T] = False
        unknown = np.flatnonzero(alone_P) if len(trained_T) else np.empty(0, dtype=np.int64)
        self.unknown = torch.from_numpy(unknown).to(self.unknown.device)
        self.trained = torch.from_numpy(trained_T).to(self.trained.device)

    def forward(self, nodes_PH: Tensor) -> Tensor:
        """Messages of all nodes, those of unknown ones replaced (evaluation mode)."""
        if self.training or not len(self.unknown):
            return nodes_PH
        mean_H = nodes_PH.index_select(0, self.trained).mean(0)
        return nodes_PH.index_copy(0, self.unknown, mean_H.expand(len(self.unknown), -1))
