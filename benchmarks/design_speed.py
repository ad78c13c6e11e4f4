"""CPU seconds and memory of choosing among many candidates.

python benchmarks/design_speed.py           (20,000 genes and 1,000,000 pairs; information, hits, interactions)
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from itertools import islice
from typing import Any

from accuracy import COMMON
from design import fitted, quiet
from measuring import Measurement

from gears import PertData
from gears.design import all_pairs, hits, suggest
from gears.simulate import simulated_screen


def main() -> None:
    """One line per function and number of candidates."""
    quiet()
    adata, _ = simulated_screen(**COMMON | {"n_genes": 300, "n_singles": 100, "n_pairs": 0})
    with tempfile.TemporaryDirectory() as folder:
        data = PertData(folder)
        data.new_data_process("screen", adata)
        model = fitted(data, [one for one in data.screen.conditions if not one.is_control], [])
        genes, gene = model.pert_list, model.gene_list[0]
        candidates: dict[str, Callable[[], Any]] = {
            f"{len(genes)} genes": lambda: genes,
            "1,000,000 pairs": lambda: islice(all_pairs(genes[:1415]), 10**6),
        }
        tasks: dict[str, Callable[[Any], Any]] = {
            "suggest, information": lambda some: suggest(model, some, 10),
            "suggest, effect": lambda some: suggest(model, some, 10, "effect", threshold=0.1),
            "hits of a gene": lambda some: hits(model, some, threshold=0.1, readout=gene),
        }
        for task, run in tasks.items():
            for name, make in candidates.items():
                with Measurement() as block:
                    began = time.perf_counter()
                    run(make())
                    seconds = time.perf_counter() - began
                figures = {key: round(value, 1) for key, value in block.figures.items()}
                print(f"{task}, {name}: {seconds:.1f} s, {figures}", flush=True)


if __name__ == "__main__":
    main()
