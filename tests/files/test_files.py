"""Writing: whole or not at all, and nothing that is read can run code."""

import errno
import fcntl
import os
import stat
from pathlib import Path

import numpy as np
import pytest

from gears.files._atomic import locked, new_folder, only_writer, write_atomically
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
