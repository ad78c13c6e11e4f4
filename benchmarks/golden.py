"""Golden loss curves: kept in golden.json, compared for 1, 2 and 4 workers.

    python benchmarks/run.py golden             compare; exit code 1 where a curve has moved
    python benchmarks/run.py golden --keep      keep the curves again, after a change that is meant to move them

Float64 runs are compared to a relative 1e-6: what rounding leaves after four epochs of Adam is below
it, a change in what is computed is not. Float32 runs are compared to 5e-3, with the same best epoch.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from measuring import Result, table, versions

KEPT = Path(__file__).resolve().parent / "golden.json"
TOLERANCE = {"float64": 1e-6, "float32": 5e-3}
GLOBAL_BATCH = {"cells": 24, "moments": 8}
SCREEN = {"n_genes": 60, "n_singles": 26, "n_pairs": 8, "cells_per_condition": 5, "n_control": 40, "seed": 3}
LR = 1e-3  # at the default of 1e-2 eighty steps blow the rounding of float32 up to another curve
CASES = {
    "cells float64": {"objective": "cells", "dtype": "float64", "uncertainty": True, "lr": LR},
    "moments float64": {"objective": "moments", "dtype": "float64", "uncertainty": True, "lr": LR},
    "cells float32": {"objective": "cells", "dtype": "float32", "uncertainty": False, "lr": LR},
    "moments float32": {"objective": "moments", "dtype": "float32", "uncertainty": False, "lr": LR},
}
COLUMNS = ("train_loss", "val_mse", "val_mse_top20_de", "val_pearson_delta")


def prepare(folder):
    """The screen that all curves are of."""
    from gears import PertData
    from gears.simulate import simulated_screen

    PertData(folder, default_pert_graph=False).new_data_process("golden", simulated_screen(**SCREEN)[0])


def curve(folder, case, rank=0, world_size=1):
    """Columns of the history and the best epoch of one run."""
    from gears import GEARS, PertData

    given = dict(CASES[case])
    data = PertData(folder, default_pert_graph=False)
    data.load("golden")
    data.prepare_split("simulation", seed=3)
    model = GEARS(data, device="cpu")
    model.model_initialize(hidden_size=8, uncertainty=given.pop("uncertainty"))
    size = GLOBAL_BATCH[given["objective"]] // world_size
    if given["objective"] == "cells":
        data.get_dataloader_distributed(size, None, world_size, rank, 0)
    result = model.train(
        **given,
        prior=None,
        batch_size=size,
        epochs=4,
        eval_every=1,
        evaluate_test=False,
        verbose=False,
        check_replicas=True,
    )
    columns = {name: [record[name] for record in result.history] for name in COLUMNS}
    return {**columns, "best_epoch": result.best_epoch}


def curves(rank, world_size, folder):
    """All cases, as a worker."""
    return {case: curve(folder, case, rank, world_size) for case in CASES}


def furthest(found, kept):
    """Largest relative difference of two curves."""
    pairs = [pair for name in COLUMNS for pair in zip(found[name], kept[name], strict=True)]
    return max(abs(a - b) / max(abs(b), 1e-3) for a, b in pairs)


def moved(case, found, kept):
    """What is wrong with a curve; empty where nothing is."""
    difference = furthest(found, kept)
    dtype = CASES[case]["dtype"]
    problems = []
    if difference > TOLERANCE[dtype]:
        problems.append(f"moved by {difference:.1e} (allowed {TOLERANCE[dtype]:.0e})")
    if found["best_epoch"] != kept["best_epoch"]:
        problems.append(f"best epoch {found['best_epoch']}, kept {kept['best_epoch']}")
    return ", ".join(problems)


def golden(workers: tuple[int, ...] = (1, 2, 4), keep: bool = False) -> Iterator[Result]:
    """Every curve beside the one that is kept."""
    from gears.distributed import launch

    rows = []
    with tempfile.TemporaryDirectory(prefix="gears-golden-") as folder:
        prepare(folder)
        if keep:
            made = {"versions": versions(("torch", "numpy", "scipy")), "screen": SCREEN}
            KEPT.write_text(json.dumps(made | {"curves": curves(0, 1, folder)}, indent=1) + "\n")
            return
        kept = json.loads(KEPT.read_text())["curves"]
        for n in workers:
            found = curves(0, 1, folder) if n == 1 else launch(curves, ["cpu"] * n, (folder,), backend="gloo")
            for case in CASES:
                row = {"workers": n, "run": case, "last train_loss": f"{found[case]['train_loss'][-1]:.8f}"}
                row["furthest (relative)"] = f"{furthest(found[case], kept[case]):.1e}"
                rows.append(row | {"verdict": moved(case, found[case], kept[case]) or "as kept"})
    yield Result("Golden curves", table(rows), {"rows": rows})
    if any(row["verdict"] != "as kept" for row in rows):
        raise SystemExit("curves have moved")
