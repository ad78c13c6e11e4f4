"""Small simulated screens for the scripts of this folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gears import PertData
from gears.simulate import simulate_to_h5ad

SIZES: dict[str, dict[str, Any]] = {
    "small": {"n_genes": 80, "n_singles": 14, "n_pairs": 8, "cells_per_condition": 12, "n_control": 100},
    "lines": {
        "n_genes": 60, "n_singles": 10, "n_pairs": 4, "cells_per_condition": 16, "n_control": 120,
        "cell_types": 2, "n_batches": 2,
    },
    "counted": {"n_genes": 120, "n_singles": 60, "n_pairs": 40, "cells_per_condition": 24, "n_control": 200},
}  # fmt: skip
READING: dict[str, dict[str, Any]] = {"lines": {"context_key": "cell_type", "match_controls_by": ["batch"]}}


def screen_file(folder: Path, name: str, **more: Any) -> Path:
    """The h5ad file of a screen, simulated where it is missing; "lines" has two cell types and batches."""
    path = folder / f"{name}.h5ad"
    if not path.exists():
        simulate_to_h5ad(path, seed=1, **(SIZES[name] | more))
    return path


def prepared(folder: Path, name: str = "small", *, batch_size: int = 16, **more: Any) -> PertData:
    """A screen ready to train on."""
    data = PertData(folder, default_pert_graph=False)
    data.load(data_path=screen_file(folder, name, **more), **READING.get(name, {}))
    data.prepare_split(split="simulation", seed=1)
    data.get_dataloader(batch_size=batch_size)
    return data
