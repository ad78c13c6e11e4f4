"""Are predicted standard deviations right: those of the prior's means, and those of networks?

    python benchmarks/uncertainty.py                                  (the prior's sd, simulated kinds)
    python benchmarks/uncertainty.py --data FOLDER --output benchmarks/results
    python benchmarks/uncertainty.py --networks --members 3           (variance head and ensemble, networks alone)

The prior: five folds over conditions. Intervals of 90 % for the measured means of held-out conditions, whose sampling
noise is added, are compared with those of one constant s.d. per gene from the same left-out errors (paired over
conditions). On simulated screens the expected means are known, and intervals are compared with these without noise.

Networks: an ensemble is members of other seeds, trained one after another. Its variance is that of a mean; the sampling
variance of the measured mean is added. The nll head predicts the spread of cells.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
import torch
from accuracy import COMMON, PREPARED, REAL, SIMULATED, interval, resampled_means
from matplotlib.figure import Figure
from scipy.stats import spearmanr

from gears import GEARS, PertData
from gears.data.screen.statistics import variance_within
from gears.data.splits import folds
from gears.data.splits.split import subgroup_names
from gears.evaluation.truth import ScreenCells
from gears.evaluation.uncertainty import (
    Calibration,
    calibration,
    calibration_by_condition,
    cell_calibration,
)
from gears.files.formats import write_json, write_text
from gears.plotting import image_bytes
from gears.plotting.curves import calibration_figure
from gears.plotting.style import new_figure
from gears.priors.source import prior_of
from gears.simulate import Truth, simulated_screen

Screen = tuple[str, anndata.AnnData, Truth | None, dict[str, Any]]
NORMAL_90 = 1.6449
LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
TERCILES = ("small effects", "middle", "large effects")


def main() -> None:
    """Predict, compare, print a table per screen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with NAME_subset.h5ad")
    parser.add_argument("--simulated", nargs="*", default=list(SIMULATED), choices=list(SIMULATED))
    parser.add_argument(
        "--screen-seeds", nargs="+", type=int, default=[COMMON["seed"]], help="of the simulator"
    )
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1, help="of the folds, and of splits")
    parser.add_argument(
        "--networks", action="store_true", help="variance head and ensemble instead of the prior"
    )
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--hidden-size", type=int, default=32)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("gears").setLevel(logging.ERROR)
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
    (of_networks if options.networks else of_priors)(options)


# --- the prior's sd of means ---------------------------------------------------------------


def screens(options: argparse.Namespace) -> Iterator[Screen]:
    """Name, cells, truth and preparation of every simulated kind, and of the real subsets, each cell type alone.

    Several cell types once more as contexts of one screen.
    """
    for name in options.simulated:
        for seed in options.screen_seeds:
            adata, truth = simulated_screen(**COMMON | SIMULATED[name] | {"seed": seed})
            yield f"simulated: {name}", adata, truth, dict(PREPARED.get(name, {}))
    for name in REAL if options.data else ():
        adata = anndata.read_h5ad(options.data / f"{name}_subset.h5ad")
        several = adata.obs["cell_type"].nunique() > 1
        for cell_type in sorted(adata.obs["cell_type"].unique()):
            label = f"{name} {cell_type}" if several else name
            yield label, adata[adata.obs["cell_type"] == cell_type].copy(), None, {}
        if several:
            yield f"{name}, contexts", adata, None, {"context_key": "cell_type"}


def of_priors(options: argparse.Namespace) -> None:
    """Every screen in folds; tables in markdown and json."""
    tables: dict[str, list[pd.DataFrame]] = {}
    for name, adata, truth, preparation in screens(options):
        tables.setdefault(name, []).append(by_condition(adata, truth, preparation, options))
        print(f"{name}: {summary(pd.concat(tables[name]))}", flush=True)
        if options.output:
            found = {name: pd.concat(parts, ignore_index=True) for name, parts in tables.items()}
            settings = {"folds": options.folds, "seed": options.seed, "screen_seeds": options.screen_seeds}
            write_text(options.output / "uncertainty_prior.md", page(found, settings))
            record = {name: summary(table) for name, table in found.items()}
            write_json(options.output / "uncertainty_prior.json", {"settings": settings, "screens": record})
            (options.output / "uncertainty_prior.png").write_bytes(image_bytes(coverage_figure(found)))


