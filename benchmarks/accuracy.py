"""Is the model at least as good as the best baseline, screen by screen, and better on the average?

    python benchmarks/accuracy.py                          (one screen of each of eleven simulated kinds)
    python benchmarks/accuracy.py --seeds 0 1 2 3 4        (five screens of each: these seeds for development)
    python benchmarks/accuracy.py --seeds 100 101 102 103 104                 (and these for published tables)
    python benchmarks/accuracy.py --data FOLDER            (and the real subsets found there)
    python benchmarks/accuracy.py --methods prior gears published --repeats 1 --epochs-published 3
    python benchmarks/accuracy.py --situations 0 2 5 --methods prior --name accuracy_from_singles

Folds are over conditions; every condition is tested once in each repeat. Figures of a simulated kind are means
over the conditions of all its screens, and so are their intervals. Methods: ``prior`` is the
prior alone, ``gears`` the whole model (``prior="auto"``), ``published`` the network alone on
cells, ``moments`` the network alone on moments. Each method is compared with baselines that are fitted to the same
conditions as it. ``--situations`` replaces the folds: training has all singles and so many of the combinations, all
others are tested; kinds with triples instead of pairs are added. What is undefined for one method only, as the
reference part of the train mean, counts 0.
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
import torch

from gears import PertData
from gears.data.screen.prepared import PreparedScreen
from gears.data.splits.folds import folds
from gears.data.splits.split import Split
from gears.evaluation import BASELINES, DECISIVE, compare
from gears.evaluation.metrics import get_metric
from gears.evaluation.verdict import MIN_CONDITIONS
from gears.files.atomic import write_atomically
from gears.files.formats import write_json, write_text
from gears.jobs.estimators import GEARSEstimator, PriorEstimator
from gears.simulate import simulated_screen

METRICS = (*DECISIVE, "pearson_delta", "mse_top20_de", "discrimination")
DESCRIBING = ("amplitude_slope",)
COMMON = {
    "n_genes": 500,
    "n_singles": 40,
    "n_pairs": 60,
    "cells_per_condition": 60,
    "n_control": 300,
    "seed": 3,
}
SIMULATED: dict[str, dict[str, Any]] = {
    "additive": {"go_strength": 0.0, "interaction_share": 0.0},
    "low-rank": {"low_rank": 4, "target_effect": 0.0, "interaction_share": 0.0},
    "GO-smooth": {"n_singles": 100, "n_pairs": 0, "interaction_share": 0.0},
    "interactions": {"interaction_share": 0.8, "interaction_size": 2.0},
    "no signal": {"effect_size": 0.02, "target_effect": 0.0, "interaction_share": 0.0},
    "co-expression": {
        "n_singles": 100,
        "n_pairs": 0,
        "n_control": 1000,
        "go_strength": 0.0,
        "interaction_share": 0.0,
        "n_modules": 20,
        "module_share": 0.8,
    },
    "regulatory network": {"n_control": 1000, "network_degree": 12.0},
    "masking pairs": {"interaction_share": 0.8, "interaction_kinds": "masking"},
    "saturating pairs": {
        "effect_size": 1.5,
        "effect_share": 0.5,
        "common_effect": 0.3,
        "interaction_share": 0.8,
        "interaction_size": 2.5,
        "interaction_kinds": "saturating",
    },
    "null perturbations": {
        "n_singles": 80,
        "n_pairs": 40,
        "cells_per_condition": 12,
        "cell_number_sd": 0.5,
        "interaction_share": 0.0,
        "null_share": 0.5,
    },
    "products": {
        "n_singles": 24,
        "n_pairs": 270,
        "effect_size": 1.0,
        "effect_share": 0.5,
        "target_effect": 0.0,
        "common_effect": 0.0,
        "interaction_share": 1.0,
        "interaction_size": 1.0,
        "interaction_kinds": "products",
    },
    "confounded batches": {
        "interaction_share": 0.0,
        "n_batches": 4,
        "batch_size_effect": 0.5,
        "batch_confounding": 1.0,
    },
}
COMBINED: dict[str, dict[str, Any]] = {
    "additive triples": SIMULATED["additive"] | {"n_singles": 16, "n_pairs": 0, "n_triples": 40},
    "interacting triples": SIMULATED["interactions"] | {"n_singles": 16, "n_pairs": 0, "n_triples": 40},
}
"""Kinds for `--situations` alone."""
# Measured changes of a confounded screen hold the effects of batches unless controls are matched.
PREPARED: dict[str, dict[str, Any]] = {"confounded batches": {"batch_key": ["batch"]}}
REAL = ("norman2019", "papalexi2021", "mcfaline2023")
N_BOOTSTRAP = 2000
PUBLISHED = {"lr": 1e-3, "schedule": "step", "weight_decay": 5e-4}


def method(name: str, pert_data: PertData, seed: int, epochs: int | None = None) -> Any:
    """One of the methods that can be asked for; `epochs` are those of the published objective."""
    if name == "prior":
        return PriorEstimator(pert_data)
    training = {
        "gears": {"objective": "moments", "prior": "auto"},
        "moments": {"objective": "moments", "prior": None},
        "published": {"objective": "cells", "prior": None, "epochs": epochs, **PUBLISHED},
    }[name]
    return GEARSEstimator(pert_data, training=training, seed=seed, device="cpu")


@dataclass(frozen=True)
class BenchmarkScreen:
    """A screen with the name under which its figures are averaged, and the options to prepare it with."""

    name: str
    seed: int | None
    adata: anndata.AnnData
    preparation: Mapping[str, Any] = field(default_factory=dict)


def from_singles(screen: PreparedScreen, n_combinations: Sequence[int]) -> Iterator[tuple[int, Split]]:
    """For each number, a split whose training part has all singles and so many combinations; the others are tested."""
    labels = {one: label for label, one in screen.condition_of_label.items() if not one.is_control}
    singles = [label for one, label in labels.items() if len(one) == 1]
    combined = [label for one, label in labels.items() if len(one) > 1]
    for n in n_combinations:
        train = (
            screen.labels[int(np.argmax([one.is_control for one in screen.condition_of_label.values()]))],
        )
        train += (*singles, *combined[:n])
        yield n, Split("custom", n, {}, {"train": train, "test": tuple(combined[n:])})


def screens(
    simulated: Sequence[str], data: Path | None, seeds: Sequence[int] = (COMMON["seed"],)
) -> Iterator[BenchmarkScreen]:
    """The requested screens: each simulated kind with every seed, then real ones, each cell type alone."""
    for name in simulated:
        for seed in seeds:
            adata, _ = simulated_screen(**COMMON | (SIMULATED | COMBINED)[name] | {"seed": seed})
            yield BenchmarkScreen(f"simulated: {name}", seed, adata, PREPARED.get(name, {}))
    for name in REAL if data else ():
        adata = anndata.read_h5ad(data / f"{name}_subset.h5ad")
        for cell_type in sorted(adata.obs["cell_type"].unique()):
            several = adata.obs["cell_type"].nunique() > 1
            label = f"{name} {cell_type}" if several else name
            yield BenchmarkScreen(label, None, adata[adata.obs["cell_type"] == cell_type].copy())


def run(screen: BenchmarkScreen, options: argparse.Namespace) -> dict[str, pd.DataFrame]:
    """Values by condition of every method on every fold (columns split, condition, method, metric, value), by name."""
    with tempfile.TemporaryDirectory() as folder:
        pert_data = PertData(folder, default_pert_graph=False)
        pert_data.new_data_process("screen", screen.adata, **screen.preparation)
        n_folds = min(options.folds, len(pert_data.screen.conditions) - 1)
        if options.situations:
            named = {
                f"{screen.name}, singles and {n} combinations": [split]
                for n, split in from_singles(pert_data.screen, options.situations)
            }
        else:
            named = {screen.name: list(folds(pert_data.screen, n_folds, options.repeats, options.seed))}
        return {name: run_splits(screen, pert_data, splits, options) for name, splits in named.items()}


def run_splits(
    screen: BenchmarkScreen, pert_data: PertData, splits: Sequence[Split], options: argparse.Namespace
) -> pd.DataFrame:
    """Values by condition of every method on some splits."""
    tables = []
    for name in options.methods:
        start = time.perf_counter()
        result = compare(
            {name: lambda seed, name=name: method(name, pert_data, seed, options.epochs_published)},
            pert_data.screen,
            splits,
            seeds=(options.seed,),
            annotation=pert_data.annotation,
            metrics=(*METRICS, *DESCRIBING),
            baselines=tuple(name for name in BASELINES if not BASELINES[name].uses_held_out),
            n_split_half=0,
        )
        tables.append(result.table.assign(beside=name))
        print(f"  {name}: {time.perf_counter() - start:.0f} s", flush=True)
    seed = "" if screen.seed is None else str(screen.seed)
    return pd.concat(tables, ignore_index=True).assign(screen_seed=seed)


def wide(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Mean over repeats of each condition of each screen (rows) by method (columns).

    A value that is undefined for some methods counts 0; a condition that is undefined for all is excluded.
    """
    rows = table[table["metric"] == metric]
    index = [column for column in ("screen_seed", "condition") if column in rows]
    values = rows.pivot_table(
        index=index, columns="method", values="value", aggfunc="mean", sort=False, dropna=False
    )
    return values.dropna(how="all").fillna(0.0)


