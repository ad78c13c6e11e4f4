"""The main job: one call trains with several workers, and their number does not show in the result."""

import csv
import json
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from driving import gears_of, start_by_fork

from gears import GEARS, PertData, train_many, train_multi_gpu
from gears.jobs._job import TrainingJob
from gears.train_distributed import cleanup_ddp, setup_ddp, train_ddp_worker

SPLIT = {"split": "simulation", "seed": 1}
GLOBAL_BATCH = 24


def arguments(save_path: Path, **more: object) -> dict[str, object]:
    return {
        "save_path": str(save_path), "model_config": {"hidden_size": 8}, "epochs": 3, "eval_every": 2,
        "objective": "cells", "prior": None, "dtype": "float64", "check_replicas": True, "verbose": False, **more,
    }  # fmt: skip


DATA = {"default_pert_graph": False}


def weights(path: Path) -> dict[str, torch.Tensor]:
    return torch.load(path / "model.pt", weights_only=True)


@pytest.mark.timeout(600)
def test_two_workers_train_the_model_of_one_and_leave_one_stream_in_every_place(
    screens: Path, tmp_path: Path, offline: None, quick_workers: None, monkeypatch, caplog
) -> None:
    """The main job from screen to prediction; more options and both objectives: tests/training/test_exactness.py."""
    path, listing = tmp_path / "models" / "run", sorted(screens.iterdir())
    tracking = {
        "loggers": ["tensorboard", "wandb"], "project": "screens", "name": "first", "profile": True,
    }  # fmt: skip
    args = arguments(path, batch_size=GLOBAL_BATCH // 2, **tracking)
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "h"}.items():
        monkeypatch.setenv(name, value)  # what an earlier job left
    result = train_multi_gpu(screens, "small", SPLIT, args, n_gpus=2, device="cpu", data_config=DATA)
    assert "RANK=0 and WORLD_SIZE=1 are set, but no launcher started this process" in caplog.text
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name)
    assert (result.world_size, result.devices) == (2, ("cpu", "cpu"))

    # the model of train() in this process
    pert_data = PertData(screens, **DATA)
    pert_data.load("small")
    pert_data.prepare_split(**SPLIT)
    pert_data.get_dataloader(GLOBAL_BATCH)
    model = gears_of(pert_data)
    untrained = {key: value.clone() for key, value in model.model.state_dict().items()}
    options = {key: args[key] for key in ("epochs", "eval_every", "objective", "prior", "dtype")}
    alone = model.train(**options, verbose=False)
    state = weights(path)
    assert not any(key.startswith(("module.", "_orig_mod.")) for key in state)
    for key, value in model.best_model.state_dict().items():
        assert (value.double() - state[key].double()).abs().max() < 1e-6, key
    assert any((untrained[key] - state[key]).abs().max() > 1e-3 for key in untrained)
    for left, right in zip(alone.history, result.history, strict=True):
        assert left.keys() == right.keys()
        for name in left.keys() - {"seconds"}:
            assert left[name] == pytest.approx(right[name], abs=1e-7, nan_ok=True), name
    assert result.best_epoch == alone.best_epoch
    assert result.test_metrics == pytest.approx(alone.test_metrics, abs=1e-6)

    # files, records and events, by one worker
    assert {entry.name for entry in path.iterdir()} == {
        "README.md", "checkpoints", "config.json", "genes.json", "graphs.npz", "manifest.json", "metrics.csv",
        "metrics.jsonl", "model.pt", "split.json", "statistics.npz", "tensorboard", "trace.json",
    }  # fmt: skip
    assert not [entry for entry in path.parent.iterdir() if entry.name.startswith(".")]
    assert set(listing) < set(screens.iterdir())
    assert [record["epoch"] for record in result.history] == [1, 2, 3]
    assert [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()] == result.history
    with (path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["val_mse"] == "" for row in rows] == [True, False, False], "the first was not evaluated"
    assert float(rows[2]["train_loss"]) == result.history[2]["train_loss"]
    assert len(list((path / "tensorboard").iterdir())) == 1, "one worker writes events"
    events = read_events(path / "tensorboard")
    assert [step for step, _ in events["train_loss"]] == [1, 2, 3]
    assert [step for step, _ in events["val_mse"]] == [2, 3]
    for step, value in events["val_mse"]:
        assert value == pytest.approx(result.history[step - 1]["val_mse"], rel=1e-6)
    (run,) = (path.parent / "wandb").glob("offline-run-*")
    (stream,) = run.glob("*.wandb")
    content = stream.read_bytes()
    assert all(word in content for word in (b"val_pearson_delta", b"train_loss", b"screens", b"first"))
    assert len(json.loads((path / "trace.json").read_text())["traceEvents"]) > 100
    seconds = result.history[1]["seconds"]
    parts = [seconds[name] for name in ("data", "compute", "communication", "evaluation")]
    assert all(part >= 0 for part in parts)
    assert seconds["communication"] > 0
    assert sum(parts) == pytest.approx(seconds["total"], rel=1e-6)
    assert seconds["cells_per_second"] > 0

    # predictions
    assert {"gears", "no_change", "train_mean", "matching_mean", "additive"} <= set(result.table["method"])
    loaded = GEARS.from_pretrained(path, device="cpu")
    assert loaded.pert_data is None
    predicted = loaded.predict([name for name in result.table["condition"].unique() if name != "*"])
    assert np.isfinite(predicted.expression_UG).all()
    assert isinstance(predicted.to_frame(), pd.DataFrame)


