"""``train(distributed=True)`` in a script of one's own, under torchrun and without it."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from driving import free_port, start_by_fork
from small_models import network_of, trained_alone

from gears import GEARS, PertData
from gears.distributed._group import share_loaders
from gears.distributed._world import Ranks
from gears.train_distributed import cleanup_ddp, setup_distributed

HERE = Path(__file__).resolve().parent
SCRIPT = """
import sys
sys.path.append(sys.argv[-2])
from test_joining import work

work(sys.argv[-1])  # the older launcher adds --local-rank=N in front
"""
OPTIONS = {"prior": None, "epochs": 2, "objective": "cells", "dtype": "float64", "lr": 0.01}


def training(folder: Path) -> tuple[GEARS, bool, int]:
    pert_data = prepared(folder, 12)
    model = network_of(pert_data)
    result = model.train(distributed=True, save_path=folder / "run", **OPTIONS)
    return model, result.table is not None, pert_data.dataloader["train_loader"].sampler.rank


def work(place: str, other_port: str | None = None) -> None:
    """A launched process: the model is there before the group, and then the group before the model."""
    folder = Path(place)
    before, has_table, share = training(folder)
    before.save_model(folder / "before")
    line = [before.rank, before.world_size, before.is_distributed, has_table, share]
    if other_port is not None:  # without torchrun's store each group brings its own
        os.environ["MASTER_PORT"] = other_port
    rank, _, size = setup_distributed()
    after, _, _ = training(folder)
    after.save_model(folder / "after")
    (folder / f"rank-{rank}.json").write_text(json.dumps([*line, rank, size, after.is_distributed]))
    cleanup_ddp()


def forked(rank: int, place: str, other_port: str) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    work(place, other_port)


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


@pytest.mark.parametrize(
    "launcher", [None, *(pytest.param(one, marks=pytest.mark.long) for one in (TORCHRUN, OLDER))], ids=str
)
def test_two_launched_processes_train_the_model_of_one(launcher, folder, alone, monkeypatch):
    """Forks with the variables of torchrun; the long form starts the launchers (also test_torchrun.py)."""
    port, other_port = free_port(), free_port()
    if launcher is None:
        for name, value in {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
            monkeypatch.setenv(name, value)
        start_by_fork(forked, (str(folder), other_port), nprocs=2)
    else:
        (folder / "train.py").write_text(SCRIPT)
        ports = [f"--master_port={port}"] * (launcher == OLDER)  # it tells its workers the port that it was given
        done = subprocess.run(
            [sys.executable, "-m", *launcher, "--nproc_per_node=2", *ports, folder / "train.py", HERE, folder],
            capture_output=True, text=True, timeout=600,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        assert done.stderr.count("epoch   1/2") == 2, "one worker reports each of the two trainings, once"
    lines = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in (0, 1)]
    assert lines == [[0, 2, False, True, 0, 0, 2, True], [1, 2, False, False, 1, 1, 2, True]]
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    expected = trained_alone(folder / "screens", **OPTIONS).best_model.state_dict()
    for name in ("before", "after"):
        state = torch.load(folder / name / "model.pt", weights_only=True)
        assert all((state[key] - value).abs().max() < 1e-9 for key, value in expected.items()), name


def test_without_a_world_it_says_how_to_start_one_and_alone_that_there_is_one(folder, alone, monkeypatch, caplog):
    model = network_of(prepared(folder))
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
    monkeypatch.setenv("RANK", "1")
    with caplog.at_level(logging.WARNING, logger="gears"):
        model.train(steps=1, batch_size=24, evaluate_test=False, verbose=False)
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
