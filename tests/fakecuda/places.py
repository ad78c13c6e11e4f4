"""What is asked of GPUs where nothing should be: to choose devices, by a run on the CPU, by other local ranks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import fakecuda

# isort: split

from modes import cells
from screens import prepared

from gears import GEARS, PertData
from gears.distributed import plan_devices

CHOICES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "n_gpus": {"n_gpus": 2},
    "gpu_ids": {"gpu_ids": [1, 0]},
    "device": {"device": "cuda"},
}
RANKS = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}


def chosen(options: dict[str, Any]) -> bool:
    """Whether choosing devices initialises CUDA."""
    fakecuda.reset()
    plan_devices(**options)
    return bool(fakecuda.report()["initialised"])


def refused() -> dict[str, Any]:
    """The message on a GPU that is not there, and whether it initialised CUDA."""
    fakecuda.reset()
    try:
        plan_devices(gpu_ids=[0, 5])
    except ValueError as error:
        return {"message": str(error), "initialised": fakecuda.report()["initialised"]}
    raise AssertionError


def trained_on_cpu(data: PertData, objective: dict[str, Any]) -> dict[str, Any]:
    """What a run on the CPU asks of the GPUs."""
    fakecuda.reset()
    model = GEARS(data, device="cpu")
    model.model_initialize(hidden_size=8)
    model.train(**objective, verbose=False, evaluate_test=False)
    counts = fakecuda.report()
    return {
        "initialised": counts["initialised"],
        "pinned": counts["calls"].get("pin_memory", 0),
        "kernels": sum(counts["kernels"].values()),
        "copies": counts["to_device"],
    }


def pinned_on_gpu(data: PertData) -> int:
    """Tensors that a run on a GPU pins."""
    fakecuda.reset()
    model = GEARS(data, device="cuda")
    model.model_initialize(hidden_size=8)
    model.train(**cells(), verbose=False, evaluate_test=False)
    return int(fakecuda.report()["calls"].get("pin_memory", 0))


def copied_to_prepare(data: PertData) -> int:
    """Copies to the host where a network on a GPU is made ready for predictions, as at each evaluation."""
    model = GEARS(data, device="cuda")
    model.model_initialize(hidden_size=8, uncertainty=True)
    fakecuda.reset()
    model.model.prepared()
    return int(fakecuda.report()["to_host"])


def ranked_on_two(data: PertData) -> dict[str, Any]:
    """Pairs ranked on GPUs 1 and 0 in turn, against the CPU, and what mixed devices."""
    model = GEARS(data, device="cpu")
    model.model_initialize(hidden_size=8, seed=1)
    genes = model.pert_list[:8]
    expected = model.rank_pairs(lambda one: one.delta_UG.mean(1), genes, chunk=5)
    fakecuda.reset()
    found = model.rank_pairs(lambda one: one.delta_UG.mean(1), genes, chunk=5, gpu_ids=[1, 0])
    counts = fakecuda.report()
    same = found["condition"].tolist() == expected["condition"].tolist()
    return {"same": same, "kernels": sum(counts["kernels"].values()), "mixed": counts["mixed"]}


def under_torchrun(data: PertData, device: str | None) -> str:
    """Where the network of local rank 1 is made."""
    os.environ.update(RANKS)
    try:
        model = GEARS(data, device=device)
        model.model_initialize(hidden_size=8)
        return str(model.model.indv_w1.device)
    finally:
        for name in RANKS:
            del os.environ[name]


def main(folder: Path) -> dict[str, Any]:
    data = prepared(folder)
    return {
        "chosen": {name: chosen(options) for name, options in CHOICES.items()},
        "refused": refused(),
        "on the CPU": {"cells": trained_on_cpu(data, cells()), "prior": trained_on_cpu(data, {"steps": 4})},
        "pinned": pinned_on_gpu(data),
        "ranked on two": ranked_on_two(data),
        "copied to prepare": copied_to_prepare(data),
        "under torchrun": [under_torchrun(data, device) for device in (None, "cuda", "cuda:0", "cpu")],
    }
