"""Batches over all workers, counted on the host, and their way to the training device.

A device would have to be waited for before the host knew which conditions a batch holds, so everything that is counted
is counted on the host, where the batches come from, and goes to the device in two copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gears.data.loaders import TrainingSampler
from gears.distributed.world import Reducer
from gears.model.division import Division


@dataclass(frozen=True)
class GlobalBatch:
    """Conditions of one micro-batch over all workers.

    Attributes
    ----------
    cells_WC
        Cells of each condition (1 for a batch of conditions) on each worker.
    rank
        This worker.
    """

    cells_WC: np.ndarray
    rank: int

    @classmethod
    def of(
        cls, batch: Any, ids: np.ndarray, n_conditions: int, reducer: Reducer, device: torch.device
    ) -> GlobalBatch:
        """Of a batch with `ids` on this worker.

        Where the batch does not say what the others have (``of_workers``), they are asked, which waits for the device.
        """
        of_workers = getattr(batch, "of_workers", None)
        if of_workers is None or reducer.world_size == 1:
            of_workers = [ids]
        cells_WC = np.stack([np.bincount(one, minlength=n_conditions) for one in of_workers])
        if len(cells_WC) < reducer.world_size:
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
        for worker, own in enumerate(rows):
            rows_WU[worker, : len(own)] = own
            weight_WU[worker, : len(own)] = self.cells_WC[worker, ids_A[own]]
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
    for kind, kind_dtype in (("i", torch.int64), ("f", dtype)):
        some = {name: array for name, array in arrays.items() if array.dtype.kind == kind}
        if not some:
            continue
        flat = torch.from_numpy(np.concatenate([array.ravel() for array in some.values()])).to(kind_dtype)
        if device.type == "cuda":
            flat = flat.pin_memory()
        parts = flat.to(device, non_blocking=True).split([array.size for array in some.values()])
        tensors |= {name: part.view(some[name].shape) for name, part in zip(some, parts, strict=True)}
    return tensors


class CellsOfWorkers:
    """A loader of cells whose batches say which conditions the other workers have (``of_workers``).

    The order of the cells depends on seed and epoch alone, so every worker knows that of the others.
    """

    def __init__(self, loader: Any) -> None:
        self.loader, self.dataset, self.sampler = loader, loader.dataset, loader.sampler
        self.batch_size = loader.batch_size

    def __len__(self) -> int:
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """New order of the cells and new control partners, the same for all workers."""
        self.loader.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.loader)
        condition_N = self.dataset.screen.cell_condition[self.dataset.cells]
        workers = range(self.sampler.num_replicas)
        places = zip(*(self.sampler.batches(rank) for rank in workers), strict=True)
        for of_workers, batch in zip(places, batches, strict=True):
            batch.of_workers = [condition_N[own] for own in of_workers]
            yield batch


def with_other_workers(loader: Any, world_size: int) -> Any:
    """The loader, with what the other workers have where its order says so."""
    sampler = getattr(loader, "sampler", None)
    is_divided = isinstance(sampler, TrainingSampler) and sampler.num_replicas == world_size
    return CellsOfWorkers(loader) if is_divided else loader
