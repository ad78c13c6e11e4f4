"""Start workers on this machine and supervise them: one training, or independent work on every device.

A small supervisor of groups of workers over ``torch.multiprocessing.start_processes(join=False)``: one
training is one group, several trainings are groups of one. When a worker fails, the supervisor ends the others of its
group (terminate, a short grace period, kill) and raises the failed worker's traceback. No process outlives the call.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing as mp
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist
import torch.multiprocessing as torch_mp

from gears.core._messages import count
from gears.core._progress import Report, show
from gears.distributed._group import DEFAULT_TIMEOUT, check_timeout
from gears.distributed._signals import SignalWatch, signal_name, stopping_signal
from gears.distributed._worker import LESS_MEMORY, ChildSetup, run_child

logger = logging.getLogger(__name__)

GRACE_SECONDS = 2.0
STOP_GRACE_SECONDS = 30.0
SETTLE_SECONDS = 0.5
TIMED_OUT_SETTLE_SECONDS = 2.0
LOOK_SECONDS = 0.2
STOPPED_SECONDS = 1.0
"""A worker that is stopped for longer is reported at once; it fails when it is stopped until the time-out."""

# Threads that start workers at once would put back each other's changes.
_SPAWNING = threading.Lock()

_UNGUARDED = (
    'the script starts worker processes but has no guard: put the code that trains under\nif __name__ == "__main__":'
)


class WorkerError(RuntimeError):
    """Worker number `rank` failed; `details` holds its traceback, if there is one."""

    def __init__(self, message: str, *, rank: int, details: str = "") -> None:
        super().__init__(message)
        self.rank = rank
        self.details = details


@dataclass(frozen=True)
class Outcome:
    """Value that one piece of work returned, or the error it ended with, and its device."""

    value: Any = None
    error: WorkerError | None = None
    device: str = ""


@dataclass
class Worker:
    """State of one worker, as the supervisor sees it."""

    rank: int
    process: Any
    channel: Connection
    result: Any = None
    finished: bool = False
    error: tuple[float, str, str] | None = None
    left: int | None = None
    ended: float | None = None
    stopped_by: int | None = None
    stopped_for: float = 0.0

    def note_stopped(self, seconds: float, world_size: int) -> None:
        """Count the seconds for which the process is stopped (SIGSTOP, a debugger); warn of it once."""
        number = stopping_signal(self.process.pid) if self.running else None
        before = self.stopped_for
        self.stopped_for = 0.0 if number is None else before + seconds
        self.stopped_by = number
        if before < STOPPED_SECONDS <= self.stopped_for:
            logger.warning(
                "worker %d of %d is stopped by %s: `kill -CONT %d` lets it go on",
                self.rank, world_size, signal_name(number or 0), self.process.pid,
            )  # fmt: skip

    def listen(self) -> None:
        """Receive the worker's messages.

        ("result", bytes), ("error", time, summary, traceback), ("left", time, exit code), or ("progress", report).
        """
        while not self.channel.closed and self.channel.poll():
            try:
                kind, *content = self.channel.recv()
            except (EOFError, OSError):
                self.channel.close()
                return
            if kind == "progress":
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
    def timed_out(self) -> bool:
        """Whether it failed because others did not take part: gloo raises, NCCL aborts the process."""
        if self.error is not None:
            return "timed out" in self.error[1].lower()
        return self.left is None and self.process.exitcode == -signal.SIGABRT

    @property
    def failed(self) -> bool:
        """True as soon as the worker reports it, before its process ends."""
        if self.error is not None or self.left is not None:
            return True
        return not self.running and not (self.finished and self.process.exitcode == 0)


@dataclass(frozen=True)
class Group:
    """Workers that train together, one per device."""

    devices: tuple[str, ...]
    workers: tuple[Worker, ...]
    store: dist.Store
    pipes: tuple[tuple[Connection, Connection], ...]
    timeout: float

    @classmethod
    def start(cls, payload: bytes, devices: tuple[str, ...], options: dict[str, Any]) -> Group:
        """Start the workers; `payload` is their function and its arguments, `options` go to :class:`ChildSetup`."""
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        context = torch_mp.get_context("spawn")
        pipes = tuple(context.Pipe(duplex=False) for _ in devices)
        setup = ChildSetup(
            port=store.port,
            devices=devices,
            parent=os.getpid(),
            channels=tuple(sender for _, sender in pipes),
            search_path=tuple(sys.path),
            deterministic=torch.are_deterministic_algorithms_enabled(),
            deterministic_warns=torch.is_deterministic_algorithms_warn_only_enabled(),
            **options,
        )
        with _spawning():
            started = torch_mp.start_processes(
                run_child, args=(setup, payload), nprocs=len(devices), join=False, start_method="spawn"
            )
        workers = tuple(
            Worker(rank, process, receiver)
            for rank, (process, (receiver, _)) in enumerate(zip(started.processes, pipes, strict=True))
        )
        return cls(devices, workers, store, pipes, options["timeout"] or DEFAULT_TIMEOUT)

    @property
    def running(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.running]

    @property
    def failed(self) -> bool:
        return any(worker.failed or worker.stopped_for > self.timeout for worker in self.workers)

    def listen(self, seconds: float = 0.0) -> None:
        """Receive the workers' messages, and note when they end and (`seconds` after the last time) are stopped."""
        for worker in self.workers:
            worker.listen()
            worker.note_stopped(seconds, len(self.workers))
            if worker.ended is None and not worker.running:
                worker.ended = time.time()

    def outcome(self) -> Outcome:
        """The value of rank 0, or the error of the worker that failed first."""
        self.listen()
        device = self.devices[0]
        if not self.failed:
            return Outcome(cloudpickle.loads(self.workers[0].result), device=device)
        # a worker that fails brings others down within moments: wait for their messages, so that the first is found
        timed_out = any(worker.timed_out for worker in self.workers)
        deadline = time.monotonic() + (TIMED_OUT_SETTLE_SECONDS if timed_out else SETTLE_SECONDS)
        while time.monotonic() < deadline and self.running:
            time.sleep(0.05)
            self.listen()
        return Outcome(error=describe_failure(self.workers), device=device)


