"""What stays equal in which kind of training: bits with `reproducible=True`, differences without it, and the cost.

    python benchmarks/reproducible.py [--screen SCREEN.h5ad] [--workers 1 2 3 4]

Three parts, on one prepared screen with the same global batch:

checksums   `reproducible=True` with W workers, 1 and 2 threads each, and continued by W workers from a checkpoint of
            one; SHA-256 of weights, history (without seconds) and predictions
promises    without it: differences of predicted changes after training between two runs that should agree
cost        CPU seconds of all workers for the same steps, with and without it, alternating; operators and collectives
            of a step on the pretended GPU of the tests
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.append(str(Path(__file__).resolve().parent))

from measuring import command, commit, machine, versions

from gears import GEARS, PertData
from gears.core.messages import count
from gears.distributed import launch
from gears.simulate import simulated_screen
from gears.training.workers import plain_state

ROOT = Path(__file__).resolve().parents[1]
BATCH = 24
CASES: dict[str, dict[str, Any]] = {
    "moments, prior and head": {},
    "cells, prior=None": {"objective": "cells", "prior": None},
}
PRECISIONS: dict[str, dict[str, Any]] = {
    "float64": {"dtype": "float64"},
    "float32": {},
    "bfloat16": {"use_amp": True},
}
SIMULATED = {
    "n_genes": 120,
    "n_singles": 60,
    "n_pairs": 10,
    "cells_per_condition": 8,
    "n_control": 80,
    "seed": 3,
}


def opened(folder: Path) -> PertData:
    """The prepared screen with its split."""
    data = PertData(folder, default_pert_graph=False)
    data.load("screen")
    data.prepare_split("simulation", seed=1)
    return data


def trained(data: PertData, rank: int, world_size: int, threads: int, **options: Any) -> dict[str, Any]:
    """Checksums, predicted changes and CPU seconds of a run, as one worker."""
    torch.set_num_threads(threads)
    size = BATCH // world_size
    data.dataloader = {}
    if options.get("objective") == "cells":
        data.get_dataloader_distributed(size, None, world_size, rank, 0)
    model = GEARS(data, device="cpu")
    model.model_initialize(hidden_size=32, seed=1)
    start = time.process_time()
    result = model.train(**options, batch_size=size, verbose=False, evaluate_test=False)
    used = time.process_time() - start
    history = [{key: value for key, value in record.items() if key != "seconds"} for record in result.history]
    delta_UG = model.predict(data.split.conditions("test")).delta_UG
    weights = (tensor.numpy().tobytes() for tensor in plain_state(model.best_model).values())
    return {
        "weights": sha256(*weights),
        "history": sha256(json.dumps(history).encode()),
        "predictions": sha256(delta_UG.tobytes()),
        "delta_UG": delta_UG,
        "cpu_s": used,
    }


def sha256(*parts: bytes) -> str:
    """First twelve digits of a checksum."""
    checksum = hashlib.sha256()
    for part in parts:
        checksum.update(part)
    return checksum.hexdigest()[:12]


def equal_runs(rank: int, world_size: int, folder: str, epochs: int) -> dict[str, Any]:
    """Runs with ``reproducible=True``, by case and how they were made."""
    data, found = opened(Path(folder)), {}
    for number, (name, case) in enumerate(CASES.items()):
        options = {**case, "epochs": epochs, "reproducible": True}
        for threads in (1, 2):
            found[name, count(threads, "thread")] = trained(data, rank, world_size, threads, **options)
        path = Path(folder, f"resumed-{number}-{world_size}")
        if world_size == 1:
            saved = Path(folder, f"begun-{number}")
            trained(
                data, rank, 1, 1, **options, save_path=str(saved), checkpoint_every_steps=3, keep_last=1000
            )
            cut_off(saved)
        if rank == 0:
            shutil.copytree(Path(folder, f"begun-{number}"), path)
        if world_size > 1:
            torch.distributed.barrier()
        resumed = {"save_path": str(path), "resume": True}
        found[name, "resumed"] = trained(data, rank, world_size, 2, **options, **resumed)
    return found


def cut_off(folder: Path) -> None:
    """Leave no checkpoint after the first one within the last epoch."""
    files = sorted((folder / "checkpoints").iterdir())
    within = [file for file in files if not file.name.endswith("step-0000000.pt")]
    last_epoch = max(file.name.split("-step-")[0] for file in within)
    first = next(file for file in within if file.name.startswith(last_epoch))
    for file in files[files.index(first) + 1 :]:
        file.unlink()


def other_runs(rank: int, world_size: int, folder: str, epochs: int) -> dict[str, Any]:
    """Runs without it, by precision and threads; the network alone, whose steps amplify rounding."""
    data = opened(Path(folder))
    return {
        (name, threads, repeat): trained(
            data, rank, world_size, threads, prior=None, epochs=epochs, **options
        )
        for name, options in PRECISIONS.items()
        for threads, repeat in (((1, 0), (1, 1), (2, 0)) if world_size == 1 else ((1, 0), (1, 1)))
    }


def costs(rank: int, world_size: int, folder: str, repeats: int) -> dict[bool, list[float]]:
    """CPU seconds of all workers for two epochs, with and without ``reproducible=True``, alternating."""
    data = opened(Path(folder))
    used: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(repeats):
        for reproducible in used:
            one = trained(data, rank, world_size, 1, prior=None, epochs=2, reproducible=reproducible)
            total = torch.tensor([one["cpu_s"]], dtype=torch.float64)
            if world_size > 1:
                torch.distributed.all_reduce(total)
            used[reproducible].append(float(total))
    return used


def by_workers(function: Any, world_size: int, *arguments: Any) -> Any:
    """What rank 0 of a number of workers returns."""
    if world_size == 1:
        return function(0, 1, *arguments)
    return launch(function, ["cpu"] * world_size, arguments, backend="gloo")


def on_a_pretended_gpu(reproducible: bool) -> dict[str, Any]:
    """Operators of a step over moments on the pretended GPU, and of its collectives on two of them."""
    options = ["--train", f"reproducible={reproducible}"]
    counted = said(["tests/fakecuda/counting.py", "moments", "--steps", "16", *options])
    case = "reproducible" if reproducible else "moments"
    together = said(["tests/fakecuda/two_gpus.py", case])[case]
    return {"operators": counted["operators_per_step"], "collectives": len(together["of a step"])}


def said(words: list[str]) -> dict[str, Any]:
    """What a script of the tests found."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    (line,) = re.findall(r"^FOUND (.*)$", done.stdout, flags=re.MULTILINE)
    return json.loads(line)


