"""Stages of this package, and the scores of both packages' predictions against one truth."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from measuring import Measurement, cpu_seconds, versions

HELD = {}  # what stages leave for later ones
SCORES = ("mse", "mse_top20_de", "pearson", "pearson_delta")


def startup():
    """Import the package (its parts are imported on first use: all that later stages need)."""
    with Measurement() as block:
        import gears

        gears.GEARS, gears.PertData  # noqa: B018
        import gears.gears
    names = ("gears-perturb", "torch", "numpy", "scipy", "pandas", "anndata")
    return block.figures | {"versions": versions(names)}


def process(screen, annotation, round):
    """Prepare the screen from its h5ad file."""
    from gears import PertData

    with Measurement() as block:
        data = PertData(f"own-{round}", default_pert_graph=False)
        data.load(data_path=screen)
    return block.figures


def load(round):
    """Open what `process` wrote."""
    from gears import PertData

    HELD.pop("data", None)
    with Measurement() as block:
        data = PertData(f"own-{round}", default_pert_graph=False)
        data.load(data_path=f"own-{round}/screen")
    HELD["data"] = data
    return block.figures | {"cells": len(data.screen.cell_condition)}


def split(parts, batch_size):
    """Make the split that both packages take, and the loaders."""
    data = HELD["data"]
    data.prepare_split("simulation", seed=1)
    data.get_dataloader(batch_size)
    Path(parts).write_text(json.dumps(data.set2conditions))


def go_graph(genes, annotation, round):
    """Graph of a list of annotated genes, the annotation read again."""
    from gears.graphs import _annotation as room
    from gears.graphs._go import go_graph as build

    genes = json.loads(Path(genes).read_text())
    room._human.cache_clear()
    with Measurement() as block:
        graph = build(room.GeneAnnotation.human(), genes, threshold=0.1, k=20)
    return block.figures | {"edges": int(graph.edge_index.shape[1])}


def coexpression(round):
    """Graph over the training cells."""
    import numpy as np

    from gears.graphs._coexpression import coexpression_graph

    data = HELD["data"]
    with Measurement() as block:
        screen = data.screen
        ids = [screen.id_of(condition) for condition in data.split.conditions("train")]
        rows = np.flatnonzero(np.isin(screen.cell_condition, ids))
        graph = coexpression_graph(screen.cells, screen.gene_names, rows=rows, threshold=0.4, k=20)
    return block.figures | {"edges": int(graph.edge_index.shape[1])}


def initialise():
    """Graphs and network."""
    from gears import GEARS

    with Measurement() as block:
        HELD["model"] = model = GEARS(HELD["data"], device="cpu")
        model.model_initialize(hidden_size=64)
    return block.figures


def _engine(model):
    """Engine, task and optimiser as `train(objective="cells")` puts them together, without validation."""
    import torch

    from gears.training import TrainingEngine
    from gears.training._tasks import CellsTask, condition_tables

    device = torch.device("cpu")
    engine = TrainingEngine(model.model, device, clip_value=1.0)
    tables = condition_tables(model.pert_data, device, torch.float32)
    task = CellsTask(tables, model.parts.config, lambda network, reducer: {}, monitor="mse")
    adam = torch.optim.Adam(model.model.parameters(), lr=1e-3, weight_decay=5e-4, fused=True)
    return lambda loader, epochs: engine.train(loader, None, adam, num_epochs=epochs, task=task)


def step(n):
    """`n` training steps on batches that are ready."""
    model = HELD["model"]
    loader = model.pert_data.dataloader["train_loader"]
    batches = []
    while len(batches) < n + 2:
        batches += list(loader)
    run = _engine(model)
    run(batches[:2], 1)
    with Measurement() as block:
        run(batches[2 : n + 2], 2)
    return block.figures | {"n": n}


def epoch():
    """An epoch of `train(objective="cells")`: steps over the training cells, scores of the validation part."""
    from gears.distributed._world import IDENTITY
    from gears.training._validation import validation_of

    model = HELD["model"]
    run = _engine(model)
    validation = validation_of(model.pert_data, "mse_top20_de")
    with Measurement() as block:
        run(model.pert_data.dataloader["train_loader"], 1)
        steps_cpu, _ = block.now()
        validation(model.model, IDENTITY)
    return block.figures | {"steps_cpu_s": steps_cpu}


class _Marks(logging.Handler):
    """CPU seconds at each line that a run logs after an evaluated epoch, and at the prior's scores (epoch 0)."""

    def __init__(self):
        super().__init__(logging.INFO)
        self.cpu, self.prior = [], []

    def emit(self, record):
        error = getattr(record, "scores", {}).get("val_mse_top20_de")
        if error is not None:
            self.prior = [{"epoch": 0, "cpu_s": cpu_seconds(), "mse_top20_de": error}]
        elif record.name == "gears.training._run" and record.getMessage().startswith("epoch"):
            self.cpu.append(cpu_seconds())


def train(objective, epochs):
    """Train a fresh model; its validation error by CPU seconds.

    ``"default"`` is `train()` as it is, with the prior; an objective is the network alone with it.
    `epochs` None leaves epochs, learning rate and schedule to the package.
    """
    initialise()
    model, marks = HELD["model"], _Marks()
    log = logging.getLogger("gears")
    log.setLevel(logging.INFO)
    log.addHandler(marks)
    numbers = {} if epochs is None else {"epochs": epochs, "lr": 1e-3, "schedule": "step", "weight_decay": 5e-4}
    how = {} if objective == "default" else {"objective": objective, "prior": None}
    try:
        with Measurement() as block:
            start = cpu_seconds()
            result = model.train(evaluate_test=False, **how, **numbers)
    finally:
        log.removeHandler(marks)
    scored = [record for record in result.history if "val_mse_top20_de" in record]
    history = [record | {"cpu_s": record["cpu_s"] - start} for record in marks.prior] + [
        {"epoch": record["epoch"], "cpu_s": cpu - start, "mse_top20_de": record["val_mse_top20_de"]}
        for record, cpu in zip(scored, marks.cpu, strict=True)
    ]
    HELD[objective] = model
    return block.figures | {"history": history, "epochs": len(result.history), "best_epoch": result.best_epoch}


def predict(conditions, out, objective):
    """Expression after each of some conditions (lists of genes)."""
    import numpy as np

    model = HELD[objective]
    conditions = json.loads(Path(conditions).read_text())
    with Measurement() as block:
        found = model.predict(conditions)
    np.savez(out, labels=np.array([c.name for c in found.conditions]), mean=found.expression_UG)
    return block.figures | {"n": len(conditions)}


def score(file):
    """Mean scores of predicted expression (npz: labels, and arrays (U, G)) against the screen's means.

    Predictions below zero count as zero on both sides.
    """
    import numpy as np

    from gears.conditions import Condition
    from gears.evaluation.metrics import condition_metrics
    from gears.evaluation.truth import Truth

    data = HELD["data"]
    found = np.load(file)
    conditions = [Condition.parse(str(label)) for label in found["labels"]]
    train = [condition for condition in data.split.conditions("train") if not condition.is_control]
    truth = Truth.of(data.screen, conditions, train)
    scores = {}
    for name in found.files:
        if name != "labels":
            values = condition_metrics(np.maximum(found[name].astype(float), 0), truth, SCORES)
            scores[name] = dict(zip(SCORES, np.nanmean(values, axis=0).tolist(), strict=True))
    return scores
