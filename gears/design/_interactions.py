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
conditions, are those of a sum over genes whose errors go together in groups (:func:`gears.design.hits.sum_sd`). Where
the changes are no larger than these errors, they are most of s itself and lower the slope; so the square of twice their
share in sum_g s_g^2 is added.

Where all three conditions were measured, d - s errs by their sampling noise alone, and the variance is that of such a
sum of the three posterior variances, plus the square of the share that noise has in sum_g s_g^2, by which it may lower
the slope.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from gears.conditions import Condition, NodeSet, contexts_of, kinds_of
from gears.data.screen._prepared import PreparedScreen
from gears.design._candidates import (
    Candidates,
    Entries,
    Model,
    all_pairs,
    need_sd,
    parts_of,
    predicted,
    read_candidates,
    with_excluded,
)
from gears.design.hits import Z_90, is_assumed, ranked, sum_sd
from gears.evaluation.interactions import SUPPRESSION, SYNERGY, UNDETERMINED, interaction_table, observed_interactions
from gears.model._folder import ModelParts
from gears.prediction._information import sets_of
from gears.prediction._true_changes import beyond
from gears.priors._uncertainty import Uncertainty, condition_variance

MARGIN = 0.2
"""Departures of at most this size count as none, as in :func:`gears.evaluation.interactions.interaction_kind`."""
NEUTRAL, MASKING = "neutral", "masking"
LEAST_ERRORS = 2.0
"""Standard deviations by which a departure differs from 0 if it is called one."""
WIDE = 0.5
"""A departure that may be larger than this, or 0, is undetermined."""
_PAIRS = 512  # whose scores are computed at once


def interactions_table(
    model: Model, pairs: Entries | None = None, *, screen: PreparedScreen | None = None, scores: bool = True
) -> pd.DataFrame:
    """Predicted interactions of pairs of genes, measured or not, one row a pair.

    Parameters
    ----------
    model
        A trained GEARS or PerturbationModel with a prior, or an Ensemble of such models.
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
        ("neutral" for a departure below twice its standard deviation, "undetermined" where its interval then reaches
        beyond 0.5 or no training condition shows how far effects add up, else "synergy", "suppression", or "masking",
        where the change by both is nearer to that by one gene alone than to the best multiple of the sum), and the
        scores.

    Raises
    ------
    ValueError
        A pair has another number of genes, the model has no standard deviations, or no pair is left.
    """
    need_sd(model)
    usable = read_candidates(model, all_pairs(model) if pairs is None else pairs, keep_measured=True)
    table = departures(model, usable).reset_index(drop=True)
    if scores:
        table = table.merge(_scores(model, list(table["condition"])), on="condition", how="left", validate="1:1")
    if screen is not None:
        table["observed_strength"] = table["condition"].map(_observed_strength(PreparedScreen.of(screen)))
    return with_excluded(table, usable)


def _observed_strength(screen: PreparedScreen) -> dict[str, float]:
    """Measured strength of each pair with both singles in one setting, by label; without the name of an only one."""
    table = observed_interactions(screen if len(screen.settings) > 1 else screen.settings[0])
    return dict(zip(table["condition"], table["strength"], strict=True))


def _scores(model: Model, names: Sequence[str]) -> pd.DataFrame:
    """The published scores of pairs, by ``condition``."""
    tables = []
    for start in range(0, len(names), _PAIRS):
        pairs = [Condition.parse(name) for name in names[start : start + _PAIRS]]
        singles = dict.fromkeys(Condition((gene,), pair.context, pair.kind) for pair in pairs for gene in pair.genes)
        deltas: dict[Condition, np.ndarray] = {}
        for predictions in predicted(model, [*singles, *pairs]):
            deltas |= zip(predictions.conditions, predictions.delta_UG, strict=True)
        tables.append(interaction_table(deltas).drop(columns=["rank", "gene_1", "gene_2", "kind"]))
    return pd.concat(tables, ignore_index=True)


