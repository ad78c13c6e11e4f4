"""What one worker and several are compared in; runs in the tests' process and in spawned ones."""

import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from small_models import network_of
from torch import nn

from gears import GEARS, PertData
from gears.distributed import World, cleanup_ddp, join_group
from gears.files.formats import write_tensors
from gears.model._folder import build_parts
from gears.model.config import ModelConfig
from gears.training import TrainingEngine
from gears.training._batches import ConditionBatch
from gears.training._tasks import CellsTask, MomentsTask, PairTables, condition_tables
from gears.training._workers import plain_state

CPU = torch.device("cpu")
GLOBAL_BATCH = {"cells": 24, "moments": 12}
RUNS: dict[str, dict[str, Any]] = {
    "cells": {"objective": "cells", "model": "gears"},
    "cells, all options": {
        "objective": "cells", "accumulation_steps": 2, "use_ema": True, "ema_decay": 0.9, "weight_decay": 0.01,
        "clip_value": None, "clip_norm": 0.5, "warmup_steps": 5, "schedule": "cosine", "model": "nll",
    },
    "moments, with the prior": {"objective": "moments", "prior": "auto", "model": "gears", "eval_every": 2},
    "moments, all options": {
        "objective": "moments", "use_ema": True, "ema_decay": 0.9, "weight_decay": 0.01, "model": "nll",
    },
}  # fmt: skip
# What runs with four workers as well.
RUNS_OF_FOUR = ("cells, all options", "moments, all options")
MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "nll": {"uncertainty": True, "uncertainty_reg": 0.7, "num_go_gnn_layers": 2},
    "gears": {"uncertainty": True, "uncertainty_kind": "gears"},
}

# Which of 16 cells (or conditions) each of two workers has; see `sixteen` for what they are.
SPLITS: dict[str, tuple[list[int], list[int]]] = {
    "8 and 8": (list(range(0, 16, 2)), list(range(1, 16, 2))),
    "11 and 5": (list(range(11)), list(range(11, 16))),
    "16 and 0": (list(range(16)), []),
    "only controls on one": (list(range(4, 16)), [0, 1, 2, 3]),
    "singles and pairs apart": ([0, 1, *range(4, 10)], [2, 3, *range(10, 16)]),
}


@contextlib.contextmanager
def group(folder: Path, rank: int, world_size: int) -> Iterator[None]:
    """A process group of the first `world_size` workers."""
    store = torch.distributed.FileStore(str(folder / f"store{world_size}"), world_size)
    join_group(World(rank, rank, world_size, CPU), backend="gloo", store=store)
    try:
        yield
    finally:
        cleanup_ddp()


def opened(folder: Path) -> PertData:
    """The screen of the tests; enough conditions train for the head of the prior."""
    data = PertData(folder, default_pert_graph=False)
    data.load("small")
    labels = [label for label in data.screen.labels if label != "ctrl"]
    train = [label for label in labels if label not in labels[::4]]
    parts = {"train": ["ctrl", *train], "val": labels[:12:4], "test": labels[12::4]}
    data.prepare_split("custom", seed=3, split_dict=parts)
    return data


def run(data: PertData, name: str, rank: int = 0, world_size: int = 1, **more: Any) -> dict[str, Any]:
    """A whole run: weights as trained and as kept, history, best epoch, what the head of the prior is worth."""
    options = {
        "epochs": 2, "dtype": "float64", "verbose": False, "check_replicas": True, "prior": None, **RUNS[name], **more,
    }  # fmt: skip
    model = MODELS[options.pop("model", "plain")]
    size = GLOBAL_BATCH[options["objective"]] // world_size // options.get("accumulation_steps", 1)
    data.dataloader = {}
    gears = network_of(data, **model)
    data.get_dataloader_distributed(size, None, world_size, rank, 0)
    result = gears.train(**options, batch_size=size, evaluate_test=False)
    history = [{key: v for key, v in record.items() if key != "seconds"} for record in result.history]
    return {
        "weights": plain_state(gears.model),
        "kept": plain_state(gears.best_model),
        "history": history,
        "best_epoch": result.best_epoch,
        "head": {} if gears.parts.prior is None else gears.parts.prior.report["head"],
    }


