"""Stages of the scaling benchmark, each size in a process of its own, with the package of this checkout."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from measuring import Measurement, versions
from side import serve

HELD = {}


def simulate(path, simulation):
    """Write the screen chunk by chunk."""
    from gears.simulate import simulate_to_h5ad

    with Measurement() as block:
        simulate_to_h5ad(path, chunk_cells=4096, **simulation)
    return block.figures | {"file_mb": Path(path).stat().st_size / 2**20}


def statistics(path, workers):
    """The pass over all cells of the file, read in chunks of rows: moments of every condition.

    Labels and X are read by themselves: a backed AnnData would hold every layer of the file in memory.
    """
    import anndata
    import h5py
    import numpy as np

    from gears.data.labels import LabelTable
    from gears.data.passes import condition_moments
    from gears.data.reading import StoredMatrix

    with Measurement() as block:
        with h5py.File(path, "r") as file:
            obs = anndata.io.read_elem(file["obs"])
        table = LabelTable.of(obs["condition"])
        control = next(i for i, condition in enumerate(table.conditions) if condition.is_control)
        ids = np.asarray(table.cell_condition)
        matrix = StoredMatrix(path)
        condition_moments(matrix, ids, len(table.conditions), control_id=control, workers=workers)
    return block.figures | {"cells": len(ids), "conditions": len(table.conditions)}


def prepare(path, folder, workers):
    """Prepare the screen from its file: checks, statistics, differential genes, cells in the prepared form."""
    from gears import PertData

    folder = Path(folder)
    with Measurement() as block:
        data = PertData(folder.parent, default_pert_graph=False)
        data.load(data_path=path, workers=workers)
    data.screen.folder.rename(folder)
    return block.figures


def setup(folder, split="simulation"):
    """Open the prepared screen, split it, build graphs and network."""
    from gears import GEARS, PertData

    with Measurement() as block:
        data = PertData(Path(folder).parent, default_pert_graph=False)
        data.load(data_path=folder)
        data.prepare_split(split, seed=1)
        HELD["model"] = model = GEARS(data, device="cpu")
        model.model_initialize(hidden_size=64)
    return block.figures | {"versions": versions(("gears-perturb", "torch", "numpy", "scipy", "anndata"))}


def train(**options):
    """Train as asked, without scoring the test part."""
    model = HELD["model"]
    with Measurement() as block:
        result = model.train(evaluate_test=False, verbose=False, **options)
    prior = model.parts.prior
    told = (
        None
        if prior is None
        else {key: prior.report.get(key) for key in ("exact", "gate", "factor", "slope")}
    )
    trained = len(model.pert_data.split.conditions("train"))
    told = {"conditions": trained, "epochs": len(result.history), "prior": told}
    return block.figures | told | result.history[-1]


def predict(path):
    """Predict every perturbed condition of the screen into a file, chunk by chunk."""
    model = HELD["model"]
    conditions = [condition for condition in model.pert_data.screen.conditions if not condition.is_control]
    with Measurement() as block:
        model.predict_to_file(conditions, path)
    return block.figures | {"conditions": len(conditions), "file_mb": Path(path).stat().st_size / 2**20}


def epochs(n):
    """`n` epochs of the moments objective: every training condition once each."""
    model = HELD["model"]
    with Measurement() as block:
        result = model.train(objective="moments", prior=None, epochs=n, evaluate_test=False, verbose=False)
    seconds = sorted(record["seconds"]["total"] for record in result.history)
    conditions = len(model.pert_data.split.conditions("train"))
    return block.figures | {"epoch_s": seconds[len(seconds) // 2], "n": n, "conditions": conditions}


if __name__ == "__main__":
    stages = (simulate, statistics, prepare, setup, epochs, train, predict)
    serve({function.__name__: function for function in stages})
