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
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist
import torch.multiprocessing as torch_mp

from gears.core._installation import cores
from gears.core._messages import count
from gears.core._progress import Report, send_progress, show
from gears.distributed._group import DEFAULT_TIMEOUT, check_timeout, cleanup_ddp, join_group, use_loopback
from gears.distributed._log import configure_worker_logging
from gears.distributed._signals import SignalWatch, die_with_parent, listen_for_stop, signal_name, stopping_signal
from gears.distributed._world import VARIABLES, World

LESS_MEMORY = "use fewer workers, a smaller batch_size, or a machine with more memory"


@dataclass(frozen=True)
class ChildSetup:
    """Plain data that a worker needs to join the others."""

    port: int
    devices: tuple[str, ...]
    channels: tuple[Connection, ...]
    backend: str
    timeout: float | None
    label: str = ""
    side_by_side: int | None = None
    # as they are in the process that starts the worker
    parent: int = field(default_factory=os.getpid)
    search_path: tuple[str, ...] = field(default_factory=lambda: tuple(sys.path))
    deterministic: bool = field(default_factory=torch.are_deterministic_algorithms_enabled)
    deterministic_warns: bool = field(default_factory=torch.is_deterministic_algorithms_warn_only_enabled)


def run_child(rank: int, setup: ChildSetup, payload: bytes) -> None:
    """Entry of a worker: join the group, run the function, send back its value or its error."""
    die_with_parent(setup.parent)
    listen_for_stop()
    channel = setup.channels[rank]
    try:
        _prepare(rank, setup)
        function, args = cloudpickle.loads(payload)
        result = function(rank, len(setup.devices), *args)
        channel.send(("result", cloudpickle.dumps(result if rank == 0 else None)))
    except BaseException as error:
        if isinstance(error, SystemExit):
            # Sent at once: ending a process takes a while, in which the others fail because this one is gone.
            code = error.code if isinstance(error.code, int) else int(error.code is not None)  # as in Python
            channel.send(("left", time.time(), code))
            raise
        summary = f"{type(error).__name__}: {_with_hint(error)}"
        channel.send(("error", time.time(), summary, traceback.format_exc()))
        # Exit without cleaning up: the other workers may hang in a collective that this one left.
        sys.exit(1)
    cleanup_ddp()