def read_events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Scalars of TensorBoard's event files: name -> (step, value)."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    tags = events.Tags()["scalars"]
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in tags}


def test_a_missing_folder_or_screen_is_named_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        train_multi_gpu(tmp_path / "typo", "small", SPLIT, {"save_path": str(tmp_path / "m")}, device="cpu")
    assert not (tmp_path / "typo").exists()
    with pytest.raises(FileNotFoundError, match=r"none\.h5ad"):
        train_multi_gpu(tmp_path, "none", SPLIT, {"save_path": str(tmp_path / "m")}, device="cpu")


def test_batch_larger_than_the_data_is_refused_before_workers_start(screens: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"training cells"):
        train_multi_gpu(
            screens, "small", SPLIT, arguments(tmp_path / "m", batch_size=5000), n_gpus=2, device="cpu",
            data_config=DATA,
        )  # fmt: skip
    assert not (tmp_path / "m").exists()


def test_more_workers_than_conditions_are_refused_before_workers_start(screens: Path) -> None:
    job = TrainingJob.check(screens, "small", SPLIT, {"save_path": "m", "prior": None}, DATA)
    n_conditions = len(job.load().split.conditions("train"))
    with pytest.raises(ValueError, match=rf"{n_conditions + 1} workers, but training has {n_conditions} cond"):
        job.prepare(n_conditions + 1)
    job.prepare(n_conditions)


@pytest.mark.parametrize("train", [train_multi_gpu, train_many])
def test_far_more_processes_than_cores_are_refused_before_anything_is_read(train, tmp_path: Path) -> None:
    n = 8 * os.cpu_count() + 1
    arguments: dict[str, Any] = {"pert_data_path": tmp_path, "dataset_name": "none", "args": {"save_path": "m"}}
    if train is train_many:
        arguments = {"configs": [arguments], "n_at_once": n}
    else:
        arguments |= {"split_config": SPLIT, "n_gpus": n}
    with pytest.raises(ValueError, match=rf"{n} CPU processes .*at most {n - 1} are started"):
        train(**arguments, device="cpu")
    assert not list(tmp_path.iterdir())


