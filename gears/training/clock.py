"""Where the seconds of an epoch went."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any


class Clock:
    """Seconds of an epoch: waiting for data, communication, evaluation, the rest (compute)."""

    def __init__(self, reducer: Any) -> None:
        self._start = time.perf_counter()
        self._reducer = reducer
        self._communication = getattr(reducer, "seconds", 0.0)
        self._data = 0.0

    def timed(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield the items, noting how long each took to arrive."""
        iterator = iter(items)
        while True:
            start = time.perf_counter()
            try:
                item = next(iterator)
            except StopIteration:
                return
            finally:
                self._data += time.perf_counter() - start
            yield item

    def report(self, evaluation: float) -> dict[str, float]:
        total = time.perf_counter() - self._start
        communication = getattr(self._reducer, "seconds", 0.0) - self._communication
        compute = max(0.0, total - self._data - communication - evaluation)
        parts = {
            "data": self._data,
            "compute": compute,
            "communication": communication,
            "evaluation": evaluation,
        }
        return {"total": total, **parts}
