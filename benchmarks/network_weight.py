"""How the weight of the network is chosen: false weights, and what several rules gain on the test part.

    python benchmarks/network_weight.py false                  residuals permuted over conditions, 200 runs each
    python benchmarks/network_weight.py rules --data FOLDER    every screen, four rules

``false``: the network is trained on the prior's residuals of *other* conditions, so that nothing it learns can hold on
the validation conditions. Every weight above 0 is a false one.

``rules``: on each fold the network is trained once; every rule then gives it a weight from what it may look at.

- signs: what `train()` does (:mod:`gears.training.network_weight`);
- interval: best epoch and weight where the 95 % bootstrap interval of the paired gain is above 0;
- shrunk: the best weight times 1 - (standard error / gain)^2, at least 0;
- cross-fitted: least-squares coefficient of the training residuals on out-of-fold predictions of networks trained
  on the other two thirds, lower 5 % bootstrap bound over conditions, from 0 to 1; at the best epoch.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
import torch

sys.path.append(str(Path(__file__).resolve().parent))

from accuracy import COMMON, REAL, SIMULATED
from measuring import command, commit, machine, versions

from gears import GEARS, PertData
from gears.data.splits.folds import folds
from gears.data.splits.split import perturbed_in
from gears.evaluation.metrics import condition_metrics
from gears.evaluation.truth import Truth
from gears.files.formats import write_json, write_text
from gears.model.network import begin_at_zero
from gears.prediction.stream import predict_changes
from gears.priors.source import prior_of, prior_rows
from gears.simulate import simulated_screen
from gears.training.batches import ConditionLoader
from gears.training.network_weight import WEIGHTS, choose_network_weight
from gears.training.options import MONITOR, TrainOptions
from gears.training.run import Run, RunResult
from gears.training.tables import condition_tables
from gears.training.tasks import pair_tables
from gears.training.validation import validation_of

METRICS = ("pearson_delta", "mse_top20_de")
RULES = ("signs", "interval", "shrunk", "cross-fitted")
HIDDEN, N_BOOTSTRAP = 32, 1000
SMALL = COMMON | {"n_genes": 200}
CPU = torch.device("cpu")


class Shifted:
    """The prior of some validation conditions, shifted so that their residual is that of another condition."""

    network_weight = 0.0

    def __init__(self, nodes: list[Any], delta_UG: np.ndarray) -> None:
        self.rows = {tuple(members): row for row, members in enumerate(nodes)}
        self.delta_UG = delta_UG

    def __call__(self, nodes: list[Any]) -> np.ndarray:
        return self.delta_UG[[self.rows[tuple(members)] for members in nodes]]


class Fold:
    """A screen with a split, its prior and a network to train."""

    def __init__(self, pert_data: PertData, seed: int, hidden: int = HIDDEN) -> None:
        self.pert_data, self.seed = pert_data, seed
        self.model = GEARS(pert_data, device="cpu")
        self.model.model_initialize(hidden_size=hidden, seed=seed)
        self.parts = self.model.parts
        self.fitted = prior_of(pert_data)
        self.known_CG = prior_rows(pert_data, self.fitted)
        self.train_ids = self.ids("train")

    def ids(self, part: str) -> np.ndarray:
        """Ids of the perturbed conditions of a part, ascending."""
        screen = self.pert_data.screen
        return np.sort([screen.id_of(c) for c in perturbed_in(self.pert_data.split, part)])

    def run(
        self, options: TrainOptions, validation: Any, known_CG: np.ndarray, ids: np.ndarray
    ) -> tuple[Any, RunResult]:
        """A network trained on what `known_CG` leaves of some conditions."""
        filled = dataclasses.replace(
            options.with_defaults(), monitor=validation.monitor.name, early_stopping=None, verbose=False
        )
        network = self.parts.network(seed=self.seed)
        begin_at_zero(network)
        control = [self.pert_data.screen.control_id]
        ids = np.sort(np.concatenate([ids, control]))
        loader = ConditionLoader(ids, filled.conditions_per_step(len(ids), 1), least=20, seed=self.seed)
        tables = partial(condition_tables, self.pert_data, config=self.parts.config, prior_CG=known_CG)
        run = Run(
            network,
            tables,
            partial(pair_tables, self.pert_data, self.parts.config),
            loader,
            self.parts,
            filled,
            validation,
            device=CPU,
        )
        with run.reported():
            run.engine.train(**run.training)
        result = run.result()
        network.load_state_dict(result.best_state)
        return network, result


def permuted(
    fold: Fold, options: TrainOptions, rng: np.random.Generator
) -> tuple[np.ndarray, RunResult, Any]:
    """Monitored metric of the prior alone and a run, both with residuals of other conditions."""
    statistics = fold.pert_data.screen.statistics
    delta_CG = np.array(statistics.delta(np.arange(len(statistics.n))))
    known_CG, train = fold.known_CG.copy(), fold.train_ids
    residual = delta_CG[train] - known_CG[train]
    known_CG[train] = delta_CG[train] - residual[rng.permutation(len(train))]
    plain = validation_of(fold.pert_data, MONITOR)
    conditions = perturbed_in(fold.pert_data.split, "val")
    val = [fold.pert_data.screen.id_of(c) for c in conditions]
    residual = delta_CG[val] - fold.fitted.prior(plain.nodes)
    shifted = Shifted(plain.nodes, delta_CG[val] - residual[rng.permutation(len(val))])
    validation = validation_of(fold.pert_data, MONITOR, shifted)
    _, prior_U = validation.of_prior()
    _, run = fold.run(options, validation, known_CG, train)
    return prior_U, run, validation


def by_interval(gain_EKU: np.ndarray) -> float:
    """Best epoch and weight where the bootstrap interval of its gain is above 0."""
    gain_U, weight = best_of(gain_EKU)
    draw = np.random.default_rng(0).integers(len(gain_U), size=(N_BOOTSTRAP, len(gain_U)))
    return weight if np.quantile(gain_U[draw].mean(axis=1), 0.025) > 0 else 0.0


def by_shrinkage(gain_EKU: np.ndarray) -> float:
    """Best weight times what of its gain exceeds its standard error."""
    gain_U, weight = best_of(gain_EKU)
    mean, error = gain_U.mean(), gain_U.std(ddof=1) / np.sqrt(len(gain_U)) if len(gain_U) > 1 else np.inf
    return 0.0 if mean <= 0 else weight * max(0.0, 1 - (error / mean) ** 2)


def best_of(gain_EKU: np.ndarray) -> tuple[np.ndarray, float]:
    """Gains by condition of the best epoch and weight, and that weight."""
    flat = gain_EKU.reshape(-1, gain_EKU.shape[-1])
    best = int(flat.mean(axis=1).argmax())
    return flat[best], WEIGHTS[best % len(WEIGHTS)]


def by_cross_fitting(fold: Fold, options: TrainOptions) -> float:
    """Coefficient of the training residuals on out-of-fold predictions, lower bound."""
    train, screen = fold.train_ids, fold.pert_data.screen
    residual = np.array(screen.statistics.delta(train)) - fold.known_CG[train]
    nodes = [fold.pert_data.condition_nodes(screen.conditions[number]) for number in train]
    predicted = np.zeros_like(residual)
    order = np.random.default_rng(fold.seed).permutation(len(train))
    silent = validation_of(fold.pert_data, MONITOR)
    silent.nodes = []
    for third in range(3):
        out = np.sort(order[third::3])
        kept = np.setdiff1d(np.arange(len(train)), out)
        network, _ = fold.run(options, silent, fold.known_CG, train[kept])
        predicted[out] = predict_changes(network, [nodes[row] for row in out])[0]
    top, bottom = (predicted * residual).sum(axis=1), (predicted**2).sum(axis=1)
    draw = np.random.default_rng(0).integers(len(train), size=(N_BOOTSTRAP, len(train)))
    coefficients = top[draw].sum(axis=1) / np.maximum(bottom[draw].sum(axis=1), 1e-12)
    return float(np.clip(np.quantile(coefficients, 0.05), 0.0, 1.0))


def false_weights(options: argparse.Namespace) -> dict[str, Any]:
    """Share of runs with a weight above 0 by rule and number of validation conditions."""
    training = TrainOptions(epochs=options.epochs)
    adata = simulated_screen(
        **SMALL | SIMULATED["interactions"] | {"n_genes": 100, "cells_per_condition": 30}
    )[0]
    shares: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        pert_data = PertData(folder, default_pert_graph=False)
        pert_data.new_data_process("screen", adata)
        names = sorted(label for label in pert_data.screen.labels if label != "ctrl")
        for n_val in (4, 5, 8, 20):
            counts = dict.fromkeys(("signs", "interval", "shrunk", "best on validation"), 0)
            start = time.perf_counter()
            for run_number in range(options.runs):
                rng = np.random.default_rng([n_val, run_number])
                drawn = rng.permutation(names).tolist()
                parts = {"train": ["ctrl", *drawn[:40]], "val": drawn[40 : 40 + n_val], "test": drawn[-5:]}
                pert_data.prepare_split("custom", seed=run_number, split_dict=parts)
                prior_U, run, validation = permuted(Fold(pert_data, run_number, 16), training, rng)
                gain_EKU = prior_U - np.stack(run.condition_scores)
                chosen = choose_network_weight(
                    run.condition_scores,
                    prior_U,
                    lower_is_better=not validation.monitor.higher_is_better,
                    kept=run.kept,
                )
                counts["signs"] += chosen.weight > 0
                counts["interval"] += by_interval(gain_EKU) > 0
                counts["shrunk"] += by_shrinkage(gain_EKU) > 0
                counts["best on validation"] += chosen.gain > 0
            shares[str(n_val)] = {rule: count / options.runs for rule, count in counts.items()}
            print(n_val, shares[str(n_val)], f"{time.perf_counter() - start:.0f} s", flush=True)
    return shares


def planted() -> anndata.AnnData:
    """Pairs whose change depends on whether both genes are of one group: no sum over genes can say it."""
    rng = np.random.default_rng(5)
    adata, _ = simulated_screen(**SMALL | SIMULATED["additive"] | {"n_singles": 16, "n_pairs": 110})
    genes = sorted({gene for label in adata.obs["condition"] for gene in label.split("+") if gene != "ctrl"})
    group = dict(zip(genes, rng.permutation(np.arange(len(genes)) % 2), strict=True))
    columns = rng.choice(adata.n_vars, size=40, replace=False)
    shift = rng.normal(scale=0.5, size=40)
    dense = adata.X.toarray() if hasattr(adata.X, "toarray") else np.array(adata.X)
    for label in adata.obs["condition"].unique():
        pair = [gene for gene in label.split("+") if gene != "ctrl"]
        if len(pair) == 2:
            rows = np.flatnonzero(adata.obs["condition"] == label)
            sign = 1.0 if group[pair[0]] == group[pair[1]] else -1.0
            dense[np.ix_(rows, columns)] = np.maximum(dense[np.ix_(rows, columns)] + sign * shift, 0)
    adata.X = dense.astype(np.float32)
    return adata


def shuffled() -> anndata.AnnData:
    """A screen whose conditions have each other's cells: genes say nothing about changes."""
    adata, _ = simulated_screen(**SMALL | SIMULATED["additive"])
    labels = adata.obs["condition"].astype(str)
    rng = np.random.default_rng(5)
    swap: dict[str, str] = {"ctrl": "ctrl"}
    for size in (1, 2):
        own = sorted(
            x
            for x in labels.unique()
            if x != "ctrl" and len([g for g in x.split("+") if g != "ctrl"]) == size
        )
        swap |= dict(zip(own, rng.permutation(own), strict=True))
    adata.obs["condition"] = labels.map(swap)
    return adata


