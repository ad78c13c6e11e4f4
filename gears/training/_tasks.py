"""Training tasks: batches of cells or conditions, and tables of conditions on the device, turned into losses."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from gears.conditions import contexts_of, kinds_of
from gears.data.screen._statistics import ConditionStatistics, variance_within
from gears.data.splits._split import perturbed_in
from gears.distributed._world import Reducer
from gears.files._mapped import release, row_blocks
from gears.model._losses import PairMoments, cell_loss, moment_loss
from gears.model.config import ModelConfig
from gears.training._batches import ConditionBatch, GlobalBatch, moved

if TYPE_CHECKING:
    from gears.pertdata import PertData


MOST_BYTES = 1 << 28
"""Of moments that are kept on a GPU: those of Norman et al. 2019 take 34 MB in float32."""


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

        def on_device(table: np.ndarray | None) -> Any:
            # copied: a mapped file cannot be written to, of which torch would warn
            return None if table is None else torch.from_numpy(np.array(table)).to(device, dtype)

        return cls(
            np.cumsum([0, *map(len, nodes)], dtype=np.int64),
            np.array([node for members in nodes for node in members], dtype=np.int64),
            torch.from_numpy(np.array(mask_CG)).to(device),
            on_device(control_mean_G),
            on_device(prior_CG),
            tuple(names),
            _numbers(contexts_of(nodes)),
            _numbers(kinds_of(nodes)),
            on_device(control_mean_BG),
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
        # place of each node within its condition: running number minus the number at which the condition begins
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


def evidence_weights(delta_TG: np.ndarray, variance_G: np.ndarray, n_T: np.ndarray, n_C: np.ndarray) -> np.ndarray:
    """Weights by reliability: the share of an observed change's variance that is not sampling noise, (C, G) float32.

    `delta_TG` are changes of the training conditions against control, `variance_G` the variance of a cell's expression
    within a condition, `n_T` and `n_C` the cells of the training conditions and of those that get weights.
    """
    # With signal variance s (one for all genes, so that genes that respond count as much as they respond) and
    # a cell's variance v_g, the mean of n_c cells has weight s / (s + v_g / n_c), scaled to mean 1 over training.
    total, sampling = float((delta_TG**2).mean()), float((variance_G * (1 / n_T)[:, None]).mean())
    # noise can exceed what was observed: a hundredth of it counts as signal, or every weight would be 0
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
    # cell-gears excludes a condition's genes without counts; nothing then keeps the network from changing them
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
        cell_batch=screen.cell_batch if matched and screen.has_cells else None,
    )


def training_ids(pert_data: PertData) -> np.ndarray:
    """Ids of the perturbed conditions of training, ascending."""
    screen = pert_data.screen
    return np.sort([screen.id_of(condition) for condition in perturbed_in(pert_data.split, "train")])


def _evidence_weights(pert_data: PertData) -> np.ndarray:
    """Weights of every gene of every condition, from the training conditions' cells; 1 for the control."""
    screen, statistics, train = pert_data.screen, pert_data.screen.statistics, training_ids(pert_data)
    perturbed = np.array([not condition.is_control for condition in screen.conditions])
    weight_CG = np.ones((len(screen.conditions), len(screen.gene_names)), dtype=np.float32)
    if len(train):
        n_C, delta_TG = np.asarray(statistics.n, dtype=np.float64), statistics.delta(train)
        variance_G = variance_within(statistics, train)
        weight_CG[perturbed] = evidence_weights(delta_TG, variance_G, n_C[train], n_C[perturbed])
    return weight_CG


