"""Metrics that decide, with :func:`gears.evaluation.metrics.correlation.pearson_delta_ref`, and the amplitude slope.

They look at what is specific to a perturbation, its change from the training mean O, at genes that truly change, and
at the order of perturbations. None can be gained by making a prediction larger or smaller as a whole.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from gears.core.numbers import unit_rows
from gears.evaluation.metrics.correlation import direction_share
from gears.evaluation.metrics.differential import FALSE_DISCOVERY_RATE
from gears.evaluation.metrics.ranking import TIE, place_among
from gears.evaluation.metrics.registry import register
from gears.evaluation.rows import changes, mean_rows, weighted_rows
from gears.evaluation.truth import Truth

SHARES = (5, 10, 20)
"""Recall of hits is reported for the first 5, 10 and 20 % of the perturbations."""
_LARGEST = 80  # percentile of the number of changed genes, from which on a perturbation is a hit by size


@register(
    "discrimination_ref",
    formula=(
        "share of the other conditions q with cos(m - O, mu_q - O) < cos(m - O, mu - O), half a point for a tie; genes "
        "that any evaluated condition perturbs are excluded"
    ),
    higher_is_better=True,
    bounds=(0.0, 1.0),
    source="after discrimination of cell-eval, with a measure that scaling leaves alone; 0.5 is chance",
)
def discrimination_ref(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """Share of other conditions that the predicted change from the training mean is less like than its own, (U,)."""
    n_panel = len(truth.panel_mean_VG)
    if n_panel < 2 or np.isnan(truth.reference_mean_G).any():
        return np.full(len(predicted_UG), np.nan)
    kept_G = np.setdiff1d(np.arange(predicted_UG.shape[1]), truth.panel_targets)
    origin = truth.reference_mean_G[..., kept_G]
    specific_UK = unit_rows(changes(predicted_UG[:, kept_G], origin)[0])
    cosine_UV = _cosines_with_panel(specific_UK, truth.panel_mean_VG[:, kept_G], origin)
    return place_among(cosine_UV, truth.panel_row_U, TIE) / (n_panel - 1)


def _cosines_with_panel(unit_UK: np.ndarray, panel_VK: np.ndarray, origin: np.ndarray) -> np.ndarray:
    """Cosine of each of U directions p with the change of each mean of the panel from an origin, (U, V).

    With an origin O_u for each row these are ``p_u (mu_v - O_u) / |mu_v - O_u|``. A table of all differences would hold
    U V K values: both parts are multiplied out, which leaves products of two tables, centred first for rounding.
    """
    if origin.ndim == 1:
        return np.asarray(unit_UK @ unit_rows(changes(panel_VK, origin)[0]).T)
    centre_K = panel_VK.mean(axis=0)
    panel_VK, origin_UK = panel_VK - centre_K, origin - centre_K
    product_UV = unit_UK @ panel_VK.T - (unit_UK * origin_UK).sum(axis=1)[:, None]
    size_UV = (panel_VK**2).sum(axis=1) + (origin_UK**2).sum(axis=1)[:, None]
    square_UV = size_UV - 2 * origin_UK @ panel_VK.T
    differs_UV = square_UV > 1e-12 * size_UV  # a smaller difference is one of rounding: without direction
    length_UV = np.sqrt(np.where(differs_UV, square_UV, 1.0))
    return np.where(differs_UV, product_UV / length_UV, 0.0)


@register(
    "relative_error",
    formula=(
        "sum w (m - mu)^2 / sum w, as a share of the mean of this error of O over the evaluated conditions; "
        "w = 1 - q of the moderated t (q by Benjamini-Hochberg)"
    ),
    higher_is_better=False,
    bounds=(0.0, math.inf),
    source="weighting by evidence of change, after Mejia et al. 2025; on average 1 is the error of the training mean",
)
def relative_error(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """Squared error weighted by evidence of change, as a share of the training mean's average error, (U,).

    NaN where no gene shows any evidence, and without a training mean.
    """
    error_U = weighted_rows((predicted_UG - truth.mean_UG) ** 2, truth.evidence_UG)
    return error_U / truth.reference_error if truth.reference_error > 0 else np.full(len(error_U), np.nan)


@register(
    "direction_changed",
    formula="share of the truly changed genes (moderated t, 5 % false discoveries) with sign(m - c) = sign(mu - c)",
    higher_is_better=True,
    bounds=(0.0, 1.0),
    source="standard; a gene predicted without change counts half",
)
def direction_changed(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """Share of the changed genes that are predicted in the right direction, (U,); NaN without changed genes."""
    predicted_UG = changes(predicted_UG, truth.control_mean_G)[0]
    return direction_share(predicted_UG, truth.delta_UG, changed_genes(truth))


@register(
    "amplitude_slope",
    formula="slope of mu - O on m - O over genes; 1 is right, below 1 predictions are too large, above 1 too small",
    higher_is_better=None,
    ideal=1.0,
    bounds=(-math.inf, math.inf),
    source="standard; to be read beside the correlations, which do not see the size of a prediction",
)
def amplitude_slope(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """Regression slope of the true on the predicted change from the training mean, (U,); NaN for the mean itself."""
    predicted_UG = changes(predicted_UG, truth.reference_mean_G)[0]
    true_UG = truth.mean_UG - truth.reference_mean_G
    centred_UG = predicted_UG - predicted_UG.mean(axis=1, keepdims=True)
    square_U = (centred_UG**2).sum(axis=1)
    product_U = (centred_UG * true_UG).sum(axis=1)
    return np.divide(product_U, square_U, out=np.full(len(predicted_UG), np.nan), where=square_U > 0)


def _register_recalls() -> None:
    """Recall of hits by gene and by size for each of :data:`SHARES`."""
    for percent in SHARES:
        register(
            f"hit_recall_{percent}",
            formula=(
                f"share of the condition's changed genes g for which it is among the {percent} % of conditions with "
                "the largest s (m_g - c_g), s the sign of mu_g - c_g; changed by moderated t at 5 % false discoveries, "
                "targets excluded"
            ),
            higher_is_better=True,
            bounds=(0.0, 1.0),
            source="recall at a budget, as in choosing perturbations for a gene",
            needs_all=True,
        )(partial(hit_recall, share=percent / 100))
        register(
            f"size_recall_{percent}",
            formula=(
                f"1 where a hit is among the {percent} % of conditions with the largest |m - c| over genes, else 0; "
                "hits are the fifth of the conditions with most changed genes, NaN for others"
            ),
            higher_is_better=True,
            bounds=(0.0, 1.0),
            source="recall at a budget, as in choosing perturbations with strong effects",
            needs_all=True,
        )(partial(size_recall, share=percent / 100))


def hit_recall(predicted_UG: np.ndarray, truth: Truth, share: float) -> np.ndarray:
    """Of each condition's changed genes, the share for which it ranks among the first by predicted change, (U,).

    Conditions are ranked as by someone who looks for those that raise a gene, or that lower it: a change in the wrong
    direction comes last. Conditions tied at the cut count by their expected number. NaN for a condition without changed
    genes.
    """
    change_UG = changes(predicted_UG, truth.control_mean_G)[0]
    raised_UG, lowered_UG, hit_UG = change_UG.copy(), -change_UG, changed_genes(truth)
    for row, genes in enumerate(truth.targets):
        # everyone knows what a perturbation does to its own gene
        raised_UG[row, genes] = lowered_UG[row, genes] = -np.inf
        hit_UG[row, genes] = False
    up_UG, down_UG = (_share_in_first(size_UG, share) for size_UG in (raised_UG, lowered_UG))
    return mean_rows(np.where(truth.delta_UG > 0, up_UG, down_UG), hit_UG)


def size_recall(predicted_UG: np.ndarray, truth: Truth, share: float) -> np.ndarray:
    """Whether each of the conditions with most changed genes ranks among the first by predicted size, (U,)."""
    changed_UG = changed_genes(truth)
    change_UG = changes(predicted_UG, truth.control_mean_G)[0]
    for row, genes in enumerate(truth.targets):
        changed_UG[row, genes] = False
        change_UG[row, genes] = 0.0
    n_changed_U = changed_UG.sum(axis=1)
    hit_U = (n_changed_U > 0) & (n_changed_U >= np.percentile(n_changed_U, _LARGEST))
    found_U1 = _share_in_first(np.linalg.norm(change_UG, axis=1)[:, None], share)
    return np.where(hit_U, found_U1[:, 0], np.nan)


def _share_in_first(size_UK: np.ndarray, share: float) -> np.ndarray:
    """How surely each row is among the first `share` of its column by descending size, 0 to 1 (ties share)."""
    n_first = math.ceil(
        share * len(size_UK) - 1e-9
    )  # 10 % of 30 is 3, whatever 0.1 x 30 is in floating point
    ascending_UK = np.sort(size_UK, axis=0)
    found_UK = np.empty_like(size_UK)
    for column in range(size_UK.shape[1]):
        sizes_U = size_UK[:, column]
        n_not_above = np.searchsorted(ascending_UK[:, column], sizes_U, side="right")
        n_below = np.searchsorted(ascending_UK[:, column], sizes_U, side="left")
        n_above, n_tied = len(sizes_U) - n_not_above, n_not_above - n_below
        # the places left after all larger values, shared by those that tie
        found_UK[:, column] = np.clip((n_first - n_above) / n_tied, 0.0, 1.0)
    return found_UK


def changed_genes(truth: Truth) -> np.ndarray:
    """Genes that truly change, by moderated t at 5 % false discoveries in each condition, bool (U, G)."""
    return truth.adjusted_p_UG < FALSE_DISCOVERY_RATE


_register_recalls()
