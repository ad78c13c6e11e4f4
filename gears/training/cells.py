"""The cells objective: every perturbed cell against a control cell, counted over the global batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gears.model.losses import cell_loss
from gears.training.objective import Objective
from gears.training.tasks import Reducer


@dataclass(frozen=True)
class CellWindow:
    """Counts of a global accumulation window.

    Attributes
    ----------
    share_C
        Weight of one cell of each condition on this worker: W / (cells of the condition x
        conditions present); the mean over workers of weighted losses is the global loss.
    sizes
        Cells of each micro-batch over all workers.
    """

    share_C: Tensor
    sizes: Tensor


class CellsTask(Objective):
    """Losses of cell batches and the validation metrics of a GEARS run (see :class:`Objective`)."""

    unit = "cells"

    def prepare_window(self, batches: Sequence[Any], reducer: Reducer) -> CellWindow:
        """Sum the cells of each condition over micro-batches and workers (one reduction)."""
        n_conditions = len(self.tables.mask_CG)
        present = torch.cat([batch.condition for batch in batches])
        counts = torch.bincount(present, minlength=n_conditions).double()
        sizes = torch.tensor([len(batch.condition) for batch in batches], dtype=torch.float64)
        total = reducer.sum(torch.cat([counts, sizes]).float().to(self.device))
        total_C, total_sizes = total[:n_conditions].double(), total[n_conditions:]
        n_present = (total_C > 0).sum()
        share_C = torch.where(total_C > 0, reducer.world_size / (total_C.clamp(min=1) * n_present), 0.0)
        return CellWindow(share_C.to(self.tables.control_mean_G.dtype), total_sizes)

    def broken(self, batch: Any) -> Tensor:
        """Ids of conditions with a cell, or a control cell beside it, that is not finite."""
        whole_B = torch.isfinite(batch.x_BG).all(dim=1) & torch.isfinite(batch.y_BG).all(dim=1)
        return torch.unique(batch.condition[~whole_B.cpu()])

    def loss(self, model: nn.Module, batch: Any, window: CellWindow, position: int) -> Tensor:
        """This worker's part of the global loss, times the number of workers."""
        dtype = self.tables.control_mean_G.dtype
        condition_B = batch.condition.to(self.device)
        ids_U, row_B = torch.unique(condition_B, return_inverse=True)
        cells_U = torch.bincount(row_B, minlength=len(ids_U)).to(dtype)
        pert_row, pert_node = self.tables.members(ids_U)
        where = self.tables.placing(ids_U)
        delta_UG, logvar_UG = model(pert_row, pert_node, cells_U, window.sizes[position], **where)
        return cell_loss(
            self.tables.change(delta_UG, ids_U),
            logvar_UG,
            row_B,
            batch.x_BG.to(self.device, dtype, non_blocking=True),
            batch.y_BG.to(self.device, dtype, non_blocking=True),
            self.tables.mask_CG[ids_U],
            self.tables.origin(batch),
            window.share_C[condition_B],
            self.config,
        )
