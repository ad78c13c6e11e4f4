"""Starting workers: from scripts, standard input and threads (when one fails: test_kills_and_faults.py)."""

import contextlib
import importlib
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from driving import workers_by_fork

from gears.distributed import WorkerError, launch

UNGUARDED = """
from gears.distributed import launch
launch(lambda rank, size: rank, ["cpu"] * 2, backend="gloo")
"""


def test_script_without_guard_gets_two_lines(tmp_path) -> None:
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 1
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 2
    assert "__main__" in lines[1]


TWICE = """
from gears.distributed import launch
scale = 10
for size in (2, 1):
    print(launch(lambda rank, size: (rank + 1) * size * scale, ["cpu"] * size, backend="gloo"))
    globals().pop("__spec__", None)  # as %reset -f does in a notebook
print("__spec__" in globals())
"""


def test_from_standard_input_twice_with_other_numbers_of_workers() -> None:
    done = subprocess.run([sys.executable, "-"], input=TWICE, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["20", "10", "False"], "the value of rank 0"


def summed(rank: int, size: int, job: int) -> list[int]:
    total = torch.tensor([rank + 1])
    torch.distributed.all_reduce(total)
    return [job, int(total)]


def test_jobs_at_once_from_threads(quick_workers: None) -> None:
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(launch, summed, ["cpu"], (job,), backend="gloo") for job in (0, 1)]
        assert [job.result(timeout=500) for job in jobs] == [[0, 1], [1, 1]]


def work_beside_a_silent_one(rank: int, world_size: int, ends: str) -> None:
    """Rank 1 does not take part; the other waits for it, or aborts as NCCL does."""
    if rank == 1:
        if ends == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(600)
    if ends == "abort":
        os.abort()
    dist.all_reduce(torch.ones(1))


@pytest.mark.parametrize("ends", ["time-out", "abort", "stop"])
def test_the_rank_that_does_not_respond_is_named(ends: str) -> None:
    words = r"worker 1 of 2 did not respond: (worker 0 waited for it|it was stopped)"
    quick = contextlib.nullcontext() if ends == "stop" else workers_by_fork()
    with quick, pytest.raises(WorkerError, match=words) as caught:
        launch(work_beside_a_silent_one, ["cpu"] * 2, (ends,), backend="gloo", timeout=3)
    assert caught.value.rank == 1
    assert ("it was stopped by SIGSTOP" in str(caught.value)) == (ends == "stop")


def stopped_outside_of_a_collective(rank: int, world_size: int) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(600)


@pytest.mark.long
def test_a_stopped_worker_that_nobody_waits_for_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", logger="gears"), pytest.raises(WorkerError, match=r"worker 1 of 2 .*SIGSTOP"):
        launch(stopped_outside_of_a_collective, ["cpu"] * 2, backend="gloo", timeout=6)
    assert "worker 1 of 2 is stopped by SIGSTOP: `kill -CONT" in caplog.text


def signals_and_goes_on(rank: int, world_size: int, n_signals: int, caller: int) -> None:
    for _ in range(n_signals):
        os.kill(caller, signal.SIGTERM)
        time.sleep(1)
    time.sleep(600)


@pytest.mark.parametrize(("n_signals", "why"), [(1, r"not stopped 0\.5 s after SIGTERM"), (2, "SIGTERM came twice")])
def test_workers_that_do_not_stop_in_time_are_ended_with_a_warning(
    n_signals: int, why: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, quick_workers: None
) -> None:
    if n_signals == 1:
        monkeypatch.setattr(importlib.import_module("gears.distributed._launch"), "STOP_GRACE_SECONDS", 0.5)
    with caplog.at_level("WARNING", logger="gears"), pytest.raises(SystemExit, match="143"):
        launch(signals_and_goes_on, ["cpu"], (n_signals, os.getpid()), backend="gloo")
    assert re.search(rf"1 worker ended by force \({why}\); resume=True continues", caplog.text)


def full(rank: int, world_size: int, library: Any) -> tuple[bool, bool]:
    """How deterministic the worker is, and where a library is given, all memory."""
    if library is not None:
        library.zeros(2**50)
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def test_a_worker_without_memory_says_what_to_do_and_is_as_deterministic_as_the_caller(quick_workers: None) -> None:
    for library in (np, torch):
        with pytest.raises(WorkerError, match=r"worker 0 of 1 failed: .*memory is full: use fewer workers"):
            launch(full, ["cpu"], (library,), backend="gloo")
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        assert launch(full, ["cpu"], (None,), backend="gloo") == (True, True)
    finally:
        torch.use_deterministic_algorithms(False)
