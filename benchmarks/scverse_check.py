"""Do scanpy, pertpy and cell-eval take predictions as they are?

    python benchmarks/scverse_check.py write folder      (here: a model of a simulated screen, its predictions)
    python benchmarks/scverse_check.py read folder       (in any environment: through what is installed there)

Reading needs no gears: the files alone are used.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from importlib import metadata
from pathlib import Path

import anndata
import numpy as np


def write(folder):
    """Predictions of a small model, and the observed means of the same conditions."""
    import scanpy as sc

    from gears import GEARS, PertData
    from gears.simulate import simulated_screen

    adata, _ = simulated_screen(n_genes=120, n_singles=20, n_pairs=12, cells_per_condition=20, n_control=80)
    data = PertData(folder, default_pert_graph=False)
    data.new_data_process("screen", adata)
    data.prepare_split("simulation", seed=1)
    model = GEARS(data, device="cpu")
    model.model_initialize(hidden_size=16, uncertainty=True)
    model.train(epochs=3, objective="cells", batch_size=64, prior=None, verbose=False, evaluate_test=False)
    labels = list(data.screen.labels)
    model.predict_to_file(labels, folder / "predictions.h5ad")
    observed = sc.get.aggregate(data.adata, by="condition", func="mean")
    observed.X = observed.layers["mean"]
    observed.var_names = observed.var["gene_name"].astype(str)
    observed.write_h5ad(folder / "observed.h5ad")


def through_scanpy(predicted, observed):
    import scanpy as sc

    sc.pp.pca(predicted, n_comps=5, layer="delta")
    sc.pp.neighbors(predicted, n_neighbors=5)
    sc.tl.dendrogram(predicted, groupby="subgroup")
    groups = sc.get.aggregate(predicted, by="subgroup", func="mean", layer="delta")
    return {"X_pca": predicted.obsm["X_pca"].shape, "subgroups": list(groups.obs_names)}


def through_pertpy(predicted, observed):
    import pertpy as pt

    distance = pt.tl.Distance("euclidean", layer_key="delta")
    table = distance.pairwise(predicted, groupby="condition", show_progressbar=False)
    gap = np.linalg.norm(predicted.layers["delta"][0] - predicted.layers["delta"][1])
    a, b = predicted.obs_names[:2]
    assert np.isclose(table.loc[a, b], gap, rtol=1e-4)
    between = pt.tl.Distance("mse")(
        np.asarray(predicted.X[:1]), np.asarray(observed[predicted.obs_names[0]].X)
    )
    return {"pairwise": table.shape, "mse of the first condition": float(between)}


def through_cell_eval(predicted, observed):
    from cell_eval import MetricsEvaluator

    shared = [name for name in predicted.obs_names if name in set(observed.obs_names)]
    evaluator = MetricsEvaluator(
        adata_pred=predicted[shared].copy(),
        adata_real=observed[shared].copy(),
        control_pert="ctrl",
        pert_col="condition",
        skip_de=True,
        outdir=tempfile.mkdtemp(),
    )
    results, _ = evaluator.compute(profile="anndata", write_csv=False)
    return {"conditions": results.height, "columns": results.columns}


CHECKS = {"scanpy": through_scanpy, "pertpy": through_pertpy, "cell-eval": through_cell_eval}


def read(folder):
    """Through each package that is installed here."""
    warnings.simplefilter("ignore")
    for name, check in CHECKS.items():
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            print(f"{name}: not installed here")
            continue
        predicted = anndata.read_h5ad(folder / "predictions.h5ad")
        observed = anndata.read_h5ad(folder / "observed.h5ad")[:, predicted.var_names].copy()
        print(f"{name} {version}: {json.dumps(check(predicted, observed), default=str)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["write", "read"])
    parser.add_argument("folder", type=Path)
    options, _ = parser.parse_known_args()
    {"write": write, "read": read}[options.what](options.folder)
