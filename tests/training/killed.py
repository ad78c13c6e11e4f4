"""Kills a training run again and again at random moments and looks at what is left; prints one line of JSON.

``python killed.py FOLDER WORKERS MOMENTS SEED``; FOLDER holds the prepared screen "small". This process never
trains itself: runs are forks of it, so that a start costs milliseconds.
"""

import json
import logging
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from gears import GEARS, PertData
from gears.distributed import World, cleanup_ddp, join_group
from gears.files.formats import read_tensors, write_tensors
from gears.model._folder import is_model, load_parts
from gears.training import _checkpoints as checkpoints
from gears.training._workers import plain_state

CPU = torch.device("cpu")
OPTIONS = {
    "prior": None, "epochs": 2, "objective": "cells", "use_ema": True, "ema_decay": 0.9, "checkpoint_every_steps": 1,
    "keep_last": 2, "verbose": False, "evaluate_test": False,
}  # fmt: skip
GLOBAL_BATCH = 60


def outcome_of(path: Path) -> Path:
    """Where this driver keeps how a run ended: beside the folder of the runs, whose leftovers are counted."""
    return path.parent.with_name(f"{path.parent.name}-outcomes") / path.name


def train(data: PertData, path: Path, rank: int, workers: int, meeting: Path) -> None:
    """One worker of a run that takes up whatever lies in its folder."""
    if workers > 1:
        store = torch.distributed.FileStore(str(meeting), workers)
        join_group(World(rank, rank, workers, CPU), backend="gloo", store=store)
    gears = GEARS(data, device="cpu")
    gears.model_initialize(hidden_size=4)
    data.get_dataloader_distributed(GLOBAL_BATCH // workers, None, workers, rank, 0)
    result = gears.train(**OPTIONS, save_path=str(path), resume=True)
    if rank == 0:
        history = [{key: v for key, v in record.items() if key != "seconds"} for record in result.history]
        outcome = {"weights": plain_state(gears.model), "history": history}
        write_tensors(outcome_of(path), outcome)
    cleanup_ddp()


def start(data: PertData, path: Path, workers: int, number: int) -> list[int]:
    """Fork the workers of a run; their process ids."""
    pids = []
    for rank in range(workers):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                train(data, path, rank, workers, path.parent / f"meeting-{number}")
                code = 0
            finally:
                os._exit(code)
        pids.append(pid)
    return pids


def end(pids: list[int], after: float | None) -> bool:
    """Wait; kill what still runs after so many seconds. Whether the run ended by itself."""
    deadline = time.monotonic() + (after if after is not None else 300.0)
    left, codes = set(pids), []
    while left and time.monotonic() < deadline:
        for pid in list(left):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                left.discard(pid)
                codes.append(os.waitstatus_to_exitcode(status))
        time.sleep(0.001)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    for pid in left:
        os.waitpid(pid, 0)
    if after is None or not left:
        assert codes == [0] * len(pids), codes
    return not left


def look(path: Path) -> dict[str, int]:
    """Everything that can be seen must be whole; what a killed writer left behind is counted."""
    seen = {"checkpoints": 0, "leftovers": 0, "whole": 0}
    seen["leftovers"] += len(list(path.parent.glob(f".{path.name}-*")))
    if not path.exists():
        return seen
    assert is_model(path)
    load_parts(path)
    read_tensors(path / "model.pt")
    seen["whole"] = 1
    for file in sorted((path / "checkpoints").glob("*.pt")):
        if file.name.startswith("."):
            continue
        content = checkpoints.read(file)
        seen["checkpoints"] += 1
        steps = content["progress"]["total_steps"]
        assert file.name.endswith(f"step-{content['progress']['step']:07d}.pt"), (file.name, steps)
    seen["leftovers"] += len([*path.glob(".*.tmp*"), *(path / "checkpoints").glob(".*")])
    if (path / "metrics.jsonl").exists():
        [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return seen


def same(left: Path, right: Path) -> bool:
    """Whether two runs ended alike, bit for bit: weights, history, the model on disk."""
    one, other = (read_tensors(outcome_of(path)) for path in (left, right))
    kept = [read_tensors(path / "model.pt") for path in (left, right)]
    pairs = [(one["weights"], other["weights"]), tuple(kept)]
    alike = all(torch.equal(a[key], b[key]) for a, b in pairs for key in a)
    return alike and one["history"] == other["history"]


def warm_up(folder: Path) -> None:
    """What a first step and a first write import, but no backward pass: its threads do not survive a fork."""
    parameter = torch.nn.Parameter(torch.zeros(2))
    parameter.grad = torch.ones(2)
    optimizer = torch.optim.Adam([parameter], fused=True)
    optimizer.step()
    optimizer.zero_grad()
    write_tensors(folder / "warm.pt", optimizer.state_dict())
    read_tensors(folder / "warm.pt")


def main(folder: Path, workers: int, moments: int, seed: int) -> dict[str, Any]:
    logging.getLogger("gears").setLevel(logging.ERROR)
    draw = random.Random(seed)
    data = PertData(folder, default_pert_graph=False)
    data.load("small")
    data.prepare_split("simulation", seed=1)
    GEARS(data, device="cpu").model_initialize(hidden_size=4)  # graphs are built and stored once
    warm_up(folder)
    runs, number = folder / f"runs-{workers}", 0
    runs.mkdir()
    whole = runs / "whole"
    begun = time.monotonic()
    end(start(data, whole, workers, number), None)
    length = time.monotonic() - begun
    kills = ended = interrupted_writes = with_checkpoint = 0
    path = runs / "killed-0"
    while kills < moments:
        number += 1
        if end(start(data, path, workers, number), draw.uniform(0.0, length)):
            assert same(whole, path), f"run {path.name} after {kills} kills"
            ended += 1
            shutil.rmtree(path)
            path = runs / f"killed-{ended}"
            continue
        kills += 1
        seen = look(path)
        interrupted_writes += seen["leftovers"] > 0
        with_checkpoint += seen["checkpoints"] > 0
    end(start(data, path, workers, number + 1), None)
    assert same(whole, path), f"the last run after {kills} kills"
    left = [*path.glob(".*.tmp*"), *(path / "checkpoints").glob(".*"), *runs.glob(".killed-*")]
    assert not left, [(str(at), sorted(map(str, at.rglob("*")))) for at in left]
    return {
        "kills": kills, "runs": ended + 1, "within a write": interrupted_writes, "with a checkpoint": with_checkpoint,
        "seconds of a run": round(length, 2),
    }  # fmt: skip


if __name__ == "__main__":
    print("FOUND " + json.dumps(main(Path(sys.argv[1]), *(int(value) for value in sys.argv[2:5]))))
