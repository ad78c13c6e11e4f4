"""Writing: whole or not at all, and nothing that is read can run code."""

import errno
import fcntl
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gears.files._atomic import clean_leftovers, locked, new_folder, only_writer, write_atomically
from gears.files._cache import cached_arrays
from gears.files.formats import content_hash, read_json, write_json, write_text


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = write_text(tmp_path / "a" / "file.txt", "old")

    def fail(temporary: Path) -> None:
        temporary.write_text("half of the new")
        msg = "disk full"
        raise OSError(msg)

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, fail)
    assert path.read_text() == "old"
    assert [entry.name for entry in path.parent.iterdir()] == ["file.txt"]


def test_files_have_the_usual_permissions(tmp_path):
    plain = tmp_path / "plain"
    plain.write_text("")
    written = write_text(tmp_path / "written", "x")
    assert stat.S_IMODE(os.stat(written).st_mode) == stat.S_IMODE(os.stat(plain).st_mode)


def test_a_failed_folder_leaves_the_old_one(tmp_path):
    target = tmp_path / "screen"
    with new_folder(target) as temporary:
        (temporary / "first").write_text("1")
    with pytest.raises(RuntimeError, match="half-way"), new_folder(target) as temporary:  # noqa: PT012
        (temporary / "second").write_text("2")
        msg = "half-way"
        raise RuntimeError(msg)
    assert [entry.name for entry in target.iterdir()] == ["first"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["screen"]


def test_json_round_trip_with_numpy(tmp_path):
    value = {"a": np.int64(3), "b": np.array([1.5, 2.0]), "c": Path("x"), "d": "π"}
    path = write_json(tmp_path / "value.json", value)
    assert read_json(path) == {"a": 3, "b": [1.5, 2.0], "c": "x", "d": "π"}
    with pytest.raises(TypeError, match="cannot write object"):
        write_json(path, object())
    assert read_json(path)["a"] == 3


def test_hash_sees_values_types_shapes_and_order():
    base = np.arange(6)
    contents = [(base,), (base.astype(np.int32),), (base.reshape(2, 3),), (base, "x"), ("x", base)]
    assert len({content_hash(*parts) for parts in [*contents, (["a", "b"],), ("a", "b"), ({"a": 1},)]}) == 8
    assert content_hash({"a": 1, "b": 2}) == content_hash({"b": 2, "a": 1})
    assert content_hash(np.asfortranarray(base.reshape(2, 3))) == content_hash(base.reshape(2, 3))
    assert content_hash(b"ab") == content_hash(b"ab")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_disk_without_locks_is_reported_and_used(tmp_path, monkeypatch, caplog, number):
    def no_locks(*_: object) -> None:
        raise OSError(number, "not here")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with locked(tmp_path / "a.lock"), only_writer(tmp_path / "model", "in use"):
        write_text(tmp_path / "a.txt", "a")
    assert f"the disk of {tmp_path} has no file locks" in caplog.text
    assert len(caplog.records) == 1
    monkeypatch.setattr(fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "broken")))
    with pytest.raises(OSError, match="broken"), locked(tmp_path / "b.lock"):
        pass


DAY = 24 * 3600.0
WRITERS: dict[str, Callable[[Path], object]] = {
    "file": lambda place: write_text(place, "new"),
    "folder": lambda place: _folder(place),
}
WAITING = """
import sys, time
from pathlib import Path
from gears.files._atomic import new_folder, write_atomically

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
def begin():
    """Processes that are within a write until their input ends."""
    started = []

    def start(kind: str, place: Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", WAITING, kind, str(place)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        assert process.stdout.readline() == "writing\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def aged(place: Path, seconds: float) -> None:
    """Let everything in a folder have changed so long ago."""
    then = time.time() - seconds
    for path in (*place.rglob("*"), place):
        os.utime(path, (then, then))


@pytest.mark.parametrize("kind", WRITERS)
def test_what_a_killed_writer_left_goes_after_a_day(kind, tmp_path, begin):
    killed = begin(kind, tmp_path / "it")
    killed.kill()
    killed.wait()
    (left,) = (tmp_path / name for name in hidden(tmp_path))
    living, other = (begin(kind, tmp_path / name) for name in ("it", "it-too"))
    aged(left, DAY - 60)
    WRITERS[kind](tmp_path / "it")
    assert len(hidden(tmp_path)) == 3, "it is younger than a day"
    aged(left, DAY + 60)
    WRITERS[kind](tmp_path / "it")
    assert len(hidden(tmp_path)) == 2, "those of the living stay"
    for process in (living, other):
        process.communicate(timeout=600)
        assert process.returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["it", "it-too"]
    if kind == "file":
        assert (tmp_path / "it").read_text() == "half", "the living one came last"


def test_who_holds_the_file_lock_removes_at_once(tmp_path):
    def build() -> dict[str, np.ndarray]:
        return {"a": np.arange(3)}

    cached_arrays(tmp_path, "graph", {}, build)
    (made,) = tmp_path.glob("*.npz")
    made.rename(tmp_path / "aside")
    for name in (made.name, "other.npz"):
        (tmp_path / f".{name}-abcdefgh.tmp").mkdir()
    cached_arrays(tmp_path, "graph", {}, build)
    assert hidden(tmp_path) == [".other.npz-abcdefgh.tmp"]


def test_leftovers_of_other_targets_stay(tmp_path):
    """Targets whose names begin alike; files of such names; what a user called so."""
    names = [".toy-abcdefgh.tmp", ".toy-b-abcdefgh.tmp", ".toy.json-abcdefgh.tmp", ".toyb-abcdefgh.tmp"]
    for name in [*names, ".toy-short.tmp", "toy"]:
        (tmp_path / name).mkdir()
    (tmp_path / ".toy-ijklmnop.tmp").write_text("a file is nobody's workplace")
    assert [path.name for path in clean_leftovers(tmp_path, "toy", alone=True)] == [".toy-abcdefgh.tmp"]
    assert sorted(path.name for path in clean_leftovers(tmp_path, alone=True)) == names[1:]
    assert hidden(tmp_path) == [".toy-ijklmnop.tmp", ".toy-short.tmp"]
    assert clean_leftovers(tmp_path / "absent", "toy") == []


def test_an_error_between_two_renames_puts_the_old_folder_back(tmp_path, monkeypatch):
    _folder(tmp_path / "toy")
    monkeypatch.setattr("gears.files._atomic._exchange", lambda *_: False)
    rename = os.rename

    def fail(old: Path, new: Path) -> None:
        if old.name == "toy" and new == tmp_path / "toy":
            raise KeyboardInterrupt
        rename(old, new)

    monkeypatch.setattr("gears.files._atomic.os.rename", fail)
    with pytest.raises(KeyboardInterrupt):
        _folder(tmp_path / "toy")
    assert [path.name for path in tmp_path.rglob("*")] == ["toy", "new"]


def test_many_writers_of_one_target_at_once(tmp_path):
    """Threads here and other processes, which clean while the others write: nobody fails, nothing is left."""
    script = "import sys; from gears.files.formats import write_json\nfor i in range(20): write_json(sys.argv[1], i)"
    command = [sys.executable, "-c", script, str(tmp_path / "it.json")]
    others = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(2)]
    failed: list[BaseException] = []

    def write() -> None:
        try:
            for number in range(20):
                write_json(tmp_path / "it.json", number)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [process.communicate(timeout=600)[1] for process in others] == [b"", b""]
    assert not failed
    assert [path.name for path in tmp_path.iterdir()] == ["it.json"]
