"""Cells against moments on one simulated screen: seconds of an epoch, seconds to the best validation error.

    python benchmarks/objectives.py                       (1,000 genes, 160 conditions)
    python benchmarks/objectives.py --genes 300 --singles 50 --pairs 40 --objectives moments cells --seed 2
    python benchmarks/objectives.py --screen screen.h5ad --objectives moments cells

Both runs start from the same weights with the defaults of their objective. CPU seconds
are those of this process; on a busy machine wall seconds say little.
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from gears import GEARS, PertData
from gears.simulate import simulated_screen

METRIC = "val_mse_top20_de"


def main() -> None:
    """Train with each objective and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name, value in (("genes", 1000), ("singles", 90), ("pairs", 69), ("cells", 40), ("control", 500)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--hidden-size", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1, help="of screen, split and weights")
    parser.add_argument("--objectives", nargs="+", default=["moments", "cells"])
    parser.add_argument("--epochs", type=int, help="of each run, instead of the objective's default")
    parser.add_argument("--screen", type=Path, help="an h5ad file instead of a simulated screen")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logging.getLogger("gears").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        pert_data = screen(Path(folder), options)
        size = pert_data.screen
        print(f"{size}, {len(pert_data.split.conditions('train'))} to train, seed {options.seed}")
        print(
            f"{platform.machine()}, {os.cpu_count()} cores, {options.threads} threads, torch {torch.__version__}"
        )
        for objective in options.objectives:
            for name, value in measure(pert_data, objective, options).items():
                print(f"{name:<34}{value:>14}", flush=True)
            print()


def screen(folder: Path, options: argparse.Namespace) -> PertData:
    """Prepare a screen, simulated or from a file."""
    pert_data = PertData(folder, default_pert_graph=False)
    if options.screen is not None:
        pert_data.load(data_path=options.screen)
    else:
        pert_data.new_data_process("simulated", simulated(options))
    pert_data.prepare_split("simulation", seed=options.seed)
    pert_data.get_dataloader(32)
    return pert_data


def simulated(options: argparse.Namespace) -> Any:
    """Cells of a simulated screen."""
    adata, _ = simulated_screen(
        n_genes=options.genes,
        n_singles=options.singles,
        n_pairs=options.pairs,
        cells_per_condition=options.cells,
        n_control=options.control,
        seed=options.seed,
    )
    return adata


def measure(pert_data: PertData, objective: str, options: argparse.Namespace) -> dict[str, Any]:
    """Train once; numbers as text."""
    model = GEARS(pert_data, device="cpu")
    model.model_initialize(hidden_size=options.hidden_size, seed=options.seed)
    numbers: dict[str, Any] = {} if options.epochs is None else {"epochs": options.epochs}
    load, start, cpu = os.getloadavg()[0], time.perf_counter(), time.process_time()
    result = model.train(objective=objective, verbose=False, **numbers)
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    seconds = [record["seconds"]["total"] for record in result.history]
    best = min((record for record in result.history if METRIC in record), key=lambda record: record[METRIC])
    to_best = sum(seconds[: best["epoch"]])
    evaluation = sum(record["seconds"]["evaluation"] for record in result.history)
    summary = result.summary
    assert summary is not None
    test = summary[(summary["method"] == "gears") & (summary["subgroup"] == "all")].set_index("metric")[
        "mean"
    ]
    factor = cpu / wall
    return {
        "objective": objective,
        "epochs": len(seconds),
        "CPU seconds of an epoch": f"{factor * sum(seconds) / len(seconds):.3f}",
        "wall seconds of an epoch": f"{sum(seconds) / len(seconds):.3f}",
        "share of evaluation": f"{evaluation / sum(seconds):.3f}",
        "best epoch": best["epoch"],
        f"best {METRIC}": f"{best[METRIC]:.4f}",
        "CPU seconds to the best epoch": f"{factor * to_best:.1f}",
        "CPU seconds of the run": f"{cpu:.1f}",
        "test mse_top20_de": f"{test['mse_top20_de']:.4f}",
        "test pearson_delta": f"{test['pearson_delta']:.3f}",
        "load when it began": f"{load:.1f}",
    }


if __name__ == "__main__":
    main()
