"""What each way to train costs on a screen, on one device and on several: estimates from a short measurement."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gears.core._installation import cores
from gears.core._messages import count
from gears.distributed._devices import one_thread
from gears.distributed._log import quiet
from gears.gears import GEARS
from gears.training.options import CONDITIONS_PER_STEP, DEFAULTS, EPOCHS, STEPS_PER_EPOCH

if TYPE_CHECKING:
    from gears.pertdata import PertData

N_STEPS = 5
"""Steps of the network that are timed, after one to warm up."""
START_SECONDS = 4.0
"""Until a worker process computes: it imports torch (CPU seconds on an AMD EPYC core)."""
WORKER_SHARE = 0.6
"""What each further worker of one training adds: two trained 1.59 times as fast as one (docs/distributed.md)."""
N_MEMBERS, N_FOLDS = 4, 5


@dataclass(frozen=True)
class Costs:
    """Estimated wall seconds of each way to train."""

    screen: str  # its size, in words
    device: str  # what one device is: "GPU" or "core"
    n_devices: int
    seconds: dict[str, tuple[float, float]]  # by way (its call): on one device, on all

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return dict(vars(self))

    def render(self) -> str:
        """Lines for a terminal, in 80 columns."""
        rows = [("estimated time", f"1 {self.device}", f"{self.n_devices} {self.device}s")]
        rows += [(way, _time(alone), _time(together)) for way, (alone, together) in self.seconds.items()]
        lines = [
            f"this screen: {self.screen}",
            *(f"{way:<50}{alone:>14}{together:>14}" for way, alone, together in rows),
        ]
        lines += [
            f"Estimates from one train() and {N_STEPS} steps of the network here. A process takes",
            f"{START_SECONDS:g} s to start; W workers of one training count as 1 + {WORKER_SHARE:g} (W - 1) devices",
            "(measured with two CPU workers, not with GPUs).",
        ]
        return "\n".join(lines)


def measure_costs(pert_data: PertData) -> Costs:
    """Train for a moment on the first GPU, or on one core where there is none, and extrapolate. It prepares a split."""
    n_gpus = torch.cuda.device_count()
    device = "GPU" if n_gpus else "core"
    n_devices = max(2, n_gpus or cores())
    pert_data.prepare_split("cross_validation", n_folds=N_FOLDS)
    assert pert_data.split is not None
    model = GEARS(pert_data)
    model.model_initialize()
    n_steps = max(STEPS_PER_EPOCH, -(-len(pert_data.split.parts["train"]) // CONDITIONS_PER_STEP))
    with one_thread(enabled=not n_gpus), quiet():  # a network of few steps is hardly trained
        default = sum(model.train(evaluate_test=False, verbose=False).seconds.values())
        network = _network_seconds(model, "moments", n_steps)
        loaders = pert_data.get_dataloader(DEFAULTS["cells"]["batch_size"])
        cells = _network_seconds(model, "cells", len(loaders["train_loader"]))
    gain = 1 + WORKER_SHARE * (n_devices - 1)
    member = START_SECONDS + network

    def folds(fold: float) -> tuple[float, float]:
        return N_FOLDS * fold, START_SECONDS + math.ceil(N_FOLDS / n_devices) * fold

    screen = pert_data.screen
    n_cells, n_genes = screen.n_cells, len(screen.gene_names)
    size = f"{count(len(screen.conditions) - 1, 'condition')}, {n_genes:,} genes, {n_cells:,} cells"
    members = (N_MEMBERS * member, math.ceil(N_MEMBERS / n_devices) * member)
    seconds = {
        "train(): prior and correction network": (default, default),
        f"train(prior=None): the network, {EPOCHS} epochs": (network, START_SECONDS + network / gain),
        'train(prior=None, objective="cells")': (cells, START_SECONDS + cells / gain),
        f"Ensemble.train: {N_MEMBERS} seeds, prior=None": members,
        f"cross_validate(folds={N_FOLDS})": folds(default),
        f"cross_validate(folds={N_FOLDS}, prior=None)": folds(network),
    }
    return Costs(size, device, n_devices, seconds)


def _network_seconds(model: GEARS, objective: str, steps_per_epoch: int) -> float:
    """Seconds of a default training of the network alone, its graphs included."""
    options: Any = {"prior": None, "objective": objective, "evaluate_test": False, "verbose": False}
    graphs = model.train(steps=1, **options).seconds.get("graphs", 0.0)
    seconds = model.train(steps=N_STEPS, **options).history[-1]["seconds"]
    step = (seconds["total"] - seconds["evaluation"]) / N_STEPS
    return graphs + EPOCHS * (steps_per_epoch * step + seconds["evaluation"])


def _time(seconds: float) -> str:
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