def departures(model: Model, pairs: Candidates) -> pd.DataFrame:
    """The table of :func:`interactions_table` without scores; the number of each row among the pairs is its index."""
    _check_pairs(pairs)
    parts = parts_of(model)
    prior = parts.prior
    if prior is None or prior.uncertainty is None:
        msg = 'interactions need a prior, which knows how far pairs depart from additivity; train with prior="auto"'
        raise ValueError(msg)
    # both single genes of each pair, in its setting
    key_C2 = pairs.setting_C[:, None] * len(pairs.pert_names) + pairs.node_CK
    keys = np.unique(key_C2)
    singles = [
        Condition((pairs.pert_names[node],), *pairs.settings[setting])
        for setting, node in zip(*(part.tolist() for part in np.divmod(keys, len(pairs.pert_names))), strict=True)
    ]
    true_change = prior.uncertainty.true_change
    shift_G = control_G = np.zeros(len(parts.gene_names))
    along, unknown = 1.0, 0.0
    if true_change is not None:
        # the error of the control that stays unknown, and the least variance of each of the three conditions
        shift_G, control_G = true_change.shift_G, true_change.control_G + 3 * true_change.least_G
        along = true_change.along
        unknown = 2 * float((true_change.control_G + true_change.least_G).sum())  # of s . s - d . s
    of_singles = list(predicted(model, singles))
    single_NG = np.concatenate([part.delta_UG for part in of_singles]) - shift_G
    square_NG = np.concatenate([np.square(part.sd) for part in of_singles if part.sd is not None])
    single_row_N, assumed, start, blocks = _measured_rows(parts, singles), [], 0, []
    for predictions in predicted(model, pairs):
        assert predictions.sd is not None
        row_U2 = np.searchsorted(keys, key_C2[start : start + len(predictions)])
        first_UG, second_UG = single_NG[row_U2].transpose(1, 0, 2)
        is_measured_U = _measured_rows(parts, predictions.conditions) >= 0
        is_known_U = is_measured_U & (single_row_N[row_U2] >= 0).all(axis=1)
        share_U = departure_share(prior.uncertainty, sets_of(parts, predictions.conditions))
        sd_UG = np.sqrt(along * share_U)[:, None] * predictions.sd
        noise_UG = square_NG[row_U2].sum(axis=1) * is_known_U[:, None]
        apart_UG = noise_UG + is_known_U[:, None] * predictions.sd**2 + control_G
        assumed.append(is_assumed(parts, predictions.conditions))
        block = _block(
            first_UG,
            second_UG,
            predictions.delta_UG - shift_G,
            np.where(is_known_U[:, None], 0.0, sd_UG),
            np.sqrt(apart_UG),
            noise_UG.sum(axis=1) + unknown,
            assumed[-1],
        )
        labels = pd.DataFrame(
            {
                "condition": [condition.name for condition in predictions.conditions],
                "gene_1": [condition.genes[0] for condition in predictions.conditions],
                "gene_2": [condition.genes[1] for condition in predictions.conditions],
                "measured": is_measured_U,
            }
        )
        blocks.append(pd.concat([labels, block], axis=1))
        start += len(predictions)
    return ranked(pd.concat(blocks, ignore_index=True), np.concatenate(assumed))


def _measured_rows(parts: ModelParts, conditions: Sequence[Condition]) -> np.ndarray:
    """Row of each condition among those that the prior was fitted to, -1 for others, (U,)."""
    measured = None if parts.prior is None else parts.prior.measured
    sets = sets_of(parts, conditions)
    return np.full(len(sets), -1) if measured is None else measured.rows(sets)


def departure_share(uncertainty: Uncertainty, sets: Sequence[Sequence[int]]) -> np.ndarray:
    """Variance of a pair's departure from the sum as a share of the variance of its change, (U,)."""
    covariance, posterior = uncertainty.covariance, uncertainty.posterior
    singles = [
        NodeSet([node], context=context, kind=kind)
        for nodes, context, kind in zip(sets, contexts_of(sets).tolist(), kinds_of(sets).tolist(), strict=True)
        for node in nodes
    ]
    specific_U = covariance.unexplained(sets) + covariance.unexplained(singles).reshape(-1, 2).sum(axis=1)
    none: list[list[int]] = [[]]  # the control, which holds the level alone
    level_1 = condition_variance(covariance, posterior, none) - covariance.unexplained(none)
    return np.asarray((specific_U + level_1) / condition_variance(covariance, posterior, sets))


def _block(
    first_UG: np.ndarray,
    second_UG: np.ndarray,
    double_UG: np.ndarray,
    sd_UG: np.ndarray,
    apart_sd_UG: np.ndarray,
    noise_U: np.ndarray,
    is_assumed_U: np.ndarray,
) -> pd.DataFrame:
    """Columns of some pairs from their changes and the errors: along s, of genes in groups (U, G), of the size of s."""
    sum_UG = first_UG + second_UG
    size_U = np.maximum((sum_UG**2).sum(axis=1), np.finfo(float).tiny)
    slope_U = (double_UG * sum_UG).sum(axis=1) / size_U
    together_U = (np.abs(sum_UG) * sd_UG).sum(axis=1) / size_U
    departure_U = slope_U - 1
    apart_U = sum_sd(apart_sd_UG, sum_UG / size_U[:, None])
    sd_U = np.sqrt(together_U**2 + apart_U**2 + (noise_U / size_U) ** 2)
    low_U, high_U = departure_U - Z_90 * sd_U, departure_U + Z_90 * sd_U
    to_single_U = np.minimum(((double_UG - first_UG) ** 2).sum(axis=1), ((double_UG - second_UG) ** 2).sum(axis=1))
    is_masked_U = to_single_U < ((double_UG - slope_U[:, None] * sum_UG) ** 2).sum(axis=1)
    kind_U = np.where(is_masked_U, MASKING, np.where(departure_U > 0, SYNERGY, SUPPRESSION))
    is_wide_U = np.maximum(-low_U, high_U) > WIDE
    is_shown_U = np.abs(departure_U) > LEAST_ERRORS * sd_U
    kind_U = np.where(is_shown_U, kind_U, np.where(is_wide_U, UNDETERMINED, NEUTRAL))

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
            "kind": np.where(is_assumed_U, UNDETERMINED, kind_U),
        }
    )


def _check_pairs(pairs: Candidates) -> None:
    if pairs.node_CK.shape[1] != 2 or (pairs.node_CK < 0).any():
        is_other = (pairs.node_CK >= 0).sum(axis=1) != 2
        name = pairs.condition(int(np.argmax(is_other))).name
        msg = f"interactions are of pairs of genes; {name!r} is none: give pairs only, such as 'A+B'"
        raise ValueError(msg)
