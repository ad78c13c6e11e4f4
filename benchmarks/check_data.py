"""A simulated screen as arrays, batches of its cells, and the table: what the rows of `gpu_check.py` share.

Needs torch, numpy and scipy only. Modules that the package imports but these checks never
use (they read no h5ad file, start no workers) are stood in for where they are not installed.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import math
import sys
import time
import types
from types import SimpleNamespace

import numpy as np

SIZES = {
    # 91,205 cells x 5,045 genes, 284 conditions with the control; the cells drawn stand for all in turn
    "norman": {"n_genes": 5045, "n_singles": 131, "n_pairs": 152, "n_cells": 91_205, "distinct": 12_000},
    "small": {"n_genes": 80, "n_singles": 12, "n_pairs": 10, "n_cells": 900},
}
HIDDEN = {"norman": 64, "small": 16}

UNUSED = ("cloudpickle", "filelock", "pandas", "networkx")


class _StandIn(types.ModuleType):
    """A module in which every name is a class that nobody uses."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def stand_in_for_missing():
    """Names of the modules that were stood in for."""
    missing = [name for name in UNUSED if importlib.util.find_spec(name) is None]
    for name in missing:
        sys.modules[name] = _StandIn(name)
        # others look modules up by their spec, as torch.compile does; one without is an error
        sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)
    return missing


def normalised(graph):
    """The graph with D^-1/2 A D^-1/2, as a saved model holds it: torch-geometric computes it elsewhere."""
    (source, target), n = graph.edge_index, len(graph.nodes)
    loop = source == target
    self_weight = np.ones(n)
    self_weight[source[loop]] = graph.weight[loop]
    degree = self_weight + np.bincount(target[~loop], graph.weight[~loop], n)
    weight = graph.weight[~loop] / np.sqrt(degree[source[~loop]] * degree[target[~loop]])
    arrays = {
        "nodes": np.array(graph.nodes), "edge_index": graph.edge_index, "weight": graph.weight,
        "normalised_weight": np.concatenate([weight, self_weight / degree]),
    }  # fmt: skip
    return type(graph).from_arrays(arrays)


