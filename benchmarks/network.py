"""What the network itself does: promises of it, and the network beside the prior and its head.

    python benchmarks/run.py network --seeds 0 1 2 --most-folds 1 --data FOLDER
    python benchmarks/run.py network --conditions 100 300 1000 --genes 200 --kinds products --name network_conditions
    python benchmarks/run.py network_cases --cases planted null --seeds 0 1 2

``network`` compares the network alone, the prior, the prior with its head, and both with the network, by the decisive
metrics; without a network weight the last is the one before. ``weights`` counts the runs with one above 0.

Figures of ``network_cases``: relative error of test conditions (of the train mean: 1), its slope of measured on
predicted changes (1 is right, below it predictions are too large), slope of predicted on measured changes of the
training conditions (before a network alone is drawn to their mean) and how much of a deviation from it remains, change
predicted at sparse genes, the epoch that is kept, the network weight and CPU seconds. Changes are deviations from the
mean of the training conditions. Cases: {cases}.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from accuracy import scored
from measuring import Result, table
from screens import COMMON, KINDS, SIMULATED, Screen, folds_of, screens
from screens import SMALL as SMALL_SCREEN

from gears import GEARS, PertData
from gears.data.splits._split import perturbed_in
from gears.evaluation import DECISIVE
from gears.prediction._stream import predict_changes
from gears.simulate import simulated_screen
from gears.training._validation import WEIGHTS

HIDDEN = 32
SMALL = COMMON | {"n_genes": 150, "cells_per_condition": 50}
PLANTED = COMMON | SIMULATED["products"] | {"n_genes": 60, "cells_per_condition": 80, "counts_per_gene": 4.0}
NULL = {"effect_size": 0.0, "target_effect": 0.0, "interaction_share": 0.0, "n_pairs": 0, "n_singles": 60}
SPARSE = {"counts_per_gene": 0.1, "baseline_sd": 2.0, "cells_per_condition": 25, "n_control": 150, "n_pairs": 0}
METRICS = (*(name for name in DECISIVE if name != "interval_score_90"), "amplitude_slope")


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
    """Steps of 32 conditions, of which 1, 2, 17, 31 and 1 remain."""
    screen = SMALL | {"n_singles": 90, "n_pairs": 0, "interaction_share": 0.0}
    for n_train in (33, 34, 49, 63, 65):  # the control among them
        yield Case(f"{n_train} conditions", screen, n_train - 1, 6, {"prior": None})


def untrained() -> Iterator[Case]:
    """Few validation conditions: which epoch is kept, and does it fit the training conditions?"""
    for n_val in (4, 6, 11):
        for uncertainty in (False, True):
            name = f"{n_val} validation conditions{', uncertainty' * uncertainty}"
            yield Case(name, SMALL | {"n_pairs": 20}, 34, n_val, {"prior": None}, {"uncertainty": uncertainty})


def silent() -> Iterator[Case]:
    """Genes without counts in any training cell."""
    for prior in (None, "auto"):
        yield Case(f"prior={prior}", SMALL | SPARSE, 30, 6, {"prior": prior, "epochs": 20})


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


CASES: dict[str, Callable[[], Iterator[Case]]] = {
    "planted": planted, "remainders": remainders, "untrained": untrained, "silent": silent, "null": null,
    "ema": moving_average,
}  # fmt: skip
__doc__ = __doc__.format(cases="; ".join(f"{name}: {cases.__doc__}" for name, cases in CASES.items()))


def network_cases(
    cases: tuple[str, ...] = tuple(CASES), seeds: tuple[int, ...] = (0, 1, 2), small: bool = False
) -> Iterator[Result]:
    """A table for each of the cases; the seed is that of the screen, of the split and of the network."""
    for name in cases:
        rows = []
        for case in list(CASES[name]())[: 1 if small else None]:
            if small:
                case = replace(case, screen=case.screen | SMALL_SCREEN, training=case.training | {"epochs": 4})
            for seed in seeds:
                rows.append({"case": case.name, "seed": seed} | run(case, seed))
                print(rows[-1], flush=True)
        yield Result(f"The network: {name}", table(rows), {"rows": rows}, name=f"network_{name}")


def run(case: Case, seed: int) -> dict[str, Any]:
    """Figures of one run; the seed is that of the screen, of the split and of the network."""
    adata, _ = simulated_screen(**case.screen | {"seed": seed})
    with Screen(case.name, seed, adata).prepared() as pert_data:
        names = sorted(label for label in pert_data.screen.labels if label != "ctrl")
        drawn = np.random.default_rng(seed).permutation(names).tolist()
        known = case.n_train + case.n_val
        parts = {"train": ["ctrl", *drawn[: case.n_train]], "val": drawn[case.n_train : known], "test": drawn[known:]}
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


MOST_PERTURBED = 60
"""Perturbed genes of a screen with pairs: these decide what prior and head cost."""
METHODS: dict[str, dict[str, Any]] = {
    "network alone": {"prior": None},
    "prior": {"epochs": 0},
    "prior + head": {},
    "prior + head + network": {"epochs": 20},
}
"""Training options of each method; by default no network is trained beside the prior."""


def network(
    kinds: tuple[str, ...] = KINDS,
    data: Path | None = None,
    seeds: tuple[int, ...] = (0, 1, 2),
    conditions: tuple[int, ...] = (),
    objectives: tuple[str, ...] = ("moments",),
    genes: int = 500,
    folds: int = 5,
    most_folds: int = 5,
    hidden: int = 64,
    small: bool = False,
) -> Iterator[Result]:
    """Every method on all screens; `conditions` are numbers of training conditions of simulated ones."""
    wanted = screens(kinds, data, seeds, small)
    if conditions:
        wanted = (sized(kind, n, genes, seed) for kind in kinds for n in conditions for seed in seeds)
    tables = []
    for screen in wanted:
        with screen.prepared() as prepared:
            for split in folds_of(prepared, folds)[:most_folds]:
                prepared.use_split(split)
                for objective in objectives:
                    tables += list(by_method(prepared, screen, objective, hidden))
        print(f"{screen.name}, seed {screen.seed}", flush=True)
        values = pd.concat(tables, ignore_index=True)
        yield Result("The network beside the prior", table(summary(values)), {"rows": values.to_dict("records")})


def by_method(data: PertData, screen: Screen, objective: str, hidden: int) -> Iterator[pd.DataFrame]:
    """Metrics of every test condition by each method."""
    for name, training in METHODS.items():
        if objective == "cells" and name.startswith("prior") and "network" not in name:
            continue  # the same as over moments
        model = GEARS(data, device="cpu")
        model.model_initialize(hidden_size=hidden, seed=1)
        start = time.process_time()
        result = model.train(evaluate_test=False, verbose=False, objective=objective, **training)
        seconds = time.process_time() - start
        yield scored(data, lambda tested, model=model: model.predict(tested).expression_UG, METRICS).assign(
            screen=screen.name,
            seed=str(screen.seed),
            fold=data.split.arguments["fold"],
            method=name if objective == "moments" else f"{name}, cells",
            weight=np.nan if result.network_weight is None else result.network_weight,
            train_slope=figures(data, model)["train slope"],
            cpu_seconds=seconds,
        )


def sized(kind: str, n_conditions: int, n_genes: int, seed: int) -> Screen:
    """A screen of a kind with about so many training conditions in five folds, of few genes where there are pairs."""
    wanted = round(n_conditions / 0.6)
    base = COMMON | SIMULATED[kind] | {"n_genes": n_genes, "seed": seed}
    share = base["n_pairs"] / (base["n_singles"] + base["n_pairs"])
    n_singles = min(round(wanted * (1 - share)), MOST_PERTURBED if share else wanted)
    adata, truth = simulated_screen(**base | {"n_singles": n_singles, "n_pairs": wanted - n_singles})
    return Screen(f"{kind}, {n_conditions} conditions", seed, adata, truth)


def summary(values: pd.DataFrame) -> list[dict[str, Any]]:
    """Means over conditions of each screen and method; slopes by their median, weights by run."""
    rows = values.groupby(["screen", "method"], sort=False)
    means = rows[[*METRICS, "train_slope", "cpu_seconds"]].mean()
    means["amplitude_slope"] = rows["amplitude_slope"].median()
    runs = values.drop_duplicates(["screen", "method", "seed", "fold"]).groupby(["screen", "method"], sort=False)
    means["weights"] = runs["weight"].apply(
        lambda weight: f"{(weight > 0).sum()} of {len(weight)}" if weight.notna().any() else ""
    )
    return means.reset_index().to_dict("records")
