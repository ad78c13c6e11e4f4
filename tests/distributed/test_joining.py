"""``train(distributed=True)`` in a script of one's own, under torchrun and without it."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gears import GEARS, PertData
from gears.distributed._group import share_loaders
from gears.distributed._world import Ranks

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import json, sys
from pathlib import Path
from gears import GEARS, PertData
from gears.train_distributed import cleanup_ddp, setup_distributed

def training(folder, options):
    pert_data = PertData(folder / "screens", default_pert_graph=False)
    pert_data.load("small")
    pert_data.prepare_split(split="simulation", seed=1)
    pert_data.get_dataloader(12)
    model = GEARS(pert_data, device="cpu")
    model.model_initialize(hidden_size=8)
    result = model.train(distributed=True, **options)
    return model, result, pert_data.dataloader["train_loader"]

folder, options = Path(sys.argv[-2]), json.loads(sys.argv[-1])  # the older launcher adds --local-rank=N in front
before, result, loader = training(folder, options)       # the model is there before the group
before.save_model(folder / "before")
line = [before.rank, before.world_size, before.is_distributed, result.table is not None, loader.sampler.rank]
rank, _, size = setup_distributed()
after, result, _ = training(folder, options)              # the group is there before the model
after.save_model(folder / "after")
line += [rank, size, after.is_distributed]
cleanup_ddp()
print("RESULT", json.dumps(line), flush=True)
"""
OPTIONS = {"prior": None, "epochs": 2, "objective": "cells", "dtype": "float64", "lr": 0.01}


@pytest.fixture
def folder(screens: Path) -> Path:
    return screens.parent


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


def prepared(folder: Path, batch_size: int | None = None) -> PertData:
    pert_data = PertData(folder / "screens", default_pert_graph=False)
    pert_data.load("small")
    pert_data.prepare_split(split="simulation", seed=1)
    if batch_size is not None:
        pert_data.get_dataloader(batch_size)
    return pert_data


TORCHRUN = ["torch.distributed.run", "--standalone"]
OLDER = ["torch.distributed.launch"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher", [TORCHRUN, pytest.param(OLDER, marks=pytest.mark.long)], ids=lambda words: words[0]
)
def test_two_launched_processes_train_the_model_of_one(launcher, folder, alone):
    script = folder / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", *launcher, "--nproc_per_node=2"]
    if launcher == OLDER:  # its workers are told the port that it was given, so it must be a real one
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            command.append(f"--master_port={probe.getsockname()[1]}")
    done = subprocess.run(
        [*command, str(script), str(folder), json.dumps(OPTIONS)],
        capture_output=True, text=True, timeout=240, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    lines = sorted(line for line in done.stdout.splitlines() if line.startswith("RESULT"))
    assert [json.loads(line[7:]) for line in lines] == [
        [0, 2, False, True, 0, 0, 2, True],
        [1, 2, False, False, 1, 1, 2, True],
    ]
    assert done.stderr.count("epoch   1/2") == 2, "one worker reports each of the two trainings, once"

    model = GEARS(prepared(folder, 24), device="cpu")
    model.model_initialize(hidden_size=8)
    model.train(**OPTIONS, evaluate_test=False, verbose=False)
    alone = model.best_model.state_dict()
    for name in ("before", "after"):
        state = torch.load(folder / name / "model.pt", weights_only=True)
        assert all((state[key] - value).abs().max() < 1e-9 for key, value in alone.items()), name


def test_without_a_world_it_says_how_to_start_one(folder: Path, alone: None, monkeypatch) -> None:
    model = GEARS(prepared(folder), device="cpu")
    model.model_initialize(hidden_size=8)
    with pytest.raises(RuntimeError, match=r"RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT not set.*torchrun"):
        model.train(epochs=1, distributed=True)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="MASTER_ADDR, MASTER_PORT not set"):
        model.train(epochs=1, distributed=True)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(ValueError, match="RANK is 'first'"):
        model.train(epochs=1, distributed=True)


def test_a_launched_process_that_trains_alone_is_told(folder: Path, alone: None, monkeypatch, caplog) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    model = GEARS(prepared(folder), device="cpu")
    model.model_initialize(hidden_size=8)
    with caplog.at_level(logging.WARNING, logger="gears"):
        model.train(epochs=1, batch_size=24, evaluate_test=False, verbose=False)
    assert "process 1 of 2 of a launcher" in caplog.text


def test_loaders_become_shares(folder: Path) -> None:
    pert_data = prepared(folder)
    share_loaders(pert_data, Ranks(1, 1, 2, 2))
    assert pert_data.dataloader is None, "none were made: the training makes its own"
    pert_data.get_dataloader(12, 30)
    share_loaders(pert_data, Ranks(1, 1, 2, 2))
    loaders = pert_data.dataloader
    assert (loaders["train_loader"].batch_size, loaders["val_loader"].batch_size) == (12, 30)
    assert (loaders["train_loader"].sampler.num_replicas, loaders["train_loader"].sampler.rank) == (2, 1)
    share_loaders(pert_data, Ranks(1, 1, 2, 2))
    assert pert_data.dataloader is loaders, "what fits is left alone"
    with pytest.raises(ValueError, match="worker 1 of 2, but this process is worker 0 of 3"):
        share_loaders(pert_data, Ranks(0, 0, 3, 3))
