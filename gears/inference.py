"""Home of the published names of ``gears.inference``: predict a loader's cells, and analyse the results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gears.evaluation.published import (
    compute_metrics,
    deeper_analysis,
    non_dropout_analysis,
    non_zero_analysis,
)

__all__ = ["compute_metrics", "deeper_analysis", "evaluate", "non_dropout_analysis", "non_zero_analysis"]


def evaluate(
    loader: Iterable[Any], model: Any, uncertainty: bool = False, device: Any = "cpu"
) -> dict[str, Any]:
    """Predict every cell of a loader.

    Parameters
    ----------
    loader
        Yields cell batches.
    model
        Such as ``GEARS.best_model``, or any module that is called with a batch and gives the cells' expression
        (B, G); it is put into evaluation mode and on `device`.
    uncertainty
        Whether the module gives a pair, with log-variances, returned as ``logvar``.
    device
        Where to compute.

    Returns
    -------
    dict
        ``pert_cat`` (N,) the screen's own labels, ``pred`` and ``truth``
        (N, G), ``pred_de`` and ``truth_de`` (N, 20) over the top genes (NaN
        for control cells), and ``logvar`` (N, G).
    """
    import torch

    model.eval()
    model.to(device)
    collected: dict[str, list[np.ndarray]] = {
        key: [] for key in ("pert_cat", "pred", "truth", "pred_de", "truth_de")
    }
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
    results = {key: np.concatenate(parts) for key, parts in collected.items()}
    results["pert_cat"] = results["pert_cat"].astype(str)
    return results


def _over_genes(values_BG: np.ndarray, gene_lists: Sequence[np.ndarray]) -> np.ndarray:
    lists = [np.asarray(genes, dtype=np.int64) for genes in gene_lists]
    picked = np.full((len(values_BG), max((len(genes) for genes in lists), default=0)), np.nan)
    for row, genes in enumerate(lists):
        known = genes >= 0
        picked[row, : len(genes)][known] = values_BG[row, genes[known]]
    return picked
