"""Independent trainings side by side, one per device: seeds, settings, members of an ensemble."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gears.distributed import (
    WorkerError,
    check_timeout,
    launch_many,
    plan_devices,
    refuse_daemonic_start,
    refuse_unguarded_start,
)
from gears.distributed.child import cores
from gears.distributed.devices import DeviceLike, parse_device
from gears.distributed.gpus import GpuIds
from gears.distributed.place import started_by_launcher
from gears.files import content_hash
from gears.job import TrainingJob
from gears.messages import unknown_name
from gears.reporting import shown
from gears.results import TrainResult

logger = logging.getLogger(__name__)

REQUIRED = ("pert_data_path", "dataset_name", "args")
KEYS = (*REQUIRED, "split_config", "data_config")


@dataclass(frozen=True)
class RunOutcome:
    """What became of one of several trainings.

    Attributes
    ----------
    save_path
        Folder of its model.
    device
        Where it ran.
    result
        As :func:`gears.train_distributed.train_multi_gpu` returns it; None where it failed.
    error
        Why it failed, its own traceback in ``error.details``; None where it did not.
    """

    save_path: str
    device: str
    result: TrainResult | None = field(default=None, repr=False)
    error: WorkerError | None = None

    @property
    def ok(self) -> bool:
        """Whether the training came to its end."""
        return self.error is None


def train_many(
    configs: Sequence[Mapping[str, Any]],
    gpu_ids: GpuIds = None,
    *,
    n_at_once: int | None = None,
    device: DeviceLike = None,
    timeout: float | None = None,
) -> list[RunOutcome]:
    """Train each configuration in a process of its own, one at a time per device.

    Screens, splits and graphs are prepared once each, before the first training starts.
    A training that fails does not end the others.

    Parameters
    ----------
    configs
        One mapping per training with the arguments of
        :func:`gears.train_distributed.train_multi_gpu`: ``pert_data_path``, ``dataset_name``,
        ``args`` (``save_path`` in it, another for each), and ``split_config``, ``data_config``
        where wanted.
    gpu_ids
        Indices into the visible GPUs, or ``"free:2"``; all visible ones when left out.
    n_at_once
        Trainings at the same time: on the CPU as many as there are cores when left out, else
        one per GPU.
    device
        ``"cpu"`` for CPU processes.
    timeout
        As for ``train_multi_gpu``.

    Returns
    -------
    list of RunOutcome
        In the order of `configs`.

    Raises
    ------
    ValueError
        A configuration is wrong, or two have one ``save_path``: nothing has started then.

    Examples
    --------
    >>> config = {"pert_data_path": "data", "dataset_name": "norman", "args": {"save_path": "m1"}}
    >>> train_many([config], gpu_ids=[0, 1])                                      # doctest: +SKIP
    """
    refuse_unguarded_start()
    if started_by_launcher():
        msg = "train_many starts processes of its own and this process is a worker already; call it without torchrun"
        raise RuntimeError(msg)
    refuse_daemonic_start()
    jobs, timeout = _checked(configs), check_timeout(timeout)
    if device is not None and parse_device(device).type == "cpu" and n_at_once is None:
        n_at_once = min(len(jobs), cores())
    plan = plan_devices(n_at_once, gpu_ids, device)
    arguments = [(str(job.data_path), job.dataset_name, job.split_config, job.worker_args()) for job in jobs]
    with shown(any(job.options.verbose for job in jobs)):
        _prepare(jobs)
        logger.info("%d trainings, %d at a time on %s", len(jobs), len(plan.devices), ", ".join(plan.devices))
        done = launch_many(train_alone, arguments, plan.devices, backend=plan.backend, timeout=timeout)
    return [
        RunOutcome(
            str(job.options.save_path),
            outcome.device,
            None if outcome.error else TrainResult(**outcome.value),
            outcome.error,
        )
        for job, outcome in zip(jobs, done, strict=True)
    ]


def train_alone(
    rank: int,
    world_size: int,
    pert_data_path: str,
    dataset_name: str,
    split_config: Mapping[str, Any] | None,
    args: Mapping[str, Any],
) -> dict[str, Any]:
    """What each process does: open the prepared screen, train, score the test part."""
    job = TrainingJob.check(pert_data_path, dataset_name, split_config, args)
    with shown(job.options.verbose):
        result = job.opened(rank, world_size).train(**job.options.to_dict())
    return vars(result)


def _checked(configs: Sequence[Mapping[str, Any]]) -> list[TrainingJob]:
    """Every configuration in checked form; the first wrong one is named by its number."""
    if isinstance(configs, Mapping) or not configs:
        msg = f"configs is a list of at least one configuration; found {type(configs).__name__} of {len(configs)}"
        raise ValueError(msg)
    jobs: list[TrainingJob] = []
    for number, config in enumerate(configs, start=1):
        try:
            jobs.append(_job(config))
        except (ValueError, TypeError, OSError) as error:
            msg = f"configuration {number} of {len(configs)}: {error}"
            raise ValueError(msg) from error
    places = [str(Path(str(job.options.save_path)).resolve()) for job in jobs]
    twice = sorted({place for place in places if places.count(place) > 1})
    if twice:
        msg = f"several configurations have the save_path {twice[0]}; give each a folder of its own"
        raise ValueError(msg)
    return jobs


def _job(config: Mapping[str, Any]) -> TrainingJob:
    for name in config:
        if name not in KEYS:
            raise ValueError(unknown_name("entry", str(name), KEYS))
    missing = [name for name in REQUIRED if config.get(name) is None]
    if missing:
        msg = f"{', '.join(missing)} missing; a configuration has {', '.join(KEYS)}"
        raise ValueError(msg)
    return TrainingJob.check(
        config["pert_data_path"],
        config["dataset_name"],
        config.get("split_config"),
        config["args"],
        config.get("data_config"),
    )


def _prepare(jobs: Sequence[TrainingJob]) -> None:
    """Prepare each screen, split and graph once, for the processes to find."""
    seen = set()
    for job in jobs:
        graphs = {name: value for name, value in job.model_config.items() if name != "seed"}
        key = content_hash(
            str(job.data_path), job.dataset_name, repr(job.split_config), repr(graphs), repr(job.data_config),
            job.on_cells, job.options.batch_size,
        )  # fmt: skip
        if key not in seen:
            job.prepare(1)
            seen.add(key)
