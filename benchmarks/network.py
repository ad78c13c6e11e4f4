"""What the network itself does: one table of jobs, each a row of figures per run.

    python benchmarks/network.py list                                (the jobs)
    python benchmarks/network.py planted remainders null             (some of them)
    python benchmarks/network.py final --seeds 0 1 2 --data FOLDER   (the comparison, with the real subsets found there)
    python benchmarks/network.py final --conditions 100 300 1000 --objectives moments cells --kinds products

Figures of a run: relative error of test conditions (of the train mean: 1), its slope of measured on predicted changes
(1 is right, below it predictions are too large), slope of predicted on measured changes of the training conditions
(before a network alone is drawn to their mean) and how much of a deviation from it remains, change predicted at sparse
genes, the epoch that is kept, the network weight and CPU seconds. Changes are deviations from the mean of the training
conditions.
``final`` compares the network alone, the prior, the prior with its head, and both with the network, by the decisive
metrics; without a network weight the last is the one before.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from accuracy import COMMON, PUBLISHED, SIMULATED, BenchmarkScreen, screens
from measuring import command, commit, machine, versions

from gears import GEARS, PertData
from gears.data.splits.folds import folds
from gears.data.splits.split import perturbed_in
from gears.evaluation import DECISIVE
from gears.evaluation.fitted import settings_of
from gears.evaluation.metrics import condition_metrics
from gears.evaluation.truth import Truth
from gears.files.formats import write_json, write_text
from gears.prediction.stream import predict_changes
from gears.simulate import simulated_screen
from gears.training.network_weight import WEIGHTS

HIDDEN = 32
SMALL = COMMON | {"n_genes": 150, "cells_per_condition": 50}
PLANTED = COMMON | SIMULATED["products"] | {"n_genes": 60, "cells_per_condition": 80, "counts_per_gene": 4.0}
NULL = {"effect_size": 0.0, "target_effect": 0.0, "interaction_share": 0.0, "n_pairs": 0, "n_singles": 60}
SPARSE = {
    "counts_per_gene": 0.1,
    "baseline_sd": 2.0,
    "cells_per_condition": 25,
    "n_control": 150,
    "n_pairs": 0,
}
METRICS = (*DECISIVE, "amplitude_slope")


@dataclass(frozen=True)
class Case:
    """A run: what is simulated, how many conditions train and validate, how the model is made and trained."""

    name: str
    screen: dict[str, Any]
    n_train: int
    n_val: int
    training: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)


def planted() -> Iterator[Case]:
    """Pairs by products: three learning rates, three batch sizes."""
    for lr, size in ((1e-2, 32), (3e-3, 32), (3e-2, 32), (1e-2, 16), (1e-2, 51)):
        options = {"lr": lr, "batch_size": size, "epochs": 12, "early_stopping": None, "refit": False}
        yield Case(f"lr {lr:g}, batches of {size}", PLANTED, 256, 20, options)


def remainders() -> Iterator[Case]:
    """Steps of 32 conditions: 33 to 63 conditions to train, the control among them."""
    for more in range(1, 32):
        screen = SMALL | {"n_singles": 90, "n_pairs": 0, "interaction_share": 0.0}
        yield Case(f"32 + {more}", screen, 31 + more, 6, {"prior": None})


def untrained() -> Iterator[Case]:
    """Few validation conditions: which epoch is kept, and does it fit the training conditions?"""
    for n_val in (4, 6, 11):
        for uncertainty in (False, True):
            name = f"{n_val} validation conditions{', uncertainty' * uncertainty}"
            yield Case(
                name, SMALL | {"n_pairs": 20}, 34, n_val, {"prior": None}, {"uncertainty": uncertainty}
            )


def silent() -> Iterator[Case]:
    """Genes without counts in any training cell."""
    for prior in (None, "auto"):
        yield Case(f"prior={prior}", SMALL | SPARSE, 30, 6, {"prior": prior, "early_stopping": None})


def null() -> Iterator[Case]:
    """A screen without any effect: are sparse genes predicted to change?"""
    for direction in ("smooth", "sign"):
        for objective in ("moments", "cells"):
            options = {"prior": None, "objective": objective}
            screen = SMALL | NULL | {"counts_per_gene": 0.5}
            yield Case(f"{direction}, {objective}", screen, 44, 6, options, {"direction": direction})


def moving_average() -> Iterator[Case]:
    """The moving average of weights, at its default decay."""
    for use_ema in (False, True):
        yield Case(f"use_ema={use_ema}", SMALL, 60, 8, {"prior": None, "use_ema": use_ema})


def cells() -> Iterator[Case]:
    """Cells by their defaults and as published, beside moments."""
    for name, options in {
        "moments": {},
        "cells": {"objective": "cells"},
        "cells, published": {"objective": "cells", **PUBLISHED},
    }.items():
        yield Case(name, SMALL, 60, 8, {"prior": None, **options})


def alone() -> Iterator[Case]:
    """The network alone on each simulated kind."""
    for kind, options in SIMULATED.items():
        yield Case(kind, SMALL | options, 60, 8, {"prior": None})


JOBS: dict[str, Callable[[], Iterator[Case]]] = {
    "planted": planted, "remainders": remainders, "untrained": untrained, "silent": silent, "null": null,
    "ema": moving_average, "cells": cells, "alone": alone,
}  # fmt: skip


def run(case: Case, seed: int) -> dict[str, Any]:
    """Figures of one run; the seed is that of the screen, of the split and of the network."""
    adata, _ = simulated_screen(**case.screen | {"seed": seed})
    with tempfile.TemporaryDirectory() as folder:
        pert_data = PertData(folder, default_pert_graph=False)
        pert_data.new_data_process("screen", adata)
        names = sorted(label for label in pert_data.screen.labels if label != "ctrl")
        drawn = np.random.default_rng(seed).permutation(names).tolist()
        known = case.n_train + case.n_val
        parts = {
            "train": ["ctrl", *drawn[: case.n_train]],
            "val": drawn[case.n_train : known],
            "test": drawn[known:],
        }
        pert_data.prepare_split("custom", seed=seed, split_dict=parts)
        model = GEARS(pert_data, device="cpu")
        model.model_initialize(hidden_size=HIDDEN, seed=seed, **case.model)
        start = time.process_time()
        result = model.train(evaluate_test=False, verbose=False, **case.training)
        seconds = time.process_time() - start
        return figures(pert_data, model) | {
            "kept": result.best_epoch,
            "weight": result.network_weight,
            "CPU s": round(seconds, 1),
        }


def figures(pert_data: PertData, model: GEARS) -> dict[str, float]:
    """Errors and slopes of what the model predicts, and of what prior and network are beside it."""
    train, test = (changes(pert_data, model, part) for part in ("train", "test"))
    reference_G = train.measured_UG.mean(axis=0)
    deviation_UG, true_UG = test.predicted_UG - reference_G, test.measured_UG - reference_G
    found = {
        "test error": ((deviation_UG - true_UG) ** 2).sum() / (true_UG**2).sum(),
        "test slope": (deviation_UG * true_UG).sum() / max((deviation_UG**2).sum(), 1e-12),
        "train slope": ((train.predicted_UG - reference_G) * (train.measured_UG - reference_G)).sum()
        / ((train.measured_UG - reference_G) ** 2).sum(),
    }
    drawn = model.parts.provenance.get("slope_of_network", 1.0)
    found |= {"train slope": found["train slope"] / drawn, "drawn": drawn}
    plain_UG = reference_G + (test.network_UG - reference_G) / drawn
    prior = model.parts.prior
    if prior is not None:  # test errors of every weight
        prior_UG = prior(test.nodes)
        errors = [
            ((prior_UG + weight * test.network_UG - test.measured_UG) ** 2).sum() / (true_UG**2).sum()
            for weight in (0.0, *WEIGHTS)
        ]
        found |= {"prior error": errors[0], "best weight's error": min(errors)}
    mean_G = pert_data.screen.control_mean_G
    sparse_G = (mean_G > 0.02) & (mean_G < 0.3)
    screen = pert_data.screen
    ids = [screen.id_of(condition) for condition in pert_data.split.conditions("train")]
    silent_G = ~(screen.statistics.mean[ids] > 0).any(axis=0)
    top_U20 = np.argsort(-np.abs(test.network_UG), axis=1)[:, :20]
    return found | {
        "change at sparse genes": plain_UG[:, sparse_G].mean() if sparse_G.any() else np.nan,
        "top 20 silent": silent_G[top_U20].mean(),
        "top 20 unchanged": (np.take_along_axis(test.measured_UG, top_U20, 1) == 0).mean(),
    }


@dataclass(frozen=True)
class Changes:
    """Changes of a part's conditions: predicted by the model, by its network, and measured."""

    nodes: list[Any]
    predicted_UG: np.ndarray
    network_UG: np.ndarray
    measured_UG: np.ndarray


