"""The plots with scanpy's habits: ``gears.pl.volcano(..., show=None, save=None, return_fig=False)``.

Each draws what the function of the same name in :mod:`gears.plotting` draws. Then:

- ``save="plot.pdf"`` writes the figure, PNG, SVG or PDF by its suffix; an earlier file is replaced.
- ``show``: a notebook shows the figure under the cell unless ``show=False``; elsewhere ``show=True`` opens a window.
- ``return_fig=True`` returns the figure. Otherwise the result is None where the figure was shown, else the Axes.

With ``ax=`` the plot is drawn there and the Axes are returned; show the figure yourself when it is complete.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gears import plotting
from gears.plotting.style import image_bytes, save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_OPTIONS = {"show": None, "save": None, "return_fig": False}


def _scanpy_like(plot: Callable[..., Any]) -> Callable[..., Any]:
    """The same plot with `show`, `save` and `return_fig`."""

    @functools.wraps(plot)
    def drawn(
        *args: Any,
        show: bool | None = None,
        save: str | Path | None = None,
        return_fig: bool = False,
        **options: Any,
    ) -> Any:
        ax = plot(*args, **options)
        figure = ax if hasattr(ax, "savefig") else ax.get_figure(root=True)
        if save is not None:
            save_figure(figure, save)
        is_whole = options.get("ax") is None and not return_fig
        if show or (show is None and is_whole and _in_notebook()):
            _show(figure)
            ax = None
        return figure if return_fig else ax

    kinds = inspect.signature(plot)
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value)
        for name, value in _OPTIONS.items()
    ]
    drawn.__signature__ = kinds.replace(parameters=[*kinds.parameters.values(), *more])  # type: ignore[attr-defined]
    return drawn


def _in_notebook() -> bool:
    """Whether the caller is a notebook's kernel."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return hasattr(shell, "kernel")


def _show(figure: Figure) -> None:
    if _in_notebook():
        from IPython.display import Image, display

        display(Image(data=image_bytes(figure)))
        return
    from matplotlib import pyplot

    window = pyplot.figure()
    assert window.canvas.manager is not None
    window.canvas.manager.canvas.figure = figure
    figure.set_canvas(window.canvas)
    pyplot.show()


coverage_curve = _scanpy_like(plotting.coverage_curve)
delta_heat_map = _scanpy_like(plotting.delta_heat_map)
embedding = _scanpy_like(plotting.embedding)
error_against_spread = _scanpy_like(plotting.error_against_spread)
gene_changes = _scanpy_like(plotting.gene_changes)
go_neighbourhood = _scanpy_like(plotting.go_neighbourhood)
interaction_map = _scanpy_like(plotting.interaction_map)
interaction_volcano = _scanpy_like(plotting.interaction_volcano)
method_differences = _scanpy_like(plotting.method_differences)
plot_perturbation = _scanpy_like(plotting.plot_perturbation)
predicted_vs_true = _scanpy_like(plotting.predicted_vs_true)
prediction_figure = _scanpy_like(plotting.prediction_figure)
rate_calibration = _scanpy_like(plotting.rate_calibration)
replay_curve = _scanpy_like(plotting.replay_curve)
training_curves = _scanpy_like(plotting.training_curves)
volcano = _scanpy_like(plotting.volcano)
