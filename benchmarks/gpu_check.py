"""Everything that needs a GPU, checked and timed in one go: a table, the most important rows first.

    python benchmarks/gpu_check.py                               on a machine with a GPU, seven minutes
    python benchmarks/gpu_check.py --device cpu --size small     the same code on the CPU

Needs torch (2.6 or newer), numpy and scipy; a row that needs more says 'not run' where it is missing. A row that
fails is a row of the table and not its end, and ``--json`` is written after each row. Rows that have not begun after
``--minutes`` are not run.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from check_data import SIZES, Setting, Table, stand_in_for_missing  # noqa: E402


def rows(setting):
    """Checks by name, in the order in which they are run: right, several workers, fast, then everything else."""
    import check_right as right
    import check_speed as speed

    yield "gradients in float64, several blocks", right.gradients, (setting,)
    for name in right.MODES:
        yield f"as on the CPU: {name}", right.mode, (setting, name)
    yield "gpu_ids", right.binding, (setting,)
    yield "two workers on one device by gloo", right.two_workers, (setting,)
    yield "a group of one", right.group, (setting,)
    yield "ceilings", speed.ceilings, (setting,)
    yield "epoch over moments", speed.epoch_of_moments, (setting, {})
    yield "epoch over cells, batch 32", speed.epoch_of_cells, (setting, 32, {})
    for objective in ("moments", "cells"):
        yield f"kernels of a step, {objective}", speed.kernels, (setting, objective)
    yield "published network, batch 32", speed.published, (setting,)
    yield "runs without anndata and scanpy", right.without_packages, (setting,)
    yield "memory", speed.memory, (setting,)
    yield "default train() by stage", speed.stages, (setting,)
    for name in right.OPTIONS:
        yield name, right.option, (setting, name)
    for name, more in (("TF32", {"tf32": True}), ("bfloat16", {"use_amp": True})):
        yield f"epoch over moments, {name}", speed.epoch_of_moments, (setting, more)
        yield f"epoch over cells, batch 512, {name}", speed.epoch_of_cells, (setting, 512, more)
    yield right.COMPILED, right.option, (setting, right.COMPILED)


def describe(device, words):
    """Device, versions and the command, without the machine's folders."""
    import numpy
    import scipy
    import torch

    shown = ("FOLDER" if word.startswith(("/", "..")) else word for word in words)
    gpu = torch.cuda.get_device_name(0) if device == "cuda" else (platform.processor() or platform.machine())
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if device == "cuda" else None
    return {
        "device": device, "name": gpu, "python": platform.python_version(), "torch": torch.__version__,
        "cuda": torch.version.cuda, "nccl": nccl, "numpy": numpy.__version__, "scipy": scipy.__version__,
        "commit": commit(), "command": " ".join(["python benchmarks/gpu_check.py", *shown]),
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
    parser.add_argument("--minutes", type=float, default=7.0, help="no row begins later than this (7)")
    parser.add_argument("--only", nargs="+", metavar="WORDS", default=[""], help="rows whose name has one of these")
    parser.add_argument("--published", type=Path, help="wheel of cell-gears 0.1.2, for the row that compares")
    parser.add_argument("--skip-compile", action="store_true", help="torch.compile takes a minute")
    parser.add_argument("--json", type=Path, help="file for the table")
    options = parser.parse_args(arguments)
    missing = stand_in_for_missing()
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        print("no GPU is visible; --device cpu --size small runs the same code on the CPU", file=sys.stderr)
        return 2
    facts = describe(options.device, sys.argv[1:] if arguments is None else arguments)
    print("  ".join(f"{name} {value}" for name, value in facts.items() if value))
    if missing:
        print(f"not installed, not needed: {', '.join(missing)}")
    table = Table(facts, options.json, seconds=60 * options.minutes)
    setting = Setting(options.device, options.size, options.published)
    for name, check, given in rows(setting):
        if any(words in name for words in options.only) and not (options.skip_compile and name == "torch.compile"):
            table.run(name, check, *given)
    table.add("all rows", f"{table.elapsed:.0f} s", "FAILED" if table.failed else "ok")
    return int(table.failed)


if __name__ == "__main__":
    sys.exit(main())
