"""Training tasks: batches of cells or of conditions turned into losses of the global batch."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from gears.data.screen.statistics import ConditionStatistics
from gears.distributed.world import Reducer
from gears.files.mapped import release
from gears.model.config import ModelConfig
from gears.model.losses import PairMoments, cell_loss, moment_loss
from gears.training.tables import ConditionTables

if TYPE_CHECKING:
    from gears.pertdata import PertData


class Task(Protocol):
    """A loss per micro-batch and metrics per epoch.

    The engine calls `prepare_window` once per optimiser step with all its micro-batches, on every worker, whatever they
    hold; the sum over micro-batches of the mean over workers of `loss` is the loss of the global window.
    """

    metric: str
    lower_is_better: bool

    def prepare_window(self, batches: Sequence[Any], reducer: Reducer) -> Any: ...
    def loss(self, model: nn.Module, batch: Any, window: Any, position: int) -> torch.Tensor: ...
    def evaluate(
        self, model: nn.Module, loader: Iterable[Any] | None, reducer: Reducer
    ) -> dict[str, float]: ...


class SupervisedTask:
    """Inputs and targets with a criterion that means over samples (``reduction="mean"``)."""

    metric = "val_loss"
    lower_is_better = True

    def __init__(self, criterion: Callable[..., torch.Tensor], device: torch.device) -> None:
        self.criterion = criterion
        self.device = device

    def prepare_window(self, batches: Sequence[Any], reducer: Reducer) -> float:
        """Samples in the global window, per worker."""
        count = torch.tensor([sum(len(inputs) for inputs, _ in batches)], dtype=torch.float32)
        return float(reducer.sum(count.to(self.device))) / reducer.world_size

    def loss(self, model: nn.Module, batch: Any, window: float, position: int) -> torch.Tensor:
        """The worker's share of the mean over the global window, times the number of workers."""
        inputs, targets = (part.to(self.device) for part in batch)
        return self.criterion(model(inputs), targets) * (len(inputs) / window)

    def evaluate(self, model: nn.Module, loader: Iterable[Any] | None, reducer: Reducer) -> dict[str, float]:
        """Mean loss over all workers' samples: sums and counts are reduced, never means."""
        if loader is None:
            return {}
        totals = torch.zeros(2, dtype=torch.float64)
        for inputs, targets in loader:
            value = self.criterion(model(inputs.to(self.device)), targets.to(self.device))
            totals += torch.tensor([float(value) * len(inputs), len(inputs)], dtype=torch.float64)
        total, count = reducer.sum(totals.to(self.device)).tolist()
        return {"val_loss": total / count if count else float("nan")}


Evaluate = Callable[[nn.Module, Reducer], dict[str, float]]


class Objective(abc.ABC):
    """Part of a GEARS task that does not depend on what its batches hold.

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

    @abc.abstractmethod
    def broken(self, batch: Any) -> Tensor:
        """Ids of conditions of a batch whose data are not finite."""

    def broken_in(self, batches: Sequence[Any]) -> list[str]:
        """Names of conditions of a step whose data are not finite (control means and priors included)."""
        found = {int(number) for batch in batches for number in self.broken(batch).tolist()}
        names = self.tables.names
        return [names[number] if names else f"condition {number}" for number in sorted(found)]

    def evaluate(self, model: nn.Module, loader: Iterable[Any] | None, reducer: Reducer) -> dict[str, float]:
        """Metrics of condition means; no cell is read, so `loader` is not used."""
        return self._evaluate(model, reducer)


@dataclass(frozen=True)
class Window:
    """Counts of a global accumulation window; the mean over workers of weighted losses is the global loss.

    Attributes
    ----------
    share
        Of batches of cells: weight of one cell of each condition on this worker, (C,), W / (cells of the condition x
        conditions present). Of batches of conditions: weight of one condition, W / (conditions of the window).
    sizes
        Cells or conditions of each micro-batch over all workers.
    """

    share: Tensor
    sizes: Tensor


class CellsTask(Objective):
    """Losses of cell batches and the validation metrics of a GEARS run (see :class:`Objective`)."""

    unit = "cells"

    def prepare_window(self, batches: Sequence[Any], reducer: Reducer) -> Window:
        """Sum the cells of each condition over micro-batches and workers (one reduction)."""
        n_conditions = len(self.tables.mask_CG)
        present = torch.cat([batch.condition for batch in batches])
        counts = torch.bincount(present, minlength=n_conditions).double()
        sizes = torch.tensor([len(batch.condition) for batch in batches], dtype=torch.float64)
        total = reducer.sum(torch.cat([counts, sizes]).float().to(self.device))
        total_C, total_sizes = total[:n_conditions].double(), total[n_conditions:]
        n_present = (total_C > 0).sum()
        share_C = torch.where(total_C > 0, reducer.world_size / (total_C.clamp(min=1) * n_present), 0.0)
        return Window(share_C.to(self.tables.control_mean_G.dtype), total_sizes)

    def broken(self, batch: Any) -> Tensor:
        """Ids of conditions with a cell, or a control cell beside it, that is not finite."""
        whole_B = torch.isfinite(batch.x_BG).all(dim=1) & torch.isfinite(batch.y_BG).all(dim=1)
        return torch.unique(batch.condition[~whole_B.cpu()])

    def loss(self, model: nn.Module, batch: Any, window: Window, position: int) -> Tensor:
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
            window.share[condition_B],
            self.config,
        )


class ConditionBatch(NamedTuple):
    """Ids of this worker's conditions of a batch, (U,) int64, and its number of conditions over all workers."""

    ids: Tensor
    n_all: int


