"""Train the GEARS network on chosen GPUs, so that busy ones stay free, or on all of them.

python examples/chosen_gpus.py --gpu-ids 2 3 5 7      rank 0 on GPU 2, and so on
python examples/chosen_gpus.py --gpu-ids free:2       the two least busy ones (needs nvidia-ml-py)
python examples/chosen_gpus.py                        all GPUs that CUDA_VISIBLE_DEVICES leaves
python examples/chosen_gpus.py --cpu-workers 2        two CPU processes
"""

from __future__ import annotations

import argparse
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on chosen GPUs.")
    parser.add_argument("--gpu-ids", nargs="+", help="indices into the visible GPUs, or free:N")
    parser.add_argument("--cpu-workers", type=int, help="CPU processes instead of GPUs")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("chosen_gpus_output"))
    options = parser.parse_args()
    from gears import train_multi_gpu
    from gears.simulate import simulate_to_h5ad

    folder = options.folder
    simulate_to_h5ad(
        folder / "screen.h5ad", n_genes=60, n_singles=12, n_pairs=8, cells_per_condition=20, overwrite=True
    )
    gpu_ids = options.gpu_ids
    if gpu_ids is not None:
        gpu_ids = gpu_ids[0] if gpu_ids[0].startswith("free:") else [int(index) for index in gpu_ids]
    result = train_multi_gpu(
        folder,
        "screen",
        {"split": "simulation", "seed": 1},
        {"save_path": folder / "model", "epochs": options.epochs, "prior": None},  # the network alone
        gpu_ids=gpu_ids,
        n_gpus=options.cpu_workers,
        device="cpu" if options.cpu_workers else None,
        data_config={"default_pert_graph": False},
    )
    print(f"trained on {', '.join(result.devices)}; best epoch {result.best_epoch}")


# Worker processes import this file again: what starts them must be guarded.
if __name__ == "__main__":
    main()
