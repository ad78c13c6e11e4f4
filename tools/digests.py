"""Digests of what prior, head, training and evaluation give on three small screens: is a rearrangement exact?

python tools/digests.py > before     (on the commit before)
python tools/digests.py | diff before -

Digests depend on machine and versions; they are compared on one machine, never kept.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd

from gears import GEARS, PertData, simulated_screen

SCREENS: dict[str, dict[str, Any]] = {
    "singles": {"n_genes": 120, "n_singles": 60, "n_pairs": 0, "n_modules": 12, "module_share": 0.8},
    "pairs": {"n_genes": 80, "n_singles": 20, "n_pairs": 24, "interaction_share": 0.3},
    "contexts": {"n_genes": 60, "n_singles": 16, "n_pairs": 8, "cell_types": 2},
}
TRAININGS: dict[str, dict[str, Any]] = {
    "prior": {"epochs": 0},
    "prior and head": {"steps": 1, "lr": 1e-12},
    "network over moments": {"prior": None, "epochs": 2, "dtype": "float64"},
    "network over cells": {"prior": None, "steps": 12, "objective": "cells", "dtype": "float64"},
    "everything": {"epochs": 3, "dtype": "float64"},
}


def digest(values: Any) -> str:
    """First 16 characters of the hash of a table's or an array's content."""
    if isinstance(values, pd.DataFrame):
        return hashlib.sha256(values.to_csv(index=False).encode()).hexdigest()[:16]
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()[:16]


def main() -> None:
    """Print a line for each screen, training and what it gave."""
    logging.getLogger("gears").setLevel(logging.ERROR)
    for name, options in SCREENS.items():
        adata, _ = simulated_screen(cells_per_condition=20, n_control=200, seed=5, **options)
        contexts = {"context_key": "cell_type"} if "cell_types" in options else {}
        with tempfile.TemporaryDirectory() as folder:
            data = PertData(folder, default_pert_graph=False)
            data.new_data_process("screen", adata, **contexts)
            data.prepare_split("simulation", seed=1)
            for training, given in TRAININGS.items():
                model = GEARS(data, device="cpu")
                model.model_initialize(hidden_size=16, seed=1)
                result = model.train(evaluate_test=False, verbose=False, **given)
                tested = list(data.split.conditions("test"))
                predicted = model.predict(tested)
                sd = predicted.sd
                history = pd.DataFrame(result.history).filter(regex="loss|^val")
                print(
                    f"{name}, {training}: predictions {digest(predicted.delta_UG)} "
                    f"sd {'-' if sd is None else digest(sd)} history {digest(history)}"
                )
                if training == "everything":
                    print(f"{name}, evaluation: {digest(model.evaluate('test'))}", flush=True)


if __name__ == "__main__":
    main()