def sixteen(data: PertData, objective: str) -> Any:
    """Sixteen rows: four of controls, then singles, then pairs (cells), or sixteen conditions."""
    screen = data.screen
    members = [len(condition.genes) for condition in screen.conditions]
    by_size = {size: [i for i, n in enumerate(members) if n == size] for size in (1, 2)}
    if objective == "moments":
        return torch.tensor([screen.control_id, *by_size[1][:9], *by_size[2][:6]])
    cells = [*screen.control_cells[:4]]
    for number, (size, take) in enumerate([(1, 3), (1, 2), (1, 1), (2, 4), (2, 1), (2, 1)]):
        cells += list(screen.cells_of(by_size[size][number])[:take])
    controls = screen.control_cells[7 : 7 + len(cells)]
    return SimpleNamespace(
        condition=torch.from_numpy(screen.cell_condition[cells].astype(np.int64)),
        x_BG=torch.from_numpy(screen.cells.rows(np.array(controls))),
        y_BG=torch.from_numpy(screen.cells.rows(np.array(cells))),
    )


def part_of(rows: Any, chosen: list[int], n_all: int) -> Any:
    index = torch.tensor(chosen, dtype=torch.int64)
    if isinstance(rows, torch.Tensor):
        return ConditionBatch(rows[index], n_all)
    return SimpleNamespace(**{key: value[index] for key, value in vars(rows).items()}, of_workers=None)


def task_of(data: PertData, objective: str, config: ModelConfig) -> CellsTask | MomentsTask:
    tables = condition_tables(data, CPU, torch.float64)
    if objective == "moments":
        return MomentsTask(tables, PairTables(data.screen.statistics, "smooth"), config, lambda *_: {}, monitor="mse")
    return CellsTask(tables, config, lambda *_: {}, monitor="mse")


class Additive(nn.Module):
    """A change and a log-variance per perturbed node, which add up: a model without batch norms."""

    def __init__(self, n_nodes: int, n_genes: int) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(3)
        self.effect_P2G = nn.Parameter(torch.randn(n_nodes, 2, n_genes, generator=draw, dtype=torch.float64))

    def forward(self, pert_row: Any, pert_node: Any, weight: Any, *, division: Any = None) -> Any:
        sums_U2G = self.effect_P2G.new_zeros(len(weight), *self.effect_P2G.shape[1:])
        sums_U2G = sums_U2G.index_add(0, pert_row, self.effect_P2G[pert_node])
        if division is not None:
            sums_U2G = sums_U2G.index_select(0, division.own_rows)
        return sums_U2G.unbind(1)


def stepped(
    data: PertData,
    objective: str,
    model: str,
    windows: list[list[list[int]]],
    rank: int = 0,
    world_size: int = 1,
    *,
    additive: bool = False,
) -> dict[str, torch.Tensor]:
    """Weights and buffers after one plain step of rate 1: their change is the gradient.

    Parameters
    ----------
    windows
        Rows of each worker's micro-batches.
    additive
        Train a model without batch norms instead of the network.
    """  # fmt: skip
    config = ModelConfig(hidden_size=8, **MODELS[model])
    parts = build_parts(data, config)
    network: nn.Module = parts.network(seed=3).double()
    if additive:
        network = Additive(len(parts.pert_names), len(parts.gene_names))
    engine = TrainingEngine(network, CPU, distributed=world_size > 1, accumulation_steps=len(windows[rank]))
    if not additive:
        network.reducer = engine.reducer  # type: ignore[assignment]
    rows, task = sixteen(data, objective), task_of(data, objective, config)
    sizes = [sum(map(len, batches)) for batches in zip(*windows, strict=True)]  # over all workers
    window = [part_of(rows, chosen, n) for chosen, n in zip(windows[rank], sizes, strict=True)]
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
    engine.train(window, None, optimizer, num_epochs=1, task=task)
    return plain_state(network)


