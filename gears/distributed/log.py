"""Making the package's own log lines visible where the user has set up no logging."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator

from gears.core.progress import LineHandler


def show_progress() -> None:
    """Let INFO lines of ``gears`` reach stderr, unless logging was configured by the caller.

    Of several workers (torchrun, a running process group) rank 0 shows them; the others show warnings with
    their rank. Only the package's own logger is touched, and only once.
    """
    logger = logging.getLogger("gears")
    if logger.handlers or logging.getLogger().handlers:
        return
    rank = _rank()
    handler = LineHandler(sys.stderr)
    handler.set_name("gears")  # a worker replaces it (gears.distributed.worker)
    handler.setFormatter(
        logging.Formatter(f"[rank {rank}] %(levelname)s: %(message)s" if rank else "%(message)s")
    )
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING if rank else logging.INFO)


@contextlib.contextmanager
def shown(verbose: bool = True) -> Iterator[None]:
    """While a public function with `verbose` runs: its INFO lines are shown, by rank 0; or warnings alone."""
    rank = _rank()
    if verbose or rank:
        show_progress()
    with contextlib.nullcontext() if verbose and not rank else quiet(logging.WARNING):
        yield


@contextlib.contextmanager
def only_on_rank_0() -> Iterator[None]:
    """Around what every launched process does alike: rank 0 alone reports it, warnings included."""
    with quiet() if _rank() else contextlib.nullcontext():
        yield


def _rank() -> int:
    """Rank of this process among several workers, 0 if it is alone."""
    if "RANK" not in os.environ and "torch.distributed" not in sys.modules:
        return 0  # torch is not imported for this
    from gears.distributed.world import Place

    try:
        place = Place.current()
    except ValueError:  # an error where the workers are joined
        return 0
    return 0 if place is None else place.rank


@contextlib.contextmanager
def quiet(level: int = logging.ERROR) -> Iterator[None]:
    """Let only lines of ``gears`` from ``level`` on through, and put the caller's level back at the end."""
    logger = logging.getLogger("gears")
    before = logger.level
    logger.setLevel(max(level, logger.getEffectiveLevel()))
    try:
        yield
    finally:
        logger.setLevel(before)
