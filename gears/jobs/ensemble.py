"""Train several models at once, one per device, and average their predictions in an ensemble."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import torch

from gears.conditions import Condition
from gears.core._installation import cores
from gears.core._messages import unknown_name
from gears.core._numbers import clipped, clips
from gears.distributed._devices import DeviceLike, parse_device, plan_devices
from gears.distributed._gpus import GpuIds
from gears.distributed._group import check_timeout
from gears.distributed._launch import Outcome, WorkerError, check_not_daemonic, exit_unguarded_child, launch_many
from gears.distributed._log import shown
from gears.distributed._world import started_by_launcher
from gears.files._paths import user_path
from gears.files.formats import content_hash
from gears.gears import GEARS
from gears.jobs._job import TrainingJob, train_ddp_worker
from gears.model._folder import difference
from gears.prediction._stream import predict, requested_conditions
from gears.prediction.predictions import Predictions
from gears.training._fitting import TrainResult

logger = logging.getLogger(__name__)

KEYS = ("pert_data_path", "dataset_name", "split_config", "args", "data_config")
OPTIONAL = {"split_config", "data_config"}


@dataclass(frozen=True, eq=False)
class EnsemblePredictions(Predictions):
    """Mean and spread of the predictions of M models; other attributes as in :class:`Predictions`.

    Attributes
    ----------
    spread_UG
        Standard deviation of the models' predictions, before clipping (M - 1 in the denominator).
    n_models
        Number of models, M.
    sd
        Where the models have a prior: root of the mean of their squared `sd` plus the squared spread. Else the spread,
        which is a lower bound: what no model knows, they do not disagree on.
    cell_sd
        Where the models predict a spread of cells: root of the mean of its squares plus the squared spread (the
        variance of the mixture, up to the denominator); else None. Lakshminarayanan et al. 2017, section 2.4.
    """

    spread_UG: np.ndarray | None = None
    n_models: int = 0

    def spread(self, key: Any) -> np.ndarray:
        """Spread of one condition, (G,)."""
        return self._values("spread")[self._row(key)]

    def _provenance(self) -> dict[str, Any]:
        return super()._provenance() | {"n_models": self.n_models}

    def _values(self, values: str) -> np.ndarray:
        if values == "spread":
            assert self.spread_UG is not None
            return self.spread_UG
        return super()._values(values)


class Ensemble:
    """Models of the same genes whose predictions are averaged.

    Parameters
    ----------
    models
        At least two trained models with the same genes and perturbation nodes.

    Raises
    ------
    ValueError
        There are fewer than two models, or they differ in genes, nodes or control cells.

    Examples
    --------
    >>> ensemble = Ensemble.load(["models/seed1", "models/seed2"])
    >>> ensemble
    Ensemble(2 models, 40 genes)
    >>> ensemble.predict(["AHR+KLF1"]).to_frame("spread").shape
    (1, 40)
    """

    def __init__(self, models: Sequence[GEARS]) -> None:
        if len(models) < 2:
            msg = f"an ensemble has at least two models; found {len(models)}"
            raise ValueError(msg)
        self.models = list(models)
        first = models[0]._need_model()
        for number, model in enumerate(models[1:], start=2):
            parts = model._need_model()
            for list_name in ("gene_names", "pert_names"):
                first_names, other_names = getattr(first, list_name), getattr(parts, list_name)
                if first_names != other_names:
                    names = difference(first_names, other_names)
                    msg = f"models 1 ('there') and {number} ('here') have other {list_name}: {names}"
                    raise ValueError(msg)
            if not np.allclose(first.control_mean_G, parts.control_mean_G):
                msg = f"models 1 and {number} have another control mean: they were trained on other control cells"
                raise ValueError(msg)
        self._report_agreement()

    def _report_agreement(self) -> None:
        """Say in one line that all models predict the same: an ensemble of them has no spread."""
        conditions = requested_conditions(self.pert_list[:1], self.models[0]._need_model())
        predictors = [model._predictor(warn=False) for model in self.models]
        first, *others = [predict(*parts, conditions, clip=False, warn=False).expression_UG for parts in predictors]
        if all(np.array_equal(first, other) for other in others):
            why = "their weights are the same; give other seeds"
            if not self.models[0]._need_model().uses_network:
                why = "no network is used; prior=None trains networks that differ"
            logger.warning("%d equal members: %s", len(self), why)

    def __len__(self) -> int:
        return len(self.models)

    def __repr__(self) -> str:
        return f"Ensemble({len(self)} models, {len(self.gene_list)} genes)"

    @classmethod
    def load(
        cls, members: str | Path | Iterable[str | Path | RunOutcome], device: str | torch.device | None = None
    ) -> Ensemble:
        """Load the models of saved folders or of the outcomes of :func:`gears.train_many` (without failed runs).

        A single path is the `folder` of :meth:`train`.
        """
        if isinstance(members, str | Path):
            folder, members = Path(members), sorted(Path(members).glob("seed-*[0-9]"))
            if not members:
                msg = f"{folder} holds no models of Ensemble.train (seed-1, seed-2, ...); list the models' folders"
                raise FileNotFoundError(msg)
        succeeded = [member for member in members if not isinstance(member, RunOutcome) or member.ok]
        paths = [member.save_path if isinstance(member, RunOutcome) else member for member in succeeded]
        return cls([GEARS.from_pretrained(path, device=device) for path in paths])

    @classmethod
    def train(
        cls,
        config: Mapping[str, Any],
        seeds: Sequence[int],
        folder: str | Path,
        gpu_ids: GpuIds = None,
        *,
        n_at_once: int | None = None,
        device: DeviceLike = None,
        timeout: float | None = None,
    ) -> Ensemble:
        """Train one model per seed, side by side on several devices, and put them together.

        Parameters
        ----------
        config
            Arguments of :func:`gears.train_distributed.train_multi_gpu`, common to all: ``pert_data_path``,
            ``dataset_name``, ``args``, and optionally ``split_config`` and ``data_config``. Members differ where their
            network is used: ``{"prior": None}`` in ``args`` trains networks alone.
        seeds, folder
            As for :func:`gears.jobs.ensemble_configs`: the models are saved in ``<folder>/seed-<seed>``.
        gpu_ids, n_at_once, device, timeout
            As for :func:`gears.train_many`. The members do not depend on how many are trained at once.

        Raises
        ------
        ValueError
            The configuration is invalid, or fewer than two trainings ended without an error.

        Examples
        --------
        >>> config = {"pert_data_path": "data", "dataset_name": "norman", "args": {"prior": None}}
        >>> Ensemble.train(config, seeds=[1, 2, 3, 4], folder="models", gpu_ids=[0, 1])     # doctest: +SKIP
        """
        configs = ensemble_configs(config, seeds, folder)
        outcomes = train_many(configs, gpu_ids, n_at_once=n_at_once, device=device, timeout=timeout)
        return cls.load(outcomes, device=outcomes[0].device)

    @property
    def gene_list(self) -> list[str]:
        """Genes whose expression is predicted, G."""
        return self.models[0].gene_list

    @property
    def pert_list(self) -> list[str]:
        """Genes that can be perturbed."""
        return self.models[0].pert_list

    def predict(
        self, pert_list: Iterable[str | Sequence[str] | Condition], *, clip: bool | None = None, chunk: int = 32
    ) -> EnsemblePredictions:
        """Mean and spread of the models' predictions (see :meth:`GEARS.predict`)."""
        conditions = requested_conditions(pert_list, self.models[0]._need_model())
        untrained = next((model for model in self.models if not model.is_trained), None)
        members = [
            predict(*model._predictor(warn=model is untrained), conditions, clip=False, chunk=chunk, warn=False)
            for model in self.models
        ]
        stacked_MUG = np.stack([predictions.expression_UG for predictions in members])
        mean_UG, spread_UG, first = stacked_MUG.mean(axis=0), stacked_MUG.std(axis=0, ddof=1), members[0]
        widths = [predictions.width_UL for predictions in members if predictions.width_UL is not None]
        first.warn_uninformed()
        clip = clips(clip, all(model._need_model().nonnegative for model in self.models))
        return EnsemblePredictions(
            first.conditions,
            first.gene_names,
            clipped(mean_UG, clip, clip),
            first.control_mean_G,
            _with_spread([predictions.cell_sd for predictions in members], spread_UG),
            clip,
            first.origin,
            _with_spread([predictions.sd for predictions in members], spread_UG, spread_UG),
            width_UL=np.mean(widths, axis=0) if len(widths) == len(members) else None,
            measured=first.measured,
            spread_UG=spread_UG,
            n_models=len(members),
        )


