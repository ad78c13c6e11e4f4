"""The calls of published guides to training with several processes, as they are printed there."""

import importlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from anndata import AnnData
from driving import free_port, start_by_fork
from small_models import trained_alone

from gears import PertData
from gears.training import TrainingEngine

ROOT = Path(__file__).resolve().parents[2]

WORKER = """
import sys
import torch
from gears.train_distributed import train_ddp_worker

if __name__ == "__main__":
    split_config = {"split": "simulation", "seed": 1}
    args = {
        "model_config": {"hidden_size": 8}, "batch_size": 12, "epochs": 2, "lr": 1e-3, "objective": "cells",
        "dtype": "float64", "save_path": "model", "data_config": {"default_pert_graph": False}, "evaluate_test": False,
    }
    torch.multiprocessing.spawn(train_ddp_worker, args=(2, ".", "small", split_config, args), nprocs=2, join=True)
"""

ENGINE = """
import sys
import torch
from torch import nn
from gears.train_distributed import TrainingEngine

x = torch.linspace(-1, 1, 24, dtype=torch.float64).reshape(-1, 1)

def train(rank, world_size, slope, lines="losses.txt"):
    y = slope * x + 1
    TrainingEngine.setup_distributed(rank, world_size)
    model = nn.Linear(1, 1).double()
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.1)
    engine = TrainingEngine(model, device="CPU", distributed=True, local_rank=rank, world_size=world_size)
    rows = range(24)[rank::world_size]
    loss = nn.functional.mse_loss(engine.model(x[rows]), y[rows])
    mean = engine._reduce_tensor(loss)
    total = engine.reduce_tensor(loss, op="sum")
    if rank == 0:
        with open(lines, "a") as file:
            file.write(f"{mean.item():.12f} {total.item() / world_size:.12f}\\n")
    TrainingEngine.cleanup_distributed()

def start(world_size, slope):
    torch.multiprocessing.spawn(train, args=(world_size, slope), nprocs=world_size, join=True)

if __name__ == "__main__":  # at the same time, each from a process of its own
    jobs = [torch.multiprocessing.get_context("spawn").Process(target=start, args=(2, int(s))) for s in sys.argv[1:]]
    [job.start() for job in jobs]
    [job.join() for job in jobs]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, small_screen: tuple[AnnData, object]) -> Path:
    """A folder with a prepared screen, its file, and the two scripts."""
    path = tmp_path_factory.mktemp("guides")
    small_screen[0].write_h5ad(path / "small.h5ad")
    PertData(path, default_pert_graph=False).load("small")
    (path / "worker.py").write_text(WORKER)
    (path / "engine.py").write_text(ENGINE)
    return path


def started(folder: Path, *command: object, **variables: str) -> subprocess.Popen[str]:
    """A command, without what an earlier launcher left in the environment."""
    values = {name: value for name, value in os.environ.items() if not name.startswith(("MASTER_", "RANK", "WORLD"))}
    values |= {"OMP_NUM_THREADS": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **variables}
    words = list(map(str, command))
    return subprocess.Popen(words, cwd=folder, env=values, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str]) -> tuple[str, str]:
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err[-5000:]
    return out, err


@pytest.fixture(scope="module")
def loss_alone(folder: Path) -> list[float]:
    """Losses of the trainings below in one process."""
    return [record["train_loss"] for record in trained_alone(folder, lr=1e-3).result.history]


@pytest.mark.slow
def test_spawned_workers_print_the_loss_of_one(folder: Path, loss_alone: list[float]) -> None:
    _, printed = finished(started(folder, sys.executable, "worker.py"))
    losses = [float(loss) for loss in re.findall(r"epoch +[0-9]+/2  loss ([0-9.]+)", printed)]
    assert losses == pytest.approx(loss_alone, rel=1e-3)
    assert printed.count("the model was saved in model") == 1
    assert "[rank 1]" not in printed
    assert (folder / "model" / "manifest.json").is_file()


@pytest.mark.parametrize("slopes", [(3,), pytest.param((2, 5), marks=pytest.mark.long)])
def test_engines_have_the_loss_of_one_process(
    slopes: tuple[int, ...], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One pair of workers by fork; in the long form siblings spawn two pairs, which do not meet."""
    lines = folder / "losses.txt"
    lines.unlink(missing_ok=True)
    if len(slopes) == 1:
        for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.syspath_prepend(folder)
        start_by_fork(importlib.import_module("engine").train, (2, *slopes, str(lines)), nprocs=2)
    else:
        finished(started(folder, sys.executable, "engine.py", *slopes))
    x = np.linspace(-1, 1, 24)
    expected = [((0.1 * x + 0.1 - (slope * x + 1)) ** 2).mean() for slope in slopes]
    assert sorted(lines.read_text().splitlines()) == [f"{loss:.12f} {loss:.12f}" for loss in expected]


def test_a_port_that_is_taken_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(other.getsockname()[1]))
        with pytest.raises(RuntimeError, match="is taken by another process: set MASTER_PORT to a free port"):
            TrainingEngine.setup_distributed(0, 2)


NODES = ["--num_nodes", "1", "--node_rank", "0", "--master_addr", "127.0.0.1"]


@pytest.fixture
def bash() -> str:
    found = shutil.which("bash")
    if found is None:
        pytest.skip("bash is not installed")
    return found


@pytest.mark.parametrize(
    ("name", "more", "started_with"),
    [
        ("train_dist_torchrun", [], "--standalone --nproc_per_node 2"),
        (
            "train_multinode",
            NODES,
            "--nnodes 1 --node_rank 0 --nproc_per_node 2 --master_addr 127.0.0.1 --master_port 29512",
        ),
    ],
)
def test_scripts_start_torchrun_with_their_arguments(name, more, started_with, bash, tmp_path) -> None:
    """What they start, shown by a `python` that prints its arguments; the long form starts it."""
    (tmp_path / "python").write_text("#!/bin/sh\necho $*\n")
    (tmp_path / "python").chmod(0o755)
    (tmp_path / "config.yaml").write_text("data: small.h5ad\n")
    words = [bash, ROOT / "scripts" / f"{name}.sh", *more, "--num_gpus", 2, "--config", "config.yaml", "--json"]
    path = f"{tmp_path}:{os.environ['PATH']}"
    out, _ = finished(started(tmp_path, *words, PATH=path, MASTER_PORT="29512"))
    module = "-m gears.train_distributed --config config.yaml --json"
    assert out == f"-m torch.distributed.run {started_with} {module}\n"
    if more:
        process = started(tmp_path, *words[:4])
        assert "--node_rank is missing" in process.communicate()[1]
        assert process.returncode == 2


@pytest.mark.long
@pytest.mark.parametrize("name", ["train_dist_torchrun", "train_multinode"])
def test_scripts_take_the_data_of_the_config(name: str, folder: Path, loss_alone: list[float], bash: str) -> None:
    lines = "data: small.h5ad\nepochs: 2\nobjective: cells\nhidden_size: 8\ndefault_pert_graph: false\ndtype: float64\n"
    (folder / "config.yaml").write_text(f"{lines}lr: 0.001\nbatch_size: 12\n")
    nodes = NODES * (name == "train_multinode")
    words = [*nodes, "--num_gpus", 2, "--config", "config.yaml", "--json", "--save-path", name]
    out, _ = finished(started(folder, bash, ROOT / "scripts" / f"{name}.sh", *words, MASTER_PORT=free_port()))
    result = json.loads(out)  # only rank 0 may print
    assert result["devices"] == ["cpu", "cpu"]
    assert [record["train_loss"] for record in result["history"]] == pytest.approx(loss_alone, rel=1e-9)
