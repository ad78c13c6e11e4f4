"""Joining a world that torchrun (or ``torch.distributed.launch``) started, instead of starting one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from filelock import FileLock

from gears.distributed import World, choose_devices, cleanup_ddp, current_world, is_running, join_group
from gears.distributed.child import configure_worker_logging
from gears.distributed.signals import stop_on_signals
from gears.job import TrainingJob
from gears.pertdata import PertData
from gears.results import MultiProcessResult


@dataclass(frozen=True)
class Place:
    """What the launcher's environment says of this process."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int

    @classmethod
    def read(cls, environment: dict[str, str] | None = None) -> Place | None:
        """The place that RANK, LOCAL_RANK and WORLD_SIZE describe; None where nothing was started."""
        values = dict(os.environ) if environment is None else environment
        if not all(values.get(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR")):
            return None
        rank, size = int(values["RANK"]), int(values["WORLD_SIZE"])
        local = int(values.get("LOCAL_RANK", rank))
        return cls(rank, local, size, int(values.get("LOCAL_WORLD_SIZE", size)))


def started_by_launcher() -> bool:
    """Whether this process is a worker of torchrun (and so must not start workers itself)."""
    return is_running() or Place.read() is not None


def train_joined(
    job: TrainingJob,
    n_gpus: int | None,
    gpu_ids: Sequence[int] | None,
    device: str | None,
    backend: str | None,
    timeout: float | None,
) -> MultiProcessResult:
    """Train as one worker of a world that is there already.

    The screen is prepared before the process group starts (a file lock lets one process do
    it), so that nothing slow happens between collectives; the test part is scored on rank 0
    after the group has ended.

    Returns
    -------
    MultiProcessResult
        On rank 0 with the test table, elsewhere without.
    """
    place = _place()
    own = own_device(place, n_gpus, gpu_ids, device)
    configure_worker_logging(place.rank)
    pert_data = _prepare(job, place)
    joined_before = is_running()
    with stop_on_signals():
        if not joined_before:
            world = World(place.rank, place.local_rank, place.world_size, torch.device(own))
            join_group(world, backend=backend, timeout=timeout)
        try:
            job.make_batches(pert_data, place.world_size, place.rank, job.num_workers)
            result = job.model(pert_data).train(**job.options.to_dict(), evaluate_test=False)
        finally:
            if not joined_before:
                cleanup_ddp()
    if place.rank == 0:
        outcome = {"history": result.history, "best_epoch": result.best_epoch, "stopped": result.stopped}
        return job.conclude(pert_data, outcome, [own] * place.world_size, None)
    return MultiProcessResult(
        result.history,
        result.best_epoch,
        stopped=result.stopped,
        save_path=str(job.options.save_path),
        world_size=place.world_size,
        devices=(own,) * place.world_size,
        rank=place.rank,
    )


def own_device(
    place: Place,
    n_gpus: int | None,
    gpu_ids: Sequence[int] | None,
    device: str | None,
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
    return choose_devices(place.local_world_size, gpu_ids, device, visible=visible)[place.local_rank]


def _place() -> Place:
    found = Place.read()
    if found is not None:
        return found
    world = current_world()
    return Place(world.rank, world.local_rank, world.world_size, world.world_size)


def _prepare(job: TrainingJob, place: Place) -> PertData:
    """Prepare or open the screen, one process of a file system after the other."""
    job.data_path.mkdir(parents=True, exist_ok=True)
    with FileLock(job.data_path / f".{job.dataset_name}.training.lock"):
        return job.prepare(place.world_size)