def gain(values: pd.DataFrame, name: str, metric: str) -> tuple[str, np.ndarray]:
    """Best baseline, and by condition how much better the method is than it (higher is better)."""
    sign = 1.0 if get_metric(metric).higher_is_better else -1.0
    of_baselines = sign * values[[column for column in values if column in BASELINES]].mean()
    best = str(of_baselines.idxmax())
    return best, (sign * (values[name] - values[best])).to_numpy()


def resampled_means(gain_U: np.ndarray) -> np.ndarray:
    """Means over conditions drawn with replacement, the same draws for as many conditions, (N_BOOTSTRAP,)."""
    picks = np.random.default_rng(0).integers(len(gain_U), size=(N_BOOTSTRAP, len(gain_U)))
    return np.asarray(gain_U[picks].mean(axis=1))


def interval(draws: np.ndarray) -> tuple[float, float]:
    """95 % of the draws."""
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(high)


def report(tables: dict[str, pd.DataFrame], names: Sequence[str], settings: dict[str, Any]) -> str:
    """Markdown of everything."""
    lines = ["# Accuracy against the best baseline of each screen", "", f"{settings}", ""]
    for name in names:
        lines += [
            f"## {name}",
            "",
            "| screen | metric | method | best baseline | gain (95 %) | verdict |",
            "|---" * 6 + "|",
        ]
        shares: dict[str, list[np.ndarray]] = {metric: [] for metric in METRICS}
        for screen, table in tables.items():
            for metric in METRICS:
                values = wide(table[table["beside"] == name], metric)
                if values.empty or name not in values:  # intervals are not stated by every method
                    lines.append(f"| {screen} | {metric} | undefined for all conditions | | | |")
                    continue
                best, gain_U = gain(values, name, metric)
                means_B = resampled_means(gain_U)
                low, high = interval(means_B)
                verdict = "better" if low > 0 else "worse" if high < 0 else "within the interval"
                verdict = verdict if len(gain_U) >= MIN_CONDITIONS else "too few conditions"
                scale = max(abs(float(values[best].mean())), 1e-12) if metric == "mse_top20_de" else 1.0
                shares[metric].append(means_B / scale)
                own, other = values[name].mean(), values[best].mean()
                lines.append(
                    f"| {screen} | {metric} | {own:.4g} | {best} {other:.4g} | "
                    f"{gain_U.mean():+.3g} ({low:+.3g}, {high:+.3g}) | {verdict} |"
                )
        lines += ["", "Average over the screens (mse as a share of the best baseline's):", ""]
        for metric, draws in shares.items():
            if not draws:
                continue
            mean_draws = np.mean(draws, axis=0)
            low, high = interval(mean_draws)
            lines.append(f"- {metric}: {mean_draws.mean():+.3g} ({low:+.3g}, {high:+.3g})")
        lines.append("")
    lines += ["## All methods (of the amplitude slope the median)", ""]
    shown = (*METRICS, *DESCRIBING)
    for screen, table in tables.items():
        tables_of = {name: table[table["beside"] == name] for name in names}
        parts = [
            # a slope is wild where predictions hardly differ: its median
            pd.DataFrame({m: wide(own, m).agg("median" if m in DESCRIBING else "mean") for m in shown})
            for own in tables_of.values()
        ]
        means = pd.concat(
            [parts[0], *(part.loc[[name]] for part, name in zip(parts[1:], names[1:], strict=True))]
        )
        lines += [
            f"### {screen}",
            "",
            "| method | " + " | ".join(shown) + " |",
            "|---" * (len(shown) + 1) + "|",
        ]
        lines += [
            f"| {row} | " + " | ".join(f"{v:.4g}" for v in values) + " |"
            for row, values in zip(means.index, means.to_numpy(), strict=True)
        ]
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Run, and write `accuracy.md` and the values by condition."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with NAME_subset.h5ad")
    parser.add_argument(
        "--simulated",
        nargs="*",
        default=list(SIMULATED),
        choices=[*SIMULATED, *COMBINED],
        help="kinds of screens",
    )
    parser.add_argument(
        "--seeds",
        nargs="+",
        type=int,
        default=[COMMON["seed"]],
        help="seeds of the screens of each simulated kind",
    )
    parser.add_argument(
        "--methods", nargs="+", default=["prior", "gears"], choices=["prior", "gears", "published", "moments"]
    )
    parser.add_argument("--epochs-published", type=int, help="instead of the 20 that are published")
    parser.add_argument(
        "--situations",
        nargs="+",
        type=int,
        help="combinations in training beside all singles, instead of folds",
    )
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1, help="of folds and models")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--name", default="accuracy", help="of the files written")
    options = parser.parse_args()
    if options.situations and options.simulated == list(SIMULATED):
        with_pairs = [name for name, chosen in SIMULATED.items() if (COMMON | chosen)["n_pairs"]]
        options.simulated = [*with_pairs, *COMBINED]
    logging.getLogger("gears").setLevel(logging.ERROR)
    settings = {
        "folds": options.folds,
        "situations": options.situations,
        "repeats": options.repeats,
        "seed": options.seed,
        "seeds of simulated screens": options.seeds,
        "epochs_published": options.epochs_published or 20,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}",
    }
    tables: dict[str, pd.DataFrame] = {}
    for number, screen in enumerate(screens(options.simulated, options.data, options.seeds), 1):
        print(f"[{number}] {screen.name}{'' if screen.seed is None else f', seed {screen.seed}'}", flush=True)
        for name, table in run(screen, options).items():
            tables[name] = pd.concat([*([tables[name]] if name in tables else []), table], ignore_index=True)
        write(tables, settings, options)


def write(tables: dict[str, pd.DataFrame], settings: dict[str, Any], options: argparse.Namespace) -> None:
    """Report, values by condition and settings, after each screen."""
    write_text(options.output / f"{options.name}.md", report(tables, options.methods, settings))
    everything = pd.concat([table.assign(screen=name) for name, table in tables.items()], ignore_index=True)
    path = options.output / f"{options.name}.csv.gz"
    write_atomically(
        path, lambda p: everything.to_csv(p, index=False, float_format="%.6g", compression="gzip")
    )
    write_json(options.output / f"{options.name}.json", settings)


if __name__ == "__main__":
    main()
