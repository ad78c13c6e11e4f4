"""Start and end the process group of a worker.

Order, the same for every way of starting workers: choose the device, set it as current, meet the other workers at a
store (a small key-value server of rank 0), initialise the group through it, remember rank and device. The group is a
pair of backends for CUDA (gloo for CPU tensors, NCCL for those on GPUs) and gloo otherwise. A process may run several
groups one after the other; each gets separate keys in the store, because the keys of an ended group stay there.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import gc
import hashlib
import itertools
import logging
import multiprocessing as mp
import os
import platform
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from gears.core._numbers import is_number, plain_number
from gears.distributed._devices import choose_backend, find_device, own_device
from gears.distributed._log import show_progress
from gears.distributed._signals import stop_on_signals
from gears.distributed._world import (
    Ranks,
    World,
    current_world,
    is_running,
    local_rank_of,
    missing_variables,
    set_world,
)

if TYPE_CHECKING:
    from gears.pertdata import PertData

logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT = 600.0
LOWEST_PORT, N_PORTS = 10_000, 20_000
"""Ports at which workers meet without MASTER_PORT: below those that systems give out by themselves (from 32,768 on)."""


def setup_ddp(
    rank: int,
    world_size: int,
    *,
    device: str | torch.device | None = None,
    backend: str | None = None,
    timeout: float | None = None,
) -> World:
    """Join the process group as `rank`; for a worker started by ``torch.multiprocessing.spawn``.

    Uses ``MASTER_ADDR`` and ``MASTER_PORT``; without them the workers that one call of ``spawn`` started meet on this
    machine, at a port of their own. In a worker of :func:`train_multi_gpu` the group is already running and is only
    checked.

    Parameters
    ----------
    rank, world_size
        Rank of this process and number of workers.
    device
        Device of this worker; ``cuda:<rank>`` where CUDA is available, else the CPU.
    backend
        ``torch.distributed`` backend; chosen by device when omitted.
    timeout
        Seconds after which a collective that does not complete is an error.

    Raises
    ------
    RuntimeError
        One of the two variables is set alone; neither is, and `multiprocessing` did not start this process; the port is
        taken; another group is running.
    """
    if is_running():
        world = current_world()
        if (world.rank, world.world_size) != (rank, world_size):
            msg = (
                f"a process group is already running as rank {world.rank} of {world.world_size}, "
                f"but setup_ddp was called with rank {rank} of {world_size}; call cleanup_ddp first"
            )
            raise RuntimeError(msg)
        return world
    world = World(rank, rank, world_size, find_device(device) if device is not None else _own_device(rank))
    missing = [name for name in missing_variables() if name.startswith("MASTER_")]
    if not missing:
        return join_group(world, backend=backend, timeout=timeout)
    if len(missing) == 1 or not (world_size == 1 or mp.current_process()._identity):  # type: ignore[attr-defined]
        msg = (
            f"{' and '.join(missing)} not set; before starting the workers set MASTER_ADDR='127.0.0.1' and "
            "MASTER_PORT to a free port in os.environ, or let gears.train_distributed.train_multi_gpu start them"
        )
        raise RuntimeError(msg)
    if world_size > 1:
        use_loopback()
    store = dist.PrefixStore(f"gears-{next(_joins)}", _own_store(rank, world_size))
    return join_group(world, backend=backend, timeout=timeout, store=store)


def setup_ddp_multi_node(
    rank: int,
    world_size: int,
    master_addr: str,
    master_port: int | str,
    *,
    backend: str | None = None,
    timeout: float | None = None,
) -> World:
    """Join a process group over several machines at an explicit address (global `rank`)."""
    local_rank = local_rank_of(rank)
    world = World(rank, local_rank, world_size, _own_device(local_rank))
    url = f"tcp://{master_addr}:{int(master_port)}"
    return join_group(world, backend=backend, timeout=timeout, init_method=url)


def setup_distributed(*, backend: str | None = None, timeout: float | None = None) -> tuple[int, int, int]:
    """Join the group that torchrun describes; (rank, local rank, world size), (0, 0, 1) without it.

    RuntimeError where the address at which the workers meet is missing; ValueError for variables that contradict.
    """
    if is_running():
        world = current_world()
        return world.rank, world.local_rank, world.world_size
    ranks = Ranks.read()
    if ranks is None:
        missing = missing_variables()
        if "RANK" in missing or "WORLD_SIZE" in missing:
            return 0, 0, 1
        msg = f"RANK and WORLD_SIZE are set, but not {' and '.join(missing)}: start the script with torchrun"
        raise RuntimeError(msg)
    world = World(ranks.rank, ranks.local_rank, ranks.world_size, _own_device(ranks.local_rank))
    join_group(world, backend=backend, timeout=timeout)
    return ranks.rank, ranks.local_rank, ranks.world_size


def join_group(
    world: World,
    *,
    backend: str | None = None,
    timeout: float | None = None,
    store: dist.Store | None = None,
    init_method: str | None = None,
) -> World:
    """Set the device, then initialise the process group (by store, URL or environment)."""
    backend = choose_backend(world.device.type, explicit=backend)
    if world.rank == 0 and "NCCL_TIMEOUT" in os.environ:
        logger.warning("the variable NCCL_TIMEOUT has no effect (neither torch nor NCCL reads it); use timeout=")
    if "gloo" in backend and (missing := _missing_interfaces()):
        msg = (
            f"GLOO_SOCKET_IFNAME names {', '.join(missing)}, which this machine does not have; it has "
            f"{', '.join(name for _, name in socket.if_nameindex())}: name one of these, or unset the variable"
        )
        raise ValueError(msg)
    device_id = None
    if world.device.type == "cuda":
        torch.cuda.set_device(world.device)
        device_id = world.device if "nccl" in backend else None
    limit = datetime.timedelta(seconds=check_timeout(timeout) or DEFAULT_TIMEOUT)
    # a supervisor passes its store, setup_ddp_multi_node an address; torchrun's is described by the environment
    if store is None and init_method is None:
        store = _fresh_store(world.rank, world.world_size, limit)
    # DDP imports this later: default arguments of its functions keep the group that runs at their import
    from torch.distributed.nn import functional  # noqa: F401

    ranks: dict[str, Any] = {"rank": world.rank, "world_size": world.world_size}
    dist.init_process_group(backend, store=store, init_method=init_method, timeout=limit, device_id=device_id, **ranks)
    set_world(world)
    return world


_joins = itertools.count()


def _fresh_store(rank: int, world_size: int, limit: datetime.timedelta) -> dist.Store:
    """The store that the environment describes, with separate keys for each group."""
    # torchrun's store outlives a group: a second group would find the addresses of the first one there and wait for
    # them for ever. So would the workers of a restart, unless rank 0 of them makes the store: then the number of
    # restarts does not count, which agents that came back do not share.
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    with _naming_variables(rank, world_size, address):
        store, _, _ = next(dist.rendezvous("env://", rank, world_size, timeout=limit))
    store.set_timeout(limit)
    is_kept = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if is_kept else "0"
    return dist.PrefixStore(f"gears-{restart}-{next(_joins)}", store)


@functools.cache
def _own_store(rank: int, world_size: int) -> dist.Store:
    """Store of workers that one process started by ``multiprocessing``, without MASTER_ADDR and MASTER_PORT."""
    # Port and keys follow from what the parent gives to its children alone: a random key, its own place among
    # processes, and numbers in the order of their start, of which that of rank 0 is the same for all workers of one
    # start. So workers of two jobs, or of two starts, do not meet: where both have the same port, rank 0 of the second
    # finds it taken. Threads of one process that start workers at the same time mix the numbers: they need a
    # MASTER_PORT each.
    process: Any = mp.current_process()
    *parent, number = process._identity or (0,)
    start = hashlib.sha256(b"%s %s" % (process.authkey, repr((os.getppid(), parent, number - rank)).encode()))
    port = LOWEST_PORT + int.from_bytes(start.digest()[:4], "big") % N_PORTS if world_size > 1 else 0
    limit = datetime.timedelta(seconds=DEFAULT_TIMEOUT)
    with _naming_variables(rank, world_size, f"127.0.0.1:{port}"):
        store = dist.TCPStore("127.0.0.1", port, is_master=rank == 0, timeout=limit, wait_for_workers=False)
    return dist.PrefixStore(start.hexdigest(), store)


@contextlib.contextmanager
def _naming_variables(rank: int, world_size: int, address: str) -> Iterator[None]:
    """Turn torch's errors, while workers meet at an address, into one that names the variables to set."""
    try:
        yield
    except dist.DistError as error:
        reason = str(error).partition("\n")[0]
        msg = (
            f"worker {rank} of {world_size} did not meet the others at {address} ({reason}): start all of them, or "
            "unset RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT if no launcher has set them"
        )
        if "EADDRINUSE" in reason:
            msg = (
                f"the port at which the workers meet, {address}, is taken by another process: set MASTER_PORT to a "
                "free port (and MASTER_ADDR='127.0.0.1' on one machine) before the workers start"
            )
        raise RuntimeError(msg) from error