def changes(pert_data: PertData, model: GEARS, part: str) -> Changes:
    """Changes of a part's conditions."""
    conditions = perturbed_in(pert_data.split, part)
    nodes = [pert_data.condition_nodes(condition) for condition in conditions]
    ids = np.array([pert_data.screen.id_of(condition) for condition in conditions])
    network, parts = model.best_model, model.parts
    network_UG = predict_changes(network, nodes).delta_UG
    predicted_UG = network_UG
    if parts.prior is not None:
        predicted_UG = parts.prior.complete(nodes, parts.prior(nodes), network_UG)
    return Changes(nodes, predicted_UG, network_UG, pert_data.screen.statistics.delta(ids))


METHODS: dict[str, dict[str, Any]] = {
    "network alone": {"prior": None},
    "prior": {"epochs": 0},
    "prior + head": {"steps": 1, "lr": 1e-12},
    "prior + head + network": {},
}
"""Training options of each method; a network of one step at a rate of nearly 0 leaves the prior with its head."""


def compared(screen: BenchmarkScreen, objective: str, options: argparse.Namespace) -> pd.DataFrame:
    """Metrics of every test condition of every fold by each method."""
    tables = []
    with tempfile.TemporaryDirectory() as folder:
        pert_data = PertData(folder, default_pert_graph=False)
        pert_data.new_data_process("screen", screen.adata, **screen.preparation)
        n_folds = min(options.folds, len(pert_data.screen.conditions) - 1)
        for split in list(folds(pert_data.screen, n_folds, 1, 1))[: options.most_folds]:
            pert_data.use_split(split)
            for name, training in METHODS.items():
                if objective == "cells" and name.startswith("prior") and "network" not in name:
                    continue  # the same as over moments
                model = GEARS(pert_data, device="cpu")
                model.model_initialize(hidden_size=options.hidden, seed=1)
                start = time.process_time()
                result = model.train(evaluate_test=False, verbose=False, objective=objective, **training)
                seconds = time.process_time() - start
                tables.append(
                    scored(pert_data, model).assign(
                        screen=screen.name,
                        seed=str(screen.seed),
                        fold=split.arguments["fold"],
                        method=name if objective == "moments" else f"{name}, cells",
                        weight=result.network_weight,
                        train_slope=figures(pert_data, model)["train slope"],
                        cpu_seconds=seconds,
                    )
                )
                print(f"  {name}, {objective}: {seconds:.0f} CPU s", flush=True)
    return pd.concat(tables, ignore_index=True)


