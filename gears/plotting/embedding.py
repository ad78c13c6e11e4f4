"""Plot conditions as points in the plane of the first two principal components of their changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gears.conditions import Condition
from gears.core.messages import count
from gears.plotting.style import (
    MARKS,
    condition_names,
    finish,
    legend_below,
    name_near,
    new_axes,
    per_condition,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def embedding(
    delta_UG: np.ndarray,
    conditions: Sequence[Condition | str],
    *,
    groups: Sequence[str] | None = None,
    true_delta_UG: np.ndarray | None = None,
    coordinates_U2: np.ndarray | None = None,
    n_labels: int = 12,
    title: str = "",
    ax: Axes | None = None,
) -> Axes:
    """Predicted conditions in the plane of the first two principal components of their changes.

    True changes are hollow marks in the same plane, joined to their predictions by lines: long lines are errors, and
    collapsed predictions lie close together.

    Parameters
    ----------
    delta_UG
        Predicted changes over control, (U, G).
    conditions
        The U conditions, at least two.
    groups
        (U,) such as the subgroup of each condition, at most six different ones, shown by mark and colour.
    true_delta_UG
        True changes, (U, G).
    coordinates_U2
        Another embedding of the predictions (UMAP, say), instead of principal components; without true changes.
    n_labels
        Number of conditions to name, those farthest from the middle first.

    Raises
    ------
    ValueError
        If lengths disagree, there are fewer than two conditions or too many groups.
    """
    names = condition_names(conditions)
    delta = per_condition("delta_UG", delta_UG, len(names))
    true = None if true_delta_UG is None else per_condition("true_delta_UG", true_delta_UG, len(names))
    group_names = _groups(groups, len(names))
    if true is not None and coordinates_U2 is not None:
        msg = "true_delta_UG has no coordinates in coordinates_U2; omit one of the two"
        raise ValueError(msg)
    ax = new_axes(5.6, 4.6) if ax is None else ax
    if coordinates_U2 is None:
        points_U2, true_U2, labels = _principal(delta, true)
    else:
        points_U2 = per_condition("coordinates_U2", coordinates_U2, len(names))
        true_U2, labels = None, ("", "")
    order = list(dict.fromkeys(group_names))
    for group, (colour, mark) in zip(order, MARKS, strict=False):
        in_group = np.array([one == group for one in group_names])
        _draw(ax, points_U2[in_group], None if true_U2 is None else true_U2[in_group], colour, mark, group)
    finish(ax, *labels, title, legend=False)
    ax.margins(0.12)
    if order != [""] or true is not None:
        legend_below(ax, columns=4)
    ax.autoscale_view()
    far = np.argsort(-np.linalg.norm(points_U2 - points_U2.mean(axis=0), axis=1), kind="stable")[:n_labels]
    name_near(ax, points_U2[:, 0], points_U2[:, 1], [(int(point), names[point]) for point in far])
    return ax


def _draw(
    ax: Axes, points_N2: np.ndarray, true_N2: np.ndarray | None, colour: str, mark: str, kind: str
) -> None:
    label = f"{kind}, predicted" if kind and true_N2 is not None else kind or "predicted"
    if true_N2 is not None:
        for start, end in zip(points_N2, true_N2, strict=True):
            ax.plot([start[0], end[0]], [start[1], end[1]], color="0.75", linewidth=0.7, zorder=1)
        hollow: dict[str, Any] = {"facecolors": "white", "edgecolors": colour, "linewidths": 1.1, "zorder": 2}
        label_true = f"{kind}, true" if kind else "true"
        ax.scatter(true_N2[:, 0], true_N2[:, 1], s=30, marker=mark, label=label_true, **hollow)
    style: dict[str, Any] = {
        "s": 34,
        "marker": mark,
        "color": colour,
        "edgecolors": "white",
        "linewidths": 0.4,
    }
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
