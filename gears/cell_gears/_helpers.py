"""Functions of cell-gears' ``gears.utils`` and of its ``gears.inference``: labels, gene graphs, losses, predictions.

``gears/cell_gears/_moved.py`` lists those that do not exist any more and their replacements.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from gears.conditions import CONTROL_LABEL, Condition, split_label
from gears.core._messages import unknown_name
from gears.data.reading._download import download_file
from gears.evaluation.interactions import interaction_scores
from gears.files._paths import user_path
from gears.graphs._annotation import GeneAnnotation
from gears.graphs._coexpression import coexpression_graph
from gears.graphs._go import go_graph
from gears.graphs._graph import Graph
from gears.graphs._nodes import read_gene_set
from gears.model._losses import cell_loss
from gears.model.config import ModelConfig

if TYPE_CHECKING:
    import networkx
    from anndata import AnnData

    from gears.data._loaders import CellBatch


def parse_single_pert(label: str) -> str:
    """The gene of a single-gene label, with the control token on either side.

    Examples
    --------
    >>> parse_single_pert("ctrl+AHR")
    'AHR'
    """
    genes = parse_any_pert(label)
    if len(genes) != 1:
        msg = f"expected a label with one perturbed gene, such as 'A+{CONTROL_LABEL}'; found {label!r}"
        raise ValueError(msg)
    return genes[0]


def parse_combo_pert(label: str) -> tuple[str, str]:
    """The two genes of a label, in its own order."""
    genes = parse_any_pert(label)
    if len(genes) != 2:
        msg = f"expected a label with two perturbed genes, such as 'A+B'; found {label!r}"
        raise ValueError(msg)
    return genes[0], genes[1]


def parse_any_pert(label: str) -> list[str]:
    """The perturbed genes of a label in its own order; an empty list for the control.

    Examples
    --------
    >>> parse_any_pert("KLF1+AHR"), parse_any_pert("ctrl")
    (['KLF1', 'AHR'], [])
    """
    return [token for token in split_label(label) if token != CONTROL_LABEL]


def get_genes_from_perts(perts: str | Iterable[str]) -> list[str]:
    """All genes that occur in some labels, sorted, without the control token."""
    labels = [perts] if isinstance(perts, str) else perts
    return sorted({gene for label in labels for gene in parse_any_pert(label)})


def filter_pert_in_go(condition: str, pert_names: Container[str]) -> bool:
    """Whether every perturbed gene of a label is among the nodes of the perturbation graph."""
    return all(gene in pert_names for gene in parse_any_pert(condition))


def get_mean_control(adata: AnnData) -> pd.Series:
    """Mean expression of the control cells by gene position."""
    control = np.array([Condition.parse(str(label)).is_control for label in adata.obs["condition"]])
    if not control.any():
        msg = f"adata.obs['condition'] has no control cells; expected some labelled {CONTROL_LABEL!r}"
        raise ValueError(msg)
    return pd.Series(np.asarray(adata.X[control].mean(axis=0, dtype=np.float64)).ravel())


def np_pearson_cor(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Correlations of the columns of `x`, (n,) or (n, a), with those of `y`, (a, b); NaN for a constant column."""
    x_na, y_nb = (np.asarray(v, dtype=np.float64).reshape(len(v), -1) for v in (x, y))
    x_na = x_na - x_na.mean(axis=0)
    y_nb = y_nb - y_nb.mean(axis=0)
    scale_ab = np.outer(np.linalg.norm(x_na, axis=0), np.linalg.norm(y_nb, axis=0))
    r_ab = np.divide(x_na.T @ y_nb, scale_ab, out=np.full(scale_ab.shape, np.nan), where=scale_ab > 0)
    return np.clip(r_ab, -1.0, 1.0)


def pert_flags(batch: CellBatch) -> Tensor:
    """Which measured genes are perturbed in each cell of a batch, (B, G) of 0 and 1.

    For models that use it beside the expression, which was ``x[:, 1]`` in batches of older
    releases. A perturbed gene that is not measured has no flag (``batch.unmeasured``).
    """
    return batch.pert_flags()


