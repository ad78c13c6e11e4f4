"""Batches of conditions and cells: this worker's, what the other workers have, and their way to the training device.

A device would have to be waited for before the host knew which conditions a batch holds, so everything that is counted
is counted on the host, where the batches come from, and goes to the device in two copies.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from gears.data._loaders import CellBatch, CellLoader, TrainingSampler, parts_of_workers
from gears.distributed._world import Reducer, World
from gears.model.layers import Division
from gears.training.options import STEPS_PER_EPOCH, TrainOptions

if TYPE_CHECKING:
    from gears.pertdata import PertData


class Loader(Protocol):
    """Batches of a training of the network."""

    @property
    def per_step(self) -> int: ...  # most conditions (cells) of a batch over all workers
    @property
    def batch_size(self) -> int: ...  # the same on this worker
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...
    def set_epoch(self, epoch: int) -> None: ...


@dataclass(frozen=True)
class ConditionBatch:
    """Conditions of a batch."""

    ids: Tensor  # ids of this worker's conditions, (U,) int64
    n_all: int  # number of conditions over all workers
    of_workers: Sequence[np.ndarray] | None = None
    """Ids of each worker's conditions; None where they are not known."""

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, start: int, step: int) -> ConditionBatch:
        """Every `step`-th condition of each worker from one on: the batch of one of ``step * W`` workers."""
        return ConditionBatch(self.ids[start::step], self.n_all, parts_of_workers(self.of_workers, step))


