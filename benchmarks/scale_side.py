"""Stages of the scaling benchmark, each size in a process of its own, with the package of this checkout."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from measuring import Measurement, cpu_seconds, versions
from side import serve

HELD = {}
VERSIONS = ("gears-perturb", "torch", "numpy", "scipy", "anndata")


def simulate(path, simulation):
    """Write the screen chunk by chunk."""
    from gears.simulate import simulate_to_h5ad

    with Measurement() as block:
        simulate_to_h5ad(path, chunk_cells=4096, overwrite=True, **simulation)
    return block.figures | {"file_mb": Path(path).stat().st_size / 2**20}


def statistics(path, workers):
    """The pass over all cells of the file, opened as preparing opens it: moments of every condition."""
    import numpy as np

    from gears.data.checks.labels import LabelTable
    from gears.data.reading.open import open_lean
    from gears.data.screen.moments import condition_moments

    with Measurement() as block:
        adata = open_lean(Path(path), None, Path(path).parent)
        table = LabelTable.of(adata.obs["condition"])
        control = next(i for i, condition in enumerate(table.conditions) if condition.is_control)
        ids = np.asarray(table.cell_condition)
        condition_moments(adata.X, ids, len(table.conditions), control_id=control, workers=workers)
    return block.figures | {"cells": len(ids), "conditions": len(table.conditions)}


def prepare(path, folder, workers, **options):
    """Prepare the screen from its file: checks, statistics, differential genes, cells in the prepared form."""
    from gears import PertData

    folder = Path(folder)
    with Measurement() as block:
        data = PertData(folder.parent, default_pert_graph=False)
        data.load(data_path=path, workers=workers, **options)
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
    return block.figures | {"versions": versions(VERSIONS)}


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
        model.predict_to_file(conditions, path, overwrite=True)
    return block.figures | {"conditions": len(conditions), "file_mb": Path(path).stat().st_size / 2**20}


def epochs(n):
    """`n` epochs of the moments objective: every training condition once each."""
    model = HELD["model"]
    with Measurement() as block:
        result = model.train(objective="moments", prior=None, epochs=n, evaluate_test=False, verbose=False)
    seconds = sorted(record["seconds"]["total"] for record in result.history)
    conditions = len(model.pert_data.split.conditions("train"))
    return block.figures | {"epoch_s": seconds[len(seconds) // 2], "n": n, "conditions": conditions}


def _opened(folder):
    """Screen and split, and the CPU seconds that imports and opening took."""
    start = cpu_seconds()
    from gears import GEARS, PertData

    imported = cpu_seconds()
    data = PertData(Path(folder).parent)
    data.load(data_path=folder)
    data.prepare_split("simulation", seed=1)
    HELD["model"] = GEARS(data, device="cpu")
    return data, {"import_s": imported - start, "versions": versions(VERSIONS)}, cpu_seconds() - imported


def load(folder):
    """Open the prepared screen and split it."""
    with Measurement() as block:
        _, told, seconds = _opened(folder)
    return block.figures | told | {"cpu_s": seconds}


def go_graph(folder):
    """Graph of all nodes, the annotation read already."""
    from gears.graphs import go_graph as build

    data, told, _ = _opened(folder)
    with Measurement() as block:
        graph = build(data.annotation, data.pert_names)
    return block.figures | told | {"nodes": len(graph.nodes), "edges": graph.n_edges}


def coexpression_graph(folder, n_drawn=5000, keep=None, against=None):
    """Graph over the training cells; compared with another that an earlier process kept."""
    import numpy as np

    from gears.graphs import Graph
    from gears.graphs import coexpression_graph as build

    data, told, _ = _opened(folder)
    screen = data.screen
    ids = [screen.id_of(condition) for condition in data.split.conditions("train")]
    rows = np.flatnonzero(np.isin(screen.cell_condition, ids))
    with Measurement() as block:
        graph = build(screen.cells, screen.gene_names, rows=rows, n_drawn=n_drawn)
    told |= {"cells": len(rows), "edges": graph.n_edges}
    if keep:
        graph.save(keep, overwrite=True)
    if against:
        one, two = (
            dict(zip(zip(*made.edge_index.tolist(), strict=True), made.weight.tolist(), strict=True))
            for made in (Graph.load(against), graph)
        )
        both = one.keys() & two.keys()
        told["kept"] = len(both) / max(1, len(one))
        told["other"] = len(two) - len(both)
        told["difference"] = max((abs(one[edge] - two[edge]) for edge in both), default=0.0)
    return block.figures | told


def _initialised(folder):
    _, told, _ = _opened(folder)
    model = HELD["model"]
    model.model_initialize(hidden_size=64)  # graphs are made here, or read where they were made before
    return model, told


def prior(folder):
    """Fit the prior to the training conditions."""
    data, told, _ = _opened(folder)
    start = cpu_seconds()
    import scipy.optimize  # noqa: F401  (a package of the fit; imports are a line of their own)

    from gears.priors.source import fit_to

    told["import_s"] += cpu_seconds() - start
    conditions = [condition for condition in data.split.conditions("train") if not condition.is_control]
    with Measurement() as block:
        fit_to(data, conditions)
    return block.figures | told | {"conditions": len(conditions)}


def network_step(folder, steps=(20, 100)):
    """One step over moments: what a longer run costs beyond a shorter one, by the number of steps."""
    model, told = _initialised(folder)
    seconds, how = [], {"objective": "moments", "prior": None, "batch_size": 32, "evaluate_test": False}
    for n in steps:
        with Measurement() as block:
            model.train(steps=n, verbose=False, **how)
        seconds.append(block.figures["cpu_s"])
    return block.figures | told | {"cpu_s": (seconds[1] - seconds[0]) / (steps[1] - steps[0])}


def prediction(folder):
    """Predict all perturbed conditions of the screen by the network."""
    model, told = _initialised(folder)
    model.train(steps=1, objective="moments", prior=None, evaluate_test=False, verbose=False)
    conditions = [list(one.genes) for one in model.pert_data.screen.conditions if not one.is_control]
    with Measurement() as block:
        model.predict(conditions)
    return block.figures | told | {"conditions": len(conditions)}


if __name__ == "__main__":
    stages = (simulate, statistics, prepare, setup, epochs, train, predict)
    stages += (load, go_graph, coexpression_graph, prior, network_step, prediction)
    serve({function.__name__: function for function in stages})
