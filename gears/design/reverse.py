"""Perturbations whose predicted change is closest to a wanted one.

With w the wanted change and c a predicted one, over the K genes that w names,

    similarity = c w / (|c| |w|)  (cosine),    amount = c w / |w|^2,

and the derivative of the similarity, (w / |w| - similarity c / |c|) / |c|, gives its interval from the standard
deviations of c (:func:`gears.design.hits.sum_sd`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from gears.core._messages import shorten, unknown_name
from gears.core._numbers import whole_number
from gears.design._candidates import Entries, Model, need_sd, parts_of, predicted, read_candidates, with_excluded
from gears.design.hits import Z_90, numbers_by_gene, sum_sd, weights_of

if TYPE_CHECKING:
    from anndata import AnnData

logger = logging.getLogger(__name__)

_LEAST = 1e-12  # norms below this are those of no change


def reverse(
    model: Model,
    wanted: Mapping[str, float] | pd.Series | np.ndarray,
    candidates: Entries | None = None,
    n: int = 20,
    *,
    measured: bool = True,
) -> pd.DataFrame:
    """Perturbations whose predicted change is closest to a wanted one.

    Parameters
    ----------
    model
        A trained GEARS or PerturbationModel with a prior, or an Ensemble.
    wanted
        Wanted change of mean log expression: by gene for some of the genes (of gene lists +1 for genes to rise, -1 for
        genes to fall), or of all G genes in the model's order, (G,). :func:`change_between` makes one of two groups of
        cells.
    candidates
        Genes, or conditions such as "A+B"; the genes expressed in the screen when None.
    n
        Rows to return.
    measured
        Whether perturbations that the model is fitted to are candidates too.

    Returns
    -------
    pd.DataFrame
        Most similar first: ``rank``, ``condition``, ``similarity`` (-1 to 1) with ``low`` and ``high`` (90 %), and
        ``amount``: the predicted change along the wanted one as a share of it. Excluded candidates with reasons are in
        ``attrs["excluded"]``.

    Raises
    ------
    ValueError
        The model has no standard deviations, genes are not predicted, the wanted change is 0, or no candidate is left.
    """
    n = whole_number("n", n)
    need_sd(model)
    wanted_G = _wanted(wanted, parts_of(model).gene_names)
    named = np.arange(len(wanted_G)) if isinstance(wanted, np.ndarray) else np.flatnonzero(wanted_G)
    if len(named) == 1:
        logger.warning(
            "the wanted change names %s alone, so every similarity is -1 or 1: use hits, which ranks by its change",
            parts_of(model).gene_names[named[0]],
        )
    usable = read_candidates(model, candidates, keep_measured=measured)
    blocks = []
    for predictions in predicted(model, usable):
        assert predictions.sd is not None
        values = similarity(predictions.delta_UG[:, named], predictions.sd[:, named], wanted_G[named])
        table = pd.DataFrame(dict(zip(("similarity", "low", "high", "amount"), values, strict=True)))
        table.insert(0, "condition", [condition.name for condition in predictions.conditions])
        blocks.append(table)
    table = pd.concat(blocks).sort_values("similarity", ascending=False, kind="stable", ignore_index=True)[:n]
    table.insert(0, "rank", np.arange(1, len(table) + 1))
    return with_excluded(table, usable)


def similarity(
    delta_UK: np.ndarray, sd_UK: np.ndarray, wanted_K: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Similarity with the wanted change, its 90 % interval, and the amount, (U,) each; 0 for no change."""
    size_U = np.maximum(np.linalg.norm(delta_UK, axis=1), _LEAST)
    size = np.linalg.norm(wanted_K)
    along_U = delta_UK @ wanted_K
    cosine_U = along_U / (size_U * size)
    slope_UK = (wanted_K / size - cosine_U[:, None] * delta_UK / size_U[:, None]) / size_U[:, None]
    error_U = Z_90 * sum_sd(sd_UK, slope_UK)
    return cosine_U, np.maximum(cosine_U - error_U, -1), np.minimum(cosine_U + error_U, 1), along_U / size**2


def change_between(
    adata: AnnData, key: str, start: str, end: str, *, gene_names: Sequence[str] | None = None
) -> pd.Series:
    """Difference of the mean expression of two groups of cells, by gene: what leads from `start` to `end`.

    Parameters
    ----------
    adata
        Log-normalised expression, as the model's screen.
    key
        Column of ``obs`` that holds the groups.
    start, end
        The two groups.
    gene_names
        Genes to keep, such as those of the model (``model.gene_list``); those that are absent are omitted. All when
        None. Genes are named by ``var["gene_name"]`` where it exists, else by the index.

    Raises
    ------
    ValueError
        No such column or group, or none of the genes is among `gene_names`.
    """
    if key not in adata.obs:
        raise ValueError(unknown_name("column of obs", key, list(map(str, adata.obs.columns))))
    groups = adata.obs[key].astype(str).to_numpy()
    for group in (start, end):
        if group not in groups:
            raise ValueError(unknown_name(f"group of {key}", group, sorted(set(groups))))
    means = [np.asarray(adata.X[np.flatnonzero(groups == group)].mean(axis=0)).ravel() for group in (start, end)]
    names = adata.var.get("gene_name", adata.var_names)
    change = pd.Series(means[1] - means[0], index=pd.Index(names.astype(str)), dtype=np.float64)
    if gene_names is None:
        return change
    kept = change[change.index.isin(gene_names)]
    if not len(kept):
        msg = (
            f"no gene of the cells ({shorten(change.index, 3)}) is among gene_names ({shorten(gene_names, 3)}); "
            'name the genes alike, in var["gene_name"] or the index'
        )
        raise ValueError(msg)
    return kept


def _wanted(wanted: Mapping[str, float] | pd.Series | np.ndarray, gene_names: tuple[str, ...]) -> np.ndarray:
    if isinstance(wanted, np.ndarray):
        if wanted.shape != (len(gene_names),):
            msg = f"the wanted change has shape {wanted.shape}; expected one value per gene, ({len(gene_names)},)"
            raise ValueError(msg)
        return weights_of(dict(zip(gene_names, wanted.tolist(), strict=True)), gene_names, "wanted change")
    return weights_of(numbers_by_gene(wanted, "wanted change"), gene_names, "wanted change")
