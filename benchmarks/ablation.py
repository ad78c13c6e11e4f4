"""What each part of the model is worth: the prior and the network, with one part left out or changed at a time.

    python benchmarks/ablation.py DATA_FOLDER              (the real subsets there, two simulated screens)
    python benchmarks/ablation.py DATA_FOLDER --parts prior --repeats 5
    python benchmarks/ablation.py DATA_FOLDER --parts network --name ablation_network

Folds are over conditions. A figure is the mean over left-out conditions (undefined ones count 0)
and, for each change, the mean difference to the whole with a paired bootstrap interval.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import torch
from scipy import sparse

sys.path.append(str(Path(__file__).resolve().parent))

from accuracy import METRICS, interval, resampled_means, screens, wide

from gears import PertData
from gears.data.splits.folds import folds
from gears.evaluation import compare
from gears.evaluation.metrics import get_metric
from gears.files.formats import write_json, write_text
from gears.graphs.knowledge import KNOWLEDGE
from gears.graphs.similarities import SIMILARITIES
from gears.jobs.estimators import GEARSEstimator, PriorEstimator
from gears.priors import GeneSimilarity
from gears.priors.source import FORMAT

SIMULATED = ("GO-smooth", "co-expression", "interactions")
NETWORKS: dict[str, dict[str, Any]] = {
    "whole": {},
    "no GO graph": {"num_similar_genes_go_graph": 0},
    "no co-expression graph": {"num_similar_genes_co_express_graph": 0},
    "neither graph": {"num_similar_genes_go_graph": 0, "num_similar_genes_co_express_graph": 0},
    "two layers on either graph": {"num_go_gnn_layers": 2, "num_gene_gnn_layers": 2},
    "half as wide": {"hidden_size": 16},
    "twice as wide": {"hidden_size": 64},
    "no direction term": {"direction_lambda": 0.0},
    "loss by evidence": {"loss": "evidence"},
}


def without_go(annotation: Any, pert_names: Any, nodes: Any) -> GeneSimilarity:
    """Every gene like itself alone."""
    trained_T = np.unique(np.array([node for members in nodes for node in members], dtype=np.int64))
    shape = (len(pert_names), len(trained_T))
    ones = np.ones(len(trained_T))
    return GeneSimilarity(trained_T, sparse.csr_matrix((ones, (trained_T, np.arange(len(trained_T)))), shape))


def similarities_without(*omitted: str) -> dict[str, Any]:
    """The similarities beside GO, without some of them."""
    return {name: table_of for name, table_of in SIMILARITIES.items() if name not in omitted}


FURTHER = "gears.priors.source.SIMILARITIES"
PRIORS: dict[str, tuple[str, Any]] = {
    "whole": ("gears.priors.fit.SLOPES", None),
    "no GO similarity": ("gears.priors.source.go_similarity", without_go),
    "no co-expression similarity": (FURTHER, similarities_without("co-expression")),
    **{f"no {name} similarity": (FURTHER, similarities_without(name)) for name in KNOWLEDGE},
    "GO similarity alone": (FURTHER, similarities_without("co-expression", *KNOWLEDGE)),
    "one strength for all genes": ("gears.priors.regression.STRENGTHS", np.ones(1)),
    "no on-target change": ("gears.priors.fit._LEAST_TARGETS", 10**9),
    "no factor for several genes": ("gears.priors.magnitude.LEAST_SETS", 10**9),
    "slope 1": ("gears.priors.fit.SLOPES", (1.0,)),
}


class ChangedPrior(PriorEstimator):
    """The prior, fitted with one of its parts replaced."""

    def __init__(self, pert_data: PertData, change: str) -> None:
        super().__init__(pert_data)
        self.change = change

    def fit(self, screen: Any, split: Any) -> PriorEstimator:
        """Fit with the part replaced; the cache keeps each change by itself."""
        place, value = PRIORS[self.change]
        own_cache = mock.patch("gears.priors.source.FORMAT", f"{FORMAT}, {self.change}")
        with own_cache, contextlib.nullcontext() if value is None else mock.patch(place, value):
            return super().fit(screen, split)


def variants(part: str, pert_data: PertData, epochs: int) -> dict[str, Callable[[int], Any]]:
    """Estimators by name of the change."""
    if part == "prior":
        return {name: partial(_prior, pert_data, name) for name in PRIORS}
    return {name: partial(_network, pert_data, epochs, settings) for name, settings in NETWORKS.items()}


def _prior(pert_data: PertData, change: str, _: int) -> Any:
    return ChangedPrior(pert_data, change)


def _network(pert_data: PertData, epochs: int, settings: dict[str, Any], seed: int) -> Any:
    return GEARSEstimator(
        pert_data,
        network={"hidden_size": 32} | settings,
        training={"objective": "moments", "prior": None, "epochs": epochs},
        seed=seed,
        device="cpu",
    )


def run(adata: Any, part: str, options: argparse.Namespace) -> pd.DataFrame:
    """Values by condition of every change (columns split, condition, method, metric, value)."""
    with tempfile.TemporaryDirectory() as folder:
        pert_data = PertData(folder, default_pert_graph=False)
        pert_data.new_data_process("screen", adata)
        n_folds = min(options.folds, len(pert_data.screen.conditions) - 1)
        repeats = options.repeats if part == "prior" else 1
        splits = list(folds(pert_data.screen, n_folds, repeats, options.seed))
        result = compare(
            variants(part, pert_data, options.epochs),
            pert_data.screen,
            splits,
            seeds=(options.seed,),
            annotation=pert_data.annotation,
            metrics=METRICS,
            baselines=(),
            n_split_half=0,
        )
        return result.table


def rows(table: pd.DataFrame) -> Iterator[str]:
    """A line per change: its means, and what each metric gains over the whole (higher is better)."""
    values = {metric: wide(table, metric) for metric in METRICS}
    for name in dict.fromkeys(table["method"]):
        cells = []
        for metric in METRICS:
            if values[metric].empty:
                cells.append("undefined")
                continue
            mean = values[metric][name].mean()
            if name == "whole":
                cells.append(f"{mean:.4f}")
                continue
            sign = 1.0 if get_metric(metric).higher_is_better else -1.0
            gain_U = sign * (values[metric][name] - values[metric]["whole"]).to_numpy()
            low, high = interval(resampled_means(gain_U))
            cells.append(f"{mean:.4f}: {gain_U.mean():+.4f} ({low:+.4f}, {high:+.4f})")
        yield f"| {name} | " + " | ".join(cells) + " |"


def main() -> None:
    """Run, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with NAME_subset.h5ad")
    parser.add_argument("--parts", nargs="+", default=["prior", "network"], choices=["prior", "network"])
    parser.add_argument("--simulated", nargs="*", default=list(SIMULATED))
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=5, help="of the prior; the network has one")
    parser.add_argument("--epochs", type=int, default=100, help="of the network")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--name", default="ablation", help="of the files written")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    logging.getLogger("gears").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    told = {
        "folds": options.folds,
        "repeats": options.repeats if "prior" in options.parts else 1,
        "epochs of the network": options.epochs,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}",
    }
    lines = [
        "# Ablation",
        "",
        f"{told}",
        "",
        "Change: mean, gain over the whole (95 %); higher is better.",
        "",
    ]
    for screen in screens(options.simulated, options.data):
        for part in options.parts:
            start = time.perf_counter()
            table = run(screen.adata, part, options)
            lines += [f"## {part}: {screen.name}", "", "| change | " + " | ".join(METRICS) + " |"]
            lines += ["|---" * (len(METRICS) + 1) + "|", *rows(table), ""]
            print(f"{screen.name} {part}: {time.perf_counter() - start:.0f} s", flush=True)
            write_text(options.output / f"{options.name}.md", "\n".join(lines))
    write_json(options.output / f"{options.name}.json", told)


if __name__ == "__main__":
    main()
