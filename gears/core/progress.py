"""Progress bars of work that takes more than two seconds.

A bar is drawn on stderr in a terminal or a notebook, if INFO lines of the package are shown (``verbose=True``, no
``--quiet``). A worker process sends its progress to the process that started it, which draws the bar.
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
    """How much of a piece of work is done; `done` is None when the work has ended."""

    what: str
    unit: str
    done: int | None
    total: int


_send: Callable[[Report], None] | None = None
_drawn: dict[str, Any] = {}


def send_progress(send: Callable[[Report], None] | None) -> None:
    """In a worker: pass reports to `send` instead of drawing bars."""
    global _send
    _send = send


def watched() -> bool:
    """Whether bars are shown: stderr is a terminal, or this is a notebook, and INFO lines are shown."""
    if not logging.getLogger("gears").isEnabledFor(logging.INFO):
        return False
    shell = sys.modules.get("IPython")
    in_notebook = shell is not None and type(shell.get_ipython()).__name__ == "ZMQInteractiveShell"
    return in_notebook or bool(getattr(sys.stderr, "isatty", bool)())


def show(report: Report) -> None:
    """Draw the bar of a piece of work (the parent process draws those of its workers)."""
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

    unit = {"unit": f" {report.unit}", "unit_scale": report.unit == "B"}
    shown = {"file": sys.stderr, "leave": False, "delay": DELAY, **_size()}
    return tqdm(total=report.total, desc=report.what, **unit, **shown)


def _size() -> dict[str, Any]:
    """The bar follows the terminal's width; 80 columns where the width is 0 (in some containers)."""
    try:
        columns, rows = os.get_terminal_size(sys.stderr.fileno())
    except (AttributeError, OSError, ValueError):  # a notebook, a stream without a file
        return {"dynamic_ncols": True}
    return {"dynamic_ncols": True} if columns and rows else {"ncols": columns or 80, "nrows": rows or 24}


@contextlib.contextmanager
def progress(total: int, what: str, unit: str, *, enabled: bool = True) -> Iterator[Callable[[int], None]]:
    """Show the progress of a piece of work; yields a function to call with the amount done since its last call.

    `what` and `unit` label the bar ("training", "steps"); without `enabled` nothing is shown (``verbose=False``).

    Examples
    --------
    >>> with progress(3, "adding", "numbers") as advance:
    ...     for number in range(3):
    ...         advance(1)
    """
    if not enabled or not (_send is not None or watched()):
        yield lambda n: None
        return
    done, last_report = 0, time.monotonic() - EVERY
    send = _send or show

    def advance(n: int) -> None:
        nonlocal done, last_report
        done += n
        if _send is None or time.monotonic() - last_report >= EVERY:
            last_report = time.monotonic()
            send(Report(what, unit, done, total))

    try:
        yield advance
    finally:
        send(Report(what, unit, None, total))


def followed(
    items: Iterable[T], total: int, what: str, unit: str, size: Callable[[T], int] = lambda _: 1
) -> Iterator[T]:
    """Iterate over items with a progress bar; each item is `size(item)` of `total`."""
    with progress(total, what, unit) as advance:
        for item in items:
            yield item
            advance(size(item))


class LineHandler(logging.StreamHandler):
    """Writes log lines to stderr, above a bar where one is drawn."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line; bars are cleared before it and drawn again after it."""
        if not _drawn:
            super().emit(record)
            return
        from tqdm import tqdm

        with tqdm.external_write_mode(file=self.stream):
            super().emit(record)
