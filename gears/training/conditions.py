"""The moments objective: batches of training conditions, no cell touched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from gears.data.statistics import ConditionStatistics
from gears.mapped import release
from gears.model.config import ModelConfig
from gears.model.losses_moments import CentralMoments, PairMoments, moment_loss, pair_moments
from gears.training.objective import Evaluate, Objective
from gears.training.tables import ConditionTables
from gears.training.tasks import Reducer

_MOMENTS = ("mean", "m2", "m3", "m4")


class ConditionBatch(NamedTuple):
    """This worker's conditions of a batch.

    Attributes
    ----------
    ids
        Condition ids, (U,) int64.
    n_all
        Conditions of the batch over all workers.
    """

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
    seed
        Seed of the permutations.
    rank, world_size
        This worker's number and how many there are.
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
    """Moments over all pairs of cells, made for the conditions of a step from a screen's float64 tables.

    The tables stay where they are (mapped files): no tensor over all conditions is made.

    Parameters
    ----------
    statistics
        With shares of cells above and below the control mean.
    """

    def __init__(self, statistics: ConditionStatistics) -> None:
        if statistics.above is None or statistics.below is None:
            msg = (
                "the moments objective needs the shares of cells above and below the control mean; "
                "prepare the screen again"
            )
            raise ValueError(msg)
        self._statistics = statistics
        self._above, self._below = statistics.above, statistics.below
        self._control = self._central(np.asarray(statistics.control_id))

    def _central(self, rows: np.ndarray) -> CentralMoments:
        return CentralMoments(*(_taken(getattr(self._statistics, name), rows) for name in _MOMENTS))

    def of(self, ids_U: np.ndarray, mask_UG: Tensor, weight_U: Tensor, dtype: torch.dtype) -> PairMoments:
        """Pair moments of U conditions: computed in float64, then of `dtype` on the device of `mask_UG`.

        Parameters
        ----------
        ids_U
            Condition ids.
        mask_UG, weight_U
            Passed on: genes that count, weight of each condition.
        """
        pairs = pair_moments(self._central(ids_U), self._control)
        # control cells pair with themselves
        own_U1 = torch.from_numpy(ids_U != self._statistics.control_id).double().unsqueeze(1)
        above, below = (_taken(table, ids_U) for table in (self._above, self._below))
        mean_d, v2, v3, v4, sign_mean, sign_sq = (
            value.to(dtype).to(mask_UG.device, non_blocking=True)
            for value in (*(moment * own_U1 for moment in pairs), above - below, above + below)
        )
        return PairMoments(mean_d, v2, v3, v4, sign_mean, sign_sq, mask_UG, weight_U)


def _taken(table: np.ndarray, rows: np.ndarray) -> Tensor:
    """Rows of a table as a tensor of its own; the pages of a large mapped table are let go of."""
    taken = torch.from_numpy(np.array(table[rows]))
    release(table)
    return taken


@dataclass(frozen=True)
class ConditionWindow:
    """Counts of a global accumulation window.

    Attributes
    ----------
    share
        Weight of one condition on this worker, W / K for K conditions in the window; the
        mean over workers of weighted losses is the mean over the K conditions.
    sizes
        Conditions of each micro-batch over all workers.
    """

    share: Tensor
    sizes: Tensor


class MomentsTask(Objective):
    """Losses of batches of conditions and the validation metrics of a GEARS run.

    Each condition of a step counts once, in the loss and in the batch norms.

    Parameters
    ----------
    tables
        Conditions as tensors on the training device.
    pairs
        Moments of the conditions.
    config
        The model's settings (objective options among them).
    evaluate
        ``evaluate(network, reducer) -> metrics``, the same on all workers.
    monitor, lower_is_better
        The metric that chooses the best epoch.
    """

    unit = "conditions"

    def __init__(
        self,
        tables: ConditionTables,
        pairs: PairTables,
        config: ModelConfig,
        evaluate: Evaluate,
        *,
        monitor: str,
        lower_is_better: bool = True,
    ) -> None:
        super().__init__(tables, config, evaluate, monitor=monitor, lower_is_better=lower_is_better)
        self.pairs = pairs

    def broken(self, batch: ConditionBatch) -> Tensor:
        """Ids of conditions whose moments are not finite."""
        ids_U = batch.ids
        weight_U = torch.ones(len(ids_U), dtype=torch.float64)
        mask_UG = self.tables.mask_CG.cpu()[ids_U]
        moments = self.pairs.of(ids_U.numpy(), mask_UG, weight_U, torch.float64)
        return ids_U[~torch.stack([torch.isfinite(part).all(dim=1) for part in moments[:6]]).all(dim=0)]

    def prepare_window(self, batches: Sequence[ConditionBatch], reducer: Reducer) -> ConditionWindow:
        """Counts of the conditions by micro-batch; every worker knows them without asking the others."""
        dtype = self.tables.control_mean_G.dtype
        sizes = torch.tensor([float(batch.n_all) for batch in batches], dtype=dtype).to(self.device)
        return ConditionWindow(reducer.world_size / sizes.sum(), sizes)

    def loss(self, model: nn.Module, batch: ConditionBatch, window: ConditionWindow, position: int) -> Tensor:
        """This worker's part of the global loss, times the number of workers."""
        dtype = self.tables.control_mean_G.dtype
        ids_U = batch.ids.to(self.device)
        pert_row, pert_node = self.tables.members(ids_U)
        once_U = torch.ones(len(ids_U), dtype=dtype, device=self.device)
        where = self.tables.placing(ids_U)
        delta_UG, logvar_UG = model(pert_row, pert_node, once_U, window.sizes[position], **where)
        moments = self.pairs.of(batch.ids.numpy(), self.tables.mask_CG[ids_U], once_U * window.share, dtype)
        return moment_loss(self.tables.change(delta_UG, ids_U), logvar_UG, moments, self.config)