def by_condition(
    adata: anndata.AnnData, truth: Truth | None, preparation: dict[str, Any], options: argparse.Namespace
) -> pd.DataFrame:
    """Intervals and errors of every condition where it is held out."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        data = PertData(folder, default_pert_graph=False)
        data.new_data_process("screen", adata, **preparation)
        n_folds = min(options.folds, len(data.screen.conditions) - 1)
        for split in folds(data.screen, n_folds, 1, options.seed):
            data.use_split(split)
            found.append(one_fold(data, truth))
    table = pd.concat(found, ignore_index=True)
    table["tercile"] = pd.qcut(table["effect"].rank(method="first"), 3, labels=list(TERCILES))
    return table


def one_fold(data: PertData, truth: Truth | None) -> pd.DataFrame:
    """The prior's predictions of the test part, and a constant s.d. per gene."""
    model = GEARS(data, device="cpu")
    model.model_initialize(hidden_size=8)
    model.train(epochs=0, verbose=False, evaluate_test=False)
    test = [condition for condition in data.split.conditions("test") if not condition.is_control]
    predictions = model.predict(test, clip=False)
    statistics = data.screen.statistics
    rows = np.array([data.screen.id_of(condition) for condition in test])
    measured_UG = np.asarray(statistics.mean[rows])
    variance_G = variance_within(statistics, np.flatnonzero(~statistics.is_control))
    expressed = np.flatnonzero(variance_G)  # every interval holds the 0 of a gene that no cell expresses
    noise_UG = variance_G / statistics.n[rows, None]
    predicted = predictions.expression_UG[:, expressed], predictions.sd[:, expressed]
    measured = {"true_UG": measured_UG[:, expressed], "true_variance": noise_UG[:, expressed]}
    table = calibration_by_condition(*predicted, **measured)
    constant_UG = np.tile(constant_sd(data, variance_G)[expressed], (len(test), 1))
    constant = calibration_by_condition(predicted[0], constant_UG, **measured)
    for level in LEVELS:
        table[f"coverage_{level:g}"] = calibration_by_condition(*predicted, **measured, level=level)[
            "coverage"
        ]
    table["constant_score"] = constant["interval_score"]
    table["condition"] = [condition.name for condition in test]
    table["stratum"] = subgroup_names(test, predictions.origin.fitted_to)
    excess_U = ((measured_UG - predictions.control_mean_G) ** 2 - noise_UG).mean(axis=1)
    table["effect"] = np.sqrt(np.maximum(excess_U, 0.0))
    if truth is not None:
        column = {gene: number for number, gene in enumerate(truth.genes)}
        columns = [column[predictions.gene_names[gene]] for gene in expressed]
        expected_UG = np.array([truth.mean(condition)[columns] for condition in test])
        table["expected_coverage"] = calibration_by_condition(*predicted, expected_UG)["coverage"]
    return table


def constant_sd(data: PertData, variance_G: np.ndarray) -> np.ndarray:
    """One s.d. per gene from the errors of left-out training conditions, calibrated to 90 %, (G,)."""
    conditions = sorted(
        {c for part in ("train", "val") for c in data.split.conditions(part) if not c.is_control},
        key=data.screen.id_of,
    )
    rows = np.array([data.screen.id_of(condition) for condition in conditions])
    statistics = data.screen.statistics
    fitted = prior_of(data, ("train", "val"))
    square_CG = (statistics.delta(rows) - fitted.left_out_CG) ** 2
    noise_CG = variance_G / statistics.n[rows, None]
    excess_G = (square_CG - noise_CG).mean(axis=0)
    scale_G = np.maximum(excess_G, max(0.05 * excess_G.mean(), 1e-12))
    needed_CG = (square_CG / NORMAL_90**2 - noise_CG) / scale_G
    factor = np.quantile(needed_CG[:, variance_G > 0], 0.9)
    return np.sqrt(max(factor, 1e-3) * scale_G)


def summary(table: pd.DataFrame) -> dict[str, Any]:
    """Coverage in all and by stratum, gain over a constant s.d., and rank correlation of errors."""
    gain_U = (table["constant_score"] - table["interval_score"]).to_numpy()
    scale = table["constant_score"].mean()
    low, high = interval(resampled_means(gain_U) / scale)
    strata = {
        str(name): {"coverage": float(part["coverage"].mean()), "n": len(part)}
        for column in ("stratum", "tercile")
        for name, part in table.groupby(column, observed=True)
    }
    expected = {}
    if "expected_coverage" in table:
        expected = {"coverage_expected_means": float(table["expected_coverage"].mean())}
    return {
        "n": len(table),
        "coverage": float(table["coverage"].mean()),
        "strata": strata,
        "gain": [float(gain_U.mean() / scale), low, high],
        "rank_correlation": float(spearmanr(table["error"], table["predicted_error"]).statistic),
        **expected,
    }


def coverage_figure(tables: dict[str, pd.DataFrame]) -> Figure:
    """Share of held-out means inside intervals of each level: simulated kinds in grey, real subsets in colours."""
    figure = new_figure(4.6, 4.2)
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="black", linewidth=0.8, label="as stated")
    drawn = False
    for name, table in tables.items():
        observed = [table[f"coverage_{level:g}"].mean() for level in LEVELS]
        if name.startswith("simulated"):
            axes.plot(LEVELS, observed, color="0.6", linewidth=1, label=None if drawn else "simulated kinds")
            drawn = True
        else:
            axes.plot(LEVELS, observed, marker="o", markersize=3, label=name)
    axes.set(
        xlabel="stated level of the interval",
        ylabel="share of measured means inside",
        xlim=(0, 1),
        ylim=(0, 1),
    )
    axes.legend(frameon=False)
    return figure


