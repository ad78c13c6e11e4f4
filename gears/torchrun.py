"""Joining a world that torchrun (or ``torch.distributed.launch``) started, instead of starting one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from filelock import FileLock

from gears.distributed import World, cleanup_ddp, is_running, join_group, plan_devices, rank_0_first
from gears.distributed.devices import DeviceLike
from gears.distributed.gpus import GpuIds, resolve_gpu_ids
from gears.distributed.place import Place, own_device, started_by_launcher
from gears.distributed.signals import stop_on_signals
from gears.job import TrainingJob
from gears.pertdata import PertData
from gears.reporting import only_on_rank_0, shown
from gears.results import TrainResult
from gears.training.fitting import Seconds

__all__ = ["Place", "check_devices", "own_device", "started_by_launcher", "train_joined"]


def check_devices(n_gpus: int | None, gpu_ids: GpuIds, device: DeviceLike) -> None:
    """Refuse devices that are not there, or that are not those of the launcher's processes.

    Raises
    ------
    ValueError
        They contradict each other, the machine or the launcher.
    """
    if started_by_launcher():
        place = Place.current()
        assert place is not None
        own_device(place, n_gpus, resolve_gpu_ids(gpu_ids), device)
    else:
        plan_devices(n_gpus, gpu_ids, device)


@contextlib.contextmanager
def first_on_rank_0() -> Iterator[None]:
    """Around what every process of a launcher does alike: rank 0 does it first, and alone reports it."""
    place = Place.read()
    if place is None:
        with only_on_rank_0():
            yield
        return
    with rank_0_first(place.rank, place.world_size), only_on_rank_0():
        yield


def train_joined(
    job: TrainingJob,
    n_gpus: int | None,
    gpu_ids: Sequence[int] | None,
    device: DeviceLike,
    backend: str | None,
    timeout: float | None,
) -> TrainResult:
    """Train as one worker of a world that is there already.

    The screen is prepared before the process group starts (a file lock lets one process do
    it), so that nothing slow happens between collectives; the test part is scored on rank 0
    after the group has ended.

    Returns
    -------
    TrainResult
        On rank 0 with the test table, elsewhere without.
    """
    place = Place.current()
    assert place is not None
    own = own_device(place, n_gpus, gpu_ids, device)
    with shown(job.options.verbose):
        return _train(job, place, own, backend, timeout)


def _train(
    job: TrainingJob, place: Place, own: str, backend: str | None, timeout: float | None
) -> TrainResult:
    seconds = Seconds()
    with first_on_rank_0():
        job.warn_without_effect()
        pert_data = _prepare(job, place, seconds)
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
    return job.conclude(pert_data, result, seconds, None) if place.rank == 0 else result


def _prepare(job: TrainingJob, place: Place, seconds: Seconds) -> PertData:
    """Prepare or open the screen, one process of a file system (of another job, too) after the other."""
    with FileLock(job.data_path / f".{job.dataset_name}.training.lock"):
        return job.prepare(place.world_size, seconds)
