"""Making the package's own log lines visible where the user has set up no logging."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator

from gears.progress import LineHandler


def show_progress() -> None:
    """Let INFO lines of ``gears`` reach stderr, unless logging was configured by the caller.

    Only the package's own logger is touched, and only once.
    """
    logger = logging.getLogger("gears")
    if logger.handlers or logging.getLogger().handlers:
        return
    handler = LineHandler(sys.stderr)
    handler.set_name("gears")  # a worker replaces it (gears.distributed.child)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


@contextlib.contextmanager
def quiet(level: int = logging.ERROR) -> Iterator[None]:
    """Let only lines of ``gears`` from ``level`` on through, and put the caller's level back at the end."""
    logger = logging.getLogger("gears")
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)