_open_stores: list[dist.Store] = []


@contextlib.contextmanager
def rank_0_first(rank: int, world_size: int) -> Iterator[None]:
    """Let rank 0 of a launcher's processes do something, or fail, before the others; no process group is needed."""
    if world_size == 1 or not os.environ.get("MASTER_ADDR"):
        yield
        return
    store = _fresh_store(rank, world_size, datetime.timedelta(seconds=DEFAULT_TIMEOUT))
    store.set_timeout(datetime.timedelta(days=1))  # what rank 0 does may take long
    _open_stores[:] = [store]  # rank 0 may serve the keys itself: they must live until the next call
    if rank:
        store.wait(["first"])
    try:
        yield
    finally:
        if rank == 0:
            store.set("first", "done")


def check_timeout(timeout: float | None) -> float | None:
    """A time-out in seconds, or None for the default; ValueError unless it is a number above 0."""
    plain = plain_number(timeout)
    if plain is not None and not (is_number(plain) and plain > 0):
        msg = f"timeout is {plain!r}; expected seconds above 0, or None for {DEFAULT_TIMEOUT:.0f}"
        raise ValueError(msg)
    return plain


def cleanup_ddp() -> None:
    """End the process group of this worker, if one is running, and its threads."""
    if is_running():
        # The group's threads end with the last reference to it, which a wrapped model in a reference cycle may hold.
        # A thread that still runs and frees a tensor while Python exits aborts the process.
        gc.collect()
        dist.destroy_process_group()
    set_world(None)


