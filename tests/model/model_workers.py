"""Workers emulated by threads: a reducer whose collectives meet at a barrier."""

import threading
from collections.abc import Callable
from typing import Any

import torch

from gears.distributed._world import Reducer


class Meeting:
    """What the workers of one run share."""

    def __init__(self, world_size: int) -> None:
        self.barrier = threading.Barrier(world_size, timeout=60)
        self.slots: list[Any] = [None] * world_size


class ThreadReducer(Reducer):
    """Collectives among threads; counts and describes calls, which must agree on all workers."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting, self.rank, self.world_size = meeting, rank, len(meeting.slots)
        self.calls: list[tuple[str, tuple[int, ...], torch.dtype]] = []

    def _all(self, kind: str, tensor: torch.Tensor) -> torch.Tensor:
        self.calls.append((kind, tuple(tensor.shape), tensor.dtype))
        self.meeting.slots[self.rank] = tensor.detach().clone()
        self.meeting.barrier.wait()
        everyone = torch.stack(self.meeting.slots)
        self.meeting.barrier.wait()
        return everyone

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._all("sum", tensor).sum(0)

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._all("gather", tensor)


def run_workers(world_size: int, work: Callable[[ThreadReducer], Any]) -> list[Any]:
    """Run ``work(reducer)`` in one thread per worker; results in rank order, the first error raised."""
    meeting = Meeting(world_size)
    results: list[Any] = [None] * world_size
    errors: list[Exception] = []

    def target(rank: int) -> None:
        try:
            results[rank] = work(ThreadReducer(meeting, rank))
        except Exception as error:
            errors.append(error)
            meeting.barrier.abort()

    threads = [threading.Thread(target=target, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    real = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)] or errors
    if real:
        raise real[0]
    return results