class ConditionLoader:
    """Batches of condition ids; an epoch is one or more passes over the training conditions.

    The conditions of each pass are permuted by (seed, epoch, pass). Batch s of a pass takes the positions
    from ``s * per_step`` on, worker r every W-th of them: W workers together see what one
    worker would. The last batch of a pass may be smaller, and a worker may have none of
    its conditions; nothing is dropped, and nothing is repeated within a pass.

    Parameters
    ----------
    conditions
        Condition ids, (n,).
    per_step
        Conditions of a batch over all workers.
    least
        Batches of an epoch, at least: an epoch is as many whole passes as that takes.
    """

    def __init__(
        self,
        conditions: Sequence[int] | np.ndarray,
        per_step: int,
        *,
        least: int = 1,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.conditions = np.asarray(conditions, dtype=np.int64)
        self.per_step, self.seed = per_step, seed
        self.rank, self.world_size = rank, world_size
        self.passes = max(1, -(-least // self._batches_per_pass))
        self.epoch = 0
        # the engine tells a loader's data set which epoch begins
        self.dataset = self

    def set_epoch(self, epoch: int) -> None:
        """Another order of the conditions, the same for all workers."""
        self.epoch = epoch

    @property
    def _batches_per_pass(self) -> int:
        return -(-len(self.conditions) // self.per_step)

    def __len__(self) -> int:
        return self.passes * self._batches_per_pass

    def __iter__(self) -> Iterator[ConditionBatch]:
        draw = np.random.Generator(np.random.Philox(key=[self.seed, self.epoch]))
        for _ in range(self.passes):
            order = self.conditions[draw.permutation(len(self.conditions))]
            for start in range(0, len(order), self.per_step):
                batch = order[start : start + self.per_step]
                own = batch[self.rank :: self.world_size].copy()
                yield ConditionBatch(torch.from_numpy(own), len(batch))


class PairTables:
    """Moments over all pairs of a condition's and a control cell, made for the conditions of a step in float64.

    The tables stay where they are (mapped files): no tensor over all conditions is made.
    """

    def __init__(self, statistics: ConditionStatistics) -> None:
        self._statistics = statistics

    def of(self, ids_U: np.ndarray, mask_UG: Tensor, weight_U: Tensor, dtype: torch.dtype) -> PairMoments:
        """Pair moments of U conditions: computed in float64, then of `dtype` on the device of `mask_UG`."""
        statistics = self._statistics
        above, below = np.asarray(statistics.above[ids_U]), np.asarray(statistics.below[ids_U])
        release(statistics.above, statistics.below)
        mean_d, v2, v3, v4, sign_mean, sign_sq = (
            torch.from_numpy(values).to(dtype).to(mask_UG.device, non_blocking=True)
            for values in (*statistics.pair_moments(ids_U), above - below, above + below)
        )
        return PairMoments(mean_d, v2, v3, v4, sign_mean, sign_sq, mask_UG, weight_U)


class MomentsTask(Objective):
    """Losses of batches of conditions and the validation metrics of a GEARS run.

    Each condition of a step counts once, in the loss and in the batch norms; `pairs` has their moments.
    """

    unit = "conditions"

    def __init__(self, tables: ConditionTables, pairs: PairTables, *options: Any, **monitor: Any) -> None:
        super().__init__(tables, *options, **monitor)
        self.pairs = pairs

    def broken(self, batch: ConditionBatch) -> Tensor:
        """Ids of conditions whose moments are not finite."""
        ids_U = batch.ids
        weight_U = torch.ones(len(ids_U), dtype=torch.float64)
        mask_UG = self.tables.mask_CG.cpu()[ids_U]
        moments = self.pairs.of(ids_U.numpy(), mask_UG, weight_U, torch.float64)
        return ids_U[~torch.stack([torch.isfinite(part).all(dim=1) for part in moments[:6]]).all(dim=0)]

    def prepare_window(self, batches: Sequence[ConditionBatch], reducer: Reducer) -> Window:
        """Counts of the conditions by micro-batch; every worker knows them without asking the others."""
        dtype = self.tables.control_mean_G.dtype
        sizes = torch.tensor([float(batch.n_all) for batch in batches], dtype=dtype).to(self.device)
        return Window(reducer.world_size / sizes.sum(), sizes)

    def loss(self, model: nn.Module, batch: ConditionBatch, window: Window, position: int) -> Tensor:
        """This worker's part of the global loss, times the number of workers."""
        dtype = self.tables.control_mean_G.dtype
        ids_U = batch.ids.to(self.device)
        pert_row, pert_node = self.tables.members(ids_U)
        once_U = torch.ones(len(ids_U), dtype=dtype, device=self.device)
        where = self.tables.placing(ids_U)
        delta_UG, logvar_UG = model(pert_row, pert_node, once_U, window.sizes[position], **where)
        moments = self.pairs.of(batch.ids.numpy(), self.tables.mask_CG[ids_U], once_U * window.share, dtype)
        return moment_loss(self.tables.change(delta_UG, ids_U), logvar_UG, moments, self.config)


def pair_tables(pert_data: PertData) -> PairTables:
    """Moments of all conditions of a screen."""
    return PairTables(pert_data.screen.statistics)
