"""Genetic interactions as a table: pairs with their departure from additivity, and how sure it is.

With a and b the predicted changes by each gene, s = a + b their sum and d the change by both, the departure is the
slope of d over s minus 1,

    departure = sum_g d_g s_g / sum_g s_g^2 - 1,

0 where effects add, above 0 for synergy. Its variance is that of the difference d - s in the prior, which common
effects of the genes do not enter: nothing but the variance of the level and what is specific to each of the three
conditions. The standard deviations of d are scaled to it. A synergy that was not expected changes all genes by the same
factor, so their errors go together, but not all of the error is of this kind: training pairs show which share of it
lies along their change. With this share q, and the scaled standard deviation t_g of a gene,

    variance = q (sum_g |s_g| t_g / sum_g s_g^2)^2 + that of the control.

The error of the control mean, which d holds once and s twice, is taken off as far as it is known
(:mod:`gears.priors.true_change`, which finds q too); what stays unknown of it, and the least variances of the three
conditions, are those of a sum over genes whose errors go together in groups (:func:`gears.design.hits.sum_sd`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from gears.conditions import Condition
from gears.data.screen.prepared import PreparedScreen
from gears.design.candidates import (
    Candidates,
    Entries,
    Model,
    fitted_plain,
    need_sd,
    parts_of,
    predicted,
    read_candidates,
    with_excluded,
)
from gears.design.hits import Z_90, beyond, ranked, sum_sd
from gears.evaluation.interactions import SUPPRESSION, SYNERGY, interaction_table, observed_interactions
from gears.prediction.stream import all_pairs
from gears.priors.uncertainty import Uncertainty, condition_variance

MARGIN = 0.2
"""Departures of at most this size count as none, as in :func:`gears.evaluation.interactions.interaction_kind`."""
NEUTRAL, MASKING = "neutral", "masking"
_PAIRS = 512  # whose scores are computed at once


def interactions_table(
    model: Model, pairs: Entries | None = None, *, screen: PreparedScreen | None = None, scores: bool = True
) -> pd.DataFrame:
    """Predicted interactions of pairs of genes, measured or not, one row a pair.

    Parameters
    ----------
    model
        A trained model with a prior, or an ensemble of such models.
    pairs
        Conditions of two genes; all pairs of the genes perturbed in training when None.
    screen
        A screen whose measured pairs, with both single genes, get the column ``observed_strength``.
    scores
        Add the published scores (:func:`gears.evaluation.interactions.interaction_scores`), which take most of the time
        (about 0.1 CPU seconds a pair).

    Returns
    -------
    pd.DataFrame
        Most probable departure first: ``rank``, ``condition``, ``gene_1``, ``gene_2``, ``measured`` (in training),
        ``effect_1``, ``effect_2``, ``additive``, ``predicted`` (root mean square changes by each gene, of their sum and
        by both), ``departure`` (relative to the sum; -1 where nothing is left of it) with ``low`` and ``high`` (90 %),
        ``probability`` (of a departure of more than 0.2 in the predicted direction), ``fdr_score``, ``kind``
        ("neutral" where the interval holds 0, else "synergy", "suppression", or "masking", where the change by both is
        nearer to that by one gene alone than to the best multiple of the sum), and the scores.

    Raises
    ------
    ValueError
        A pair has another number of genes, the model has no standard deviations, or no pair is left.
    """
    need_sd(model)
    found = read_candidates(model, trained_pairs(model) if pairs is None else pairs, keep_measured=True)
    table = departures(model, found).reset_index(drop=True)
    if scores:
        table = table.merge(
            _scores(model, list(table["condition"])), on="condition", how="left", validate="1:1"
        )
    if screen is not None:
        observed = observed_interactions(screen).set_index("condition")["strength"]
        table["observed_strength"] = table["condition"].map(observed)
    return with_excluded(table, found)


def trained_pairs(model: Model) -> Iterator[Condition]:
    """All pairs of the genes perturbed in training."""
    parts = parts_of(model)
    return all_pairs(sorted(parts.pert_names[node] for node in parts.trained_nodes()))


def _scores(model: Model, names: Sequence[str]) -> pd.DataFrame:
    """The published scores of pairs, by ``condition``."""
    tables = []
    for start in range(0, len(names), _PAIRS):
        pairs = [Condition.parse(name) for name in names[start : start + _PAIRS]]
        singles = dict.fromkeys(Condition((gene,)) for pair in pairs for gene in pair.genes)
        delta_of: dict[Condition, np.ndarray] = {}
        for predictions in predicted(model, [*singles, *pairs]):
            delta_of |= zip(predictions.conditions, predictions.delta_UG, strict=True)
        tables.append(interaction_table(delta_of).drop(columns=["rank", "gene_1", "gene_2", "kind"]))
    return pd.concat(tables, ignore_index=True)


def departures(model: Model, pairs: Candidates) -> pd.DataFrame:
    """The table of :func:`interactions_table` without scores; the number of each row among the pairs is its index."""
    _check_pairs(pairs)
    parts = parts_of(model)
    prior = parts.prior
    if prior is None or prior.uncertainty is None:
        msg = 'interactions need a prior, which knows how far pairs depart from additivity; train with prior="auto"'
        raise ValueError(msg)
    nodes = np.unique(pairs.node_CK)
    singles = [Condition((pairs.pert_names[node],)) for node in nodes.tolist()]
    true_change = prior.uncertainty.true_change
    shift_G = control_G = np.zeros(len(parts.gene_names))
    along = 1.0
    if true_change is not None:
        shift_G, control_G = true_change.shift_G, true_change.control_G + 3 * true_change.least_G
        along = true_change.along
    single_NG = np.concatenate([part.delta_UG for part in predicted(model, singles)]) - shift_G
    trained, start, blocks = fitted_plain(parts), 0, []
    for predictions in predicted(model, pairs):
        assert predictions.sd is not None
        node_U2 = pairs.node_CK[start : start + len(predictions)]
        first_UG, second_UG = single_NG[np.searchsorted(nodes, node_U2)].transpose(1, 0, 2)
        share_U = departure_share(prior.uncertainty, node_U2.tolist())
        sd_UG = np.sqrt(along * share_U)[:, None] * predictions.sd
        block = _block(first_UG, second_UG, predictions.delta_UG - shift_G, sd_UG, np.sqrt(control_G))
        labels = pd.DataFrame(
            {
                "condition": [condition.name for condition in predictions.conditions],
                "gene_1": [condition.genes[0] for condition in predictions.conditions],
                "gene_2": [condition.genes[1] for condition in predictions.conditions],
                "measured": [condition in trained for condition in predictions.conditions],
            }
        )
        blocks.append(pd.concat([labels, block], axis=1))
        start += len(predictions)
    return ranked(pd.concat(blocks, ignore_index=True))


def departure_share(uncertainty: Uncertainty, sets: Sequence[Sequence[int]]) -> np.ndarray:
    """Variance of a pair's departure from the sum as a share of the variance of its change, (U,)."""
    covariance, posterior = uncertainty.covariance, uncertainty.posterior
    singles = [[node] for nodes in sets for node in nodes]
    specific_U = covariance.unexplained(sets) + covariance.unexplained(singles).reshape(-1, 2).sum(axis=1)
    none: list[list[int]] = [[]]  # the control, which holds the level alone
    level_1 = condition_variance(covariance, posterior, none) - covariance.unexplained(none)
    return np.asarray((specific_U + level_1) / condition_variance(covariance, posterior, sets))


