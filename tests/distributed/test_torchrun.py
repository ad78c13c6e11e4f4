"""Under torchrun: nothing is spawned, the world that is there is joined."""

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from anndata import AnnData
from driving import free_port
from small_models import trained_alone

from gears import GEARS, PertData
from gears.distributed._devices import own_device
from gears.distributed._world import Ranks

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import contextlib
import os
import signal
import sys
from pathlib import Path
from gears import train_multi_gpu
from gears.training import TrainingEngine

step, taken = TrainingEngine._step, []
victim = sys.argv[4:] == ["crash"] and os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"

def stepped(*args):
    taken.append(1)
    if victim and len(taken) == 9:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(*args)

if __name__ == "__main__":
    TrainingEngine._step = stepped
    result = train_multi_gpu(
        sys.argv[1], "small", {"split": "simulation", "seed": 1},
        {"save_path": sys.argv[2], "epochs": 2, "objective": "cells", "batch_size": int(sys.argv[3]),
         "dtype": "float64", "model_config": {"hidden_size": 8}, "resume": True, "checkpoint_every_steps": 1},
        data_config={"default_pert_graph": False},
    )
    tasks = Path("/proc/self/task") if sys.platform == "linux" else Path("none")
    left = []
    for task in tasks.glob("*/comm"):
        with contextlib.suppress(OSError):  # a thread that ended meanwhile
            left += [name for name in [task.read_text()] if "gloo" in name]
    assert not left, f"threads of the process group live on: {left}"
    print("RESULT", result.rank, result.world_size, result.table is not None, len(taken), flush=True)
