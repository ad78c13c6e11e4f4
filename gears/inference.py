"""Functions of cell-gears' ``gears.inference``: predict the cells of a loader, and analyse the results."""

from gears.cell_gears._analysis import compute_metrics, deeper_analysis, non_dropout_analysis, non_zero_analysis
from gears.cell_gears._helpers import evaluate
from gears.cell_gears._moved import GONE
from gears.core._lazy import lazy_names

__all__ = [
    "compute_metrics", "deeper_analysis", "evaluate", "non_dropout_analysis", "non_zero_analysis",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__, {}, GONE[__name__])
