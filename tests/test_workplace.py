"""What killed writers leave behind: removed by the next writer of the same target, never under a living one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gears.files import atomic
from gears.files.atomic import clean_leftovers, new_folder
from gears.files.formats import write_json, write_text

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells whose lock it was")
WRITERS: dict[str, Callable[[Path], object]] = {
    "file": lambda place: write_text(place, "new"),
    "folder": lambda place: _folder(place),
}
WAITING = """
import sys, time
from pathlib import Path
from gears.files.atomic import new_folder, write_atomically

def write(place):
    (place / "half" if place.is_dir() else place).write_text("half")
    print("writing", flush=True)
    sys.stdin.read()

if sys.argv[1] == "file":
    write_atomically(Path(sys.argv[2]), write)
else:
    with new_folder(sys.argv[2]) as place:
        write(place)
"""


def _folder(place: Path) -> None:
    with new_folder(place) as folder:
        (folder / "new").write_text("new")


def hidden(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


@pytest.fixture
def begin() -> Iterator[Callable[[str, Path], subprocess.Popen[str]]]:
    """Processes that are within a write until their input ends."""
    started = []

    def start(kind: str, place: Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", WAITING, kind, str(place)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@linux
@pytest.mark.parametrize("kind", WRITERS)
def test_the_next_writer_removes_what_a_killed_one_left(
    kind: str, tmp_path: Path, begin: Callable[[str, Path], subprocess.Popen[str]]
) -> None:
    killed, living, other = (begin(kind, tmp_path / name) for name in ("it", "it", "it-too"))
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert len(hidden(tmp_path)) == 3
    WRITERS[kind](tmp_path / "it")
    assert len(hidden(tmp_path)) == 2, "those of the living stay"
    for process in (living, other):
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["it", "it-too"]
    if kind == "file":
        assert (tmp_path / "it").read_text() == "half", "the living one came last"


@linux
def test_a_writer_of_another_machine_is_given_a_day(tmp_path: Path) -> None:
    """Its lock may be unknown here, so only its age counts; a change within it makes it young."""
    place = tmp_path / ".it-abcdefgh.tmp"
    (place / "it").mkdir(parents=True)
    (place / f"{atomic.LOCK}another-system").write_text("")
    assert clean_leftovers(tmp_path, "it") == []
    two_days_ago = time.time() - 2 * atomic.SECONDS_OF_REST
    for path in (*place.iterdir(), place):
        os.utime(path, (two_days_ago, two_days_ago))
    (place / "it" / "young").write_text("")
    assert clean_leftovers(tmp_path, "it") == []
    for path in (place / "it" / "young", place / "it"):
        os.utime(path, (two_days_ago, two_days_ago))
    assert clean_leftovers(tmp_path, "it") == [place]


def test_a_system_without_locks_goes_by_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic, "fcntl", None)
    left = tmp_path / ".it-abcdefgh.tmp"
    left.mkdir()
    (left / "it").write_text("half")
    write_text(tmp_path / "it", "new")
    assert hidden(tmp_path) == [left.name]
    old = time.time() - 2 * atomic.SECONDS_OF_REST
    for path in (left / "it", left):
        os.utime(path, (old, old))
    write_text(tmp_path / "it", "new")
    assert hidden(tmp_path) == []


def test_a_lock_that_is_held_counts_more_than_age(tmp_path: Path) -> None:
    with new_folder(tmp_path / "it") as folder:
        old = time.time() - 2 * atomic.SECONDS_OF_REST
        for path in (*folder.parent.iterdir(), folder.parent):
            os.utime(path, (old, old))
        assert clean_leftovers(tmp_path, "it") == []
    assert (tmp_path / "it").is_dir()


def test_leftovers_of_other_targets_stay(tmp_path: Path) -> None:
    """Targets whose names begin alike; files of such names; what a user called so."""
    names = [".toy-abcdefgh.tmp", ".toy-b-abcdefgh.tmp", ".toy.json-abcdefgh.tmp", ".toyb-abcdefgh.tmp"]
    for name in [*names, ".toy-short.tmp", "toy"]:
        (tmp_path / name).mkdir()
    (tmp_path / ".toy-ijklmnop.tmp").write_text("a file is nobody's workplace")
    assert [path.name for path in clean_leftovers(tmp_path, "toy", alone=True)] == [".toy-abcdefgh.tmp"]
    assert sorted(path.name for path in clean_leftovers(tmp_path, alone=True)) == names[1:]
    assert hidden(tmp_path) == [".toy-ijklmnop.tmp", ".toy-short.tmp"]
    assert clean_leftovers(tmp_path / "absent", "toy") == []


def test_what_was_moved_aside_for_a_folder_that_never_came_is_put_back(tmp_path: Path) -> None:
    aside = tmp_path / ".toy-hgfedcba.tmp" / "toy.old"
    aside.mkdir(parents=True)
    (aside / "kept").write_text("x")
    clean_leftovers(tmp_path, "toy", alone=True)
    assert [path.name for path in tmp_path.rglob("*")] == ["toy", "kept"]


def test_an_error_between_two_renames_puts_the_old_folder_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _folder(tmp_path / "toy")
    monkeypatch.setattr("gears.files.atomic._exchange", lambda *_: False)
    rename = os.rename

    def fail(old: Path, new: Path) -> None:
        if old.name == "toy" and new == tmp_path / "toy":
            raise KeyboardInterrupt
        rename(old, new)

    monkeypatch.setattr("gears.files.atomic.os.rename", fail)
    with pytest.raises(KeyboardInterrupt):
        _folder(tmp_path / "toy")
    assert [path.name for path in tmp_path.rglob("*")] == ["toy", "new"]


def test_many_writers_of_one_target_at_once(tmp_path: Path) -> None:
    """Threads here and other processes, which clean while the others write: nobody fails, nothing is left."""
    script = "import sys; from gears.files.formats import write_json\nfor i in range(40): write_json(sys.argv[1], i)"
    command = [sys.executable, "-c", script, str(tmp_path / "it.json")]
    others = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(2)]
    failed: list[BaseException] = []

    def write() -> None:
        try:
            for number in range(40):
                write_json(tmp_path / "it.json", number)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [process.communicate(timeout=60)[1] for process in others] == [b"", b""]
    assert not failed
    assert [path.name for path in tmp_path.iterdir()] == ["it.json"]


STAGES = {
    "before its lock": "workplace._hold = die",
    "with a lock not held": "workplace.fcntl.flock = die",
    "while it removes what was there": "shutil.rmtree = die",
    "before its lock goes": "Path.unlink = die",
}
DYING = """
import os, shutil, signal, sys
from pathlib import Path
from gears.files import atomic as workplace
from gears.files.atomic import new_folder

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

