"""What the main job costs: two CPU workers on a screen, from the start of the process to the verdict.

    python benchmarks/run.py main_job --screen SCREEN.h5ad

CPU seconds of the process and all its children, starting and imports included, of two calls of `train_multi_gpu`, in
alternation: `epochs` given, and omitted. A first run, which is not counted, prepares the screen, graphs and prior.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from measuring import Result, cpu_seconds, table

CALLS: dict[str, tuple[dict[str, Any], int]] = {
    "epochs=20 (as in the README)": ({"epochs": 20}, 30),
    "epochs omitted": ({}, 20),
}
"""Options of a call, and the CPU seconds that are wanted on the Norman subset."""


def job(folder: str, call: str) -> None:
    """One job; what it was and what it took by stage as a line of JSON."""
    from gears import train_multi_gpu

    args = {"save_path": f"{folder}/model", "batch_size": 32, **CALLS[call][0]}
    result = train_multi_gpu(folder, "screen", {"split": "simulation", "seed": 1}, args, device="cpu", n_gpus=2)
    steps = 20 * len(result.history)
    print(json.dumps({"epochs": len(result.history), "steps": steps, "seconds": dict(result.seconds)}))


def measured(folder: str, call: str) -> dict[str, Any]:
    """The job in a process of its own, with its CPU seconds."""
    before = cpu_seconds()
    done = subprocess.run(
        [sys.executable, __file__, folder, call],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    return {"cpu_seconds": cpu_seconds() - before, **json.loads(done.stdout.strip().splitlines()[-1])}


def main_job(screen: Path | None = None, repeats: int = 3, small: bool = False) -> Iterator[Result]:
    """Every call in turn; if `small`, the first one once."""
    from gears.simulate import simulate_to_h5ad

    runs: dict[str, list[dict[str, Any]]] = {call: [] for call in list(CALLS)[: 1 if small else None]}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "screen.h5ad"
        if screen is None:
            simulate_to_h5ad(path, n_genes=60, n_singles=20, n_pairs=10, cells_per_condition=10, seed=1)
        else:
            shutil.copy(screen, path)
        if not small:
            measured(folder, "epochs omitted")  # prepares
        for _ in range(repeats):
            for call in runs:
                runs[call].append(measured(folder, call))
    rows = []
    for call, of_call in runs.items():
        used, first = [run["cpu_seconds"] for run in of_call], of_call[0]
        every = ", ".join(f"{value:.1f}" for value in used)
        row = {"call": call, "epochs": first["epochs"], "steps": first["steps"]}
        row |= {"CPU s: median (all)": f"{statistics.median(used):.1f} ({every})"}
        row |= {"wanted on the Norman subset": "" if screen is None else CALLS[call][1]}
        stages = ", ".join(f"{stage} {value:.1f}" for stage, value in first["seconds"].items())
        rows.append(row | {"wall s by stage (first run)": stages})
    yield Result("The main job: two CPU workers", table(rows), {"runs": runs})


if __name__ == "__main__":
    job(*sys.argv[1:])