def scored(pert_data: PertData, model: GEARS) -> pd.DataFrame:
    """Metrics of the test conditions; known are those of training and validation."""
    split, screen = pert_data.split, pert_data.screen
    known = [condition for part in ("train", "val") for condition in perturbed_in(split, part)]
    tested = perturbed_in(split, "test")
    (setting,) = settings_of(screen, tested, known)
    truth = Truth.of(
        setting.screen, setting.conditions, reference_mean_G=setting.means.reference_mean(), pooled=known
    )
    predicted_UG = model.predict([tested[row] for row in setting.rows]).expression_UG
    table = pd.DataFrame(condition_metrics(predicted_UG, truth, METRICS), columns=list(METRICS))
    return table.assign(condition=[condition.name for condition in truth.conditions])


def sized(kind: str, n_conditions: int, seed: int) -> BenchmarkScreen:
    """A screen of a kind with about so many training conditions in five folds."""
    wanted = round(n_conditions / 0.6)
    base = COMMON | SIMULATED[kind]
    share = base["n_pairs"] / (base["n_singles"] + base["n_pairs"])
    sizes = {"n_singles": round(wanted * (1 - share)), "n_pairs": round(wanted * share)}
    adata, _ = simulated_screen(**base | sizes | {"seed": seed})
    return BenchmarkScreen(f"simulated: {kind}, {n_conditions} conditions", seed, adata)


