"""Where the seconds of an epoch went."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from typing import Any


def size_of(batch: Any) -> int:
    """Cells, conditions or samples of a batch: those of its ``condition``, of its first part, or its length."""
    if hasattr(batch, "condition"):
        return len(batch.condition)
    return len(batch[0]) if isinstance(batch, tuple | list) and batch else len(batch)


class Clock:
    """Seconds of an epoch on this worker: waiting for data, communication, evaluation, the rest (compute).

    Communication is the time in which the worker could do nothing else: its sums and gathers,
    and gradients on their way after the last one was computed. It includes waiting for slower
    workers. On a GPU these are seconds of the host, which every step waits for the device.
    """

    def __init__(self, reducer: Any) -> None:
        self._start = time.perf_counter()
        self._reducer = reducer
        self._communication = self._spent()
        self._data = self._evaluation = 0.0
        self.seen = 0

    def timed(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield windows of batches, noting how long each took to arrive and what it holds."""
        iterator = iter(items)
        while True:
            start = time.perf_counter()
            try:
                item = next(iterator)
            except StopIteration:
                return
            finally:
                self._data += time.perf_counter() - start
            with contextlib.suppress(TypeError):  # batches of one's own may have no length
                self.seen += sum(size_of(batch) for batch in item)
            yield item

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Count a block as evaluation, without its communication."""
        start, spent = time.perf_counter(), self._spent()
        yield
        self._evaluation += time.perf_counter() - start - (self._spent() - spent)

    def report(self, seen: float, unit: str) -> dict[str, float]:
        """Seconds by part, and the rate at which all workers together went through `seen` cells (conditions)."""
        total = time.perf_counter() - self._start
        communication = self._spent() - self._communication
        compute = max(0.0, total - self._data - communication - self._evaluation)
        return {
            "total": total,
            "data": self._data,
            "compute": compute,
            "communication": communication,
            "evaluation": self._evaluation,
            f"{unit}_per_second": seen / max(total - self._evaluation, 1e-9),
        }

    def _spent(self) -> float:
        return getattr(self._reducer, "seconds", 0.0)
