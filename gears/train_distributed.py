"""Training on several GPUs or CPU processes from one Python call.

:func:`train_multi_gpu` prepares the screen once, starts one worker per chosen device, and
returns where the model lies, its history and its test scores. The result is the same for
any number of workers at the same global batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gears.distributed import (
    check_timeout,
    cleanup_ddp,
    is_running,
    launch,
    plan_devices,
    refuse_daemonic_start,
    refuse_unguarded_start,
    setup_ddp,
    setup_ddp_multi_node,
    setup_distributed,
)
from gears.distributed.devices import DeviceLike
from gears.distributed.gpus import GpuIds, resolve_gpu_ids
from gears.job import TrainingJob
from gears.reporting import shown
from gears.results import TrainResult
from gears.torchrun import started_by_launcher, train_joined
from gears.training.engine import TrainingEngine
from gears.training.fitting import Seconds
from gears.training.launching import distributed_train_worker, launch_distributed_training

if TYPE_CHECKING:
    from gears.gears import GEARS

__all__ = [
    "TrainingEngine",
    "cleanup_ddp",
    "distributed_train_worker",
    "launch_distributed_training",
    "setup_ddp",
    "setup_ddp_multi_node",
    "setup_distributed",
    "train_ddp_worker",
    "train_multi_gpu",
]


def train_multi_gpu(
    pert_data_path: str | Path,
    dataset_name: str,
    split_config: Mapping[str, Any] | None,
    args: Mapping[str, Any],
    n_gpus: int | None = None,
    gpu_ids: GpuIds = None,
    *,
    device: DeviceLike = None,
    backend: str | None = None,
    timeout: float | None = None,
    data_config: Mapping[str, Any] | None = None,
    model: GEARS | None = None,
) -> TrainResult:
    """Train with one worker process per selected device.

    Called in a script that torchrun started, it starts nothing and joins the world that is there.

    Parameters
    ----------
    pert_data_path, dataset_name
        A prepared folder of that name in `pert_data_path`, else ``<dataset_name>.h5ad``
        there (prepared into the same folder).
    split_config
        Arguments of :meth:`PertData.prepare_split`, such as
        ``{"split": "simulation", "seed": 1}``.
    args
        ``save_path`` (required), ``model_config`` (arguments of
        :meth:`GEARS.model_initialize`), ``batch_size`` (cells or conditions per worker and
        step), ``test_batch_size``, ``num_workers`` (0), and every option of :meth:`GEARS.train`.
    n_gpus
        Number of workers; all visible GPUs when left out. One CPU process where there is
        no GPU.
    gpu_ids
        Indices into the visible GPUs (or one of them), rank 0 on the first; ``CUDA_VISIBLE_DEVICES`` is
        respected and never rewritten. ``"free:2"`` takes the two least busy GPUs.
    device
        ``"cpu"`` for CPU processes (``n_gpus`` of them, joined by gloo).
    backend, timeout
        ``torch.distributed`` backend, and seconds after which a collective has failed.
    data_config
        Options of :class:`PertData` (``gene2go``, ``default_pert_graph``,
        ``gene_set_path``) and of preparing (``normalize``, ``min_cells``, ...).
    model
        A GEARS object that takes over the trained weights.

    Returns
    -------
    TrainResult
        How good the model is beside simple baselines (printed), what was used, save_path, history, test table.

    Raises
    ------
    ValueError
        Options that are unknown or contradict each other, before any worker starts.
    WorkerError
        A worker failed; its own traceback is part of the message.

    Examples
    --------
    >>> train_multi_gpu("data", "norman", {"split": "simulation", "seed": 1},
    ...     {"save_path": "models/run1", "epochs": 20}, gpu_ids=[2, 3])     # doctest: +SKIP
    """
    refuse_unguarded_start()
    timeout = check_timeout(timeout)
    job = TrainingJob.check(pert_data_path, dataset_name, split_config, args, data_config)
    if started_by_launcher():
        result = train_joined(job, n_gpus, resolve_gpu_ids(gpu_ids), device, backend, timeout)
        if model is not None:
            model.load_pretrained(str(result.save_path))
        return result
    refuse_daemonic_start()
    seconds = Seconds()
    with shown(job.options.verbose):
        plan = plan_devices(n_gpus, gpu_ids, device, backend)
        job.warn_without_effect()
        pert_data = job.prepare(plan.world_size, seconds)
        with seconds.of("workers"):
            result = TrainResult(
                **launch(
                    train_ddp_worker,
                    plan.devices,
                    (str(job.data_path), job.dataset_name, job.split_config, job.worker_args()),
                    backend=plan.backend,
                    timeout=timeout,
                )
            )
        return job.conclude(pert_data, result, seconds, model)


def train_ddp_worker(
    rank: int,
    world_size: int,
    pert_data_path: str,
    dataset_name: str,
    split_config: Mapping[str, Any] | None,
    args: Mapping[str, Any],
) -> dict[str, Any]:
    """What each worker does: open the prepared screen, make its loaders, train, leave.

    Can be given to ``torch.multiprocessing.spawn`` of one's own, after
    :func:`setup_ddp`'s addresses are set.

    Returns
    -------
    dict
        Fields of :class:`gears.TrainResult`, the same on all ranks but for `rank` and `seconds`.
    """
    joined_before = is_running()
    setup_ddp(rank, world_size)
    job = TrainingJob.check(pert_data_path, dataset_name, split_config, args)
    with shown(job.options.verbose):
        result = job.opened(rank, world_size).train(**job.options.to_dict(), evaluate_test=False)
    if not joined_before:
        cleanup_ddp()
    return vars(result)


def main() -> None:
    """``python -m gears.train_distributed``: the options of ``gears train``, also under torchrun."""
    import sys

    from gears.cli import main as command

    # torch.distributed.launch adds --local-rank=N to the words of the user; LOCAL_RANK says the same
    words = [word for word in sys.argv[1:] if not word.startswith(("--local-rank=", "--local_rank="))]
    sys.exit(command(["train", *words]))


if __name__ == "__main__":
    main()