def test_worker_function_alone_runs_in_a_group_of_one(screens: Path, tmp_path: Path, meeting_point: None) -> None:
    """A user's own spawn: addresses in the environment, no launcher."""
    args = arguments(tmp_path / "m", batch_size=GLOBAL_BATCH, epochs=1, data_config=DATA)
    level = logging.getLogger("gears").level
    outcome = train_ddp_worker(0, 1, str(screens), "small", SPLIT, args)
    assert len(outcome["history"]) == 1
    assert not torch.distributed.is_initialized()
    assert logging.getLogger("gears").level == level, "the caller's logger stays as it was"


def test_options_of_a_group_that_runs_are_reported(screens, tmp_path, meeting_point, caplog):
    setup_ddp(0, 1, device="cpu")
    try:
        args = arguments(tmp_path / "m", batch_size=GLOBAL_BATCH, epochs=1)
        train_multi_gpu(screens, "small", SPLIT, args, data_config=DATA, timeout=5, backend="gloo")
    finally:
        cleanup_ddp()
    lines = [record.getMessage() for record in caplog.records if "has no effect: the process" in record.getMessage()]
    assert [line.partition("=")[0] for line in lines] == ["backend", "timeout"]


def test_dictionary_annotation_travels_as_a_file(screens, tmp_path, small_screen_adata):
    genes = small_screen_adata.var["gene_name"].tolist()
    go = {gene: {f"T{index % 7}", f"T{index % 5}"} for index, gene in enumerate(genes)}
    job = TrainingJob.check(screens, "small", SPLIT, {"save_path": str(tmp_path / "m")}, {"gene2go": go, **DATA})
    wanted = job.load().annotation.content_hash
    _, job = job.prepare(1)
    sent = job.worker_args()["data_config"]["gene2go"]
    assert isinstance(sent, str)
    again = TrainingJob.check(screens, "small", SPLIT, job.worker_args())
    assert again.load().annotation.content_hash == wanted


def guide_worker(rank: int, world_size: int, screens: str, save_path: str) -> None:
    """A worker as users write it, with a process group and a DDP wrapper of its own."""
    from torch.nn.parallel import DistributedDataParallel as DDP

    from gears.train_distributed import cleanup_ddp, setup_ddp

    setup_ddp(rank, world_size)
    pert_data = PertData(screens, **DATA)
    pert_data.load(data_name="small")
    pert_data.prepare_split(split="simulation", seed=1)
    pert_data.get_dataloader_distributed(
        batch_size=12, test_batch_size=12, world_size=world_size, rank=rank, num_workers=0
    )
    gears_model = GEARS(pert_data, device="cpu")
    gears_model.model_initialize(hidden_size=8)
    gears_model.model = DDP(gears_model.model)
    assert (gears_model.is_distributed, gears_model.rank, gears_model.world_size) == (True, rank, world_size)
    gears_model.train(epochs=1, lr=1e-3, objective="cells", evaluate_test=False, verbose=False)
    gears_model.save_model(save_path)
    cleanup_ddp()


def test_users_own_workers_with_a_ddp_wrapper(screens: Path, tmp_path: Path, meeting_point: None) -> None:
    """Started as `torch.multiprocessing.spawn` does, but by fork (spawned: tests/distributed/test_guide_calls.py)."""
    pert_data = PertData(screens, **DATA)
    pert_data.load("small")
    start_by_fork(guide_worker, (2, str(screens), str(tmp_path / "m")), nprocs=2)
    model = GEARS.from_pretrained(tmp_path / "m", device="cpu")
    assert not any(key.startswith("module.") for key in weights(tmp_path / "m"))
    assert np.isfinite(model.predict(["ctrl"])["ctrl"]).all()


def test_the_word_of_the_older_launcher_is_left_out(monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    from gears.train_distributed import main

    monkeypatch.setattr("sys.argv", ["train_distributed", "--local-rank=1", "nothing.h5ad", "--save-path", "m"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert "there is no file or folder nothing.h5ad" in capsys.readouterr().err
