"""The published figure of a condition: its cells, and what a model predicts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gears.conditions import Condition
from gears.plotting.genes import gene_changes
from gears.plotting.style import save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_perturbation(
    model: Any,
    query: str | Sequence[str] | Condition,
    save_file: str | Path | None = None,
    *,
    n_genes: int = 20,
    ax: Axes | None = None,
) -> Axes:
    """What :meth:`gears.GEARS.plot_perturbation` does.

    Parameters
    ----------
    model
        A trained :class:`gears.GEARS` with its screen.
    query
        A condition of the screen, such as ``"A+B"``, ``"A+ctrl"`` or ``["A", "B"]``; in a screen of several
        contexts or types with both, ``"A+ctrl [CRISPRi] @ K562"``.
    save_file
        Write the figure to this file as well (PNG, SVG or PDF by its suffix).
    n_genes
        Top differential genes (drop-outs left out, as published) that are drawn.
    ax
        Axes to draw on; by default those of a new figure.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    KeyError
        The screen has no such condition; near matches are named.
    ValueError
        The model has no screen, or the condition is the control.
    """
    from gears.evaluation.cells import dense_rows
    from gears.evaluation.truth import Truth

    screen = model._need_data("plot_perturbation").screen
    condition = Condition.of(query)
    if condition.is_control:
        msg = "the control has no change to plot; give a perturbed condition, such as 'A+ctrl' or 'A+B'"
        raise ValueError(msg)
    row = screen.id_of(condition)
    if condition.suffix:  # one context of several, with its own control
        screen = screen.setting(condition.context, condition.kind)
        row = screen.id_of(condition.plain)
    truth = Truth.of(screen, [condition.plain], n_top=n_genes)
    predictions = model.predict([condition])
    cells_NG = dense_rows(screen, screen.cells_of(row)) - truth.control_mean_G
    genes = truth.top_de_non_dropout[0]
    ax = gene_changes(
        truth.delta_UG[0],
        {"predicted": predictions.delta(condition)},
        screen.gene_names,
        genes=genes if len(genes) else None,
        cells_delta_NG=cells_NG,
        n_genes=n_genes,
        title=condition.name,
        ax=ax,
    )
    figure = ax.get_figure(root=True)
    if save_file is not None and figure is not None:
        save_figure(figure, save_file)
    return ax
