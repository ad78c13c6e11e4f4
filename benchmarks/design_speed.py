"""CPU seconds and memory of choosing among many candidates.

    python benchmarks/design_speed.py
    python benchmarks/design_speed.py --tasks "suggest, interaction" --output benchmarks/results

All genes of the perturbation graph and 1,000,000 pairs, for "interaction" 20,000 pairs; 300 measured genes.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
from accuracy import COMMON
from design import fitted, markdown, quiet
from measuring import Measurement, command, commit, machine

from gears import PertData
from gears.design import all_pairs, hits, suggest
from gears.files.formats import write_text
from gears.simulate import simulated_screen

TASKS = ("suggest, information", "suggest, effect", "suggest, interaction", "hits of a gene")


def main() -> None:
    """One line per function and number of candidates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    quiet()
    adata, _ = simulated_screen(**COMMON | {"n_genes": 300, "n_singles": 100, "n_pairs": 0})
    with tempfile.TemporaryDirectory() as folder:
        data = PertData(folder)
        data.new_data_process("screen", adata)
        model = fitted(data, [one for one in data.screen.conditions if not one.is_control], [])
        genes, gene = model.pert_list, model.gene_list[0]
        whole: dict[str, Callable[[], Any]] = {
            f"{len(genes):,} genes": lambda: genes,
            "1,000,000 pairs": lambda: islice(all_pairs(genes[:1415]), 10**6),
        }
        some: dict[str, Callable[[], Any]] = {"20,000 pairs": lambda: islice(all_pairs(genes[:201]), 20_000)}
        functions: dict[str, tuple[dict[str, Callable[[], Any]], Callable[[Any], Any]]] = {
            "suggest, information": (whole, lambda these: suggest(model, these, 10)),
            "suggest, effect": (whole, lambda these: suggest(model, these, 10, "effect", threshold=0.1)),
            "suggest, interaction": (some, lambda these: suggest(model, these, 10, "interaction")),
            "hits of a gene": (whole, lambda these: hits(model, these, threshold=0.1, readout=gene)),
        }
        rows = []
        for task in options.tasks:
            sizes, run = functions[task]
            for name, make in sizes.items():
                with Measurement() as block:
                    run(make())
                rows.append(
                    {"task": task, "candidates": name}
                    | {key: float(f"{value:.3g}") for key, value in block.figures.items()}
                )
                print(rows[-1], flush=True)
    if options.output:
        lines = ["# What choosing costs", "", f"{machine()['cpu']}, commit {commit('.')}, `{command()}`", ""]
        table = pd.DataFrame(rows).set_index("task")
        write_text(options.output / "design_speed.md", "\n".join([*lines, *markdown(table)]) + "\n")


if __name__ == "__main__":
    main()
