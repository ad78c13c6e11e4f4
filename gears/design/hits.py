"""Perturbations that probably move a gene, a signature or everything beyond a threshold.

The true change of gene g is a mixture of Gaussians k with weights w_gk, means m_gk and variances v_gk
(:mod:`gears.priors.true_change`); its mean is e_g and its variance u_g. The probability that a readout x is beyond the
threshold is

    gene:         the sum of w_gk times that of the Gaussian of m_gk and v_gk
    signature:    that of a Gaussian: x = sum_g w_g e_g, sum |w_g| = 1,
                  variance min(5 sum_g w_g^2 u_g, (sum_g |w_g| u_g^(1/2))^2)
    effect size:  that of a Gaussian: x = mean_g (e_g^2 + u_g), sd the mean of those of the squared changes

Errors of genes of one condition go together: in groups of 5 in a signature, as in the prior
(:data:`gears.priors._kernels.CORRELATED_GENES`), and all of them in the effect size, the root of x. The score of
the k best candidates is the mean over them of 1 - probability: the false discovery rate that the model expects (Newton
et al. 2004, Biostatistics 5:155). It is called a score as long as not every kind of simulated screen has shown that no
more of the hits are false (``docs/design.md``).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from gears.conditions import FEWEST_COMBINATIONS, Condition
from gears.core._intervals import half_width
from gears.core._messages import brief, check_unique, count, shorten, unknown_name
from gears.core._numbers import is_number, plain_number
from gears.design._candidates import (
    Candidates,
    Entries,
    Model,
    fitted_conditions,
    need_sd,
    parts_of,
    predicted,
    read_candidates,
    reduced,
    with_excluded,
)
from gears.distributed._gpus import GpuIds
from gears.model._folder import ModelParts
from gears.prediction._blocks import IN_THIS_PROCESS, Arrays, Workers
from gears.prediction._information import sets_of
from gears.prediction._true_changes import beyond
from gears.prediction.predictions import Predictions
from gears.priors._kernels import CORRELATED_GENES

logger = logging.getLogger(__name__)

Z_90 = float(half_width(0.9))
"""Standard deviations on both sides that hold 90 % of a Gaussian."""
Readout = str | Mapping[str, float] | pd.Series | None


def hits(
    model: Model,
    candidates: Entries | None = None,
    *,
    threshold: float | None = None,
    readout: Readout = None,
    measured: Entries = (),
    gpu_ids: GpuIds = None,
    n_at_once: int | None = None,
    dask: Any = None,
) -> pd.DataFrame:
    """Rank perturbations by the probability that a readout moves beyond a threshold.

    Parameters
    ----------
    model
        A trained GEARS or PerturbationModel with a prior, or an Ensemble.
    candidates
        Genes, or conditions such as "A+B"; the genes expressed in the screen when None.
    threshold
        Change of the mean log expression: above 0 the readout rises beyond it, below 0 it falls below it. For the
        effect size above 0, by default the median effect size of the conditions that the model is fitted to.
    readout
        A measured gene; a signature, as weights by gene (+1 for genes to rise, -1 for genes to fall, scaled to a sum
        of absolute values of 1); or None for the effect size, the root mean square of the changes of all genes.
    measured
        Conditions to exclude beside those that the model is fitted to.
    gpu_ids, n_at_once, dask
        Workers that predict, as for :meth:`gears.GEARS.rank_pairs`; not for an Ensemble.

    Returns
    -------
    pd.DataFrame
        One row per candidate, most probable first: ``rank``, ``condition``, ``readout`` (predicted), ``low`` and
        ``high`` (90 % interval), ``probability`` and ``fdr_score`` (share of false ones that the
        model expects among this candidate and those above it; NaN, undetermined, for combinations where training has
        fewer than 8 of them, since nothing shows how far effects add up). Excluded candidates with reasons are in
        ``attrs["excluded"]``, the threshold in ``attrs["threshold"]``.

    Raises
    ------
    ValueError
        The model has no standard deviations, a gene of the readout is not predicted, or no candidate is left.
    """
    need_sd(model)
    if readout is None and threshold is None:
        threshold = _median_effect_size(model)
    scorer = Scorer.of(readout, threshold, parts_of(model).gene_names)
    usable = read_candidates(model, candidates, measured)
    workers = Workers(None, gpu_ids, n_at_once, dask)
    table = with_excluded(probabilities(model, usable, scorer, workers).reset_index(drop=True), usable)
    table.attrs["threshold"] = threshold
    return table


def _median_effect_size(model: Model) -> float:
    """Median effect size of the conditions that the model is fitted to."""
    parts = parts_of(model)
    blocks = predicted(model, fitted_conditions(parts))
    square_U = np.concatenate([block.true_changes().mean_square()[0] for block in blocks])
    threshold = float(np.median(np.sqrt(square_U)))
    logger.info("threshold %.3g: the median effect size of %s", threshold, count(len(square_U), "fitted condition"))
    return threshold


def probabilities(
    model: Model, candidates: Candidates, scorer: Scorer, workers: Workers = IN_THIS_PROCESS
) -> pd.DataFrame:
    """The table of :func:`hits`, and the number of each row among the candidates as its index."""
    parts = parts_of(model)
    blocks = reduced(model, candidates, partial(_moments, scorer), workers)
    if blocks is None:  # rank 0 of torchrun has the table
        return pd.DataFrame(columns=["rank", "condition", "readout", "low", "high", "probability", "fdr_score"])
    scored = []
    for conditions, arrays in blocks:
        is_own = [scorer.gene in condition.genes for condition in conditions]
        scored.append(pd.DataFrame({**arrays, "is_own": is_own, "is_assumed": is_assumed(parts, conditions)}))
    every = pd.concat(scored, ignore_index=True)
    for row in np.flatnonzero(every["is_own"]).tolist():  # a gene that is perturbed itself is no discovery
        candidates.excluded[candidates.condition(row).name] = "perturbs the readout itself"
    every = every[~every["is_own"]]
    if every.empty:
        msg = f"no candidate is left (each of them perturbs {scorer.gene} itself); give other candidates"
        raise ValueError(msg)
    mean_C, sd_C = every["mean"].to_numpy(), every["sd"].to_numpy()
    table = pd.DataFrame(
        {
            "condition": [candidates.condition(row).name for row in every.index.tolist()],
            "readout": scorer.shown(mean_C),
            "low": scorer.shown(mean_C - Z_90 * sd_C),
            "high": scorer.shown(mean_C + Z_90 * sd_C),
            "probability": every["probability"],
        },
        index=every.index,
    )
    return ranked(table, every["is_assumed"].to_numpy())


def _moments(scorer: Scorer, predictions: Predictions) -> Arrays:
    return dict(zip(("mean", "sd", "probability"), scorer(predictions), strict=True))


def is_assumed(parts: ModelParts, conditions: Sequence[Condition]) -> np.ndarray:
    """Whether each is an unmeasured combination of which training does not show how far effects add up, (U,) bool."""
    if parts.prior is None or parts.prior.measured is None:
        return np.zeros(len(conditions), dtype=bool)
    return parts.prior.measured.is_assumed(sets_of(parts, conditions))


def ranked(table: pd.DataFrame, is_assumed_C: np.ndarray) -> pd.DataFrame:
    """Rows by ``probability``, largest first, with ``rank`` and ``fdr_score``; that of `is_assumed_C` is NaN."""
    if is_assumed_C.any():
        logger.warning(
            "fdr_score is undetermined for %s: fewer than %d training conditions have several genes, so nothing "
            "shows how far effects add up; measure some combinations",
            count(int(is_assumed_C.sum()), "combination"),
            FEWEST_COMBINATIONS,
        )
    order = np.argsort(-table["probability"].to_numpy(), kind="stable")
    table, is_known = table.iloc[order], ~is_assumed_C[order]
    table.insert(0, "rank", np.arange(1, len(table) + 1))
    score = np.full(len(table), np.nan)
    score[is_known] = expected_rate(table["probability"].to_numpy()[is_known])
    return table.assign(fdr_score=score)


def expected_rate(probability_C: np.ndarray) -> np.ndarray:
    """Expected share of false hits among each candidate and those before it, (C,); probabilities descend.

    Examples
    --------
    >>> expected_rate(np.array([1.0, 0.8, 0.6])).round(3).tolist()
    [0.0, 0.1, 0.2]
    """
    return np.asarray(np.cumsum(1 - probability_C) / np.arange(1, len(probability_C) + 1))


@dataclass(frozen=True)
class Scorer:
    """Mean, standard deviation and probability of a readout; the module has the formulas."""

    weight_G: np.ndarray | None  # weights of the genes; None for the effect size
    # limit, rises: what is a hit: x above the limit, or below it. For the effect size the limit is that of its square
    limit: float
    rises: bool
    gene: str = ""  # name of the gene, for a readout of one

    @classmethod
    def of(cls, readout: Readout, threshold: float | None, gene_names: tuple[str, ...]) -> Scorer:
        """From the arguments of :func:`hits`."""
        threshold = plain_number(threshold)
        if not is_number(threshold) or threshold == 0 or (readout is None and threshold < 0):
            wanted = "above 0" if readout is None else "other than 0: above it for a rise, below it for a fall"
            what = "a readout needs threshold=" if threshold is None else f"threshold is {brief(threshold)}"
            msg = f"{what}; expected a change of log expression {wanted}"
            raise ValueError(msg)
        if readout is None:
            return cls(None, threshold**2, True)
        weights = {readout: 1.0} if isinstance(readout, str) else numbers_by_gene(readout, "readout")
        weight_G = weights_of(weights, gene_names, "readout")
        weight_G /= np.abs(weight_G).sum()
        named = np.flatnonzero(weight_G)
        gene = gene_names[named[0]] if len(named) == 1 else ""
        return cls(weight_G, threshold, threshold > 0, gene)

    def __call__(self, predictions: Predictions) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mean and standard deviation of x, and the probability that it is a hit, (U,) each."""
        if self.weight_G is None:
            mean_U, sd_U = predictions.true_changes().mean_square()
        else:
            used = np.flatnonzero(self.weight_G)
            changes = predictions.true_changes(used)
            mean_UG, sd_UG = changes.moments()
            mean_U, sd_U = mean_UG @ self.weight_G[used], sum_sd(sd_UG, self.weight_G[used])
            if len(used) == 1:
                return mean_U, sd_U, changes.beyond(self.limit / self.weight_G[used[0]])[:, 0]
        return mean_U, sd_U, beyond(mean_U, sd_U, self.limit, self.rises)

    def shown(self, x_U: np.ndarray) -> np.ndarray:
        """The readout itself: the root of x for the effect size."""
        return np.sqrt(np.maximum(x_U, 0.0)) if self.weight_G is None else x_U