def _with_spread(
    sds: Sequence[np.ndarray | None], spread_UG: np.ndarray, otherwise: np.ndarray | None = None
) -> np.ndarray | None:
    """Root of the members' mean variance plus the squared spread; `otherwise` where a member has no variance."""
    variances = [sd_UG**2 for sd_UG in sds if sd_UG is not None]
    if len(variances) < len(sds):
        return otherwise
    return np.sqrt(np.mean(variances, axis=0) + spread_UG**2)


def ensemble_configs(config: Mapping[str, Any], seeds: Sequence[int], folder: str | Path) -> list[dict[str, Any]]:
    """A configuration of :func:`gears.train_many` per seed: other initial weights, the same screen and split.

    Parameters
    ----------
    config
        Common to all; a ``save_path`` in it is replaced.
    seeds
        Seeds of the initial weights, one model each.
    folder
        The models go to ``<folder>/seed-<seed>``.
    """
    if len(set(seeds)) < len(seeds):
        msg = f"seeds {list(seeds)} has a seed twice, which gives the same model twice; use distinct seeds"
        raise ValueError(msg)
    configs = []
    for seed in seeds:
        args = dict(config.get("args") or {})
        args["model_config"] = {**(args.get("model_config") or {}), "seed": seed}
        args["save_path"] = str(user_path(folder) / f"seed-{seed}")
        configs.append(dict(config) | {"args": args})
    return configs


