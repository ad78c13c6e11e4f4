"""Show the package's log lines where the user has not set up logging."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator

from gears.core._progress import LineHandler, in_notebook

HANDLER = "gears"
"""Name of the handler that the package itself adds; a worker replaces it."""


def show_progress() -> None:
    """Let INFO lines of ``gears`` reach stderr (a notebook's stdout), unless logging was configured by the caller."""
    logger = logging.getLogger("gears")
    if logger.handlers or logging.getLogger().handlers:
        if logger.level == logging.NOTSET and any(handler.name == HANDLER for handler in logger.handlers):
            logger.setLevel(logging.INFO)  # added while the package was quiet, which then restored the level
        return
    attach(LineHandler(sys.stdout if in_notebook() else sys.stderr), _rank())


def attach(handler: logging.Handler, rank: int, prefix: str = "") -> None:
    """Log through a handler: all lines of rank 0, behind `prefix`, and warnings of the others, behind their rank.

    A level that the user has set stays.
    """
    handler.set_name(HANDLER)
    line = f"[rank {rank}] %(levelname)s: %(message)s" if rank else f"{prefix}%(message)s"
    handler.setFormatter(logging.Formatter(line))
    logger = logging.getLogger("gears")
    logger.addHandler(handler)
    if rank or logger.level == logging.NOTSET:
        logger.setLevel(logging.WARNING if rank else logging.INFO)


class Once(logging.Filter):
    """Lets each warning through once; for a process that does one piece of work."""

    def __init__(self) -> None:
        super().__init__()
        self._warned: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is shown."""
        message = record.getMessage()
        repeated = record.levelno >= logging.WARNING and message in self._warned
        self._warned.add(message)
        return not repeated


def configure_worker_logging(rank: int, label: str = "") -> None:
    """Rank 0 logs like the package, with a label; the others log warnings only, with their rank in front."""
    package = logging.getLogger("gears")
    for old in [handler for handler in package.handlers if handler.name == HANDLER]:
        package.removeHandler(old)
    over_bar = "\r\x1b[K" if sys.stderr.isatty() else ""  # the parent's progress bar may be in this line
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(Once())
    attach(handler, rank, f"{over_bar}{label}")
    package.propagate = False


@contextlib.contextmanager
def shown(verbose: bool = True) -> Iterator[None]:
    """While a public function runs, show its INFO lines on rank 0; without `verbose` warnings alone."""
    # the other workers of a running group do the same work and find the same: they show errors alone
    rank = _rank()
    if verbose or rank:
        show_progress()
    level = logging.WARNING
    if rank:
        from gears.distributed._world import is_running

        level = logging.ERROR if is_running() else logging.WARNING
    with contextlib.nullcontext() if verbose and not rank else quiet(level):
        yield


@contextlib.contextmanager
def only_on_rank_0() -> Iterator[None]:
    """Around work that every launched process repeats: only rank 0 logs it, warnings included."""
    with quiet() if _rank() else contextlib.nullcontext():
        yield


def _rank() -> int:
    """Rank of this process among several workers, 0 if it is alone."""
    if "RANK" not in os.environ and "torch.distributed" not in sys.modules:
        return 0  # avoids importing torch
    from gears.distributed._world import Ranks

    try:
        ranks = Ranks.current()
    except ValueError:  # raised again where the process group starts
        return 0
    return 0 if ranks is None else ranks.rank


@contextlib.contextmanager
def quiet(level: int = logging.ERROR) -> Iterator[None]:
    """Let only lines of ``gears`` from ``level`` on through, and restore the caller's level at the end."""
    logger = logging.getLogger("gears")
    before = logger.level
    logger.setLevel(max(level, logger.getEffectiveLevel()))
    try:
        yield
    finally:
        logger.setLevel(before)
