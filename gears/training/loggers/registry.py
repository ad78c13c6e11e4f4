"""The registry of loggers, and the object through which a run uses the requested ones."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from gears.core.registry import Registry

logger = logging.getLogger(__name__)

Record = Mapping[str, Any]


@dataclass(frozen=True)
class LoggerSetup:
    """Facts about a run for its loggers.

    Attributes
    ----------
    folder
        The run's ``save_path``; None where nothing is saved.
    config
        Options of the run, plain values.
    logged
        Epochs that were logged before (a resumed run).
    """

    folder: Path | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    project: str | None = None
    name: str | None = None
    init_timeout: float = 90.0
    logged: int = 0


class RunLogger(Protocol):
    """Receives the records of a run; created and called on rank 0 only."""

    def log(self, records: Sequence[Record]) -> None:
        """Log the records of the epochs since the last call."""

    def finish(self, failed: bool) -> None:
        """End the log; `failed` if the run raised an error."""


@dataclass(frozen=True)
class Kind:
    """An entry of the registry: how a logger is made and what it needs."""

    make: Callable[[LoggerSetup], RunLogger]
    package: str | None = None
    needs_folder: bool = False


LOGGERS: Registry[Kind] = Registry("logger")


def register(
    name: str, *, package: str | None = None, needs_folder: bool = False
) -> Callable[[Callable[[LoggerSetup], RunLogger]], Callable[[LoggerSetup], RunLogger]]:
    """Add a logger: ``make(setup) -> RunLogger``, needing an optional package or a folder."""

    def add(make: Callable[[LoggerSetup], RunLogger]) -> Callable[[LoggerSetup], RunLogger]:
        LOGGERS.add(name, Kind(make, package, needs_folder))
        return make

    return add


def check_loggers(names: Iterable[str], *, has_folder: bool = True) -> None:
    """Raise ValueError for loggers that are unknown, or lack their package or a ``save_path``, before a run begins."""
    for name in names:
        kind = LOGGERS[name]
        if kind.package is not None and importlib.util.find_spec(kind.package) is None:
            msg = (
                f"loggers={name!r} needs the package {kind.package}; run: pip install 'gears-perturb[{name}]', "
                "or omit it (CSV and JSONL are written to save_path in any case)"
            )
            raise ValueError(msg)
        if kind.needs_folder and not has_folder:
            msg = f"loggers={name!r} writes into the model's folder; give save_path"
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
                    self._loggers[name] = LOGGERS[name].make(self.setup)
                except BaseException:
                    self._finish(failed=True)
                    raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._finish(failed=error is not None)

    def log(self, history: Sequence[Record]) -> None:
        """Log the records since the last call."""
        new, self._logged = list(history[self._logged :]), len(history)
        for name, run_logger in list(self._loggers.items()):
            self._try(name, lambda run_logger=run_logger: run_logger.log(new))  # type: ignore[misc]

    def _finish(self, failed: bool) -> None:
        for name, run_logger in list(self._loggers.items()):
            self._try(name, lambda run_logger=run_logger: run_logger.finish(failed))  # type: ignore[misc]
        self._loggers.clear()

    def _try(self, name: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            logger.warning("the logger %s failed and is no longer used: %s", name, error)
            self._loggers.pop(name, None)
