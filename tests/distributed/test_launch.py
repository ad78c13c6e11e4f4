"""Starting workers and what a caller learns when one fails."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from gears.distributed import WorkerError, launch


def _fail(rank: int, world_size: int, mode: str) -> list[float]:
    import torch.distributed as dist

    total = torch.full((3,), float(rank + 1))
    dist.all_reduce(total)
    if rank == 1 and mode == "raise":
        msg = "no such gene"
        raise KeyError(msg)
    if rank == 1 and mode == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 1 and mode.startswith("exit"):
        sys.exit(int(mode[-1]))
    if rank == 0 and mode != "fine":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    return total.tolist()


def test_value_of_rank_0_comes_back() -> None:
    scale = 2.0
    assert launch(lambda rank, size: [rank, size * scale], ["cpu"] * 2, backend="gloo") == [0, 4.0]


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("raise", "worker 1 of 2 failed: KeyError.*no such gene"),
        ("kill", "worker 1 of 2 was killed by SIGKILL; out of memory"),
        ("exit0", "worker 1 of 2 left early with exit code 0"),
        ("exit3", "worker 1 of 2 left early with exit code 3"),
    ],
)
def test_first_failure_reaches_the_caller_and_nothing_remains(mode: str, words: str) -> None:
    environment, threads = dict(os.environ), torch.get_num_threads()
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    start = time.monotonic()
    with pytest.raises(WorkerError, match=words) as caught:
        launch(_fail, ["cpu"] * 2, (mode,), backend="gloo", grace=1.0)
    assert time.monotonic() - start < 60
    assert caught.value.rank == 1
    if mode == "raise":
        assert 'msg = "no such gene"' in str(caught.value) or "raise KeyError(msg)" in str(caught.value)
    assert not mp.active_children()
    assert dict(os.environ) == environment
    assert torch.get_num_threads() == threads
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


UNGUARDED = """
from gears.distributed import launch
launch(lambda rank, size: rank, ["cpu"] * 2, backend="gloo")
"""


def test_script_without_guard_gets_two_lines(tmp_path) -> None:
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 2
    assert "__main__" in lines[1]


def test_from_standard_input() -> None:
    code = UNGUARDED.replace("launch(lambda", "print(launch(lambda").rstrip() + ")"
    done = subprocess.run(
        [sys.executable, "-"], input=code, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "0"


def test_dead_parent_leaves_no_worker(tmp_path) -> None:
    """SIGKILL of the caller: the workers die with it."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, time\n"
        "from gears.distributed import launch\n"
        "def work(rank, size):\n"
        f"    open({str(tmp_path)!r} + f'/pid{{rank}}', 'w').write(str(os.getpid()))\n"
        "    time.sleep(600)\n"
        "if __name__ == '__main__':\n"
        "    launch(work, ['cpu'] * 2, backend='gloo')\n"
    )
    parent = subprocess.Popen([sys.executable, str(script)])
    files = [tmp_path / "pid0", tmp_path / "pid1"]
    deadline = time.monotonic() + 90
    while not all(file.is_file() and file.read_text() for file in files):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    pids = [int(file.read_text()) for file in files]
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 20
    while any(_alive(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
