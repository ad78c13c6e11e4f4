"""How good are predictions and intervals of the prior on every kind of screen, and what does a change of it gain?

    python benchmarks/run.py kinds --seeds 100 101 102 --name kinds_before                       (on the commit before)
    python benchmarks/run.py kinds --seeds 100 101 102 --before benchmarks/results/kinds_before.csv.gz

Folds over conditions, every condition is tested once. The kinds of the other benchmarks, smaller, and four that no
development of the prior began with: heavy tails (a share of a condition's changes is huge and its own), a hidden
pathway (effects follow the annotation of other genes), ten cells (600 conditions of ten cells each), and failing guides
(half of them). Figures of a kind are over the conditions of all its screens; gains are paired by condition.

Seeds 0 to 9 are for development, those from 100 on for published tables.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from accuracy import packed, sign
from anndata import AnnData
from measuring import Result, table
from screens import COMMON, PREPARED, SIMULATED, Screen, folds_of, gained, known_and_tested, screens

from gears import Condition, PertData
from gears.core._intervals import half_width, sd_factor
from gears.data.screen._statistics import variance_within
from gears.data.splits._split import Split, subgroup_names
from gears.evaluation import DECISIVE
from gears.evaluation._fitted import settings_of
from gears.evaluation.metrics import condition_metrics
from gears.evaluation.truth import Truth
from gears.graphs import GeneAnnotation
from gears.priors import GenePrior
from gears.priors._source import prior_of
from gears.simulate._options import SimulationOptions
from gears.simulate._screen import Simulation

METRICS = (*DECISIVE, "mse_top20_moderated", "pearson_delta")
LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)
COVERAGE = tuple(f"coverage_{100 * level:g}" for level in LEVELS)
N_GENES = 300
NEW: dict[str, dict[str, Any]] = {
    "heavy tails": {},
    "hidden pathway": {"n_singles": 100, "n_pairs": 20, "interaction_share": 0.0},
    "ten cells": {"n_singles": 200, "n_pairs": 400, "cells_per_condition": 10},
    "failing guides": {
        "n_singles": 80, "n_pairs": 0, "interaction_share": 0.0, "null_share": 0.5, "n_control": 1000,
        "n_modules": 20, "module_share": 0.8,
    },
}  # fmt: skip
KINDS = (*SIMULATED, *NEW)
HUGE_SHARE, HUGE_SIZE = 0.05, 3.0  # of the changes of a condition with heavy tails, and of their log-fold changes


def kinds(
    kinds: tuple[str, ...] = KINDS,
    data: Path | None = None,
    seeds: tuple[int, ...] = (3,),
    folds: int = 5,
    before: Path | None = None,
    small: bool = False,
) -> Iterator[Result]:
    """The prior in folds, and what it gains over an earlier result."""
    reading: dict[str, Any] = {"dtype": {"seed": str}, "keep_default_na": False, "na_values": [""]}
    earlier = None if before is None else pd.read_csv(before, **reading)
    tables: list[pd.DataFrame] = []
    for screen in every_screen(kinds, data, seeds, small):
        tables += of_screen(screen, folds)
        print(f"{screen.name}, seed {screen.seed}", flush=True)
        values = pd.concat(tables, ignore_index=True)
        settings = {"folds": folds, "seeds": list(seeds), "genes": N_GENES}
        lines = page(values) if earlier is None else [*page(values), *compared(earlier, values)]
        yield Result("The prior on every kind of screen", lines, settings, {".csv.gz": packed(values)})


def every_screen(names: Sequence[str], data: Path | None, seeds: Sequence[int], small: bool) -> Iterator[Screen]:
    """Screens of all kinds with every seed, then real ones."""
    for name in names:
        for seed in seeds:
            options = COMMON | (SIMULATED | NEW)[name] | {"n_genes": N_GENES, "seed": seed}
            if small:
                options |= {"n_genes": 150, "n_singles": 20, "n_pairs": min(options["n_pairs"], 20)}
            yield Screen(name, seed, cells_of(name, SimulationOptions(**options)), None, PREPARED.get(name, {}))
    yield from screens((), data, ())


def cells_of(name: str, options: SimulationOptions) -> AnnData:
    """Cells of a screen of some kind."""
    rng = np.random.default_rng([options.seed, 34])
    annotation = GeneAnnotation.human()
    if name == "hidden pathway":
        annotation = dataclasses.replace(annotation, matrix=annotation.matrix[rng.permutation(len(annotation))])
    simulation = Simulation(options, annotation=annotation)
    if name == "heavy tails":
        effects = simulation._effects
        change_CG = effects.condition_CG.copy()
        is_huge_CG = rng.random(change_CG.shape) < HUGE_SHARE
        is_huge_CG[0] = False  # the control
        change_CG[is_huge_CG] += HUGE_SIZE * rng.standard_normal(int(is_huge_CG.sum()))
        simulation._effects = dataclasses.replace(effects, condition_CG=change_CG)
    counts = simulation.counts(0, simulation.n_cells)
    return AnnData(X=simulation.expression(counts), obs=simulation.obs, var=simulation.var)


def of_screen(screen: Screen, n_folds: int) -> Iterator[pd.DataFrame]:
    """Values of every condition of a screen where it is held out."""
    with screen.prepared() as data:
        for split in folds_of(data, n_folds):
            yield of_fold(data, split).assign(screen=screen.name, seed=str(screen.seed))


def of_fold(data: PertData, split: Split) -> pd.DataFrame:
    """Metrics and coverage of the test conditions of a split."""
    data.use_split(split)
    known, tested = known_and_tested(split)
    fitted = prior_of(data, ("train", "val"))
    assert fitted is not None
    (setting,) = settings_of(data.screen, tested, known)
    truth = Truth.of(setting.screen, setting.conditions, reference_mean_G=setting.means.reference_mean(), pooled=known)
    tested = [tested[row] for row in setting.rows]
    nodes = [data.condition_nodes(one) for one in tested]
    change_UG = fitted.prior(nodes)
    expression_UG = data.screen.control_mean_G + change_UG
    if data.screen.nonnegative:
        expression_UG = np.maximum(expression_UG, 0.0)
    sd_UG = fitted.prior.sd(nodes, change_UG)
    found = condition_metrics(expression_UG, truth, list(METRICS), sd_UG=sd_UG)
    mean = condition_metrics(np.tile(truth.reference_mean_G, (len(tested), 1)), truth, ["relative_error"])
    columns = {**dict(zip(METRICS, found.T, strict=True)), "relative_error_of_mean": mean[:, 0]}
    report = fitted.prior.report
    return pd.DataFrame({
        "condition": [one.name for one in truth.conditions],
        **columns,
        **coverage(data, tested, change_UG, fitted.prior, sd_UG),
        "mean_only": ", ".join(report.get("mean_only", ())),
        "subgroup": subgroup_names(truth.conditions, known),
        "weights": str({name: round(value, 5) for name, value in report.get("weights", {}).items()}),
    })  # fmt: skip


def coverage(
    data: PertData, tested: Sequence[Condition], change_UG: np.ndarray, prior: GenePrior, sd_UG: np.ndarray | None
) -> dict[str, np.ndarray]:
    """Share of genes whose measured mean lies within the interval of each level, sampling noise added, (U,) each."""
    if sd_UG is None:
        return {}
    statistics = data.screen.statistics
    ids = np.array([data.screen.id_of(one) for one in tested])
    nodes = [data.condition_nodes(one) for one in tested]
    variance_G = variance_within(statistics, np.flatnonzero(~statistics.is_control))
    error_UG, noise_UG = statistics.delta(ids) - change_UG, variance_G / statistics.n[ids, None]
    found = {}
    for name, level in zip(COVERAGE, LEVELS, strict=True):
        total_UG = np.hypot(sd_factor(level, prior.widths(nodes)) * sd_UG, np.sqrt(noise_UG))
        inside_UG = np.abs(error_UG) <= half_width(level) * total_UG
        found[name] = inside_UG[:, variance_G > 0].mean(axis=1)
    return found


def page(values: pd.DataFrame) -> list[str]:
    """Means of every kind."""
    columns = [*METRICS, "relative_error_of_mean", *COVERAGE]
    rows = [{"screen": name, "n": len(part)} | part[columns].mean().to_dict() for name, part in by_screen(values)]
    return [*table(rows), ""]


def by_screen(values: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Values of each kind."""
    yield from values.groupby("screen", sort=False)


def compared(before: pd.DataFrame, after: pd.DataFrame) -> list[str]:
    """Gains over an earlier result by kind and metric, paired by condition."""
    index, rows = ["seed", "condition"], []
    earlier, metrics = dict(by_screen(before)), [name for name in METRICS if name in before]
    for name, part in by_screen(after):
        one, other = (of.set_index(index)[metrics] for of in (earlier[name], part))
        row = {"screen": name}
        for metric in metrics:
            both = one[[metric]].join(other[[metric]], rsuffix=" after", how="inner").dropna(how="all").fillna(0.0)
            gain_U = sign(metric) * (both.iloc[:, 1] - both.iloc[:, 0]).to_numpy()
            text, verdict = gained(gain_U) if len(gain_U) else ("", "")
            row[metric] = "0" if not gain_U.any() else f"{text} **{verdict}**" if "within" not in verdict else text
        rows.append(row)
    return ["Gain over the earlier result (95 %, paired by condition):", "", *table(rows), ""]
