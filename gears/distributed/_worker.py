"""Entry point of a worker process: set it up, run the function, return the value or the error."""

from __future__ import annotations

import logging
import os
import sys
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import ClassVar

import cloudpickle
import torch
import torch.distributed as dist

from gears.core._installation import cores
from gears.core._progress import send_progress
from gears.distributed._group import cleanup_ddp, join_group, use_loopback
from gears.distributed._log import HANDLER, Once, attach
from gears.distributed._signals import die_with_parent, listen_for_stop
from gears.distributed._world import VARIABLES, World

LESS_MEMORY = "use fewer workers, a smaller batch_size, or a machine with more memory"


@dataclass(frozen=True)
class ChildSetup:
    """Plain data that a worker needs to join the others."""

    UNGUARDED_EXIT: ClassVar[int] = 86

    port: int
    devices: tuple[str, ...]
    backend: str
    timeout: float | None
    parent: int
    channels: tuple[Connection, ...]
    search_path: tuple[str, ...]
    deterministic: bool = False
    deterministic_warns: bool = False
    label: str = ""
    side_by_side: int | None = None


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
    sys.path[:] = [*setup.search_path]
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


def configure_worker_logging(rank: int, label: str = "") -> None:
    """Rank 0 logs like the package, with a label; the others log warnings only, with their rank in front."""
    logger = logging.getLogger("gears")
    for old in [handler for handler in logger.handlers if handler.name == HANDLER]:
        logger.removeHandler(old)
    over_bar = "\r\x1b[K" if sys.stderr.isatty() else ""  # the parent's progress bar may be in this line
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(Once())
    attach(handler, rank, f"{over_bar}{label}")
    logger.propagate = False


def memory_is_full(error: BaseException) -> bool:
    """Whether an error says that this machine (not a GPU) has no memory left: Python's, numpy's or torch's."""
    return isinstance(error, MemoryError) or "DefaultCPUAllocator: can't allocate" in str(error)


def _with_hint(error: BaseException) -> str:
    if "batch_size" in str(error):
        return str(error)
    if isinstance(error, torch.OutOfMemoryError):
        return f"{error} (the GPU's memory is full: lower batch_size)"
    if memory_is_full(error):
        return f"{error} (the machine's memory is full: {LESS_MEMORY})"
    return str(error)