def screens(data: Path | None) -> Any:
    """The ten screens: name and cells."""
    for name, kind in SIMULATED.items():
        yield f"simulated: {name}", simulated_screen(**SMALL | kind)[0]
    yield "simulated: labels shuffled", shuffled()
    yield "simulated: planted", planted()
    for name in REAL if data else ():
        adata = anndata.read_h5ad(data / f"{name}_subset.h5ad")
        cell_type = adata.obs["cell_type"].value_counts().index[0]
        yield name, adata[adata.obs["cell_type"] == cell_type].copy()


def rules_of(options: argparse.Namespace) -> pd.DataFrame:
    """One row per screen, fold and rule: weight and test metrics."""
    training, records = TrainOptions(epochs=options.epochs), []
    for name, adata in screens(options.data):
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            pert_data = PertData(folder, default_pert_graph=False)
            pert_data.new_data_process("screen", adata)
            for number, split in enumerate(folds(pert_data.screen, 5, 1, 1)):
                if number >= options.folds:
                    break
                pert_data.use_split(split)
                fold = Fold(pert_data, number)
                validation = validation_of(pert_data, MONITOR, fold.fitted.prior)
                _, prior_U = validation.of_prior()
                network, run = fold.run(training, validation, fold.known_CG, fold.train_ids)
                gain_EKU = prior_U - np.stack(run.condition_scores)
                weights = {
                    "signs": choose_network_weight(
                        run.condition_scores, prior_U, lower_is_better=True, kept=run.kept
                    ).weight,
                    "interval": by_interval(gain_EKU),
                    "shrunk": by_shrinkage(gain_EKU),
                    "cross-fitted": by_cross_fitting(fold, training),
                    "best on validation": best_of(gain_EKU)[1] if best_of(gain_EKU)[0].mean() > 0 else 0.0,
                }
                test = perturbed_in(split, "test")
                truth = Truth.of(pert_data.screen, test, split.conditions("train"))
                nodes = [pert_data.condition_nodes(condition) for condition in test]
                network_UG, prior_UG = predict_changes(network, nodes)[0], fold.fitted.prior(nodes)
                for rule, weight in (weights | {"prior alone": 0.0}).items():
                    predicted_UG = np.maximum(truth.control_mean_G + prior_UG + weight * network_UG, 0)
                    values_UM = np.nan_to_num(condition_metrics(predicted_UG, truth, METRICS))
                    records += [
                        (name, number, rule, weight, len(prior_U), str(condition), *row)
                        for condition, row in zip(test, values_UM.tolist(), strict=True)
                    ]
        print(name, f"{time.perf_counter() - start:.0f} s", flush=True)
    columns = ["screen", "fold", "rule", "weight", "n_val", "condition", *METRICS]
    return pd.DataFrame(records, columns=columns)


