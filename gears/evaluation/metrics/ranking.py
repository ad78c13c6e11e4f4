"""Metrics of how well predictions distinguish the conditions."""

from __future__ import annotations

import numpy as np

from gears.core.numbers import unit_rows
from gears.evaluation.metrics.registry import register
from gears.evaluation.rows import changes
from gears.evaluation.truth import Truth

TIE = 1e-9  # cosine distances nearer than this are equal: matrix products round rows differently


@register(
    "discrimination",
    formula=(
        "1 - rank / n, rank = number of conditions whose true delta is strictly closer (L1) to m - c than "
        "the condition's own, plus half the ties; n counts the condition itself"
    ),
    higher_is_better=True,
    bounds=(0.0, 1.0),
    source="PDS of cell-eval, which excludes the target of single-gene perturbations only; here all targets",
)
def discrimination(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """Perturbation discrimination score among the panel, the condition's own target genes excluded, (U,)."""
    # each row without its own targets: one matrix of distances would need the same genes in all rows
    distances = [
        _l1_without(row_G, truth.panel_mean_VG, targets)
        for row_G, targets in zip(predicted_UG, truth.targets, strict=True)
    ]
    n_panel = len(truth.panel_mean_VG)
    return 1.0 - place_among(np.reshape(distances, (-1, n_panel)), truth.panel_row_U) / n_panel


@register(
    "centroid_accuracy",
    formula=(
        "share of the other conditions q with |m - mu_q| > |m - mu| (Euclidean), half a point for a tie; the "
        "condition's own target genes are excluded"
    ),
    higher_is_better=True,
    bounds=(0.0, 1.0),
    source="Systema (Vinas Torne et al. 2025), without target genes as in cell-eval",
)
def centroid_accuracy(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """Share of other conditions that are farther from the prediction than its own condition, (U,)."""
    n_others = len(truth.panel_mean_VG) - 1
    if n_others == 0:
        return np.full(len(predicted_UG), np.nan)
    from scipy.spatial.distance import cdist  # a worker does without it

    # over all genes at once, then minus each row's targets: a squared distance is a sum over genes
    square_UV = cdist(predicted_UG, truth.panel_mean_VG, "sqeuclidean")
    for row, genes in enumerate(truth.targets):
        square_UV[row] -= ((truth.panel_mean_VG[:, genes] - predicted_UG[row, genes]) ** 2).sum(axis=1)
    return 1.0 - place_among(square_UV, truth.panel_row_U) / n_others


@register(
    "rank",
    formula=(
        "(number of q with d(m_q, mu) < d(m, mu), plus half the ties) / (n - 1), d the cosine distance of deltas "
        "(1 for a zero delta); 0.5 is chance and collapse"
    ),
    higher_is_better=False,
    bounds=(0.0, 1.0),
    source="after PerturBench (Wu et al. 2024)",
    needs_all=True,
)
def rank(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """Rank of a condition's prediction among all predictions by distance from its true change, (U,)."""
    n_conditions = len(predicted_UG)
    if n_conditions < 2:
        return np.full(n_conditions, np.nan)
    predicted_UG = unit_rows(changes(predicted_UG, truth.control_mean_G)[0])
    true_UG = unit_rows(changes(truth.mean_UG, truth.control_mean_G)[0])
    distance_UU = 1.0 - true_UG @ predicted_UG.T  # row: true condition, column: prediction
    return place_among(distance_UU, np.arange(n_conditions), TIE) / (n_conditions - 1)


@register(
    "spread",
    formula="mean pairwise distance of the m over that of the mu (Euclidean); near 0: predictions collapsed",
    higher_is_better=True,
    bounds=(0.0, float("inf")),
    source="standard; 1 is the spread of the truth, above 1 is too much",
    scope="set",
)
def spread(predicted_UG: np.ndarray, truth: Truth) -> float:
    """Spread of the predictions relative to that of the truth; NaN for fewer than two distinct conditions."""
    if len(predicted_UG) < 2:
        return float("nan")
    from scipy.spatial.distance import pdist

    true_spread = float(pdist(truth.mean_UG).mean())
    return float(pdist(predicted_UG).mean()) / true_spread if true_spread > 0 else float("nan")


def place_among(values_UV: np.ndarray, own_U: np.ndarray, tie: float = 0.0) -> np.ndarray:
    """Number of values of each row below the one in column `own_U`, plus half of the others within `tie`, (U,)."""
    own_U1 = np.take_along_axis(values_UV, own_U[:, None], axis=1)
    below_U = (values_UV < own_U1 - tie).sum(axis=1)
    tied_U = (np.abs(values_UV - own_U1) <= tie).sum(axis=1) - 1
    return below_U + 0.5 * tied_U


def _l1_without(predicted_G: np.ndarray, panel_VG: np.ndarray, excluded: np.ndarray) -> np.ndarray:
    from scipy.spatial.distance import cdist

    # the control mean cancels in the difference of the two deltas
    if len(excluded):
        predicted_G = np.delete(predicted_G, excluded)
        panel_VG = np.delete(panel_VG, excluded, axis=1)
    return cdist(predicted_G[None, :], panel_VG, "cityblock")[0]
