"""Independent pieces of work side by side, one per device; one that fails does not lose the others."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist
import torch.multiprocessing as torch_mp

from gears.distributed.child import ChildSetup, run_child
from gears.distributed.launch import (
    GRACE_SECONDS,
    STOP_GRACE_SECONDS,
    Worker,
    WorkerError,
    describe_failure,
    end_workers,
    refuse_daemonic_start,
    refuse_unguarded_start,
    spawning,
)
from gears.distributed.process_group import check_timeout
from gears.distributed.signals import SignalWatch

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """What one piece of work returned, or the error it ended with, and where it ran."""

    value: Any = None
    error: WorkerError | None = None
    device: str = ""


@dataclass
class _Run:
    """A piece of work under way."""

    device: str
    worker: Worker
    store: dist.Store
    pipe: tuple[Connection, Connection]

    def outcome(self, number: int) -> Outcome:
        """What came of it, now that its process has ended."""
        self.worker.listen()
        for end in self.pipe:
            end.close()
        if not self.worker.failed:
            return Outcome(cloudpickle.loads(self.worker.result), device=self.device)
        error = describe_failure([self.worker])
        text = str(error).replace("worker 0 of 1", f"run {number + 1} on {self.device}", 1)
        return Outcome(error=WorkerError(text, rank=0, details=error.details), device=self.device)


def launch_many(
    function: Callable[..., Any],
    jobs: Sequence[tuple[Any, ...]],
    devices: Sequence[str],
    *,
    backend: str,
    timeout: float | None = None,
    grace: float = GRACE_SECONDS,
) -> list[Outcome]:
    """Run ``function(0, 1, *job)`` for every job, each in a process of its own, one at a time per device.

    Parameters
    ----------
    function
        Anything cloudpickle can carry; it runs in a process group of one.
    jobs
        Arguments of each run: plain, small data.
    devices
        One run at a time on each of them (``"cpu"`` may stand there several times).
    backend, timeout, grace
        As for :func:`gears.distributed.launch`.

    Returns
    -------
    list of Outcome
        In the order of `jobs`. Ctrl-C and SIGTERM end all runs and are raised.
    """
    refuse_unguarded_start()
    refuse_daemonic_start()
    timeout = check_timeout(timeout)
    outcomes: list[Outcome | None] = [None] * len(jobs)
    waiting, free = deque(range(len(jobs))), deque(devices)
    running: dict[int, _Run] = {}
    asked_to_stop: float | None = None
    with SignalWatch() as signals:
        try:
            while (waiting and asked_to_stop is None) or running:
                while waiting and free and signals.received is None:
                    number, device = waiting.popleft(), free.popleft()
                    setup = {"backend": backend, "timeout": timeout, "side_by_side": len(devices)}
                    running[number] = _start(function, jobs[number], device, f"[run {number + 1}] ", setup)
                _wait(running)
                for number in [number for number, run in running.items() if not run.worker.running]:
                    run = running.pop(number)
                    outcomes[number] = run.outcome(number)
                    free.append(run.device)
                    _report(outcomes[number])
                if signals.received is not None and asked_to_stop is None:
                    asked_to_stop = time.monotonic()
                    for run in running.values():
                        run.worker.process.terminate()
                if asked_to_stop is not None and (
                    signals.count > 1 or time.monotonic() - asked_to_stop > STOP_GRACE_SECONDS
                ):
                    break
        finally:
            end_workers([run.worker for run in running.values()], grace)
    signals.raise_received()
    return [outcome for outcome in outcomes if outcome is not None]


def _start(
    function: Callable[..., Any], job: tuple[Any, ...], device: str, label: str, options: dict[str, Any]
) -> _Run:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    receiver, sender = torch_mp.get_context("spawn").Pipe(duplex=False)
    setup = ChildSetup(
        port=store.port,
        devices=(device,),
        parent=os.getpid(),
        channels=(sender,),
        search_path=tuple(sys.path),
        deterministic=torch.are_deterministic_algorithms_enabled(),
        label=label,
        **options,
    )
    payload = cloudpickle.dumps((function, job))
    with spawning():
        started = torch_mp.start_processes(
            run_child, args=(setup, payload), nprocs=1, join=False, start_method="spawn"
        )
    return _Run(device, Worker(0, started.processes[0], receiver), store, (receiver, sender))


def _wait(running: dict[int, _Run]) -> None:
    """Until a run sends something or ends, 0.2 s at most."""
    workers = [run.worker for run in running.values()]
    sources = [worker.process.sentinel for worker in workers]
    sources += [worker.channel for worker in workers if not worker.channel.closed]
    wait(sources, timeout=0.2)
    for worker in workers:
        worker.listen()


def _report(outcome: Outcome | None) -> None:
    if outcome is not None and outcome.error is not None:
        logger.error("%s", str(outcome.error).partition("\n")[0])
