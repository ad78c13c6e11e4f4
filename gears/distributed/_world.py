"""The rank of this process among the workers, and reductions that also work in a single process."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

logger = logging.getLogger(__name__)

# The function was renamed in torch 2.13, where the old name warns.
_gather_into = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class World:
    """A worker: global rank, rank on this machine, number of workers, device."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    device: torch.device = torch.device("cpu")


_current: World | None = None


def set_world(world: World | None) -> None:
    """Remember this worker (called when its process group is set up or ended)."""
    global _current
    _current = world


def current_world() -> World:
    """The worker that this process is; rank 0 of 1 when no process group is running."""
    if not is_running():
        return World()
    if _current is not None and _current.world_size == dist.get_world_size():
        return _current
    device = torch.device("cpu")
    if torch.cuda.is_available() and "nccl" in dist.get_backend():
        device = torch.device("cuda", torch.cuda.current_device())
    return World(dist.get_rank(), local_rank_of(dist.get_rank()), dist.get_world_size(), device)


def is_running() -> bool:
    """Whether this process belongs to an initialised process group."""
    return dist.is_available() and dist.is_initialized()


def is_main_process() -> bool:
    """True on rank 0 and in a process that is no worker."""
    return not is_running() or dist.get_rank() == 0


def barrier() -> None:
    """Wait for all workers; returns at once in a single process."""
    if is_running():
        dist.barrier()


def reduce_tensor(tensor: torch.Tensor, op: str = "mean") -> torch.Tensor:
    """Mean (or ``"sum"``, ``"max"``, ``"min"``) of a tensor over all workers; the tensor itself in one process.

    A mean of the workers' means is wrong where their counts differ: reduce sums and counts with ``op="sum"``, and
    divide.
    """
    return (GroupReducer() if is_running() else IDENTITY).reduce(tensor, op)


def _operation(op: str) -> Any:
    """Operation of ``torch.distributed``; that of a mean is a sum, which is divided afterwards (gloo has no mean)."""
    names = {"mean": "SUM", "sum": "SUM", "max": "MAX", "min": "MIN"}
    if op not in names:
        msg = f"unknown reduction {op!r}; expected one of {', '.join(names)}"
        raise ValueError(msg)
    return getattr(dist.ReduceOp, names[op])


def _need_group() -> None:
    if not is_running():
        msg = "the process group has ended; reduce tensors and save checkpoints before it is cleaned up"
        raise RuntimeError(msg)


class Reducer:
    """Sums and gathers over workers, as layers and tasks use them; this class is for a single process.

    Those of a :class:`GroupReducer` are collectives: every worker must call them in the same order with tensors of the
    same shape and type. Results carry no gradient; layers that need one have their own ``torch.autograd.Function``.
    """

    rank = 0
    world_size = 1
    seconds = 0.0  # that reductions took

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over workers, a new tensor of the same shape."""
        return tensor.detach().clone()

    def reduce(self, tensor: torch.Tensor, op: str) -> torch.Tensor:
        """Mean, sum, max or min over workers (see :func:`reduce_tensor`)."""
        _operation(op)
        return tensor

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """All workers' tensors, shape (world size, ...), rank by rank."""
        return tensor.detach().unsqueeze(0)

    def add_up(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over workers, in the tensor itself, which is returned."""
        return tensor

    def from_main(self, tensors: Sequence[torch.Tensor]) -> None:
        """Give tensors of one type and device the values that they have on rank 0, in place."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Reducer:
        """A copied model (such as a moving average) uses the same reducer; a process group cannot be copied."""
        return self


IDENTITY = Reducer()


class GroupReducer(Reducer):
    """Reductions over the running process group, with the time they took."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.seconds = 0.0

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.add_up(tensor.detach().clone())

    def reduce(self, tensor: torch.Tensor, op: str) -> torch.Tensor:
        _need_group()
        result = tensor.detach().clone()
        dist.all_reduce(result, op=_operation(op))
        return result / self.world_size if op == "mean" else result

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        _need_group()
        start = time.perf_counter()
        tensor = tensor.detach().contiguous()
        result = tensor.new_empty((self.world_size * tensor.numel(),))
        _gather_into(result, tensor.view(-1))
        self.seconds += time.perf_counter() - start
        return result.view(self.world_size, *tensor.shape)

    def add_up(self, tensor: torch.Tensor) -> torch.Tensor:
        _need_group()
        start = time.perf_counter()
        dist.all_reduce(tensor)
        self.seconds += time.perf_counter() - start
        return tensor

    def from_main(self, tensors: Sequence[torch.Tensor]) -> None:
        _need_group()
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        dist.broadcast(flat, src=0)
        parts = flat.split([tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.detach().copy_(part.view_as(tensor))


@dataclass(frozen=True)
class Ranks:
    """Ranks of this process and numbers of workers, as the launcher sets them in the environment."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int

    @classmethod
    def read(cls) -> Ranks | None:
        """Read RANK, LOCAL_RANK and WORLD_SIZE; None where no launcher set them, ValueError where they contradict."""
        if not all(os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR")):
            return None
        rank, size = _number("RANK"), _number("WORLD_SIZE")
        local, local_size = local_rank_of(rank), _number("LOCAL_WORLD_SIZE", size)
        if not (0 <= rank < size and 0 <= local < local_size <= size):
            msg = (
                f"RANK={rank}, WORLD_SIZE={size}, LOCAL_RANK={local}, LOCAL_WORLD_SIZE={local_size} describe no "
                "worker; ranks run from 0 to the number of workers minus 1: start with torchrun, which sets them"
            )
            raise ValueError(msg)
        return cls(rank, local, size, local_size)

    @classmethod
    def current(cls) -> Ranks | None:
        """Ranks in the launcher's world or, without one or in another, in the running process group."""
        ranks = cls.read()
        if is_running():
            world = current_world()
            if ranks is None or (ranks.rank, ranks.world_size) != (world.rank, world.world_size):
                return cls(world.rank, world.local_rank, world.world_size, world.world_size)
        return ranks


def local_rank_of(rank: int) -> int:
    """Rank of this process on its machine: LOCAL_RANK, or its global rank where that is not set."""
    return _number("LOCAL_RANK", rank)


def missing_variables() -> list[str]:
    """Those of the launcher's :data:`VARIABLES` that are not set."""
    return [name for name in VARIABLES if not os.environ.get(name)]


def _number(name: str, default: int | None = None) -> int:
    text = os.environ.get(name)
    if not text and default is not None:
        return default
    try:
        return int(text or "")
    except ValueError:
        msg = f"the variable {name} is {text!r}; expected a whole number, as torchrun sets it"
        raise ValueError(msg) from None


def started_by_launcher() -> bool:
    """Whether this process is a worker of torchrun (and so must not start workers itself)."""
    ranks = Ranks.read()
    if is_running() or ranks is None:
        return is_running()
    # what an image or an earlier job left there; a larger world may be of workers that were started by hand
    if ranks.world_size == 1 and "TORCHELASTIC_RUN_ID" not in os.environ:
        logger.warning(
            "RANK=0 and WORLD_SIZE=1 are set, but no launcher started this process: they are ignored (unset them to "
            "avoid this warning)"
        )
        return False
    return True
