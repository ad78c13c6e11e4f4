"""Training over moments from one call (any number of workers: test_exactness.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from anndata import AnnData
from small_models import network_of

from gears import PertData
from gears.jobs._job import TrainingJob

SPLIT = {"split": "simulation", "seed": 3}  # trains on 7 conditions
DATA = {"default_pert_graph": False}


@pytest.fixture(scope="module")
def screens(tmp_path_factory: pytest.TempPathFactory, small_screen: tuple[AnnData, Any]) -> Path:
    folder = tmp_path_factory.mktemp("screens")
    PertData(folder, **DATA).new_data_process("small", small_screen[0].copy())
    return folder


def opened(folder: Path) -> PertData:
    pert_data = PertData(folder, **DATA)
    pert_data.load("small")
    pert_data.prepare_split(**SPLIT)
    return pert_data


def trained(pert_data: PertData, **options: Any):
    model = network_of(pert_data)
    return model, model.train(**{"verbose": False, "evaluate_test": False, "prior": None, **options})


@pytest.mark.long
@pytest.mark.parametrize("objective", ["cells", "moments"])
def test_the_published_call_learns_in_20_epochs(screens: Path, objective: str) -> None:
    """Batch size 32, 20 epochs, the learning rate of each objective."""
    pert_data = opened(screens)
    pert_data.get_dataloader(batch_size=32, test_batch_size=128)
    _, result = trained(pert_data, epochs=20, objective=objective)
    assert len(result.history) == 20
    no_change = network_of(pert_data, no_perturb=True)
    nothing = no_change.train(steps=1, verbose=False, evaluate_test=False).history[-1]["val_mse_top20_de"]
    assert min(record["val_mse_top20_de"] for record in result.history) < nothing


def test_no_loader_is_needed_and_epochs_are_evaluated_now_and_then(screens: Path, tmp_path: Path) -> None:
    pert_data = opened(screens)
    assert pert_data.dataloader is None
    path = tmp_path / "model"
    options = {"objective": "moments", "eval_every": 2, "checkpoint_every": 4, "save_path": str(path)}
    _, result = trained(pert_data, epochs=5, **options)
    assert [record["epoch"] for record in result.history if "val_mse" in record] == [2, 4, 5]
    assert result.best_epoch in (2, 4, 5)
    assert all("train_loss" in record for record in result.history)
    kept = [file.name[:11] for file in sorted((path / "checkpoints").iterdir())]
    assert kept == ["epoch-00004", "epoch-00005"]
    assert len((path / "metrics.jsonl").read_text().splitlines()) == 5
    assert pert_data.dataloader is None


def test_loaders_batch_size_counts_conditions_and_cells_make_their_own_and_refuse_two_sizes(screens: Path) -> None:
    states = []
    for options in ({}, {"batch_size": 5}):
        pert_data = opened(screens)
        if not options:
            pert_data.get_dataloader(5)
        states.append(trained(pert_data, steps=3, objective="moments", **options)[0].model.state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    trained(pert_data, steps=1, objective="cells", batch_size=16)
    assert pert_data.dataloader["train_loader"].batch_size == 16
    with pytest.raises(ValueError, match="batches of 16 cells"):
        trained(pert_data, steps=1, objective="cells", batch_size=8)


def test_a_job_over_moments_may_have_more_workers_than_batches(screens: Path, tmp_path: Path) -> None:
    args = {"save_path": str(tmp_path / "m"), "batch_size": 5000, "model_config": {"hidden_size": 8}}
    job = TrainingJob.check(screens, "small", SPLIT, args | {"objective": "moments"}, DATA)
    job.prepare(world_size=3)
    with pytest.raises(ValueError, match="training cells"):
        TrainingJob.check(screens, "small", SPLIT, args | {"objective": "cells"}, DATA).prepare(world_size=3)