for number in range(2):
    with new_folder(sys.argv[1]) as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "file").write_text(str(number))
        if number:
            exec(sys.argv[2])  # of the second write
if "_hold" in sys.argv[2] or "flock" in sys.argv[2]:
    with new_folder(sys.argv[1]):
        pass
"""


@linux
@pytest.mark.parametrize("stage", STAGES)
def test_a_kill_at_any_stage_leaves_nothing_for_long(stage: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", DYING, str(tmp_path / "it"), STAGES[stage]], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(hidden(tmp_path)) == 1
    assert (tmp_path / "it" / "inner" / "file").read_text() == "1"
    _folder(tmp_path / "it")
    assert [path.name for path in tmp_path.iterdir()] == ["it"]


def test_a_writer_whose_workplace_is_swept_makes_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cleaner comes between the folder and its lock, and then between the lock and its being held."""
    hold, times = atomic._hold, []

    def swept(folder: Path) -> int | None:
        times.append(folder)
        if len(times) == 1:
            assert clean_leftovers(tmp_path, "it") == [folder]
        return hold(folder)

    monkeypatch.setattr(atomic, "_hold", swept)
    write_text(tmp_path / "it", "whole")
    assert len(times) == 2
    if atomic.fcntl is not None and atomic.this_system():
        flock, left = atomic.fcntl.flock, [1]

        def late(held: int, how: int) -> None:
            if left and how == atomic.fcntl.LOCK_EX:
                left.pop()
                assert clean_leftovers(tmp_path, "it") == [times[-1]]
            flock(held, how)

        monkeypatch.setattr(atomic.fcntl, "flock", late)
        write_text(tmp_path / "it", "whole again")
        assert len(times) == 4
        assert (tmp_path / "it").read_text() == "whole again"
    assert [path.name for path in tmp_path.iterdir()] == ["it"]
