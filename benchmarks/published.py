"""The published screens, splits and seeds: baselines, the published objective and this model side by side.

    python benchmarks/published.py --data-path screens                      (all screens; needs the network once)
    python benchmarks/published.py --data-path screens --screens norman --seeds 1 --gpu-ids 0 1
    python benchmarks/published.py --data-path screens --device cpu --n-gpus 2

Each (screen, seed, model) trains with ``train_multi_gpu``. The published numbers printed below the
table come from other runs with other versions, partly on other splits: for orientation only.
"""

from __future__ import annotations

import argparse
import logging
import time
from pathlib import Path
from typing import Any

import pandas as pd
from accuracy import PUBLISHED

from gears import PertData
from gears.data.reading.download import PUBLISHED_FILES
from gears.files.atomic import write_atomically
from gears.files.formats import write_text
from gears.train_distributed import train_multi_gpu

MODELS: dict[str, dict[str, Any]] = {
    "published objective": {"prior": None, "objective": "cells", **PUBLISHED},
    "gears": {"prior": "auto"},
}
METRICS = ("mse_top20_de", "pearson_delta", "pearson_delta_ref", "discrimination")
SINGLE_GENES = ("adamson", "replogle_k562_essential", "replogle_rpe1_essential")
ORIENTATION = """Published, for orientation (other runs, not to be mixed with the table):

- Adamson, 5 seeds: mse_top20_de GEARS .153, train mean .161; pearson_delta GEARS .737, train mean .756.
- Norman, seed 1, one re-run: mse_top20_de GEARS .169, ridge .231, train mean .332; pearson_delta .583, .673, .579.
- Norman pairs, pearson_delta by genes seen 0/1/2: GEARS .575/.66/.73, matching mean .64/.81/.94; additive .892
  over all pairs.
"""


def one_run(options: argparse.Namespace, screen: str, seed: int, model: str) -> pd.DataFrame:
    """Train one model on one screen and seed; the table of its test part, baselines included."""
    split = {"split": "single" if screen in SINGLE_GENES else "simulation", "seed": seed}
    folder = options.data_path / "models" / f"{screen}-{seed}-{model.replace(' ', '-')}"
    args = {**MODELS[model], "save_path": str(folder), "verbose": False, "batch_size": options.batch_size}
    if options.epochs is not None:
        args["epochs"] = options.epochs
    start = time.perf_counter()
    result = train_multi_gpu(
        options.data_path,
        screen,
        split,
        args,
        n_gpus=options.n_gpus,
        gpu_ids=options.gpu_ids,
        device=options.device,
    )
    seconds = time.perf_counter() - start
    assert result.table is not None
    table = result.table.assign(screen=screen, seed=seed, seconds=seconds)
    return table.assign(method=table["method"].replace({"gears": model}))


def summary(table: pd.DataFrame) -> str:
    """Mean over seeds of each method by screen and subgroup, as Markdown."""
    lines = ["# Published screens", ""]
    rows = table[table["metric"].isin(METRICS)].drop_duplicates(
        ["screen", "seed", "method", "condition", "metric"]
    )
    for screen, part in rows.groupby("screen", sort=False):
        seeds = sorted(part["seed"].unique())
        lines += [f"## {screen}, seeds {', '.join(map(str, seeds))}", ""]
        groups = {"all": part} | {
            str(name): group for name, group in part.groupby("subgroup") if name != "all"
        }
        for name, group in groups.items():
            means = group.groupby(["method", "metric"], sort=False)["value"].mean().unstack()
            shown = [metric for metric in METRICS if metric in means]
            lines += [f"{name}: {group['condition'].nunique()} conditions", ""]
            lines += [f"| method | {' | '.join(shown)} |", "|---" * (len(shown) + 1) + "|"]
            for method, values in means[shown].iterrows():
                lines.append(f"| {method} | {' | '.join(f'{value:.3f}' for value in values)} |")
            lines.append("")
    return "\n".join([*lines, ORIENTATION])


def main() -> None:
    """Run everything that is asked for; every run is kept as soon as it is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data-path", type=Path, required=True, help="where screens are kept or go to")
    parser.add_argument("--screens", nargs="+", default=list(PUBLISHED_FILES), choices=list(PUBLISHED_FILES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--n-gpus", type=int)
    parser.add_argument("--gpu-ids", nargs="+", type=int)
    parser.add_argument("--device", help="cpu, where there is no GPU")
    parser.add_argument("--batch-size", type=int, default=32, help="per worker")
    parser.add_argument("--epochs", type=int, help="instead of the defaults of the objective")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    options.data_path.mkdir(parents=True, exist_ok=True)
    tables = []
    for screen in options.screens:
        PertData(options.data_path).load(screen)  # fetched and prepared once
        for seed in options.seeds:
            for model in options.models:
                tables.append(one_run(options, screen, seed, model))
                everything = pd.concat(tables, ignore_index=True)
                path = options.output / "published.csv"
                write_atomically(path, lambda file, table=everything: table.to_csv(file, index=False))
                write_text(options.output / "published.md", summary(everything))
    print(summary(everything))


if __name__ == "__main__":
    main()
