"""How far a predicted mean is known (sd, by the prior), and how far cells spread about it (cell_sd, by the network).

python examples/uncertainty.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from gears import GEARS, PertData, simulated_screen


def main(folder: Path) -> None:
    adata, _ = simulated_screen(n_genes=60, n_singles=12, n_pairs=8, cells_per_condition=20, n_control=60)
    pert_data = PertData(folder, default_pert_graph=False)
    pert_data.new_data_process("simulated", adata)
    pert_data.prepare_split(split="simulation", seed=1)

    model = GEARS(pert_data, device="cpu")
    model.model_initialize(hidden_size=16, uncertainty=True, uncertainty_reg=1.0)
    model.train(epochs=3)

    pair = "+".join(pert_data.screen.perturbed_genes[:2])
    predictions = model.predict([pair])
    change_G, sd_G, cell_sd_G = predictions.delta(pair), predictions.sd[0], predictions.cell_sd[0]
    print(f"{pair}: the genes whose mean change is known least")
    for gene in np.argsort(-sd_G)[:5]:
        name = predictions.gene_names[gene]
        print(f"{name}: {change_G[gene]:.3f} +- {sd_G[gene]:.3f}, cells spread by {cell_sd_G[gene]:.3f}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "uncertainty_output"))
