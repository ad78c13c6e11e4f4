"""Coverage of predicted variances on a simulated and on real screens: the nll head, and a deep ensemble.

    python benchmarks/uncertainty.py                                   (simulated)
    python benchmarks/uncertainty.py --screens FILE.h5ad ... --members 5 --epochs 200 --output FOLDER

The ensemble is members of other seeds, trained one after another (``train_many`` does it side by side). Its
variance is that of a mean; the sampling variance of the measured mean is added. On the simulated screen the
expected means are known and stand in the place of the measured ones as well.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import torch

from gears import GEARS, PertData
from gears.evaluation.truth import ScreenCells
from gears.evaluation.uncertainty import Calibration, calibration, cell_calibration, ensemble_moments
from gears.files.formats import write_json
from gears.plotting import image_bytes
from gears.plotting.curves import calibration_figure
from gears.simulate import simulated_screen


def main() -> None:
    """Train, judge, print a table per screen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--screens", nargs="*", type=Path, default=[], help="h5ad files")
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--hidden-size", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("gears").setLevel(logging.ERROR)
    found: dict[str, Any] = {}
    for file in [None, *options.screens]:
        name = "simulated" if file is None else file.stem
        judged = one_screen(name, file, options)
        found[name] = {kind: numbers(one) for kind, one in judged.items()}
        for kind, row in found[name].items():
            print(f"{name:<20} {kind:<26} " + "  ".join(f"{k} {v:.3g}" for k, v in row.items()), flush=True)
        if options.output:
            options.output.mkdir(parents=True, exist_ok=True)
            (options.output / f"uncertainty_{name}.png").write_bytes(image_bytes(calibration_figure(judged)))
    if options.output:
        settings = {"members": options.members, "epochs": options.epochs, "hidden_size": options.hidden_size}
        write_json(options.output / "uncertainty.json", {"settings": settings, "screens": found})


def one_screen(name: str, file: Path | None, options: argparse.Namespace) -> dict[str, Calibration]:
    """Every kind of uncertainty that is judged on a screen."""
    truth = None
    if file is None:
        adata, truth = simulated_screen(
            n_genes=200,
            n_singles=40,
            n_pairs=30,
            cells_per_condition=60,
            counts_per_gene=4.0,
            seed=options.seed,
        )
    else:
        adata = anndata.read_h5ad(file)
    with tempfile.TemporaryDirectory() as folder:
        data = PertData(folder, default_pert_graph=False)
        data.new_data_process(name, adata, pool_cell_types=adata.obs["cell_type"].nunique() > 1)
        data.prepare_split("simulation", seed=options.seed)
        test = [condition for condition in data.split.conditions("test") if not condition.is_control]
        rows = [data.screen.id_of(condition) for condition in test]
        table = data.screen.statistics
        sampling_UG = table.m2[rows] / (table.n[rows, None] - 1)
        members = [train(data, seed, options).predict(test, clip=False) for seed in range(options.members)]
        mean_UG, variance_UG = ensemble_moments(members)
        head = train(data, 0, options, uncertainty=True).predict(test, clip=False)
        judged = {
            "ensemble, measured means": calibration(
                mean_UG, variance_UG, table.mean[rows], true_variance=sampling_UG
            ),
            "nll head, cells": cell_calibration(
                head.expression_UG,
                np.exp(head.logvar_UG),
                head.control_mean_G,
                test,
                ScreenCells(data.screen, max_cells=100),
            ),
        }
        if truth is not None:
            known_UG = np.array([truth.mean(condition) for condition in test])
            judged["ensemble, expected means"] = calibration(mean_UG, variance_UG, known_UG)
        return judged


def train(data: PertData, seed: int, options: argparse.Namespace, **network: Any) -> GEARS:
    """The network alone over moments."""
    model = GEARS(data, device="cpu")
    model.model_initialize(hidden_size=options.hidden_size, seed=seed, **network)
    model.train(epochs=options.epochs, objective="moments", prior=None, verbose=False, evaluate_test=False)
    return model


def numbers(one: Calibration) -> dict[str, float]:
    """What is kept of a calibration."""
    return {
        **{f"within_{100 * level:g}": one.observed(level) for level in (0.5, 0.8, 0.95)},
        "error_over_sd": one.standardised,
        "rank_correlation": one.rank_correlation,
        "nll": one.nll,
    }


if __name__ == "__main__":
    main()
