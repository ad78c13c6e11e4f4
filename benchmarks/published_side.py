"""Stages of the published package, cell-gears 0.1.2, driven through its own functions.

Runs in an interpreter of its own, where ``gears`` is the published package. Files that it
would download are put where it looks for them.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import sys
from pathlib import Path

from measuring import Measurement, versions

HELD = {}  # what stages leave for later ones


def startup():
    """Import the package."""
    with Measurement() as block:
        import gears  # noqa: F401
    names = ("cell-gears", "torch", "torch_geometric", "numpy", "scipy", "pandas", "scanpy", "anndata")
    return block.figures | {"versions": versions(names)}


def process(screen, annotation, round):
    """Read the h5ad file, prepare the screen."""
    import scanpy as sc

    from gears import PertData

    folder = Path(f"published-{round}")
    folder.mkdir()
    (folder / "gene2go_all.pkl").write_bytes(Path(annotation).read_bytes())
    with Measurement() as block, contextlib.redirect_stdout(sys.stderr):
        data = PertData(str(folder), default_pert_graph=False)
        data.new_data_process("screen", adata=sc.read_h5ad(screen))
    del data
    return block.figures


def load(round):
    """Open what `process` wrote."""
    from gears import PertData

    folder = Path(f"published-{round}")
    HELD.pop("data", None)
    with Measurement() as block:
        data = PertData(str(folder), default_pert_graph=False)
        data.load(data_path=str(folder / "screen"))
    HELD["data"] = data
    return block.figures | {"cells": data.adata.n_obs}


def split(parts, batch_size):
    """Take a split from a file, make the loaders."""
    data = HELD["data"]
    data.ctrl_adata = data.adata[data.adata.obs["condition"] == "ctrl"]
    Path("split.pkl").write_bytes(pickle.dumps(json.loads(Path(parts).read_text())))
    data.prepare_split("custom", seed=1, split_dict_path="split.pkl")
    data.get_dataloader(batch_size)


def go_graph(genes, annotation, round):
    """Graph of a list of annotated genes."""
    from gears.utils import GeneSimNetwork, get_similarity_network

    genes, folder = json.loads(Path(genes).read_text()), Path("published-go")
    Path("data").mkdir(exist_ok=True)
    folder.mkdir(exist_ok=True)
    (folder / "gene2go_all.pkl").write_bytes(Path(annotation).read_bytes())
    with Measurement() as block:
        edges = get_similarity_network(
            "go", None, 0.4, 20, str(folder), f"genes{round}", "custom", 1, None, None, False, genes
        )
        network = GeneSimNetwork(edges, genes, {gene: i for i, gene in enumerate(genes)})
    return block.figures | {"edges": int(network.edge_index.shape[1])}


def coexpression(round):
    """Graph over the training cells."""
    from gears.utils import GeneSimNetwork, get_similarity_network

    data = HELD["data"]
    name = f"screen-{round}"
    (Path(data.data_path) / name).mkdir(exist_ok=True)
    with Measurement() as block:
        edges = get_similarity_network(
            "co-express", data.adata, 0.4, 20, data.data_path, name, "custom", 1, None, data.set2conditions
        )
        network = GeneSimNetwork(edges, data.gene_names.values.tolist(), data.node_map)
    return block.figures | {"edges": int(network.edge_index.shape[1])}


def initialise():
    """Graphs and network."""
    from gears import GEARS

    Path("data").mkdir(exist_ok=True)
    with Measurement() as block:
        HELD["model"] = model = GEARS(HELD["data"], device="cpu")
        model.model_initialize(hidden_size=64)
    return block.figures


def _stepper(model):
    """One training step as in its train()."""
    import torch

    from gears.utils import loss_fct

    optimizer = torch.optim.Adam(model.model.parameters(), lr=1e-3, weight_decay=5e-4)
    model.model.train()

    def step(batch):
        optimizer.zero_grad()
        loss = loss_fct(
            model.model(batch),
            batch.y,
            batch.pert,
            ctrl=model.ctrl_expression,
            dict_filter=model.dict_filter,
            direction_lambda=model.config["direction_lambda"],
        )
        loss.backward()
        torch.nn.utils.clip_grad_value_(model.model.parameters(), clip_value=1.0)
        optimizer.step()

    return step


def step(n):
    """`n` training steps on batches that are ready."""
    model = HELD["model"]
    batches = _take(model.dataloader["train_loader"], n + 2)
    take = _stepper(model)
    for batch in batches[:2]:
        take(batch)
    with Measurement() as block:
        for batch in batches[2:]:
            take(batch)
    return block.figures | {"n": len(batches) - 2}


def _take(loader, n):
    batches = []
    while len(batches) < n:
        for batch in loader:
            batches.append(batch)
            if len(batches) == n:
                break
    return batches


def epoch():
    """An epoch as its train() runs it: steps over the training cells, scores of training and validation cells."""
    from gears.inference import compute_metrics, evaluate

    model = HELD["model"]
    take = _stepper(model)
    with Measurement() as block:
        for batch in model.dataloader["train_loader"]:
            take(batch)
        steps_cpu, _ = block.now()
        for part in ("train_loader", "val_loader"):
            compute_metrics(evaluate(model.dataloader[part], model.model, False, "cpu"))
    return block.figures | {"steps_cpu_s": steps_cpu}


def train(epochs, curve=None):
    """Train a fresh model; keep its own validation error and its predictions after each epoch.

    The predictions (control mean plus mean change of each validation condition, written to the
    npz file `curve`) are made outside the clock and free of the draw of control cells. Without `curve` it is only
    trained, without its closing analysis of the test part, which fails where a condition has few genes with counts.
    """
    import numpy as np

    import gears.gears as published

    initialise()
    model = HELD["model"]
    if curve is None:
        loaders = model.dataloader
        model.dataloader = {name: loaders[name] for name in loaders if name != "test_loader"}
        with Measurement() as block:
            model.train(epochs=epochs, lr=1e-3)
        return block.figures
    original, records, means, calls = published.compute_metrics, [], {}, []
    validation_labels = [label for label in model.set2conditions["val"] if label != "ctrl"]

    with Measurement() as block:

        def watched(results):
            metrics = original(results)
            calls.append(1)
            if len(calls) % 2 == 0 and len(records) < epochs:
                cpu, wall = block.now()
                with block.pause():
                    number = len(records) + 1
                    records.append(
                        {"epoch": number, "cpu_s": cpu, "wall_s": wall, "own_mse_de": float(metrics[0]["mse_de"])}
                    )
                    means[f"epoch{number}"] = _validation_means(model, validation_labels)
            return metrics

        published.compute_metrics = watched
        try:
            model.train(epochs=epochs, lr=1e-3)
        finally:
            published.compute_metrics = original
    np.savez(curve, labels=np.array(validation_labels), **means)
    return block.figures | {"history": records}


def _validation_means(model, labels):
    """Control mean plus the mean predicted change of each condition, (U, G)."""
    import numpy as np
    import torch

    network, control = model.model, model.ctrl_expression.numpy()
    training = network.training
    network.eval()
    sums = dict.fromkeys(labels, 0.0)
    counts = dict.fromkeys(labels, 0)
    with torch.no_grad():
        for batch in model.dataloader["val_loader"]:
            change = (network(batch) - batch.x.reshape(len(batch.pert), -1)).numpy()
            for label, row in zip(batch.pert, change, strict=True):
                if label in sums:
                    sums[label] = sums[label] + row
                    counts[label] += 1
    network.train(training)
    return np.stack([control + sums[label] / counts[label] for label in labels])


def predict(conditions, out):
    """Expression after each of some conditions (lists of genes)."""
    import numpy as np

    model = HELD["model"]
    conditions = json.loads(Path(conditions).read_text())
    model.saved_pred = {}
    with Measurement() as block:
        found = model.predict(conditions)
    np.savez(
        out,
        labels=np.array(["+".join(genes) if len(genes) > 1 else f"{genes[0]}+ctrl" for genes in conditions]),
        mean=np.stack([found["_".join(genes)] for genes in conditions]),
    )
    return block.figures | {"n": len(conditions)}
