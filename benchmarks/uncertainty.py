"""Are the standard deviations of the prior's means right?

    python benchmarks/run.py uncertainty --seeds 3 4 5 --data FOLDER

Five folds over conditions. Intervals of 90 % for the measured means of held-out conditions, whose sampling noise is
added, are compared with those of one constant s.d. per gene from the same left-out errors (paired over conditions). On
simulated screens the expected means are known, and intervals are compared with these without noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from measuring import Result, table
from scipy.stats import spearmanr
from screens import KINDS, REAL, Screen, folds_of, interval, resampled_means, screens

from gears import GEARS, PertData
from gears.data.screen._statistics import variance_within
from gears.data.splits._split import perturbed_in, subgroup_names
from gears.evaluation.uncertainty import calibration_by_condition
from gears.plotting import image_bytes
from gears.plotting._style import new_figure
from gears.priors._source import prior_of
from gears.simulate import SimulatedTruth

NORMAL_90 = 1.6449
LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
TERCILES = ("small effects", "middle", "large effects")


def uncertainty(
    kinds: tuple[str, ...] = KINDS,
    data: Path | None = None,
    seeds: tuple[int, ...] = (3,),
    folds: int = 5,
    small: bool = False,
) -> Iterator[Result]:
    """Coverage, sharpness and strata of every screen in folds."""
    found: dict[str, pd.DataFrame] = {}
    for screen in (*screens(kinds, data, seeds, small), *(of_contexts(data) if data else ())):
        by_condition = in_folds(screen, folds)
        found[screen.name] = pd.concat([found.get(screen.name), by_condition], ignore_index=True)
        print(f"{screen.name}, seed {screen.seed}", flush=True)
        summaries = {name: summary(one) for name, one in found.items()}
        record = {"folds": folds, "seeds": list(seeds), "screens": summaries}
        files = {".png": image_bytes(coverage_figure(found))}
        title = "Standard deviations of the prior's means"
        yield Result(title, page(summaries), record, files, name="uncertainty_prior")


def of_contexts(data: Path) -> Iterator[Screen]:
    """Real subsets of several cell types, each type a context of one screen."""
    for name in REAL:
        adata = anndata.read_h5ad(data / f"{name}_subset.h5ad")
        if adata.obs["cell_type"].nunique() > 1:
            yield Screen(f"{name}, contexts", None, adata, None, {"context_key": "cell_type"})


def in_folds(screen: Screen, n_folds: int) -> pd.DataFrame:
    """Intervals and errors of every condition where it is held out."""
    found = []
    with screen.prepared() as data:
        for split in folds_of(data, n_folds):
            data.use_split(split)
            found.append(one_fold(data, screen.truth))
    table = pd.concat(found, ignore_index=True)
    table["tercile"] = pd.qcut(table["effect"].rank(method="first"), 3, labels=list(TERCILES))
    return table


def one_fold(data: PertData, truth: SimulatedTruth | None) -> pd.DataFrame:
    """The prior's predictions of the test part, and a constant s.d. per gene."""
    model = GEARS(data, device="cpu")
    model.model_initialize(hidden_size=8)
    model.train(epochs=0, verbose=False, evaluate_test=False)
    test = perturbed_in(data.split, "test")
    predictions = model.predict(test, clip=False)
    statistics = data.screen.statistics
    rows = np.array([data.screen.id_of(condition) for condition in test])
    measured_UG = np.asarray(statistics.mean[rows])
    variance_G = variance_within(statistics, np.flatnonzero(~statistics.is_control))
    expressed = np.flatnonzero(variance_G)  # every interval holds the 0 of a gene that no cell expresses
    noise_UG = variance_G / statistics.n[rows, None]
    predicted = predictions.expression_UG[:, expressed], predictions.sd[:, expressed]
    measured = {"true": measured_UG[:, expressed], "true_variance": noise_UG[:, expressed]}
    table = calibration_by_condition(*predicted, **measured)
    constant_UG = np.tile(constant_sd(data, variance_G)[expressed], (len(test), 1))
    constant = calibration_by_condition(predicted[0], constant_UG, **measured)
    for level in LEVELS:
        table[f"coverage_{level:g}"] = calibration_by_condition(*predicted, **measured, level=level)["coverage"]
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
    conditions = sorted({c for part in ("train", "val") for c in perturbed_in(data.split, part)}, key=data.screen.id_of)
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
    for name, values in tables.items():
        observed = [values[f"coverage_{level:g}"].mean() for level in LEVELS]
        if "expected_coverage" in values:
            axes.plot(LEVELS, observed, color="0.6", linewidth=1, label=None if drawn else "simulated kinds")
            drawn = True
        else:
            axes.plot(LEVELS, observed, marker="o", markersize=3, label=name)
    axes.set(xlabel="stated level of the interval", ylabel="share of measured means inside", xlim=(0, 1), ylim=(0, 1))
    axes.legend(frameon=False)
    return figure


def page(summaries: dict[str, dict[str, Any]]) -> list[str]:
    """Lines of both tables."""
    rows, by_stratum = [], []
    for name, found in summaries.items():
        gain, low, high = found["gain"]
        row = {"screen": name, "conditions": found["n"], "coverage": found["coverage"]}
        row |= {"gain": f"{gain:+.1%} ({low:+.1%}, {high:+.1%})", "rank correlation": found["rank_correlation"]}
        rows.append(row | {"coverage of expected means": found.get("coverage_expected_means", "")})
        strata = {key: f"{one['coverage']:.2f} ({one['n']})" for key, one in found["strata"].items()}
        by_stratum.append({"screen": name} | strata)
    return [
        "Coverage of 90 % intervals of held-out measured means, sampling noise added; gain in interval score over",
        "a constant s.d. per gene, as a share of its score (95 % interval, paired over conditions); rank",
        "correlation over conditions of predicted and actual error; coverage of expected means, without noise.",
        "",
        *table(rows),
        "",
        "Coverage by genes perturbed in training, and by size of the measured effect (conditions):",
        "",
        *table(by_stratum),
    ]
