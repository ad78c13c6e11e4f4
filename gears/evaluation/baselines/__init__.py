"""Baselines that a trained model has to beat, by name."""

from gears.evaluation.baselines.base import (
    BASELINES,
    Baseline,
    BaselineEntry,
    ConditionMeans,
    Estimator,
    make_baseline,
    register_baseline,
)
from gears.evaluation.baselines.go import GOKnn, GORidge
from gears.evaluation.baselines.linear import Linear
from gears.evaluation.baselines.means import Additive, MatchingMean, NoChange, TrainMean

# Those that use training conditions only; `additive_all_singles` is available by name.
DEFAULT_BASELINES = (
    "no_change", "train_mean", "train_mean_cells", "matching_mean", "additive", "linear", "go_ridge", "go_knn",
)  # fmt: skip

__all__ = [
    "BASELINES", "DEFAULT_BASELINES", "Additive", "Baseline", "BaselineEntry", "ConditionMeans", "Estimator", "GOKnn",
    "GORidge", "Linear", "MatchingMean", "NoChange", "TrainMean", "make_baseline", "register_baseline",
]  # fmt: skip
