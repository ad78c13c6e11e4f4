"""The calls that users of cell-gears know, in one process, on a small simulated screen.

python examples/basic.py [folder]
"""

from __future__ import annotations

import sys
from pathlib import Path

from gears import GEARS, PertData, simulated_screen


def main(folder: Path) -> None:
    adata, _ = simulated_screen(n_genes=100, n_singles=16, n_pairs=12, cells_per_condition=20, n_control=80)

    pert_data = PertData(folder, default_pert_graph=False)  # True: every annotated gene can be perturbed
    pert_data.new_data_process("simulated", adata)
    pert_data.prepare_split(split="simulation", seed=1)

    model = GEARS(pert_data, device="cpu")
    model.model_initialize()
    model.train()  # ends with a table beside simple baselines
    model.save_model(folder / "model")

    first, second = pert_data.screen.perturbed_genes[:2]
    predictions = model.predict([[first], [first, second]])
    print(predictions.top(3).round(3).to_string(index=False))
    print(f"expression of {len(predictions[f'{first}_{second}'])} genes after {first}+{second}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "basic_output"))
