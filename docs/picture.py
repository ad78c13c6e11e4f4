"""The pictures of the README and of the first page: the model against the baselines, and conditions one by one.

python docs/picture.py                picture.png and conditions.png in docs/_static are written again
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from gears import GEARS, PertData, simulated_screen

STATIC = Path(__file__).parent / "_static"
PICTURES = {"verdict": "picture.png", "conditions": "conditions.png"}


def main(folder: Path) -> None:
    """Train on a simulated screen with the defaults, and keep two figures of its report."""
    adata, _ = simulated_screen(
        n_genes=200,
        n_singles=36,
        n_pairs=36,
        cells_per_condition=40,
        n_control=300,
        effect_size=0.8,
        target_effect=-0.8,
        interaction_share=0.4,
        seed=4,
    )
    made = Path(tempfile.mkdtemp())
    pert_data = PertData(made, default_pert_graph=False)
    pert_data.new_data_process("simulated", adata)
    pert_data.prepare_split(split="simulation", seed=1)
    model = GEARS(pert_data, device="cpu")
    model.model_initialize(hidden_size=32)
    model.train(epochs=10, verbose=False)
    model.evaluate("test", report=made / "report")
    for name, written in PICTURES.items():
        (folder / written).write_bytes((made / "report" / "figures" / f"{name}.png").read_bytes())


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else STATIC)