def checksum_table(found: dict[int, dict[str, Any]]) -> tuple[list[str], bool]:
    """Rows of the table, and whether the checksums of each case are equal."""
    rows = ["| training | workers | how | weights | history | predictions |", "|---" * 6 + "|"]
    kinds: dict[str, set[tuple[str, ...]]] = {}
    for name in CASES:
        for world_size, runs in found.items():
            for (case, how), run in runs.items():
                if case != name:
                    continue
                sums = (run["weights"], run["history"], run["predictions"])
                kinds.setdefault(name, set()).add(sums)
                rows.append(f"| {name} | {world_size} | {how} | {' | '.join(sums)} |")
    return rows, all(len(sums) == 1 for sums in kinds.values())


def promise_table(one: dict[Any, Any], two: dict[Any, Any]) -> list[str]:
    """Rows of differences of predicted changes, largest and median."""
    rows = [
        "| precision | the same again | other threads | other workers | other workers, the same again |",
        "|---" * 5 + "|",
    ]
    for name in PRECISIONS:
        pairs = [
            (one[name, 1, 1], one[name, 1, 0]),
            (one[name, 2, 0], one[name, 1, 0]),
            (two[name, 1, 0], one[name, 1, 0]),
            (two[name, 1, 1], two[name, 1, 0]),
        ]
        rows.append(f"| {name} | " + " | ".join(difference(*pair) for pair in pairs) + " |")
    return rows


def difference(left: dict[str, Any], right: dict[str, Any]) -> str:
    """Largest and median absolute difference of predicted changes."""
    if left["predictions"] == right["predictions"] and left["weights"] == right["weights"]:
        return "equal bits"
    apart_UG = np.abs(left["delta_UG"] - right["delta_UG"])
    return f"{apart_UG.max():.1e} ({np.median(apart_UG):.1e})"


def main() -> None:
    """Run all parts, print and keep the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--screen", type=Path, help="an h5ad file instead of a small simulated screen")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--epochs", type=int, default=2, help="of the runs with checksums")
    parser.add_argument("--promised-epochs", type=int, default=20, help="of the runs that are compared")
    parser.add_argument("--repeats", type=int, default=3, help="of the measured costs")
    parser.add_argument("--no-gpu", action="store_true", help="without the pretended GPU, which needs g++")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args()
    logging.getLogger("gears").setLevel(logging.ERROR)
    text = ["# The same bits", ""]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.screen is None:
            data = PertData(folder, default_pert_graph=False)
            data.new_data_process("screen", simulated_screen(**SIMULATED)[0])
        else:
            shutil.copy(options.screen, folder / "screen.h5ad")
        found = {w: by_workers(equal_runs, w, str(folder), options.epochs) for w in options.workers}
        rows, equal = checksum_table(found)
        print("\n".join(rows), f"all equal: {equal}", sep="\n", flush=True)
        promises = promise_table(
            *(by_workers(other_runs, w, str(folder), options.promised_epochs) for w in (1, 2))
        )
        print("\n".join(promises), flush=True)
        used = {w: by_workers(costs, w, str(folder), options.repeats) for w in (1, 2)}
    cost = ["| CPU seconds of 40 steps | ordinary | `reproducible=True` | factor |", "|---" * 4 + "|"]
    for world_size, seconds in used.items():
        plain, exact = (statistics.median(seconds[kind]) for kind in (False, True))
        cost.append(f"| {count(world_size, 'worker')} | {plain:.2f} | {exact:.2f} | {exact / plain:.1f} |")
    if not options.no_gpu:
        gpu = [on_a_pretended_gpu(reproducible) for reproducible in (False, True)]
        for what, label in (
            ("operators", "operators of a step, 1 GPU"),
            ("collectives", "collectives, 2 GPUs"),
        ):
            plain, exact = gpu[0][what], gpu[1][what]
            cost.append(f"| {label} | {plain:.0f} | {exact:.0f} | {exact / plain:.1f} |")
    print("\n".join(cost), flush=True)
    about = {
        "machine": machine(),
        "load when it ended": round(os.getloadavg()[0], 1),
        "versions": versions(("torch", "numpy")),
        "commit": commit(ROOT),
        "command": command(),
        "screen": "simulated" if options.screen is None else options.screen.name,
    }
    text += [f"- {key}: {value}" for key, value in about.items()]
    text += ["", f"## Checksums with `reproducible=True` (all equal: {equal})", "", *rows]
    text += [
        "", f"## Without it: differences of predicted changes after {options.promised_epochs} epochs", "",
        "Largest (median); `prior=None`, one and two workers, one and two threads.", "", *promises,
        "", "## Cost", "", *cost, "",
    ]  # fmt: skip
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "reproducible.md").write_text("\n".join(text))
    raise SystemExit(not equal)


if __name__ == "__main__":
    main()
