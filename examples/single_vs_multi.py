"""One worker with batches of 24 conditions and two workers with 12 each train the same network.

python examples/single_vs_multi.py
python examples/single_vs_multi.py --gpus          GPU 0 against GPUs 0 and 1
"""

from __future__ import annotations

import argparse
from pathlib import Path

GLOBAL_BATCH = 24


def main() -> None:
    parser = argparse.ArgumentParser(description="One worker against two.")
    parser.add_argument("--gpus", action="store_true", help="GPUs instead of CPU processes")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("single_vs_multi_output"))
    options = parser.parse_args()
    from gears import GEARS, train_multi_gpu
    from gears.simulate import simulate_to_h5ad

    folder = options.folder
    simulate_to_h5ad(
        folder / "screen.h5ad", n_genes=60, n_singles=12, n_pairs=8, cells_per_condition=20, overwrite=True
    )
    results, models = {}, {}
    for workers in (1, 2):
        place = folder / f"workers{workers}"
        results[workers] = train_multi_gpu(
            folder,
            "screen",
            {"split": "simulation", "seed": 1},
            {
                "save_path": place,
                "epochs": options.epochs,
                "prior": None,  # the network alone, so that predictions are its own
                "batch_size": GLOBAL_BATCH // workers,
                "dtype": "float64",  # float32 differs by the rounding of sums in another order
                "model_config": {"hidden_size": 16},
                "verbose": False,
            },
            gpu_ids=list(range(workers)) if options.gpus else None,
            n_gpus=workers,
            device=None if options.gpus else "cpu",
            data_config={"default_pert_graph": False},
        )
        models[workers] = GEARS.from_pretrained(place, device="cpu")
    for one, two in zip(results[1].history, results[2].history, strict=True):
        print(f"epoch {one['epoch']}: train loss {one['train_loss']:.12f} and {two['train_loss']:.12f}")
    gene = models[1].pert_list[0]
    apart = abs(models[1].predict([gene])[gene] - models[2].predict([gene])[gene]).max()
    print(f"predictions differ by at most {apart:.1e}")
    for workers, result in results.items():
        seconds = result.history[-1]["seconds"]
        shown = f"{seconds['total']:.2f} s an epoch, {seconds['communication']:.2f} s of it communication"
        print(f"{workers} worker(s): {shown}")


# Worker processes import this file again: what starts them must be guarded.
if __name__ == "__main__":
    main()
