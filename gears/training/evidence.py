"""How much each gene of each condition counts in a loss: by how well its mean change is known."""

from __future__ import annotations

import numpy as np


def evidence_weights(
    delta_TG: np.ndarray, variance_G: np.ndarray, n_T: np.ndarray, n_C: np.ndarray
) -> np.ndarray:
    """Weights by reliability: the share of an observed change's variance that is not sampling noise.

    With signal variance s (one for all genes, so that genes that respond count as much as they respond) and
    a cell's variance v_g, the mean of n_c cells has weight s / (s + v_g / n_c).

    Parameters
    ----------
    delta_TG
        Changes of the training conditions against control, which say how strong signals are.
    variance_G
        Variance of a cell's expression within a condition.
    n_T, n_C
        Cells of the training conditions and of those that get weights.

    Returns
    -------
    numpy.ndarray
        (C, G) float32, mean 1 over training conditions and genes.
    """
    total, sampling = float((delta_TG**2).mean()), float((variance_G * (1 / n_T)[:, None]).mean())
    signal = max(total - sampling, 0.01 * total, np.finfo(np.float64).tiny)

    def reliability(n: np.ndarray) -> np.ndarray:
        return np.asarray(signal / (signal + variance_G / np.maximum(n, 1)[:, None]))

    return (reliability(n_C) / reliability(n_T).mean()).astype(np.float32)
