"""``GEARS.train(distributed=True)``: a script of one's own joins the workers that torchrun started."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from gears.distributed.group import cleanup_ddp, join_group
from gears.distributed.log import show_progress
from gears.distributed.signals import stop_on_signals
from gears.distributed.world import Place, World, current_world, is_running, missing_variables, own_device

if TYPE_CHECKING:
    from gears.gears import GEARS
    from gears.pertdata import PertData

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def joined(model: GEARS, wanted: bool) -> Iterator[None]:
    """While training: one process group with the launcher's other workers, network and loaders to match.

    A group that runs already is used and left running. Otherwise one is started and ended,
    so that what follows (scoring, saving) keeps nobody waiting; the model remembers its rank.

    Parameters
    ----------
    model
        Made before or after the group; its network moves to this worker's device.
    wanted
        Whether the caller asked for it. Where not, a process that a launcher started is
        warned that it trains alone.

    Raises
    ------
    RuntimeError
        There is no world to join.
    ValueError
        The loaders were made for another number of workers.
    """
    if not wanted:
        _warn_if_alone()
        yield
        return
    place = Place.current()
    if place is None:
        raise RuntimeError(_no_world())
    if is_running():
        _fit(model, place, current_world().device)
        yield
        return
    kind = None if model.device.type == "cuda" else str(model.device)
    device = torch.device(own_device(place, None, None, kind))
    _fit(model, place, device)
    if place.rank:
        show_progress()  # its warnings, with its rank
    with stop_on_signals():
        join_group(World(place.rank, place.local_rank, place.world_size, device))
        try:
            yield
        finally:
            cleanup_ddp()


def _warn_if_alone() -> None:
    place = None
    with contextlib.suppress(ValueError):  # variables that mean nothing are no one's wish
        place = Place.read()
    if place is not None and place.world_size > 1 and not is_running():
        logger.warning(
            "this is process %d of %d of a launcher, but each of them trains a model of its own; "
            "train(distributed=True) trains one model together",
            place.rank,
            place.world_size,
        )


def _no_world() -> str:
    missing = ", ".join(missing_variables())
    return (
        f"distributed=True joins the workers that a launcher started, but there is none: {missing} not set and no "
        "process group running. Start the script with torchrun --standalone --nproc_per_node=N SCRIPT, or call "
        "gears.train_distributed.train_multi_gpu, which starts workers itself"
    )


def _fit(model: GEARS, place: Place, device: torch.device) -> None:
    """Give the model this worker's device, rank and share of the cells."""
    model.joined_as = (place.rank, place.world_size)
    if model.pert_data is not None:
        share_loaders(model.pert_data, place)
    if model.device != device:
        model.device = device
        for network in (model.model, model.best_model):
            if network is not None:
                network.to(device)


def share_loaders(pert_data: PertData, place: Place) -> None:
    """Make loaders of all cells into loaders of this worker's share, with the same batch size per worker."""
    loaders: dict[str, Any] = dict(pert_data.dataloader or {})
    if "train_loader" not in loaders:
        return
    train, other = loaders["train_loader"], loaders.get("val_loader") or loaders.get("test_loader")
    made_for = train.sampler.num_replicas, train.sampler.rank
    if made_for == (place.world_size, place.rank):
        return
    if made_for != (1, 0):
        msg = (
            f"the loaders are those of worker {made_for[1]} of {made_for[0]}, but this process is worker {place.rank} "
            f"of {place.world_size}; make them with get_dataloader(batch_size), or with this world_size and rank"
        )
        raise ValueError(msg)
    pert_data.get_dataloader_distributed(
        train.batch_size,
        None if other is None else other.batch_size,
        place.world_size,
        place.rank,
        train.num_workers,
    )
