"""The published ``uns`` dictionaries, rebuilt in memory from the tables of a prepared screen."""

from __future__ import annotations

from typing import Any

import numpy as np

from gears.data.de import rank_genes
from gears.data.screen import PreparedScreen

N_TOP = 20


def published_uns(screen: PreparedScreen) -> dict[str, dict[str, Any]]:
    """Gene rankings and gene lists by published condition name.

    Two spellings of a condition have the same entries, from the statistics of
    all of the condition's cells. The control has none.

    Returns
    -------
    dict
        ``rank_genes_groups_cov_all`` (all genes, ids), ``non_zeros_gene_idx``
        (genes whose mean in the condition is not 0), ``non_dropout_gene_idx``
        (those, and genes that are 0 in condition and control),
        ``top_non_zero_de_20``, ``top_non_dropout_de_20`` (the ranking filtered,
        first 20 ids). Empty where DE was skipped.
    """
    if screen.de is None:
        return {}
    ids = np.asarray(screen.gene_ids, dtype=object)
    statistics = screen.statistics
    ranking = rank_genes(statistics, screen.gene_names, len(ids)).order
    nonzero = statistics.mean_nonzero
    absent_in_control = ~nonzero[screen.control_id]
    by_condition: list[dict[str, Any]] = []
    for order, here in zip(ranking, nonzero, strict=True):
        kept = here | (~here & absent_in_control)
        by_condition.append(
            {
                "rank_genes_groups_cov_all": ids[order].tolist(),
                "non_zeros_gene_idx": np.flatnonzero(here),
                "non_dropout_gene_idx": np.flatnonzero(kept),
                "top_non_zero_de_20": ids[order[here[order]][:N_TOP]].astype(str),
                "top_non_dropout_de_20": ids[order[kept[order]][:N_TOP]].astype(str),
            }
        )
    uns: dict[str, dict[str, Any]] = {key: {} for key in by_condition[0]}
    for name, condition in zip(screen.condition_names, screen.label_condition, strict=True):
        if condition != screen.control_id:
            for key, value in by_condition[condition].items():
                uns[key][name] = value
    return uns
