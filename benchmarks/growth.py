"""Why training amplifies rounding: how a change of every weight grows from step to step, in float64.

    python benchmarks/growth.py

Before the first step every weight is multiplied by 1 + s z with z from a standard normal distribution, once with
s = 1e-7 (the rounding of float32) and once with s = 1e-10. The table has the largest difference of any weight from the
unchanged run after so many steps, of the network alone over moments, 20 epochs of 20 steps, one-cycle schedule.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from measuring import command, commit, machine
from stability import ROOT, screens, trained

from gears.pertdata import PertData
from gears.training import TrainingEngine

RATES = (1e-2, 3e-3, 1e-3)
SIZES = (1e-7, 1e-10)
STEPS = (1, 6, 21, 41, 61, 81, 101, 151, 201, 400)


def weights_by_step(data: PertData, rate: float, size: float) -> list[dict[str, torch.Tensor]]:
    """Weights after each step of a run whose first weights are changed by `size`, relatively."""
    kept: list[dict[str, torch.Tensor]] = []
    step = TrainingEngine._step

    def recorded(self: TrainingEngine, *arguments: Any) -> None:
        if not kept:
            generator = torch.Generator().manual_seed(0)
            with torch.no_grad():
                for weight in self.model.parameters():
                    weight *= 1 + size * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
        step(self, *arguments)
        kept.append({name: weight.detach().clone() for name, weight in self.model.named_parameters()})

    with mock.patch.object(TrainingEngine, "_step", recorded):
        trained(data, nudged=False, prior=None, epochs=20, early_stopping=None, lr=rate, dtype="float64")
    return kept


def main() -> None:
    """Run, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("gears").setLevel(logging.ERROR)
    lines = [
        "# How a change of the first weights grows",
        "",
        f"{machine()['cpu']}, torch {torch.__version__}, commit {commit(ROOT)}, `{command()}`",
        "",
        "Largest difference of any weight from the unchanged run, and the layer that has it, float64.",
        "",
        "| lr | change | " + " | ".join(f"step {step}" for step in STEPS) + " |",
        "|---" * (2 + len(STEPS)) + "|",
    ]
    with tempfile.TemporaryDirectory() as folder:
        data = next(iter(screens([], Path(folder), simulated=True).values()))
        for rate in RATES:
            base = weights_by_step(data, rate, 0.0)
            for size in SIZES:
                changed = weights_by_step(data, rate, size)
                cells = []
                for step in STEPS:
                    one, other = base[step - 1], changed[step - 1]
                    far, name = max((float((one[name] - other[name]).abs().max()), name) for name in one)
                    cells.append(f"{far:.0e} {name.split('.')[0]}")
                lines.append(f"| {rate:g} | {size:g} | " + " | ".join(cells) + " |")
                print(lines[-1], flush=True)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "growth.md").write_text("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
