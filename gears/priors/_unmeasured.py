"""Genes that some settings do not measure: nothing is observed of them there, and they pull nothing.

The regression solves genes of each pattern of settings that measure them from the conditions of these settings alone
(:func:`blocks`), which is exact, but for rare patterns, of which many lines have many. What is found once for all genes
(weights of the covariances, factors of settings) is found from genes that every setting measures. Elsewhere a table
without gaps is needed, and holds stand-ins: the mean change in the settings that measure the gene (:func:`filled_in`),
and, where errors of predictions are looked at, the error of another condition (:func:`with_errors`).
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator

import numpy as np

from gears.core._messages import count
from gears.priors._data import PriorData

logger = logging.getLogger(__name__)

MOST_BLOCKS = 8
"""Patterns that are solved by themselves; genes of rarer ones give up the observations of some settings, or take
stand-ins."""
MOST_STAND_INS = 0.25  # of the settings of a pattern that a gene of a rarer one may take
_FEWEST = 20  # genes that every setting measures, from which on these decide what is found for all


def blocks(is_measured_SG: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Genes that are solved together, and the settings that they are solved from, (S,) bool."""
    patterns, pattern_G, n_genes = np.unique(is_measured_SG, axis=1, return_inverse=True, return_counts=True)
    kept = patterns[:, np.argsort(-n_genes, kind="stable")[:MOST_BLOCKS]]
    used: dict[tuple[bool, ...], list[int]] = {}
    for number, measured_S in enumerate(patterns.T):
        # the kept pattern with the most settings that all measure the gene; where there is none, that with the least
        # share of stand-ins, or its own
        lacking = (kept & ~measured_S[:, None]).sum(axis=0) / np.maximum(kept.sum(axis=0), 1)
        best = np.lexsort((-kept.sum(axis=0), lacking))[0]
        fits = kept[:, best].any() and lacking[best] <= MOST_STAND_INS
        used.setdefault(tuple((kept[:, best] if fits else measured_S).tolist()), []).append(number)
    for settings, numbers in used.items():
        yield np.flatnonzero(np.isin(pattern_G.ravel(), numbers)), np.array(settings)


def over_shared(data: PriorData, rest_CG: np.ndarray) -> tuple[PriorData, np.ndarray]:
    """Data and changes over the genes that every setting with conditions measures; all, where these are few."""
    assert data.is_measured_SG is not None
    genes = np.flatnonzero(data.is_measured_SG[np.unique(data.setting_C)].all(axis=0))
    if len(genes) < _FEWEST:
        return data, rest_CG
    rest_CG, mean_SG = rest_CG[:, genes], data.control_mean_SG[:, genes]
    part = dataclasses.replace(
        data, delta_CG=rest_CG, variance_G=data.variance_G[genes], control_mean_SG=mean_SG, is_measured_SG=None
    )
    return part, rest_CG


def filled_in(data: PriorData) -> PriorData:
    """The data with the mean change where it was measured (by the same type), 0 where it never was, as stand-ins."""
    assert data.is_measured_SG is not None
    is_known_CG = data.is_measured_SG[data.setting_C]
    n_unknown = int((~is_known_CG.any(axis=0)).sum())
    if n_unknown:
        logger.warning(
            "%s measured in no training context: no change is predicted of %s",
            count(n_unknown, "gene is", "genes are"), "it" if n_unknown == 1 else "them",
        )  # fmt: skip
    kind_C = data.setting_C % data.n_kinds
    keys = [(tuple(sorted(nodes)), kind) for nodes, kind in zip(data.sets, kind_C.tolist(), strict=True)]
    number_of = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    group_C = np.array([number_of[key] for key in keys])
    total_NG = np.zeros((len(number_of), data.delta_CG.shape[1]))
    n_NG = np.zeros_like(total_NG)
    np.add.at(total_NG, group_C, data.delta_CG * is_known_CG)
    np.add.at(n_NG, group_C, is_known_CG)
    mean_CG = (total_NG / np.maximum(n_NG, 1))[group_C]
    return dataclasses.replace(data, delta_CG=np.where(is_known_CG, data.delta_CG, mean_CG))


def with_errors(data: PriorData, left_out_CG: np.ndarray) -> PriorData:
    """The data with predictions that are as far off as those of other conditions, where a gene was not measured.

    The errors are those of measured conditions, in turn: where errors are looked at, as many as there are conditions
    have the distribution of those that are known.
    """
    assert data.is_measured_SG is not None
    is_known_CG = data.is_measured_SG[data.setting_C]
    delta_CG = data.delta_CG.copy()
    for gene in np.flatnonzero(~is_known_CG.all(axis=0) & is_known_CG.any(axis=0)).tolist():
        known, unknown = np.flatnonzero(is_known_CG[:, gene]), np.flatnonzero(~is_known_CG[:, gene])
        lent = known[np.arange(len(unknown)) % len(known)]
        delta_CG[unknown, gene] = left_out_CG[unknown, gene] + delta_CG[lent, gene] - left_out_CG[lent, gene]
    return dataclasses.replace(data, delta_CG=delta_CG)
