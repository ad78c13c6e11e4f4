"""GO graph and co-expression graph of a screen, cached in its folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gears.graphs.coexpression import coexpression_graph
from gears.graphs.custom import GO_THRESHOLD
from gears.graphs.go import go_graph
from gears.graphs.graph import Graph, cached_graph

if TYPE_CHECKING:
    from gears.model.config import ModelConfig
    from gears.pertdata import PertData

COEXPRESSION_CELLS = 100_000
"""Training cells that the co-expression graph is computed from, at most: a correlation is then known to 0.003.

Without effect where ``coexpress_cells=None`` asks for all cells."""


def go_graph_of(pert_data: PertData, config: ModelConfig, nodes: tuple[str, ...]) -> Graph:
    annotation, k = pert_data.annotation, config.num_similar_genes_go_graph
    key = {
        "graph": "go",
        "annotation": annotation.content_hash,
        "nodes": nodes,
        "k": k,
        "threshold": GO_THRESHOLD,
    }
    folder = pert_data.screen.folder / "graphs"
    return cached_graph(folder, key, lambda: go_graph(annotation, nodes, threshold=GO_THRESHOLD, k=k))


def coexpression_graph_of(pert_data: PertData, config: ModelConfig) -> Graph:
    """Over the training cells (all cells where the split holds nothing out); of very many, evenly spaced ones."""
    screen, split, n_drawn = pert_data.screen, pert_data.split, config.coexpress_cells
    k, threshold = config.num_similar_genes_co_express_graph, config.coexpress_threshold
    train = (
        split.conditions("train") if split is not None and "train" in split.parts else list(screen.conditions)
    )
    ids = np.sort([screen.id_of(condition) for condition in train])
    key = {
        "graph": "coexpression",
        "screen": screen.content_hash,
        "conditions": [int(index) for index in ids],
        "k": k,
        "threshold": threshold,
        "n_drawn": n_drawn,
        "most_cells": None if n_drawn is None else COEXPRESSION_CELLS,
    }

    def build() -> Graph:
        rows = np.flatnonzero(np.isin(screen.cell_condition, ids))
        if n_drawn is not None and len(rows) > COEXPRESSION_CELLS:
            rows = rows[np.linspace(0, len(rows) - 1, COEXPRESSION_CELLS).astype(np.int64)]
        return coexpression_graph(
            screen.cells, screen.gene_names, rows=rows, threshold=threshold, k=k, n_drawn=n_drawn
        )

    return cached_graph(screen.folder / "graphs", key, build)