@dataclass(frozen=True)
class RunOutcome:
    """Outcome of one of several trainings.

    Attributes
    ----------
    save_path
        Folder of its model.
    device
        Device that it ran on.
    result
        Result of :func:`gears.train_distributed.train_multi_gpu`; None if it failed.
    error
        Why it failed, with the traceback in ``error.details``; None if it did not.
    """

    save_path: str
    device: str
    result: TrainResult | None = field(default=None, repr=False)
    error: WorkerError | None = None

    @property
    def ok(self) -> bool:
        """Whether the training ended without an error."""
        return self.error is None


def train_many(
    configs: Sequence[Mapping[str, Any]],
    gpu_ids: GpuIds = None,
    *,
    n_at_once: int | None = None,
    device: DeviceLike = None,
    timeout: float | None = None,
    dask: Any = None,
) -> list[RunOutcome]:
    """Train each configuration in a separate process, one at a time per device.

    Screens, splits and graphs are prepared once each, before the first training starts.
    A training that fails does not end the others.

    Parameters
    ----------
    configs
        One mapping per training with the arguments of
        :func:`gears.train_distributed.train_multi_gpu`: ``pert_data_path``, ``dataset_name``,
        ``args`` (with a different ``save_path`` each), and optionally ``split_config`` and
        ``data_config``.
    n_at_once
        Trainings at the same time; by default one per core on the CPU, else one per GPU.
    gpu_ids, device, timeout
        As for ``train_multi_gpu``.
    dask
        A dask scheduler ("tcp://HOST:8786") or client: each training is a task there, one per thread of its workers,
        which find data and ``save_path`` at the same paths. `gpu_ids` and `n_at_once` are omitted then.

    Returns
    -------
    list of RunOutcome
        In the order of `configs`.

    Raises
    ------
    ValueError
        A configuration is invalid, or two share a ``save_path``; raised before any training starts.

    Examples
    --------
    >>> config = {"pert_data_path": "data", "dataset_name": "norman", "args": {"save_path": "m1"}}
    >>> train_many([config], gpu_ids=[0, 1])                                      # doctest: +SKIP
    """
    if dask is not None:
        return _on_dask(configs, dask, gpu_ids, n_at_once, {"device": device, "timeout": timeout})
    exit_unguarded_child()
    if started_by_launcher():
        msg = "train_many starts its own workers and cannot run in one; start the script without torchrun"
        raise RuntimeError(msg)
    check_not_daemonic()
    jobs, timeout = _checked(configs), check_timeout(timeout)
    if device is not None and parse_device(device).type == "cpu" and n_at_once is None:
        n_at_once = min(len(jobs), cores())
    plan = plan_devices(n_at_once, gpu_ids, device)
    with shown(any(job.options.verbose for job in jobs)):
        jobs = _prepared(jobs)
        arguments = [(str(job.data_path), job.dataset_name, job.split.changed(), job.worker_args()) for job in jobs]
        logger.info("%d trainings, %d at a time on %s", len(jobs), len(plan.devices), ", ".join(plan.devices))
        work = partial(train_ddp_worker, evaluate_test=True)
        outcomes = launch_many(work, arguments, plan.devices, backend=plan.backend, timeout=timeout)
    return _outcomes(jobs, outcomes)


