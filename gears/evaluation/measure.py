"""Seconds and memory of a piece of work in this process."""

from __future__ import annotations

import contextlib
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass
class Cost:
    """What a piece of work took.

    Attributes
    ----------
    seconds, cpu_seconds
        Wall time and CPU time of this process.
    peak_mb
        Highest resident memory meanwhile. Where the system cannot reset its
        mark (other than Linux), that of the process so far.
    """

    seconds: float = float("nan")
    cpu_seconds: float = float("nan")
    peak_mb: float = float("nan")


@contextlib.contextmanager
def measured() -> Iterator[Cost]:
    """Measure the block; the yielded cost is filled when it ends."""
    cost = Cost()
    with contextlib.suppress(OSError):
        _CLEAR.write_text("5")  # resets the mark of the highest resident memory, nothing else
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        yield cost
    finally:
        cost.seconds, cost.cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
        cost.peak_mb = _peak_mb()


def _peak_mb() -> float:
    with contextlib.suppress(OSError, StopIteration, ValueError):
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used / (2**20 if sys.platform == "darwin" else 1024)
