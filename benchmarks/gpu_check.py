"""Everything that needs a GPU, checked and timed in one go (under five minutes), as one table.

    python benchmarks/gpu_check.py                               on a machine with a GPU
    python benchmarks/gpu_check.py --device cpu --size small     the same code on the CPU

Needs torch, numpy and scipy (no anndata, no scanpy). Checks, on one device and with a process
group of one (NCCL on CUDA): losses of CPU and device in float64 and float32; mixed precision,
TF32, torch.compile and a moving average against the plain run; choosing a GPU by `gpu_ids`; and
the seconds of an epoch on a simulated screen of the size of Norman et al. 2019 in both objectives.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from check_data import Screen, stand_in_for_missing  # noqa: E402

SIZES = {
    # 91,205 cells x 5,045 genes, 284 conditions with the control; the cells drawn stand for all in turn
    "norman": {"n_genes": 5045, "n_singles": 131, "n_pairs": 152, "n_cells": 91_205, "distinct": 12_000},
    "small": {"n_genes": 80, "n_singles": 12, "n_pairs": 10, "n_cells": 900},
}
BATCHES = {"norman": (32, 512), "small": (32,)}
HIDDEN = {"norman": 64, "small": 16}


class Table:
    """Rows of (what, figure, verdict), printed as they come."""

    def __init__(self, quiet=False):
        self.rows, self.quiet = [], quiet

    def add(self, what, figure, verdict=""):
        self.rows.append({"what": what, "figure": figure, "verdict": verdict})
        if not self.quiet:
            print(f"{what:<58}{figure:>26}  {verdict}", flush=True)

    def compare(self, what, found, expected, bound):
        """A relative difference that must stay within a bound."""
        difference = max(abs(a - b) / max(abs(b), 1e-12) for a, b in zip(found, expected, strict=True))
        self.add(what, f"{difference:.1e} (<= {bound:g})", "ok" if difference <= bound else "FAILED")

    @contextlib.contextmanager
    def checking(self, what):
        """A check that raises is a line of the table, not the end of it."""
        try:
            yield
        except Exception as error:
            self.add(
                what,
                type(error).__name__,
                f"FAILED: {str(error).splitlines()[0][:150] if str(error) else ''}",
            )

    @property
    def failed(self):
        return any(row["verdict"].startswith("FAILED") for row in self.rows)


def train(screen, size, device, objective, *, batch_size=32, steps=None, distributed=False, **options):
    """One run by the package's own training; history and weights."""
    import torch

    from gears.training.options import TrainOptions
    from gears.training.run import run_training

    parts = screen.parts(HIDDEN[size])
    epochs = options.pop("epochs", 1)
    given = TrainOptions(
        objective=objective, epochs=epochs, monitor="mse", verbose=False, schedule="constant", **options
    )
    loader = (
        screen.cell_loader(batch_size, steps=steps) if objective == "cells" else screen.condition_loader()
    )
    run = run_training(
        parts.network(seed=1), screen.tables, screen.pairs, loader, parts,
        given.with_defaults(batch_size), screen.validation,
        device=torch.device(device), distributed=distributed,
    )  # fmt: skip
    return run


def losses(run):
    return [record["train_loss"] for record in run.history] + [run.history[-1]["val_mse"]]


def check_exactness(table, screen, size, device):
    """The device against the CPU, in both precisions and both objectives."""
    for dtype, bound in (("float64", 1e-8), ("float32", 2e-3)):
        for objective in ("cells", "moments"):
            what = f"{device} against cpu, {objective}, {dtype}: losses"
            with table.checking(what):
                options = {"dtype": dtype, "steps": 4, "epochs": 2}
                one, other = (
                    losses(train(screen, size, place, objective, **options)) for place in ("cpu", device)
                )
                table.compare(what, other, one, bound)


def check_options(table, screen, size, device, skip=()):
    """What changes arithmetic or time, against the plain run on the device."""
    options = {"steps": 20, "epochs": 2}
    plain = losses(train(screen, size, device, "cells", **options))
    kinds = {
        "bfloat16 autocast": ({"use_amp": True}, 0.05),
        "float16 with gradient scaling": (
            {"use_amp": True, "amp_dtype": "float16", "init_scale": 2.0**12, "growth_interval": 10}, 0.05,
        ),
        "TF32": ({"tf32": True}, 0.02),
        "moving average (training loss)": ({"use_ema": True}, None),
        "torch.compile": ({"compile": True}, 2e-3),
    }  # fmt: skip
    for name, (more, bound) in kinds.items():
        if name in skip:
            continue
        with table.checking(name):
            start = time.perf_counter()
            found = losses(train(screen, size, device, "cells", **options, **more))
            seconds = time.perf_counter() - start
            if bound is None:  # the average is validated; the weights that are trained are the same
                found, expected, bound = found[:-1], plain[:-1], 1e-5
            else:
                expected = plain
            table.compare(f"{name}, 40 steps in {seconds:.1f} s", found, expected, bound)


def check_group(table, screen, size, device):
    """A process group of one: the collectives of the device's backend inside a training."""
    import torch
    import torch.distributed as dist

    from gears.distributed.devices import choose_backend
    from gears.distributed.group import cleanup_ddp, join_group
    from gears.distributed.world import World

    backend = choose_backend(torch.device(device).type)
    what = f"process group of one ({backend})"
    with table.checking(what):
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        place = torch.device("cuda", 0) if device == "cuda" else torch.device(device)
        alone = losses(train(screen, size, place, "cells", steps=8))
        join_group(World(0, 0, 1, place), store=store, timeout=60)
        try:
            options = {"steps": 8, "distributed": True, "check_replicas": True}
            joined = losses(train(screen, size, place, "cells", **options))
        finally:
            cleanup_ddp()
        table.compare(f"{what}: losses as without", joined, alone, 1e-5)


