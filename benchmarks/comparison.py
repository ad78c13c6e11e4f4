"""Cross-validated comparison of baselines and GEARS on the real subsets; whatever it shows is kept as it is.

    python benchmarks/comparison.py DATA_FOLDER                                 (all screens found there)
    python benchmarks/comparison.py DATA_FOLDER --screens norman2019 --methods baselines gears_moments
    python benchmarks/comparison.py DATA_FOLDER --folds 5 --repeats 5 --output benchmarks/results

Folds are over conditions; every condition is tested once in each repeat. A method is a function
``make(pert_data, seed) -> estimator`` in METHODS: add one there and name it with ``--methods``; the
results of methods that ran before are kept, and those of the new one are added to them. A run that was cut
short goes on where it stopped when the same command is given again.
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anndata
import pandas as pd
import torch

from gears import PertData
from gears.data.splits.folds import folds
from gears.evaluation import BASELINES, DECISIVE, Bootstrap, compare, difference_table, interval_table
from gears.evaluation.compare import split_name
from gears.evaluation.verdict import verdict
from gears.files.atomic import write_atomically
from gears.files.formats import read_json, write_json, write_text
from gears.jobs.estimators import GEARSEstimator, PriorEstimator
from gears.report import write_report

METRICS = (
    *DECISIVE,
    "amplitude_slope",
    "pearson_delta",
    "mse_top20_de",
    "mse",
    "discrimination",
    "centroid_accuracy",
    "rank",
    "de_overlap_welch",
    "direction_accuracy_top20",
    "spread",
)
SHOWN = (*DECISIVE, "amplitude_slope", "pearson_delta", "mse_top20_de")


def gears_method(
    pert_data: PertData,
    seed: int,
    *,
    hidden_size: int,
    objective: str = "moments",
    prior: str | None = None,
    epochs: int | None = None,
) -> Any:
    """GEARS's network alone with one objective, or as `train()` makes it; its defaults otherwise."""
    training = {"objective": objective, "prior": prior} | ({} if epochs is None else {"epochs": epochs})
    network = {"hidden_size": hidden_size}
    return GEARSEstimator(pert_data, network=network, training=training, seed=seed, device="cpu")


def methods(options: argparse.Namespace) -> dict[str, Callable[[PertData, int], Any]]:
    """Every method that can be named, beside the baselines."""
    size = options.hidden_size
    return {
        "gears_cells": partial(
            gears_method, objective="cells", hidden_size=size, epochs=options.epochs_cells
        ),
        "gears_moments": partial(
            gears_method, objective="moments", hidden_size=size, epochs=options.epochs_moments
        ),
        "no_perturb": no_perturb,
        "gears": partial(gears_method, prior="auto", hidden_size=size),
        "prior": lambda pert_data, _: PriorEstimator(pert_data),
    }


def no_perturb(pert_data: PertData, seed: int) -> Any:
    """GEARS that is told not to predict a change."""
    network = {"hidden_size": 8, "no_perturb": True}
    return GEARSEstimator(
        pert_data,
        network=network,
        training={"objective": "moments", "epochs": 1, "prior": None},
        seed=seed,
        device="cpu",
    )


def main() -> None:
    """Compare on every screen and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with NAME_subset.h5ad")
    parser.add_argument("--screens", nargs="+", default=["norman2019", "papalexi2021", "mcfaline2023"])
    parser.add_argument(
        "--methods",
        nargs="+",
        default=["baselines", "prior", "gears", "gears_moments", "gears_cells", "no_perturb"],
    )
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--n-split-half", type=int, default=3)
    parser.add_argument("--hidden-size", type=int, default=64)
    parser.add_argument("--epochs-cells", type=int)
    parser.add_argument("--epochs-moments", type=int)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="also what is kept already")
    parser.add_argument("--only-pages", action="store_true", help="write the pages of what was kept before")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logging.getLogger("gears").setLevel(logging.ERROR)
    known = ["baselines", *BASELINES, *methods(options)]
    unknown = [name for name in options.methods if name not in known]
    if unknown:
        sys.exit(f"unknown methods {unknown}; known: {', '.join(known)}")
    for screen in () if options.only_pages else options.screens:
        one_screen(screen, options)
    summarise(options.output)


def one_screen(name: str, options: argparse.Namespace) -> None:
    """Run what was asked on one screen, after what ran before; each method is kept as soon as it is done."""
    file = options.data / f"{name}_subset.h5ad"
    with tempfile.TemporaryDirectory() as folder:
        adata = anndata.read_h5ad(file)
        pert_data = PertData(folder, default_pert_graph=False)
        pert_data.new_data_process(name, adata, pool_cell_types=adata.obs["cell_type"].nunique() > 1)
        splits = list(folds(pert_data.screen, options.folds, options.repeats, options.seed))
        for repeat in range(options.repeats):
            part = splits[repeat * options.folds : (repeat + 1) * options.folds]
            for method in options.methods:
                one_method(name, method, pert_data, part, options)
        settings = {key: str(value) for key, value in vars(options).items() if key not in ("data", "output")}
        note(options.output, name, pert_data, settings)


def one_method(
    screen: str, method: str, pert_data: PertData, splits: list[Any], options: argparse.Namespace
) -> None:
    """Fit and score one method on the folds of one repeat, and keep the result; nothing where it is kept already."""
    start = time.perf_counter()
    names = tuple(BASELINES) if method == "baselines" else (method,)
    if not options.again and done(options.output, screen, names, [split_name(split) for split in splits]):
        return
    if method in ("baselines", *BASELINES):
        models, baselines = {}, tuple(BASELINES) if method == "baselines" else (method,)
    else:
        models, baselines = {method: partial(methods(options)[method], pert_data)}, ()
    result = compare(
        models,
        pert_data.screen,
        splits,
        seeds=(options.seed,) if models else (),
        annotation=pert_data.annotation,
        metrics=METRICS,
        baselines=baselines,
        n_split_half=options.n_split_half,
        seed=options.seed,
    )
    keep(options.output, screen, result.table, result.runs, result.left_out)
    repeat = splits[0].arguments["repeat"]
    print(f"{screen} repeat {repeat} {method}: {time.perf_counter() - start:.0f} s", flush=True)


def done(folder: Path, screen: str, names: tuple[str, ...], splits: list[str]) -> bool:
    """Whether every one of these methods is kept for every one of these splits."""
    path = folder / f"comparison_{screen}_runs.csv.gz"
    if not path.is_file():
        return False
    runs = pd.read_csv(path)
    there = set(zip(runs["method"], runs["split"], strict=True))
    return all((name, split) in there for name in names for split in splits)


def keep(folder: Path, name: str, table: pd.DataFrame, runs: pd.DataFrame, left_out: dict[str, str]) -> None:
    """Add a method's rows to the kept tables; what it left before for the same splits is replaced."""
    for kind, new in (("table", table), ("runs", runs)):
        path = folder / f"comparison_{name}_{kind}.csv.gz"
        if path.is_file():
            old = pd.read_csv(path)
            again = set(zip(new["method"], new["split"], strict=True))
            stays = [pair not in again for pair in zip(old["method"], old["split"], strict=True)]
            new = pd.concat([old[stays], new], ignore_index=True)
        write_atomically(path, partial(new.to_csv, index=False, float_format="%.6g", compression="gzip"))
    if left_out:
        write_json(folder / f"comparison_{name}_left_out.json", left_out)


