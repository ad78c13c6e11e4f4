"""Peak memory of a few steps on a pretended GPU: what is advised where the memory is full has to lower it."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import fakecuda

# isort: split

from screens import prepared

from gears import GEARS, PertData

CASES: dict[str, dict[str, Any]] = {
    "moments, 32": {"objective": "moments", "batch_size": 32},
    "moments, 16": {"objective": "moments", "batch_size": 16},
    "cells, 32": {"objective": "cells"},
    "cells, 2 x 16": {"objective": "cells", "accumulation_steps": 2},
    "cells, 32, use_amp": {"objective": "cells", "use_amp": True},
}


def peak(data: PertData, options: dict[str, Any]) -> float:
    """MiB beyond what was in use before."""
    model = GEARS(data, device="cuda:0")
    model.model_initialize(hidden_size=64)
    assert model.best_model is not None  # made now: the weights are in use before training
    gc.collect()  # models of other cases
    fakecuda.reset()
    before = fakecuda.report()["live"]
    model.train(**options, prior=None, steps=2, eval_every=1000, evaluate_test=False, verbose=False)
    return float((fakecuda.report()["peak"] - before) / 2**20)


def main(folder: Path) -> dict[str, float]:
    data = prepared(folder, "counted", n_genes=400, cells_per_condition=6, n_control=60)
    found = {}
    for name, options in CASES.items():
        data.get_dataloader(batch_size=16 if "16" in name else 32)
        found[name] = round(peak(data, options), 1)
    return found