def _block(
    first_UG: np.ndarray,
    second_UG: np.ndarray,
    double_UG: np.ndarray,
    sd_UG: np.ndarray,
    control_sd_G: np.ndarray,
) -> pd.DataFrame:
    """Columns of some pairs from their changes, the part of the error along s (U, G), and that of the control, (G,)."""
    sum_UG = first_UG + second_UG
    size_U = np.maximum((sum_UG**2).sum(axis=1), np.finfo(float).tiny)
    slope_U = (double_UG * sum_UG).sum(axis=1) / size_U
    together_U = (np.abs(sum_UG) * sd_UG).sum(axis=1) / size_U
    departure_U = slope_U - 1
    sd_U = np.hypot(together_U, sum_sd(control_sd_G, sum_UG / size_U[:, None]))
    low_U, high_U = departure_U - Z_90 * sd_U, departure_U + Z_90 * sd_U
    to_single_U = np.minimum(
        ((double_UG - first_UG) ** 2).sum(axis=1), ((double_UG - second_UG) ** 2).sum(axis=1)
    )
    is_masked_U = to_single_U < ((double_UG - slope_U[:, None] * sum_UG) ** 2).sum(axis=1)
    kind_U = np.where(is_masked_U, MASKING, np.where(departure_U > 0, SYNERGY, SUPPRESSION))

    def sizes(change_UG: np.ndarray) -> np.ndarray:
        return np.sqrt((change_UG**2).mean(axis=1))

    return pd.DataFrame(
        {
            "effect_1": sizes(first_UG),
            "effect_2": sizes(second_UG),
            "additive": sizes(sum_UG),
            "predicted": sizes(double_UG),
            "departure": departure_U,
            "low": low_U,
            "high": high_U,
            "probability": beyond(np.abs(departure_U), sd_U, MARGIN),
            "kind": np.where((low_U <= 0) & (high_U >= 0), NEUTRAL, kind_U),
        }
    )


def _check_pairs(pairs: Candidates) -> None:
    if pairs.node_CK.shape[1] != 2 or (pairs.node_CK < 0).any():
        is_other = (pairs.node_CK >= 0).sum(axis=1) != 2
        name = pairs.condition(int(np.argmax(is_other))).name
        msg = f"interactions are of pairs of genes; {name!r} is none: give pairs only, such as 'A+B'"
        raise ValueError(msg)