def use_loopback() -> None:
    """In a worker process: let gloo use the loopback interface, unless the user chose another one that is there."""
    name = {"Linux": "lo", "Darwin": "lo0"}.get(platform.system())
    if name is not None and (_missing_interfaces() or not os.environ.get("GLOO_SOCKET_IFNAME")):
        os.environ["GLOO_SOCKET_IFNAME"] = name


def _missing_interfaces() -> list[str]:
    """Interfaces in GLOO_SOCKET_IFNAME that this machine does not have."""
    names = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")
    there = {name for _, name in socket.if_nameindex()}
    return [name for name in names if name and name.partition(":")[0] not in there]


def _own_device(local_rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        msg = (
            f"local rank {local_rank} has no GPU: {torch.cuda.device_count()} visible; start fewer workers "
            "on this machine or pass a device"
        )
        raise RuntimeError(msg)
    return torch.device("cuda", local_rank)


@contextlib.contextmanager
def joined(pert_data: PertData, device: torch.device, enabled: bool) -> Iterator[World]:
    """While training, run in one process group with the launcher's other workers, as the worker that it yields.

    The loaders become those of this worker's share of the cells. A group that already runs is used and left running.
    Otherwise one is started, and ended before scoring and saving, so that no worker waits for another.
    """
    if not enabled:
        ranks = None
        with contextlib.suppress(ValueError):  # variables that contradict each other request nothing
            ranks = Ranks.read()
        if ranks is not None and ranks.world_size > 1 and not is_running():
            logger.warning(
                "this is process %d of %d of a launcher, but each of them trains a separate model; "
                "train(distributed=True) trains one model together", ranks.rank, ranks.world_size,
            )  # fmt: skip
        world = current_world()
        yield World(world.rank, world.rank, world.world_size, device)
        return
    ranks = Ranks.current()
    if ranks is None:
        msg = (
            f"distributed=True joins the workers that a launcher started, but there is none: "
            f"{', '.join(missing_variables())} not set and no process group running. Start the script with torchrun "
            "--standalone --nproc_per_node=N SCRIPT, or call gears.train_distributed.train_multi_gpu, which starts "
            "workers itself"
        )
        raise RuntimeError(msg)
    share_loaders(pert_data, ranks)
    if is_running():
        yield current_world()
        return
    device_name = None if device.type == "cuda" else str(device)
    device = torch.device(own_device(ranks, None, None, device_name))
    worker = World(ranks.rank, ranks.local_rank, ranks.world_size, device)
    if ranks.rank:
        show_progress()  # so that its warnings name its rank
    with stop_on_signals():
        join_group(worker)
        try:
            yield worker
        finally:
            cleanup_ddp()


def share_loaders(pert_data: PertData, ranks: Ranks) -> None:
    """Make loaders of all cells into loaders of this worker's share, with the same batch size per worker."""
    loaders: dict[str, Any] = dict(pert_data.dataloader or {})
    if "train_loader" not in loaders:
        return
    train, other = loaders["train_loader"], loaders.get("val_loader") or loaders.get("test_loader")
    made_for = train.sampler.num_replicas, train.sampler.rank
    if made_for == (ranks.world_size, ranks.rank):
        return
    if made_for != (1, 0):
        msg = (
            f"the loaders are those of worker {made_for[1]} of {made_for[0]}, but this process is worker {ranks.rank} "
            f"of {ranks.world_size}; make them with get_dataloader(batch_size), or with this world_size and rank"
        )
        raise ValueError(msg)
    sizes = train.batch_size, None if other is None else other.batch_size
    pert_data.get_dataloader_distributed(*sizes, ranks.world_size, ranks.rank, train.num_workers)