"""


def test_ranks_and_device_of_a_launched_process(monkeypatch, caplog) -> None:
    values = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    for name in (*values, "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    assert Ranks.read() is None
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    assert Ranks.read() is None
    monkeypatch.setenv("MASTER_ADDR", "h")
    place = Ranks.read()
    assert place == Ranks(3, 1, 4, 2)
    for given, visible, device in (
        ((None, None, None), 2, "cuda:1"), ((4, [5, 7], None), 8, "cuda:7"), ((2, None, "cpu"), 8, "cpu"),
        ((None, None, None), 0, "cpu"),
    ):  # fmt: skip
        assert own_device(place, *given, visible=visible) == device
    words = r"n_gpus=3, but the launcher started 4 process\(es\) \(WORLD_SIZE\), 2 of them"
    with pytest.raises(ValueError, match=words):
        own_device(place, 3, None, None, visible=8)
    with pytest.raises(ValueError, match="only 1 GPU"):
        own_device(place, None, None, None, visible=1)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: True)
    with caplog.at_level("WARNING", logger="gears"):
        assert own_device(Ranks(0, 0, 2, 2), None, None, None, visible=0) == "cpu"
    assert "MPS device of this machine cannot be shared: the 2 process(es)" in caplog.text
    with pytest.raises(ValueError, match="an MPS machine has one device"):
        own_device(Ranks(0, 0, 2, 2), None, None, "mps", visible=0)


def environment() -> dict[str, str]:
    values = {key: value for key, value in os.environ.items() if not key.startswith(("MASTER_", "RANK"))}
    return values | {"OMP_NUM_THREADS": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def run_all(commands: list[list[str]], folder: Path, timeout: float = 900) -> list[str]:
    """Start the commands at once; their outputs. All must end with 0; else what they started is killed as well."""
    folder.mkdir()
    files = [(folder / f"out{place}", folder / f"err{place}") for place in range(len(commands))]
    started = []
    for command, (out, err) in zip(commands, files, strict=True):
        with out.open("w") as to_out, err.open("w") as to_err:
            options = {"env": environment(), "cwd": ROOT, "start_new_session": True}
            started.append(subprocess.Popen(command, stdout=to_out, stderr=to_err, **options))
    deadline = time.monotonic() + timeout
    try:
        for process, (_, err) in zip(started, files, strict=True):
            try:
                code: int | None = process.wait(timeout=max(1.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                code = None
            assert code == 0, f"ended with {code} (None: not within {timeout:g} s)\n{err.read_text()[-6000:]}"
    except AssertionError:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        raise
    return [out.read_text() for out, _ in files]


def torchrun(*options: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", *options]


NAMESPACES = """
set -euo pipefail
ip link set lo up
unshare -n sleep 600 >/dev/null 2>&1 & other=$!
trap 'kill $other 2>/dev/null || true' EXIT
while [ "$(readlink /proc/$other/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
ip link add v0 type veth peer name v1 netns $other
ip addr add 10.77.0.1/24 dev v0
ip link set v0 up
nsenter -t $other -n ip link set lo up
nsenter -t $other -n ip addr add 10.77.0.2/24 dev v1
nsenter -t $other -n ip link set v1 up
[ $# -eq 0 ] && exit 0
GLOO_SOCKET_IFNAME=v1 nsenter -t $other -n bash "$2" & agent=$!
GLOO_SOCKET_IFNAME=v0 bash "$1"
wait $agent
"""


def two_machines(folder: Path, *script: str) -> list[list[str]]:
    """Commands of two agents: in two network namespaces that only a cable joins, or else on loopback."""
    namespaces = folder / "namespaces.sh"
    namespaces.write_text(NAMESPACES)
    inside = ["unshare", "-rn", "bash", str(namespaces)]
    allowed = shutil.which("unshare") and shutil.which("nsenter") and shutil.which("ip")
    allowed = allowed and subprocess.run(inside, capture_output=True, check=False).returncode == 0
    print("two agents", "in two network namespaces" if allowed else "on loopback: namespaces are refused here")
    hosts = ("10.77.0.1", "10.77.0.2") if allowed else ("127.0.0.1", "127.0.0.1")
    port = 29500 if allowed else free_port()
    agents = [
        torchrun(
            "--nnodes=2", f"--node_rank={node}", "--nproc_per_node=1", f"--master_addr={hosts[0]}",
            f"--local_addr={hosts[node]}", f"--master_port={port}", *script,
        )
        for node in (0, 1)
    ]  # fmt: skip
    if not allowed:
        return agents
    files = [folder / f"agent{node}.sh" for node in (0, 1)]
    for file, agent in zip(files, agents, strict=True):
        file.write_text(f"exec {shlex.join(agent)}\n")
    return [[*inside, *map(str, files)]]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("machines", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_restarted_machine_and_two_machines_give_the_model_of_one_process(machines, screens, tmp_path):
    """One machine whose second worker is killed in its ninth step; two machines without a mishap."""
    script, model = tmp_path / "train.py", tmp_path / "model"
    script.write_text(SCRIPT)
    n_before = 0
    if machines == 1:
        single = ("--standalone", "--nproc_per_node=2", "--max-restarts=1")
        commands, n_before = [torchrun(*single, str(script), str(screens), str(model), "12", "crash")], 8
    else:
        commands = two_machines(tmp_path, str(script), str(screens), str(model), "12")
    outputs = run_all(commands, tmp_path / "said")
    newest = sorted((model / "checkpoints").iterdir())[-1]
    taken = torch.load(newest, weights_only=True)["progress"]["total_steps"] - n_before
    expected = [f"RESULT 0 2 True {taken}", f"RESULT 1 2 False {taken}"]
    assert results(*outputs) == expected, "it did not resume"
    weights = torch.load(model / "model.pt", weights_only=True)
    alone = trained_alone(screens).best_model.state_dict()
    assert all((weights[key].double() - alone[key].double()).abs().max() < 1e-9 for key in alone)


ELASTIC = """
import os
import sys
import time
from pathlib import Path
from gears import train_multi_gpu
from gears.training import TrainingEngine

step, folder = TrainingEngine._step, Path(sys.argv[2])

def stepped(engine, *args):
    with (folder / "steps.txt").open("a") as file:
        print(os.environ["WORLD_SIZE"], engine.progress.total_steps, os.getppid(), os.getpid(), file=file)
    time.sleep(0 if (folder / "quick").exists() else 0.5)
    return step(engine, *args)

if __name__ == "__main__":
    TrainingEngine._step = stepped
    result = train_multi_gpu(
        sys.argv[1], "small", {"split": "simulation", "seed": 1},
        {"save_path": str(folder / "model"), "epochs": 15, "prior": None, "dtype": "float64", "evaluate_test": False,
         "model_config": {"hidden_size": 8}, "resume": True, "checkpoint_every_steps": 1},
        data_config={"default_pert_graph": False},
    )
    print("RESULT", result.rank, result.world_size, flush=True)
"""


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_machine_that_is_killed_comes_back(screens: Path, tmp_path: Path) -> None:
    """Two agents of `--nnodes=1:2`: one is killed, the other goes on from the newest checkpoint, a third joins it."""
    script, taken, port = tmp_path / "train.py", tmp_path / "steps.txt", free_port()
    script.write_text(ELASTIC)
    taken.touch()
    agents: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        command = torchrun(
            "--nnodes=1:2", "--nproc_per_node=1", "--max-restarts=9", "--rdzv_backend=c10d", "--rdzv_id=elastic",
            f"--rdzv_endpoint=127.0.0.1:{port}", f"--rdzv_conf=is_host={not agents},last_call_timeout=2",
            "--local_addr=127.0.0.1", str(script), str(screens), str(tmp_path),
        )  # fmt: skip
        values = environment() | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        with (tmp_path / f"out{len(agents)}").open("w") as out:
            agents.append(subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=values, cwd=ROOT))

    def said() -> list[str]:
        return [(tmp_path / f"out{number}").read_text() for number in range(len(agents))]

    def steps() -> list[list[int]]:
        """World size, steps of the run so far, agent and worker of each step."""
        return [[*map(int, line.split())] for line in taken.read_text().splitlines() if line.count(" ") == 3]

    def some_steps(world_size: int, agent: int, after: int = 0) -> int:
        """Wait for three steps of an agent's worker in a world of this size, beyond `after` steps; the steps so far."""
        deadline = time.monotonic() + 300
        while True:
            found = {
                number for world, number, parent, _ in steps() if (world, parent) == (world_size, agents[agent].pid)
            }
            if len([number for number in found if number >= after]) > 2:
                return max(found)
            assert time.monotonic() < deadline, "\n".join(said())[-6000:]
            assert agents[0].poll() is None, "\n".join(said())[-6000:]
            time.sleep(0.2)

    def kill(agent: subprocess.Popen[bytes]) -> None:
        for pid in (agent.pid, *{worker for _, _, parent, worker in steps() if parent == agent.pid}):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        agent.wait()

    try:
        start()
        start()
        n_together = some_steps(2, 1)
        kill(agents[1])
        n_alone = some_steps(1, 0, n_together)
        start()
        some_steps(2, 2, n_alone)
        (tmp_path / "quick").touch()
        assert [agents[0].wait(300), agents[2].wait(300)] == [0, 0], "\n".join(said())[-6000:]
    finally:
        for agent in agents:
            if agent.poll() is None:
                kill(agent)
    assert results(*said())[-2:] == ["RESULT 0 2", "RESULT 1 2"]  # before them the one that stopped for the third
    weights = torch.load(tmp_path / "model" / "model.pt", weights_only=True)
    alone = trained_alone(screens, epochs=15, prior=None, objective="moments", batch_size=None).best_model.state_dict()
    assert all((weights[key].double() - alone[key].double()).abs().max() < 1e-9 for key in alone)


FROM_PACK = """
import sys
from gears import train_multi_gpu

if __name__ == "__main__":
    result = train_multi_gpu(
        sys.argv[1], "small.moments", {"split": "simulation", "seed": 1},
        {"save_path": sys.argv[2], "epochs": 1, "prior": None, "dtype": "float64", "model_config": {"hidden_size": 8},
         "evaluate_test": False, "verbose": False},
        data_config={"default_pert_graph": False},
    )
    print("RESULT", result.rank, result.world_size, flush=True)
"""


@pytest.mark.slow
def test_two_workers_train_from_a_pack(small_data: PertData, tmp_path: Path) -> None:
    script, folder = tmp_path / "train.py", tmp_path / "packs"
    script.write_text(FROM_PACK)
    folder.mkdir()
    small_data.write_moments(folder / "small.moments.h5ad")
    commands = [torchrun("--standalone", "--nproc_per_node=2", str(script), str(folder), str(tmp_path / "model"))]
    assert results(*run_all(commands, tmp_path / "said")) == ["RESULT 0 2", "RESULT 1 2"]
    pack = PertData(tmp_path / "alone", default_pert_graph=False)
    pack.load(data_path=folder / "small.moments.h5ad")
    pack.prepare_split("simulation", seed=1)
    model = GEARS(pack, device="cpu")
    model.model_initialize(hidden_size=8)
    model.train(epochs=1, prior=None, dtype="float64", evaluate_test=False, verbose=False)
    weights, alone = torch.load(tmp_path / "model" / "model.pt", weights_only=True), model.best_model.state_dict()
    assert all((weights[key].double() - alone[key].double()).abs().max() < 1e-9 for key in alone)


def results(*outputs: str) -> list[str]:
    return sorted(line for out in outputs for line in out.splitlines() if line.startswith("RESULT"))


LOGGING = """
import logging, sys
from gears import train_multi_gpu

if __name__ == "__main__":
    train_multi_gpu(
        sys.argv[1], "small", {"split": "simulation", "seed": 1},
        {"save_path": sys.argv[2], "epochs": 1, "model_config": {"hidden_size": 4}},
        n_gpus=2, device="cpu", data_config={"default_pert_graph": False},
    )
    logging.getLogger("gears").info("a line")
    logging.getLogger("gears").warning("a warning")
"""


@pytest.mark.long
def test_a_launched_run_logs_what_a_spawned_run_logs(tmp_path: Path, small_screen_adata: AnnData) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOGGING)
    said = {}
    launched = torchrun("--standalone", "--nproc_per_node=2")
    for kind, start in (("spawned", [sys.executable]), ("launched", launched)):
        folder = tmp_path / f"screens-{kind}"
        folder.mkdir()
        small_screen_adata.write_h5ad(folder / "small.h5ad")
        run_all([[*start, str(script), str(folder), str(tmp_path / f"model-{kind}")]], tmp_path / kind)
        said[kind] = (tmp_path / kind / "err0").read_text().splitlines()
    said["launched"].remove("[rank 1] WARNING: a warning")

    def alike(lines: list[str]) -> list[str]:
        return sorted(re.sub(r"[0-9.]+ s\b|model-\w+", "", line) for line in lines)  # seconds and folders differ

    assert alike(said["launched"]) == alike(said["spawned"])
    spawned = said["spawned"]
    assert spawned[0].startswith("loaded small: 640 cells (")
    sizes = r"\d+ training, \d+ validation, \d+ test conditions"
    assert re.fullmatch(f"split simulation, seed 1: {sizes}", spawned[1])
    epochs = [line for line in spawned if line.startswith("epoch ")]
    assert len(epochs) == len(set(epochs)) > 0
    assert not [line for line in spawned if ".npz" in line or "one CPU process" in line]
