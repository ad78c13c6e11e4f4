"""Training another model through factories: the same on one process and on two."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from gears.distributed import current_world
from gears.train_distributed import distributed_train_worker, launch_distributed_training


def settings(batch_size: int, differ: bool = False) -> dict:
    def model() -> nn.Module:
        generator = torch.Generator().manual_seed(current_world().rank if differ else 0)
        layer = nn.Linear(4, 2, dtype=torch.float64)
        for parameter in layer.parameters():
            nn.init.normal_(parameter, generator=generator)
        return layer

    def data() -> TensorDataset:
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(64, 4, generator=generator, dtype=torch.float64)
        return TensorDataset(x, (x[:, 0] > 0).long())

    return {
        "model_fn": model,
        "optimizer_fn": lambda parameters: torch.optim.Adam(parameters, lr=0.05),
        "criterion_fn": nn.CrossEntropyLoss,
        "scheduler_fn": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9),
        "train_dataset": data,
        "val_dataset": data(),
        "batch_size": batch_size,
        "engine_kwargs": {"use_ema": True, "ema_decay": 0.5},
        "train_kwargs": {"num_epochs": 3},
    }


def worker(rank: int, world_size: int, **arguments: Any) -> Any:
    """What two workers leave, where models that differ at the start are refused."""
    result = distributed_train_worker(rank, world_size, **arguments)
    with pytest.raises(RuntimeError, match="the workers' models differ in weight, bias"):
        distributed_train_worker(rank, world_size, **settings(8, differ=True))
    return result


def test_factories_on_one_and_two_workers(quick_workers: None) -> None:
    one = distributed_train_worker(0, 1, **settings(16))
    two = launch_distributed_training(worker, 2, device="cpu", **settings(8))
    assert two["world_size"] == 2
    for key, value in one["weights"].items():
        assert torch.allclose(value, two["weights"][key], atol=1e-12, rtol=0), key
    for left, right in zip(one["history"], two["history"], strict=True):
        assert left["val_loss"] == pytest.approx(right["val_loss"], abs=1e-12)
