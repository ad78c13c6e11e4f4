"""Rows of `gpu_check.py` that compare the device with the CPU, and several workers with one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from check_data import losses, need, train

HERE = Path(__file__).resolve().parent

FLOAT64, FLOAT32 = {"dtype": "float64"}, {"dtype": "float32"}
MODES = {
    "cells, float64": ("cells", FLOAT64, {}, 1e-8),
    "moments, float64": ("moments", FLOAT64, {}, 1e-8),
    "cells, float32": ("cells", FLOAT32, {}, 2e-3),
    "moments, float32": ("moments", FLOAT32, {}, 2e-3),
    "uncertainty, cells": ("cells", FLOAT64, {"uncertainty": True}, 1e-8),
    "uncertainty, moments": ("moments", FLOAT64, {"uncertainty": True}, 1e-8),
    "published uncertainty and direction": (
        "cells", FLOAT64, {"uncertainty": True, "uncertainty_kind": "gears", "direction": "sign"}, 1e-8,
    ),
    "loss of the evidence": ("moments", FLOAT64, {"loss": "evidence"}, 1e-8),
    "accumulation, clipping by norm": (
        "cells", FLOAT64 | {"accumulation_steps": 2, "clip_norm": 1.0}, {}, 1e-8,
    ),
    "moving average": ("cells", FLOAT64 | {"use_ema": True}, {}, 1e-8),
}  # fmt: skip
COMPILED = "torch.compile"
OPTIONS = {
    "bfloat16 autocast": ({"use_amp": True}, 0.05),
    "float16 with gradient scaling": (
        {"use_amp": True, "amp_dtype": "float16", "init_scale": 2.0**12, "growth_interval": 10}, 0.05,
    ),
    "TF32": ({"tf32": True}, 0.02),
}  # fmt: skip
WITHOUT = ("anndata", "scanpy", "pandas", "h5py", "matplotlib", "tqdm", "cloudpickle", "filelock", "networkx")
BLOCK = """
import importlib.util, sys
gone = set(sys.argv[1].split(","))
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name in gone else find(name, *more)
class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in gone:
            raise ModuleNotFoundError(f"{name} is not installed here", name=name)
sys.meta_path.insert(0, Gone())
"""
"""A program in which the packages named by its first argument cannot be imported."""
BLOCK_EXTRA = f"""{BLOCK}
sys.path[:0] = sys.argv[2].split(",")
from check_data import SIZES, Screen, losses, stand_in_for_missing, train
stand_in_for_missing()
print("losses", *losses(train(Screen(**SIZES["small"]), 16, sys.argv[3], "moments", dtype="float64")))
"""


def gradients(table, setting):
    """Gradients of all weights after one forward and backward in float64, by several blocks of genes."""
    from gears.model._blockwise import BLOCK_ROWS, OTHER_BLOCK_ROWS

    screen = setting.screen
    n_conditions = min(64, len(screen.conditions))
    rows = n_conditions * len(screen.genes)
    blocks = -(-rows // BLOCK_ROWS.get(setting.device, OTHER_BLOCK_ROWS))
    expected, found = (_gradient(screen, device, np.arange(n_conditions)) for device in ("cpu", setting.device))
    scale = np.abs(expected).max()
    what = f"gradients in float64, {n_conditions} conditions, {blocks} block(s): of the largest"
    table.compare(what, [1 + np.abs(found - expected).max() / scale], [1.0], 1e-9)


def _gradient(screen, device, ids, reducer=None, hidden=16):
    """All gradients of a network's squared changes over some conditions, (n,), on the host.

    With a `reducer` of two workers the second has none of the conditions, and the gradient is half as large.
    """
    from gears.model.layers import Division
    from gears.training._batches import moved
    from gears.training._workers import SharedGradients

    device = torch.device(device)
    network = screen.parts(hidden).network(seed=1).to(device, torch.float64).train()
    tables = screen.tables(device, torch.float64)
    arrays = {**tables.of_network(ids), "weight": np.linspace(1, 3, len(ids)), "row": np.arange(len(ids))}
    on_device = moved(arrays, device, torch.float64)
    division, weight = None, on_device["weight"]
    if reducer is not None:
        network.reducer = reducer
        of_workers = torch.stack([weight, torch.zeros_like(weight)])
        division = Division(on_device["row"].repeat(2, 1), of_workers, (len(ids), 0), reducer)
    delta_UG, _ = network(on_device["pert_row"], on_device["pert_node"], weight, division=division)
    (delta_UG.square() * torch.linspace(1, 2, delta_UG.shape[1], device=device)).mean().backward()
    parameters = list(network.parameters())
    if reducer is not None:
        SharedGradients(parameters, reducer).average(torch.zeros(3, dtype=torch.float64, device=device))
    used = [p.grad for p in parameters if p.grad is not None]
    return torch.cat([gradient.reshape(-1) for gradient in used]).cpu().numpy()


def mode(table, setting, name):
    """Losses of two epochs in one way to train, against the CPU."""
    objective, options, model, bound = MODES[name]
    options = {"steps": 4, "epochs": 2, "model": model} | options
    expected, found = (
        losses(train(setting.small, 16, device, objective, **options)) for device in ("cpu", setting.device)
    )
    table.compare(f"as on the CPU: {name}", found, expected, bound)


def option(table, setting, name):
    """What changes arithmetic or time, against the plain run on the same device."""
    more, bound = ({"compile": True}, 2e-3) if name == COMPILED else OPTIONS[name]
    given = {"steps": 20, "epochs": 2, "lr": 1e-3}
    expected = losses(train(setting.small, 16, setting.device, "cells", **given))
    found = losses(train(setting.small, 16, setting.device, "cells", **given, **more))
    table.compare(f"{name}, against the plain run", found, expected, bound)


def binding(table, setting):
    """`gpu_ids` counts the visible devices, and the worker's tensors are on the one chosen."""
    from gears.distributed._devices import plan_devices

    setting.need_gpu()
    last = torch.cuda.device_count() - 1
    (chosen,) = plan_devices(gpu_ids=[last]).devices
    device = str(torch.zeros(1, device=chosen).device)
    table.add(f"gpu_ids=[{last}] of {last + 1}", device, "ok" if device == f"cuda:{last}" else "FAILED")
    try:
        plan_devices(gpu_ids=[last + 1])
        message = "no error"
    except ValueError as error:
        message = str(error)
    verdict = "ok" if "not among the visible" in message else f"FAILED: {message[:150]}"
    table.add(f"gpu_ids=[{last + 1}] is an error", "", verdict)


