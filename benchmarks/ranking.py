"""All pairs of a saved model ranked in this process, and by worker processes, which give the same table to the bit.

    python benchmarks/run.py ranking                          100,000 pairs x 1,000 genes on 1 and 2 CPU workers
    python benchmarks/run.py ranking --pairs 100000 1000000   memory must not grow

Memory is the most that the process and its workers hold for themselves (both load the package); a worker's start is
part of its seconds.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from math import isqrt
from pathlib import Path
from unittest import mock

import pandas as pd
from measuring import Measurement, Result, table

from gears import GEARS, PertData
from gears.prediction.predictions import Predictions
from gears.simulate import simulated_screen


def largest(predictions: Predictions) -> object:
    """Mean size of the change, a score of every gene."""
    return abs(predictions.delta_UG).mean(axis=1)


def saved(folder: Path, genes: int) -> GEARS:
    """A model of a simulated screen, in which every gene can be perturbed."""
    screen, _ = simulated_screen(
        n_genes=genes, n_singles=genes // 10, n_pairs=genes // 20, cells_per_condition=20, n_control=200, seed=0
    )
    data = PertData(folder, default_pert_graph=False)
    data.new_data_process("screen", screen)
    data.prepare_split("simulation", seed=1)
    model = GEARS(data, device="cpu")
    model.model_initialize(hidden_size=8)
    model.train(verbose=False, evaluate_test=False, save_path=str(folder / "model"))
    return GEARS.from_pretrained(folder / "model", device="cpu")


def ranking(
    pairs: tuple[int, ...] = (100_000,), genes: int = 1000, workers: tuple[int, ...] = (1, 2)
) -> Iterator[Result]:
    """Yield the table after every number of pairs and workers."""
    rows: list[dict[str, object]] = []
    # the cache folder holds the blocks
    with tempfile.TemporaryDirectory() as place, mock.patch.dict(os.environ, {"XDG_CACHE_HOME": place}):
        model = saved(Path(place), max(genes, isqrt(2 * max(pairs)) + 1))
        for wanted in pairs:
            names = model.pert_list[: isqrt(2 * wanted) + 1]
            expected = None
            for n_at_once in (None, *workers):
                with Measurement() as block:
                    found = model.rank_pairs(largest, names, n_at_once=n_at_once)
                expected = found if expected is None else expected
                pd.testing.assert_frame_equal(found, expected, check_exact=True)
                figures = block.figures
                rows.append({
                    "pairs": len(names) * (len(names) - 1) // 2, "genes": model.num_genes,
                    "workers": "this process" if n_at_once is None else n_at_once,
                    "wall s": figures["wall_s"], "CPU s": figures["cpu_s"], "own MiB": figures["own_mb"],
                    "load": figures["load"], "same bits": True,
                })  # fmt: skip
                yield Result("Pairs ranked by worker processes", table(rows), {"rows": rows})
