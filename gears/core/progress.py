"""Progress of what takes more than two seconds: how far it is, how fast, how long still.

A bar is drawn on stderr where somebody watches: in a terminal or a notebook, while INFO lines of the package are
shown (``verbose=True``, no ``--quiet``). A worker process sends its progress to the process that started it, which
draws; so a notebook shows it too.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

DELAY = 2.0
"""Seconds after which a bar appears."""
EVERY = 0.5
"""Seconds between two messages of a worker."""

T = TypeVar("T")


class Report(NamedTuple):
    """How far a piece of work is; `done` None: it is over."""

    what: str
    unit: str
    done: int | None
    total: int


_send: Callable[[Report], None] | None = None
_drawn: dict[str, Any] = {}


def send_progress(send: Callable[[Report], None] | None) -> None:
    """In a worker: where progress goes instead of being drawn."""
    global _send
    _send = send


def watched() -> bool:
    """Whether somebody would see a bar: stderr is a terminal, or this is a notebook, and INFO lines are shown."""
    if not logging.getLogger("gears").isEnabledFor(logging.INFO):
        return False
    return bool(getattr(sys.stderr, "isatty", bool)()) or in_notebook()


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = sys.modules.get("IPython")
    return shell is not None and type(shell.get_ipython()).__name__ == "ZMQInteractiveShell"


def show(report: Report) -> None:
    """Draw how far a piece of work is (the parent of a worker does it for the worker)."""
    bar = _drawn.get(report.what)
    if report.done is None:
        if bar is not None:
            del _drawn[report.what]
            bar.close()
        return
    if bar is None:
        bar = _drawn[report.what] = _bar(report)
    bar.update(report.done - bar.n)


def _bar(report: Report) -> Any:
    from tqdm import tqdm

    return tqdm(
        total=report.total,
        desc=report.what,
        unit=f" {report.unit}",
        unit_scale=report.unit == "B",
        file=sys.stderr,
        leave=False,
        delay=DELAY,
        **_size(),
    )


def _size() -> dict[str, Any]:
    """The bar follows the terminal's width; where that says 0 (some containers) 80 columns stand for it."""
    try:
        columns, rows = os.get_terminal_size(sys.stderr.fileno())
    except (AttributeError, OSError, ValueError):  # a notebook, a stream without a file
        return {"dynamic_ncols": True}
    return {"dynamic_ncols": True} if columns and rows else {"ncols": columns or 80, "nrows": rows or 24}


@contextlib.contextmanager
def progress(total: int, what: str, unit: str, *, wanted: bool = True) -> Iterator[Callable[[int], None]]:
    """Follow a piece of work; the function that it gives is called with what was done since the last call.

    Parameters
    ----------
    total
        How much there is to do.
    what, unit
        Shown: "training", "steps".
    wanted
        False: nothing is shown (``verbose=False``).

    Examples
    --------
    >>> with progress(3, "adding", "numbers") as advance:
    ...     for number in range(3):
    ...         advance(1)
    """
    if not wanted or not (_send is not None or watched()):
        yield lambda n: None
        return
    done, said = 0, time.monotonic() - EVERY
    tell = _send or show

    def advance(n: int) -> None:
        nonlocal done, said
        done += n
        if _send is None or time.monotonic() - said >= EVERY:
            said = time.monotonic()
            tell(Report(what, unit, done, total))

    try:
        yield advance
    finally:
        tell(Report(what, unit, None, total))


def followed(
    items: Iterable[T], total: int, what: str, unit: str, size: Callable[[T], int] = lambda _: 1
) -> Iterator[T]:
    """Go through items, each of which is `size(item)` of `total`."""
    with progress(total, what, unit) as advance:
        for item in items:
            yield item
            advance(size(item))


class LineHandler(logging.StreamHandler):
    """Writes log lines to stderr, above a bar where one is drawn."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line; bars are taken away first and drawn again after it."""
        if not _drawn:
            super().emit(record)
            return
        from tqdm import tqdm

        with tqdm.external_write_mode(file=self.stream):
            super().emit(record)
