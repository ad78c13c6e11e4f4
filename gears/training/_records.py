"""What steps and epochs leave: losses and checks on the device, read every few steps, and seconds on the host."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gears.distributed._world import Reducer

MOST_UNREAD = 16
"""Steps whose losses and checks are read at once."""
LONGEST_SECONDS = 10.0
"""Workers hear about this often of a wish to stop; at most every :data:`MOST_UNREAD` steps."""


@dataclass(frozen=True)
class StepRecord:
    """What a step left on the device."""

    loss: float  # this worker's loss; that of all workers where the step was computed by shards
    finite: bool  # whether the losses and gradients of all workers are, in this step and all before
    # stop, seconds: mean over workers of a wish to stop (1 or 0), and of the seconds that a step took
    stop: float = 0.0
    seconds: float = 0.0

    @property
    def broken(self) -> str:
        """What is not finite in the step."""
        if math.isfinite(self.loss):
            return f"a gradient is not finite (loss {self.loss:g})"
        return f"the loss is {self.loss}"


class StepRecords:
    """A table on the device with a row for each step since the last :meth:`read`, at most :data:`MOST_UNREAD`.

    `message_3`: what this worker sends with its gradients: 0 or NaN by the loss, a wish to stop, seconds of a step.
    `broken`: 1 on the device once a loss or gradient was not finite, else 0.
    `unread`: steps since the last read.
    `stopping`: whether training is to stop now; several workers learn it together, by a common read.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype, world_size: int) -> None:
        self.exact = torch.float64 if device.type != "mps" else torch.float32
        self.broken = torch.zeros((), device=device, dtype=torch.float32)
        self.message_3 = torch.zeros(3, dtype=dtype, device=device)
        self.unread, self.stopping = 0, False
        self._world_size = world_size
        self._read_at, self._steps_between_reads = time.monotonic(), 1
        self._one = torch.ones((), device=device, dtype=torch.float32)
        self._table = torch.zeros(MOST_UNREAD, 4, dtype=self.exact, device=device)

    @property
    def is_due(self) -> bool:
        """Whether the steps are to be read now, the same on all workers."""
        return self.unread >= self._steps_between_reads or (self._world_size == 1 and self.stopping)

    def tell_stop(self) -> None:
        """Stop; several workers do once the next gradients have let all of them know."""
        if self._world_size == 1:
            self.stopping = True
        else:
            self.message_3[1].fill_(1.0)

    def message(self, loss: Tensor) -> Tensor:
        torch.mul(loss, 0.0, out=self.message_3[0])
        return self.message_3

    def message_of_shard(self, loss: Tensor) -> Tensor:
        """The same with the loss itself, in a tensor of its own."""
        return torch.cat([loss.view(1).to(self.message_3.dtype), self.message_3[1:]])

    def add(self, loss: Tensor, gradients: Sequence[Tensor], averaged: Tensor | None, *, scaled: bool) -> None:
        """Record a step's loss, and whether it and all gradients are finite, on the device.

        `averaged` are gradients and messages over all workers, where there are several. Under float16 scaling
        (`scaled`) gradients overflow now and then: the scaler skips such steps itself.
        """
        if averaged is None:
            message_2, own_loss = self.message_3[1:], loss.to(self.message_3.dtype).view(1)
            checked = [own_loss] if scaled else [*gradients, own_loss]
        else:
            message_2, checked = averaged[-2:], [averaged[-3:] if scaled else averaged]
        row = [loss.view(1), self.broken.view(1), message_2]
        # sets `broken` to 1 where a value is not finite, else leaves it; the values themselves are multiplied by 1
        torch._amp_foreach_non_finite_check_and_unscale_(checked, self.broken, self._one)
        torch.cat(row, out=self._table[self.unread])
        self.unread += 1

    def read(self) -> list[StepRecord]:
        """Records of the steps since the last call; waits for the device."""
        rows = self._table[: self.unread].tolist()
        self.unread = 0
        records = [StepRecord(loss, broken == 0, stop, seconds) for loss, broken, stop, seconds in rows]
        self._steps_between_reads = MOST_UNREAD
        if self._world_size > 1:
            self.stopping |= any(record.stop > 0 for record in records)
            now = time.monotonic()
            self.message_3[2].fill_((now - self._read_at) / len(records))
            self._read_at = now
            # by the mean of what all workers found up to the read before; nothing is known before the first
            seconds = records[-1].seconds
            steps = LONGEST_SECONDS / seconds if seconds > 0 else 1
            self._steps_between_reads = max(1, min(MOST_UNREAD, int(steps)))
        return records


def size_of(batch: Any) -> int:
    """Cells, conditions or samples of a batch: its length, or for a tuple or list that of the first element."""
    return len(batch[0]) if isinstance(batch, tuple | list) and batch else len(batch)


class Clock:
    """Seconds of an epoch on this worker: waiting for data, communication, evaluation, and compute (the remainder).

    Communication is the time in which the worker could do nothing else: its sums and gathers,
    and sending gradients after the last one was computed. It includes waiting for slower
    workers. On a GPU these are seconds of the host, which waits for the device every few steps.
    """

    def __init__(self, reducer: Reducer) -> None:
        self._start = time.perf_counter()
        self._reducer = reducer
        self._communication = reducer.seconds
        self._data = self._evaluation = 0.0
        self.seen = 0

    def timed(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield windows of batches; adds up the time until each arrives and its number of samples."""
        iterator = iter(items)
        while True:
            start = time.perf_counter()
            try:
                item = next(iterator)
            except StopIteration:
                return
            finally:
                self._data += time.perf_counter() - start
            with contextlib.suppress(TypeError):  # batches of other loaders may have no length
                self.seen += sum(size_of(batch) for batch in item)
            yield item

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Measure a block as evaluation, without its communication."""
        start, communication = time.perf_counter(), self._reducer.seconds
        yield
        self._evaluation += time.perf_counter() - start - (self._reducer.seconds - communication)

    def report(self, seen: float, unit: str) -> dict[str, float]:
        """Seconds by part, and the rate of all workers together over `seen` cells (conditions)."""
        total = time.perf_counter() - self._start
        communication = self._reducer.seconds - self._communication
        compute = max(0.0, total - self._data - communication - self._evaluation)
        return {
            "total": total,
            "data": self._data,
            "compute": compute,
            "communication": communication,
            "evaluation": self._evaluation,
            f"{unit}_per_second": seen / max(total - self._evaluation, 1e-9),
        }
