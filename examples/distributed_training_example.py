"""Train a small classifier, which has nothing to do with GEARS, on the engine that GEARS uses.

python examples/distributed_training_example.py --distributed --world-size 2 --use-ema
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.utils.data import TensorDataset

from gears.train_distributed import distributed_train_worker, launch_distributed_training


def make_model() -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2, generator=generator)
    return model


def make_data(n_samples: int, seed: int) -> TensorDataset:
    """Three classes told apart by the largest of three noisy sums of features."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n_samples, 10, generator=generator)
    scores = torch.stack([x[:, i : i + 4].sum(dim=1) for i in (0, 3, 6)], dim=1)
    noise = torch.randn(scores.shape, generator=generator)
    return TensorDataset(x, (scores + 0.5 * noise).argmax(dim=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--distributed", action="store_true", help="start worker processes")
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--use-amp", action="store_true")
    parser.add_argument("--use-ema", action="store_true")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32, help="samples per worker and step")
    parser.add_argument("--lr", type=float, default=0.01)
    options = parser.parse_args()

    lr = options.lr
    settings = {
        "model_fn": make_model,
        "optimizer_fn": lambda parameters: torch.optim.Adam(parameters, lr=lr),
        "criterion_fn": nn.CrossEntropyLoss,
        "train_dataset": lambda: make_data(2048, seed=1),
        "val_dataset": lambda: make_data(512, seed=2),
        "batch_size": options.batch_size,
        "engine_kwargs": {"use_amp": options.use_amp, "use_ema": options.use_ema, "ema_decay": 0.9},
        "train_kwargs": {"num_epochs": options.epochs},
    }
    if options.distributed:
        result = launch_distributed_training(distributed_train_worker, options.world_size, **settings)
    else:
        result = distributed_train_worker(0, 1, **settings)
    for record in result["history"]:
        print(
            f"epoch {record['epoch']}: train loss {record['train_loss']:.6f}, validation loss {record['val_loss']:.6f}"
        )
    print(f"workers: {result['world_size']}")


if __name__ == "__main__":
    main()