def page(tables: dict[str, pd.DataFrame], settings: dict[str, Any]) -> str:
    """Markdown of all screens."""
    lines = [
        "# Standard deviations of the prior's means",
        "",
        f"{settings}. Coverage of 90 % intervals of held-out measured means, sampling noise added; gain in interval",
        "score over a constant s.d. per gene, as a share of its score (95 % interval, paired over conditions); rank",
        "correlation over conditions of predicted and actual error. `benchmarks/uncertainty.py`",
        "",
        "| screen | conditions | coverage | gain | rank correlation | coverage of expected means, without noise |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    summaries = {name: summary(table) for name, table in tables.items()}
    for name, found in summaries.items():
        gain, low, high = found["gain"]
        expected = found.get("coverage_expected_means")
        lines.append(
            f"| {name} | {found['n']} | {found['coverage']:.3f} | {gain:+.1%} ({low:+.1%}, {high:+.1%}) | "
            f"{found['rank_correlation']:.2f} | {'' if expected is None else f'{expected:.3f}'} |"
        )
    lines += ["", "Coverage by genes perturbed in training, and by size of the measured effect:", ""]
    names = sorted({stratum for found in summaries.values() for stratum in found["strata"]} - set(TERCILES))
    columns = [*names, *TERCILES]
    lines += ["| screen | " + " | ".join(columns) + " |", "|---" + "|---:" * len(columns) + "|"]
    for name, found in summaries.items():
        cells = [
            f"{found['strata'][column]['coverage']:.2f} ({found['strata'][column]['n']})"
            if column in found["strata"]
            else ""
            for column in columns
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


# --- variance head and ensemble, of networks alone ----------------------------------------


def of_networks(options: argparse.Namespace) -> None:
    """A simulated screen, and the real subsets; figures in json and png."""
    files = [options.data / f"{name}_subset.h5ad" for name in REAL] if options.data else []
    found: dict[str, Any] = {}
    for file in [None, *files]:
        name = "simulated" if file is None else file.stem
        judged = one_screen(name, file, options)
        found[name] = {kind: numbers(one) for kind, one in judged.items()}
        for kind, row in found[name].items():
            print(f"{name:<20} {kind:<26} " + "  ".join(f"{k} {v:.3g}" for k, v in row.items()), flush=True)
        if options.output:
            (options.output / f"uncertainty_{name}.png").write_bytes(image_bytes(calibration_figure(judged)))
    if options.output:
        settings = {"members": options.members, "epochs": options.epochs, "hidden_size": options.hidden_size}
        write_json(options.output / "uncertainty.json", {"settings": settings, "screens": found})


def one_screen(name: str, file: Path | None, options: argparse.Namespace) -> dict[str, Calibration]:
    """Every kind of uncertainty of networks on a screen."""
    truth = None
    if file is None:
        adata, truth = simulated_screen(
            n_genes=200,
            n_singles=40,
            n_pairs=30,
            cells_per_condition=60,
            counts_per_gene=4.0,
            seed=options.seed,
        )
    else:
        adata = anndata.read_h5ad(file)
    with tempfile.TemporaryDirectory() as folder:
        data = PertData(folder, default_pert_graph=False)
        data.new_data_process(name, adata, pool_cell_types=adata.obs["cell_type"].nunique() > 1)
        data.prepare_split("simulation", seed=options.seed)
        test = [condition for condition in data.split.conditions("test") if not condition.is_control]
        rows = [data.screen.id_of(condition) for condition in test]
        table = data.screen.statistics
        sampling_UG = table.m2[rows] / (table.n[rows, None] - 1)
        members = [train(data, seed, options).predict(test, clip=False) for seed in range(options.members)]
        member_MUG = np.stack([member.expression_UG for member in members], dtype=np.float64)
        mean_UG, variance_UG = member_MUG.mean(axis=0), member_MUG.var(axis=0, ddof=1)
        head = train(data, 0, options, uncertainty=True).predict(test, clip=False)
        judged = {
            "ensemble, measured means": calibration(
                mean_UG, variance_UG, table.mean[rows], true_variance=sampling_UG
            ),
            "nll head, cells": cell_calibration(
                head.expression_UG,
                head.cell_sd**2,
                head.control_mean_G,
                test,
                ScreenCells(data.screen, max_cells=100),
            ),
        }
        if truth is not None:
            known_UG = np.array([truth.mean(condition) for condition in test])
            judged["ensemble, expected means"] = calibration(mean_UG, variance_UG, known_UG)
        return judged


def train(data: PertData, seed: int, options: argparse.Namespace, **network: Any) -> GEARS:
    """The network alone over moments."""
    model = GEARS(data, device="cpu")
    model.model_initialize(hidden_size=options.hidden_size, seed=seed, **network)
    model.train(epochs=options.epochs, objective="moments", prior=None, verbose=False, evaluate_test=False)
    return model


def numbers(one: Calibration) -> dict[str, float]:
    """What is kept of a calibration."""
    return {
        **{f"within_{100 * level:g}": one.observed(level) for level in (0.5, 0.8, 0.95)},
        "error_over_sd": one.standardised,
        "rank_correlation": one.rank_correlation,
        "nll": one.nll,
    }


if __name__ == "__main__":
    main()
