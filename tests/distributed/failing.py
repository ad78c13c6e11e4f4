"""A caller whose workers fail, or which is stopped itself: prints what it learnt, a line of JSON per case.

``python failing.py KIND FOLDER FAULT [FAULT ...]``; KIND is "engine" (a small model of one's own) or "gears"
(``train_multi_gpu`` on the screen in FOLDER).
"""

from __future__ import annotations

import contextlib
import json
import logging
import multiprocessing as mp
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from gears import train_distributed
from gears.distributed import launch
from gears.jobs import _job as job_module
from gears.training import TrainingEngine

WORLD = 2
LATE = 600.0


def misbehave(fault: str, folder: Path, rank: int) -> None:
    """What happens in a worker after its third step."""
    (folder / f"ready-{rank}").write_text(str(os.getpid()))
    while not all((folder / f"ready-{other}").exists() for other in range(WORLD)):
        time.sleep(0.01)
    if fault == "stubborn" and rank == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (folder / "deaf").touch()
        time.sleep(LATE)
    if rank != 1 or fault == "none":
        return
    while fault == "stubborn" and not (folder / "deaf").exists():
        time.sleep(0.01)
    (folder / "fault").write_text(str(time.time()))
    if fault in ("raise", "stubborn"):
        msg = "no such gene"
        raise KeyError(msg)
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault.startswith("exit"):
        sys.exit(int(fault[-1]))
    if fault == "hang":
        time.sleep(LATE)


def interfere(fault: str, folder: Path, rank: int) -> None:
    """Let every step of this process be followed by the fault, when its time has come."""
    step, count = TrainingEngine._step, iter(range(1, 10**9))

    def stepped(self: TrainingEngine, *args: Any) -> None:
        step(self, *args)
        time.sleep(0.02)
        if next(count) == 3:
            misbehave(fault, folder, rank)

    TrainingEngine._step = stepped  # type: ignore[method-assign]


def engine_work(rank: int, world_size: int, fault: str, folder: str) -> None:
    """A small model that would train for hours; it leaves a checkpoint when it is asked to stop."""
    interfere(fault, Path(folder), rank)
    x = torch.arange(48.0).reshape(24, 2) / 48
    data = TensorDataset(x, (x[:, 0] > 0.5).long())
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.fill_(0.1)
        model.bias.zero_()
    engine = TrainingEngine(model, distributed=True, world_size=world_size)
    loader = DataLoader(data, 2, sampler=DistributedSampler(data, world_size, rank))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine.train(loader, None, optimizer, nn.CrossEntropyLoss(), num_epochs=10**6)
    engine.save_checkpoint(Path(folder) / "stopped" / "checkpoint.pt")


def gears_work(rank: int, world_size: int, *args: Any) -> Any:
    """The worker of ``train_multi_gpu`` with the fault in it."""
    *job, options = args
    fault, folder = options.pop("fault"), options.pop("folder")
    interfere(fault, Path(folder), rank)
    return TRAIN_WORKER(rank, world_size, *job, options)


TRAIN_WORKER = train_distributed.train_ddp_worker


def call_engine(fault: str, folder: Path) -> Any:
    timeout = 3.0 if fault == "hang" else None
    return launch(engine_work, ["cpu"] * WORLD, (fault, str(folder)), backend="gloo", timeout=timeout)


def call_gears(fault: str, folder: Path) -> Any:
    def with_fault(function: Callable[..., Any], devices: Any, args: tuple[Any, ...], **options: Any) -> Any:
        *job, worker_args = args
        extended = (*job, {**worker_args, "fault": fault, "folder": str(folder)})
        return launch(gears_work, devices, extended, **options)

    job_module.launch = with_fault
    args = {
        "save_path": str(folder / "stopped"), "model_config": {"hidden_size": 4}, "objective": "cells",
        "batch_size": 12, "epochs": 10**6, "schedule": "constant", "verbose": False,
    }  # fmt: skip
    return train_distributed.train_multi_gpu(
        folder.parent, "small", {"split": "simulation", "seed": 1}, args, n_gpus=WORLD, device="cpu",
        timeout=10.0 if fault == "hang" else None, data_config={"default_pert_graph": False},
    )  # fmt: skip


def state() -> dict[str, Any]:
    """Of this process: what a call must leave as it was."""
    return {
        "environment": dict(os.environ),
        "start method": mp.get_start_method(allow_none=True),
        "handlers": [str(signal.getsignal(number)) for number in signal.valid_signals()],
        "random state": [
            repr(random.getstate())[-80:],
            repr(np.random.get_state()[1:])[-200:],  # noqa: NPY002
            torch.get_rng_state().sum().item(),
        ],
        "open files": sorted(_descriptors()),
        "listening ports": _listening(),
        "children": _children(),
        "python threads": sorted(thread.name for thread in threading.enumerate()),
        "torch threads": torch.get_num_threads(),
        "folder": os.getcwd(),
        "path": list(sys.path),
        "main file": getattr(sys.modules["__main__"], "__file__", None),
        "logging": [logging.getLogger(name).handlers[:] for name in (None, "gears")],
    }


def _descriptors() -> list[str]:
    found = []
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{entry}"))
    return [name for name in found if not name.endswith("/fd")]


def _listening() -> int:
    """Listening sockets of this process."""
    own = {name[8:-1] for name in _descriptors() if name.startswith("socket:[")}
    tables = [Path(f"/proc/self/net/{kind}").read_text().splitlines() for kind in ("tcp", "tcp6")]
    return sum(line.split()[3] == "0A" and line.split()[9] in own for table in tables for line in table)


def _children() -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                if int(Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()[1]) == os.getpid():
                    found.append(int(entry))
    return found


def run(kind: str, fault: str, folder: Path) -> dict[str, Any]:
    """One case: what was raised, when, and what is not as it was."""
    folder.mkdir(parents=True, exist_ok=True)
    before = state()
    (folder / "started").write_text(str(os.getpid()))
    found: dict[str, Any] = {"fault": fault}
    try:
        (call_gears if kind == "gears" else call_engine)(fault, folder)
        found["type"] = None
    except BaseException as error:
        found |= {"type": type(error).__name__, "message": str(error), "lines": traceback.format_exc()}
    found["known"] = time.time()
    after = state()
    changed = [key for key in before if before[key] != after[key]]
    found["changed"] = {key: [str(before[key]), str(after[key])] for key in changed}
    mark = folder / "fault"
    found["seconds"] = found["known"] - float(mark.read_text()) if mark.exists() else None
    return found


if __name__ == "__main__":
    kind, root, *faults = sys.argv[1:]
    # What stays for good after the first use in a process, of whomever: Python's resource tracker,
    # and the pipe that the event loop of torch's key-value store is woken by.
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()
    torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for fault in faults:
        print("FOUND " + json.dumps(run(kind, fault, Path(root) / fault)), flush=True)
