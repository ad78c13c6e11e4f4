"""Read model folders of cell-gears: options, graphs and weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gears.files._paths import user_path
from gears.files._untrusted import load_tensors
from gears.files.formats import MANIFEST, read_tensors
from gears.graphs._custom import Graphs
from gears.graphs._graph import Graph
from gears.model._folder import WEIGHTS, ModelParts, published_state
from gears.model.config import published_config
from gears.pertdata import PertData

CONFIG = "config.pkl"


def is_published(path: str | Path) -> bool:
    """Whether a folder is a model that cell-gears saved."""
    folder = user_path(path)
    return (folder / CONFIG).is_file() and not (folder / MANIFEST).exists()


def read_published_of(path: str | Path, pert_data: PertData | None) -> ModelParts:
    """:func:`read_published` with the names of a screen; ValueError without one."""
    if pert_data is None:
        msg = (
            f"{path} is a model of cell-gears, which holds no names: load it with GEARS(pert_data) and "
            "load_pretrained(path), or with gears.published.load_cell_gears_model(path, ...)"
        )
        raise ValueError(msg)
    return read_published(path, *screen_names(pert_data))


def read_published(
    path: str | Path, gene_names: Sequence[str], pert_names: Sequence[str], control_mean_G: np.ndarray
) -> ModelParts:
    """Everything of a published model except its weights, which ``load_weights`` reads.

    The folder has ``config.pkl`` and ``model.pt``, no code in which is run. It does not hold the names of the measured
    genes and of the nodes of the perturbation graph, nor the mean of the control cells, from which predictions start.
    """
    folder = user_path(path)
    config = load_tensors(folder / CONFIG)
    if not isinstance(config, Mapping):
        msg = f"{folder / CONFIG} holds {type(config).__name__}; expected the options of a model, a dict"
        raise ValueError(msg)
    n_genes, n_perts = _sizes(folder)
    _check_length(folder, "measured genes", "gene_names", n_genes, gene_names)
    _check_length(folder, "perturbable genes", "pert_names", n_perts, pert_names)
    _check_length(folder, "measured genes", "control_mean", n_genes, control_mean_G)
    genes, nodes = tuple(map(str, gene_names)), tuple(map(str, pert_names))
    plain = {str(key): value.item() if isinstance(value, np.generic) else value for key, value in config.items()}
    go = _go_graph(folder, config, nodes)
    # the published network sends co-expression messages to the first cell of a batch only: the others see none
    coexpress = Graph(genes, np.empty((2, 0), dtype=np.int64), np.empty(0))
    return ModelParts(
        config=published_config(plain),
        gene_names=genes,
        gene_ids=genes,
        pert_names=nodes,
        graphs=Graphs(lambda: go, lambda: coexpress),
        control_mean_G=np.asarray(control_mean_G, dtype=np.float64),
        provenance={"converted_from": "cell-gears"},
    )


def _sizes(folder: Path) -> tuple[int, int]:
    """Numbers of measured and of perturbable genes, from the weights (a config may lack them)."""
    state = published_state(read_tensors(folder / WEIGHTS))
    try:
        return len(state["gene_emb.weight"]), len(state["pert_emb.weight"])
    except KeyError as error:
        msg = f"{folder / WEIGHTS} holds no weights of GEARS: {error} is missing"
        raise ValueError(msg) from error


def _check_length(folder: Path, what: str, name: str, expected: int, values: Sequence[Any] | np.ndarray) -> None:
    if len(values) != expected:
        msg = (
            f"the model {folder} has {expected} {what}, {name} holds {len(values)}; give those of the screen that it "
            "was trained on, in its order (gears.published.load_cell_gears_folder reads the folder of that screen)"
        )
        raise ValueError(msg)


def _go_graph(folder: Path, config: Mapping[str, Any], nodes: tuple[str, ...]) -> Graph:
    edges, weight = config.get("G_go"), config.get("G_go_weight")
    if not isinstance(edges, torch.Tensor) or not isinstance(weight, torch.Tensor):
        msg = f"{folder / CONFIG} has no G_go and G_go_weight, the graph over the perturbable genes"
        raise ValueError(msg)
    return Graph(nodes, edges.long().numpy(), weight.double().numpy())


def screen_names(pert_data: PertData) -> tuple[Sequence[str], Sequence[str], np.ndarray]:
    """Measured genes, nodes of the perturbation graph and control mean of a screen, in their order."""
    screen = pert_data.screen
    mean_G = np.asarray(screen.statistics.mean[screen.control_id], dtype=np.float64)
    return list(map(str, screen.gene_names)), list(map(str, pert_data.pert_names)), mean_G
