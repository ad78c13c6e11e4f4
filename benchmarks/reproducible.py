"""What stays equal in which kind of training: bits with `reproducible=True`, differences without it, and the cost.

    python benchmarks/run.py reproducible --screen SCREEN.h5ad --workers 1 2 3 4

Three parts, on one prepared screen with the same global batch:

checksums   `reproducible=True` with W workers, 1 and 2 threads each, and continued by W workers from a checkpoint of
            one; SHA-256 of weights, history (without seconds) and predictions
promises    without it: differences of predicted changes after training between two runs that should agree
cost        CPU seconds of all workers for the same steps, with and without it, alternating; operators and collectives
            of a step on the pretended GPU of the tests
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import Result, table

from gears import GEARS, PertData
from gears.core._messages import count
from gears.distributed import launch
from gears.simulate import simulated_screen
from gears.training._workers import plain_state

ROOT = Path(__file__).resolve().parents[1]
BATCH = 24
CASES: dict[str, dict[str, Any]] = {
    "moments, prior and head": {},
    "cells, prior=None": {"objective": "cells", "prior": None},
}
PRECISIONS: dict[str, dict[str, Any]] = {"float64": {"dtype": "float64"}, "float32": {}, "bfloat16": {"use_amp": True}}
SIMULATED = {"n_genes": 120, "n_singles": 60, "n_pairs": 10, "cells_per_condition": 8, "n_control": 80, "seed": 3}
SMALL = {"n_genes": 40, "n_singles": 24, "n_pairs": 6}


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
            trained(data, rank, 1, 1, **options, save_path=str(saved), checkpoint_every_steps=3, keep_last=1000)
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
        (name, threads, repeat): trained(data, rank, world_size, threads, prior=None, epochs=epochs, **options)
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


def difference(left: dict[str, Any], right: dict[str, Any]) -> str:
    """Largest and median absolute difference of predicted changes."""
    if left["predictions"] == right["predictions"] and left["weights"] == right["weights"]:
        return "equal bits"
    apart_UG = np.abs(left["delta_UG"] - right["delta_UG"])
    return f"{apart_UG.max():.1e} ({np.median(apart_UG):.1e})"


def promises(one: dict[Any, Any], two: dict[Any, Any]) -> list[dict[str, str]]:
    """Differences of predicted changes between runs of one and of two workers, largest and median."""
    return [
        {
            "precision": name,
            "the same again": difference(one[name, 1, 1], one[name, 1, 0]),
            "other threads": difference(one[name, 2, 0], one[name, 1, 0]),
            "other workers": difference(two[name, 1, 0], one[name, 1, 0]),
            "other workers, the same again": difference(two[name, 1, 1], two[name, 1, 0]),
        }
        for name in PRECISIONS
    ]


def cost_row(what: str, plain: float, exact: float) -> dict[str, Any]:
    """A row of the table of costs."""
    return {"cost": what, "ordinary": plain, "`reproducible=True`": exact, "factor": exact / plain}


def reproducible(
    screen: Path | None = None,
    workers: tuple[int, ...] = (1, 2, 3, 4),
    epochs: int = 2,
    promised_epochs: int = 20,
    repeats: int = 3,
    no_gpu: bool = False,
    small: bool = False,
) -> Iterator[Result]:
    """Checksums, promises and costs; `no_gpu`: without the pretended GPU, which needs g++."""
    with tempfile.TemporaryDirectory() as name:
        if screen is None:
            data = PertData(name, default_pert_graph=False)
            data.new_data_process("screen", simulated_screen(**SIMULATED | (SMALL if small else {}))[0])
        else:
            shutil.copy(screen, Path(name) / "screen.h5ad")
        rows = [
            {"training": case, "workers": n, "how": how}
            | {key: run[key] for key in ("weights", "history", "predictions")}
            for n in workers
            for (case, how), run in by_workers(equal_runs, n, name, epochs).items()
        ]
        sums = {tuple(row.values())[3:] for row in rows}
        equal = len(sums) == len(CASES)
        promised = promises(*(by_workers(other_runs, n, name, promised_epochs) for n in (1, 2)))
        cost = []
        for n in (1,) if small else (1, 2):
            used = by_workers(costs, n, name, repeats)
            medians = (statistics.median(used[exact]) for exact in (False, True))
            cost.append(cost_row(f"CPU seconds of 40 steps, {count(n, 'worker')}", *medians))
    if not no_gpu:
        plain, exact = (on_a_pretended_gpu(one) for one in (False, True))
        cost.append(cost_row("operators of a step, 1 GPU", plain["operators"], exact["operators"]))
        cost.append(cost_row("collectives, 2 GPUs", plain["collectives"], exact["collectives"]))
    lines = [f"## Checksums with `reproducible=True` (all equal: {equal})", "", *table(rows)]
    lines += ["", f"## Without it: differences of predicted changes after {promised_epochs} epochs", ""]
    lines += ["Largest (median); `prior=None`, one and two workers, one and two threads.", ""]
    lines += [*table(promised), "", "## Cost", "", *table(cost)]
    record = {"checksums": rows, "promises": promised, "cost": cost}
    yield Result("The same bits", lines, record | {"screen": screen.name if screen else "simulated"})
    if not equal:
        raise SystemExit("checksums differ")
