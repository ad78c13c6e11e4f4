"""Handle Ctrl-C and SIGTERM in the supervising process and in its workers."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import FrameType

import torch

from gears.distributed._world import Reducer


def signal_name(number: int) -> str:
    """``"SIGKILL"`` for 9; the bare number where it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def stopping_signal(pid: int | None) -> int | None:
    """The signal by which a child of this process is stopped now; None where it runs, has ended or cannot be asked."""
    if pid is None or not hasattr(os, "waitid"):
        return None
    with contextlib.suppress(ChildProcessError):
        # WNOWAIT: whoever waits for the process later still learns how it ended
        state = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
        return None if state is None else state.si_status
    return None


@contextlib.contextmanager
def _handled(handle: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Within the block, call `handle` on SIGINT and SIGTERM; only the main thread may: in others nothing changes."""
    previous = {}
    if threading.current_thread() is threading.main_thread():
        previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


class SignalWatch:
    """Signals that arrived while workers ran, instead of ending this process at once."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.count = 0

    def watching(self) -> AbstractContextManager[None]:
        """Record SIGINT and SIGTERM within the block."""
        return _handled(self._note)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.received = self.received or number
        self.count += 1

    def raise_received(self) -> None:
        """Raise the exception of the received signal, after the workers have ended."""
        if self.received == signal.SIGINT:
            raise KeyboardInterrupt
        if self.received is not None:
            raise SystemExit(128 + self.received)


_asked_by: list[int] = []  # signals that asked this process to stop, the first of them first


def stop_requested() -> bool:
    """Whether this process should stop at the next step (SIGTERM or SIGINT in a worker)."""
    return bool(_asked_by)


def who_was_asked(reducer: Reducer, device: torch.device) -> str:
    """Which signal asked which worker to stop, such as ``"SIGTERM to worker 1 of 2"``; every worker calls it."""
    number_1 = torch.tensor([_asked_by[0] if _asked_by else 0], device=device)
    asked = {rank: number for rank, number in enumerate(reducer.gather(number_1).flatten().tolist()) if number}
    if not asked:
        return "a request"
    name = signal_name(next(iter(asked.values())))
    if reducer.world_size == 1:
        return name
    if len(asked) == reducer.world_size:
        return f"{name} to all workers"
    workers = ", ".join(map(str, asked))
    return f"{name} to worker{'s' if len(asked) > 1 else ''} {workers} of {reducer.world_size}"


def listen_for_stop() -> None:
    """In a worker: on SIGTERM and SIGINT stop at the next step instead of at once."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _note_stop)


@contextlib.contextmanager
def stop_on_signals() -> Iterator[None]:
    """While training under a launcher: stop at the next step on SIGTERM and SIGINT; handlers are restored."""
    with _handled(_note_stop):
        try:
            yield
        finally:
            _asked_by.clear()


def _note_stop(number: int, _: FrameType | None) -> None:
    _asked_by.append(number)


def die_with_parent(parent: int) -> None:
    """Make this process end when its parent does, also when the parent is killed."""
    if sys.platform.startswith("linux"):  # the kernel sends SIGKILL when the thread that started this process ends
        set_parent_death_signal = 1
        ctypes.CDLL(None, use_errno=True).prctl(set_parent_death_signal, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