def sum_sd(sd_UG: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Standard deviation of weighted sums over genes whose errors go together in groups, (U,).

    `weight` is (G,), or (U, G) for a separate sum in each row.
    """
    apart_U = CORRELATED_GENES * (weight**2 * sd_UG**2).sum(axis=1)
    together_U = (np.abs(weight) * sd_UG).sum(axis=1)
    return np.minimum(np.sqrt(apart_U), together_U)


def numbers_by_gene(values: Mapping[str, float] | pd.Series, what: str) -> dict[str, float]:
    """Numbers by gene of what a user gives; ValueError where it is something else, or names a gene twice."""
    expected = 'expected numbers by gene, such as {"HBG1": 1, "HBB": -1}'
    if not isinstance(values, Mapping | pd.Series):
        msg = f"the {what} is a {type(values).__name__}; {expected}"
        raise ValueError(msg)
    check_unique(map(str, values.keys()), f"genes of the {what}")
    plain = {str(gene): plain_number(value) for gene, value in values.items()}
    wrong = [f"{gene}: {brief(value)}" for gene, value in plain.items() if not is_number(value)]
    if wrong:
        msg = f"the {what} has {shorten(wrong, 3)}; {expected}"
        raise ValueError(msg)
    return plain


def weights_of(weights: Mapping[str, float], gene_names: tuple[str, ...], what: str) -> np.ndarray:
    """Weights of all genes, (G,), from those of some; ValueError for unknown genes, and where all are 0."""
    unknown = sorted(set(weights) - set(gene_names))
    if len(unknown) == 1:
        raise ValueError(unknown_name(f"gene of the {what}", unknown[0], gene_names))
    if unknown:
        msg = (
            f"{len(unknown)} genes of the {what} are not among the {len(gene_names)} predicted ones: "
            f"{shorten(unknown)}; omit them, or give measured genes of the screen"
        )
        raise ValueError(msg)
    weight_G = np.array([weights.get(name, 0.0) for name in gene_names], dtype=np.float64)
    if not np.isfinite(weight_G).all() or not weight_G.any():
        msg = f"the numbers of the {what} are all 0 or not finite; give at least one number other than 0"
        raise ValueError(msg)
    return weight_G
