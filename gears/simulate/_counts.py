"""Negative-binomial counts of blocks of cells, and their expected log-expression."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats
from scipy.interpolate import CubicSpline

from gears.simulate._design import stage_generator
from gears.simulate._options import SimulationOptions

# Cells that share a random generator. Constant, so that counts do not depend on the size of chunks.
BLOCK = 256
_GRID_POINTS, _NODES, _EXACT_COUNTS = 128, 9, 128
_CHUNK = 256


def draw_block(options: SimulationOptions, share_BG: np.ndarray, block: int) -> np.ndarray:
    """Counts of one block of cells, (cells, G) int64; its number determines the draw together with the seed.

    `share_BG` is the expected share of each gene in its cell's counts; rows sum to 1.
    """
    rng = stage_generator(options.seed, "cells", block)
    sd = options.library_sd
    library_B = options.mean_library * np.exp(sd * rng.standard_normal(len(share_BG)) - sd**2 / 2)
    mean_BG = share_BG * library_B[:, None]
    if options.dispersion > 0:
        mean_BG *= rng.standard_gamma(1 / options.dispersion, size=mean_BG.shape) * options.dispersion
    return rng.poisson(mean_BG)


def softmax(log_share: np.ndarray) -> np.ndarray:
    """Shares along the last axis."""
    share = np.exp(log_share - log_share.max(axis=-1, keepdims=True))
    return share / share.sum(axis=-1, keepdims=True)


def expected_expression(options: SimulationOptions, share: np.ndarray) -> np.ndarray:
    """E[log1p(mean library x count / total)] of genes with the given expected shares, positive, of any shape.

    The expectation runs over library size (Gauss-Hermite) and count (sum over its distribution; bins beyond 128). The
    cell's total is the count itself plus the *expected* counts of the other genes, which is exact up to the relative
    variance of that sum: below 1 % from some hundred genes on.
    """
    log_share = np.log(share)
    low, high = float(log_share.min()), float(log_share.max())
    if high - low < 1e-9:
        return np.full(share.shape, _expectation(options, np.array([math.exp(low)]))[0])
    grid = np.linspace(low, high, _GRID_POINTS)
    return CubicSpline(grid, _expectation(options, np.exp(grid)))(log_share)


def expected_over_cells(
    options: SimulationOptions, log_share_CG: np.ndarray, change_DG: np.ndarray
) -> np.ndarray:
    """Mean of :func:`expected_expression`, (C, G), over cells whose log shares vary about those of their condition.

    Each row of `change_DG` is a cell, whose shares are the softmax of ``log_share + change``; the rows are symmetric
    about 0. The log of a share, change minus log of the sum, is taken to be normal over cells, with the mean and
    variance that the rows give, so that the expectation is by Gauss-Hermite and not over D x C x G values. The
    difference to the mean over the rows is below 0.003 (root mean square over genes) where the s.d. of the changes is
    at most 0.5.
    """
    node_N, weight_N = np.polynomial.hermite.hermgauss(_NODES)
    factor_DG, variance_G = np.exp(change_DG), change_DG.var(axis=0)
    result_CG = np.empty(log_share_CG.shape)
    for start in range(0, len(log_share_CG), _CHUNK):
        chunk_BG = np.log(softmax(log_share_CG[start : start + _CHUNK]))
        total_DB = np.log(factor_DG @ np.exp(chunk_BG).T)
        mean_B1 = total_DB.mean(axis=0)[:, None]
        centred_DB = total_DB - mean_B1.T
        covariance_BG = centred_DB.T @ change_DG / len(change_DG)
        variance_BG = variance_G - 2 * covariance_BG + (centred_DB**2).mean(axis=0)[:, None]
        sd_BG = np.sqrt(np.maximum(variance_BG, 0))
        log_BGN = (chunk_BG - mean_B1)[..., None] + math.sqrt(2) * sd_BG[..., None] * node_N
        value_BGN = expected_expression(options, np.exp(np.minimum(log_BGN, 0)))
        result_CG[start : start + _CHUNK] = value_BGN @ weight_N / math.sqrt(math.pi)
    return result_CG


def _expectation(options: SimulationOptions, share_S: np.ndarray) -> np.ndarray:
    sd = options.library_sd
    node_L, weight_L = np.polynomial.hermite.hermgauss(_NODES if sd > 0 else 1)
    library_L = options.mean_library * np.exp(math.sqrt(2) * sd * node_L - sd**2 / 2)
    mean_SL = share_S[:, None] * library_L
    edges = _count_edges(_count_distribution(options, mean_SL.max()).isf(1e-10))
    below = _count_distribution(options, mean_SL[..., None]).cdf(edges - 1)
    probability_SLK = np.diff(below, axis=-1)
    count_K = (edges[:-1] + edges[1:] - 1) / 2
    others_SL1 = ((1 - share_S)[:, None] * library_L)[..., None]
    value_SLK = np.log1p(options.mean_library * count_K / np.maximum(count_K + others_SL1, 1e-12))
    return (probability_SLK * value_SLK).sum(axis=-1) @ weight_L / math.sqrt(math.pi)


def _count_distribution(options: SimulationOptions, mean: np.ndarray | float) -> stats.rv_frozen:
    if options.dispersion == 0:
        return stats.poisson(mean)
    size = 1 / options.dispersion
    return stats.nbinom(size, size / (size + mean))


def _count_edges(largest: float) -> np.ndarray:
    """Edges of bins of counts: single counts first, then bins that grow by 2 %."""
    steps = math.ceil(math.log(max(largest + 2, _EXACT_COUNTS) / _EXACT_COUNTS) / math.log(1.02)) + 1
    wide = np.ceil(_EXACT_COUNTS * 1.02 ** np.arange(steps + 1))
    return np.unique(np.concatenate([np.arange(_EXACT_COUNTS), wide]))
