"""Compare methods over seeds and splits: one tidy table, costs, and paired differences to the baselines."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from gears.conditions import Condition
from gears.core._messages import Shown, count, unknown_name
from gears.core._options import list_of_names, option, options, text
from gears.core._progress import followed
from gears.data.screen._prepared import PreparedScreen
from gears.data.splits._split import PARTS, Split, screens_of
from gears.distributed._devices import DeviceLike, DevicePlan, plan_devices
from gears.distributed._gpus import GpuIds
from gears.distributed._launch import launch_many
from gears.distributed._log import quiet
from gears.distributed._world import started_by_launcher
from gears.evaluation._fitted import (
    control_lines,
    count_parts,
    fitted_conditions,
    fitted_line,
    settings_of,
    subgroup_line,
)
from gears.evaluation._scoring import (
    N_SPLIT_HALF,
    Predicted,
    ScoreOptions,
    predict_baseline,
    score,
    split_half,
)
from gears.evaluation.baselines import DEFAULT_BASELINES
from gears.evaluation.baselines._base import Baseline, make_baseline
from gears.evaluation.baselines._regression import with_embedding
from gears.evaluation.intervals import DEFAULT_BOOTSTRAP, Bootstrap, difference_table, interval_table
from gears.evaluation.verdict import Results, run_costs, short_table, verdict

if TYPE_CHECKING:
    from gears.graphs._annotation import GeneAnnotation
    from gears.graphs._embeddings import GeneEmbedding

logger = logging.getLogger(__name__)
Method = Any  # an estimator (fit, predict), or a callable that makes one (of the seed where there are seeds)
RUN_COLUMNS = ["split", "seed", "method", "n_train", "n_test", "seconds", "cpu_seconds", "peak_mb"]
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def compare(
    models: Mapping[str, Method],
    screen: PreparedScreen,
    splits: Split | Iterable[Split] | Mapping[str, Split],
    *,
    seeds: Sequence[int] = (),
    annotation: GeneAnnotation | None = None,
    embedding: GeneEmbedding | None = None,
    gpu_ids: GpuIds = None,
    n_at_once: int | None = None,
    device: DeviceLike = None,
    **options: Any,
) -> Comparison:
    """Fit methods and baselines to the training part of every split and score them on its test part.

    A method that is also fitted to validation conditions has the attribute ``fitted_parts``
    (``("train", "val")``, as :class:`gears.jobs.GEARSEstimator` does after a refit). The baselines of that split are
    then fitted to the same conditions, and the reference O is their mean. ``table.attrs["notes"]`` says which
    conditions methods were fitted to.

    Parameters
    ----------
    models
        By name: an object with ``fit(screen, split)`` and ``predict(conditions)``, or a callable that makes
        one. Predictions are means (U, G), or :class:`gears.Predictions`. May be empty: baselines alone.
    screen
        The prepared screen. In one of several contexts each condition is scored within its own context;
        baselines see what trains there and, of conditions that train elsewhere only, their mean change there.
    splits
        One or more splits, such as ``folds(screen, 5, repeats=5)``, or splits by name.
    seeds
        Every model is made once per seed: its callable gets the seed.
    annotation
        GO terms for the baselines that use them; the packaged human ones by default.
    embedding
        Gene embeddings: ``"embedding_ridge"`` is added to the baselines.
    gpu_ids, n_at_once, device
        Splits side by side, with one process per device (as for :func:`gears.train_many`): `gpu_ids` are indices into
        the visible GPUs, or ``"free:2"``; ``device="cpu", n_at_once=2`` are two CPU processes. By default the splits
        are scored one after the other in this process.
    **options
        Fields of :class:`CompareOptions`.

    Raises
    ------
    WorkerError
        A process failed; its traceback is part of the message.
    ValueError
        Names that clash or are unknown, no split, a part without conditions.

    Examples
    --------
    >>> from gears.data.splits import folds
    >>> from gears.evaluation.baselines import make_baseline
    >>> mine = make_baseline("additive")  # anything with fit and predict
    >>> result = compare({"mine": mine}, screen, folds(screen, 3), baselines=["train_mean"], n_split_half=0)
    >>> sorted(result.table["method"].unique())
    ['mine', 'train_mean']
    """
    compare_options = CompareOptions.from_mapping(options)
    baselines = with_embedding(compare_options.baselines, embedding)
    compare_options = dataclasses.replace(compare_options, baselines=baselines)
    baseline_named = partial(make_baseline, clip=False, annotation=annotation, embedding=embedding)
    screen, named = PreparedScreen.of(screen), _named(splits)
    _check_methods(models, compare_options, seeds)
    tables, runs = [], []
    left_out: dict[str, str] = {}
    counts: dict[str, list[dict[str, int]]] = {}
    notes: list[str] = []
    alike: dict[str, None] = {}
    work = _Methods(models, screen, seeds, baseline_named, compare_options).on_splits
    if gpu_ids is None and n_at_once is None:
        scored_splits = work(named)
    else:
        scored_splits = _side_by_side(work, named, plan_devices(n_at_once, gpu_ids, device))
    for split_name, (scored, counted) in scored_splits.items():
        for name, n_by_part in counted.items():
            counts.setdefault(name, []).append(n_by_part)
        prefix = f"{split_name}: " if len(named) > 1 else ""
        notes += [f"{prefix}{line}" for line in scored.table.attrs.pop("notes")]
        alike |= dict.fromkeys(scored.table.attrs.pop("alike"))
        tables.append(scored.table.assign(split=split_name))
        runs.append(scored.runs.assign(split=split_name))
        prefix = f" ({split_name})" if len(named) > 1 else ""
        left_out |= {f"{name}{prefix}": reason for name, reason in scored.left_out.items()}
    table = pd.concat(tables, ignore_index=True)
    table = table[["split", "seed", *(c for c in table.columns if c not in ("split", "seed"))]]
    more = [f"and so in {count(len(notes) - 1, 'other split')}"] if len(notes) > 1 else []
    notes = [fitted_line(counts), *control_lines(table), *notes[:1], *more]
    table.attrs.update(
        models=list(models), model=next(iter(models), None), notes=notes, left_out=left_out, alike=list(alike)
    )
    return Comparison(table, pd.concat(runs, ignore_index=True)[RUN_COLUMNS], tuple(models), left_out)


@dataclass
class _Fits:
    """What came of fitting the methods of one split."""

    predictions: dict[tuple[str, int | str], Predicted] = field(default_factory=dict)
    runs: dict[tuple[str, int | str], list[Any]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    parts: dict[str, tuple[str, ...]] = field(default_factory=dict)


_Scored = dict[str, tuple["Comparison", dict[str, dict[str, int]]]]
"""By split: the scores, and how many conditions of which part each method was fitted to."""


@dataclass(frozen=True)
class _Methods:
    """What is compared, the same on every split; it travels to worker processes."""

    models: Mapping[str, Method]
    screen: PreparedScreen
    seeds: Sequence[int]
    baseline_named: Callable[[str], Baseline]
    options: CompareOptions

    def on_splits(self, splits: Mapping[str, Split]) -> _Scored:
        """Fit and score on one split after the other."""
        scored: _Scored = {}
        for name, split in splits.items():
            scored[name] = self._on_split(split)
            logger.info("compared %s: %d methods", name, scored[name][0].table["method"].nunique())
        return scored

    def _on_split(self, split: Split) -> tuple[Comparison, dict[str, dict[str, int]]]:
        """Fit and score on one split; and how many conditions of which part each method was fitted to."""
        part = self.options.part
        evaluated = _evaluated(split, part)
        screen, part_screen = screens_of(self.screen, split, part)
        makers = self._makers()
        fits = _Fits()
        waiting: dict[tuple[str, int | str], Baseline] = {}
        for (name, seed), make in followed(makers.items(), len(makers), "fitting", "methods"):
            with _measured(fits, name, seed, split, len(evaluated)):
                method = make()
                if isinstance(method, Baseline):  # fitted when it is known whether a model was refitted
                    waiting[name, seed] = method
                    continue
                method.fit(screen, split)
                predicted = method.predict(evaluated)
                fits.predictions[name, seed] = Predicted.of(predicted, evaluated, len(screen.gene_names), name)
                fits.parts[name] = _either(fits.parts.get(name), getattr(method, "fitted_parts", ("train",)))
        parts: tuple[str, ...] = ("train",)
        for method_parts in fits.parts.values():
            parts = _either(parts, method_parts)
        fitted = fitted_conditions(split, parts)
        settings = settings_of(screen, evaluated, fitted) if waiting else []
        for (name, seed), baseline in followed(waiting.items(), len(waiting), "fitting", "baselines"):
            fits.parts[name] = parts
            with _measured(fits, name, seed, split, len(evaluated)):
                fits.predictions[name, seed], reasons = predict_baseline(baseline, settings, name)
                fits.left_out |= reasons
        keys = [key for key in makers if key in fits.predictions]
        if not keys:
            msg = f"no method could be fitted: {fits.left_out}"
            raise ValueError(msg)
        # scored under numbers: a method has a prediction for each seed
        predictions = {str(number): fits.predictions[key] for number, key in enumerate(keys)}
        table = score(predictions, evaluated, screen, part_screen, fitted, self.options)
        key_of = table["method"].map(lambda number: keys[int(number)])
        table.insert(0, "seed", key_of.str[1])
        table["method"] = key_of.str[0]
        table.attrs["alike"] = [keys[int(number)][0] for number in table.attrs["alike"]]
        line = subgroup_line(split, part, evaluated, fitted)
        table.attrs["notes"] = [] if line is None else [line]
        counts = {name: count_parts(split, fits.parts[name]) for name, _ in keys}
        runs = pd.DataFrame([fits.runs[key] for key in keys], columns=RUN_COLUMNS)
        return Comparison(table, runs, tuple(self.models), fits.left_out), counts

    def _makers(self) -> dict[tuple[str, int | str], Callable[[], Any]]:
        """What makes each method, by its name and seed ("" where there is none)."""
        makers: dict[tuple[str, int | str], Callable[[], Any]] = {}
        for name, model in self.models.items():
            if hasattr(model, "fit") and not isinstance(model, type):
                makers[name, ""] = partial(lambda method: method, model)
            elif not self.seeds:
                makers[name, ""] = model
            else:
                for seed in self.seeds:
                    makers[name, seed] = partial(model, seed)
        for name in self.options.baselines:
            makers[name, ""] = partial(self.baseline_named, name)
        return makers


def _side_by_side(
    work: Callable[[Mapping[str, Split]], _Scored], splits: Mapping[str, Split], plan: DevicePlan
) -> _Scored:
    """Every W-th split in the same process, one for each of W devices: a process costs seconds to start."""
    if started_by_launcher():
        msg = "splits side by side start their own worker processes: start the script without torchrun, or omit gpu_ids"
        raise RuntimeError(msg)
    names, n_workers = list(splits), min(len(splits), plan.world_size)
    shares = [{name: splits[name] for name in names[first::n_workers]} for first in range(n_workers)]
    logger.info("%d splits, %d at a time on %s", len(names), n_workers, ", ".join(plan.devices[:n_workers]))
    level = logger.getEffectiveLevel()
    jobs = [(work, share, level) for share in shares]
    outcomes = launch_many(_in_worker, jobs, plan.devices[:n_workers], backend=plan.backend)
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    scored = {name: of_split for outcome in outcomes for name, of_split in outcome.value.items()}
    return {name: scored[name] for name in names}


def _in_worker(
    rank: int, world_size: int, work: Callable[[Any], _Scored], splits: Mapping[str, Split], level: int
) -> _Scored:
    with quiet(level):
        return work(splits)


@contextmanager
def _measured(fits: _Fits, name: str, seed: int | str, split: Split, n_test: int) -> Iterator[None]:
    """Note what a fit with its prediction costs; a method that raises a ValueError is excluded with its reason.

    Costs are wall and CPU time in this process, and its highest resident memory meanwhile (where the system cannot
    reset its mark of the memory, other than Linux, that of the process so far).
    """
    with contextlib.suppress(OSError):
        _CLEAR.write_text("5")  # resets the mark of the highest resident memory, nothing else
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        yield
    except ValueError as error:
        fits.left_out[name] = str(error)
        logger.warning("%s is excluded: %s", name, error)
        return
    if (name, seed) in fits.predictions:
        costs = (time.perf_counter() - wall, time.process_time() - cpu, _peak_mb())
        n_fitted = len(fitted_conditions(split, fits.parts[name]))
        fits.runs[name, seed] = ["", seed, name, n_fitted, n_test, *costs]


def _either(first: tuple[str, ...] | None, second: Sequence[str]) -> tuple[str, ...]:
    """Parts of either, in the order of a split."""
    return tuple(part for part in PARTS if part in {*(first or ()), *second})


def split_name(split: Split) -> str:
    """What a split is called in tables."""
    arguments = split.arguments or {}
    if "fold" in arguments:
        return f"repeat {arguments.get('repeat', 0)} fold {arguments['fold']}"
    return f"{split.name} seed {split.seed}"


def _named(splits: Split | Iterable[Split] | Mapping[str, Split]) -> dict[str, Split]:
    if isinstance(splits, Mapping):
        named = {str(name): split for name, split in splits.items()}
    else:
        listed = [splits] if isinstance(splits, Split) else list(splits)
        names = [split_name(split) for split in listed]
        unique = len(set(names)) == len(names)
        named = {
            name if unique else f"{number}: {name}": split
            for number, (name, split) in enumerate(zip(names, listed, strict=True))
        }
    if not named:
        msg = "there is no split to compare on; give at least one, such as pert_data.split"
        raise ValueError(msg)
    return named


def _check_methods(models: Mapping[str, Method], options: CompareOptions, seeds: Sequence[int]) -> None:
    shared_names = sorted(set(models) & set(options.baselines))
    if shared_names:
        msg = f"models and baselines share names: {', '.join(shared_names)}; rename the models"
        raise ValueError(msg)
    for name, model in models.items():
        is_estimator = hasattr(model, "fit") and hasattr(model, "predict") and not isinstance(model, type)
        if not (is_estimator or callable(model)):
            msg = f"model {name!r} is a {type(model).__name__}; expected an object with fit and predict, or a callable"
            raise TypeError(msg)
        if is_estimator and seeds:
            msg = f"model {name!r} is one object, but seeds={list(seeds)}: give a callable that makes one from a seed"
            raise ValueError(msg)


def _evaluated(split: Split, part: str) -> list[Condition]:
    evaluated = [condition for condition in split.conditions(part) if not condition.is_control]
    if not evaluated:
        msg = f"part {part!r} of the split holds no perturbed condition; there is nothing to evaluate"
        raise ValueError(msg)
    return evaluated


@options
class CompareOptions(ScoreOptions):
    """What is compared, and how: the options of the scorer and two more."""

    kind = "option of compare"

    n_split_half: int = split_half(N_SPLIT_HALF)
    # fmt: off
    part: str = option("test", text(), command="", help="part of each split that is evaluated")
    baselines: Sequence[str] = option(DEFAULT_BASELINES, list_of_names(),
        help="names of baselines, fitted to the conditions that the models are fitted to")
    # fmt: on

    def check_together(self) -> None:
        """Raise for unknown metrics and baselines."""
        super().check_together()
        for name in self.baselines:
            make_baseline(name)


@dataclass(frozen=True)
class Comparison(Shown):
    """What :func:`compare` returns; printed, it compares the first model with the baselines.

    Attributes
    ----------
    table
        Tidy: ``split``, ``seed``, ``condition``, ``subgroup``, ``n_cells``, ``method``, ``metric``,
        ``value``, and with split-half repeats ``scaled``, ``half_value``, ``half_floor``, ``half_ceiling``; of
        screens with contexts also ``context``, ``perturbation_type`` and ``n_control``, the context's control cells.
    runs
        Cost of every fit with its prediction: ``split``, ``seed``, ``method``, ``n_train`` (conditions that it
        was fitted to), ``n_test``, ``seconds``, ``cpu_seconds``, ``peak_mb``.
    models
        Names of the methods that are no baselines.
    left_out
        What was excluded and why: by method, or method and split.
    """

    table: pd.DataFrame
    runs: pd.DataFrame
    models: tuple[str, ...]
    left_out: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        notes = self.table.attrs.get("notes", [])
        return "\n".join([short_table(self.table, method=self._model(None)), *notes])

    def summary(self, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> pd.DataFrame:
        """Means and scaled scores with intervals (:func:`gears.evaluation.intervals.interval_table`)."""
        return interval_table(self.table, bootstrap)

    def differences(self, model: str | None = None, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> pd.DataFrame:
        """A model against every other method (:func:`gears.evaluation.intervals.difference_table`)."""
        return difference_table(self.table, bootstrap, method=self._model(model))

    def verdict(self, model: str | None = None) -> str:
        """One line on whether the model is better than the best baseline of each decisive metric."""
        return verdict(self.table, method=self._model(model))

    def costs(self) -> pd.DataFrame:
        """Per method: runs, median seconds and CPU seconds, greatest peak memory (MB)."""
        return run_costs(self.runs)

    def save(self, folder: str | Path, *, title: str = "Comparison") -> dict[str, Path]:
        """Write the tables as CSV and JSON into a folder; :func:`gears.report.write_report` writes the page too."""
        options: Any = {"title": title, "models": self.models, "runs": self.runs, "left_out": self.left_out}
        return Results.of(self.table, **options).save(folder)

    def _model(self, model: str | None) -> str:
        if model is None:
            return self.models[0] if self.models else str(self.table["method"].iloc[0])
        names = list(dict.fromkeys(self.table["method"]))
        if model not in names:
            raise ValueError(unknown_name("method", model, names))
        return model


def _peak_mb() -> float:
    with contextlib.suppress(OSError, StopIteration, ValueError):
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used / (2**20 if sys.platform == "darwin" else 1024)