class ConditionLoader:
    """Batches of condition ids; an epoch is as many passes over the training conditions as `least` batches take.

    Worker r takes every W-th condition of a batch, so W workers together see what one worker would; a worker may have
    none of them. Nothing is dropped, and nothing is repeated within a pass.
    """

    # The conditions of each pass are permuted by (seed, epoch, pass) and divided into batches of equal size, differing
    # by one at most: a small last batch would ruin the statistics of batch norms, whose running means and variances
    # count each batch alike.

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

    def set_epoch(self, epoch: int) -> None:
        """Another order of the conditions, the same for all workers."""
        self.epoch = epoch

    @property
    def batch_size(self) -> int:
        return -(-self.per_step // self.world_size)

    @property
    def _batches_per_pass(self) -> int:
        return -(-len(self.conditions) // self.per_step)

    def __len__(self) -> int:
        return self.passes * self._batches_per_pass

    def __iter__(self) -> Iterator[ConditionBatch]:
        draw = np.random.Generator(np.random.Philox(key=[self.seed, self.epoch]))
        for _ in range(self.passes):
            order = self.conditions[draw.permutation(len(self.conditions))]
            for batch in np.array_split(order, self._batches_per_pass):
                shares = [batch[rank :: self.world_size] for rank in range(self.world_size)]
                yield ConditionBatch(torch.from_numpy(shares[self.rank].copy()), len(batch), shares)


class CellsOfWorkers:
    """The batches of a PertData's loader of training cells."""

    # The order of the cells depends on seed and epoch alone, so every worker knows which conditions the others have:
    # batches say so (`of_workers`) where the loader divides its cells among as many workers as train.

    def __init__(self, loader: CellLoader, world_size: int, device: torch.device) -> None:
        self.loader = loader
        self.batch_size = int(loader.batch_size)  # type: ignore[arg-type]
        self.per_step = self.batch_size * world_size
        # pinning initialises CUDA, which a run on the CPU leaves alone
        loader.pin_memory = device.type == "cuda"
        sampler = loader.sampler
        self._sampler: TrainingSampler | None = None
        if isinstance(sampler, TrainingSampler) and sampler.num_replicas == world_size:
            self._sampler = sampler

    def __len__(self) -> int:
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """New order of the cells and new control partners, the same for all workers."""
        self.loader.set_epoch(epoch)

    def __iter__(self) -> Iterator[CellBatch]:
        if self._sampler is None:
            yield from self.loader
            return
        dataset: Any = self.loader.dataset
        condition_N = dataset.screen.cell_condition[dataset.cells]
        batches = iter(self.loader)
        workers = range(self._sampler.num_replicas)
        cells_of_workers = zip(*(self._sampler.batches(rank) for rank in workers), strict=True)
        for cells_W, batch in zip(cells_of_workers, batches, strict=True):
            batch.of_workers = [condition_N[cells] for cells in cells_W]
            yield batch


def training_batches(pert_data: PertData, options: TrainOptions, worker: World) -> Loader:
    """This worker's batches, by options with defaults filled in: training conditions, or the PertData's cell batches.

    Raises ValueError if the split trains nothing, or the PertData's batches of cells have another size.
    """
    split = pert_data.split
    if split is None or "train" not in split.parts:
        msg = "there are no training batches: the split has no training part; prepare one that has"
        raise ValueError(msg)
    if options.objective == "moments":
        ids = np.sort([pert_data.screen.id_of(condition) for condition in split.conditions("train")])
        per_batch = options.conditions_per_step(len(ids), worker.world_size)
        least = STEPS_PER_EPOCH * options.accumulation_steps
        return ConditionLoader(
            ids, per_batch, least=least, seed=split.seed, rank=worker.rank, world_size=worker.world_size
        )
    size = options.batch_size
    assert size is not None
    loader = (pert_data.dataloader or {}).get("train_loader")
    if loader is None:
        loader = pert_data.get_dataloader_distributed(size, None, worker.world_size, worker.rank, 0)["train_loader"]
    if loader.batch_size != size:
        msg = f"batch_size={size} but get_dataloader made batches of {loader.batch_size} cells; omit one of them"
        raise ValueError(msg)
    return CellsOfWorkers(loader, worker.world_size, worker.device)


@dataclass(frozen=True)
class GlobalBatch:
    """Conditions of one micro-batch over all workers."""

    cells_WC: np.ndarray  # cells of each condition (1 for a batch of conditions) on each worker
    rank: int  # this worker

    @classmethod
    def of(cls, batch: Any, ids: np.ndarray, n_conditions: int, reducer: Reducer, device: torch.device) -> GlobalBatch:
        """Of a batch with `ids` on this worker."""
        known = batch.of_workers is not None and reducer.world_size > 1
        ids_of_workers = batch.of_workers if known else [ids]
        cells_WC = np.stack([np.bincount(ids_A, minlength=n_conditions) for ids_A in ids_of_workers])
        if len(cells_WC) < reducer.world_size:  # the others are asked, which waits for the device
            cells_WC = reducer.gather(torch.from_numpy(cells_WC[0]).to(device)).cpu().numpy()
        return cls(cells_WC, reducer.rank)

    @property
    def ids_A(self) -> np.ndarray:
        """Conditions of the global batch, ascending."""
        return np.flatnonzero(self.cells_WC.any(axis=0))

    @property
    def ids_U(self) -> np.ndarray:
        """Conditions of this worker, ascending."""
        return np.flatnonzero(self.cells_WC[self.rank])

    def weights(self) -> dict[str, np.ndarray]:
        """Cells of the global batch's conditions, ``weight`` (A,), and how workers divide them (:class:`Division`).

        ``rows_WU`` and ``weight_WU`` are there with several workers only.
        """
        ids_A = self.ids_A
        weight = {"weight": self.cells_WC[:, ids_A].sum(axis=0).astype(np.float64)}
        if len(self.cells_WC) == 1:
            return weight
        rows = [np.flatnonzero(cells_A) for cells_A in self.cells_WC[:, ids_A]]
        rows_WU = np.zeros((len(rows), max(map(len, rows))), dtype=np.int64)
        weight_WU = np.zeros(rows_WU.shape)
        for worker, rows_U in enumerate(rows):
            rows_WU[worker, : len(rows_U)] = rows_U
            weight_WU[worker, : len(rows_U)] = self.cells_WC[worker, ids_A[rows_U]]
        return weight | {"rows_WU": rows_WU, "weight_WU": weight_WU}

    def division(self, tensors: Mapping[str, Tensor], reducer: Reducer) -> Division | None:
        """What the network's forward takes, from the tensors of :meth:`weights`; None for one worker."""
        if reducer.world_size == 1:
            return None
        sizes = tuple(int(n) for n in (self.cells_WC > 0).sum(axis=1))
        return Division(tensors["rows_WU"], tensors["weight_WU"], sizes, reducer)


def moved(arrays: Mapping[str, np.ndarray], device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    """Small arrays as tensors on a device: one copy for whole numbers and one for others, which become `dtype`."""
    tensors: dict[str, Tensor] = {}
    for numpy_kind, tensor_dtype in (("i", torch.int64), ("f", dtype)):
        alike = {name: array for name, array in arrays.items() if array.dtype.kind == numpy_kind}
        if not alike:
            continue
        flat = torch.from_numpy(np.concatenate([array.ravel() for array in alike.values()])).to(tensor_dtype)
        if device.type == "cuda":
            flat = flat.pin_memory()
        parts = flat.to(device, non_blocking=True).split([array.size for array in alike.values()])
        tensors |= {name: part.view(alike[name].shape) for name, part in zip(alike, parts, strict=True)}
    return tensors


def set_epoch(loader: Any, epoch: int) -> None:
    """Call ``set_epoch`` of a loader, its sampler and its data set, where they have it."""
    targets: tuple[Any, ...] = (loader, getattr(loader, "sampler", None), getattr(loader, "dataset", None))
    for target in targets:
        if hasattr(target, "set_epoch"):
            target.set_epoch(epoch)


def windows(
    loader: Iterable[Any], size: int, *, skip: int = 0, skipped: Callable[[], None] = lambda: None
) -> Iterator[list[Any]]:
    """Group batches into windows of `size` (the last may be smaller), after `skip` windows and a call of `skipped`."""
    if skip == 0:  # before the loader is opened, because opening may draw random numbers
        skipped()
    batches = iter(loader)
    for _ in range(skip * size):
        next(batches, None)
    if skip > 0:
        skipped()
    while window := list(itertools.islice(batches, size)):
        yield window


def check_equal_lengths(loader: Iterable[Any], reducer: Reducer, device: torch.device) -> None:
    """Raise ValueError before the first step if the workers' loaders have different numbers of batches."""
    if not isinstance(loader, Sized):
        return
    length = torch.tensor([float(len(loader))], dtype=torch.float32, device=device)
    lengths = reducer.gather(length).flatten().tolist()
    if len(set(lengths)) > 1:
        msg = f"the workers' loaders have different numbers of batches: {[int(n) for n in lengths]}"
        raise ValueError(msg)
