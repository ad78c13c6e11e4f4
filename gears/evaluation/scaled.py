"""Scaled scores: where a method stands between the train mean (0) and half of the condition's own cells (1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from gears.core.progress import followed
from gears.evaluation.metrics.registry import condition_metrics, get_metric
from gears.evaluation.predicted import Predicted
from gears.evaluation.truth import Truth

if TYPE_CHECKING:
    from gears.data.screen.prepared import PreparedScreen

N_SPLIT_HALF = 5
"""Split-half repeats: how often each condition's cells are divided into two halves, by default."""


@dataclasses.dataclass(frozen=True)
class HalfScores:
    """Scores against held-out halves of the cells, averaged over split-half repeats.

    Attributes
    ----------
    values
        Per method its values, (U, M).
    floor_UM, ceiling_UM
        Values of the train mean, and of the other half's mean: the split-half noise ceiling.
    """

    values: dict[str, np.ndarray]
    floor_UM: np.ndarray
    ceiling_UM: np.ndarray


def split_halves(
    screen: PreparedScreen, truth: Truth, n: int = N_SPLIT_HALF, *, seed: int = 0
) -> Iterator[tuple[Truth, np.ndarray]]:
    """Divide each condition's cells at random into two halves, `n` times.

    Yields
    ------
    held_out
        The truth with the means and cell numbers of one half of every condition's cells (so that metrics which rank
        conditions see halves only); differential genes and standard deviations stay those of all cells.
    other_UG
        The means of the other halves; NaN for a condition of one cell.
    """
    for repeat in followed(range(n), n, "split-half repeats", "repeats"):
        pairs = [_half_means(screen, condition, (seed, repeat)) for condition in truth.conditions]
        held_out_UG = np.stack([pair[0] for pair in pairs])
        n_cells_U = np.array([pair[2] for pair in pairs], dtype=np.int64)
        held_out = dataclasses.replace(
            truth, mean_UG=held_out_UG, panel_mean_VG=held_out_UG, n_cells_U=n_cells_U
        )
        yield held_out, np.stack([pair[1] for pair in pairs])


def half_scores(
    predictions: Mapping[str, Predicted],
    screen: PreparedScreen,
    truth: Truth,
    metrics: Sequence[str],
    reference_sd_G: np.ndarray | None = None,
    *,
    n: int = N_SPLIT_HALF,
    seed: int = 0,
) -> HalfScores:
    """Score methods, the train mean and the other half against the same held-out halves.

    `truth` holds the evaluated conditions whole (no shard). Metrics over cells stay NaN. `reference_sd_G` is the
    standard deviation of the train mean's errors; that of the other half is its sampling error.
    """
    used = [column for column, name in enumerate(metrics) if not get_metric(name).needs_cells]
    names = [metrics[column] for column in used]
    shape = (len(truth.conditions), len(names))
    once_U = np.ones((len(truth.conditions), 1))
    floor_sd_UG = None if reference_sd_G is None else once_U * reference_sd_G
    methods = {**predictions, _FLOOR: Predicted(once_U * truth.reference_mean_G, floor_sd_UG)}
    # sum of the defined values, and their number
    sums = {method: np.zeros((2, *shape)) for method in (*methods, _CEILING)}
    for held_out, other_UG in split_halves(screen, truth, n, seed=seed):
        n_other_U = np.maximum(truth.n_cells_U - held_out.n_cells_U, 1)
        other = Predicted(other_UG, truth.std_UG / np.sqrt(n_other_U)[:, None])
        for method, predicted in {**methods, _CEILING: other}.items():
            values = _scores(predicted, held_out, names)
            defined = np.isfinite(values)
            sums[method] += np.stack([np.where(defined, values, 0.0), defined])
    whole = {method: np.full((len(truth.conditions), len(metrics)), np.nan) for method in sums}
    for method, (total, count) in sums.items():
        whole[method][:, used] = np.divide(total, count, out=np.full(shape, np.nan), where=count > 0)
    floor_UM, ceiling_UM = whole.pop(_FLOOR), whole.pop(_CEILING)
    if np.isnan(truth.reference_mean_G).any():  # without training conditions nothing is 0 on the scale
        ceiling_UM[:] = np.nan
    return HalfScores(whole, floor_UM, ceiling_UM)


