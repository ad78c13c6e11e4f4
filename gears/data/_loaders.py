"""Batches of cells with paired control cells, and their loaders for one or several workers.

A batch is read at once from the memory-mapped cells. Step s of W workers with batch b sees the cells of step s of one
worker with batch W b (:class:`TrainingSampler`).

Consumers that know batches of the published package find its fields: ``x``, ``y``, ``pert``, ``pert_idx``,
``de_idx``, ``batch``, ``num_graphs`` and ``to(device)``; the other fields are this package's own.
"""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler

from gears.conditions import Condition
from gears.core._messages import count
from gears.core._numbers import whole_number
from gears.core._options import Options, option, options, whole

if TYPE_CHECKING:
    from gears.data.screen._prepared import PreparedScreen
    from gears.data.splits._split import Split

logger = logging.getLogger(__name__)

N_TOP = 20
PART_LOADERS = {"train": "train_loader", "val": "val_loader", "test": "test_loader"}


class CellDataset(Dataset):
    """Some `cells` of a screen, (n,) cell numbers, handed out as whole batches.

    `label_nodes` are the perturbation nodes of each label of the screen, L lists ([-1] for the control); `seed` is
    that of the pairing with control cells.
    """

    def __init__(
        self, screen: PreparedScreen, cells: np.ndarray, label_nodes: Sequence[list[int]], seed: int = 0
    ) -> None:
        self.screen = screen
        self.cells = np.asarray(cells, dtype=np.int64)
        self.label_nodes = list(label_nodes)
        self.seed = seed
        self.epoch = 0
        self._paired: tuple[int, np.ndarray] | None = None
        column = {gene: i for i, gene in enumerate(screen.gene_names)}
        conditions = [screen.conditions[condition] for condition in screen.label_condition]
        self.label_columns = [[column[gene] for gene in one.genes if gene in column] for one in conditions]

    def __len__(self) -> int:
        return len(self.cells)

    def __getstate__(self) -> dict[str, Any]:
        # The pairing is drawn again where it is needed: it is a function of seed and epoch.
        return self.__dict__ | {"_paired": None}

    def set_epoch(self, epoch: int) -> None:
        """Redraw the pairing with control cells for another epoch."""
        self.epoch = epoch

    def control_of(self, cells: np.ndarray) -> np.ndarray:
        """Paired control of each cell in this epoch; control cells pair with themselves."""
        if self._paired is None or self._paired[0] != self.epoch:
            screen = self.screen
            draw = np.random.Generator(np.random.Philox(key=[self.seed, self.epoch]))
            self._paired = (self.epoch, screen.paired_controls(draw))
        is_control = np.isin(self.screen.cell_condition[cells], self.screen.control_ids)
        return np.where(is_control, cells, self._paired[1][cells])

    def __getitem__(self, index: int) -> CellBatch:
        return self.__getitems__([index])

    def __getitems__(self, indices: Sequence[int]) -> CellBatch:
        screen = self.screen
        cells = self.cells[np.asarray(indices, dtype=np.int64)]
        controls = self.control_of(cells)
        values = torch.from_numpy(screen.cells.rows(np.concatenate((controls, cells))))
        x_BG, y_BG = values.split(len(cells))
        labels, label_index = np.unique(screen.cell_label[cells], return_inverse=True)
        return CellBatch(
            x_BG=x_BG,
            y_BG=y_BG,
            condition=torch.from_numpy(screen.cell_condition[cells].astype(np.int64)),
            cell=torch.from_numpy(cells),
            control_cell=torch.from_numpy(controls),
            label_index=torch.from_numpy(label_index.astype(np.int64)),
            label_names=[screen.labels[i] for i in labels],
            label_nodes=[self.label_nodes[i] for i in labels],
            label_de=[self._top(int(screen.label_condition[i])) for i in labels],
            label_columns=[self.label_columns[i] for i in labels],
        )

    def _top(self, condition_id: int) -> np.ndarray:
        ranking = self.screen.de
        if ranking is None:
            return np.array([-1])
        if condition_id in self.screen.control_ids:
            return np.full(min(N_TOP, ranking.n_genes), -1)
        return np.sort(ranking.top(condition_id, N_TOP))