class Screen:
    """Arrays of a simulated screen: cells, conditions, their nodes, moments and graphs."""

    def __init__(self, *, n_genes, n_singles, n_pairs, n_cells, seed=1, distinct=None):
        from gears.graphs._annotation import GeneAnnotation
        from gears.graphs._coexpression import coexpression_graph
        from gears.graphs._go import go_graph
        from gears.simulate._options import SimulationOptions
        from gears.simulate._screen import Simulation

        n_conditions = n_singles + n_pairs
        each = max(4, int(0.92 * n_cells / n_conditions))
        options = SimulationOptions(
            n_genes=n_genes, n_singles=n_singles, n_pairs=n_pairs, cells_per_condition=each,
            n_control=max(20, n_cells - each * n_conditions), counts_per_gene=0.5, seed=seed,
        )  # fmt: skip
        self.annotation = GeneAnnotation.human()
        simulation = Simulation(options, annotation=self.annotation)
        wanted = simulation.n_cells
        # cells are in random order: the first ones stand for all where drawing all would take too long
        drawn = wanted if distinct is None else min(wanted, distinct)
        self.cells = simulation.expression(simulation.counts(0, drawn))
        self.condition = np.asarray(simulation._condition_N[:drawn], dtype=np.int64)
        self.row_of = np.arange(wanted) % drawn
        design = simulation._design
        self.genes, self.conditions = tuple(design.genes), list(design.conditions)
        self.control_cells = np.flatnonzero(self.condition == 0)
        perturbed = set(design.perturbed)
        self.nodes = tuple(sorted({*self.genes, *perturbed}))
        index = {gene: node for node, gene in enumerate(self.nodes)}
        self.condition_nodes = [[index[gene] for gene in c.genes] for c in self.conditions]
        self.go = normalised(go_graph(self.annotation, self.nodes, k=20))
        some = np.sort(np.random.default_rng(seed).permutation(drawn)[:8000])
        self.coexpress = normalised(coexpression_graph(self.cells[some], self.genes, threshold=0.1, k=20))
        self.statistics = self._statistics()

    def _statistics(self):
        from gears.data.screen._moments import condition_moments
        from gears.data.screen._statistics import ConditionStatistics, moment_tables

        moments = condition_moments(self.cells, self.condition, len(self.conditions), control_id=0)
        return ConditionStatistics(
            **dict(moment_tables(moments)), control_of=np.zeros(len(self.conditions), dtype=np.int64)
        )

    def parts(self, hidden_size, **options):
        """The model without its weights."""
        from gears.graphs._custom import Graphs
        from gears.model._folder import ModelParts
        from gears.model.config import ModelConfig

        return ModelParts(
            config=ModelConfig(hidden_size=hidden_size, **options),
            gene_names=self.genes, gene_ids=self.genes, pert_names=self.nodes,
            graphs=Graphs(lambda: self.go, lambda: self.coexpress), control_mean_G=self.statistics.mean[0],
        )  # fmt: skip

    def tables(self, device, dtype):
        """Condition tables on a device."""
        from gears.training._tasks import ConditionTables

        statistics = self.statistics
        return ConditionTables.build(
            self.condition_nodes,
            np.ones(statistics.mean.shape, dtype=bool),
            statistics.mean[0],
            device=device,
            dtype=dtype,
        )

    def pairs(self):
        """Moments over pairs of cells."""
        from gears.training._tasks import PairTables

        return PairTables(self.statistics, "smooth")

    def held_out(self):
        """Every eighth condition is for validation, the others train."""
        return np.arange(1, len(self.conditions))[::8]

    @property
    def validation(self):
        """Scorer of the held-out conditions."""
        return HeldOut(self)

    def cell_loader(self, batch_size, *, steps=None, seed=0):
        """Batches of training cells with control partners."""
        train = np.flatnonzero(~np.isin(self.condition[self.row_of], self.held_out()))
        return CellBatches(self, train, batch_size, steps, seed)

    def condition_loader(self, per_step=32, **workers):
        """Batches of training conditions; `workers` are rank and world size."""
        from gears.training._batches import ConditionLoader

        ids = np.setdiff1d(np.arange(len(self.conditions)), self.held_out())
        return ConditionLoader(ids, per_step, seed=1, **workers)


class HeldOut:
    """Mean squared error of the held-out condition means, called like the package's own validation."""

    monitor = SimpleNamespace(name="mse", higher_is_better=False)
    prior = None

    def __init__(self, screen):
        self.screen, self.rows = screen, screen.held_out()
        self.n_conditions = len(self.rows)

    def __call__(self, network, reducer):
        from gears.prediction._stream import predict_changes
        from gears.training._workers import unwrap

        screen = self.screen
        nodes = [screen.condition_nodes[row] for row in self.rows]
        delta_UG = predict_changes(unwrap(network), nodes).delta_UG
        truth_UG = screen.statistics.mean[self.rows] - screen.statistics.mean[0]
        error_U = ((delta_UG - truth_UG) ** 2).mean(axis=1)
        self.condition_scores = error_U[None]
        return {"val_mse": float(error_U.mean())}


class CellBatch(SimpleNamespace):
    """Cells with control cells."""

    of_workers = None

    def __len__(self):
        return len(self.condition)


class CellBatches:
    """Shuffled batches from a CSR matrix; an epoch is every cell once, or the first `steps` batches."""

    def __init__(self, screen, cells, batch_size, steps, seed):
        self.screen, self.cells, self.batch_size, self.seed, self.epoch = screen, cells, batch_size, seed, 0
        whole = len(cells) // batch_size
        self.steps = whole if steps is None else min(steps, whole)
        self.per_step = batch_size

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.steps

    def __iter__(self):
        import torch

        screen = self.screen
        draw = np.random.default_rng([self.seed, self.epoch])
        order = screen.row_of[self.cells[draw.permutation(len(self.cells))]]
        for step in range(self.steps):
            rows = order[step * self.batch_size : (step + 1) * self.batch_size]
            partners = screen.control_cells[draw.integers(0, len(screen.control_cells), len(rows))]
            values = torch.from_numpy(screen.cells[np.concatenate((partners, rows))].toarray())
            x_BG, y_BG = values.split(len(rows))
            condition = torch.from_numpy(screen.condition[rows])
            yield CellBatch(condition=condition, x_BG=x_BG, y_BG=y_BG)