ACCUMULATED_WINDOWS = {
    "whole": [[list(range(16))]],
    "micro-batches": [[[0, 1, 5], [6, 7], [12]], [[2, 8, 9, 10, 11], [3, 4], [13, 14, 15]]],
}
"""Three micro-batches on each of two workers against one batch."""


# With ``reproducible=True``; ``batch_size`` is that of all workers.
REPRODUCIBLE: dict[str, dict[str, Any]] = {
    "shards of cells": {
        "objective": "cells", "prior": None, "batch_size": 32, "clip_norm": 0.5, "use_ema": True,
        "accumulation_steps": 2, "model": MODELS["nll"],
    },
    "shards of moments": {"prior": None, "batch_size": 18, "use_amp": True},
    "shards, prior": {"batch_size": 18},
}  # fmt: skip


def reproduced(data: PertData, name: str, rank: int = 0, world_size: int = 1, **more: Any) -> dict[str, str]:
    """Checksums of a run's weights, history and predictions."""
    options = {"reproducible": True, "steps": 4, "verbose": False, "evaluate_test": False, **REPRODUCIBLE[name], **more}
    size = options.pop("batch_size") // world_size // options.get("accumulation_steps", 1)
    data.dataloader = {}
    if options.get("objective") == "cells":
        data.get_dataloader_distributed(size, None, world_size, rank, 0)
    gears = GEARS(data, device="cpu")
    gears.model_initialize(hidden_size=16, **options.pop("model", {}))
    result = gears.train(**options, batch_size=size)
    history = [{key: v for key, v in record.items() if key != "seconds"} for record in result.history]
    weights = [tensor for module in (gears.model, gears.best_model) for tensor in plain_state(module).values()]
    found = {
        "weights": b"".join(tensor.numpy().tobytes() for tensor in weights),
        "history": json.dumps(history).encode(),
        "predictions": gears.predict(gears.pert_list[:20]).delta_UG.tobytes(),
    }
    return {what: hashlib.sha256(values).hexdigest() for what, values in found.items()}


def failed_write(folder: Path, rank: int) -> str:
    """What a worker learns when rank 0 cannot write."""
    engine = TrainingEngine(torch.nn.Linear(2, 2), distributed=True)
    blocked = folder / "blocked"
    if rank == 0:
        blocked.write_text("a file where a folder should be")
    engine.reducer.sum(torch.zeros(1))  # the file is there before any worker goes on
    try:
        engine.save_checkpoint(blocked / "a.pt")
    except OSError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def work(rank: int, world_size: int, folder: str, results: str) -> None:
    """Everything that several workers do in the tests of this room, in one start of processes."""
    cleanup_ddp()
    out, data = Path(results), opened(Path(folder))
    for workers in (2, world_size):
        if rank >= workers:
            continue
        with group(out, rank, workers):
            names = RUNS if workers == 2 else RUNS_OF_FOUR
            found: dict[str, Any] = {name: run(data, name, rank, workers) for name in names}
            if workers == 2:
                found |= _with_two(data, out, rank)
            write_tensors(out / f"found-{workers}-{rank}.pt", found)


def _with_two(data: PertData, out: Path, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for objective in GLOBAL_BATCH:
        for name, parts in SPLITS.items():
            windows = [[part] for part in parts]
            found[f"{objective}: {name}"] = stepped(data, objective, "nll", windows, rank, 2)
        micro = ACCUMULATED_WINDOWS["micro-batches"]
        found[f"{objective}: accumulated"] = stepped(
            data, objective, "nll", micro, rank, 2, additive=True
        )  # fmt: skip
    two = {"save_path": str(out / "two"), "checkpoint_every_steps": 3, "keep_last": 100}
    found["two"] = run(data, "cells", rank, 2, **two)
    found["one, resumed by two"] = run(data, "cells", rank, 2, save_path=str(out / "cells"), resume=True)
    found["failed write"] = failed_write(out, rank)
    for name in REPRODUCIBLE:
        found[f"begun: {name}"] = reproduced(data, name, rank, 2)
        found[f"resumed: {name}"] = reproduced(data, name, rank, 2, save_path=str(out / name), resume=True)
    return found