def _prepare(rank: int, setup: ChildSetup) -> None:
    """Paths, threads, logging and the process group of this worker."""
    sys.path[:] = setup.search_path
    # what another launcher, or an earlier job, left there: the supervisor knows better
    for name in (*VARIABLES, "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)
    use_loopback()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, cores() // (setup.side_by_side or len(setup.devices))))
    if setup.deterministic:  # the call imports torch's compiler, which takes more than a CPU second
        torch.use_deterministic_algorithms(True, warn_only=setup.deterministic_warns)
    configure_worker_logging(rank, setup.label)
    if rank == 0 and not setup.label:
        send_progress(lambda report: setup.channels[0].send(("progress", tuple(report))))
    store = dist.TCPStore("127.0.0.1", setup.port, is_master=False)
    world = World(rank, rank, len(setup.devices), torch.device(setup.devices[rank]))
    join_group(world, backend=setup.backend, timeout=setup.timeout, store=store)


def memory_is_full(error: BaseException) -> bool:
    """Whether an error says that this machine (not a GPU) has no memory left: Python's, numpy's or torch's."""
    return isinstance(error, MemoryError) or "DefaultCPUAllocator: can't allocate" in str(error)


def _with_hint(error: BaseException) -> str:
    hint = ""
    if isinstance(error, torch.OutOfMemoryError):
        hint = " (the GPU's memory is full: lower batch_size)"
    elif memory_is_full(error):
        hint = f" (the machine's memory is full: {LESS_MEMORY})"
    return str(error) if "batch_size" in str(error) else f"{error}{hint}"


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

_GUARD = 'put the code that trains under\nif __name__ == "__main__":'
_UNGUARDED_EXIT = 86
_UNGUARDED = f"the script starts worker processes but has no guard: {_GUARD}"


class WorkerError(RuntimeError):
    """Worker number `rank` failed; `details` holds its traceback, if there is one."""

    def __init__(self, message: str, *, rank: int, details: str = "") -> None:
        super().__init__(message)
        self.rank, self.details = rank, details


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
    error: tuple[float, str, str] | None = None  # time, summary, traceback
    left: int | None = None  # exit code of a worker that called sys.exit
    ended: float | None = None  # time
    stopped_by: int | None = None
    stopped_for: float = 0.0

    def note_stopped(self, seconds: float, world_size: int) -> None:
        """Count the seconds for which the process is stopped (SIGSTOP, a debugger); warn of it once."""
        number, before = stopping_signal(self.process.pid) if self.running else None, self.stopped_for
        self.stopped_by, self.stopped_for = number, 0.0 if number is None else before + seconds
        if before < STOPPED_SECONDS <= self.stopped_for:
            name, remedy = signal_name(number or 0), f"`kill -CONT {self.process.pid}` lets it go on"
            logger.warning("worker %d of %d is stopped by %s: %s", self.rank, world_size, name, remedy)

    def listen(self) -> None:
        """Receive the worker's messages."""
        while not self.channel.closed and self.channel.poll():
            try:
                message = self.channel.recv()
            except (EOFError, OSError):
                self.channel.close()
                return
            match message:
                case "progress", report:
                    show(Report(*report))
                case "result", value:
                    self.result, self.finished = value, True
                case "left", time_of_end, exit_code:
                    self.ended, self.left = time_of_end, exit_code
                case "error", time_of_error, summary, details:
                    self.error = (time_of_error, summary, details)

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
        setup = ChildSetup(store.port, devices, tuple(sender for _, sender in pipes), **options)
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
        while time.monotonic() < deadline and _running([self]):
            time.sleep(0.05)
            self.listen()
        return Outcome(error=describe_failure(self.workers), device=device)


def exit_unguarded_child() -> None:
    """End a spawned child that runs an unguarded script again (it would start more workers)."""
    if getattr(mp.process.current_process(), "_inheriting", False):
        os._exit(_UNGUARDED_EXIT)


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
    stopped: Callable[[Any], object] | None = None,
) -> Any:
    """Run ``function(rank, world_size, *args)`` in one process per device and return rank 0's value.

    The function may be a lambda or of a notebook; `args` are small, plain data. `stopped` is called with rank 0's value
    where Ctrl-C or SIGTERM stopped the workers, before that is raised. WorkerError if one raised, was killed or left.
    """
    options = _checked(backend, timeout)
    payload = cloudpickle.dumps((function, args))
    (outcome,) = _supervise([payload], [tuple(devices)], lambda _: options, stopped=stopped)
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
    """Run ``function(0, 1, *job)`` for every job in a separate process, one at a time per device; outcomes in order.

    ``"cpu"`` may be listed several times in `devices`. Ctrl-C and SIGTERM end all runs and are raised.
    """
    # threads by the number of jobs, not of devices: the same sums however many run at once
    options = _checked(backend, timeout) | {"side_by_side": len(jobs)}

    def report(number: int, outcome: Outcome) -> Outcome:
        if outcome.error is None:
            return outcome
        text = str(outcome.error).replace("worker 0 of 1", f"run {number + 1} on {outcome.device}", 1)
        logger.error("%s", text.partition("\n")[0])
        return replace(outcome, error=WorkerError(text, rank=0, details=outcome.error.details))

    def options_of(number: int) -> dict[str, Any]:
        return options | {"label": f"[run {number + 1}] "}

    payloads = [cloudpickle.dumps((function, job)) for job in jobs]
    return _supervise(payloads, [(device,) for device in devices], options_of, report)


def _checked(backend: str, timeout: float | None) -> dict[str, Any]:
    """Backend and timeout for :class:`ChildSetup`; raises in a process that cannot start workers."""
    exit_unguarded_child()
    check_not_daemonic()
    return {"backend": backend, "timeout": check_timeout(timeout)}


def _supervise(
    payloads: Sequence[bytes],
    device_groups: Sequence[tuple[str, ...]],
    options: Callable[[int], dict[str, Any]],
    report: Callable[[int, Outcome], Outcome] = lambda number, outcome: outcome,
    stopped: Callable[[Any], object] | None = None,
) -> list[Outcome]:
    """Run a group of workers for each payload, one at a time on each of `device_groups`; outcomes in order."""
    # Start groups on free devices, wait for messages and ends of processes, collect groups that have ended or failed.
    # A first signal asks all workers to stop at their next step and starts no more groups; a second one, or
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
                    if not _running([group]) or (group.failed and asked_to_stop is None):
                        if asked_to_stop is None:
                            outcomes[number] = report(number, group.outcome())
                        elif stopped is not None and not group.failed:
                            stopped(group.outcome().value)
                        _end([groups[number]])
                        free.append(groups.pop(number).devices)
                waited = 0.0 if asked_to_stop is None else time.monotonic() - asked_to_stop
                if waited > STOP_GRACE_SECONDS or (asked_to_stop is not None and signals.count > 1):
                    _warn_of_force(_running(groups.values()), signals)
                    break
        finally:
            _end(groups.values())
    signals.raise_received()
    return [outcomes[number] for number in range(len(payloads))]


