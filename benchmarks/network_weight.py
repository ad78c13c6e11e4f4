"""How the weight of the network is chosen: false weights, and what several rules gain on the test part.

    python benchmarks/run.py network_weight                    residuals permuted over conditions, 200 runs each
    python benchmarks/run.py network_rules --data FOLDER       every screen, four rules

``network_weight``: the network is trained on the prior's residuals of *other* conditions, so that nothing it learns can
hold on the validation conditions. Every weight above 0 is a false one.

``network_rules``: on each fold the network is trained once; every rule then gives it a weight from what it may look at.

- signs: what `train()` does (:mod:`gears.training._validation`);
- interval: best epoch and weight where the 95 % bootstrap interval of the paired gain is above 0;
- shrunk: the best weight times 1 - (standard error / gain)^2, at least 0;
- cross-fitted: least-squares coefficient of the training residuals on out-of-fold predictions of networks trained
  on the other two thirds, lower 5 % bootstrap bound over conditions, from 0 to 1; at the best epoch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from measuring import Result, table
from screens import COMMON, KINDS, SIMULATED, Screen, folds_of, interval, resampled_means, screens

from gears import GEARS, PertData
from gears.data.splits._split import perturbed_in
from gears.evaluation.metrics import condition_metrics
from gears.evaluation.truth import Truth
from gears.model.network import begin_at_zero
from gears.prediction._stream import predict_changes
from gears.priors._source import prior_of, prior_rows
from gears.simulate import simulated_screen
from gears.training._batches import ConditionLoader
from gears.training._run import Run, RunResult
from gears.training._tasks import PairTables, condition_tables
from gears.training._validation import WEIGHTS, choose_network_weight, validation_of
from gears.training.options import MONITOR, TrainOptions

METRICS = ("pearson_delta", "mse_top20_de")
RULES = ("signs", "interval", "shrunk", "cross-fitted")
HIDDEN, N_BOOTSTRAP = 32, 1000
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
            partial(PairTables, self.pert_data.screen.statistics, self.parts.config.direction),
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


def permuted(fold: Fold, options: TrainOptions, rng: np.random.Generator) -> tuple[np.ndarray, RunResult, Any]:
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
    _, prior_U = validation.of_prior
    _, run = fold.run(options, validation, known_CG, train)
    return prior_U, run, validation


def by_interval(gain_EKU: np.ndarray) -> float:
    """Best epoch and weight where the bootstrap interval of its gain is above 0."""
    gain_U, weight = best_of(gain_EKU)
    return weight if interval(resampled_means(gain_U, N_BOOTSTRAP))[0] > 0 else 0.0


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


def false_weights(runs: int = 200, epochs: int = 20) -> Iterator[Result]:
    """Share of runs with a weight above 0 by rule and number of validation conditions."""
    options, rows = TrainOptions(epochs=epochs), []
    sizes = {"n_genes": 100, "cells_per_condition": 30}
    adata = simulated_screen(**COMMON | SIMULATED["interactions"] | sizes)[0]
    with Screen("interactions", None, adata).prepared() as data:
        names = sorted(label for label in data.screen.labels if label != "ctrl")
        for n_val in (4, 5, 8, 20):
            is_false = []
            for number in range(runs):
                rng = np.random.default_rng([n_val, number])
                drawn = rng.permutation(names).tolist()
                parts = {"train": ["ctrl", *drawn[:40]], "val": drawn[40 : 40 + n_val], "test": drawn[-5:]}
                data.prepare_split("custom", seed=number, split_dict=parts)
                prior_U, run, validation = permuted(Fold(data, number, 16), options, rng)
                gain_EKU = prior_U - np.stack(run.condition_scores)
                chosen = choose_network_weight(
                    run.condition_scores,
                    prior_U,
                    lower_is_better=not validation.monitor.higher_is_better,
                    kept=run.kept,
                )
                found = (chosen.weight, by_interval(gain_EKU), by_shrinkage(gain_EKU), chosen.gain)
                is_false.append([weight > 0 for weight in found])
            rules = ("signs", "interval", "shrunk", "best on validation")
            shares = dict(zip(rules, np.mean(is_false, axis=0).tolist(), strict=True))
            rows.append({"validation conditions": n_val} | shares)
            title = f"Share of {runs} runs with a weight above 0, residuals permuted over conditions"
            yield Result(title, table(rows), {"shares": rows}, name="network_weight_false")


def weight_rules(
    kinds: tuple[str, ...] = KINDS,
    data: Path | None = None,
    seeds: tuple[int, ...] = (3,),
    folds: int = 3,
    epochs: int = 20,
    small: bool = False,
) -> Iterator[Result]:
    """Weight and test metrics by screen, fold and rule."""
    records: list[dict[str, Any]] = []
    for screen in screens(kinds, data, seeds, small):
        with screen.prepared() as prepared:
            for number, split in enumerate(folds_of(prepared, 5)[:folds]):
                prepared.use_split(split)
                for row in by_rule(prepared, number, TrainOptions(epochs=epochs)):
                    records.append({"screen": screen.name, "seed": screen.seed, "fold": number} | row)
        print(f"{screen.name}, seed {screen.seed}", flush=True)
        lines = table(list(rule_rows(pd.DataFrame(records))))
        title = "Weights and test gains of the network by rule"
        yield Result(title, lines, {"rows": records}, name="network_weight_rules")


def by_rule(data: PertData, number: int, options: TrainOptions) -> Iterator[dict[str, Any]]:
    """The weight by each rule, and the metrics of every test condition with it."""
    fold = Fold(data, number)
    validation = validation_of(data, MONITOR, fold.fitted.prior)
    _, prior_U = validation.of_prior
    network, run = fold.run(options, validation, fold.known_CG, fold.train_ids)
    gain_EKU = prior_U - np.stack(run.condition_scores)
    signs = choose_network_weight(run.condition_scores, prior_U, lower_is_better=True, kept=run.kept).weight
    gain_U, best = best_of(gain_EKU)
    weights = {
        "signs": signs,
        "interval": by_interval(gain_EKU),
        "shrunk": by_shrinkage(gain_EKU),
        "cross-fitted": by_cross_fitting(fold, options),
        "best on validation": best if gain_U.mean() > 0 else 0.0,
        "prior alone": 0.0,
    }
    test = perturbed_in(data.split, "test")
    truth = Truth.of(data.screen, test, data.split.conditions("train"))
    nodes = [data.condition_nodes(condition) for condition in test]
    network_UG, prior_UG = predict_changes(network, nodes)[0], fold.fitted.prior(nodes)
    for rule, weight in weights.items():
        predicted_UG = np.maximum(truth.control_mean_G + prior_UG + weight * network_UG, 0)
        values_UM = np.nan_to_num(condition_metrics(predicted_UG, truth, METRICS))
        for condition, values in zip(test, values_UM.tolist(), strict=True):
            row = {"rule": rule, "weight": weight, "n_val": len(prior_U), "condition": str(condition)}
            yield row | dict(zip(METRICS, values, strict=True))


def rule_rows(values: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Weights by fold, and the paired gain over the prior alone on all test conditions."""
    index = ["seed", "fold", "condition"]
    for screen, rows in values.groupby("screen", sort=False):
        alone = rows[rows["rule"] == "prior alone"].set_index(index)
        for rule in (*RULES, "best on validation"):
            of_rule = rows[rows["rule"] == rule].set_index(index).loc[alone.index]
            weights = of_rule.groupby(["seed", "fold"], dropna=False)["weight"].first()
            shown = ", ".join(f"{weight:.2g}" for weight in weights)
            row = {"screen": screen, "rule": rule, "weights by fold": shown}
            for metric in METRICS:
                gain_U = (of_rule[metric] - alone[metric]).to_numpy()
                low, high = interval(resampled_means(gain_U, N_BOOTSTRAP))
                row[f"{metric} - prior alone (95 %)"] = f"{gain_U.mean():+.4f} ({low:+.4f}, {high:+.4f})"
            yield row
