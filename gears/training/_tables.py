"""What the losses read of the conditions, as tensors on the training device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from gears.conditions import contexts_of, kinds_of
from gears.data.screen._statistics import variance_within
from gears.data.splits._split import perturbed_in
from gears.model.config import ModelConfig

if TYPE_CHECKING:
    from gears.pertdata import PertData


@dataclass(frozen=True)
class ConditionTables:
    """Tables indexed by condition id (C conditions, G genes)."""

    # first, nodes: perturbation-graph nodes of condition c are ``nodes[first[c]:first[c + 1]]`` (on the host)
    first: np.ndarray
    nodes: np.ndarray
    mask_CG: Tensor  # genes that count in the loss of each condition (bool), or their weights
    control_mean_G: Tensor
    prior_CG: Tensor | None = None  # known change of each condition, to which the network's is added, or None
    names: tuple[str, ...] = ()
    # context_C, kind_C: numbers of each condition's context and type of perturbation (on the host); None where all are
    # 0
    context_C: np.ndarray | None = None
    kind_C: np.ndarray | None = None
    # control_mean_BG, cell_batch: where controls are matched by experimental batch: mean of each batch's control cells,
    # every cell's batch (on the host)
    control_mean_BG: Tensor | None = None
    cell_batch: np.ndarray | None = None

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
        control_mean_BG: np.ndarray | None = None,
        cell_batch: np.ndarray | None = None,
    ) -> ConditionTables:
        """From the node list of each condition (empty for the control) and numpy tables."""
        lengths = [len(members) for members in nodes]
        first = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
        flat = np.fromiter(
            (node for members in nodes for node in members), dtype=np.int64, count=int(first[-1])
        )
        return cls(
            first,
            flat,
            torch.from_numpy(np.array(mask_CG)).to(device),
            torch.from_numpy(np.array(control_mean_G)).to(device, dtype),
            None if prior_CG is None else torch.from_numpy(prior_CG).to(device, dtype),
            tuple(names),
            _numbers(contexts_of(nodes)),
            _numbers(kinds_of(nodes)),
            None
            if control_mean_BG is None
            else torch.from_numpy(np.array(control_mean_BG)).to(device, dtype),
            None if cell_batch is None else cell_batch.astype(np.int64),
        )

    def origin(self, batch_B: Tensor | None) -> Tensor:
        """Mean of the control cells that each cell is compared with, (B, G), by its experimental batch; else (G,)."""
        if self.control_mean_BG is None or batch_B is None:
            return self.control_mean_G
        return self.control_mean_BG.index_select(0, batch_B)

    def of_network(self, ids_A: np.ndarray) -> dict[str, np.ndarray]:
        """Arguments of the network's forward for A conditions, int64 each.

        ``pert_row`` (0 to A - 1) and ``pert_node`` of each perturbed gene, (M,); where numbers are not all 0
        ``context`` and ``kind`` of each condition, (A,).
        """
        start, length = self.first[ids_A], self.first[ids_A + 1] - self.first[ids_A]
        row = np.repeat(np.arange(len(ids_A)), length)
        within = np.arange(len(row)) - (length.cumsum() - length)[row]
        arguments = {"pert_row": row, "pert_node": self.nodes[start[row] + within]}
        named = {"context": self.context_C, "kind": self.kind_C}
        return arguments | {name: table[ids_A] for name, table in named.items() if table is not None}

    def change(self, network_UG: Tensor, ids_U: Tensor) -> Tensor:
        """Change of U conditions: the network's, on top of what is known, (U, G)."""
        return network_UG if self.prior_CG is None else self.prior_CG.index_select(0, ids_U) + network_UG


def _numbers(numbers_C: np.ndarray) -> np.ndarray | None:
    """Numbers; None where all are 0."""
    return numbers_C.astype(np.int64) if numbers_C.any() else None


def evidence_weights(
    delta_TG: np.ndarray, variance_G: np.ndarray, n_T: np.ndarray, n_C: np.ndarray
) -> np.ndarray:
    """Weights by reliability: the share of an observed change's variance that is not sampling noise, (C, G) float32.

    With signal variance s (one for all genes, so that genes that respond count as much as they respond) and
    a cell's variance v_g, the mean of n_c cells has weight s / (s + v_g / n_c), scaled to mean 1 over training.

    `delta_TG`: changes of the training conditions against control, which say how strong signals are.
    `variance_G`: variance of a cell's expression within a condition.
    `n_T`, `n_C`: cells of the training conditions and of those that get weights.
    """
    total, sampling = float((delta_TG**2).mean()), float((variance_G * (1 / n_T)[:, None]).mean())
    signal = max(total - sampling, 0.01 * total, np.finfo(np.float64).tiny)

    def reliability(n: np.ndarray) -> np.ndarray:
        return np.asarray(signal / (signal + variance_G / np.maximum(n, 1)[:, None]))

    return (reliability(n_C) / reliability(n_T).mean()).astype(np.float32)


def condition_tables(
    pert_data: PertData,
    device: torch.device,
    dtype: torch.dtype,
    *,
    config: ModelConfig | None = None,
    prior_CG: np.ndarray | None = None,
) -> ConditionTables:
    """Nodes, weights in the loss, control mean and known changes of all conditions on the training device."""
    screen, config = pert_data.screen, config or ModelConfig()
    nodes = [pert_data.condition_nodes(condition) for condition in screen.conditions]
    # cell-gears leaves out a condition's genes without counts; nothing then keeps the network from changing them
    mask_CG = np.ones(screen.statistics.mean.shape, dtype=bool)
    if config.mask_target:
        column = {gene: index for index, gene in enumerate(screen.gene_names)}
        for row, condition in enumerate(screen.conditions):
            mask_CG[row, [column[gene] for gene in condition.genes if gene in column]] = False
    if config.loss == "evidence":
        mask_CG = mask_CG * _evidence_weights(pert_data)
    matched = len(screen.batches) > 1
    return ConditionTables.build(
        nodes,
        mask_CG,
        screen.control_mean_G,
        prior_CG,
        device=device,
        dtype=dtype,
        names=[condition.name for condition in screen.conditions],
        control_mean_BG=screen.control_mean_BG if matched else None,
        cell_batch=screen.cell_batch if matched else None,
    )


def _evidence_weights(pert_data: PertData) -> np.ndarray:
    """Weights of every gene of every condition, from the training conditions' cells; 1 for the control."""
    screen, statistics = pert_data.screen, pert_data.screen.statistics
    train = np.sort([screen.id_of(condition) for condition in perturbed_in(pert_data.split, "train")])
    perturbed = np.array([not condition.is_control for condition in screen.conditions])
    weight_CG = np.ones((len(screen.conditions), len(screen.gene_names)), dtype=np.float32)
    if len(train):
        n_C, delta_TG = np.asarray(statistics.n, dtype=np.float64), statistics.delta(train)
        variance_G = variance_within(statistics, train)
        weight_CG[perturbed] = evidence_weights(delta_TG, variance_G, n_C[train], n_C[perturbed])
    return weight_CG
