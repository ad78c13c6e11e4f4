"""One training job: check its arguments, prepare its screen, start its workers and collect the result."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gears.core._messages import count
from gears.core._options import divided
from gears.data._loaders import LoaderOptions
from gears.data.screen.prepare import LoadOptions
from gears.data.splits._registry import SplitOptions
from gears.distributed._devices import DeviceLike, one_thread, own_device, plan_devices
from gears.distributed._gpus import GpuIds, resolve_gpu_ids
from gears.distributed._group import check_timeout, cleanup_ddp, join_group, rank_0_first, setup_ddp
from gears.distributed._launch import check_not_daemonic, exit_unguarded_child, launch
from gears.distributed._log import only_on_rank_0, quiet, shown
from gears.distributed._signals import stop_on_signals
from gears.distributed._world import Ranks, World, is_running, started_by_launcher
from gears.files._atomic import locked
from gears.files._cache import writable_folder
from gears.files._paths import user_path
from gears.gears import GEARS
from gears.graphs._annotation import annotation_from
from gears.graphs._custom import stored
from gears.graphs._embeddings import embedding_of
from gears.graphs._similarities import PriorInputs
from gears.model._folder import ModelParts, check_replaceable
from gears.model.config import ModelOptions
from gears.pertdata import PertData, PertDataOptions
from gears.training._fitting import Seconds, TrainResult, fitted_prior, trains_network, with_sources
from gears.training._head import prepare_head
from gears.training._run_folder import check_resumed, check_unused
from gears.training._validation import check_monitor
from gears.training._workers import check_workers
from gears.training.options import TrainOptions

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingJob:
    """Checked options of a job, each kind in the object of its class."""

    data_path: Path
    dataset_name: str
    split: SplitOptions
    network: ModelOptions
    nodes: PertDataOptions
    processing: LoadOptions
    options: TrainOptions
    loader: LoaderOptions

    @classmethod
    def check(
        cls,
        data_path: str | Path,
        dataset_name: str,
        split_config: Mapping[str, Any] | None,
        args: Mapping[str, Any],
        data_config: Mapping[str, Any] | None = None,
    ) -> TrainingJob:
        """Raise for unknown names and missing or invalid values, before a screen is read or a worker starts."""
        if args.get("save_path") is None:
            msg = "args needs 'save_path', the folder of the trained model"
            raise ValueError(msg)
        rest = dict(args)
        configs = {name: dict(rest.pop(name, None) or {}) for name in ("model_config", "data_config")}
        options, loader = divided("args", rest, TrainOptions, LoaderOptions, beside=tuple(configs))
        (split,) = divided("split_config", split_config or {}, SplitOptions)
        (network,) = divided("model_config", configs["model_config"], ModelOptions)
        data = configs["data_config"] | dict(data_config or {})
        nodes, processing = divided("data_config", data, PertDataOptions, LoadOptions)
        check_monitor(options.monitored)
        data_path = user_path(data_path)
        if not data_path.is_dir():
            msg = f"there is no folder {data_path}; pert_data_path is the folder that holds the screen"
            raise FileNotFoundError(msg)
        ranks = Ranks.current()
        if ranks is None or ranks.rank == 0:  # the process that writes
            check_unused(options.save_path)
        return cls(data_path, str(dataset_name), split, network, nodes, processing, options, loader)

    @property
    def on_cells(self) -> bool:
        """Whether the job reads batches of cells."""
        return self.options.objective == "cells"

    def warn_without_effect(self) -> None:
        """Warn about loader options that this job does not use."""
        test_batch_size, num_workers = self.loader.test_batch_size, self.loader.num_workers
        if test_batch_size is not None:
            why = "condition means are scored, and no cell of the validation or test part is read"
            logger.warning("test_batch_size=%d has no effect: %s", test_batch_size, why)
        if num_workers and not self.on_cells:
            logger.warning("num_workers=%d has no effect: over moments no cell is read", num_workers)

    def make_batches(self, pert_data: PertData, world_size: int, rank: int, num_workers: int) -> None:
        """Loaders of cells, where the job reads any; ValueError unless each worker has a batch, or a condition."""
        if self.on_cells:
            size = self.options.with_defaults().batch_size
            assert size is not None
            pert_data.get_dataloader_distributed(size, self.loader.test_batch_size, world_size, rank, num_workers)
            return
        assert pert_data.split is not None
        n_conditions = len(pert_data.split.parts.get("train", ()))
        if 0 < n_conditions < world_size:
            msg = (
                f"{world_size} workers, but training has {count(n_conditions, 'condition')}: a worker without a "
                f"condition has nothing to do; use at most {count(n_conditions, 'worker')}"
            )
            raise ValueError(msg)

    def worker_args(self) -> dict[str, Any]:
        """The prepared job (see :meth:`prepare`) as `args` of a worker."""
        data = {**self.nodes.changed(), **self.processing.given()}
        configs = {"model_config": self.network.changed(), "data_config": data}
        return {**self.options.to_dict(), **self.loader.to_dict(), **configs}

    def prepare(self, world_size: int, seconds: Seconds | None = None) -> tuple[PertData, TrainingJob]:
        """Store screen, split, graphs and prior where workers read them; the screen, and the job with files."""
        seconds = Seconds() if seconds is None else seconds
        if self.options.reproducible:
            check_workers(world_size)
        with seconds.of("screen"):
            pert_data = self.load(report=True)
            self.make_batches(pert_data, world_size, 0, 0)
        with seconds.of("graphs"):
            parts = self.model(pert_data, device="cpu").parts
            assert parts is not None
            parts = with_sources(parts, pert_data, self.options)
            if trains_network(self.options, parts.config):
                _ = parts.go, parts.coexpress  # into the cache, where the workers read them
        assert self.options.save_path is not None
        if self.options.resume:
            check_resumed(self.options.save_path, parts)
        else:
            check_replaceable(user_path(self.options.save_path), parts)
        with seconds.of("prior"), one_thread(enabled=self.options.reproducible):
            fitted = fitted_prior(pert_data, parts, self.options)
            if fitted is not None and self.options.epochs != 0:
                prepare_head(pert_data, fitted)
        return pert_data, self._with_files(pert_data, parts)

    def load(self, *, report: bool = False) -> PertData:
        """The screen with its split, from the cache if it was prepared before; `report` logs a summary."""
        pert_data = PertData(self.data_path, **self.nodes.changed())
        pert_data.load(data_name=self.dataset_name, **self.processing.given())
        if report:
            pert_data.log_screen()
        pert_data.prepare_split(**self.split.changed())
        return pert_data

    def opened(self, rank: int, world_size: int) -> GEARS:
        """The model of a worker with its data and batches, ready to train; logs nothing."""
        with quiet():
            pert_data = self.load()
            self.make_batches(pert_data, world_size, rank, self.loader.num_workers)
            return self.model(pert_data)

    def model(self, pert_data: PertData, device: str | None = None) -> GEARS:
        """A GEARS object with its network, on this worker's device."""
        gears = GEARS(pert_data, device=device)
        gears.model_initialize(**self.network.changed())
        return gears

    def conclude(self, pert_data: PertData, result: TrainResult, seconds: Seconds, model: GEARS | None) -> TrainResult:
        """Load the trained model (also into `model`) and score the test part, after all workers have ended."""
        assert result.save_path is not None
        seconds.include(result.seconds)
        trained, table = GEARS(pert_data, device=result.devices[0]), None
        trained.load_pretrained(result.save_path)
        parts = trained._need_model()  # sources are not saved; the table's folds and a baseline of it use them
        inputs = PriorInputs.of(pert_data, self.network.hidden_size, self.network.pert_embedding)
        trained.parts = with_sources(dataclasses.replace(parts, inputs=inputs), pert_data, self.options)
        if self.options.evaluate_test and not result.stopped:
            with seconds.of("evaluation"):
                table = trained.report_test(verbose=self.options.verbose, saved_in=result.save_path)
        if model is not None:
            model.load_pretrained(result.save_path)
        return dataclasses.replace(result, table=table, seconds=dict(seconds))

    def _with_files(self, pert_data: PertData, parts: ModelParts) -> TrainingJob:
        """The job with files, in the screen's folder, in place of graphs, embeddings and annotations as objects."""
        network, nodes, processing = self.network, self.nodes, self.processing
        if processing.screens is not None:  # workers open the whole
            processing = LoadOptions(drop_unmapped=processing.drop_unmapped)
        folder = writable_folder(pert_data.screen.folder / "graphs")
        files: dict[str, Any] = {"G_go_weight": None, "G_coexpress_weight": None}
        if network.G_go is not None:
            files["G_go"] = stored(parts.go.arrays(), folder)
        if network.G_coexpress is not None:
            files["G_coexpress"] = stored(parts.coexpress.arrays(), folder)
        if network.pert_embedding is not None:
            files["pert_embedding"] = stored(embedding_of(network.pert_embedding).arrays(), folder)
        if nodes.gene2go is not None and not isinstance(nodes.gene2go, str | Path):
            gene2go = stored(annotation_from(nodes.gene2go).arrays(), folder)
            nodes = dataclasses.replace(nodes, gene2go=gene2go)
        sources: dict[str, Any] = parts.inputs.stored(lambda arrays: stored(arrays, folder))
        options = dataclasses.replace(self.options, **sources)
        network = dataclasses.replace(network, **files)
        return dataclasses.replace(self, network=network, nodes=nodes, processing=processing, options=options)


