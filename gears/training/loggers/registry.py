"""The registry of loggers, and the one object through which a run uses those that were asked for."""

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
    """What a logger may want to know of a run.

    Attributes
    ----------
    folder
        The run's ``save_path``; None where nothing is saved.
    config
        Options of the run, plain values.
    project, name
        Where and under which name a tracking service keeps the run.
    init_timeout
        Seconds to wait for a tracking service at the start.
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
    """Takes the records of a run; made and called on rank 0 only."""

    def log(self, records: Sequence[Record]) -> None:
        """Take the records of epochs that are new since the last call."""

    def finish(self, failed: bool) -> None:
        """The run has ended, well or not."""


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
    """Refuse loggers that are unknown or cannot work here, before a run begins.

    Raises
    ------
    ValueError
        The name is unknown, the logger's package is missing, or it needs a ``save_path``.
    """
    for name in names:
        kind = LOGGERS[name]
        if kind.package is not None and importlib.util.find_spec(kind.package) is None:
            msg = (
                f"loggers={name!r} needs the package {kind.package}; run: pip install 'gears-perturb[{name}]', "
                "or leave it out (CSV and JSONL are written to save_path in any case)"
            )
            raise ValueError(msg)
        if kind.needs_folder and not has_folder:
            msg = f"loggers={name!r} writes into the model's folder; give save_path"
            raise ValueError(msg)


def tracked(options: Mapping[str, Any], project: str, name: str) -> dict[str, Any]:
    """Training options with a wandb run added; a project and a name that are given win."""
    given = options.get("loggers") or ()
    names = (given,) if isinstance(given, str) else tuple(given)
    return {"project": project, "name": name, **options, "loggers": (*names, "wandb")}


def flat(record: Record) -> dict[str, float]:
    """The numbers of a record by one name each, ``seconds/total`` for those of a group."""
    numbers: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            numbers.update({f"{name}/{part}": float(number) for part, number in value.items()})
        elif isinstance(value, int | float):
            numbers[name] = value
    return numbers


class RunLoggers:
    """The loggers of a run, as a context: finished also when the run fails.

    One that fails on the way is excluded with a warning: the training goes on. One that
    cannot begin is an error.

    Parameters
    ----------
    names
        Registered loggers.
    setup
        What they are told.
    active
        Whether this is the worker that logs (rank 0).
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
        """Hand on the records that are new since the last call."""
        new, self._logged = list(history[self._logged :]), len(history)
        for name, one in list(self._loggers.items()):
            self._try(name, lambda one=one: one.log(new))  # type: ignore[misc]

    def _finish(self, failed: bool) -> None:
        for name, one in list(self._loggers.items()):
            self._try(name, lambda one=one: one.finish(failed))  # type: ignore[misc]
        self._loggers.clear()

    def _try(self, name: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            logger.warning("the logger %s failed and is no longer used: %s", name, error)
            self._loggers.pop(name, None)
