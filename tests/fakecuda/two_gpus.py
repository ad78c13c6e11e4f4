"""`train_multi_gpu` on two pretended GPUs against one CPU process with the same global batch.

    python tests/fakecuda/two_gpus.py NAME ...      the cases named

GPUs 1 and 0, in this order, so that rank and GPU differ, and by the rules of NCCL alone, which refuses tensors of the
host. One JSON object: for each case the largest relative difference in losses and predicted changes, the devices, calls
of ``torch.cuda`` in the parent and the collectives of a step.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import fakecuda
import fakenccl  # noqa: F401  (registers the backend here; site/ does so in the workers)

# isort: split

import torch
from modes import cells, difference, moments
from screens import screen_file

from gears import GEARS, train_multi_gpu

BATCH = 16  # cells or conditions over all workers
CASES: dict[str, dict[str, Any]] = {
    "cells": cells(dtype="float64", check_replicas=True),
    "moments": moments(3, dtype="float64"),
    "reproducible": moments(dtype="float64", reproducible=True),
}


def trained(case: dict[str, Any], folder: Path, name: str, n_workers: int, **where: Any) -> Any:
    """The result of a case, saved below `folder` by name."""
    options = {**case, "verbose": False, "save_path": str(folder / name), "batch_size": BATCH // n_workers}
    options["model_config"] = {"hidden_size": 16, **case.get("model_config", {})}
    return train_multi_gpu(folder, "small", {"split": "simulation", "seed": 1}, options, **where)


def pretend_in_workers(log: Path) -> None:
    """Set the environment that spawned workers start with."""
    site = Path(__file__).resolve().with_name("site")
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ.update(FAKECUDA="1", PYTHONPATH=os.pathsep.join(paths), FAKENCCL_LOG=str(log), FAKENCCL_STRICT="1")


def compare(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    screen_file(folder, "small")
    one = trained(case, folder, "one", 1, n_gpus=1, device="cpu")
    log = folder / "collectives"
    pretend_in_workers(log)
    fakecuda.reset()
    two = trained(case, folder, "two", 2, gpu_ids=[1, 0], backend="fakenccl")
    parent = fakecuda.report()
    losses, expected = ([epoch["train_loss"] for epoch in result.history] for result in (two, one))
    changes, expected_changes = (predicted(result.save_path) for result in (two, one))
    return {
        "losses": difference(losses, expected),
        "changes": difference(changes, expected_changes),
        "devices": list(two.devices),
        # once the workers have ended, the model is scored on a GPU
        "cuda in the parent": parent["initialised"] and "conclude" not in parent["initialised_by"],
        "calls in the parent": parent["calls"],
        "of a step": of_a_step(log.with_suffix(".0")),
    }


def predicted(path: str) -> Any:
    model = GEARS.from_pretrained(path, device="cpu")
    return model.predict(model.pert_list[:3]).delta_UG


def of_a_step(log: Path) -> list[str]:
    """Kinds and askers of the collectives from one reduction of gradients to the next, most frequent case."""
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    asked = [f"{entry['kind']} by {entry['asked_by'][-2].split(':', 2)[2]}" for entry in entries]
    ends = [place for place, what in enumerate(asked) if what.endswith("by average")]
    if not ends:  # shards exchange everything in one place: the gradients are the largest
        sizes = [entry["bytes"] for entry in entries]
        ends = [place for place, size in enumerate(sizes) if size == max(sizes)]
    steps = Counter(tuple(asked[start + 1 : end + 1]) for start, end in itertools.pairwise(ends))
    return list(steps.most_common(1)[0][0])


def main() -> None:
    found = {}
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            found[name] = compare(CASES[name], Path(folder))
    print("FOUND " + json.dumps(found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("gears").setLevel(logging.ERROR)
    main()