class TrainingSampler(DistributedSampler):
    """Order of the training cells by (seed, epoch), in batches of equal size that workers share.

    An epoch has as few batches of at most `batch_size` cells per worker as hold all cells; their sizes over all workers
    differ by one at most. Worker r takes every W-th cell of a batch. Iterating gives this worker's cells.
    """

    def __init__(self, dataset: Dataset, batch_size: int, world_size: int, rank: int, seed: int) -> None:
        super().__init__(dataset, world_size, rank, seed=seed)
        self.n_cells = len(dataset)  # type: ignore[arg-type]
        # each worker has a cell of every batch
        self.n_batches = max(1, min(-(-self.n_cells // (batch_size * world_size)), self.n_cells // world_size))

    def batches(self, rank: int | None = None) -> list[np.ndarray]:
        """Places of a worker's cells (by default this worker's) in the data set, batch by batch."""
        draw = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.n_cells, generator=draw).numpy()
        start = self.rank if rank is None else rank
        return [batch[start :: self.num_replicas] for batch in np.array_split(order, self.n_batches)]

    def __iter__(self) -> Iterator[int]:
        return (int(place) for batch in self.batches() for place in batch)

    def __len__(self) -> int:
        return sum(map(len, self.batches()))


class _Batches(Sampler[list[int]]):
    """Batches of a :class:`TrainingSampler`, for a DataLoader."""

    def __init__(self, sampler: TrainingSampler) -> None:
        self._sampler = sampler

    def __iter__(self) -> Iterator[list[int]]:
        return (batch.tolist() for batch in self._sampler.batches())

    def __len__(self) -> int:
        return self._sampler.n_batches


class CellLoader(DataLoader):
    """A DataLoader whose :meth:`set_epoch` sets sampler and pairing together.

    `batch_size` of training cells is the largest size of a batch (:class:`TrainingSampler`). Training cells
    that are gone through again without it come in the order and pairing of the next
    epoch: a loop of the user's own shuffles without knowing of epochs.
    """

    _gone_through = False

    def __init__(self, dataset: CellDataset, sampler: Sampler | range, batch_size: int, **options: Any) -> None:
        if not isinstance(sampler, TrainingSampler):
            super().__init__(dataset, batch_size, sampler=sampler, **options)
            return
        super().__init__(dataset, batch_sampler=_Batches(sampler), **options)
        # what torch leaves empty beside a batch sampler, and lets nobody set later
        vars(self).update(sampler=sampler, batch_size=batch_size)

    def __iter__(self) -> Any:
        if self._gone_through and isinstance(self.sampler, TrainingSampler):
            self.set_epoch(self.dataset.epoch + 1)  # type: ignore[attr-defined]
        self._gone_through = True
        return super().__iter__()

    def set_epoch(self, epoch: int) -> None:
        """New order of the cells and new control partners, the same for all workers."""
        if isinstance(self.sampler, TrainingSampler):
            self.sampler.set_epoch(epoch)
        self.dataset.set_epoch(epoch)  # type: ignore[attr-defined]
        self._gone_through = False


@options
class LoaderOptions(Options):
    """Loaders of cells of a training job."""

    kind = "option of the loaders"

    # fmt: off
    test_batch_size: int | None = option(None, whole(1).or_none(),
        help="batch size of validation and test; default: --batch-size")
    num_workers: int = option(0, whole(0), help="loader processes per worker")
    # fmt: on


@dataclass(frozen=True)
class LoaderSettings:
    """Sizes of loaders; `batch_size` counts the cells of one worker's step."""

    batch_size: int
    test_batch_size: int | None = None
    world_size: int = 1
    rank: int = 0
    num_workers: int = 0

    def __post_init__(self) -> None:
        if self.test_batch_size is None:
            object.__setattr__(self, "test_batch_size", self.batch_size)
        least = {"batch_size": 1, "test_batch_size": 1, "world_size": 1, "rank": 0, "num_workers": 0}
        for name, lowest in least.items():
            object.__setattr__(self, name, whole_number(name, getattr(self, name), lowest))
        if self.num_workers and multiprocessing.current_process().daemon:
            why = "a daemonic process may start no others"
            logger.warning("num_workers=%d has no effect: %s", self.num_workers, why)
            object.__setattr__(self, "num_workers", 0)
        if self.rank >= self.world_size:
            msg = f"rank must be from 0 to world_size - 1 = {self.world_size - 1}; found {self.rank}"
            raise ValueError(msg)


def make_loaders(
    screen: PreparedScreen,
    split: Split,
    label_nodes: Sequence[list[int]],
    settings: LoaderSettings,
    *,
    screens: Mapping[str, PreparedScreen] | None = None,
) -> dict[str, CellLoader]:
    """Loaders of a split's parts: "train_loader", "val_loader", "test_loader" (those that it has).

    `label_nodes` are the perturbation nodes of each label; `screens` is the screen as single parts see it (with
    separate control cells). ValueError if the training cells do not fill one global batch.
    """
    loaders = {}
    for part, name in PART_LOADERS.items():
        if part not in split.parts:
            continue
        part_screen = (screens or {}).get(part, screen)
        dataset = CellDataset(part_screen, part_cells(part_screen, split, part), label_nodes, split.seed)
        n_cells, batch_size, n_workers = len(dataset), settings.batch_size, settings.world_size
        if part == "train" and n_cells < batch_size * n_workers:
            msg = (
                f"{n_cells} training cells do not fill one global batch of {batch_size * n_workers} "
                f"({batch_size} cells x {count(n_workers, 'worker')}); use a batch_size of at most "
                f"{max(n_cells // n_workers, 1)}{' or fewer workers' * (n_workers > 1)}"
            )
            raise ValueError(msg)
        # of validation and test every W-th cell from the rank's on: nothing is padded or shuffled
        sampler: Sampler | range = range(settings.rank, n_cells, n_workers)
        size = settings.test_batch_size or batch_size
        if part == "train":
            sampler = TrainingSampler(dataset, batch_size, n_workers, settings.rank, split.seed)
            size = batch_size
        loaders[name] = CellLoader(
            dataset,
            sampler,
            size,
            num_workers=settings.num_workers,
            collate_fn=_as_it_is,
            pin_memory=torch.cuda.is_available(),
            # a separate generator: the caller's random state is not drawn from
            generator=torch.Generator().manual_seed(split.seed),
        )
    return loaders


def part_cells(screen: PreparedScreen, split: Split, part: str) -> np.ndarray:
    """Cells of a part in the screen's order; control cells are no test cells in no_split (as published)."""
    part_labels = set(split.parts[part])
    is_in_part_L = np.array([label in part_labels for label in screen.labels])
    if split.name == "no_split":
        is_in_part_L &= ~np.isin(screen.label_condition, screen.control_ids)
    return np.flatnonzero(is_in_part_L[screen.cell_label])


def _as_it_is(batch: Any) -> Any:
    """Batches leave the dataset whole: nothing is left to collate."""
    return batch


@dataclass
class CellBatch:
    """B cells, each beside the control cell it is paired with.

    Attributes
    ----------
    x_BG, y_BG : torch.Tensor (B, G) float32
        Log-normalised expression of the paired control cell, and of the cell.
    condition : torch.Tensor (B,) int64
        Condition ids of the screen.
    cell, control_cell : torch.Tensor (B,) int64
        Cell numbers of the screen.
    label_index : torch.Tensor (B,) int64
        Position of each cell's label in the lists below, which hold the distinct labels of the batch.
    label_names : list of str
        Labels as the screen spells them.
    label_nodes : list of list of int
        Nodes of the perturbation graph; [-1] for the control.
    label_de : list of np.ndarray
        Top DE genes in ascending order; [-1] * n for the control.
    label_columns : list of list of int
        Columns of the perturbed genes that are measured.
    of_workers : sequence of np.ndarray
        Condition ids of each worker's cells; None where they are not known.
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
    of_workers: Sequence[np.ndarray] | None = None

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

    def part(self, start: int, step: int) -> CellBatch:
        """Every `step`-th cell from one on: the batch of one of ``step * W`` workers."""
        rows: dict[str, Any] = {name: value[start::step].contiguous() for name, value in self._tensors().items()}
        return replace(self, **rows, of_workers=parts_of_workers(self.of_workers, step))

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


def parts_of_workers(of_workers: Sequence[np.ndarray] | None, step: int) -> list[np.ndarray] | None:
    """What each of ``step * W`` workers has of what W workers have: every `step`-th entry of one of them."""
    if of_workers is None:
        return None
    return [entries[start::step] for start in range(step) for entries in of_workers]