def rules_table(table: pd.DataFrame) -> list[str]:
    """Markdown: weights by fold, and the paired gain over the prior alone on all test conditions."""
    lines = [
        "| screen | rule | weights by fold | "
        + " | ".join(f"{m} - prior alone (95 %)" for m in METRICS)
        + " |"
    ]
    lines.append("|---" * (3 + len(METRICS)) + "|")
    for screen, rows in table.groupby("screen", sort=False):
        alone = rows[rows["rule"] == "prior alone"].set_index(["fold", "condition"])
        for rule in (*RULES, "best on validation"):
            own = rows[rows["rule"] == rule].set_index(["fold", "condition"]).loc[alone.index]
            weights = own.groupby("fold")["weight"].first()
            cells = []
            for metric in METRICS:
                gain = (own[metric] - alone[metric]).to_numpy()
                draw = np.random.default_rng(0).integers(len(gain), size=(N_BOOTSTRAP, len(gain)))
                low, high = np.quantile(gain[draw].mean(axis=1), [0.025, 0.975])
                cells.append(f"{gain.mean():+.4f} ({low:+.4f}, {high:+.4f})")
            shown = ", ".join(f"{weight:.2g}" for weight in weights)
            lines.append(f"| {screen} | {rule} | {shown} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Run one part and keep its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("part", choices=["false", "rules"])
    parser.add_argument("--data", type=Path, help="folder with NAME_subset.h5ad")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=20)
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
    name = f"network_weight_{options.part}"
    if options.part == "false":
        shares = false_weights(options)
        write_json(options.output / f"{name}.json", about | {"shares": shares})
        lines = ["| validation conditions | " + " | ".join(next(iter(shares.values()))) + " |"]
        lines.append("|---" * (1 + len(next(iter(shares.values())))) + "|")
        lines += [
            f"| {n} | " + " | ".join(f"{v:.3f}" for v in row.values()) + " |" for n, row in shares.items()
        ]
        title = f"Share of {options.runs} runs with a weight above 0, residuals permuted over conditions"
    else:
        table = rules_of(options)
        write_json(options.output / f"{name}.json", about | {"rows": table.to_dict("records")})
        lines, title = rules_table(table), "Weights and test gains of the network by rule"
    text = "\n".join(
        [f"# {title}", "", *(f"- {key}: {value}" for key, value in about.items()), "", *lines, ""]
    )
    write_text(options.output / f"{name}.md", text)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
