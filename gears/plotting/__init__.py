"""Plots of screens, predictions and trainings.

Every plot draws on the Axes ``ax=`` or on those of a new figure, with `title` above, returns the Axes (its figure is
``ax.figure``), opens no window and does not use pyplot's state. Marks differ in shape and lightness as well as in
colour, so that a plot can be read in grey and by colour-blind readers.
"""

from gears.plotting._changes import evidence, gene_changes, plot_perturbation, predicted_vs_true, prediction_figure
from gears.plotting._curves import (
    coverage_curve,
    error_against_spread,
    method_differences,
    rate_calibration,
    replay_curve,
    training_curves,
)
from gears.plotting._maps import delta_heat_map, go_neighbourhood, interaction_map
from gears.plotting._points import embedding, interaction_volcano, spread_p_values, volcano
from gears.plotting._style import image_bytes, new_axes, new_figure, save_figure

__all__ = [
    "coverage_curve", "delta_heat_map", "embedding", "error_against_spread", "evidence", "gene_changes",
    "go_neighbourhood", "image_bytes", "interaction_map", "interaction_volcano", "method_differences", "new_axes",
    "new_figure", "plot_perturbation", "predicted_vs_true", "prediction_figure", "rate_calibration", "replay_curve",
    "save_figure", "spread_p_values", "training_curves", "volcano",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
