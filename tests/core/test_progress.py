"""Progress: bars where somebody watches, lines in a log, nothing where nobody wants to know."""

import fcntl
import io
import logging
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from types import SimpleNamespace
from typing import Any

import pytest
from driving import gears_of, pert_data_of

from gears.core import _progress as module


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def write_to(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Give the module another stderr (pytest puts its own into sys between fixture and test)."""
    monkeypatch.setattr(module, "sys", SimpleNamespace(stderr=stream, modules=sys.modules))
    return stream


@pytest.fixture
def terminal(monkeypatch):
    """A terminal on stderr, INFO lines shown, and no delay."""
    shown, logger = Terminal(), logging.getLogger("gears")
    level = logger.level
    write_to(shown, monkeypatch)
    monkeypatch.setattr(module, "DELAY", 0.0)
    logger.setLevel(logging.INFO)
    yield shown
    logger.setLevel(level)
    assert not module._drawn


def test_a_bar_says_how_far_how_fast_and_how_long_still(terminal):
    with module.progress(4, "training", "steps") as advance:
        advance(1)
        bar = module._drawn["training"]
        text = str(bar)
        bar.refresh()
    assert text.startswith("training:  25%|")
    assert re.search(r"1/4 \[\d\d:\d\d<", text)  # elapsed and remaining
    assert "steps/s" in text or "s/ steps" in text
    assert "training:" in terminal.getvalue()


def test_a_terminal_without_a_width_gets_a_bar_all_the_same():
    """In a real terminal whose width is 0, as some containers give it."""
    code = (
        "import logging, gears.core._progress as module; logging.getLogger('gears').setLevel(20); module.DELAY = 0.0\n"
        "with module.progress(4, 'training', 'steps') as advance: advance(1); module._drawn['training'].refresh()"
    )
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
    subprocess.run([sys.executable, "-c", code], stdin=child, stdout=child, stderr=child, check=True)
    shown = os.read(parent, 4096)
    os.close(child)
    os.close(parent)
    assert b"training:  25%|" in shown


def test_nothing_before_two_seconds(terminal, monkeypatch):
    monkeypatch.setattr(module, "DELAY", 2.0)
    assert list(module.followed("abc", 3, "reading", "letters")) == ["a", "b", "c"]
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("where", ["terminal", "log"])
@pytest.mark.parametrize("why", ["no INFO lines", "verbose=False"])
def test_quiet(terminal, monkeypatch, caplog, why, where):
    shown = terminal if where == "terminal" else write_to(io.StringIO(), monkeypatch)
    if why == "no INFO lines":
        logging.getLogger("gears").setLevel(logging.WARNING)
    with module.progress(2, "training", "steps", enabled=why != "verbose=False") as advance:
        advance(1)
        assert not module._drawn
    assert shown.getvalue() == caplog.text == ""


def test_a_log_gets_lines(terminal, monkeypatch, caplog):
    """The first after the delay, the next ones LINE_EVERY seconds apart, none at the end."""
    write_to(io.StringIO(), monkeypatch)
    now = 0.0
    monkeypatch.setattr(module, "DELAY", 2.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    with module.progress(400, "training", "steps") as advance:
        for now in range(100):
            advance(4, f"loss {now}")
    times = [2, 32, 62, 92]
    assert [record.message.partition(" of ")[0] for record in caplog.records] == [
        f"training: {4 * (time + 1)}" for time in times
    ]
    assert caplog.records[1].message == "training: 132 of 400 steps (33%), about 01:04 left; loss 32"


def test_work_whose_end_nobody_knows_is_counted(terminal, monkeypatch, caplog):
    with module.progress(None, "fitting the prior", "iterations") as advance:
        advance(3)
        assert str(module._drawn["fitting the prior"]).startswith("fitting the prior: 3 iterations [")
    write_to(io.StringIO(), monkeypatch)
    with module.progress(None, "fitting the prior", "iterations") as advance:
        advance(3)
    assert caplog.messages == ["fitting the prior: 3 iterations"]


def test_a_notebook_counts_as_watching(terminal, monkeypatch):
    write_to(io.StringIO(), monkeypatch)
    assert not module.watched()
    shell = SimpleNamespace(kernel=None)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert module.watched()


def test_a_worker_sends_and_its_parent_draws(terminal, monkeypatch):
    from gears.distributed._launch import Worker

    sent: list[Any] = []
    monkeypatch.setattr(module, "EVERY", 0.0)
    module.send_progress(sent.append)
    try:
        for _ in module.followed([3, 4], 7, "training", "steps", size=int):
            assert not module._drawn
    finally:
        module.send_progress(None)
    assert sent == [module.Report("training", "steps", done, 7) for done in (3, 7, None)]
    waiting = [("progress", tuple(report)) for report in sent[:2]]
    channel = SimpleNamespace(closed=False, poll=lambda: bool(waiting), recv=lambda: waiting.pop(0))
    worker = Worker(0, SimpleNamespace(exitcode=None), channel)
    worker.listen()
    assert module._drawn["training"].n == 7
    waiting.append(("progress", tuple(sent[2])))
    worker.listen()
    assert not module._drawn
    assert worker.error is None


def test_training_is_followed_and_ends_without_a_bar(terminal, tmp_path, toy_adata, toy_go, monkeypatch):

    seen: list[module.Report] = []
    real = module.show
    monkeypatch.setattr(module, "show", lambda report: (seen.append(report), real(report)))
    data = pert_data_of(tmp_path, toy_adata, gene2go=toy_go, split="simulation")
    model = gears_of(data)
    options: dict[str, Any] = {"objective": "moments", "prior": None, "evaluate_test": False}
    model.train(steps=3, **options)
    assert [r.done for r in seen if r.what == "training"] == [0, 1, 2, 3, 3, None]
    last = [report for report in seen if report.what == "training"][-2]
    assert re.fullmatch(r"epoch 1, loss [\d.e-]+, val_mse_top20_de [\d.e-]+", last.note)
    assert any(report.what == "reading cells" for report in seen)
    seen.clear()
    model.train(steps=2, verbose=False, **options)
    assert not [report for report in seen if report.what == "training"]


def test_an_error_takes_the_bar_away(terminal):
    def broken():
        yield 1
        raise KeyError

    with pytest.raises(KeyError):
        list(module.followed(broken(), 2, "reading", "cells"))
    assert not module._drawn