def _warn_of_force(running: Sequence[Worker], signals: SignalWatch) -> None:
    """Log that workers are ended before they have stopped, and from where their training continues."""
    name, workers = signal_name(signals.received or 0), count(len(running), "worker")
    why = f"{name} came twice" if signals.count > 1 else f"not stopped {STOP_GRACE_SECONDS:g} s after {name}"
    if running:
        remedy = "resume=True continues a training from its newest checkpoint"
        logger.warning("%s ended by force (%s); %s", workers, why, remedy)


def _running(groups: Iterable[Group]) -> list[Worker]:
    return [worker for group in groups for worker in group.workers if worker.running]


def _wait(groups: Collection[Group]) -> None:
    """Wait until a worker sends something or ends, LOOK_SECONDS at most."""
    start, running = time.monotonic(), _running(groups)
    sources: list[Any] = [worker.process.sentinel for worker in running]
    sources += [worker.channel for worker in running if not worker.channel.closed]
    wait(sources, timeout=LOOK_SECONDS)
    # not more than was waited for: Ctrl-Z stops this process, too
    seconds = min(time.monotonic() - start, LOOK_SECONDS)
    for group in groups:
        group.listen(seconds)


def _end(groups: Collection[Group]) -> None:
    """Terminate what still runs, wait GRACE_SECONDS, kill the rest, reap all."""
    for worker in _running(groups):
        worker.process.terminate()
    deadline = time.monotonic() + GRACE_SECONDS
    for worker in (worker for group in groups for worker in group.workers):
        worker.process.join(max(0.0, deadline - time.monotonic()))
        if worker.running:
            worker.process.kill()
        worker.process.join()
    for channel in (end for group in groups for pipe in group.pipes for end in pipe):
        channel.close()


@contextlib.contextmanager
def _spawning() -> Iterator[None]:
    """Hide state of the caller from spawned workers, and undo what spawning changes."""
    with _SPAWNING:
        # a default start method that the caller has not chosen yet, which spawning fixes, is left open
        main, method = sys.modules["__main__"], mp.get_start_method(allow_none=True)
        path = getattr(main, "__file__", None)
        # workers would try to run a __file__ that is no file (`python -`); `%reset -f` in a notebook removes __spec__
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
    """The error of the worker that failed first: killed workers, then those that left early, then those that raised."""
    # A worker often raises only because another one is gone. Where workers timed out and others neither failed nor
    # finished, these are named: those that are stopped, where there are any.
    failed = [worker for worker in workers if worker.failed]
    waiting = [worker for worker in failed if worker.timed_out]
    stopped = [worker for worker in workers if worker.stopped_by is not None]
    silent = stopped or [worker for worker in workers if not worker.failed and not worker.finished]
    if silent and len(waiting) == len(failed):
        return _describe_missing(silent, waiting, len(workers))
    if any(worker.process.exitcode == _UNGUARDED_EXIT for worker in failed):
        raise SystemExit(_UNGUARDED)
    ended = [worker for worker in failed if worker.error is None]
    if ended:
        return _describe_silent(min(ended, key=lambda worker: worker.ended or 0.0), len(workers))
    worker = min(failed, key=lambda worker: worker.error[0] if worker.error else 0.0)
    _, summary, details = worker.error or (0.0, "", "")
    message = f"worker {worker.rank} of {len(workers)} failed: {summary}\n\nOriginal traceback (rank {worker.rank}):\n"
    return WorkerError(f"{message}{details}", rank=worker.rank, details=details)


def _describe_missing(silent: Sequence[Worker], waiting: Sequence[Worker], world_size: int) -> WorkerError:
    ranks, number = " and ".join(str(worker.rank) for worker in silent), silent[0].stopped_by
    why, waited, details = "it hangs, or one of its steps takes longer than `timeout`", "", ""
    if number is not None:
        why = f"it was stopped by {signal_name(number)} and did not go on within `timeout`"
    if waiting:
        _, reason, details = waiting[0].error or (0.0, "NCCL aborted it", "")
        waited = f"worker {waiting[0].rank} waited for it until the time-out ({reason}); "
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
