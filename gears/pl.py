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
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gears import plotting
from gears.plotting._style import deliver, figure_of, in_notebook

_OPTIONS = {"show": None, "save": None, "return_fig": False}


def _scanpy_like(plot: Callable[..., Any]) -> Callable[..., Any]:
    """The same plot with `show`, `save` and `return_fig`."""
    taken = inspect.signature(plot)
    own = {"show": False} if "show" in taken.parameters else {}

    @functools.wraps(plot)
    def drawn(
        *args: Any,
        show: bool | None = None,
        save: str | Path | None = None,
        return_fig: bool = False,
        **options: Any,
    ) -> Any:
        ax = plot(*args, **options | own)
        figure, is_whole = figure_of(ax), options.get("ax") is None and not return_fig
        show = show or (show is None and is_whole and in_notebook())
        deliver(figure, save=save, show=show)
        return figure if return_fig else None if show else ax

    parameters = [one for name, one in taken.parameters.items() if name not in _OPTIONS]
    parameters += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value)
        for name, value in _OPTIONS.items()
    ]
    drawn.__signature__ = taken.replace(parameters=parameters)  # type: ignore[attr-defined]
    return drawn


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