def exit_unguarded_child() -> None:
    """End a spawned child that runs an unguarded script again (it would start more workers)."""
    if getattr(mp.process.current_process(), "_inheriting", False):
        os._exit(ChildSetup.UNGUARDED_EXIT)


def check_not_daemonic() -> None:
    """Raise RuntimeError in a daemonic process (a worker of ``multiprocessing.Pool``), which must not start others."""
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
    stopped: Callable[[Any], object] | None = None,
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
    timeout
        Seconds after which a collective counts as failed.
    grace
        Seconds between terminating the other workers after a failure and killing them.
    stopped
        Called with rank 0's value where Ctrl-C or SIGTERM stopped the workers, before that is raised.

    Raises
    ------
    WorkerError
        A worker raised, was killed or left early; the others have been ended.
    """
    options = _checked(backend, timeout)
    payload = cloudpickle.dumps((function, args))
    (outcome,) = _supervise([payload], [tuple(devices)], lambda _: options, grace, stopped=stopped)
    try:
        if outcome.error is not None:
            raise outcome.error
        return outcome.value
    finally:
        del outcome  # a cycle of error, traceback and this frame would keep the callers' data alive


def launch_many(
    function: Callable[..., Any],
    jobs: Sequence[tuple[Any, ...]],
    devices: Sequence[str],
    *,
    backend: str,
    timeout: float | None = None,
) -> list[Outcome]:
    """Run ``function(0, 1, *job)`` for every job in a separate process, one at a time per device.

    Parameters are as for :func:`launch`; ``"cpu"`` may be listed several times in `devices`. The outcomes are in the
    order of `jobs`. Ctrl-C and SIGTERM end all runs and are raised.
    """
    # threads by the number of jobs, not of devices: the same sums however many run at once
    options = _checked(backend, timeout) | {"side_by_side": len(jobs)}

    def report(number: int, outcome: Outcome) -> Outcome:
        if outcome.error is None:
            return outcome
        run = f"run {number + 1} on {outcome.device}"
        text = str(outcome.error).replace("worker 0 of 1", run, 1)
        logger.error("%s", text.partition("\n")[0])
        return replace(outcome, error=WorkerError(text, rank=0, details=outcome.error.details))

    payloads = [cloudpickle.dumps((function, job)) for job in jobs]
    groups = [(device,) for device in devices]
    return _supervise(
        payloads, groups, lambda number: options | {"label": f"[run {number + 1}] "}, GRACE_SECONDS, report
    )


def _checked(backend: str, timeout: float | None) -> dict[str, Any]:
    """Backend and timeout for :class:`ChildSetup`; raises in a process that cannot start workers."""
    exit_unguarded_child()
    check_not_daemonic()
    return {"backend": backend, "timeout": check_timeout(timeout)}


def _supervise(
    payloads: Sequence[bytes],
    device_groups: Sequence[tuple[str, ...]],
    options: Callable[[int], dict[str, Any]],
    grace: float,
    report: Callable[[int, Outcome], Outcome] = lambda number, outcome: outcome,
    stopped: Callable[[Any], object] | None = None,
) -> list[Outcome]:
    """Run a group of workers for each payload, one at a time on each of `device_groups`; outcomes in order.

    SIGINT and SIGTERM end all groups and are raised.
    """
    # Loop: start groups on free devices, wait for messages and ends of processes, collect groups that have ended or
    # failed. A first signal asks all workers to stop at their next step and starts no more groups; a second one, or
    # STOP_GRACE_SECONDS, ends the loop. Whatever happens, the last block ends all that still runs.
    outcomes: dict[int, Outcome] = {}
    waiting, free = deque(range(len(payloads))), deque(device_groups)
    groups: dict[int, Group] = {}
    asked_to_stop: float | None = None
    signals = SignalWatch()
    with signals.watching():
        try:
            while groups or (waiting and asked_to_stop is None):
                while waiting and free and signals.received is None:
                    number = waiting.popleft()
                    groups[number] = Group.start(payloads[number], free.popleft(), options(number))
                _wait(groups.values())
                if signals.received is not None and asked_to_stop is None:
                    asked_to_stop = time.monotonic()
                    for worker in _running(groups.values()):
                        if worker.process.pid is not None:
                            os.kill(worker.process.pid, signals.received)
                for number, group in list(groups.items()):
                    if not group.running or (group.failed and asked_to_stop is None):
                        if asked_to_stop is None:
                            outcomes[number] = report(number, group.outcome())
                        elif stopped is not None and not group.failed:
                            stopped(group.outcome().value)
                        _end([groups[number]], grace)
                        free.append(groups.pop(number).devices)
                waited = 0.0 if asked_to_stop is None else time.monotonic() - asked_to_stop
                if waited > STOP_GRACE_SECONDS or (asked_to_stop is not None and signals.count > 1):
                    _warn_of_force(_running(groups.values()), signals)
                    break
        finally:
            _end(groups.values(), grace)
    signals.raise_received()
    return [outcomes[number] for number in range(len(payloads))]


def _warn_of_force(running: Sequence[Worker], signals: SignalWatch) -> None:
    """Log that workers are ended before they have stopped, and from where their training continues."""
    name, workers = signal_name(signals.received or 0), count(len(running), "worker")
    why = f"{name} came twice" if signals.count > 1 else f"not stopped {STOP_GRACE_SECONDS:g} s after {name}"
    if running:
        logger.warning(
            "%s ended by force (%s); resume=True continues a training from its newest checkpoint", workers, why
        )


def _running(groups: Iterable[Group]) -> list[Worker]:
    return [worker for group in groups for worker in group.running]


def _wait(groups: Collection[Group]) -> None:
    """Wait until a worker sends something or ends, LOOK_SECONDS at most."""
    start = time.monotonic()
    running = _running(groups)
    sources: list[Any] = [worker.process.sentinel for worker in running]
    sources += [worker.channel for worker in running if not worker.channel.closed]
    wait(sources, timeout=LOOK_SECONDS)
    # not more than was waited for: Ctrl-Z stops this process, too
    seconds = min(time.monotonic() - start, LOOK_SECONDS)
    for group in groups:
        group.listen(seconds)


def _end(groups: Collection[Group], grace: float) -> None:
    """Terminate what still runs, wait `grace` seconds, kill the rest, reap all."""
    for worker in _running(groups):
        worker.process.terminate()
    deadline = time.monotonic() + grace
    for worker in (worker for group in groups for worker in group.workers):
        worker.process.join(max(0.0, deadline - time.monotonic()))
        if worker.running:
            worker.process.kill()
        worker.process.join()
    for channel in (end for group in groups for pipe in group.pipes for end in pipe):
        channel.close()


@contextlib.contextmanager
def _spawning() -> Iterator[None]:
    """Hide state of the caller from spawned workers, and undo what spawning changes.

    A ``__file__`` that is no file (``python -``), which the workers would try to run, is hidden; a ``__spec__`` that is
    missing (``%reset -f`` in a notebook removes it) is None meanwhile; and a default start method that the caller has
    not chosen yet, which spawning fixes, is left open.
    """
    with _SPAWNING:
        main, method = sys.modules["__main__"], mp.get_start_method(allow_none=True)
        path = getattr(main, "__file__", None)
        hidden, bare = path is not None and not os.path.isfile(path), not hasattr(main, "__spec__")
        if hidden:
            del main.__file__
        if bare:
            main.__spec__ = None
        try:
            yield
        finally:
            if hidden:
                main.__file__ = path
            if bare:
                del main.__spec__
            if method is None:
                mp.set_start_method(None, force=True)  # type: ignore[arg-type]


def describe_failure(workers: Sequence[Worker]) -> WorkerError:
    """The error of the worker that failed first: killed workers, then those that left early, then those that raised.

    A worker often raises only because another one is gone. Where workers timed out and others neither failed nor
    finished, these are named: those that are stopped, where there are any.
    """
    failed = [worker for worker in workers if worker.failed]
    waiting = [worker for worker in failed if worker.timed_out]
    stopped = [worker for worker in workers if worker.stopped_by is not None]
    silent = stopped or [worker for worker in workers if not worker.failed and not worker.finished]
    if silent and len(waiting) == len(failed):
        return _describe_missing(silent, waiting, len(workers))
    if any(worker.process.exitcode == ChildSetup.UNGUARDED_EXIT for worker in failed):
        raise SystemExit(_UNGUARDED)
    ended = [worker for worker in failed if worker.error is None]
    if ended:
        return _describe_silent(min(ended, key=lambda worker: worker.ended or 0.0), len(workers))
    worker = min(failed, key=lambda worker: worker.error[0] if worker.error else 0.0)
    _, summary, details = worker.error or (0.0, "", "")
    message = f"worker {worker.rank} of {len(workers)} failed: {summary}"
    message += f"\n\nOriginal traceback (rank {worker.rank}):\n{details}"
    return WorkerError(message, rank=worker.rank, details=details)


def _describe_missing(silent: Sequence[Worker], waiting: Sequence[Worker], world_size: int) -> WorkerError:
    ranks = " and ".join(str(worker.rank) for worker in silent)
    number = silent[0].stopped_by
    why = "it hangs, or one of its steps takes longer than `timeout`"
    if number is not None:
        why = f"it was stopped by {signal_name(number)} and did not go on within `timeout`"
    waited, details = "", ""
    if waiting:
        reporter, reason = waiting[0], "NCCL aborted it"
        if reporter.error is not None:
            _, reason, details = reporter.error
        waited = f"worker {reporter.rank} waited for it until the time-out ({reason}); "
    message = f"worker {ranks} of {world_size} did not respond: {waited}{why}"
    return WorkerError(message, rank=silent[0].rank, details=details)


def _describe_silent(worker: Worker, world_size: int) -> WorkerError:
    code = worker.process.exitcode if worker.left is None else worker.left
    end = f"left early with exit code {code} before its work was done"
    if code < 0:
        name = signal_name(-code)
        hints = {
            "SIGKILL": f"; out of memory? The kernel ends a process where memory is full: {LESS_MEMORY}",
            "SIGABRT": "; did a collective of NCCL time out, or was memory full? (see the log above)",
        }
        end = f"was killed by {name}{hints.get(name, '')}"
    return WorkerError(f"worker {worker.rank} of {world_size} {end}", rank=worker.rank)
