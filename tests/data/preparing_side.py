"""What the processes of the cache tests do: prepare, split and build a graph in one folder. No torch here."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np

STAGES = ("cells", "statistics", "h5ad", "tables", "manifest", "swap")


def prepare_all(source: str, folder: str, seed: int) -> tuple[str, str, str]:
    """Everything that training needs, as each of several processes would ask for it; hashes of what came out."""
    from gears.data.reading._matrix import read_screen
    from gears.data.screen.prepare import prepare_screen
    from gears.data.splits import prepare_split
    from gears.graphs import cached_graph, coexpression_graph

    screen = prepare_screen(read_screen(source), Path(folder) / "toy")
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
    from gears.data.reading._matrix import read_screen
    from gears.data.screen import _files as writing
    from gears.data.screen import prepare
    from gears.files import formats

    def die(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if stage == "cells":
        writing.CellMatrix.write = staticmethod(die)  # type: ignore[method-assign]
    elif stage == "statistics":
        writing.moment_blocks = die  # type: ignore[assignment]
    elif stage == "h5ad":
        writing._write_h5ad = die
    elif stage == "tables":
        writing.write_json = die  # type: ignore[assignment]
    elif stage == "manifest":
        formats.write_json = die  # type: ignore[assignment]
    else:
        from gears.files import _atomic as atomic

        atomic._exchange = lambda *_: False  # as on a system that cannot swap two names in one step
        real_rename = os.rename

        def rename(old: object, new: object) -> None:
            if str(new) == str(Path(folder) / "toy"):  # the old folder is aside, the new one not yet in place
                die()
            real_rename(old, new)  # type: ignore[arg-type]

        os.rename = rename  # type: ignore[assignment]
    prepare.prepare_screen(read_screen(source), Path(folder) / "toy")
