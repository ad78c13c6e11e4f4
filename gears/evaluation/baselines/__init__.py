"""Baselines that a trained model has to beat, by name."""

from gears.evaluation._fitted import ConditionMeans
from gears.evaluation.baselines._base import (
    BASELINES,
    Baseline,
    BaselineEntry,
    Estimator,
    make_baseline,
    register_baseline,
)
from gears.evaluation.baselines._means import Additive, GOKnn, GORidge, MatchingMean, NoChange, TrainMean
from gears.evaluation.baselines._regression import (
    AdditiveRidge,
    AdditiveRidgeCoexpression,
    AdditiveRidgeGO,
    EmbeddingRidge,
    Linear,
)

# Those that use training conditions only and need no embeddings; `additive_all_singles` and `embedding_ridge` are
# available by name.
DEFAULT_BASELINES = (
    "no_change", "train_mean", "train_mean_cells", "matching_mean", "additive", "additive_ridge", "additive_ridge_go",
    "additive_ridge_coexpression", "linear", "go_ridge", "go_knn",
)  # fmt: skip

__all__ = [
    "BASELINES", "DEFAULT_BASELINES", "Additive", "AdditiveRidge", "AdditiveRidgeCoexpression", "AdditiveRidgeGO",
    "Baseline", "BaselineEntry", "ConditionMeans", "EmbeddingRidge", "Estimator", "GOKnn", "GORidge", "Linear",
    "MatchingMean", "NoChange", "TrainMean", "make_baseline", "register_baseline",
]  # fmt: skip
