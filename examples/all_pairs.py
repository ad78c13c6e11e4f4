"""Screen every pair of genes with a trained model: rank them by a score, and keep all predictions in a file.

python examples/all_pairs.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from gears import GEARS, PertData, simulated_screen
from gears.prediction.predictions import Predictions


def main(folder: Path) -> None:
    adata, _ = simulated_screen(n_genes=60, n_singles=14, n_pairs=10, cells_per_condition=20, n_control=80)
    pert_data = PertData(folder, default_pert_graph=False)
    pert_data.new_data_process("simulated", adata)
    pert_data.prepare_split(split="no_test", seed=1)
    model = GEARS(pert_data, device="cpu")
    model.model_initialize(hidden_size=16)
    model.train(epochs=3, verbose=False)

    # Which pairs move these genes up, and the others least? Any function of a chunk of predictions will do.
    wanted = [model.gene_list.index(gene) for gene in model.gene_list[:3]]

    def score(predictions: Predictions) -> np.ndarray:
        delta_UG = predictions.delta_UG
        others = np.delete(delta_UG, wanted, axis=1)
        return delta_UG[:, wanted].mean(axis=1) - np.abs(others).mean(axis=1)

    best = model.rank_pairs(score, top=5)  # pairs of the genes perturbed in training; only the best are kept
    print(best.round(3).to_string(index=False))

    path = model.predict_to_file(model.pairs(), folder / "pairs.h5ad", overwrite=True)  # written chunk by chunk
    n_genes = len(pert_data.screen.perturbed_genes)
    print(f"all {n_genes * (n_genes - 1) // 2} pairs: {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "all_pairs_output"))
