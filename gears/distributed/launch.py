"""Start workers on this machine and supervise them: one training, or independent work on every device.

A small supervisor over ``torch.multiprocessing.start_processes(join=False)``: the first
worker that fails ends the others (terminate, a short grace, kill) and its own traceback
reaches the caller; nothing of a run outlives the call.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing as mp
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist
import torch.multiprocessing as torch_mp

from gears.core.progress import Report, show, watched
from gears.distributed.group import check_timeout
from gears.distributed.signals import SignalWatch, signal_name
from gears.distributed.worker import ChildSetup, run_child

logger = logging.getLogger(__name__)

GRACE_SECONDS = 2.0
STOP_GRACE_SECONDS = 30.0

# Threads that start workers at once would put back each other's changes.
_SPAWNING = threading.Lock()

_UNGUARDED = (
    "the script starts worker processes but has no guard: put the code that trains under\n"
    'if __name__ == "__main__":'
)


class WorkerError(RuntimeError):
    """A worker failed. `rank` says which; `details` holds its traceback where it had one."""

    def __init__(self, message: str, *, rank: int, details: str = "") -> None:
        super().__init__(message)
        self.rank = rank
        self.details = details


@dataclass
class Worker:
    """What the supervisor knows of one worker."""

    rank: int
    process: Any
    channel: Connection
    result: Any = None
    finished: bool = False
    error: tuple[float, str, str] | None = None
    left: int | None = None
    ended: float | None = field(default=None)

    def listen(self) -> None:
        """Take what the worker sent.

        ("result", bytes), ("error", time, summary, traceback), ("left", time, exit code), or ("progress", report).
        """
        while not self.channel.closed and self.channel.poll():
            try:
                kind, *content = self.channel.recv()
            except (EOFError, OSError):
                self.channel.close()
                return
            if kind == "progress":
                if watched():
                    show(Report(*content[0]))
            elif kind == "result":
                self.result, self.finished = content[0], True
            elif kind == "left":
                self.ended, self.left = content
            else:
                self.error = (content[0], content[1], content[2])

    @property
    def running(self) -> bool:
        return self.process.exitcode is None

    @property
    def failed(self) -> bool:
        """Known as soon as the worker says so, without waiting for the end of its process."""
        if self.error is not None or self.left is not None:
            return True
        return not self.running and not (self.finished and self.process.exitcode == 0)


def refuse_unguarded_start() -> None:
    """End a spawned child that re-runs an unguarded script (it would start workers of its own)."""
    if getattr(mp.process.current_process(), "_inheriting", False):
        os._exit(ChildSetup.UNGUARDED_EXIT)


def refuse_daemonic_start() -> None:
    """Raise in a process that Python lets start no others.

    Raises
    ------
    RuntimeError
        This is a daemonic process: a worker of ``multiprocessing.Pool``, or a ``Process(daemon=True)``.
    """
    if mp.current_process().daemon:
        msg = (
            "worker processes cannot be started from here: this is a daemonic process (such as a worker of "
            "multiprocessing.Pool), and Python lets it start no others. Call this from the main process, or from "
            "a concurrent.futures.ProcessPoolExecutor, whose workers may; gears.train_many runs several trainings "
            "side by side"
        )
        raise RuntimeError(msg)


def launch(
    function: Callable[..., Any],
    devices: Sequence[str],
    args: tuple[Any, ...] = (),
    *,
    backend: str,
    timeout: float | None = None,
    grace: float = GRACE_SECONDS,
) -> Any:
    """Run ``function(rank, world_size, *args)`` in one process per device and return rank 0's value.

    Parameters
    ----------
    function
        Anything cloudpickle can carry: lambdas and functions of a notebook included.
    devices
        Device of each worker, rank by rank.
    args
        Plain, small data (paths, settings); large arrays belong into files.
    backend
        ``torch.distributed`` backend.
    timeout
        Seconds after which a collective counts as failed.
    grace
        Seconds between asking the other workers to end and killing them after a failure.

    Raises
    ------
    WorkerError
        A worker raised, was killed or left early; the others have been ended.
    """
    refuse_unguarded_start()
    refuse_daemonic_start()
    timeout = check_timeout(timeout)
    world_size = len(devices)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = torch_mp.get_context("spawn")
    pipes = [context.Pipe(duplex=False) for _ in devices]
    setup = ChildSetup(
        port=store.port,
        devices=tuple(devices),
        backend=backend,
        timeout=timeout,
        parent=os.getpid(),
        channels=tuple(sender for _, sender in pipes),
        search_path=tuple(sys.path),
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )
    payload = cloudpickle.dumps((function, args))
    with SignalWatch() as signals:
        with spawning():
            running = torch_mp.start_processes(
                run_child, args=(setup, payload), nprocs=world_size, join=False, start_method="spawn"
            )
        workers = [
            Worker(rank, process, receiver)
            for rank, (process, (receiver, _)) in enumerate(zip(running.processes, pipes, strict=True))
        ]
        try:
            _supervise(workers, signals, grace)
        finally:
            end_workers(workers, grace)
            for receiver, sender in pipes:
                receiver.close()
                sender.close()
            del store
    signals.raise_received()
    return cloudpickle.loads(workers[0].result)


@contextlib.contextmanager
def spawning() -> Iterator[None]:
    """Around the start of workers: what Python reads or changes of the caller is put right afterwards."""
    with _SPAWNING, _importable_main(), _start_method_left_open():
        yield


@contextlib.contextmanager
def _importable_main() -> Iterator[None]:
    """Around a start of children that would stumble over the caller's ``__main__``.

    A ``__file__`` that is no file (``python -``), which they would try to run, is hidden; a ``__spec__``
    that is missing (``%reset -f`` in a notebook removes it) is None meanwhile.
    """
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    hidden = path is not None and not os.path.isfile(path)
    if hidden:
        del main.__file__
    bare = not hasattr(main, "__spec__")
    if bare:
        main.__spec__ = None
    try:
        yield
    finally:
        if hidden:
            main.__file__ = path
        if bare:
            del main.__spec__


@contextlib.contextmanager
def _start_method_left_open() -> Iterator[None]:
    """Spawning fixes the caller's default start method where none was chosen yet: leave the choice open."""
    chosen = mp.get_start_method(allow_none=True)
    try:
        yield
    finally:
        if chosen is None:
            mp.set_start_method(None, force=True)  # type: ignore[arg-type]


