"""Does the head improve on the prior alone, and where does it get a weight?

    python benchmarks/head.py                                  (one screen of each simulated kind)
    python benchmarks/head.py --seeds 0 1 2 3 4                (five screens of each: these seeds for development)
    python benchmarks/head.py --seeds 300 301 302 303 304      (and these for published tables)
    python benchmarks/head.py --data FOLDER --simulated        (the real subsets found there)

Folds are over conditions. The head is trained on the training part; with and without it the prior is fitted to the
training and validation parts, as `train` does. Gains are paired by condition; intervals are of the mean over the
conditions of all screens of a kind (bootstrap over conditions).
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from accuracy import COMMON, SIMULATED, BenchmarkScreen, interval, resampled_means, screens

from gears import PertData
from gears.data.splits.folds import folds
from gears.data.splits.split import perturbed_in
from gears.evaluation import DECISIVE
from gears.evaluation.fitted import settings_of
from gears.evaluation.metrics import condition_metrics, get_metric
from gears.evaluation.truth import Truth
from gears.files.formats import write_text
from gears.priors.prior import Prior
from gears.priors.source import prior_of
from gears.training.head import train_head, with_head_of
from gears.training.options import TrainOptions

METRICS = (*DECISIVE, "pearson_delta", "mse_top20_de")
FITTED = ("train", "val")


def values(screen: BenchmarkScreen, n_folds: int, seed: int) -> Iterator[pd.DataFrame]:
    """Metrics of every test condition without and with the head, and the head's weight there, fold by fold."""
    with tempfile.TemporaryDirectory() as folder:
        pert_data = PertData(folder, default_pert_graph=False)
        pert_data.new_data_process("screen", screen.adata, **screen.preparation)
        for split in folds(pert_data.screen, min(n_folds, len(pert_data.screen.conditions) - 1), 1, seed):
            pert_data.use_split(split)
            fitted = prior_of(pert_data)
            assert fitted is not None
            trained = train_head(
                pert_data, fitted, TrainOptions().with_defaults(), device=torch.device("cpu")
            ).fitted.prior
            refitted = prior_of(pert_data, FITTED)
            assert refitted is not None
            for name, prior in (("prior", refitted.prior), ("head", with_head_of(refitted.prior, trained))):
                yield scored(pert_data, prior).assign(
                    method=name, screen=screen.name, seed=str(screen.seed), fold=split.arguments["fold"]
                )


def scored(pert_data: PertData, prior: Prior) -> pd.DataFrame:
    """Metrics of the test conditions."""
    screen, split = pert_data.screen, pert_data.split
    known = [condition for part in FITTED for condition in perturbed_in(split, part)]
    tested = perturbed_in(split, "test")
    (setting,) = settings_of(screen, tested, known)
    truth = Truth.of(setting.screen, setting.conditions, reference_mean_G=setting.means.reference_mean())
    nodes = [pert_data.condition_nodes(tested[row]) for row in setting.rows]
    predicted_UG = truth.control_mean_G + prior(nodes)
    if screen.nonnegative:
        predicted_UG = np.maximum(predicted_UG, 0.0)
    table = pd.DataFrame(condition_metrics(predicted_UG, truth, METRICS), columns=list(METRICS))
    of_kinds = prior.report.get("head", {})
    kinds = ["several" if len(members) > 1 else "single" for members in nodes]
    weights = [of_kinds.get(kind, {}).get("weight", 0.0) for kind in kinds]
    return table.assign(condition=[c.name for c in truth.conditions], kind=kinds, weight=weights)


def report(table: pd.DataFrame) -> str:
    """Markdown: for each screen the mean weights, and the gain of the head by metric with its interval."""
    lines = [
        "# The head beside the prior alone",
        "",
        "| screen | weight: one gene, several | metric | prior | gain (95 %) | verdict |",
        "|---" * 6 + "|",
    ]
    index = ["seed", "fold", "condition"]
    for screen, rows in table.groupby("screen", sort=False):
        one, other = (rows[rows["method"] == name].set_index(index) for name in ("prior", "head"))
        of_kind = other.groupby("kind")["weight"].mean()
        weights = ", ".join(
            f"{of_kind[kind]:.2f}" if kind in of_kind else "-" for kind in ("single", "several")
        )
        for metric in METRICS:
            sign = 1.0 if get_metric(metric).higher_is_better else -1.0
            gain_U = sign * (other[metric] - one[metric]).dropna().to_numpy()
            if not len(gain_U):
                continue
            low, high = interval(resampled_means(gain_U))
            verdict = "better" if low > 0 else "worse" if high < 0 else "within the interval"
            lines.append(
                f"| {screen} | {weights} | {metric} | {one[metric].mean():.4g} | "
                f"{gain_U.mean():+.3g} ({low:+.3g}, {high:+.3g}) | {verdict} |"
            )
    return "\n".join([*lines, ""])


def main() -> None:
    """Run, and write `NAME.md` and the values by condition after each screen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with NAME_subset.h5ad")
    parser.add_argument("--simulated", nargs="*", default=list(SIMULATED), choices=list(SIMULATED))
    parser.add_argument(
        "--seeds", nargs="+", type=int, default=[COMMON["seed"]], help="seeds of simulated screens"
    )
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1, help="of the folds")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--name", default="head", help="of the files written")
    options = parser.parse_args()
    logging.getLogger("gears").setLevel(logging.ERROR)
    options.output.mkdir(parents=True, exist_ok=True)
    tables: list[pd.DataFrame] = []
    for screen in screens(options.simulated, options.data, options.seeds):
        tables += list(values(screen, options.folds, options.seed))
        print(f"{screen.name}, seed {screen.seed}", flush=True)
        table = pd.concat(tables, ignore_index=True)
        table.to_csv(options.output / f"{options.name}.csv.gz", index=False, float_format="%.6g")
        write_text(options.output / f"{options.name}.md", report(table))


if __name__ == "__main__":
    main()