def note(folder: Path, name: str, pert_data: PertData, settings: dict[str, str]) -> None:
    """What the figures were measured with."""
    screen = pert_data.screen
    write_json(
        folder / f"comparison_{name}_settings.json",
        {
            "screen": f"{len(screen.cells)} cells, {len(screen.gene_names)} genes, {len(screen.conditions) - 1} "
            "perturbed conditions",
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}",
            "settings": settings,
        },
    )


def summarise(folder: Path) -> None:
    """One Markdown page over all screens that were run, and an HTML page for each (made from the kept tables)."""
    lines = ["# Cross-validated comparison on the real subsets", "", __doc__.split("\n\n")[1].strip("\n"), ""]
    for path in sorted(folder.glob("comparison_*_table.csv.gz")):
        name = path.name.removeprefix("comparison_").removesuffix("_table.csv.gz")
        table = pd.read_csv(path)
        runs = pd.read_csv(folder / f"comparison_{name}_runs.csv.gz")
        models = [method for method in dict.fromkeys(table["method"]) if method not in BASELINES]
        table.attrs.update(models=models)
        settings = folder / f"comparison_{name}_settings.json"
        told = [f"{key}: {value}" for key, value in read_json(settings).items()] if settings.is_file() else []
        lines += [f"## {name}", "", *[f"- {line}" for line in told], "", *section(table, runs, models), ""]
        if models:
            with tempfile.TemporaryDirectory() as report:
                paths = write_report(table, report, title=f"Comparison on {name}", models=models, runs=runs)
                write_text(folder / f"comparison_{name}.html", paths["page"].read_text(encoding="utf-8"))
    write_text(folder / "comparison.md", "\n".join(lines))


def section(table: pd.DataFrame, runs: pd.DataFrame, models: list[str]) -> list[str]:
    """Verdicts and the means over all conditions with intervals."""
    bootstrap = Bootstrap(n=1000)
    summary = interval_table(table, bootstrap)
    n_conditions = int(summary["n_conditions"].max())
    lines = [f"{n_conditions} conditions, {table['split'].nunique()} splits.", ""]
    lines += [f"- {verdict(table, method=model)}" for model in models]
    seconds = runs.groupby("method", sort=False)["cpu_seconds"].median()
    whole = summary[summary["subgroup"] == "all"].set_index(["method", "metric"])
    splits = runs.groupby("method", sort=False)["split"].nunique()
    heads = ["method", *SHOWN, "splits", "CPU s of a fit"]
    lines += ["", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for method in dict.fromkeys(table["method"]):
        cells = []
        for metric in SHOWN:
            row = whole.loc[(method, metric)]
            undefined = f" [{int(row['n_undefined'])}]" if row["n_undefined"] else ""
            cells.append(f"{row['mean']:.3g} ({row['low']:.3g}, {row['high']:.3g}){undefined}")
        lines.append(f"| {method} | {' | '.join(cells)} | {splits[method]} | {seconds[method]:.3g} |")
    lines += [
        "",
        "Means over conditions (95 % interval from resampled conditions) [conditions where undefined].",
    ]
    for model in models:
        rows = difference_table(table, bootstrap, method=model)
        rows = rows[(rows["subgroup"] == "all") & rows["metric"].isin(["pearson_delta", "mse_top20_de"])]
        rows = rows[rows["against"].isin(BASELINES)]
        better = {kind: rows[rows["better"] == kind] for kind in ("model", "other", "undecided")}
        counts = ", ".join(f"{kind} {len(part)}" for kind, part in better.items())
        lines += ["", f"{model} against {len(rows)} (baseline, metric) pairs: better by interval: {counts}."]
    return lines


if __name__ == "__main__":
    main()