def check_binding(table, device):
    """`gpu_ids` counts the visible devices, and the worker's tensors land on the one chosen."""
    import torch

    from gears.distributed.devices import plan_devices

    if device != "cuda":
        table.add("gpu_ids binding", "no GPU", "not run")
        return
    with table.checking("gpu_ids binding"):
        last = torch.cuda.device_count() - 1
        (chosen,) = plan_devices(gpu_ids=[last]).devices
        landed = str(torch.zeros(1, device=chosen).device)
        table.add(f"gpu_ids=[{last}] of {last + 1}", landed, "ok" if landed == f"cuda:{last}" else "FAILED")
        code = (
            "from gears.distributed.devices import plan_devices\n"
            "try:\n    plan_devices(gpu_ids=[1])\nexcept ValueError as error:\n    print(error)\n"
            "print(plan_devices(gpu_ids=[0]).devices)"
        )
        setup = (
            f"import sys; sys.path[:0] = {sys.path[:2]!r}; from check_data import *; stand_in_for_missing()\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", setup + code], capture_output=True, text=True, check=True,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": str(last)},
        )  # fmt: skip
        good = "not among the visible" in done.stdout and "('cuda:0',)" in done.stdout
        table.add(
            f"CUDA_VISIBLE_DEVICES={last}: ids count from 0",
            done.stdout.split()[-1],
            "ok" if good else "FAILED",
        )


def time_epochs(table, screen, size, device):
    """Seconds of an epoch, from a part of it where a whole one would take too long."""
    for batch_size in BATCHES[size]:
        for name, more in (("float32", {}), ("bfloat16", {"use_amp": True}), ("TF32", {"tf32": True})):
            if name != "float32" and device != "cuda":
                continue
            what = f"cells, batch {batch_size}, {name}"
            with table.checking(what):
                whole = len(screen.cell_loader(batch_size))
                steps = min(whole, 60)
                train(screen, size, device, "cells", batch_size=batch_size, steps=3, **more)
                run = train(screen, size, device, "cells", batch_size=batch_size, steps=steps, **more)
                seconds = run.history[-1]["seconds"]
                per_step = (seconds["total"] - seconds["evaluation"]) / steps
                table.add(
                    f"{what}: s an epoch ({whole} steps, {steps} timed)", f"{per_step * whole:.2f}",
                    f"{seconds['cells_per_second']:.0f} cells/s, {seconds['data'] / seconds['total']:.0%} data",
                )  # fmt: skip
    for name, more in (("float32", {}), ("TF32", {"tf32": True})):
        if name != "float32" and device != "cuda":
            continue
        with table.checking(f"moments, {name}"):
            run = train(screen, size, device, "moments", epochs=6, eval_every=6, **more)
            timed = [record["seconds"] for record in run.history[1:-1]]
            each = sum(seconds["total"] for seconds in timed) / len(timed)
            rate = sum(seconds["conditions_per_second"] for seconds in timed) / len(timed)
            table.add(
                f"moments, 32 conditions a step, {name}: s an epoch",
                f"{each:.3f}",
                f"{rate:.0f} conditions/s",
            )


def describe(device):
    """Card and versions."""
    import numpy
    import scipy
    import torch

    card = torch.cuda.get_device_name(0) if device == "cuda" else (platform.processor() or platform.machine())
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if device == "cuda" else None
    return {
        "device": device, "card": card, "python": platform.python_version(), "torch": torch.__version__,
        "cuda": torch.version.cuda, "nccl": nccl, "numpy": numpy.__version__, "scipy": scipy.__version__,
        "commit": commit(), "command": " ".join(["python benchmarks/gpu_check.py", *sys.argv[1:]]),
    }  # fmt: skip


def commit():
    try:
        return subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--size", choices=sorted(SIZES), default="norman")
    parser.add_argument("--skip-compile", action="store_true", help="torch.compile takes a minute")
    parser.add_argument("--json", type=Path, help="file for the table")
    options = parser.parse_args(arguments)
    missing = stand_in_for_missing()
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        print("no GPU is visible; --device cpu --size small runs the same code on the CPU", file=sys.stderr)
        return 2
    began = time.perf_counter()
    place, table = describe(options.device), Table()
    print("  ".join(f"{name} {value}" for name, value in place.items() if value))
    if missing:
        print(f"not installed, not needed: {', '.join(missing)}")
    small = Screen(**SIZES["small"])
    check_exactness(table, small, "small", options.device)
    skip = ("torch.compile",) if options.skip_compile else ()
    check_options(table, small, "small", options.device, skip)
    check_group(table, small, "small", options.device)
    check_binding(table, options.device)
    start = time.perf_counter()
    screen = small if options.size == "small" else Screen(**SIZES[options.size])
    cells, genes, conditions = len(screen.row_of), len(screen.genes), len(screen.conditions)
    table.add(
        f"simulated screen {cells:,} x {genes:,}, {conditions} conditions",
        f"{time.perf_counter() - start:.0f} s",
    )
    time_epochs(table, screen, options.size, options.device)
    if options.device == "cuda":
        table.add("highest GPU memory", f"{torch.cuda.max_memory_allocated() / 2**30:.2f} GiB")
    table.add("all checks", f"{time.perf_counter() - began:.0f} s", "FAILED" if table.failed else "ok")
    if options.json is not None:
        options.json.write_text(json.dumps({**place, "table": table.rows}, indent=1) + "\n")
    return int(table.failed)


if __name__ == "__main__":
    sys.exit(main())