class Task(Protocol):
    """A loss per micro-batch and metrics per epoch.

    The engine calls `prepare_window` once per optimiser step with all its micro-batches, on every worker, whatever they
    hold; the sum over micro-batches of the mean over workers of `loss` is the loss of the global window.
    """

    metric: str
    lower_is_better: bool

    def prepare_window(self, batches: Sequence[Any], reducer: Reducer) -> Any: ...
    def loss(self, model: nn.Module, batch: Any, window: Any, position: int) -> torch.Tensor: ...
    def evaluate(self, model: nn.Module, loader: Iterable[Any] | None, reducer: Reducer) -> dict[str, float]: ...


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
    """Part of a GEARS task that does not depend on what its batches hold; `monitor` chooses the best epoch."""

    unit: str  # what a batch has, for the rate in the history

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
        self.device, self.dtype = tables.control_mean_G.device, tables.control_mean_G.dtype
        self._evaluate = evaluate
        self.metric, self.lower_is_better = f"val_{monitor}", lower_is_better

    def over_workers(self, batch: Any, ids: Tensor, reducer: Reducer) -> GlobalBatch:
        return GlobalBatch.of(batch, ids.numpy(), len(self.tables.mask_CG), reducer, self.device)

    def outputs(
        self, model: nn.Module, batch: GlobalBatch, reducer: Reducer, more: Mapping[str, np.ndarray]
    ) -> tuple[dict[str, Tensor], Tensor, Tensor | None]:
        """Tensors on the device (`more`, `ids_U`), and change (U, G) and log-variances of this worker's conditions."""
        arrays = {"ids_U": batch.ids_U, **self.tables.of_network(batch.ids_A), **batch.weights(), **more}
        on_device = moved(arrays, self.device, self.dtype)
        named: dict[str, Any] = {name: on_device[name] for name in ("context", "kind") if name in on_device}
        division = batch.division(on_device, reducer)
        if division is not None:
            named["division"] = division
        delta_UG, logvar_UG = model(on_device["pert_row"], on_device["pert_node"], on_device["weight"], **named)
        return on_device, self.tables.change(delta_UG, on_device["ids_U"]), logvar_UG

    @abc.abstractmethod
    def broken(self, batch: Any) -> Tensor:
        """Ids of conditions of a batch whose data are not finite."""

    def broken_in(self, batches: Sequence[Any]) -> list[str]:
        """Names of conditions of a step whose data are not finite (control means and priors included)."""
        ids = {int(number) for batch in batches for number in self.broken(batch).tolist()}
        names = self.tables.names
        return [names[number] if names else f"condition {number}" for number in sorted(ids)]

    def evaluate(self, model: nn.Module, loader: Iterable[Any] | None, reducer: Reducer) -> dict[str, float]:
        """Metrics of condition means; no cell is read, so `loader` is not used."""
        return self._evaluate(model, reducer)


@dataclass(frozen=True)
class Window:
    """A global accumulation window; the mean over workers of weighted losses is the global loss."""

    share_C: np.ndarray
    """Weight of one cell of each condition, W / (cells of the condition x conditions present), float64; of batches of
    conditions, weight of each condition, W / (conditions of the window)."""
    batches: Sequence[GlobalBatch]  # conditions of each micro-batch over all workers
    reducer: Reducer  # sums over workers


class CellsTask(Objective):
    """Losses of batches of cells."""

    unit = "cells"

    def prepare_window(self, batches: Sequence[Any], reducer: Reducer) -> Window:
        """Count the cells of each condition over micro-batches and workers."""
        global_batches = [self.over_workers(batch, batch.condition, reducer) for batch in batches]
        total_C = sum(batch.cells_WC.sum(axis=0) for batch in global_batches)
        # every condition that is present counts once, however many cells it has here or elsewhere
        share_C = reducer.world_size / (np.maximum(total_C, 1.0) * (total_C > 0).sum())
        return Window(share_C, global_batches, reducer)

    def broken(self, batch: Any) -> Tensor:
        """Ids of conditions with a cell, or a control cell beside it, that is not finite."""
        whole_B = torch.isfinite(batch.x_BG).all(dim=1) & torch.isfinite(batch.y_BG).all(dim=1)
        return torch.unique(batch.condition[~whole_B.cpu()])

    def loss(self, model: nn.Module, batch: Any, window: Window, position: int) -> Tensor:
        """This worker's part of the global loss, times the number of workers."""
        condition_B = batch.condition.numpy()
        here, ids_U = window.batches[position], window.batches[position].ids_U
        more = {"row_B": np.searchsorted(ids_U, condition_B), "share_B": window.share_C[condition_B]}
        if self.tables.cell_batch is not None:
            more["origin_B"] = self.tables.cell_batch[batch.cell.numpy()]
        on_device, delta_UG, logvar_UG = self.outputs(model, here, window.reducer, more)
        return cell_loss(
            delta_UG,
            logvar_UG,
            on_device["row_B"],
            batch.x_BG.to(self.device, self.dtype, non_blocking=True),
            batch.y_BG.to(self.device, self.dtype, non_blocking=True),
            self.tables.mask_CG.index_select(0, on_device["ids_U"]),
            self.tables.origin(on_device.get("origin_B")),
            on_device["share_B"],
            self.config,
        )


