"""Why a score is undefined."""

from __future__ import annotations

import numpy as np

from gears.evaluation._rows import changes
from gears.evaluation.metrics._registry import get_metric
from gears.evaluation.truth import Truth

NO_PREDICTION, NO_TRAINING, NOT_ASKED = "no finite prediction", "no training condition", "not asked"
ONE_CELL, NO_CHANGED, NO_HIT = "one cell", "no changed gene", "not among the largest effects"
CONSTANT, OTHER = "constant prediction", "undefined"
_OF_CHANGED = ("direction_changed", "hit_recall", "average_precision_changed", "relative_error", "de_")
_RATE = 0.05  # of false discoveries, as in gears.evaluation.metrics.differential
_OF_REFERENCE = ("_ref", "relative_error", "amplitude_slope")


def reasons(name: str, value_U: np.ndarray, predicted_UG: np.ndarray, truth: Truth) -> list[str]:
    """Why each value of a metric is undefined, "" where it is not: no changed gene, one cell, constant prediction, ...

    "not asked": the metric reads what the truth was made without, such as cells or a ranking of genes.
    """
    undefined = np.isnan(value_U)
    if not undefined.any():
        return [""] * len(value_U)
    metric = get_metric(name)
    has_changed_U: list[bool] = np.any(truth.adjusted_p_UG < _RATE, axis=1).tolist()
    lacks = (metric.needs_cells and truth.cells is None) or (metric.needs_de and not any(map(len, truth.top_de)))
    found = []
    for row, is_undefined in enumerate(undefined.tolist()):
        if not is_undefined:
            found.append("")
        elif not np.isfinite(predicted_UG[row]).all():
            found.append(NO_PREDICTION)
        elif np.isnan(truth.reference_mean_G).any() and name.endswith(_OF_REFERENCE):
            found.append(NO_TRAINING)
        elif lacks:
            found.append(NOT_ASKED)
        elif truth.n_cells_U[row] == 1:
            found.append(ONE_CELL)
        elif name.startswith(_OF_CHANGED) and not has_changed_U[row]:
            found.append(NO_CHANGED)
        elif name.startswith("size_recall"):
            found.append(NO_HIT)
        else:
            found.append(CONSTANT if _is_constant(name, predicted_UG, truth, row) else OTHER)
    return found


def _is_constant(name: str, predicted_UG: np.ndarray, truth: Truth, row: int) -> bool:
    """Whether a condition's prediction does not differ between genes, as the metric sees it."""
    origin = truth.reference_mean_G if name.endswith(_OF_REFERENCE) else truth.control_mean_G
    origin = origin[row] if origin.ndim == 2 else origin
    one = predicted_UG[[row]]
    return any(float(np.ptp(values)) <= 1e-9 for values in (changes(one, origin)[0], one))
