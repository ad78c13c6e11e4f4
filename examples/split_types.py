"""What each kind of split holds out, on a small simulated screen.

python examples/split_types.py
"""

from __future__ import annotations

import sys
from pathlib import Path

from gears import PertData, simulated_screen


def main(folder: Path) -> None:
    adata, _ = simulated_screen(n_genes=60, n_singles=16, n_pairs=12, cells_per_condition=10, n_control=40)
    pert_data = PertData(folder, default_pert_graph=False)
    pert_data.new_data_process("simulated", adata)
    gene = pert_data.screen.perturbed_genes[0]
    some = [condition.name for condition in pert_data.screen.conditions if not condition.is_control]
    kinds = {
        "simulation": {},  # unseen genes, and combinations with 0, 1 or 2 seen genes
        "simulation_single": {},  # single genes only
        "combo_seen0": {},
        "combo_seen1": {},
        "combo_seen2": {},
        "single": {},
        "no_test": {},
        "no_split": {},
        "simulation, one gene held out": {"split": "simulation", "test_perts": [gene], "only_test_set_perts": True},
        "custom": {"split_dict": {"train": ["ctrl", *some[4:]], "val": some[:2], "test": some[2:4]}},
    }
    for name, arguments in kinds.items():
        summary = pert_data.prepare_split(**{"split": name, "seed": 1, **arguments})
        sizes = summary.groupby("part").size().to_dict()
        print(f"{name:<32}" + "  ".join(f"{part} {n}" for part, n in sizes.items()))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "split_types_output"))
