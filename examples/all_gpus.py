"""Train the GEARS network on every GPU of this machine; without one, on one CPU process, with a warning.

python examples/all_gpus.py
CUDA_VISIBLE_DEVICES=0,1 python examples/all_gpus.py      these two are then "every GPU"
"""

from __future__ import annotations

import argparse
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on every GPU.")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("all_gpus_output"))
    options = parser.parse_args()
    from gears import train_multi_gpu
    from gears.simulate import simulate_to_h5ad

    folder = options.folder
    simulate_to_h5ad(
        folder / "screen.h5ad", n_genes=60, n_singles=12, n_pairs=8, cells_per_condition=20, overwrite=True
    )
    result = train_multi_gpu(  # neither n_gpus nor gpu_ids: every GPU that is visible
        folder,
        "screen",
        {"split": "simulation", "seed": 1},
        {"save_path": folder / "model", "epochs": options.epochs, "prior": None},  # the network alone
        data_config={"default_pert_graph": False},
    )
    print(f"{result.world_size} worker(s) on {', '.join(result.devices)}; best epoch {result.best_epoch}")


# Worker processes import this file again: what starts them must be guarded.
if __name__ == "__main__":
    main()
