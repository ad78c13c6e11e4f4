"""A batch of cells with their paired control cells.

Consumers that know batches of the published package find its fields: ``x``, ``y``, ``pert``, ``pert_idx``,
``de_idx``, ``batch``, ``num_graphs`` and ``to(device)``; the other fields are this package's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch

from gears.conditions import Condition


@dataclass
class CellBatch:
    """B cells, each beside the control cell it is paired with.

    Attributes
    ----------
    x_BG : torch.Tensor (B, G) float32
        Log-normalised expression of the paired control cell.
    y_BG : torch.Tensor (B, G) float32
        Observed log-normalised expression.
    condition : torch.Tensor (B,) int64
        Condition ids of the screen.
    cell, control_cell : torch.Tensor (B,) int64
        Cell numbers of the screen.
    label_index : torch.Tensor (B,) int64
        Position of each cell's label in the three lists below, which hold the
        distinct labels of the batch.
    label_names : list of str
        Labels as the screen spells them.
    label_nodes : list of list of int
        Nodes of the perturbation graph; [-1] for the control.
    label_de : list of np.ndarray
        Top DE genes in ascending order; [-1] * n for the control.
    label_columns : list of list of int
        Columns of the perturbed genes that are measured.
    """

    x_BG: torch.Tensor
    y_BG: torch.Tensor
    condition: torch.Tensor
    cell: torch.Tensor
    control_cell: torch.Tensor
    label_index: torch.Tensor
    label_names: list[str]
    label_nodes: list[list[int]]
    label_de: list[np.ndarray]
    label_columns: list[list[int]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.cell)

    def _tensors(self) -> dict[str, torch.Tensor]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}

    def to(self, device: Any, *, non_blocking: bool = False) -> CellBatch:
        """Move the batch itself to another device, as published batches do, and return it."""
        for name, value in self._tensors().items():
            setattr(self, name, value.to(device, non_blocking=non_blocking))
        return self

    def pin_memory(self) -> CellBatch:
        """The batch in page-locked memory (called by the loader where CUDA is in use)."""
        return replace(self, **{name: value.pin_memory() for name, value in self._tensors().items()})  # type: ignore[arg-type]

    def pert_flags(self, node_map: Mapping[str, int] | None = None) -> torch.Tensor:
        """Which measured genes are perturbed in each cell: the second input column of older releases.

        Parameters
        ----------
        node_map
            Gene -> column, where it is not that of `x_BG` (``pert_data.node_map``).

        Returns
        -------
        torch.Tensor
            (B, G) of 0 and 1 in the type of `x_BG`. A perturbed gene that is not
            measured has no column and leaves no flag: see :meth:`unmeasured`.
        """
        columns = self.label_columns
        if node_map is not None:
            genes = [Condition.parse(label).genes for label in self.label_names]
            columns = [[node_map[gene] for gene in label if gene in node_map] for label in genes]
        flags_LG = self.x_BG.new_zeros((len(self.label_names), self.x_BG.shape[1]))
        for row, measured in enumerate(columns):
            flags_LG[row, measured] = 1
        return flags_LG[self.label_index]

    def unmeasured(self, node_map: Mapping[str, int]) -> list[str]:
        """Genes perturbed in this batch that are not measured, sorted."""
        genes = {gene for label in self.label_names for gene in Condition.parse(label).genes}
        return sorted(genes - set(node_map))

    # The fields of the published batch

    @property
    def x(self) -> torch.Tensor:
        """Control expression, (B * G, 1) view."""
        return self.x_BG.reshape(-1, 1)

    @property
    def y(self) -> torch.Tensor:
        """Observed expression, (B, G)."""
        return self.y_BG

    @property
    def pert(self) -> list[str]:
        """Label of each cell."""
        return [self.label_names[i] for i in self.label_index.tolist()]

    @property
    def pert_idx(self) -> list[list[int]]:
        """Perturbation nodes of each cell; [-1] for control cells."""
        return [self.label_nodes[i] for i in self.label_index.tolist()]

    @property
    def de_idx(self) -> list[np.ndarray]:
        """Top DE genes of each cell's condition; [-1] * n for control cells."""
        return [self.label_de[i] for i in self.label_index.tolist()]

    @property
    def num_graphs(self) -> int:
        """Number of cells, B."""
        return len(self)

    @property
    def batch(self) -> torch.Tensor:
        """Row of x -> cell of the batch, (B * G,) int64."""
        n_cells, n_genes = self.x_BG.shape
        return torch.arange(n_cells, device=self.x_BG.device).repeat_interleave(n_genes)
