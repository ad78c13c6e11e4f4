"""This process's place among the workers, and helpers that are no-ops in one process."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class World:
    """Place of this process: global rank, rank on this machine, number of workers, own device."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    device: torch.device = torch.device("cpu")

    @property
    def is_main(self) -> bool:
        return self.rank == 0


_current: World | None = None


def set_world(world: World | None) -> None:
    """Remember this worker's place (called when its process group is set up or ended)."""
    global _current
    _current = world


def current_world() -> World:
    """Place of this process; (0, 0, 1) when no process group is running."""
    if not is_running():
        return World()
    if _current is not None and _current.world_size == dist.get_world_size():
        return _current
    local_rank = int(os.environ.get("LOCAL_RANK", dist.get_rank()))
    device = torch.device("cpu")
    if torch.cuda.is_available() and "nccl" in dist.get_backend():
        device = torch.device("cuda", torch.cuda.current_device())
    return World(dist.get_rank(), local_rank, dist.get_world_size(), device)


def is_running() -> bool:
    """Whether this process belongs to an initialised process group."""
    return dist.is_available() and dist.is_initialized()


def is_main_process() -> bool:
    """True on rank 0 and in a process that is no worker."""
    return not is_running() or dist.get_rank() == 0


def barrier() -> None:
    """Wait for all workers; nothing in one process."""
    if is_running():
        dist.barrier()


def reduce_tensor(tensor: torch.Tensor, op: str = "sum") -> torch.Tensor:
    """Sum (or ``"max"``/``"min"``) of a tensor over all workers; the tensor itself in one process.

    Reduce sums and counts and divide afterwards: a mean of the workers' means is wrong
    when their counts differ.
    """
    operations = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
    if op not in operations:
        msg = f"unknown reduction {op!r}; expected one of {', '.join(operations)}"
        raise ValueError(msg)
    if not is_running():
        return tensor
    result = tensor.detach().clone()
    dist.all_reduce(result, op=operations[op])
    return result


def _need_group() -> None:
    if not is_running():
        msg = "the process group has ended; reduce tensors and save checkpoints before it is cleaned up"
        raise RuntimeError(msg)


class GroupReducer:
    """Sums and gathers over the workers of the running process group, with the time they took.

    Stands where a layer takes the identity reducer of one process. Results carry no
    gradient; layers that need one go through their own ``torch.autograd.Function``.
    """

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.seconds = 0.0

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over workers, a new tensor of the same shape."""
        _need_group()
        start = time.perf_counter()
        result = tensor.detach().clone()
        dist.all_reduce(result)
        self.seconds += time.perf_counter() - start
        return result

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """All workers' tensors, shape (world size, ...), rank by rank."""
        _need_group()
        start = time.perf_counter()
        tensor = tensor.detach().contiguous()
        parts = [torch.empty_like(tensor) for _ in range(self.world_size)]
        dist.all_gather(parts, tensor)
        self.seconds += time.perf_counter() - start
        return torch.stack(parts)

    def __deepcopy__(self, memo: dict[int, Any]) -> GroupReducer:
        """A copy of a model shares the process group (which cannot be copied)."""
        return self