def scaled_by_weights(
    weights_BU: np.ndarray,
    value_U: np.ndarray,
    floor_U: np.ndarray,
    ceiling_U: np.ndarray,
    *,
    higher_is_better: bool,
) -> np.ndarray:
    """``(value - floor) / (ceiling - floor)``, each averaged over conditions first with each row of weights, (B,).

    An undefined floor (the train mean has no correlation with itself) counts as 0. Conditions whose value or ceiling is
    undefined are excluded; NaN without any, or unless the ceiling is better than the floor.
    """
    kept = np.isfinite(value_U) & np.isfinite(ceiling_U)
    floor_U = np.where(np.isnan(floor_U), 0.0, floor_U)
    value_B, floor_B, ceiling_B = (
        weighted_mean(weights_BU[:, kept], part_U[kept]) for part_U in (value_U, floor_U, ceiling_U)
    )
    span_B = ceiling_B - floor_B
    usable_B = span_B > 0 if higher_is_better else span_B < 0
    return np.divide(value_B - floor_B, span_B, out=np.full(len(span_B), np.nan), where=usable_B)


def scaled_shares(
    value_U: np.ndarray, floor_U: np.ndarray, ceiling_U: np.ndarray, *, higher_is_better: bool
) -> np.ndarray:
    """(value - floor) / mean(ceiling - floor) of each condition, (U,); their mean is the scaled score."""
    kept = np.isfinite(value_U) & np.isfinite(ceiling_U)
    floor_U = np.where(np.isnan(floor_U), 0.0, floor_U)
    span = float((ceiling_U - floor_U)[kept].mean()) if kept.any() else 0.0
    if not (span > 0 if higher_is_better else span < 0):
        return np.full(len(value_U), np.nan)
    return np.where(kept, (value_U - floor_U) / span, np.nan)


def weighted_mean(weights_BU: np.ndarray, value_U: np.ndarray) -> np.ndarray:
    """Mean over the defined values with each row of weights, (B,); NaN where none is drawn."""
    defined = np.isfinite(value_U)
    total_B = weights_BU[:, defined].sum(axis=1)
    sum_B = weights_BU[:, defined] @ value_U[defined]
    return np.divide(sum_B, total_B, out=np.full(len(weights_BU), np.nan), where=total_B > 0)


_FLOOR, _CEILING = "<train mean>", "<other half>"


def _scores(predicted: Predicted, held_out: Truth, names: Sequence[str]) -> np.ndarray:
    """Metrics where some conditions have no second half: those are excluded, also as what others are compared with."""
    whole_U = np.isfinite(held_out.mean_UG).all(axis=1)
    values_UM = np.full((len(predicted.mean_UG), len(names)), np.nan)
    if not whole_U.any():
        return values_UM
    kept = held_out.subset(whole_U)
    kept = dataclasses.replace(kept, panel_mean_VG=kept.mean_UG, panel_row_U=np.arange(int(whole_U.sum())))
    own = predicted.rows(whole_U)
    values_UM[whole_U] = condition_metrics(own.mean_UG, kept, names, sd_UG=own.sd_UG)
    return values_UM


def _half_means(
    screen: PreparedScreen, condition: object, key: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, int]:
    """Means of two random halves of a condition's cells, and the number of cells of the first."""
    condition_id = screen.id_of(condition)  # type: ignore[arg-type]
    cells = screen.cells_of(condition_id)
    n_genes = len(screen.gene_names)
    if len(cells) < 2:
        return np.full(n_genes, np.nan), np.full(n_genes, np.nan), 0
    order = np.random.default_rng([*key, condition_id]).permutation(len(cells))
    n_first = len(cells) // 2
    half = np.zeros(len(cells), dtype=np.int64)
    half[order[n_first:]] = 1
    size = np.array([n_first, len(cells) - n_first])
    # both means by one sparse product: the cells are never dense
    pick = sparse.csr_matrix((1.0 / size[half], (half, np.arange(len(cells)))), shape=(2, len(cells)))
    means = np.asarray((pick @ screen.cells.csr(cells).astype(np.float64)).todense())
    return means[0], means[1], n_first
