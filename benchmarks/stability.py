"""How much training amplifies rounding: two runs whose start differs by 1e-7 in one number.

    python benchmarks/stability.py [SCREEN.h5ad ...] [--priors None auto] [--epochs 20]

For each screen, prior and setting of learning rate, schedule and epochs: differences of predicted changes of validation
and test conditions between the two runs (largest and median), beside the median standard error of the measured changes,
and the error on the validation conditions (mean square over genes) with a 90 % interval of its paired difference from
the default setting. With `prior=auto` the predictions are those of the model as it is used, with its head, whose start
is changed as well, and with the weight that the network got.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

sys.path.append(str(Path(__file__).resolve().parent))

from measuring import command, commit, machine, versions

from gears import GEARS, PertData
from gears.data.splits.split import perturbed_in
from gears.model.shared_head import SharedHead
from gears.simulate import simulated_screen
from gears.training import head

ROOT = Path(__file__).resolve().parents[1]
NUDGE = 1e-7
SETTINGS: dict[str, dict[str, Any]] = {
    "lr 1e-2, one-cycle (default)": {},
    "lr 3e-3, one-cycle": {"lr": 3e-3},
    "lr 1e-3, one-cycle": {"lr": 1e-3},
    "lr 1e-2, cosine": {"schedule": "cosine"},
    "lr 3e-3, one-cycle, twice the epochs": {"lr": 3e-3, "longer": 2},
}
SIMULATED = {
    "simulated, mostly additive": {"interaction_share": 0.1, "seed": 3},
    "simulated, with interactions": {"interaction_share": 0.6, "seed": 4},
}
SIZE = {"n_genes": 200, "n_singles": 60, "n_pairs": 40, "cells_per_condition": 20, "n_control": 200}
N_DRAWS = 2000


class NudgedHead(SharedHead):
    """A head whose first weight is 1e-7 larger."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        with torch.no_grad():
            self.weights[0].view(-1)[0] += NUDGE


def trained(data: PertData, *, nudged: bool, **options: Any) -> dict[str, Any]:
    """Predicted changes of a run, (validation conditions, G) and (test conditions, G), and the network weight."""
    model = GEARS(data, device="cpu")
    model.model_initialize(hidden_size=64, seed=1)
    if nudged:
        with torch.no_grad():
            model.model.gene_emb.weight[0, 0] += NUDGE
    with mock.patch.object(head, "SharedHead", NudgedHead if nudged else SharedHead):
        model.train(**options, verbose=False, evaluate_test=False)
    found = {part: model.predict(perturbed_in(data.split, part)).delta_UG for part in ("val", "test")}
    prior = model.parts.prior
    return {**found, "weight": None if prior is None else prior.network_weight}


def of_setting(data: PertData, prior: str | None, epochs: int, setting: dict[str, Any]) -> dict[str, Any]:
    """Differences of two runs, and the validation error of each condition."""
    options = dict(setting)
    epochs *= options.pop("longer", 1)
    one, two = (
        trained(data, nudged=nudged, prior=prior, epochs=epochs, early_stopping=None, **options)
        for nudged in (False, True)
    )
    apart = np.concatenate([np.abs(one[part] - two[part]).ravel() for part in ("val", "test")])
    statistics, screen = data.screen.statistics, data.screen
    ids = [screen.id_of(condition) for condition in perturbed_in(data.split, "val")]
    return {
        "largest": float(apart.max()),
        "median": float(np.median(apart)),
        "error_U": ((one["val"] - statistics.delta(np.array(ids))) ** 2).mean(axis=1),
        "weights": (one["weight"], two["weight"]),
    }


def standard_error(data: PertData) -> float:
    """Median standard error of the measured changes of validation and test conditions, genes without a count aside."""
    screen = data.screen
    ids = [
        screen.id_of(condition) for part in ("val", "test") for condition in perturbed_in(data.split, part)
    ]
    statistics, control = screen.statistics, int(screen.control_id)
    variance_UG = np.asarray(statistics.m2[ids], dtype=np.float64)
    n_U1 = np.asarray(statistics.n[ids], dtype=np.float64)[:, None]
    of_control_G = np.asarray(statistics.m2[control], dtype=np.float64) / float(statistics.n[control])
    error_UG = np.sqrt(variance_UG / n_U1 + of_control_G)
    return float(np.median(error_UG[error_UG > 0]))


def row(
    name: str, prior: str | None, label: str, found: dict[str, Any], default: dict[str, Any], se: float
) -> str:
    """A row of the table."""
    change_U = found["error_U"] - default["error_U"]
    draw = np.random.Generator(np.random.Philox(key=len(change_U)))
    picks_DU = draw.integers(len(change_U), size=(N_DRAWS, len(change_U)))
    low, high = np.quantile(change_U[picks_DU].mean(axis=1), [0.05, 0.95])
    against = "" if found is default else f"{low:+.1e} to {high:+.1e}"
    weights = "" if prior is None else " and ".join(f"{weight:g}" for weight in found["weights"])
    return (
        f"| {name} | {prior} | {label} | {found['largest']:.1e} | {found['median']:.1e} | {se:.1e} | "
        f"{found['median'] / se:.3f} | {found['error_U'].mean():.4e} | {against} | {weights} |"
    )


def screens(paths: list[Path], folder: Path, *, simulated: bool) -> dict[str, PertData]:
    """Simulated screens if `simulated`, then those of the files; with a split."""
    found = {}
    for number, (name, options) in enumerate(SIMULATED.items() if simulated else ()):
        data = PertData(folder / str(number), default_pert_graph=False)
        data.new_data_process("screen", simulated_screen(**SIZE, **options)[0])
        found[name] = data
    for path in paths:
        (folder / path.stem).mkdir()
        shutil.copy(path, folder / path.stem / "screen.h5ad")
        found[path.stem] = PertData(folder / path.stem)
        found[path.stem].load("screen")
    for data in found.values():
        data.prepare_split("simulation", seed=1)
    return found


def main() -> None:
    """Run all settings, and keep the table after each of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--simulated", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--priors", nargs="+", default=["None", "auto"], choices=["None", "auto"])
    parser.add_argument("--settings", type=int, nargs="+", default=list(range(len(SETTINGS))))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("gears").setLevel(logging.ERROR)
    about = {
        "machine": machine(),
        "versions": versions(("torch", "numpy")),
        "commit": commit(ROOT),
        "command": command(),
        "epochs": options.epochs,
    }
    lines = ["# How much training amplifies rounding", ""]
    lines += [f"- {key}: {value}" for key, value in about.items()]
    lines += [
        "",
        "| screen | prior | setting | largest | median | standard error | median / standard error | validation error | "
        "its difference from the default, 90 % | network weights |",
        "|---" * 10 + "|",
    ]
    labels = [list(SETTINGS)[number] for number in options.settings]
    with tempfile.TemporaryDirectory() as folder:
        for name, data in screens(options.files, Path(folder), simulated=options.simulated).items():
            se = standard_error(data)
            for prior in (None if prior == "None" else prior for prior in options.priors):
                found: dict[str, Any] = {}
                for label in labels:
                    found[label] = of_setting(data, prior, options.epochs, SETTINGS[label])
                    lines.append(row(name, prior, label, found[label], found[labels[0]], se))
                    print(lines[-1], flush=True)
                    options.output.mkdir(parents=True, exist_ok=True)
                    (options.output / "stability.md").write_text("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
