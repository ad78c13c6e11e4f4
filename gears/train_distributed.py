"""Train on several GPUs or CPU processes from one Python call.

:func:`train_multi_gpu` prepares the screen once, starts one worker per device, and returns the
model's folder, its history and its test scores. The result is the same for any number of workers
at the same global batch, up to rounding (bit for bit with ``reproducible=True``).
:func:`launch_distributed_training` and :func:`distributed_train_worker` train any other model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset

from gears.core._numbers import whole_number
from gears.distributed._devices import DeviceLike, plan_devices
from gears.distributed._gpus import GpuIds
from gears.distributed._group import cleanup_ddp, setup_ddp, setup_ddp_multi_node, setup_distributed
from gears.distributed._launch import launch
from gears.distributed._world import current_world, is_running
from gears.jobs._job import train_ddp_worker, train_multi_gpu
from gears.training._trainer import TrainingEngine
from gears.training._workers import check_replicas, plain_state

__all__ = [
    "TrainingEngine", "cleanup_ddp", "distributed_train_worker", "launch_distributed_training", "setup_ddp",
    "setup_ddp_multi_node", "setup_distributed", "train_ddp_worker", "train_multi_gpu",
]  # fmt: skip


def launch_distributed_training(
    train_fn: Callable[..., Any],
    world_size: int | None = None,
    backend: str | None = None,
    *,
    gpu_ids: GpuIds = None,
    device: DeviceLike = None,
    timeout: float | None = None,
    **kwargs: Any,
) -> Any:
    """Run ``train_fn(rank, world_size, **kwargs)`` on every worker; returns rank 0's value.

    Parameters
    ----------
    train_fn
        Any function, also a lambda or one defined in a notebook; it runs inside a process group.
    world_size
        Number of workers: by default all visible GPUs, or CPU processes without a GPU. 0, the value of
        ``torch.cuda.device_count()`` without a GPU, is one CPU process, with a warning.
    backend, gpu_ids, device, timeout
        As in :func:`gears.train_distributed.train_multi_gpu`.
    **kwargs
        Arguments of `train_fn`: small, plain data.
    """
    n_workers = None if world_size is None else whole_number("world_size", world_size, 0)
    if torch.cuda.device_count() == 0:
        n_workers = n_workers or None  # of 0 plan_devices makes one CPU process, with a warning
        if n_workers is not None and device is None and gpu_ids is None:
            device = "cpu"
    plan = plan_devices(n_workers, gpu_ids, device, backend)

    def work(rank: int, size: int, options: Mapping[str, Any]) -> Any:
        return train_fn(rank, size, **options)

    return launch(work, plan.devices, (kwargs,), backend=plan.backend, timeout=timeout)


def distributed_train_worker(
    rank: int,
    world_size: int,
    *,
    model_fn: Callable[[], nn.Module],
    optimizer_fn: Callable[[Any], torch.optim.Optimizer],
    criterion_fn: Callable[[], Callable[..., torch.Tensor]],
    train_dataset: Dataset | Callable[[], Dataset],
    val_dataset: Dataset | Callable[[], Dataset] | None = None,
    scheduler_fn: Callable[[torch.optim.Optimizer], Any] | None = None,
    batch_size: int = 32,
    seed: int = 0,
    num_workers: int = 0,
    engine_kwargs: Mapping[str, Any] | None = None,
    train_kwargs: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Build a model from factories, train it on this worker's share of the data; returns history, weights, world_size.

    Parameters
    ----------
    rank, world_size
        Rank of this worker and number of workers (passed by :func:`launch_distributed_training`).
    model_fn, optimizer_fn, criterion_fn, scheduler_fn
        Make the model, ``optimizer_fn(parameters)``, the criterion (a mean over samples)
        and ``scheduler_fn(optimizer)``. The model must come out the same on all workers
        (seed its initial weights); they are compared before the first step.
    train_dataset, val_dataset
        Data sets, or functions that open them (better for large ones).
    batch_size, seed
        Samples per worker and step; seed of the shuffling.
    engine_kwargs, train_kwargs
        Further arguments of :class:`TrainingEngine` and of its `train`.
    """
    device = current_world().device if is_running() else torch.device("cpu")
    engine = TrainingEngine(
        model_fn(), device, distributed=is_running() and world_size > 1, world_size=world_size,
        **dict(engine_kwargs or {}),
    )  # fmt: skip
    check_replicas(engine.model, engine.reducer)  # initial weights that were drawn without a common seed
    optimizer = optimizer_fn(engine.model.parameters())
    training_set = _opened(train_dataset)
    sampler: DistributedSampler = DistributedSampler(training_set, world_size, rank, seed=seed, drop_last=True)
    loader = DataLoader(training_set, batch_size, sampler=sampler, drop_last=True, num_workers=num_workers)
    val_loader = None
    if val_dataset is not None:  # samples rank, rank + W, ...: without padding or repeats
        validation_set = _opened(val_dataset)
        rows = range(rank, len(validation_set), world_size)
        val_loader = DataLoader(Subset(validation_set, rows), batch_size)
    history = engine.train(
        loader,
        val_loader,
        optimizer,
        criterion_fn(),
        scheduler_fn(optimizer) if scheduler_fn is not None else None,
        **dict(train_kwargs or {}),
    )
    return {"history": history, "weights": plain_state(engine.evaluated_model), "world_size": world_size}


def _opened(dataset: Dataset | Callable[[], Dataset]) -> Any:
    return dataset() if callable(dataset) else dataset


def main() -> None:
    """``python -m gears.train_distributed``: the options of ``gears train``, also under torchrun."""
    import sys

    from gears.cli.main import main as command

    # torch.distributed.launch adds --local-rank=N to the user's arguments; LOCAL_RANK has the same value
    words = [word for word in sys.argv[1:] if not word.startswith(("--local-rank=", "--local_rank="))]
    sys.exit(command(["train", *words]))


if __name__ == "__main__":
    main()
