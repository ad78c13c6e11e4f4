"""Does a gene change at all? How well predictions rank the genes that do, and how right their probabilities are."""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr

from gears.evaluation._rows import changes
from gears.evaluation.metrics._decisive import changed_genes
from gears.evaluation.metrics._published import SHARE
from gears.evaluation.metrics._registry import register_table
from gears.evaluation.truth import Truth

CHANGED = 0.1
"""Change of mean log expression beyond which a gene counts as changed: about 10 %."""


def average_precision_changed(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """mean over the truly changed genes g of the share of changed ones among the genes with |m - c| >= |m_g - c_g|

    Changed by moderated t at 5 % false discoveries; perturbed genes are excluded. Genes that tie count as ranked
    together. The share of changed genes is chance. NaN for a condition without changed genes.
    """
    size_UG = np.abs(changes(predicted_UG, truth.control_mean_G)[0])
    changed_UG, value_U = changed_genes(truth), np.full(len(predicted_UG), np.nan)
    for row, targets in enumerate(truth.targets):
        changed_G, size_G = np.delete(changed_UG[row], targets), np.delete(size_UG[row], targets)
        if changed_G.any():
            order = np.argsort(-size_G, kind="stable")
            hits_G, sizes_G = np.cumsum(changed_G[order]), size_G[order]
            last_G = np.searchsorted(-sizes_G, -sizes_G, side="right") - 1  # of the genes that tie
            value_U[row] = (hits_G[last_G] / (last_G + 1))[changed_G[order]].mean()
    return value_U


def brier_changed(predicted_UG: np.ndarray, truth: Truth, sd_UG: np.ndarray) -> np.ndarray:
    """mean over genes of (p - 1[|mu - c| > 0.1])^2, p the probability of that by a Gaussian about m - c of variance
    sd^2 + v / n, v the variance of the condition's n cells

    Perturbed genes are excluded.
    """
    noise_UG = np.nan_to_num(truth.std_UG**2 / np.maximum(truth.n_cells_U, 1)[:, None])
    total_UG = np.sqrt(np.maximum(sd_UG**2 + noise_UG, np.finfo(float).tiny))
    change_UG = predicted_UG - truth.control_mean_G
    p_UG = ndtr((change_UG - CHANGED) / total_UG) + ndtr((-change_UG - CHANGED) / total_UG)
    error_UG = (p_UG - (np.abs(truth.delta_UG) > CHANGED)) ** 2
    return np.array([np.delete(row_G, genes).mean() for row_G, genes in zip(error_UG, truth.targets, strict=True)])


register_table(
    ("average_precision_changed", average_precision_changed, "higher", SHARE,
     "standard; area under precision and recall of the genes that change"),
    ("brier_changed", brier_changed, "lower", SHARE,
     "Brier 1950; the probability is that of a measured change of more than 0.1", "needs_sd"),
)  # fmt: skip
