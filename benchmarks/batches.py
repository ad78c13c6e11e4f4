"""What `batch_key` is worth on screens whose conditions lie in batches: with it, controls are those of the batches.

    python benchmarks/batches.py

Simulated screens (seeds 0 to 2), each condition in one of four batches; five folds over conditions. The prior's
predicted changes of held-out conditions are correlated with the *expected* changes, which only the simulator knows:
measured changes hold the batches' effects where controls are not matched, so that they cannot judge it.
"""

from __future__ import annotations

import logging
import tempfile
from typing import Any

import numpy as np
import pandas as pd
from accuracy import COMMON, PREPARED, SIMULATED, interval, resampled_means

from gears import PertData
from gears.data.splits.folds import folds
from gears.data.splits.split import perturbed_in
from gears.evaluation.rows import pearson_rows
from gears.jobs.estimators import PriorEstimator
from gears.simulate import simulated_screen

KIND = "confounded batches"


def correlations(size: float, seed: int, preparation: dict[str, Any]) -> pd.Series:
    """Correlation of the predicted with the expected change of every condition, each held out once."""
    adata, truth = simulated_screen(**COMMON | SIMULATED[KIND] | {"seed": seed, "batch_size_effect": size})
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        pert_data = PertData(folder, default_pert_graph=False)
        pert_data.new_data_process("screen", adata, **preparation)
        place = {gene: column for column, gene in enumerate(truth.genes)}
        columns = [place[gene] for gene in pert_data.screen.gene_names]
        for split in folds(pert_data.screen, 5, 1, 1):
            estimator = PriorEstimator(pert_data).fit(pert_data.screen, split)
            assert estimator.prior is not None
            tested = perturbed_in(split, "test")
            change_UG = estimator.prior([pert_data.condition_nodes(condition) for condition in tested])
            rows = [truth.index(condition.plain) for condition in tested]
            values_U = pearson_rows(change_UG, truth.delta_CG[np.ix_(rows, columns)])
            found |= {(seed, c.name): value for c, value in zip(tested, values_U.tolist(), strict=True)}
    return pd.Series(found)


def main() -> None:
    """Print a line for each size of the batches' effects."""
    logging.getLogger("gears").setLevel(logging.ERROR)
    print("| size of batch effects | without batch_key | with it | gain (95 %) |\n|---|---|---|---|")
    for size in (0.0, 0.5, 1.0):
        without, matched = (
            pd.concat([correlations(size, seed, preparation) for seed in range(3)])
            for preparation in ({}, PREPARED[KIND])
        )
        gain_U = (matched - without).dropna().to_numpy()
        low, high = interval(resampled_means(gain_U))
        print(
            f"| {size:g} | {without.mean():.3f} | {matched.mean():.3f} | "
            f"{gain_U.mean():+.3f} ({low:+.3f}, {high:+.3f}) |",
            flush=True,
        )


if __name__ == "__main__":
    main()