def train(
    screen,
    hidden,
    device,
    objective,
    *,
    batch_size=32,
    steps=None,
    model=None,
    workers=None,
    **options,
):
    """One run by the package's own training: history and weights.

    `steps` batches of cells make an epoch; `model` are options of the network, `workers` rank and world size.
    """
    import torch

    from gears.training._run import Run
    from gears.training.options import TrainOptions

    parts = screen.parts(hidden, **(model or {}))
    epochs = options.pop("epochs", 1)
    given = TrainOptions(
        objective=objective, epochs=epochs, monitor="mse", verbose=False, schedule="constant", **options
    )
    if objective == "cells":
        loader = screen.cell_loader(batch_size, steps=steps)
    else:
        loader = screen.condition_loader(**(workers or {}))
    run = Run(
        parts.network(seed=1), screen.tables, screen.pairs, loader, parts,
        given.with_defaults(batch_size), screen.validation,
        device=torch.device(device),
    )  # fmt: skip
    with run.reported():
        run.engine.train(**run.training)
    return run.result()


def losses(run):
    """Training losses by epoch, and the last validation error."""
    return [record["train_loss"] for record in run.history] + [run.history[-1]["val_mse"]]


# --- the table ------------------------------------------------------------------------------------


class NotRunError(Exception):
    """Why a row cannot be run here."""


class Table:
    """Rows of (what, figure, verdict), printed and written to a file as they come."""

    def __init__(self, facts=None, path=None, *, seconds=math.inf, quiet=False):
        self.facts, self.path, self.quiet = facts or {}, path, quiet
        self.rows, self.seconds, self.began = [], seconds, time.perf_counter()

    def add(self, what, figure, verdict=""):
        self.rows.append({"what": what, "figure": figure, "verdict": verdict})
        if not self.quiet:
            print(f"{what:<62}{figure:>26}  {verdict}", flush=True)
        if self.path is not None:
            self.path.write_text(json.dumps({**self.facts, "table": self.rows}, indent=1) + "\n")

    def compare(self, what, found, expected, bound):
        """A relative difference that must stay within a bound."""
        difference = max(abs(a - b) / max(abs(b), 1e-12) for a, b in zip(found, expected, strict=True))
        self.add(what, f"{difference:.1e} (<= {bound:g})", "ok" if difference <= bound else "FAILED")

    def run(self, what, check, *arguments):
        """Let a check add its rows; one that raises, or cannot be run, is a row as well."""
        if self.elapsed > self.seconds:
            self.add(what, "", f"not run: {self.elapsed / 60:.1f} minutes are over")
            return
        try:
            check(self, *arguments)
        except NotRunError as reason:
            self.add(what, "", f"not run: {reason}")
        except Exception as error:
            first = str(error).splitlines()[0][:150] if str(error) else ""
            self.add(what, type(error).__name__, f"FAILED: {first}")

    @property
    def elapsed(self):
        return time.perf_counter() - self.began

    @property
    def failed(self):
        return any(row["verdict"].startswith("FAILED") for row in self.rows)


class Setting:
    """Device, size and screens of the checks; the large screen is simulated when it is first used."""

    def __init__(self, device, size, published=None):
        self.device, self.size, self.published = device, size, published
        self.hidden = HIDDEN[size]
        self.small = Screen(**SIZES["small"])
        self._screen = self.small if size == "small" else None

    @property
    def screen(self):
        if self._screen is None:
            self._screen = Screen(**SIZES[self.size])
        return self._screen

    def need_gpu(self):
        """Raise NotRunError without a GPU."""
        if self.device != "cuda":
            raise NotRunError("no GPU")


def need(*names):
    """Raise NotRunError where a package is missing."""
    missing = [
        name for name in names
        if (name in sys.modules and not hasattr(sys.modules[name], "__file__"))
        or (name not in sys.modules and importlib.util.find_spec(name) is None)
    ]  # fmt: skip
    if missing:
        raise NotRunError(f"{' and '.join(missing)} not installed")
