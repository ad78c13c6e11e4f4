"""A custom script under torchrun: every process runs it, and one model is trained together.

torchrun --standalone --nproc_per_node=4 examples/torchrun_script.py        four GPUs (or CPU processes)
python examples/torchrun_script.py                                           alone
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gears import GEARS, PertData
from gears.simulate import simulate_to_h5ad


def main(folder: Path) -> None:
    launched = "RANK" in os.environ
    if int(os.environ.get("LOCAL_RANK", 0)) == 0 and not (folder / "screen.h5ad").exists():
        simulate_to_h5ad(
            folder / "screen.h5ad", n_genes=60, n_singles=12, n_pairs=8, cells_per_condition=20, overwrite=True
        )
    wait_for(folder / "screen.h5ad")

    pert_data = PertData(folder, default_pert_graph=False)
    pert_data.load(data_path=folder / "screen.h5ad")  # a lock lets one process prepare it
    pert_data.prepare_split(split="simulation", seed=1)

    model = GEARS(pert_data)
    model.model_initialize(hidden_size=16)
    result = model.train(epochs=3, prior=None, distributed=launched)
    model.save_model(folder / "model")  # written by rank 0
    if model.rank == 0:
        print(f"{model.world_size} worker(s), best epoch {result.best_epoch}")


def wait_for(path: Path) -> None:
    """Until rank 0 has written the file."""
    import time

    while not path.exists():
        time.sleep(0.2)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "torchrun_output"))
