"""Where the numbers of a run go, and that one failing logger spoils nothing."""

import copy
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gears import GEARS
from gears.training._loggers import LOGGERS, LoggerSetup, RunLogger, RunLoggers, check_loggers, flat, write_history
from gears.training.options import TrainOptions

RECORDS = [
    {"epoch": 1, "train_loss": 0.5, "lr": 0.1, "seconds": {"total": 2.0, "data": 0.5}},
    {"epoch": 2, "train_loss": 0.25, "val_mse": 0.75, "lr": 0.1, "seconds": {"total": 1.0, "data": 0.25}},
]


@pytest.fixture
def recorder() -> Iterator[list]:
    """A logger named "list" for one test."""
    calls: list = []

    @LOGGERS.register("list")
    class Recorder(RunLogger):
        def __init__(self, setup: LoggerSetup) -> None:
            if setup.name == "cannot begin":
                msg = "no"
                raise RuntimeError(msg)
            calls.append(("made", setup.logged))

        def log(self, records) -> None:
            if any(record.get("train_loss") == -1 for record in records):
                msg = "the disk is full"
                raise OSError(msg)
            calls.append(("log", [record["epoch"] for record in records]))

        def finish(self, failed: bool) -> None:
            calls.append(("finish", failed))

    yield calls
    del LOGGERS["list"]


def test_tracking_in_the_published_way(small_data, tmp_path, offline, monkeypatch):
    pytest.importorskip("wandb", reason="the package wandb is not installed")
    monkeypatch.chdir(tmp_path)
    model = GEARS(copy.copy(small_data), device="cpu", weight_bias_track=True, proj_name="mine", exp_name="tracked")
    model.model_initialize(hidden_size=8)
    options = {"objective": "moments", "steps": 2, "evaluate_test": False, "verbose": False}
    model.train(**options)
    (run,) = (tmp_path / "wandb").glob("offline-run-*")
    (stream,) = run.glob("*.wandb")
    assert b"tracked" in stream.read_bytes()
    assert b"mine" in stream.read_bytes()
    with pytest.raises(FloatingPointError):
        model.train(**options | {"objective": "cells", "batch_size": 24, "lr": 1e300, "dtype": "float64"})
    assert len(list((tmp_path / "wandb").glob("offline-run-*"))) == 2


def test_records_become_columns(tmp_path: Path) -> None:
    write_history(tmp_path, RECORDS)
    assert (tmp_path / "metrics.csv").read_text().splitlines() == [
        "epoch,train_loss,lr,seconds/total,seconds/data,val_mse",
        "1,0.5,0.1,2.0,0.5,",
        "2,0.25,0.1,1.0,0.25,0.75",
    ]
    assert [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == RECORDS
    assert flat({"epoch": 1, "note": "x", "seconds": {"data": 1}}) == {"epoch": 1, "seconds/data": 1.0}


def test_each_record_once_and_an_end_also_on_failure(recorder: list) -> None:
    def failing_run() -> None:
        with RunLoggers(["list"], LoggerSetup(logged=1)) as loggers:
            loggers.log(RECORDS)
            loggers.log([*RECORDS, {"epoch": 3}, {"epoch": 4}])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing_run()
    assert recorder == [("made", 1), ("log", [2]), ("log", [3, 4]), ("finish", True)]
    recorder.clear()
    with RunLoggers(["list"], LoggerSetup(), active=False) as loggers:
        loggers.log(RECORDS)
    assert recorder == [], "other workers log nothing"


def test_a_logger_that_fails_on_the_way_is_left_out_and_one_that_cannot_begin_an_error(recorder: list, caplog) -> None:
    with caplog.at_level(logging.WARNING, logger="gears"), RunLoggers(["list"], LoggerSetup()) as loggers:
        loggers.log([{"epoch": 1, "train_loss": -1}])
        loggers.log([{"epoch": 1}, {"epoch": 2}])
    assert "the logger list failed and is no longer used: the disk is full" in caplog.text
    assert recorder == [("made", 0)]
    with pytest.raises(RuntimeError, match="no"), RunLoggers(["list"], LoggerSetup(name="cannot begin")):
        pass


def test_loggers_are_checked_before_anything_starts(monkeypatch) -> None:
    with pytest.raises(ValueError, match="unknown logger 'tensorbord'; did you mean 'tensorboard'"):
        TrainOptions(loggers=["tensorbord"], save_path="m")
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs the package wandb; run: pip install 'gears-perturb\[wandb\]'"):
        check_loggers(["wandb"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    with pytest.raises(ValueError, match="give save_path"):
        TrainOptions(loggers=("tensorboard",))


def test_wandb_without_a_key_is_refused_before_anything_is_read(monkeypatch, tmp_path) -> None:
    pytest.importorskip("wandb", reason="the package wandb is not installed")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with pytest.raises(ValueError, match=r"needs an API key.*run `wandb login`, or set WANDB_MODE=offline"):
        TrainOptions(loggers="wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert TrainOptions(loggers="wandb").loggers == ("wandb",)
