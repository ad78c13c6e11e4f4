"""The cells objective: every perturbed cell against a control cell, counted over the global batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gears.model.config import ModelConfig
from gears.model.losses import cell_loss
from gears.training.tables import ConditionTables
from gears.training.tasks import Reducer

Evaluate = Callable[[nn.Module, Reducer], dict[str, float]]


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


class CellsTask:
    """Losses of cell batches and the validation metrics of a GEARS run.

    Parameters
    ----------
    tables
        Conditions as tensors on the training device.
    config
        The model's settings (objective options among them).
    evaluate
        ``evaluate(network, reducer) -> metrics``, the same on all workers.
    monitor, lower_is_better
        The metric that chooses the best epoch.
    """

    def __init__(
        self,
        tables: ConditionTables,
        config: ModelConfig,
        evaluate: Evaluate,
        *,
        monitor: str,
        lower_is_better: bool = True,
    ) -> None:
        self.tables, self.config = tables, config
        self._evaluate = evaluate
        self.metric, self.lower_is_better = f"val_{monitor}", lower_is_better

    @property
    def device(self) -> torch.device:
        return self.tables.control_mean_G.device

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

    def loss(self, model: nn.Module, batch: Any, window: CellWindow, position: int) -> Tensor:
        """This worker's part of the global loss, times the number of workers."""
        dtype = self.tables.control_mean_G.dtype
        condition_B = batch.condition.to(self.device)
        ids_U, row_B = torch.unique(condition_B, return_inverse=True)
        cells_U = torch.bincount(row_B, minlength=len(ids_U)).to(dtype)
        pert_row, pert_node = self.tables.members(ids_U)
        delta_UG, logvar_UG = model(pert_row, pert_node, cells_U, window.sizes[position])
        return cell_loss(
            delta_UG,
            logvar_UG,
            row_B,
            batch.x_BG.to(self.device, dtype, non_blocking=True),
            batch.y_BG.to(self.device, dtype, non_blocking=True),
            self.tables.mask_CG[ids_U],
            self.tables.control_mean_G,
            window.share_C[condition_B],
            self.config,
        )

    def evaluate(self, model: nn.Module, loader: Iterable[Any] | None, reducer: Reducer) -> dict[str, float]:
        """Metrics of condition means; no cell is read, so `loader` is not used."""
        return self._evaluate(model, reducer)
