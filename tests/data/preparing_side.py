"""What the processes of the cache tests do: prepare, split and build a graph in one folder. No torch here."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np

STAGES = ("cells/indptr.npy", "statistics/m3.npy", "perturb_processed.h5ad", "screen.json", "manifest.json", "swap")
"""Files whose writing or last check a preparation does not outlive; the swap is that of the whole folder."""


def prepare_all(source: str, folder: str, seed: int) -> tuple[str, str, str]:
    """Everything that training needs, as each of several processes would ask for it; hashes of what came out."""
    from anndata import read_h5ad

    from gears.data.screen.prepare import prepare_screen
    from gears.data.splits import prepare_split
    from gears.graphs import cached_graph, coexpression_graph

    screen = prepare_screen(read_h5ad(source), Path(folder) / "toy")
    split = prepare_split(screen, "simulation", seed=seed)
    trained = np.flatnonzero(np.isin(screen.cell_condition, [screen.id_of(c) for c in split.conditions("train")]))
    graph = cached_graph(
        screen.folder / "graphs",
        {"split": split.hash, "screen": screen.content_hash},
        lambda: coexpression_graph(screen.cells.csr(trained), screen.gene_names, threshold=0.1, k=5),
    )
    return screen.content_hash, split.hash, graph.hash


def prepare_and_die(source: str, folder: str, stage: str) -> None:
    """Prepare a screen, and be killed without warning at a stage of the writing."""
    from anndata import read_h5ad

    from gears.data.screen.prepare import prepare_screen
    from gears.files import _atomic

    target = str(Path(folder) / "toy")

    def die(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open":
            path = str(arguments[0])
            reached = ".tmp" in path and path.endswith(stage)
        else:  # the old folder is aside, the new one not yet in place
            reached = event == "os.rename" and stage == "swap" and str(arguments[1]) == target
        if reached:
            os.kill(os.getpid(), signal.SIGKILL)

    if stage == "swap":
        _atomic._exchange = lambda *_: False  # as on a system that cannot swap two names in one step
    adata = read_h5ad(source)
    sys.addaudithook(die)
    prepare_screen(adata, target)
