"""Trains, saves, loads and predicts again and again, and looks at what the process holds.

``python soaking.py FOLDER SECONDS`` goes on for so many seconds (at least one round) and prints a line of JSON:
rounds, and resident memory (MiB), open files, threads and child processes after the third round, now and then
(at most sixty times) and at the end. Every fiftieth round, the second first, trains with two worker processes.
"""

import gc
import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from readers import GENES

from gears import GEARS, PertData
from gears.simulate import simulated_screen
from gears.train_distributed import train_multi_gpu

WARM, WITH_WORKERS, LOOKS = 3, 50, 60


def held() -> dict[str, float]:
    gc.collect()
    process = psutil.Process()
    return {
        "memory": round(process.memory_info().rss / 2**20, 1),
        "files": process.num_fds(),
        "threads": process.num_threads(),
        "children": len(process.children(recursive=True)),
    }


def one_round(folder: Path, number: int) -> None:
    """All that a user does with a screen, into folders that are used again."""
    data = PertData(folder / "data", default_pert_graph=False)
    data.load("soak")
    data.prepare_split("simulation", seed=number % 3)
    data.get_dataloader(batch_size=32)
    model = GEARS(data, device="cpu")
    model.model_initialize(hidden_size=8)
    model.train(steps=2, verbose=False, objective=("moments", "cells")[number % 2], save_path=str(folder / "run"))
    model.save_model(folder / "saved")
    again = GEARS.from_pretrained(folder / "saved", device="cpu")
    asked = [[gene] for gene in again.pert_list[:10]]
    found = again.predict(asked).expression_UG
    assert np.array_equal(found, model.predict(asked).expression_UG)
    again.predict_to_file(asked, folder / "predicted.h5ad", overwrite=True)
    if number % WITH_WORKERS == 1:
        options = {"batch_size": 32, "steps": 2, "save_path": str(folder / "workers"), "verbose": False}
        train_multi_gpu(
            folder / "data", "soak", {"split": "simulation"}, options,
            n_gpus=2, device="cpu", data_config={"default_pert_graph": False},
        )  # fmt: skip


def main(folder: Path, seconds: float) -> dict[str, Any]:
    logging.getLogger("gears").setLevel(logging.ERROR)
    adata, _ = simulated_screen(n_genes=len(GENES), n_singles=8, n_pairs=4, cells_per_condition=8, n_control=30, seed=2)
    PertData(folder / "data", default_pert_graph=False).new_data_process("soak", adata)
    begun = time.monotonic()
    rounds, looks, warm = 0, [], held()
    while rounds == 0 or time.monotonic() - begun < seconds:
        one_round(folder, rounds)
        rounds += 1
        if rounds == WARM:
            warm = held()
        if time.monotonic() - begun > len(looks) * seconds / LOOKS:
            looks.append({"seconds": round(time.monotonic() - begun), "rounds": rounds, **held()})
    return {"rounds": rounds, "warm": warm, "end": held(), "looks": looks}


if __name__ == "__main__":
    print("FOUND " + json.dumps(main(Path(sys.argv[1]), float(sys.argv[2]))))