def check_devices(n_gpus: int | None, gpu_ids: GpuIds, device: DeviceLike) -> None:
    """Raise ValueError for devices that do not exist, or that are not those of the launcher's processes."""
    if started_by_launcher():
        ranks = Ranks.current()
        assert ranks is not None
        own_device(ranks, n_gpus, resolve_gpu_ids(gpu_ids), device)
    else:
        plan_devices(n_gpus, gpu_ids, device)


@contextlib.contextmanager
def first_on_rank_0() -> Iterator[None]:
    """Around work that every process of a launcher repeats: rank 0 does it first, and only rank 0 logs it."""
    ranks = Ranks.read()
    first = contextlib.nullcontext() if ranks is None else rank_0_first(ranks.rank, ranks.world_size)
    with first, only_on_rank_0():
        yield


def _train_joined(
    job: TrainingJob, ranks: Ranks, device: str, backend: str | None, timeout: float | None, seconds: Seconds
) -> TrainResult:
    """Train as one worker of a launcher or of a running process group; rank 0 scores the test part at the end."""
    # the screen is prepared before the process group starts, so that nothing slow happens between collectives
    with first_on_rank_0():
        job.warn_without_effect()
        # one process of a file system after the other, also of another job
        with locked(job.data_path / f".{job.dataset_name}.training.lock"):
            pert_data, job = job.prepare(ranks.world_size, seconds)
    joined_before = is_running()
    if joined_before and ranks.rank == 0:
        for name, value in (("backend", backend), ("timeout", timeout)):
            if value is not None:
                logger.warning("%s=%r has no effect: the process group runs already", name, value)
    with stop_on_signals():
        if not joined_before:
            world = World(ranks.rank, ranks.local_rank, ranks.world_size, torch.device(device))
            join_group(world, backend=backend, timeout=timeout)
        try:
            job.make_batches(pert_data, ranks.world_size, ranks.rank, job.loader.num_workers)
            result = job.model(pert_data).train(**{**job.options.to_dict(), "evaluate_test": False})
        finally:
            if not joined_before:
                cleanup_ddp()
    return job.conclude(pert_data, result, seconds, None) if ranks.rank == 0 else result


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

    In a script that torchrun started, no process is started: torchrun's processes are the workers.

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
        Number of workers; all visible GPUs when omitted. One CPU process where there is no GPU.
    gpu_ids
        Indices into the visible GPUs (or one of them), rank 0 on the first; ``CUDA_VISIBLE_DEVICES`` is
        respected and never rewritten. ``"free:2"`` takes the two least busy GPUs.
    device
        ``"cpu"`` for CPU processes (``n_gpus`` of them, joined by gloo).
    backend, timeout
        ``torch.distributed`` backend, and seconds after which a collective has failed.
    data_config
        Options of :class:`PertData` (``gene2go``, ``default_pert_graph``,
        ``gene_set_path``) and of preparing (``normalize``, ``min_cells``, ...); ``screens`` and ``genes`` put several
        screens together, under the name `dataset_name` (:meth:`PertData.from_screens`).
    model
        A GEARS object to load the trained model into.

    Returns
    -------
    TrainResult
        Printed, it compares the model with simple baselines; holds history, devices, save_path and test table.

    Raises
    ------
    ValueError
        Options that are unknown or contradict each other, before any worker starts.
    WorkerError
        A worker failed; its traceback is part of the message.

    Examples
    --------
    >>> train_multi_gpu("data", "norman", {"split": "simulation", "seed": 1},
    ...     {"save_path": "models/run1", "epochs": 20}, gpu_ids=[2, 3])     # doctest: +SKIP
    """
    exit_unguarded_child()
    timeout, seconds = check_timeout(timeout), Seconds()
    job = TrainingJob.check(pert_data_path, dataset_name, split_config, args, data_config)
    if started_by_launcher():
        ranks = Ranks.current()
        assert ranks is not None
        own_gpu = own_device(ranks, n_gpus, resolve_gpu_ids(gpu_ids), device)
        with shown(job.options.verbose):
            result = _train_joined(job, ranks, own_gpu, backend, timeout, seconds)
        if model is not None:
            model.load_pretrained(str(result.save_path))
        return result
    check_not_daemonic()
    with shown(job.options.verbose):
        plan = plan_devices(n_gpus, gpu_ids, device, backend)
        job.warn_without_effect()
        pert_data, job = job.prepare(plan.world_size, seconds)
        with seconds.of("workers"):
            arguments = (str(job.data_path), job.dataset_name, job.split.changed(), job.worker_args())
            outcome = launch(
                train_ddp_worker, plan.devices, arguments, backend=plan.backend, timeout=timeout, stopped=_log_stopped
            )
            result = TrainResult(**outcome)
        _log_stopped(outcome)
        return job.conclude(pert_data, result, seconds, model)


def _log_stopped(outcome: Mapping[str, Any]) -> None:
    """Log who stopped the training, and where its checkpoint is (`outcome`: fields of a TrainResult)."""
    if outcome["stopped"]:
        logger.warning("training was %s", outcome["stopped_because"])


def train_ddp_worker(
    rank: int,
    world_size: int,
    pert_data_path: str,
    dataset_name: str,
    split_config: Mapping[str, Any] | None,
    args: Mapping[str, Any],
    *,
    evaluate_test: bool = False,
) -> dict[str, Any]:
    """Entry point of each worker: open the prepared screen, make its loaders, train, score the test part if requested.

    Your own code can pass it to ``torch.multiprocessing.spawn`` after it has set the addresses that
    :func:`setup_ddp` reads.

    Returns
    -------
    dict
        Fields of :class:`gears.TrainResult`, the same on all ranks but for `rank` and `seconds`.
    """
    joined_before = is_running()
    setup_ddp(rank, world_size)
    job = TrainingJob.check(pert_data_path, dataset_name, split_config, args)
    with shown(job.options.verbose):
        options = {**job.options.to_dict(), "evaluate_test": evaluate_test and job.options.evaluate_test}
        result = job.opened(rank, world_size).train(**options)
    if not joined_before:
        cleanup_ddp()
    return vars(result)
