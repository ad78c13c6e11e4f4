"""Several models side by side, one per GPU (or CPU process), and their predictions as one.

python examples/ensemble.py --seeds 1 2 3 4
python examples/ensemble.py --cpu --seeds 1 2
"""

from __future__ import annotations

import argparse
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description="An ensemble of models.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--gpu-ids", type=int, nargs="+", help="GPUs to use; all of them if omitted")
    parser.add_argument("--cpu", action="store_true", help="CPU processes, as many at a time as there are cores")
    parser.add_argument("--folder", type=Path, default=Path("ensemble_output"))
    options = parser.parse_args()
    from gears import Ensemble
    from gears.simulate import simulate_to_h5ad

    folder = options.folder
    simulate_to_h5ad(
        folder / "screen.h5ad", n_genes=60, n_singles=12, n_pairs=8, cells_per_condition=20, overwrite=True
    )
    config = {
        "pert_data_path": folder,
        "dataset_name": "screen",
        "split_config": {"split": "simulation", "seed": 1},
        "args": {"epochs": 3, "prior": None, "model_config": {"hidden_size": 16}, "verbose": False},
        "data_config": {"default_pert_graph": False},
    }
    device = "cpu" if options.cpu else None
    ensemble = Ensemble.train(config, options.seeds, folder / "models", gpu_ids=options.gpu_ids, device=device)
    gene = ensemble.pert_list[0]
    predictions = ensemble.predict([gene])
    spread = predictions.to_frame("spread").iloc[0]
    print(f"{ensemble!r}; after {gene} the models are furthest apart in {spread.idxmax()} ({spread.max():.3f})")


# Worker processes import this file again: what starts them must be guarded.
if __name__ == "__main__":
    main()
