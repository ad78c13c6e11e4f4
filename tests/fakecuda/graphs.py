"""Train over moments with and without the CUDA graph of a step on a pretended GPU.

python tests/fakecuda/graphs.py
"""

from __future__ import annotations

import json
import logging
import tempfile
import warnings
from pathlib import Path
from typing import Any

import fakecuda

# isort: split

import torch
from modes import difference, moments
from screens import prepared

from gears import GEARS

CASES: dict[str, Any] = {
    "plain": {},
    "uncertainty": {"model": {"uncertainty": True}},
    "bfloat16": {"train": {"use_amp": True, "dtype": "float32"}},
    "contexts": {"screen": "lines"},
}


def outcome(case: dict[str, Any], folder: Path, *, graph: bool) -> dict[str, Any]:
    data = prepared(folder, case.get("screen", "small"))
    model = GEARS(data, device="cuda:0")
    model.model_initialize(hidden_size=16, seed=1, **case.get("model", {}))
    fakecuda.reset()
    train = {"dtype": "float64", **case.get("train", {})}
    options = moments(3, cuda_graph=graph, verbose=False, evaluate_test=False, **train)
    result = model.train(**options)
    return {
        "losses": [epoch["train_loss"] for epoch in result.history],
        "changes": model.predict(model.pert_list[:4]).delta_UG,
        "calls": {name: n for name, n in fakecuda.report()["calls"].items() if name.startswith("graph")},
    }


def main(folder: Path) -> dict[str, Any]:
    found = {}
    for name, case in CASES.items():
        plain, graph = (outcome(case, folder, graph=graph) for graph in (False, True))
        found[name] = {what: difference(graph[what], plain[what]) for what in ("losses", "changes")} | graph[
            "calls"
        ]
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("gears").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        print("FOUND " + json.dumps(main(Path(folder))))
