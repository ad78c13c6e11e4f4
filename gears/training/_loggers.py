"""Loggers of a run: CSV and JSONL files always, TensorBoard and Weights & Biases on request.

A logger is a subclass of :class:`RunLogger` with ``@LOGGERS.register(name)``; it is made and called on rank 0 only.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import multiprocessing
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

import pandas as pd

from gears.core._registry import Registry
from gears.files.formats import write_text

logger = logging.getLogger(__name__)

Record = Mapping[str, Any]

JSONL, CSV = "metrics.jsonl", "metrics.csv"


@dataclass(frozen=True)
class LoggerSetup:
    """Facts about a run for its loggers."""

    folder: Path | None = None  # the run's ``save_path``; None where nothing is saved
    config: Mapping[str, Any] = field(default_factory=dict)  # options of the run, plain values
    project: str | None = None
    name: str | None = None
    init_timeout: float = 90.0
    logged: int = 0  # epochs that were logged before (a resumed run)


class RunLogger:
    """Receives the records of a run."""

    package: ClassVar[str | None] = None  # an optional package that it needs
    needs_folder: ClassVar[bool] = False  # whether it writes into the model's folder

    def __init__(self, setup: LoggerSetup) -> None: ...

    def log(self, records: Sequence[Record]) -> None:
        """Log the records of the epochs since the last call."""

    def finish(self, failed: bool) -> None:
        """End the log; `failed` if the run raised an error."""


LOGGERS: Registry[type[RunLogger]] = Registry("logger")


def check_loggers(names: Iterable[str], *, has_folder: bool = True) -> None:
    """Raise ValueError for loggers that are unknown, or lack their package or a ``save_path``, before a run begins."""
    for name in names:
        entry = LOGGERS[name]
        if entry.package is not None and importlib.util.find_spec(entry.package) is None:
            msg = (
                f"loggers={name!r} needs the package {entry.package}; run: pip install 'gears-perturb[{name}]', "
                "or omit it (CSV and JSONL are written to save_path in any case)"
            )
            raise ValueError(msg)
        if entry.needs_folder and not has_folder:
            msg = f"loggers={name!r} writes into the model's folder; give save_path"
            raise ValueError(msg)
        if name == "wandb":
            import wandb

            # without a key the run would fail after the screen was read
            if os.environ.get("WANDB_MODE", "online") == "online" and not wandb.api.api_key:
                msg = (
                    "loggers='wandb' needs an API key of Weights & Biases, and none was found; run `wandb login`, "
                    "or set WANDB_MODE=offline and run `wandb sync` later"
                )
                raise ValueError(msg)


def tracked(loggers: str | Sequence[str], project: str, name: str) -> dict[str, Any]:
    """Training options that add a wandb run to other loggers."""
    names = (loggers,) if isinstance(loggers, str) else tuple(loggers)
    return {"project": project, "name": name, "loggers": (*names, "wandb")}


def flat(record: Record) -> dict[str, float]:
    """The numbers of a record by one name each, ``seconds/total`` for those of a group."""
    numbers: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            numbers.update({f"{name}/{key}": float(number) for key, number in value.items()})
        elif isinstance(value, int | float):
            numbers[name] = value
    return numbers


class RunLoggers:
    """Context of the loggers of a run, which also ends them when the run fails.

    A logger that cannot start is an error. One that fails later is dropped with a warning, and the training continues.
    """

    def __init__(self, names: Iterable[str], setup: LoggerSetup, *, active: bool = True) -> None:
        self.names, self.setup, self.active = tuple(names), setup, active
        self._logged = setup.logged
        self._loggers: dict[str, RunLogger] = {}

    def __enter__(self) -> RunLoggers:
        if self.active:
            for name in self.names:
                try:
                    self._loggers[name] = LOGGERS[name](self.setup)
                except BaseException:
                    self._finish(failed=True)
                    raise
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._finish(failed=error is not None)

    def log(self, history: Sequence[Record]) -> None:
        """Log the records since the last call."""
        new, self._logged = list(history[self._logged :]), len(history)
        for name, run_logger in list(self._loggers.items()):
            self._try(name, partial(run_logger.log, new))

    def _finish(self, failed: bool) -> None:
        for name, run_logger in list(self._loggers.items()):
            self._try(name, partial(run_logger.finish, failed))
        self._loggers.clear()

    def _try(self, name: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            logger.warning("the logger %s failed and is no longer used: %s", name, error)
            self._loggers.pop(name, None)


def write_history(folder: Path, history: Sequence[Record]) -> None:
    """``metrics.jsonl`` (a record per line) and ``metrics.csv`` (a row per epoch, empty where not evaluated)."""
    write_text(folder / JSONL, "\n".join(json.dumps(record) for record in history) + "\n")
    write_text(folder / CSV, as_csv(history))


def as_csv(history: Sequence[Record]) -> str:
    """A table with a column per number; groups as ``seconds/total``.

    Examples
    --------
    >>> print(as_csv([{"epoch": 1, "seconds": {"total": 2.5}}, {"epoch": 2, "val_mse": 0.5}]).rstrip())
    epoch,seconds/total,val_mse
    1,2.5,
    2,,0.5
    """
    return pd.DataFrame([flat(record) for record in history]).to_csv(index=False, lineterminator="\n")


@LOGGERS.register("tensorboard")
class TensorBoard(RunLogger):
    """Scalars per epoch and the options as text."""

    package, needs_folder = "tensorboard", True

    def __init__(self, setup: LoggerSetup) -> None:
        self._setup = setup
        self._writer: Any = None

    def log(self, records: Sequence[Record]) -> None:
        if self._writer is None:  # opened with the first record, after the model's folder was swapped in
            from torch.utils.tensorboard import SummaryWriter

            assert self._setup.folder is not None
            first = self._setup.logged + 1 if self._setup.logged else None  # hides what a killed run left after it
            self._writer = SummaryWriter(str(self._setup.folder / "tensorboard"), purge_step=first)
            options = json.dumps(dict(self._setup.config), indent=1, default=str)
            self._writer.add_text("options", f"```\n{options}\n```")
        for record in records:
            for name, value in flat(record).items():
                self._writer.add_scalar(name, value, record["epoch"])
        self._writer.flush()

    def finish(self, failed: bool) -> None:
        if self._writer is not None:
            self._writer.close()


@LOGGERS.register("wandb")
class WandB(RunLogger):
    """One run per training, failed where that is; RuntimeError if the service does not respond or denies access."""

    package = "wandb"

    def __init__(self, setup: LoggerSetup) -> None:
        import wandb

        self._wandb: Any = wandb
        folder = None if setup.folder is None else setup.folder.parent
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        try:
            self._run = wandb.init(
                project=setup.project,
                name=setup.name,
                config=dict(setup.config),
                dir=None if folder is None else str(folder),
                reinit="create_new",  # a run that the caller has open stays open
                settings=wandb.Settings(init_timeout=setup.init_timeout, console="off", silent=True),
            )
        except Exception as error:
            msg = (
                f"wandb did not start ({error}); log in with `wandb login`, raise init_timeout "
                f"({setup.init_timeout:g} s), or set WANDB_MODE=offline and `wandb sync` later"
            )
            raise RuntimeError(msg) from error

    def log(self, records: Sequence[Record]) -> None:
        for record in records:
            self._run.log(flat(record), step=record["epoch"])

    def finish(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))
        if multiprocessing.parent_process() is not None:  # in a worker its helper process would go on
            self._wandb.teardown()
