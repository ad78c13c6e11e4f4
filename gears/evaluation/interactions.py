"""Genetic interactions of pairs: how the change by two perturbations relates to the changes by each alone."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gears.conditions import FEWEST_COMBINATIONS, Condition, show_departures
from gears.core._messages import shorten, unknown_name
from gears.data.screen._prepared import PreparedScreen
from gears.files._paths import user_path
from gears.files._untrusted import listed_names, load_npy

if TYPE_CHECKING:
    from gears.prediction.predictions import Predictions

logger = logging.getLogger(__name__)

SCORES = (
    "c1", "c2", "mag", "strength", "dominance", "corr_fit", "dcor", "dcor_singles", "dcor_first", "dcor_second",
    "eq_contr",
)  # fmt: skip
SMALLEST = 1e-3  # coefficients below this count as this in the dominance, which is thus always a number
MAX_PAIRS = 100_000
ADDITIVE, SYNERGY, SUPPRESSION = "additive", "synergy", "suppression"
UNDETERMINED = "undetermined"
BLOCK = 1024  # rows of distances that are held at once


def interaction_scores(first: np.ndarray, second: np.ndarray, double: np.ndarray, *, seed: int = 0) -> dict[str, float]:
    """Scores of a pair from changes over control, as published (Norman et al. 2019; GEARS).

    Parameters
    ----------
    first, second, double
        Changes by the first gene, by the second, and by both, (G,).
    seed
        Of the choice of gene pairs in the Theil-Sen fit, where there are too many for all.

    Returns
    -------
    dict
        Plain floats: ``c1``, ``c2`` (``double = c1 first + c2 second`` by Theil-Sen), ``mag`` (sqrt(c1^2 + c2^2),
        sqrt(2) where effects add), ``strength`` (robust slope of the double over the sum of the singles, 1 where
        effects add; other than c1 and c2 it is well determined where both singles do the same), ``dominance``
        (:func:`dominance`), ``corr_fit`` (correlation of the Theil-Sen fit with the double), the distance correlations
        ``dcor`` (both singles with the double), ``dcor_singles``, ``dcor_first``, ``dcor_second``, and ``eq_contr``
        (smaller of the last two over the larger). NaN where undefined, as ``corr_fit`` of a fit that is constant.

    Raises
    ------
    ValueError
        If the changes differ in length, hold undefined values, or cover fewer than three genes.
    """
    first, second, double = (np.asarray(part, dtype=np.float64) for part in (first, second, double))
    if not (first.shape == second.shape == double.shape and first.ndim == 1 and len(first) > 2):
        shapes = (first.shape, second.shape, double.shape)
        msg = f"the three changes have shapes {shapes}; expected one value per gene, for at least three genes"
        raise ValueError(msg)
    if not all(np.isfinite(part).all() for part in (first, second, double)):
        msg = "the changes hold values that are not finite; leave those genes out"
        raise ValueError(msg)
    singles_G2 = np.stack([first, second], axis=1)
    c1, c2 = theil_sen(singles_G2, double, seed=seed)
    to_first, to_second = distance_correlation(first, double), distance_correlation(second, double)
    larger = max(to_first, to_second)
    return {
        "c1": c1,
        "c2": c2,
        "mag": math.hypot(c1, c2),
        "strength": least_deviation_slope(first + second, double),
        "dominance": dominance(c1, c2),
        "corr_fit": _pearson(singles_G2 @ np.array([c1, c2]), double),
        "dcor": distance_correlation(singles_G2, double),
        "dcor_singles": distance_correlation(first, second),
        "dcor_first": to_first,
        "dcor_second": to_second,
        "eq_contr": min(to_first, to_second) / larger if larger > 0 else float("nan"),
    }


def dominance(c1: float, c2: float) -> float:
    """``|log10(|c1| / |c2|)|``, coefficients of less than 0.001 counted as that: 0 equal, 1 tenfold."""
    return abs(math.log10(max(abs(c1), SMALLEST) / max(abs(c2), SMALLEST)))


def least_deviation_slope(x_G: np.ndarray, y_G: np.ndarray) -> float:
    """Slope s of least ``sum |y - s x|``: the weighted median of y / x; NaN where x is 0."""
    used = x_G != 0
    if not used.any():
        return float("nan")
    slope, weight = y_G[used] / x_G[used], np.abs(x_G[used])
    order = np.argsort(slope, kind="stable")
    half = np.searchsorted(np.cumsum(weight[order]), weight.sum() / 2)
    return float(slope[order[min(int(half), len(order) - 1)]])


def theil_sen(x_G2: np.ndarray, y_G: np.ndarray, *, seed: int = 0, max_pairs: int = MAX_PAIRS) -> tuple[float, float]:
    """Coefficients of ``y = c1 x1 + c2 x2`` as the spatial median of exact fits to two genes each.

    Pairs of genes that do not determine both coefficients are excluded; where none does (one single without any
    change), the least squares of smallest norm is returned. Above `max_pairs`, pairs are drawn at random.
    """
    n = len(y_G)
    if n * (n - 1) // 2 <= max_pairs:
        first, second = np.triu_indices(n, 1)
    else:
        rng = np.random.default_rng(seed)
        first = rng.integers(n, size=max_pairs)
        second = (first + rng.integers(1, n, size=max_pairs)) % n
    # two genes give two equations, a c1 + b c2 = y1 and c c1 + d c2 = y2: solved for all pairs by Cramer's rule
    (a, b), (c, d) = x_G2[first].T, x_G2[second].T
    determinant = a * d - b * c
    # as a share of its largest value: the changes of the two genes are in the same ratio where it is 0
    size = np.hypot(a, b) * np.hypot(c, d)
    usable = np.abs(determinant) > 1e-9 * size
    if not usable.any():
        c1, c2 = np.linalg.lstsq(x_G2, y_G, rcond=None)[0]
        return float(c1), float(c2)
    determinant = determinant[usable]
    y1, y2 = y_G[first][usable], y_G[second][usable]
    fits = np.stack([(y1 * d[usable] - b[usable] * y2), (a[usable] * y2 - y1 * c[usable])], axis=1)
    c1, c2 = _spatial_median(fits / determinant[:, None])
    return float(c1), float(c2)


def _spatial_median(points_N2: np.ndarray, *, tolerance: float = 1e-7, max_steps: int = 500) -> np.ndarray:
    """Point of least summed distance to all points (Weiszfeld's iteration, as modified by Vardi and Zhang 2000)."""
    middle = np.median(points_N2, axis=0)
    for _ in range(max_steps):
        apart = points_N2 - middle
        distance = np.linalg.norm(apart, axis=1)
        away = distance > 1e-12 * (1.0 + np.abs(middle).max())
        if not away.any():
            return middle
        weight = 1.0 / distance[away]
        target = (points_N2[away] * weight[:, None]).sum(axis=0) / weight.sum()
        # points at the middle have no direction: they hold it back by their number against the pull of the others
        pull = float(np.linalg.norm((apart[away] * weight[:, None]).sum(axis=0)))
        n_here = int((~away).sum())
        share = min(1.0, n_here / pull) if pull > 0 else 1.0
        moved = (1 - share) * target + share * middle
        if np.linalg.norm(moved - middle) <= tolerance * (1.0 + np.linalg.norm(middle)):
            return moved
        middle = moved
    return middle


def interaction_kind(scores: Mapping[str, float], *, factor: float = 1.2) -> str:
    """By the strength, 1 where effects add: synergy above `factor`, suppression below its inverse, else additive."""
    strength = scores["strength"]
    if math.isnan(strength):  # the singles do nothing, or cancel
        return ADDITIVE
    return SYNERGY if strength > factor else SUPPRESSION if strength < 1 / factor else ADDITIVE


def interaction_table(
    deltas: Mapping[Condition, np.ndarray], *, by: str = "strength", genes: np.ndarray | None = None
) -> pd.DataFrame:
    """Scores of every pair whose two singles are there too, in the same context, strongest first.

    Parameters
    ----------
    deltas
        Changes over control (G,) by condition.
    by
        Score to rank by, largest first; the strength puts synergy first and suppression last.
    genes
        Positions of the genes that count; all by default.

    Returns
    -------
    pd.DataFrame
        ``rank``, ``condition``, ``gene_1``, ``gene_2``, ``kind``, and the scores.
    """
    if by not in SCORES:
        raise ValueError(unknown_name("score", by, SCORES))
    kept = slice(None) if genes is None else genes
    records = []
    for condition, double_G in deltas.items():
        if len(condition) != 2:
            continue
        context, kind = condition.context, condition.kind
        singles = [deltas.get(Condition((gene,), context, kind)) for gene in condition.genes]
        if singles[0] is None or singles[1] is None:
            continue
        scores = interaction_scores(singles[0][kept], singles[1][kept], double_G[kept])
        first, second = condition.genes
        record = {"condition": condition.name, "gene_1": first, "gene_2": second}
        records.append(record | {"kind": interaction_kind(scores), **scores})
    table = pd.DataFrame(records, columns=["condition", "gene_1", "gene_2", "kind", *SCORES])
    table = table.sort_values(by, ascending=False, kind="stable", ignore_index=True)
    table.insert(0, "rank", np.arange(1, len(table) + 1))
    return table


def observed_interactions(screen: PreparedScreen, *, by: str = "strength") -> pd.DataFrame:
    """:func:`interaction_table` of the measured means of a screen."""
    screen = PreparedScreen.of(screen)
    if screen.is_measured_KG is not None or len(screen.unmeasured):
        msg = "contexts of this screen measure different genes; prepare it with genes='shared'"
        raise ValueError(msg)
    delta_CG = screen.statistics.delta(np.arange(len(screen.conditions)))
    return interaction_table(dict(zip(screen.conditions, delta_CG, strict=True)), by=by)


def predicted_interactions(predictions: Predictions, *, by: str = "strength") -> pd.DataFrame:
    """:func:`interaction_table` of predictions that hold pairs and their singles.

    The kind of a pair that was not measured is "undetermined" where the model is fitted to fewer than 8 combinations.
    """
    table = interaction_table(dict(zip(predictions.conditions, predictions.delta_UG, strict=True)), by=by)
    is_assumed = [_is_assumed(predictions, Condition.parse(name)) for name in table["condition"]]
    table.loc[np.array(is_assumed, dtype=bool), "kind"] = UNDETERMINED
    return table


def _is_assumed(predictions: Predictions, pair: Condition) -> bool:
    """Whether nothing that the model is fitted to shows how far the effects of a pair add up."""
    fitted = None if predictions.origin is None else predictions.origin.fitted_to
    return fitted is not None and pair not in fitted and not show_departures(fitted)


def predict_interaction(
    model: Any, combo: str | Sequence[str] | Condition, genes: str | Path | Iterable[str] | None = None
) -> dict[str, float]:
    """What :meth:`gears.GEARS.GI_predict` does."""
    pair = Condition.of(combo)
    if len(pair) != 2:
        msg = f"a genetic interaction is one of two different genes; found {pair.name!r}"
        raise ValueError(msg)
    first, second = list(combo) if not isinstance(combo, str | Condition) else pair.genes
    alone = [Condition((gene,), pair.context, pair.kind) for gene in (first, second)]
    predictions = model.predict([*alone, pair], clip=False)
    if len({condition.genes for condition in predictions.conditions}) == 1:
        msg = f"a genetic interaction is one of two different genes; {first} and {second} are names of one gene"
        raise ValueError(msg)
    if len(predictions) != 3:
        msg = (
            f"this model predicts {len(predictions) // 3} contexts or types of perturbation; choose one, such as "
            f"{predictions.conditions[2].name!r}"
        )
        raise ValueError(msg)
    if _is_assumed(predictions, predictions.conditions[2]):
        logger.warning(
            "the interaction of %s is undetermined: the model is fitted to fewer than %d combinations, so nothing "
            "shows how far effects add up",
            predictions.conditions[2].name,
            FEWEST_COMBINATIONS,
        )
    positions = slice(None) if genes is None else _positions(genes, list(predictions.gene_names))
    delta_UG, rows = predictions.delta_UG[:, positions], [0, 1]
    if isinstance(combo, str | Condition):  # without an order of its genes
        rows.sort(key=lambda row: predictions.conditions[row].genes)
    return interaction_scores(delta_UG[rows[0]], delta_UG[rows[1]], delta_UG[2])


def _positions(genes: str | Path | Iterable[str], gene_names: list[str]) -> np.ndarray:
    if isinstance(genes, str | Path):
        path = user_path(genes)
        genes = load_npy(path).ravel() if path.suffix == ".npy" else listed_names(path)
    named = [str(gene) for gene in genes]
    index = {gene: position for position, gene in enumerate(gene_names)}
    unknown = sorted(set(named) - set(index))
    if unknown:
        msg = f"{len(unknown)} genes are not among the {len(index)} predicted ones: {shorten(unknown)}"
        raise ValueError(msg)
    return np.array([index[gene] for gene in dict.fromkeys(named)], dtype=np.int64)


def _pearson(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a - a.mean(), b - b.mean()
    size = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / size if size > 0 else float("nan")


def distance_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Distance correlation of two samples, (n,) numbers or (n, d) points, 0 to 1; 0 where one of them is constant.

    Two samples of numbers take n log n steps (squared: n log^2 n), others n^2.
    """
    a, b = _points(a), _points(b)
    if len(a) != len(b):
        msg = f"the samples have {len(a)} and {len(b)} points; expected the same number"
        raise ValueError(msg)
    variance = math.sqrt(max(_covariance(a, a), 0.0) * max(_covariance(b, b), 0.0))
    # a constant has no dependence; rounding of its distances is no variance
    scale = max(float(np.abs(a).max(initial=0.0) * np.abs(b).max(initial=0.0)), 1e-300)
    if variance <= 1e-14 * scale:
        return 0.0
    return min(math.sqrt(max(_covariance(a, b), 0.0) / variance), 1.0)


def _covariance(a: np.ndarray, b: np.ndarray) -> float:
    """Squared distance covariance (V-statistic)."""
    n = len(a)
    if a.shape[1] == b.shape[1] == 1:
        x, y = a[:, 0], b[:, 0]
        rows_a, rows_b, product = _row_sums(x), _row_sums(y), _sum_of_products(x, y)
    else:
        rows_a, rows_b, product = _in_blocks(a, b)
    # the mean product of doubly centred distances, written out so that the (n, n) tables need not be centred
    mean_product = product / n**2
    return mean_product - 2 * float(rows_a @ rows_b) / n**3 + float(rows_a.sum()) * float(rows_b.sum()) / n**4


def _row_sums(x: np.ndarray) -> np.ndarray:
    """Sum over j of |x_i - x_j| for every i."""
    order = np.argsort(x, kind="stable")
    ordered = x[order]
    n, before = len(x), np.concatenate([[0.0], np.cumsum(ordered)[:-1]])
    place = np.arange(n)
    sums = np.empty(n)
    # in ascending order, x_i minus those before it plus those after it minus x_i
    sums[order] = ordered * (2 * place - n) + ordered.sum() - 2 * before
    return sums


def _sum_of_products(x: np.ndarray, y: np.ndarray) -> float:
    """Sum over i, j of |x_i - x_j| |y_i - y_j| (after Huo and Szekely 2016).

    With points ordered by x the first factor has a known sign; the second has one as soon as it is known which earlier
    points have the smaller y. Those are summed by merging blocks of doubled length.
    """
    order = np.argsort(x, kind="stable")
    x, y = x[order] - x.mean(), y[order] - y.mean()
    n = len(x)
    weights = np.stack([np.ones(n), x, y, x * y])  # (4, n)
    earlier = np.cumsum(weights, axis=1) - weights
    below = np.zeros_like(earlier)  # the same sums over earlier points with smaller y
    place, width = np.arange(n), 1
    # as in merge sort: at each width, points of a right half count those of the left half beside it with smaller y, and
    # every earlier point is in such a left half at one width only
    while width < n:
        block, right = place // (2 * width), (place // width) % 2 == 1
        ranked = np.lexsort((right, y, block))
        from_left = np.where(right[ranked], 0.0, weights[:, ranked])
        summed = np.cumsum(from_left, axis=1)
        start = np.searchsorted(block[ranked], block[ranked], side="left")
        within = summed - np.where(start > 0, summed[:, start - 1], 0.0)
        below[:, ranked] += np.where(right[ranked], within, 0.0)
        width *= 2

    def total(sums: np.ndarray) -> float:
        count, sum_x, sum_y, sum_xy = sums
        return float((count * x * y - x * sum_y - y * sum_x + sum_xy).sum())

    # (x_i - x_j)(y_i - y_j) over earlier j: taken with plus where y_j is smaller, with minus else; every pair twice
    return 2 * (2 * total(below) - total(earlier))


def _in_blocks(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    from scipy.spatial.distance import cdist

    rows_a, rows_b, product = np.empty(len(a)), np.empty(len(a)), 0.0
    for start in range(0, len(a), BLOCK):
        rows = slice(start, start + BLOCK)
        apart_a, apart_b = cdist(a[rows], a), cdist(b[rows], b)
        rows_a[rows], rows_b[rows] = apart_a.sum(axis=1), apart_b.sum(axis=1)
        product += float(np.einsum("ij,ij->", apart_a, apart_b))
    return rows_a, rows_b, product


def _points(values: np.ndarray) -> np.ndarray:
    points = np.asarray(values, dtype=np.float64)
    return points[:, None] if points.ndim == 1 else points
