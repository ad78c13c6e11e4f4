"""What a launcher (torchrun, ``torch.distributed.launch``) says of this process, and the device that follows."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from gears.distributed.devices import DeviceLike, choose_devices
from gears.distributed.world import current_world, is_running

logger = logging.getLogger(__name__)

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Place:
    """What the launcher's environment says of this process."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int

    @classmethod
    def read(cls, environment: Mapping[str, str] | None = None) -> Place | None:
        """The place that RANK, LOCAL_RANK and WORLD_SIZE describe; None where nothing was started.

        Raises
        ------
        ValueError
            The variables contradict each other or hold no numbers.
        """
        values = os.environ if environment is None else environment
        if not all(values.get(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR")):
            return None
        rank, size = _number(values, "RANK"), _number(values, "WORLD_SIZE")
        local = _number(values, "LOCAL_RANK", rank)
        local_size = _number(values, "LOCAL_WORLD_SIZE", size)
        if not (0 <= rank < size and 0 <= local < local_size <= size):
            msg = (
                f"RANK={rank}, WORLD_SIZE={size}, LOCAL_RANK={local}, LOCAL_WORLD_SIZE={local_size} describe no "
                "worker; ranks run from 0 to the number of workers less one: start with torchrun, which sets them"
            )
            raise ValueError(msg)
        return cls(rank, local, size, local_size)

    @classmethod
    def current(cls) -> Place | None:
        """Place in the launcher's world or, without one, in the running process group."""
        found = cls.read()
        if found is None and is_running():
            world = current_world()
            return cls(world.rank, world.local_rank, world.world_size, world.world_size)
        return found


def _number(values: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = values.get(name)
    if not text and default is not None:
        return default
    try:
        return int(text or "")
    except ValueError:
        msg = f"the variable {name} is {text!r}; expected a whole number, as torchrun sets it"
        raise ValueError(msg) from None


def started_by_launcher() -> bool:
    """Whether this process is a worker of torchrun (and so must not start workers itself)."""
    return is_running() or Place.read() is not None


def own_device(
    place: Place,
    n_gpus: int | None,
    gpu_ids: Sequence[int] | None,
    device: DeviceLike,
    visible: int | None = None,
) -> str:
    """Device of this process: the chosen (or own) GPU by local rank, or the CPU.

    Raises
    ------
    ValueError
        `n_gpus` is neither the number of processes here nor in all, or there are fewer GPUs
        than processes on this machine.
    """
    if n_gpus is not None and n_gpus not in (place.local_world_size, place.world_size):
        msg = (
            f"n_gpus={n_gpus}, but the launcher started {place.world_size} process(es), "
            f"{place.local_world_size} of them on this machine; leave n_gpus out or start as many"
        )
        raise ValueError(msg)
    if visible is None:
        visible = torch.cuda.device_count()
    if device is None and gpu_ids is None and visible == 0:
        device = "cpu"
        if torch.backends.mps.is_available() and place.local_rank == 0:
            logger.warning(
                "the one MPS device of this machine cannot be shared: the %d process(es) of the launcher train on "
                "the CPU (device='mps' is for a single process)",
                place.local_world_size,
            )
    return choose_devices(place.local_world_size, gpu_ids, device, visible=visible)[place.local_rank]