def two_workers(table, setting):
    """Two processes on one device, whose tensors gloo carries, against one process."""
    need("cloudpickle")
    from gears.distributed._launch import launch

    place = "cuda:0" if setting.device == "cuda" else "cpu"
    expected = losses(train(setting.small, 16, place, "moments", **FLOAT64, epochs=2))
    found = launch(one_worker, (place, place), (place,), backend="gloo", timeout=120)
    table.compare(f"two workers on {place} by gloo: losses as of one", found, expected, 1e-8)


def one_worker(rank, world_size, place):
    """A worker of `two_workers`."""
    from check_data import SIZES, Screen

    workers = {"rank": rank, "world_size": world_size}
    run = train(
        Screen(**SIZES["small"]), 16, place, "moments", **FLOAT64, epochs=2,
        workers=workers, check_replicas=True,
    )  # fmt: skip
    return losses(run)


def group(table, setting):
    """The collectives of the device's backend, in a process group of one."""
    import torch.distributed as dist

    from gears.distributed._devices import choose_backend
    from gears.distributed._group import cleanup_ddp, join_group
    from gears.distributed._world import World

    backend = choose_backend(setting.device)
    place = torch.device("cuda", 0) if setting.device == "cuda" else torch.device(setting.device)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    alone = losses(train(setting.small, 16, place, "cells", steps=8))
    ids = np.arange(16)
    gradient, other = _gradient(setting.small, place, ids), _other_model(place, wrapped=False)
    join_group(World(0, 0, 1, place), store=store, timeout=60)
    try:
        options = {"steps": 8, "check_replicas": True}
        joined = losses(train(setting.small, 16, place, "cells", **options))
        divided = 2 * _gradient(setting.small, place, ids, beside_an_idle_one())
        wrapped = _other_model(place, wrapped=True)
    finally:
        cleanup_ddp()
    table.compare(f"a group of one ({backend}): losses as without", joined, alone, 1e-5)
    of_largest = 1 + np.abs(divided - gradient).max() / np.abs(gradient).max()
    table.compare(f"a group of one ({backend}): global batch norms, gradients", [of_largest], [1.0], 1e-9)
    table.compare(f"a group of one ({backend}): DDP of another model", wrapped, other, 1e-5)


def beside_an_idle_one():
    """Reducer of a group of one that acts as rank 0 of two: all collectives are done, the other has no condition."""
    from gears.distributed._world import GroupReducer

    class BesideAnIdleOne(GroupReducer):
        def __init__(self):
            super().__init__()
            self.world_size = 2

        def gather(self, tensor):
            self.world_size = 1
            try:
                own = super().gather(tensor)
            finally:
                self.world_size = 2
            return torch.cat([own, torch.zeros_like(own)])

    return BesideAnIdleOne()


def _other_model(place, *, wrapped):
    """Gradient of a small network that is not of this package, in DDP if `wrapped`."""
    torch.manual_seed(1)
    layers = [torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)]
    model = torch.nn.Sequential(*layers).to(place)
    inputs = torch.linspace(-1, 1, 32, device=place).view(4, 8)
    called = torch.nn.parallel.DistributedDataParallel(model) if wrapped else model
    called(inputs).square().sum().backward()
    return [1 + float(p.grad.abs().sum()) for p in model.parameters()]


def without_packages(table, setting):
    """Training in a process in which the packages that read and draw screens cannot be imported."""
    expected = losses(train(setting.small, 16, setting.device, "moments", **FLOAT64))
    paths = ",".join((str(HERE), str(HERE.parent)))
    command = [sys.executable, "-c", BLOCK_EXTRA, ",".join(WITHOUT), paths, setting.device]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    found = [float(value) for value in done.stdout.split()[1:]]
    table.compare("runs without anndata and scanpy: losses as with", found, expected, 1e-10)