class PairTables:
    """Moments over all pairs of a condition's and a control cell, computed in float64."""

    # They lie on a GPU from the first step on, if they take no more than MOST_BYTES there; else those of a step's
    # conditions are computed in each step from tables that stay where they are (mapped files).

    def __init__(self, statistics: ConditionStatistics, direction: str) -> None:
        self._statistics, self._direction = statistics, direction
        self._all_C6G: Tensor | None = None

    def of(self, ids_U: np.ndarray, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Pair moments of U conditions, (U, 6, G): the first six of :class:`PairMoments`."""
        statistics = self._statistics
        tables = (*statistics.pair_moments(ids_U), *self._directions(ids_U))
        moments_U6G = torch.empty(len(ids_U), len(tables), tables[0].shape[1], dtype=dtype)
        for column, values in enumerate(tables):
            moments_U6G[:, column] = torch.from_numpy(values)
        return moments_U6G.to(device, non_blocking=True)

    def _directions(self, ids_U: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Means of the observed direction and its square over all pairs (:mod:`gears.model._losses`), (U, G) each."""
        statistics = self._statistics
        is_smooth = self._direction == "smooth"
        both = (ids_U, statistics.controls_of(ids_U)) if is_smooth else (ids_U,)
        means, squares = [], []
        for rows in both:
            above, below = np.asarray(statistics.above[rows]), np.asarray(statistics.below[rows])
            means.append(above - below)
            squares.append(above + below)
        release(statistics.above, statistics.below)
        if not is_smooth:
            return means[0], squares[0]
        # cell and control cell of a pair are independent: E(a - b) = E a - E b, E(a - b)^2 = E a^2 + E b^2 - 2 E a E b
        pairs = ~statistics.is_control[ids_U][:, None]  # a control cell is paired with itself
        return (means[0] - means[1]) * pairs, (squares[0] + squares[1] - 2 * means[0] * means[1]) * pairs

    def on_device(self, ids_U: np.ndarray, ids_on_device: Tensor, dtype: torch.dtype) -> Tensor:
        """The same for a step, from the table on the device where there is one."""
        device, mean_CG = ids_on_device.device, self._statistics.mean
        fit_on_gpu = 6 * mean_CG.size * dtype.itemsize <= MOST_BYTES
        if device.type == "cpu" or not fit_on_gpu:  # on the CPU all workers share the mapped files
            return self.of(ids_U, dtype, device)
        if self._all_C6G is None:
            every, blocks = np.arange(len(mean_CG)), row_blocks(len(mean_CG), 6 * mean_CG.shape[1])
            self._all_C6G = torch.cat([self.of(every[rows], dtype, device) for rows in blocks])
        return self._all_C6G.index_select(0, ids_on_device)


class MomentsTask(Objective):
    """Losses of batches of conditions: each counts once, in the loss and in the batch norms; `pairs` has moments."""

    unit = "conditions"

    def __init__(self, tables: ConditionTables, pairs: PairTables, *options: Any, **monitor: Any) -> None:
        super().__init__(tables, *options, **monitor)
        self.pairs = pairs

    def broken(self, batch: ConditionBatch) -> Tensor:
        """Ids of conditions whose moments are not finite."""
        moments_U6G = self.pairs.of(batch.ids.numpy(), torch.float64, torch.device("cpu"))
        return batch.ids[~torch.isfinite(moments_U6G).all(dim=2).all(dim=1)]

    def prepare_window(self, batches: Sequence[ConditionBatch], reducer: Reducer) -> Window:
        """Counts of the conditions by micro-batch; workers know them without asking the others."""
        share = reducer.world_size / sum(batch.n_all for batch in batches)
        share_C = np.full(len(self.tables.mask_CG), share)
        return Window(share_C, [self.over_workers(batch, batch.ids, reducer) for batch in batches], reducer)

    def loss(self, model: nn.Module, batch: ConditionBatch, window: Window, position: int) -> Tensor:
        """This worker's part of the global loss, times the number of workers."""
        here, ids_U = window.batches[position], window.batches[position].ids_U
        more = {"share_U": window.share_C[ids_U]}
        on_device, delta_UG, logvar_UG = self.outputs(model, here, window.reducer, more)
        moments_U6G = self.pairs.on_device(ids_U, on_device["ids_U"], self.dtype)
        mask_UG = self.tables.mask_CG.index_select(0, on_device["ids_U"])
        moments = PairMoments(*(*moments_U6G.unbind(1), mask_UG, on_device["share_U"]))
        return moment_loss(delta_UG, logvar_UG, moments, self.config)
