"""Values of ``cell-eval`` and of this package for the same exported pair of h5ad files.

    python benchmarks/cell_eval_agreement.py --screen SCREEN.h5ad --python OTHER_ENVIRONMENT/bin/python

``cell-eval`` (extra ``eval``) is run by the interpreter given with ``--python``, which may belong to an
environment of its own; left out, this one runs it. The prediction is that of a baseline. Without
``--screen`` a screen is simulated. Shared metrics: pearson_delta, mse, mae, discrimination (L1), and the
overlap of differential genes with Wilcoxon's test on the cells of the pair.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import tempfile
from pathlib import Path

import anndata
import numpy as np

from gears import PertData
from gears.evaluation import Truth, condition_metrics, make_baseline
from gears.evaluation.cell_eval import CONTROL, TARGET, write_cell_eval_pair
from gears.evaluation.metrics.differential import de_overlap_of_cells
from gears.files.formats import write_json
from gears.simulate import simulated_screen

NAMES = {
    "pearson_delta": "pearson_delta",
    "mse": "mse",
    "mae": "mae",
    "discrimination_score_l1": "discrimination",
    "overlap_at_N": "de_overlap_of_cells",
}
RUN = """
import json, sys
import anndata, cell_eval
from cell_eval import MetricsEvaluator
folder, version = sys.argv[1], getattr(cell_eval, "__version__", "")
evaluator = MetricsEvaluator(
    adata_pred=anndata.read_h5ad(folder + "/predicted.h5ad"), adata_real=anndata.read_h5ad(folder + "/real.h5ad"),
    control_pert=sys.argv[2], pert_col=sys.argv[3], num_threads=1, outdir=folder + "/out")
results = evaluator.compute(profile="full", write_csv=False, break_on_error=False,
    skip_metrics=["clustering_agreement", "pearson_edistance"])
results = results[0] if isinstance(results, tuple) else results
json.dump(results.to_dicts(), open(folder + "/cell_eval.json", "w"))
"""


def main() -> None:
    """Export, run both, print the largest differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--screen", type=Path, help="h5ad file")
    parser.add_argument("--python", default=sys.executable, help="interpreter that has cell-eval")
    parser.add_argument("--baseline", default="additive")
    parser.add_argument("--max-cells", type=int, default=300)
    parser.add_argument("--output", type=Path, help="JSON file for the result")
    options = parser.parse_args()
    logging.getLogger("gears").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        result = compare(Path(folder), options)
    print(f"{result['n_conditions']} conditions, {result['n_genes']} genes, baseline {options.baseline}")
    for name, row in result["metrics"].items():
        print(
            f"{name:<26}conditions {row['n']:>3}   largest difference {row['largest']:.2e}   "
            f"equal to 1e-6: {row['n_equal']:>3}   {row['remark']}"
        )
    if options.output:
        write_json(options.output, result)


def compare(folder: Path, options: argparse.Namespace) -> dict:
    """Both values of each shared metric, per condition."""
    if options.screen:
        adata = anndata.read_h5ad(options.screen)
    else:
        adata, _ = simulated_screen(n_genes=200, n_singles=30, n_pairs=15, cells_per_condition=60, seed=1)
    data = PertData(folder / "screens")
    data.new_data_process("screen", adata, pool_cell_types=adata.obs["cell_type"].nunique() > 1)
    data.prepare_split("no_test", seed=1)
    screen = data.screen
    conditions = [condition for condition in screen.conditions if not condition.is_control]
    predicted_UG = make_baseline(options.baseline).fit(screen, data.split).predict(conditions)
    paths = write_cell_eval_pair(folder, predicted_UG, conditions, screen, max_cells=options.max_cells)
    done = subprocess.run(
        [options.python, "-c", RUN, str(folder), CONTROL, TARGET], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"cell-eval failed:\n{done.stderr[-3000:]}")
    theirs = {row["perturbation"]: row for row in json.loads((folder / "cell_eval.json").read_text())}
    ours = own_values(*(anndata.read_h5ad(path) for path in paths), conditions, screen.gene_names)
    rows = {}
    for name, own_name in NAMES.items():
        pairs = np.array(
            [(theirs[key][name], ours[key][own_name]) for key in ours if theirs[key].get(name) is not None],
            dtype=float,
        )
        empty = np.isnan(pairs[:, 1]) & (np.isnan(pairs[:, 0]) | (pairs[:, 0] == 0))
        difference = np.abs(pairs[:, 0] - pairs[:, 1])[~empty]
        rows[name] = {
            "n": len(difference),
            "largest": float(difference.max()) if len(difference) else 0.0,
            "n_equal": int((difference <= 1e-6).sum()),
            "remark": f"{int(empty.sum())} undefined here, undefined or 0 there" if empty.any() else "",
        }
    return {"n_conditions": len(conditions), "n_genes": len(screen.gene_names), "metrics": rows}


def own_values(predicted, real, conditions, gene_names) -> dict[str, dict[str, float]]:
    """This package's values for the cells of the pair; only a single's target is excluded, as in cell-eval."""

    def cells(adata, key):
        return adata.X[(adata.obs[TARGET] == key).to_numpy()].toarray().astype(np.float64)

    keys = [c.genes[0] if len(c) == 1 else c.name for c in conditions]
    mean_UG = np.array([cells(real, key).mean(axis=0) for key in keys])
    predicted_UG = np.array([cells(predicted, key).mean(axis=0) for key in keys])
    position = {gene: index for index, gene in enumerate(gene_names)}
    targets = [
        np.array([position[c.genes[0]]] if len(c) == 1 and c.genes[0] in position else [], dtype=np.int64)
        for c in conditions
    ]
    control = cells(real, CONTROL)
    truth = Truth.from_means(mean_UG, control.mean(axis=0), conditions=conditions, targets=targets)
    names = ["pearson_delta", "mse", "mae", "discrimination"]
    values = condition_metrics(predicted_UG, truth, names)
    found = {key: dict(zip(names, row, strict=True)) for key, row in zip(keys, values.tolist(), strict=True)}
    for key in keys:
        found[key]["de_overlap_of_cells"] = de_overlap_of_cells(
            cells(predicted, key), cells(real, key), control, test="wilcoxon", pseudo_count=0.0
        )
    return found


if __name__ == "__main__":
    main()
