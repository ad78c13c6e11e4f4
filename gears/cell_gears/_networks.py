"""Gene graphs of cell-gears, edge tables and their tensors, and its loss functions, for steps written by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from gears.conditions import CONTROL_LABEL
from gears.core._messages import unknown_name
from gears.graphs._annotation import GeneAnnotation
from gears.graphs._coexpression import coexpression_graph
from gears.graphs._go import go_graph
from gears.graphs._graph import Graph
from gears.model._losses import cell_loss
from gears.model.config import ModelConfig

if TYPE_CHECKING:
    import networkx
    import torch
    from anndata import AnnData

KINDS = ("co-express", "go")


def get_similarity_network(
    network_type: str,
    adata: AnnData | None = None,
    threshold: float = 0.4,
    k: int = 20,
    data_path: Any = None,
    data_name: str | None = None,
    split: Any = None,
    seed: int | None = None,
    train_gene_set_size: float | None = None,
    set2conditions: Mapping[str, Sequence[str]] | None = None,
    default_pert_graph: bool = True,
    pert_list: Iterable[str] | None = None,
    *,
    gene2go: Mapping[str, Any] | None = None,
) -> pd.DataFrame:
    """Edges of a gene graph, built like those of the model.

    No file is read or written: `data_path`, `data_name`, `split`, `seed`, `train_gene_set_size`, which named files in
    cell-gears, and `default_pert_graph` have no effect.

    Parameters
    ----------
    network_type
        ``"co-express"``: correlation over all cells of ``set2conditions["train"]`` (published: controls and
        singles only); ``"go"``: shared GO terms of the genes in `pert_list`.
    adata
        The screen, for co-expression.
    threshold
        Smallest absolute correlation.
    k
        Neighbours per gene.
    set2conditions
        Parts of the split, for co-expression.
    pert_list
        Nodes, for GO.
    gene2go
        Annotation; by default the human one of the package.

    Returns
    -------
    pd.DataFrame
        Columns source, target, importance.
    """
    if network_type not in KINDS:
        raise ValueError(unknown_name("network_type", network_type, KINDS))
    if network_type == "go":
        if pert_list is None:
            msg = "network_type='go' needs pert_list, the genes of the graph, such as pert_data.pert_names"
            raise ValueError(msg)
        annotation = GeneAnnotation.human() if gene2go is None else GeneAnnotation.from_dict(gene2go)
        graph = go_graph(annotation, [str(gene) for gene in pert_list], k=k)
    else:
        if adata is None or set2conditions is None:
            msg = "network_type='co-express' needs adata and set2conditions, as a PertData has them"
            raise ValueError(msg)
        rows = np.flatnonzero(np.isin(adata.obs["condition"].astype(str), list(set2conditions["train"])))
        names = [str(gene) for gene in adata.var["gene_name"]]
        graph = coexpression_graph(adata.X[rows], names, threshold=threshold, k=k)
    return graph.to_frame().rename(columns={"weight": "importance"})


class GeneSimNetwork:
    """An edge table with its tensors.

    Parameters
    ----------
    edge_list
        Columns source, target, importance.
    gene_list
        Nodes; those without an edge are isolated.

    Attributes
    ----------
    edge_index, edge_weight
        (2, E) int64 and (E,) float32.
    G
        The graph as a ``networkx.DiGraph``.
    """

    def __init__(self, edge_list: pd.DataFrame, gene_list: Sequence[str], node_map: Mapping[str, int]) -> None:
        self.edge_list, self.gene_list = edge_list, list(gene_list)
        nodes = sorted(node_map, key=node_map.__getitem__)
        if [node_map[node] for node in nodes] != list(range(len(nodes))):
            msg = f"node_map must number its {len(nodes)} genes from 0 to {len(nodes) - 1}, each once"
            raise ValueError(msg)
        self._graph = Graph.from_frame(edge_list, nodes)

    @property
    def edge_index(self) -> torch.Tensor:
        """Sources and targets, (2, E)."""
        import torch

        return torch.from_numpy(self._graph.edge_index.copy())

    @property
    def edge_weight(self) -> torch.Tensor:
        """Weights, (E,)."""
        import torch

        return torch.from_numpy(self._graph.weight.astype(np.float32))

    @property
    def G(self) -> networkx.DiGraph:
        """The graph with the edge attribute ``importance``."""
        import networkx

        graph = networkx.DiGraph()
        graph.add_nodes_from(self.gene_list)
        names, (source, target) = self._graph.nodes, self._graph.edge_index
        edges = zip(source.tolist(), target.tolist(), self._graph.weight.tolist(), strict=True)
        graph.add_edges_from((names[i], names[j], {"importance": weight}) for i, j, weight in edges)
        return graph


def loss_fct(
    pred: Tensor,
    y: Tensor,
    perts: Sequence[str],
    ctrl: Tensor | None = None,
    direction_lambda: float = 1e-3,
    dict_filter: Mapping[str, np.ndarray] | None = None,
) -> Tensor:
    """The published objective of a batch of cells (:mod:`gears.model._losses`, ``direction="sign"``).

    Parameters
    ----------
    pred, y
        Predicted and observed expression, (B, G).
    perts
        Labels of the B cells.
    ctrl
        Mean of the control cells, (G,), relative to which directions are; 0 by default.
    direction_lambda
        Weight of the direction of changes.
    dict_filter
        Positions of the genes that count for each label but "ctrl", such as ``model.dict_filter``.
    """
    return _loss(pred, None, y, perts, ctrl, dict_filter, direction_lambda=direction_lambda)


def uncertainty_loss_fct(
    pred: Tensor,
    logvar: Tensor,
    y: Tensor,
    perts: Sequence[str],
    reg: float = 0.1,
    ctrl: Tensor | None = None,
    direction_lambda: float = 1e-3,
    dict_filter: Mapping[str, np.ndarray] | None = None,
) -> Tensor:
    """The same with log-variances, (B, G), weighted by `reg` (``uncertainty_kind="gears"``)."""
    options = {"uncertainty": True, "uncertainty_kind": "gears", "uncertainty_reg": reg}
    return _loss(pred, logvar, y, perts, ctrl, dict_filter, direction_lambda=direction_lambda, **options)


def _loss(
    pred: Tensor,
    logvar: Tensor | None,
    y: Tensor,
    perts: Sequence[str],
    ctrl: Tensor | None,
    dict_filter: Mapping[str, np.ndarray] | None,
    **options: Any,
) -> Tensor:
    """Mean over labels of the mean over their cells; the predicted expression takes the place of the change from 0."""
    cells, zero = Counter(perts), torch.zeros_like(y)
    mask_BG = torch.ones_like(y, dtype=torch.bool)
    for row, label in enumerate(perts):
        if dict_filter is not None and label != CONTROL_LABEL:
            mask_BG[row] = False
            mask_BG[row, torch.as_tensor(np.asarray(dict_filter[label]), device=y.device)] = True
    weight_B = torch.tensor([1 / (cells[label] * len(cells)) for label in perts], device=y.device)
    rows = torch.arange(len(perts), device=y.device)
    mean_G = zero[0] if ctrl is None else ctrl
    config = ModelConfig(direction="sign", **options)
    return cell_loss(pred, logvar, rows, zero, y, mask_BG, mean_G, weight_B, config)
