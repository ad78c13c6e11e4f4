"""The calls of published guides to training with several processes, as they are printed there."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from anndata import AnnData

ROOT = Path(__file__).resolve().parents[2]

WORKER = """
import json
import sys
import torch
from gears.train_distributed import train_ddp_worker, train_multi_gpu

if __name__ == "__main__":
    call, path, save_path, world_size = *sys.argv[1:4], int(sys.argv[4])
    split_config = {"split": "simulation", "seed": 1}
    args = {
        "model_config": {"hidden_size": 8}, "batch_size": 24 // world_size, "epochs": 2, "lr": 1e-3,
        "objective": "cells", "dtype": "float64", "save_path": save_path,
        "data_config": {"default_pert_graph": False},
    }
    if call == "spawn":
        torch.multiprocessing.spawn(
            train_ddp_worker, args=(world_size, path, "small", split_config, args), nprocs=world_size, join=True
        )
    else:
        train_multi_gpu(path, "small", split_config, args, n_gpus=world_size, device="cpu")
"""

ENGINE = """
import sys
import torch
from torch import nn
from gears.train_distributed import TrainingEngine

x = torch.linspace(-1, 1, 24, dtype=torch.float64).reshape(-1, 1)

def train(rank, world_size, slope):
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
        print(f"Loss: {mean.item():.12f} {total.item() / world_size:.12f}", flush=True)
    TrainingEngine.cleanup_distributed()

def start(world_size, slope):
    torch.multiprocessing.spawn(train, args=(world_size, slope), nprocs=world_size, join=True)

if __name__ == "__main__":
    world_size, slopes = int(sys.argv[1]), list(map(int, sys.argv[2:])) or [3]
    if len(slopes) == 1:
        start(world_size, *slopes)
    else:  # at the same time, each from a process of its own
        jobs = [torch.multiprocessing.get_context("spawn").Process(target=start, args=(world_size, s)) for s in slopes]
        [job.start() for job in jobs]
        [job.join() for job in jobs]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, small_screen: tuple[AnnData, object]) -> Path:
    """A folder with a prepared screen, its file, and the two scripts."""
    from gears import PertData

    path = tmp_path_factory.mktemp("guides")
    small_screen[0].write_h5ad(path / "small.h5ad")
    PertData(path, default_pert_graph=False).load("small")
    (path / "worker.py").write_text(WORKER)
    (path / "engine.py").write_text(ENGINE)
    return path


def started(folder: Path, *command: object, **variables: str) -> subprocess.Popen[str]:
    """A command, without what an earlier launcher left in the environment."""
    values = {
        name: value for name, value in os.environ.items() if not name.startswith(("MASTER_", "RANK", "WORLD"))
    }
    values |= {
        "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        **variables,
    }
    words = list(map(str, command))
    return subprocess.Popen(
        words, cwd=folder, env=values, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finished(process: subprocess.Popen[str]) -> tuple[str, str]:
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err[-5000:]
    return out, err


def losses(printed: str) -> list[str]:
    return re.findall(r"train_loss ([0-9.]+)", printed)


@pytest.mark.slow
def test_spawned_workers_print_the_loss_of_one(folder: Path) -> None:
    """Two jobs at once, with no line about addresses; and the launcher."""
    start = [folder, sys.executable, "worker.py"]
    jobs = [started(*start, "spawn", ".", f"m{job}", 2) for job in range(2)]
    printed = [losses(finished(job)[1]) for job in jobs]
    printed.append(losses(finished(started(*start, "spawn", ".", "alone", 1))[1]))
    launched = finished(
        started(*start, "launcher", ".", "launched", 2, RANK="0", WORLD_SIZE="1", MASTER_ADDR="h")
    )[1]
    printed.append(losses(launched))
    assert len(printed[0]) == 2
    assert printed == [printed[0]] * 4
    assert "RANK=0 and WORLD_SIZE=1 are set, but no launcher started this process" in launched
    assert launched.count("the model was saved in launched") == 1
    assert "[rank 1]" not in launched
    assert (folder / "m0" / "manifest.json").is_file()


@pytest.mark.slow
def test_the_engine_prints_the_loss_of_one(folder: Path) -> None:
    one, two = (finished(started(folder, sys.executable, "engine.py", n))[0] for n in (1, 2))
    assert one == two
    assert len(set(one.split()[1:])) == 1


@pytest.mark.slow
def test_workers_that_siblings_start_do_not_meet(folder: Path) -> None:
    apart = [finished(started(folder, sys.executable, "engine.py", 1, slope))[0].strip() for slope in (2, 5)]
    at_once = finished(started(folder, sys.executable, "engine.py", 2, 2, 5))[0]
    assert sorted(at_once.strip().splitlines()) == sorted(apart)
    assert apart[0] != apart[1]


@pytest.mark.slow
def test_a_port_that_is_taken_is_named(folder: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(other.getsockname()[1])}
        process = started(folder, sys.executable, "engine.py", 2, **address)
        assert (
            "is taken by another process: set MASTER_PORT to a free port"
            in process.communicate(timeout=240)[1]
        )
    assert process.returncode


@pytest.mark.slow
def test_scripts_take_the_data_of_the_config(folder: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    lines = "data: small.h5ad\nepochs: 2\nobjective: cells\nhidden_size: 8\ndefault_pert_graph: false\ndtype: float64\n"
    (folder / "config.yaml").write_text(f"{lines}lr: 0.001\nbatch_size: 12\n")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    nodes = ["--num_nodes", 1, "--node_rank", 0, "--master_addr", "127.0.0.1"]
    printed = []
    for name, more in (("train_dist_torchrun", []), ("train_multinode", nodes)):
        words = [*more, "--num_gpus", 2, "--config", "config.yaml", "--json", "--save-path", name]
        out, _ = finished(started(folder, bash, ROOT / "scripts" / f"{name}.sh", *words, MASTER_PORT=port))
        result = json.loads(out)
        assert result["devices"] == ["cpu", "cpu"]
        printed.append([record["train_loss"] for record in result["history"]])
    words = ["small.h5ad", "--config", "config.yaml", "--batch-size", 24, "--save-path", "one", "--json"]
    out, _ = finished(started(folder, sys.executable, "-m", "gears", "train", *words, "--device", "CPU"))
    alone = [record["train_loss"] for record in json.loads(out)["history"]]
    assert printed == [pytest.approx(alone, rel=1e-9)] * 2
