"""What a failing call leaves as it was in the caller: environment, handlers, random state, open files, threads, ports.

The table of kills and faults, and how runs go on after them: test_faults.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

if TYPE_CHECKING:
    from anndata import AnnData

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for remains in /proc, which is Linux only"),
]  # fmt: skip
DRIVER = Path(__file__).with_name("failing.py")
MARK = "GEARS_FAILURE_CASE"


@dataclass(frozen=True)
class Case:
    """A row of the matrix.

    Attributes
    ----------
    name
        What goes wrong.
    fault
        What the workers do (see `failing.py`).
    number, group
        Signal sent to the caller, and whether to its workers at once (Ctrl-C in a terminal).
    type, words
        What is raised in the caller, and words of the message.
    seconds
        Until the caller knows, at most (on a busy machine).
    """

    name: str
    fault: str
    type: str | None
    words: str
    seconds: float = 20.0
    number: int | None = None
    group: bool = False

    @property
    def stops_well(self) -> bool:
        """Whether the workers have time for a checkpoint."""
        return self.number in (signal.SIGINT, signal.SIGTERM)


IN_WORKERS = [
    Case("a worker is killed", "kill", "WorkerError", "worker 1 of 2 was killed by SIGKILL; out of memory?"),
    Case("one raises, the other ignores SIGTERM", "stubborn", "WorkerError", "worker 1 of 2 failed: KeyError: 'no"),
]  # fmt: skip
TO_CALLER = [
    Case("SIGTERM to the caller", "none", "SystemExit", "143", number=signal.SIGTERM),
    Case("SIGKILL to the caller", "none", None, "", number=signal.SIGKILL),
]
MORE = [
    Case("a worker raises", "raise", "WorkerError", "worker 1 of 2 failed: KeyError: 'no such gene'"),
    Case("a worker leaves with 0", "exit0", "WorkerError", "worker 1 of 2 left early with exit code 0"),
    Case("a worker leaves with 3", "exit3", "WorkerError", "worker 1 of 2 left early with exit code 3"),
    Case(
        "a worker hangs (time-out of 3 s or 10 s)",
        "hang",
        "WorkerError",
        "worker 1 of 2 did not respond: worker 0 waited for it until the time-out",
        seconds=25.0,
    ),
]
MORE_TO_CALLER = [
    Case("SIGINT to the caller", "none", "KeyboardInterrupt", "", number=signal.SIGINT),
    Case("Ctrl-C in a terminal", "none", "KeyboardInterrupt", "", number=signal.SIGINT, group=True),
]


@dataclass
class Caller:
    """A running `failing.py`, its folder for temporary files and the mark in its environment."""

    process: subprocess.Popen
    temporary: Path
    mark: str
    shared_memory: set[str]

    def found(self) -> dict[str, dict[str, Any]]:
        """What it printed, by fault, once it has ended by itself."""
        out, err = self.process.communicate(timeout=400)
        lines = [json.loads(line[6:]) for line in out.splitlines() if line.startswith("FOUND ")]
        assert lines, err[-3000:]
        return {line["fault"]: line for line in lines}

    def assert_nothing_remains(self, seconds: float = 10.0) -> None:
        """No process with the mark is left after so many seconds; no temporary file or shared memory either."""
        start = time.monotonic()
        while left := marked(self.mark):
            assert time.monotonic() - start < seconds, f"processes remain: {left}"
            time.sleep(0.05)
        # torch makes the folder of its compiler's cache, one per user, when that is imported
        assert not [file for file in self.temporary.iterdir() if not file.name.startswith("torchinductor_")]
        assert not abandoned(set(os.listdir("/dev/shm")) - self.shared_memory)


def start(kind: str, folder: Path, faults: list[str]) -> Caller:
    temporary = folder.parent / f"tmp-{uuid.uuid4().hex[:8]}"
    temporary.mkdir()
    mark = uuid.uuid4().hex
    before = set(os.listdir("/dev/shm"))
    process = subprocess.Popen(
        [sys.executable, str(DRIVER), kind, str(folder), *faults],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "TMPDIR": str(temporary), MARK: mark, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    return Caller(process, temporary, mark, before)


def marked(mark: str) -> list[str]:
    """Living processes with the mark in their environment, zombies left out."""
    found, wanted = [], f"{MARK}={mark}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(f"{entry.name} {(entry / 'cmdline').read_bytes()[:200]!r}")
            except OSError:
                continue
    return found


def abandoned(names: set[str]) -> set[str]:
    """Entries of /dev/shm that no living process holds: others on this machine may be at work.

    Compared by inode: a semaphore is mapped under the name that it was first given.
    """
    if not names:
        return set()
    time.sleep(0.5)
    held: set[int] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                lines = [line for line in (entry / "maps").read_text().splitlines() if "/dev/shm/" in line]
                held |= {int(line.split()[4]) for line in lines}
                held |= {fd.stat().st_ino for fd in (entry / "fd").iterdir() if fd.exists()}
    left = set()
    for name in names:
        with contextlib.suppress(OSError):  # gone by now
            if Path("/dev/shm", name).stat().st_ino not in held:
                left.add(name)
    return left


def check(kind: str, case: Case, found: dict[str, Any], folder: Path, seconds: float) -> None:
    assert found["type"] == case.type, found
    assert case.words in found["message"], found["message"]
    assert found["changed"] == {}
    assert seconds < case.seconds
    if case.fault in ("raise", "stubborn"):
        traceback = ", in misbehave\nKeyError: 'no such gene'"
        assert traceback in found["message"], "the original traceback is missing"
    if case.stops_well:
        files = sorted((folder / case.fault / "stopped").rglob("*.pt"))
        assert files, "no checkpoint was written at the stop"
        newest = [file for file in files if file.name != "model.pt"][-1]
        assert torch.load(newest, weights_only=True)["progress"]["total_steps"] >= 3


def stop_caller(kind: str, case: Case, folder: Path) -> None:
    """Start a caller, wait until its workers train, send the signal, look at what happens."""
    caller = start(kind, folder, [case.fault])
    try:
        wait_for([folder / case.fault / f"ready-{rank}" for rank in (0, 1)], caller.process)
        sent = time.time()
        assert case.number is not None
        (os.killpg if case.group else os.kill)(caller.process.pid, case.number)
        if case.number == signal.SIGKILL:
            caller.process.wait(timeout=20)
            caller.assert_nothing_remains(case.seconds)
            return
        found = caller.found()[case.fault]
        check(kind, case, found, folder, found["known"] - sent)
        caller.assert_nothing_remains()
    finally:
        end(caller)


def wait_for(files: list[Path], process: subprocess.Popen, seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not all(file.exists() and file.read_text() for file in files):
        assert process.poll() is None, process.communicate()[1][-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def end(caller: Caller) -> None:
    if caller.process.poll() is None:
        os.killpg(caller.process.pid, signal.SIGKILL)
    caller.process.communicate()


@pytest.fixture(scope="module")
def in_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Caller, dict[str, Any], Path]]:
    """One caller whose calls fail one after the other, each in another way."""
    folder = tmp_path_factory.mktemp("engine")
    caller = start("engine", folder, [case.fault for case in IN_WORKERS])
    try:
        yield caller, caller.found(), folder
    finally:
        end(caller)


@pytest.mark.parametrize("case", IN_WORKERS, ids=lambda case: case.fault)
def test_a_failing_worker(case: Case, in_workers: tuple[Caller, dict[str, Any], Path]) -> None:
    caller, found, folder = in_workers
    seconds = found[case.fault]["seconds"]
    check("engine", case, found[case.fault], folder, seconds)
    caller.assert_nothing_remains()


@pytest.mark.parametrize("case", TO_CALLER, ids=lambda case: case.name)
def test_a_signal_to_the_caller(case: Case, tmp_path: Path) -> None:
    stop_caller("engine", case, tmp_path)


@pytest.fixture
def screens(tmp_path: Path, small_screen_adata: AnnData) -> Path:
    folder = tmp_path / "screens"
    folder.mkdir()
    small_screen_adata.write_h5ad(folder / "small.h5ad")
    return folder


def fail(kind: str, case: Case, folder: Path) -> None:
    """Let one call of a caller fail, and look at what happens."""
    caller = start(kind, folder, [case.fault])
    try:
        found = caller.found()[case.fault]
        check(kind, case, found, folder, found["seconds"])
        caller.assert_nothing_remains()
    finally:
        end(caller)


@pytest.mark.long
@pytest.mark.parametrize("case", [*IN_WORKERS, *MORE], ids=lambda case: case.fault)
def test_a_failing_worker_of_a_training_job(case: Case, screens: Path) -> None:
    fail("gears", case, screens)


@pytest.mark.long
@pytest.mark.parametrize("case", [*TO_CALLER, *MORE_TO_CALLER], ids=lambda case: case.name)
def test_a_signal_to_the_caller_of_a_training_job(case: Case, screens: Path) -> None:
    stop_caller("gears", case, screens)


@pytest.mark.long
@pytest.mark.parametrize("case", MORE, ids=lambda case: case.fault)
def test_a_failing_worker_more(case: Case, tmp_path: Path) -> None:
    fail("engine", case, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("case", MORE_TO_CALLER, ids=lambda case: case.name)
def test_a_signal_to_the_caller_more(case: Case, tmp_path: Path) -> None:
    stop_caller("engine", case, tmp_path)
