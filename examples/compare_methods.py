"""Cross-validate a custom method beside the prior of GEARS and the baselines, and write the HTML report.

python examples/compare_methods.py [folder]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from gears import PertData, simulated_screen
from gears.data.splits import folds
from gears.evaluation import compare, make_baseline
from gears.jobs.estimators import PriorEstimator
from gears.report import write_report


class HalfAdditive:
    """Half of the change that adding up single perturbations predicts: anything with `fit` and `predict` will do."""

    def fit(self, screen, split):
        self.additive = make_baseline("additive").fit(screen, split)
        self.control_G = np.asarray(screen.statistics.mean[screen.control_id])
        return self

    def predict(self, conditions):
        return 0.5 * (self.control_G + self.additive.predict(conditions))


def main(folder: Path) -> None:
    adata, _ = simulated_screen(n_genes=60, n_singles=14, n_pairs=10, cells_per_condition=20, n_control=80)
    pert_data = PertData(folder, default_pert_graph=False)
    pert_data.new_data_process("simulated", adata)
    result = compare(
        {"half": HalfAdditive, "prior": PriorEstimator(pert_data)},
        pert_data.screen,
        folds(pert_data.screen, n_folds=3, seed=1),
        baselines=["train_mean", "additive"],
        metrics=["pearson_delta_ref", "relative_error"],
        n_split_half=2,
    )
    print(f"half: {result.verdict()}")
    print(f"report: {write_report(result, folder / 'report')['page']}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "compare_output"))
