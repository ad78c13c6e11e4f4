"""Joining a world that torchrun (or ``torch.distributed.launch``) started, instead of starting one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from filelock import FileLock

from gears.distributed import World, cleanup_ddp, is_running, join_group
from gears.distributed.child import configure_worker_logging
from gears.distributed.place import Place, own_device, started_by_launcher
from gears.distributed.signals import stop_on_signals
from gears.job import TrainingJob
from gears.pertdata import PertData
from gears.results import TrainResult
from gears.training.fitting import Seconds

__all__ = ["Place", "own_device", "started_by_launcher", "train_joined"]


def train_joined(
    job: TrainingJob,
    n_gpus: int | None,
    gpu_ids: Sequence[int] | None,
    device: str | None,
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
    configure_worker_logging(place.rank)
    seconds = Seconds()
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
    """Prepare or open the screen, one process of a file system after the other."""
    job.data_path.mkdir(parents=True, exist_ok=True)
    with FileLock(job.data_path / f".{job.dataset_name}.training.lock"):
        return job.prepare(place.world_size, seconds)
