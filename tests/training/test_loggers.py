"""Where the numbers of a run go, and that one failing logger spoils nothing."""

from __future__ import annotations

import csv
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from anndata import AnnData

from gears import GEARS, PertData, train_multi_gpu
from gears.training._loggers import (
    LOGGERS,
    LoggerSetup,
    RunLoggers,
    check_loggers,
    flat,
    register,
    write_history,
)
from gears.training.options import TrainOptions

RECORDS = [
    {"epoch": 1, "train_loss": 0.5, "lr": 0.1, "seconds": {"total": 2.0, "data": 0.5}},
    {"epoch": 2, "train_loss": 0.25, "val_mse": 0.75, "lr": 0.1, "seconds": {"total": 1.0, "data": 0.25}},
]


def read_events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Scalars of TensorBoard's event files: name -> (step, value)."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]
    }


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Weights & Biases without network, keeping everything below a temporary folder."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("CONFIG_DIR", "CACHE_DIR", "DATA_DIR"):
        monkeypatch.setenv(f"WANDB_{name}", str(tmp_path / "wandb-own"))


@pytest.fixture
def screens(tmp_path: Path, small_screen_adata: AnnData) -> Path:
    folder = tmp_path / "screens"
    folder.mkdir()
    small_screen_adata.write_h5ad(folder / "small.h5ad")
    return folder


@pytest.fixture
def recorder() -> Iterator[list]:
    """A logger named "list" for one test."""
    calls: list = []

    @register("list")
    class Recorder:
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


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_workers_leave_one_stream_in_every_place(
    screens: Path, tmp_path: Path, offline: None, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "models" / "run"
    result = train_multi_gpu(
        screens,
        "small",
        {"split": "simulation", "seed": 1},
        {
            "save_path": path, "epochs": 3, "eval_every": 2, "objective": "cells", "batch_size": 12,
            "model_config": {"hidden_size": 8}, "loggers": ["tensorboard", "wandb"], "project": "screens",
            "name": "first", "profile": True,
        },
        n_gpus=2,
        device="cpu",
        data_config={"default_pert_graph": False},
    )  # fmt: skip
    assert [record["epoch"] for record in result.history] == [1, 2, 3]
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert lines == result.history
    with (path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["1", "2", "3"]
    assert [row["val_mse"] == "" for row in rows] == [True, False, False], "the first was not evaluated"
    assert float(rows[2]["train_loss"]) == result.history[2]["train_loss"]

    events = read_events(path / "tensorboard")
    assert len(list((path / "tensorboard").iterdir())) == 1, "one worker writes events"
    assert [step for step, _ in events["train_loss"]] == [1, 2, 3]
    for step, value in events["val_mse"]:
        assert value == pytest.approx(result.history[step - 1]["val_mse"], rel=1e-6)
    assert [step for step, _ in events["val_mse"]] == [2, 3]

    (run,) = (path.parent / "wandb").glob("offline-run-*")
    (stream,) = run.glob("*.wandb")
    content = stream.read_bytes()
    for word in (b"val_pearson_delta", b"train_loss", b"screens", b"first"):
        assert word in content

    trace = json.loads((path / "trace.json").read_text())
    assert len(trace["traceEvents"]) > 100
    assert not [name for name in path.parent.iterdir() if name.name.startswith(".")]

    seconds = result.history[1]["seconds"]
    parts = [seconds[name] for name in ("data", "compute", "communication", "evaluation")]
    assert all(part >= 0 for part in parts)
    assert seconds["communication"] > 0
    assert sum(parts) == pytest.approx(seconds["total"], rel=1e-6)
    assert seconds["cells_per_second"] > 0
    shown = capfd.readouterr()
    assert shown.err.count("epoch   2/3") == 1, "only rank 0 reports"


def test_tracking_in_the_published_way(
    screens: Path, tmp_path: Path, offline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="the package wandb is not installed")
    monkeypatch.chdir(tmp_path)
    pert_data = PertData(screens, default_pert_graph=False)
    pert_data.load("small")
    pert_data.prepare_split(split="simulation", seed=1)
    model = GEARS(pert_data, device="cpu", weight_bias_track=True, proj_name="mine", exp_name="tracked")
    model.model_initialize(hidden_size=8)
    options = {"objective": "moments", "epochs": 1, "evaluate_test": False, "verbose": False}
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


def test_a_logger_that_fails_on_the_way_is_left_out(recorder: list, caplog) -> None:
    with caplog.at_level(logging.WARNING, logger="gears"), RunLoggers(["list"], LoggerSetup()) as loggers:
        loggers.log([{"epoch": 1, "train_loss": -1}])
        loggers.log([{"epoch": 1}, {"epoch": 2}])
    assert "the logger list failed and is no longer used: the disk is full" in caplog.text
    assert recorder == [("made", 0)]


def test_a_logger_that_cannot_begin_is_an_error(recorder: list) -> None:
    with pytest.raises(RuntimeError, match="no"), RunLoggers(["list"], LoggerSetup(name="cannot begin")):
        pass


def test_loggers_are_checked_before_anything_starts(monkeypatch) -> None:
    with pytest.raises(ValueError, match="unknown logger 'tensorbord'; did you mean 'tensorboard'"):
        TrainOptions(loggers=["tensorbord"], save_path="m")
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        ValueError, match=r"needs the package wandb; run: pip install 'gears-perturb\[wandb\]'"
    ):
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
