"""Conditions, genes and pairs as points: principal components, volcano plots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import special

from gears.conditions import Condition
from gears.core._messages import count
from gears.plotting import _style
from gears.plotting._style import BLUE, MARKS, ORANGE, PURPLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def embedding(
    delta: np.ndarray,
    conditions: Sequence[Condition | str],
    *,
    groups: Sequence[str] | None = None,
    true_delta: np.ndarray | None = None,
    coordinates: np.ndarray | None = None,
    n_labels: int = 12,
    title: str = "",
    ax: Axes | None = None,
) -> Axes:
    """Predicted conditions in the plane of the first two principal components of their changes.

    True changes are hollow marks in the same plane, joined to their predictions by lines: long lines are errors, and
    collapsed predictions lie close together.

    Parameters
    ----------
    delta
        Predicted changes over control, (U, G).
    conditions
        The U conditions, at least two.
    groups
        (U,) such as the subgroup of each condition, at most six different ones, shown by mark and colour.
    true_delta
        True changes, (U, G).
    coordinates
        Another embedding of the predictions (UMAP, say), instead of principal components; without true changes.
    n_labels
        Number of conditions to name, those farthest from the middle first.

    Raises
    ------
    ValueError
        If lengths disagree, there are fewer than two conditions or too many groups.
    """
    names = _style.condition_names(conditions)
    delta = _style.per_condition("delta", delta, len(names))
    true = None if true_delta is None else _style.per_condition("true_delta", true_delta, len(names))
    group_names = _groups(groups, len(names))
    if true is not None and coordinates is not None:
        msg = "true_delta cannot be drawn in custom coordinates; omit one of the two"
        raise ValueError(msg)
    ax = _style.new_axes(5.6, 4.6) if ax is None else ax
    if coordinates is None:
        points_U2, true_U2, labels = _principal(delta, true)
    else:
        points_U2 = _style.per_condition("coordinates", coordinates, len(names))
        true_U2, labels = None, ("", "")
    order = list(dict.fromkeys(group_names))
    for group, (colour, mark) in zip(order, MARKS, strict=False):
        in_group = np.array([one == group for one in group_names])
        _draw(ax, points_U2[in_group], None if true_U2 is None else true_U2[in_group], colour, mark, group)
    _style.finish(ax, *labels, title, legend=False)
    ax.margins(0.12)
    if true_U2 is not None:
        ax.lines[0].set_label("error")  # one entry of the legend for all lines
    if order != [""] or true is not None:
        _style.legend_below(ax)
    ax.autoscale_view()
    far = np.argsort(-np.linalg.norm(points_U2 - points_U2.mean(axis=0), axis=1), kind="stable")[:n_labels]
    marks = points_U2
    if true_U2 is not None:  # names cover no line either
        marks = np.concatenate([points_U2 + share * (true_U2 - points_U2) for share in np.linspace(0, 1, 30)])
    _style.name_near(ax, marks[:, 0], marks[:, 1], [(int(point), names[point]) for point in far])
    return ax


def _draw(ax: Axes, points_N2: np.ndarray, true_N2: np.ndarray | None, colour: str, mark: str, kind: str) -> None:
    label = f"{kind}, predicted" if kind and true_N2 is not None else kind or "predicted"
    if true_N2 is not None:
        for start, end in zip(points_N2, true_N2, strict=True):
            ax.plot([start[0], end[0]], [start[1], end[1]], color="0.75", linewidth=0.7, zorder=1, label="_error")
        hollow: dict[str, Any] = {"facecolors": "white", "edgecolors": colour, "linewidths": 1.1, "zorder": 2}
        label_true = f"{kind}, true" if kind else "true"
        ax.scatter(true_N2[:, 0], true_N2[:, 1], s=30, marker=mark, label=label_true, **hollow)
    style: dict[str, Any] = {"s": 34, "marker": mark, "color": colour, "edgecolors": "white", "linewidths": 0.4}
    ax.scatter(points_N2[:, 0], points_N2[:, 1], label=label, **style)


def _principal(
    delta_UG: np.ndarray, true_UG: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None, tuple[str, str]]:
    """Coordinates on the first two components of all changes, and their labels."""
    both = delta_UG if true_UG is None else np.concatenate([delta_UG, true_UG])
    if len(delta_UG) < 2:
        msg = f"an embedding needs at least two conditions; found {len(delta_UG)}"
        raise ValueError(msg)
    middle_G = both.mean(axis=0)
    _, sizes, directions = np.linalg.svd(both - middle_G, full_matrices=False)
    directions = directions[:2]
    # the sign of a component is arbitrary: the gene of largest weight points to the positive side
    largest = np.abs(directions).argmax(axis=1)
    directions = directions * np.sign(directions[np.arange(len(directions)), largest])[:, None]
    share = sizes**2 / max(float((sizes**2).sum()), np.finfo(float).tiny)
    labels = [f"component {i + 1} ({share[i]:.0%} of the variance)" for i in range(len(directions))]
    if len(directions) < 2:
        msg = "an embedding in a plane needs at least two genes; found 1"
        raise ValueError(msg)
    true_U2 = None if true_UG is None else (true_UG - middle_G) @ directions.T
    return (delta_UG - middle_G) @ directions.T, true_U2, (labels[0], labels[1])


def _groups(groups: Sequence[str] | None, n_conditions: int) -> list[str]:
    names = [""] * n_conditions if groups is None else [str(group) for group in groups]
    if len(names) != n_conditions or len(set(names)) > len(MARKS):
        msg = (
            f"{count(len(names), 'entry', 'entries')} of {len(set(names))} groups for "
            f"{count(n_conditions, 'condition')}; expected one per condition, of at most {len(MARKS)} groups"
        )
        raise ValueError(msg)
    return names


def volcano(
    delta: np.ndarray,
    p_values: np.ndarray,
    gene_names: Sequence[str] | None = None,
    *,
    level: float = 0.05,
    min_change: float = 0.0,
    title: str = "",
    n_labels: int = 10,
    evidence: str = "p",
    ax: Axes | None = None,
) -> Axes:
    """Change of every gene against -log10 of its p value; genes that pass are marked by direction.

    Where none passes, the title is "no significant gene". Predicted changes have no p values. Use those of the
    observed cells (:func:`gears.evaluation.metrics.differential.welch_p_values`), to see the predictions for genes that
    change; or, for an ensemble, :func:`spread_p_values`.

    Parameters
    ----------
    delta
        Changes over the control mean, (G,).
    p_values
        Two-sided p values, (G,); 0 is drawn at the top edge, NaN counts as 1.
    gene_names
        (G,) names for the labels.
    level
        Share of false discoveries (Benjamini and Hochberg 1995) at which genes pass.
    min_change
        Smallest absolute change of a gene that passes.
    n_labels
        Number of significant genes to name: the highest points, and those of largest absolute change.
    evidence
        Label of the p values on the axis.

    Raises
    ------
    ValueError
        If lengths disagree, or p values or the level are outside 0 to 1.
    """
    delta = _style.per_gene("delta", delta)
    p = np.nan_to_num(_style.per_gene("p_values", p_values, len(delta)), nan=1.0)
    names = None if gene_names is None else _style.names_of(gene_names, len(delta))
    if not 0 < level < 1 or p.min(initial=0.0) < 0 or p.max(initial=1.0) > 1:
        msg = (
            f"level={level:g}, p values from {p.min(initial=1):g} to {p.max(initial=0):g}; expected a level between "
            "0 and 1 and p values from 0 to 1 (not their logarithms)"
        )
        raise ValueError(msg)
    from gears.evaluation.metrics.differential import differential  # loaded when a figure is drawn

    ax = _style.new_axes(5.2, 4.4) if ax is None else ax
    height = -np.log10(np.maximum(p, np.min(p[p > 0], initial=1.0) / 10))
    passed = differential(p, level) & (np.abs(delta) >= min_change)
    groups = (
        ("other genes", ~passed, "0.7", ".", 18),
        ("up", passed & (delta > 0), ORANGE, "^", 26),
        ("down", passed & (delta <= 0), BLUE, "v", 26),
    )
    for label, in_group, colour, mark, size in groups:
        ax.scatter(
            delta[in_group], height[in_group], s=size, color=colour, marker=mark, linewidths=0.3, edgecolors="white",
            label=f"{label} ({int(in_group.sum())})", zorder=2,
        )  # fmt: skip
    ax.axvline(0, color="0.6", linewidth=0.6, zorder=1)
    if passed.any():
        label = f"{100 * level:g} % false discoveries"
        ax.axhline(height[passed].min(), color="0.4", linewidth=0.8, linestyle="--", zorder=1, label=label)
    else:
        title = f"{title}\nno significant gene ({100 * level:g} % false discoveries)".lstrip()
    ax.set_ylim(0, max(float(height.max(initial=0.0)) * 1.06, 1.0))
    _style.finish(ax, "change over control", f"-log10 {evidence}", title, legend=False)
    _style.legend_below(ax, columns=2)
    if names is not None and passed.any():
        genes = np.flatnonzero(passed)
        first = [np.argsort(-values[genes], kind="stable") for values in (height, np.abs(delta))]
        order = genes[pd.unique(np.stack(first, axis=1).ravel())][:n_labels]  # in turn: the highest, the largest
        across = np.linspace(*ax.get_xlim(), 100)  # no name on the dashed line
        x, y = np.append(delta, across), np.append(height, np.full(100, height[genes].min()))
        _style.name_near(ax, x, y, [(int(gene), names[gene]) for gene in order])
    return ax


_LEAST_SCORE = 1e-4
KINDS = (
    ("undetermined", "0.82", "x", 14),
    ("neutral", "0.55", ".", 24),
    ("synergy", ORANGE, "^", 26),
    ("suppression", BLUE, "v", 26),
    ("masking", PURPLE, "D", 18),
)


def interaction_volcano(table: pd.DataFrame, *, title: str = "", n_labels: int = 8, ax: Axes | None = None) -> Axes:
    """Departure of every pair from additivity against -log10 of its score, marked by kind.

    Pairs that depart (synergy, suppression, masking) have a line over their 90 % interval; the title reports that
    none does. Those without a score are at the lower edge.

    Parameters
    ----------
    table
        Table of :func:`gears.design.interactions_table`.
    n_labels
        Number of pairs to name, those of the smallest score first. Values below 0.0001 are drawn at the top edge.

    Raises
    ------
    ValueError
        If columns are missing.
    """
    _style.columns_of(table, ("gene_1", "gene_2", "departure", "fdr_score", "kind"), "a table of interactions_table")
    ax = _style.new_axes(5.2, 4.4) if ax is None else ax
    departure = table["departure"].to_numpy(dtype=float)
    score = np.nan_to_num(table["fdr_score"].to_numpy(dtype=float), nan=1.0)
    height = -np.log10(np.maximum(score, _LEAST_SCORE))
    covered = [np.stack([departure, height])]
    interval = "90 % interval"
    for kind, colour, mark, size in KINDS:
        in_kind = (table["kind"] == kind).to_numpy()
        edge: dict[str, Any] = {} if mark == "x" else {"edgecolors": "white"}
        ax.scatter(
            departure[in_kind], height[in_kind], s=size, color=colour, marker=mark, linewidths=0.3 if edge else 0.8,
            label=f"{kind} ({int(in_kind.sum())})", zorder=2, **edge,
        )  # fmt: skip
        if mark not in "x." and in_kind.any() and {"low", "high"} <= set(table):
            low, high = table.loc[in_kind, ["low", "high"]].to_numpy(dtype=float).T
            ax.hlines(height[in_kind], low, high, color=colour, linewidth=0.9, label=interval, zorder=1.5)
            interval = "_interval"  # one entry of the legend
            covered += [np.stack([x, height[in_kind]]) for x in np.linspace(low, high, 20)]
    ax.axvline(0, color="0.6", linewidth=0.6, zorder=1)
    ax.set_ylim(0, max(float(height.max(initial=0.0)) * 1.08, 0.1))
    if table["kind"].isin(["undetermined", "neutral"]).all():
        title = f"{title}\nno pair departs from additivity beyond chance".lstrip()
    _style.finish(ax, "departure from additivity", "-log10 score", title, legend=False)
    _style.legend_below(ax, columns=3)
    names = [f"{first}+{second}" for first, second in zip(table["gene_1"], table["gene_2"], strict=True)]
    order = np.argsort(-height, kind="stable")[:n_labels]
    x, y = np.concatenate(covered, axis=1)
    _style.name_near(ax, x, y, [(int(row), names[row]) for row in order])
    return ax


def spread_p_values(delta: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Two-sided p of "no change", if predictions err by a Gaussian of the predicted standard deviation.

    Parameters
    ----------
    delta
        Predicted changes, any shape.
    spread
        Their standard deviations, of the same shape: the spread of an ensemble, a lower bound of the
        error, so that these p values are too small where all members are wrong together.

    Examples
    --------
    >>> spread_p_values(np.array([0.0, 1.96]), np.array([1.0, 1.0])).round(3).tolist()
    [1.0, 0.05]
    """
    delta, spread = np.asarray(delta, dtype=np.float64), np.asarray(spread, dtype=np.float64)
    if delta.shape != spread.shape or not (spread >= 0).all():
        msg = (
            f"changes of shape {delta.shape} and standard deviations of shape {spread.shape}; expected one shape "
            "and no negative or undefined deviation"
        )
        raise ValueError(msg)
    size = np.divide(np.abs(delta), spread, out=np.full_like(delta, np.inf), where=spread > 0)
    return np.where(delta == 0, 1.0, 2 * special.ndtr(-size))
