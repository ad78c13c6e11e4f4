"""``GEARS.train(distributed=True)`` in a script that torchrun started: attach to its process group."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from gears.distributed._devices import own_device
from gears.distributed._group import cleanup_ddp, join_group
from gears.distributed._log import show_progress
from gears.distributed._signals import stop_on_signals
from gears.distributed._world import Ranks, World, current_world, is_running, missing_variables

if TYPE_CHECKING:
    from gears.pertdata import PertData

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def joined(pert_data: PertData, device: torch.device, enabled: bool) -> Iterator[World]:
    """While training, run in one process group with the launcher's other workers, as the worker that it yields.

    The loaders become those of this worker's share of the cells. A group that already runs is used and left running.
    Otherwise one is started, and ended before scoring and saving, so that no worker waits for another.

    Without `enabled`, only warn if a launcher started several processes, each of which then trains alone on `device`.
    RuntimeError without group and launcher; ValueError for loaders that were made for another number of workers.
    """
    if not enabled:
        _warn_if_alone()
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


def _warn_if_alone() -> None:
    ranks = None
    with contextlib.suppress(ValueError):  # variables that contradict each other request nothing
        ranks = Ranks.read()
    if ranks is not None and ranks.world_size > 1 and not is_running():
        logger.warning(
            "this is process %d of %d of a launcher, but each of them trains a separate model; "
            "train(distributed=True) trains one model together", ranks.rank, ranks.world_size,
        )  # fmt: skip


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
