"""Differential expression of every condition against the control, from its moments.

Welch's t needs means, variances and cell numbers only. The values are those of
``scanpy.tl.rank_genes_groups(method="t-test", reference=control,
rankby_abs=True)``; what scanpy leaves open, the order of ties, is fixed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gears.data.statistics import ConditionStatistics, DERanking
from gears.mapped import release

N_RANKED = 200
"""Genes of a ranking that are kept with a prepared screen."""
TIE_DIGITS = 9


def welch_t(statistics: ConditionStatistics, conditions: np.ndarray) -> np.ndarray:
    """Welch's t of each gene, condition against control.

    t = (m_p - m_c) / sqrt(v_p / n_p + v_c / n_c) with sample variances; 0 where
    it is undefined. The same numbers as ``scipy.stats.ttest_ind_from_stats``
    (unequal variances), without its p-values, which nothing here uses and
    which would take most of the time.

    Parameters
    ----------
    statistics
        Of the whole screen.
    conditions
        (K,) condition ids.

    Returns
    -------
    np.ndarray
        (K, G) float64; infinite where both variances are 0 and the means differ.
    """
    control = statistics.control_id
    n = statistics.n[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        # m2 is divided by n: sample variance over n is m2 / (n - 1).
        squared_error = statistics.m2[conditions] / (n[conditions] - 1)
        squared_error = squared_error + statistics.m2[control] / (n[control] - 1)
        t = (statistics.mean[conditions] - statistics.mean[control]) / np.sqrt(squared_error)
    return np.nan_to_num(t, nan=0.0, posinf=np.inf, neginf=-np.inf)


def rank_rows(t: np.ndarray, gene_names: Sequence[str], n: int) -> np.ndarray:
    """Gene indices of each row by absolute t, ties by name, (K, n) int64."""
    by_name = np.argsort(np.asarray(gene_names, dtype=object), kind="stable")
    size = np.round(np.abs(t[:, by_name]), TIE_DIGITS)
    return by_name[np.argsort(-size, axis=1, kind="stable")[:, :n]]


def rank_genes(statistics: ConditionStatistics, gene_names: Sequence[str], n: int = N_RANKED) -> DERanking:
    """Rank the genes of every condition.

    Parameters
    ----------
    statistics
        C conditions, G genes.
    gene_names
        (G,) names that break ties.
    n
        Genes to keep; at most G are.
    """
    n_conditions, n_genes = statistics.mean.shape
    n = min(n, n_genes)
    order = np.full((n_conditions, n), -1, dtype=np.int32)
    scores = np.zeros((n_conditions, n))
    for ids, t in _t_chunks(statistics):
        ranked = rank_rows(t, gene_names, n)
        order[ids] = ranked
        scores[ids] = np.take_along_axis(t, ranked, axis=1)
    return DERanking(order, scores, n_genes)


def _t_chunks(statistics: ConditionStatistics) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Perturbed conditions' ids and t values, a few conditions at a time."""
    n_conditions, n_genes = statistics.mean.shape
    perturbed = np.flatnonzero(np.arange(n_conditions) != statistics.control_id)
    step = max(1_000_000 // max(n_genes, 1), 1)
    for start in range(0, len(perturbed), step):
        ids = perturbed[start : start + step]
        yield ids, welch_t(statistics, ids)
        release(statistics.mean, statistics.m2)
