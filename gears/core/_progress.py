"""Progress of work that takes more than two seconds: a bar in a terminal, a widget in a notebook, lines in a log.

Nothing is shown without INFO lines of the package (``verbose=False``, ``--quiet``). A worker process sends its
progress to the process that started it, which shows it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol, TypeVar

logger = logging.getLogger(__name__)

DELAY = 2.0
"""Seconds after which a bar or the first line appears."""
EVERY = 0.5
"""Seconds between two messages of a worker."""
LINE_EVERY = 30.0
"""Seconds between two lines, where no bar can be drawn."""

T = TypeVar("T")


class Advance(Protocol):
    """Reports that `n` more is done; `note` ("loss 0.3") stays beside the bar until the next one."""

    def __call__(self, n: int, note: str | None = None, /) -> None: ...


class Report(NamedTuple):
    """How much of a piece of work is done; `done` is None when it has ended, `total` where nobody knows its end."""

    what: str
    unit: str
    done: int | None
    total: int | None
    note: str = ""


_send: Callable[[Report], None] | None = None
_drawn: dict[str, Any] = {}
_lines: dict[str, tuple[float, float]] = {}
"""Where lines are logged: when a piece of work began, and when its next line is due."""


def send_progress(send: Callable[[Report], None] | None) -> None:
    """In a worker: pass reports to `send` instead of drawing bars."""
    global _send
    _send = send


def watched() -> bool:
    """Whether bars are shown: stderr is a terminal, or this is a notebook, and INFO lines are shown."""
    return _informed() and (in_notebook() or bool(getattr(sys.stderr, "isatty", bool)()))


def _informed() -> bool:
    return logging.getLogger("gears").isEnabledFor(logging.INFO)


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def show(report: Report) -> None:
    """Show the progress of a piece of work (the parent process shows that of its workers)."""
    if report.what in _drawn or watched():
        _draw(report)
    elif _informed():
        _log(report)


def _log(report: Report) -> None:
    """Log a line about work that takes longer than DELAY, then one every LINE_EVERY seconds."""
    if report.done is None:
        _lines.pop(report.what, None)
        return
    now = time.monotonic()
    began, due = _lines.setdefault(report.what, (now, now + DELAY))
    if now < due or not report.done:
        return
    from tqdm import tqdm

    text = f"{report.done} {report.unit}"
    if report.total is not None:
        seconds_left = (now - began) * (report.total - report.done) / report.done
        if seconds_left < DELAY:  # it ends before the line is read
            return
        share = f"{report.done} of {report.total} {report.unit} ({report.done / report.total:.0%})"
        text = f"{share}, about {tqdm.format_interval(seconds_left)} left"
    _lines[report.what] = (began, now + LINE_EVERY)
    logger.info("%s: %s%s", report.what, text, report.note and f"; {report.note}")


def _draw(report: Report) -> None:
    bar = _drawn.get(report.what)
    if report.done is None:
        if bar is not None:
            del _drawn[report.what]
            bar.close()
        return
    if bar is None:
        bar = _drawn[report.what] = _bar(report)
    if report.note:
        bar.set_postfix_str(report.note, refresh=False)
    bar.update(report.done - bar.n)


def _bar(report: Report) -> Any:
    if in_notebook() and find_spec("ipywidgets") is None:
        from tqdm import tqdm  # tqdm.auto would warn
    else:
        from tqdm.auto import tqdm

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
def progress(total: int | None, what: str, unit: str, *, enabled: bool = True) -> Iterator[Advance]:
    """Show the progress of a piece of work; yields a function to call with the amount done since its last call.

    `what` and `unit` label the work ("training", "steps"); without `enabled` nothing is shown (``verbose=False``).
    A `total` of None is unknown.

    Examples
    --------
    >>> with progress(3, "adding", "numbers") as advance:
    ...     for number in range(3):
    ...         advance(1)
    """
    if not enabled or not (_send is not None or _informed()):
        yield lambda n, note=None: None
        return
    done, shown_note, last_report = 0, "", time.monotonic() - EVERY
    send = _send or show

    def advance(n: int, note: str | None = None, /) -> None:
        nonlocal done, shown_note, last_report
        done += n
        shown_note = shown_note if note is None else note
        if _send is None or time.monotonic() - last_report >= EVERY:
            last_report = time.monotonic()
            send(Report(what, unit, done, total, shown_note))

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
