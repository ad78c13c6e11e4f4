"""Helper functions of cell-gears' ``gears.utils`` and ``gears.inference``.

``gears/cell_gears/_moved.py`` lists those that do not exist any more and their replacements.
"""

from __future__ import annotations

import sys
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gears.conditions import CONTROL_LABEL, Condition, split_label
from gears.data.reading._download import download_file
from gears.evaluation.interactions import interaction_scores
from gears.files._paths import user_path
from gears.graphs._nodes import read_gene_set

if TYPE_CHECKING:
    import pandas as pd
    import torch
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
    import pandas as pd

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


def pert_flags(batch: CellBatch) -> torch.Tensor:
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
    import torch

    model.eval()
    model.to(device)
    collected: dict[str, list[np.ndarray]] = {key: [] for key in ("pert_cat", "pred", "truth", "pred_de", "truth_de")}
    if uncertainty:
        collected["logvar"] = []
    for batch in loader:
        batch = batch.to(device)
        with torch.no_grad():
            out = model(batch)
        pred = (out[0] if uncertainty else out).cpu().numpy()
        truth = batch.y.cpu().numpy()
        collected["pert_cat"].append(np.array(batch.pert, dtype=object))
        collected["pred"].append(pred)
        collected["truth"].append(truth)
        collected["pred_de"].append(_over_genes(pred, batch.de_idx))
        collected["truth_de"].append(_over_genes(truth, batch.de_idx))
        if uncertainty:
            collected["logvar"].append(out[1].cpu().numpy())
    results = {key: np.concatenate(arrays) for key, arrays in collected.items()}
    results["pert_cat"] = results["pert_cat"].astype(str)
    return results


def _over_genes(values_BG: np.ndarray, gene_lists: Sequence[np.ndarray]) -> np.ndarray:
    lists = [np.asarray(genes, dtype=np.int64) for genes in gene_lists]
    selected = np.full((len(values_BG), max((len(genes) for genes in lists), default=0)), np.nan)
    for row, genes in enumerate(lists):
        is_gene = genes >= 0
        selected[row, : len(genes)][is_gene] = values_BG[row, genes[is_gene]]
    return selected
