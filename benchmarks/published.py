"""The published screens, splits and seeds: baselines, the published objective and this model side by side.

    python benchmarks/run.py published --data FOLDER                          (all screens; needs the network once)
    python benchmarks/run.py published --data FOLDER --screens norman --seeds 1 --gpu-ids 0 1
    python benchmarks/run.py published --data FOLDER --device cpu --n-gpus 2

The folder is where screens are kept or go to. Each (screen, seed, model) trains with ``train_multi_gpu``. The published
numbers printed below the table come from other runs with other versions, partly on other splits: for orientation only.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from accuracy import PUBLISHED, packed
from measuring import Result, table
from screens import simulation

from gears import PertData
from gears.data.reading._download import PUBLISHED_FILES
from gears.simulate import simulated_screen
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


def published(
    data: Path | None = None,
    screens: tuple[str, ...] = tuple(PUBLISHED_FILES),
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5),
    models: tuple[str, ...] = tuple(MODELS),
    n_gpus: int | None = None,
    gpu_ids: tuple[int, ...] | None = None,
    device: str | None = None,
    batch_size: int = 32,
    epochs: int | None = None,
) -> Iterator[Result]:
    """Every run is kept as soon as it is done; the screen "simulated" is a small one that is simulated."""
    tables: list[pd.DataFrame] = []
    workers = {"n_gpus": n_gpus, "gpu_ids": list(gpu_ids) if gpu_ids else None, "device": device}
    numbers = {"batch_size": batch_size} | ({} if epochs is None else {"epochs": epochs})
    with tempfile.TemporaryDirectory() as temporary:
        folder = data or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for screen in screens:
            if screen == "simulated":
                adata, _ = simulated_screen(**simulation("additive", 1, small=True))
                PertData(folder).new_data_process(screen, adata)
            PertData(folder).load(screen)  # fetched and prepared once
            split = "single" if screen in SINGLE_GENES else "simulation"
            for seed in seeds:
                for model in models:
                    path = folder / "models" / f"{screen}-{seed}-{model.replace(' ', '-')}"
                    args = {**MODELS[model], **numbers, "save_path": str(path), "verbose": False}
                    start = time.perf_counter()
                    result = train_multi_gpu(folder, screen, {"split": split, "seed": seed}, args, **workers)
                    place = {"screen": screen, "seed": seed, "seconds": time.perf_counter() - start}
                    assert result.table is not None
                    tables.append(result.table.assign(**place).replace({"method": {"gears": model}}))
                    values = pd.concat(tables, ignore_index=True)
                    yield Result("Published screens", page(values), {"epochs": epochs}, {".csv.gz": packed(values)})


def page(values: pd.DataFrame) -> list[str]:
    """Mean over seeds of each method by screen and subgroup."""
    lines: list[str] = []
    columns = ["screen", "seed", "method", "condition", "metric"]
    values = values[values["metric"].isin(METRICS)].drop_duplicates(columns)
    for screen, part in values.groupby("screen", sort=False):
        lines += [f"## {screen}, seeds {', '.join(map(str, sorted(part['seed'].unique())))}", ""]
        groups = {name: group for name, group in part.groupby("subgroup") if name != "all"}
        for name, group in ({"all": part} | groups).items():
            means = group.groupby(["method", "metric"], sort=False)["value"].mean().unstack()
            rows = means[[metric for metric in METRICS if metric in means]].reset_index().to_dict("records")
            lines += [f"{name}: {group['condition'].nunique()} conditions", "", *table(rows), ""]
    return [*lines, ORIENTATION]
