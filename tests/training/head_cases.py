"""Trainings of the head that the tests compare; runs in the tests' process and in spawned ones."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from exact_cases import group

from gears import PertData
from gears.distributed import World, cleanup_ddp
from gears.files.formats import write_tensors
from gears.priors._source import prior_of
from gears.training._head import TrainedHead, train_head
from gears.training.options import TrainOptions


def opened(folder: Path) -> PertData:
    """The screen of the tests with its split."""
    data = PertData(folder, default_pert_graph=False)
    data.load("small")
    data.prepare_split("simulation", train_gene_set_size=0.8, combo_seen2_train_frac=0.8, seed=3)
    return data


def trained(data: PertData, worker: World | None = None, **more: Any) -> TrainedHead:
    """The head of the prior, on the CPU."""
    fitted = prior_of(data)
    assert fitted is not None
    options = TrainOptions(**{"dtype": "float64", **more}).with_defaults()
    return train_head(data, fitted, options, worker or World())


def tables(found: TrainedHead) -> dict[str, torch.Tensor]:
    """What several workers must find alike."""
    head = found.fitted.prior.head  # type: ignore[union-attr]
    arrays = {} if head is None else head.arrays()
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()} | {
        "left_out": torch.from_numpy(np.array(found.fitted.left_out_CG))
    }


def work(rank: int, world_size: int, folder: str, results: str) -> None:
    """The same training by several workers."""
    cleanup_ddp()
    with group(Path(results), rank, world_size):
        found = trained(opened(Path(folder)), World(rank, rank, world_size))
    write_tensors(Path(results) / f"head-{rank}.pt", tables(found))