def _on_dask(
    configs: Sequence[Mapping[str, Any]], dask: Any, gpu_ids: GpuIds, n_at_once: int | None, options: dict[str, Any]
) -> list[RunOutcome]:
    from gears.jobs._on_dask import trained_on_dask

    if gpu_ids is not None or n_at_once is not None:
        msg = "dask decides what runs at once and where: omit gpu_ids and n_at_once (or dask)"
        raise ValueError(msg)
    check_timeout(options["timeout"])
    jobs = _checked(configs)
    with shown(any(job.options.verbose for job in jobs)):
        return _outcomes(jobs, trained_on_dask(configs, dask, options))


def _outcomes(jobs: Sequence[TrainingJob], outcomes: Sequence[Outcome]) -> list[RunOutcome]:
    results = [None if outcome.error else TrainResult(**outcome.value) for outcome in outcomes]
    return [
        RunOutcome(str(job.options.save_path), outcome.device, result, outcome.error)
        for job, outcome, result in zip(jobs, outcomes, results, strict=True)
    ]


def _checked(configs: Sequence[Mapping[str, Any]]) -> list[TrainingJob]:
    """Check all configurations; the error gives the number of the first invalid one."""
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
    save_paths = [str(Path(str(job.options.save_path)).resolve()) for job in jobs]
    repeated = sorted({save_path for save_path in save_paths if save_paths.count(save_path) > 1})
    if repeated:
        msg = f"several configurations have the save_path {repeated[0]}; give each a separate folder"
        raise ValueError(msg)
    return jobs


def _job(config: Mapping[str, Any]) -> TrainingJob:
    for name in config:
        if name not in KEYS:
            raise ValueError(unknown_name("entry", str(name), KEYS))
    arguments: list[Any] = [config.get(name) for name in KEYS]
    missing = [name for name in KEYS if config.get(name) is None and name not in OPTIONAL]
    if missing:
        msg = f"{', '.join(missing)} missing; a configuration has {', '.join(KEYS)}"
        raise ValueError(msg)
    return TrainingJob.check(*arguments)


def _prepared(jobs: Sequence[TrainingJob]) -> list[TrainingJob]:
    """The jobs to run; each screen, split and graph is prepared once."""
    ready: dict[str, TrainingJob] = {}
    prepared = []
    for job in jobs:
        # the jobs of an ensemble differ in their seeds alone; graphs and annotations may be any objects
        objects = [option.changed() for option in (replace(job.network, seed=None), job.nodes, job.processing)]
        plain = [str(job.data_path), job.dataset_name, repr(job.split), job.on_cells, job.options.batch_size]
        key = content_hash(plain, cloudpickle.dumps(objects))
        if key not in ready:
            _, ready[key] = job.prepare(1)
        like = ready[key]
        prepared.append(replace(job, network=replace(like.network, seed=job.network.seed), nodes=like.nodes))
    return prepared