def _supervise(workers: list[Worker], signals: SignalWatch, grace: float) -> None:
    """Wait until all workers finished; the first failure ends the wait with a WorkerError."""
    asked_to_stop: float | None = None
    while any(worker.running for worker in workers):
        sources: list[Any] = [worker.process.sentinel for worker in workers if worker.running]
        sources += [worker.channel for worker in workers if worker.running and not worker.channel.closed]
        wait(sources, timeout=0.2)
        _note(workers)
        if signals.received is not None and asked_to_stop is None:
            asked_to_stop = time.monotonic()
            for worker in workers:
                if worker.running:
                    worker.process.terminate()
        if asked_to_stop is not None:
            if time.monotonic() - asked_to_stop > STOP_GRACE_SECONDS or signals.count > 1:
                return
        elif any(worker.failed for worker in workers):
            _settle(workers)
            raise describe_failure(workers)
    _note(workers)
    if asked_to_stop is None and any(worker.failed for worker in workers):
        raise describe_failure(workers)


def _note(workers: list[Worker]) -> None:
    for worker in workers:
        worker.listen()
        if worker.ended is None and not worker.running:
            worker.ended = time.time()


def _settle(workers: list[Worker], seconds: float = 0.5) -> None:
    """Give messages of workers that failed at the same moment time to arrive."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(worker.running for worker in workers):
        time.sleep(0.05)
        _note(workers)


def end_workers(workers: list[Worker], grace: float) -> None:
    """Terminate what still runs, wait `grace` seconds, kill the rest, reap all."""
    for worker in workers:
        if worker.running:
            worker.process.terminate()
    deadline = time.monotonic() + grace
    for worker in workers:
        worker.process.join(max(0.0, deadline - time.monotonic()))
        if worker.running:
            worker.process.kill()
        worker.process.join()


def describe_failure(workers: list[Worker]) -> WorkerError:
    """The error of the worker that failed first: killed, left early or raised, in that order of suspicion."""
    failed = [worker for worker in workers if worker.failed]
    if any(worker.process.exitcode == ChildSetup.UNGUARDED_EXIT for worker in failed):
        raise SystemExit(_UNGUARDED)
    silent = [worker for worker in failed if worker.error is None]
    if silent:
        return _describe_silent(min(silent, key=lambda worker: worker.ended or 0.0), len(workers))
    worker = min(failed, key=lambda worker: worker.error[0] if worker.error else 0.0)
    _, summary, details = worker.error or (0.0, "", "")
    message = f"worker {worker.rank} of {len(workers)} failed: {summary}"
    return WorkerError(
        f"{message}\n\nOriginal traceback (rank {worker.rank}):\n{details}", rank=worker.rank, details=details
    )


def _describe_silent(worker: Worker, world_size: int) -> WorkerError:
    code = worker.process.exitcode if worker.left is None else worker.left
    who = f"worker {worker.rank} of {world_size}"
    if code < 0:
        name = signal_name(-code)
        hint = "; out of memory?" if name == "SIGKILL" else ""
        return WorkerError(f"{who} was killed by {name}{hint}", rank=worker.rank)
    return WorkerError(f"{who} left early with exit code {code} before its work was done", rank=worker.rank)


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