def get_GI_genes_idx(adata: AnnData, GI_gene_file: str | Path) -> np.ndarray:
    """Positions of the genes named in a file (text, or ``.npy`` of strings) among the measured genes."""
    names = set(read_gene_set(GI_gene_file))
    return np.flatnonzero([str(gene) in names for gene in adata.var["gene_name"]])


def get_GI_params(preds: Mapping[str, np.ndarray], combo: Sequence[str]) -> dict[str, float]:
    """Scores of the interaction of two genes, from changes over control under "A", "B" and "A_B"."""
    first, second = combo
    return interaction_scores(
        *(np.asarray(preds[key], dtype=np.float64) for key in (first, second, f"{first}_{second}"))
    )


def print_sys(s: object) -> None:
    """Print on stderr."""
    sys.stderr.write(f"{s}\n")


def dataverse_download(url: str, save_path: str | Path) -> None:
    """Download a file, unless `save_path` is there; published screens are downloaded by ``PertData.load(name)``."""
    path = user_path(save_path)
    if not path.exists():
        download_file(url, path.parent, path.name)


def evaluate(loader: Iterable[Any], model: Any, uncertainty: bool = False, device: Any = "cpu") -> dict[str, Any]:
    """Predict every cell of a loader.

    Parameters
    ----------
    model
        Such as ``GEARS.best_model``, or any module that returns the expression (B, G) of a batch of cells; it is put
        into evaluation mode and moved to `device`.
    uncertainty
        Whether the module returns a pair, with log-variances, which are returned as ``logvar``.

    Returns
    -------
    dict
        ``pert_cat`` (N,) labels as written in the screen, ``pred`` and ``truth`` (N, G), ``pred_de`` and ``truth_de``
        (N, 20) over the top genes (NaN for control cells), and ``logvar`` (N, G).
    """
    model.eval()
    model.to(device)
    collected: list[dict[str, np.ndarray]] = []
    for batch in loader:
        batch = batch.to(device)
        with torch.no_grad():
            out = model(batch)
        pred = (out[0] if uncertainty else out).cpu().numpy()
        truth = batch.y.cpu().numpy()
        top = {"pred_de": _over_genes(pred, batch.de_idx), "truth_de": _over_genes(truth, batch.de_idx)}
        collected.append({"pert_cat": np.array(batch.pert, dtype=object), "pred": pred, "truth": truth, **top})
        if uncertainty:
            collected[-1]["logvar"] = out[1].cpu().numpy()
    results = {key: np.concatenate([arrays[key] for arrays in collected]) for key in collected[0]}
    results["pert_cat"] = results["pert_cat"].astype(str)
    return results


def _over_genes(values_BG: np.ndarray, gene_lists: Sequence[np.ndarray]) -> np.ndarray:
    lists = [np.asarray(genes, dtype=np.int64) for genes in gene_lists]
    selected = np.full((len(values_BG), max((len(genes) for genes in lists), default=0)), np.nan)
    for row, genes in enumerate(lists):
        is_gene = genes >= 0
        selected[row, : len(genes)][is_gene] = values_BG[row, genes[is_gene]]
    return selected


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
    def edge_index(self) -> Tensor:
        """Sources and targets, (2, E)."""
        return torch.from_numpy(self._graph.edge_index.copy())

    @property
    def edge_weight(self) -> Tensor:
        """Weights, (E,)."""
        return torch.from_numpy(self._graph.weight.astype(np.float32))

    @property
    def G(self) -> networkx.DiGraph:
        """The graph with the edge attribute ``importance``."""
        import networkx

        edges = self._graph.to_frame().rename(columns={"weight": "importance"})
        graph = networkx.from_pandas_edgelist(edges, edge_attr="importance", create_using=networkx.DiGraph)
        graph.add_nodes_from(self.gene_list)  # those without an edge
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
