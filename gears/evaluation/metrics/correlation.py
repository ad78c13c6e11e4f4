"""Correlations and directions of changes."""

from __future__ import annotations

from functools import partial

import numpy as np

from gears.evaluation.metrics.errors import PUBLISHED
from gears.evaluation.metrics.registry import register
from gears.evaluation.rows import changes, mean_rows, own_noise, padded, pearson_rows
from gears.evaluation.truth import Truth

CORRELATION = (-1.0, 1.0)


@register(
    "pearson",
    formula="corr over genes of (m, mu); near 1 even for no change, so read the delta forms first",
    higher_is_better=True,
    bounds=CORRELATION,
    source=PUBLISHED,
)
def pearson(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """Correlation of expression levels, (U,)."""
    return pearson_rows(
        predicted_UG, truth.mean_UG, noise_a=own_noise(predicted_UG), noise_b=own_noise(truth.mean_UG)
    )


@register(
    "pearson_delta",
    formula="corr over genes of (m - c, mu - c)",
    higher_is_better=True,
    bounds=CORRELATION,
    source=PUBLISHED,
)
def pearson_delta(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """Correlation of changes over control, (U,); NaN for a prediction without change."""
    change_UG, noise_a = changes(predicted_UG, truth.control_mean_G)
    true_UG, noise_b = changes(truth.mean_UG, truth.control_mean_G)
    return pearson_rows(change_UG, true_UG, noise_a=noise_a, noise_b=noise_b)


@register(
    "pearson_delta_top20_de",
    formula="corr of (m - c, mu - c) over the condition's top 20 differential genes",
    higher_is_better=True,
    bounds=CORRELATION,
    source=PUBLISHED,
    needs_de=True,
)
def pearson_delta_top_de(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """Correlation of changes over the top differential genes, (U,)."""
    predicted_UG, noise_a = changes(predicted_UG, truth.control_mean_G)
    true_UG, noise_b = changes(truth.mean_UG, truth.control_mean_G)
    index_UK, present_UK = padded(truth.top())
    return pearson_rows(
        np.take_along_axis(predicted_UG, index_UK, axis=1),
        np.take_along_axis(true_UG, index_UK, axis=1),
        present_UK,
        noise_a=noise_a,
        noise_b=noise_b,
    )


@register(
    "pearson_delta_ref",
    formula="corr over genes of (m - O, mu - O): the part that is specific to the perturbation",
    higher_is_better=True,
    bounds=CORRELATION,
    source="Systema (Vinas Torne et al. 2025); each training condition counts once",
)
def pearson_delta_ref(predicted_UG: np.ndarray, truth: Truth) -> np.ndarray:
    """Correlation of differences to the mean training profile, (U,); NaN for the train mean itself."""
    if np.isnan(truth.reference_mean_G).any():
        return np.full(len(predicted_UG), np.nan)
    specific_UG, noise_a = changes(predicted_UG, truth.reference_mean_G)
    true_UG, noise_b = truth.specific
    return pearson_rows(specific_UG, true_UG, noise_a=noise_a, noise_b=noise_b)


def sign_distance(predicted_delta: np.ndarray, true_delta: np.ndarray) -> np.ndarray:
    """How far two directions lie apart: 0 equal, 1 one of them without change, 2 opposite."""
    return np.abs(np.sign(predicted_delta) - np.sign(true_delta))


def direction_share(
    predicted_delta_UG: np.ndarray, delta_UG: np.ndarray, counted_UG: np.ndarray
) -> np.ndarray:
    """Share of the counted genes with the right direction, no change half a point, (U,); NaN for a row without any."""
    return mean_rows(1 - sign_distance(predicted_delta_UG, delta_UG) / 2, counted_UG)


def direction_share_top_de(predicted_UG: np.ndarray, truth: Truth, distance: int) -> np.ndarray:
    """Share of top differential genes whose predicted and true direction are `distance` (0, 1, 2) apart, (U,)."""
    apart_UG = sign_distance(
        changes(predicted_UG, truth.control_mean_G)[0], changes(truth.mean_UG, truth.control_mean_G)[0]
    )
    index_UK, present_UK = padded(truth.top())
    hit_UK = np.take_along_axis(apart_UG, index_UK, axis=1) == distance
    return mean_rows(hit_UK.astype(np.float64), present_UK)


for _name, _distance, _which in (
    ("direction_accuracy_top20", 0, "with sign(m - c) = sign(mu - c), signs in {-1, 0, 1}"),
    ("opposite_direction_top20", 2, "whose signs of (m - c) and (mu - c) differ by 2"),
    ("half_direction_top20", 1, "where one of (m - c) and (mu - c) is 0, the other not"),
):
    register(
        _name,
        formula=f"share of the top 20 differential genes {_which}",
        higher_is_better=_distance == 0,
        bounds=(0.0, 1.0),
        source=PUBLISHED,
        needs_de=True,
    )(partial(direction_share_top_de, distance=_distance))