def final(options: argparse.Namespace) -> pd.DataFrame:
    """The comparison on all requested screens."""
    wanted: list[BenchmarkScreen] | Iterator[BenchmarkScreen] = screens(
        options.kinds, options.data, options.seeds
    )
    if options.conditions:
        wanted = (
            sized(kind, n, seed)
            for kind in options.kinds
            for n in options.conditions
            for seed in options.seeds
        )
    tables = []
    for screen in wanted:
        print(screen.name, screen.seed, flush=True)
        tables += [compared(screen, objective, options) for objective in options.objectives]
    return pd.concat(tables, ignore_index=True)


def report(table: pd.DataFrame) -> list[str]:
    """Markdown: means over conditions of each screen and method; slopes by their median."""
    shown = [*METRICS, "train_slope", "weight", "cpu_seconds"]
    rows = table.assign(weight=table["weight"].astype(float)).groupby(["screen", "method"], sort=False)
    means = rows[shown].mean()
    means["amplitude_slope"] = rows["amplitude_slope"].median()
    return [
        "| screen | method | " + " | ".join(shown) + " |",
        "|---" * (len(shown) + 2) + "|",
        *(
            f"| {screen} | {method} | " + " | ".join(f"{value:.3g}" for value in values) + " |"
            for (screen, method), values in zip(means.index, means.to_numpy(), strict=True)
        ),
    ]


def main() -> None:
    """Run jobs, and write a table and its rows for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("jobs", nargs="+", choices=["list", *JOBS, "final"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--data", type=Path, help="folder with NAME_subset.h5ad (final)")
    parser.add_argument("--kinds", nargs="*", default=list(SIMULATED), choices=list(SIMULATED))
    parser.add_argument("--conditions", nargs="*", type=int, help="numbers of training conditions (final)")
    parser.add_argument("--objectives", nargs="+", default=["moments"], choices=["moments", "cells"])
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--most-folds", type=int, help="of each screen, only the first folds")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    logging.getLogger("gears").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    about = {
        "machine": machine(),
        "versions": versions(("torch", "numpy", "anndata")),
        "commit": commit(Path(__file__).parent),
        "command": command(),
    }
    for job in options.jobs:
        if job == "list":
            print("\n".join(f"{name}: {cases.__doc__}" for name, cases in JOBS.items()))
            continue
        if job == "final":
            table = final(options)
            lines = report(table)
        else:
            records = []
            for case in JOBS[job]():
                for seed in options.seeds:
                    records.append({"case": case.name, "seed": seed} | run(case, seed))
                    print(records[-1], flush=True)
            table = pd.DataFrame(records)
            lines = ["| " + " | ".join(table.columns) + " |", "|---" * len(table.columns) + "|"]
            lines += [
                "| " + " | ".join(f"{v:.3g}" if isinstance(v, float) else str(v) for v in row) + " |"
                for row in table.itertuples(index=False)
            ]
        header = [f"# The network: {job}", "", *(f"- {key}: {value}" for key, value in about.items()), ""]
        write_text(options.output / f"network_{job}.md", "\n".join([*header, *lines, ""]))
        write_json(options.output / f"network_{job}.json", about | {"rows": table.to_dict("records")})
        print("\n".join(lines))


if __name__ == "__main__":
    main()
