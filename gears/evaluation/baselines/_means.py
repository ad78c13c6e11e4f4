"""Baselines from means: no change, train mean, matching mean, additive."""

from __future__ import annotations

import numpy as np

from gears.conditions import Condition
from gears.evaluation._fitted import ConditionMeans
from gears.evaluation.baselines._base import Baseline, register_baseline


@register_baseline("no_change", "c: the control mean", weak=True)
class NoChange(Baseline):
    """Predicts the control mean."""

    def _fit(self, means: ConditionMeans) -> None:
        return None

    def _predict(self, condition: Condition) -> np.ndarray:
        return self.control_mean_G


@register_baseline("train_mean_cells", "mean over all perturbed training cells", weak=True, weights="cells")
@register_baseline("train_mean", "O: mean of the training conditions' means, without the control", weak=True)
class TrainMean(Baseline):
    """Predicts the mean of the training conditions for every condition.

    One that trains in another context is predicted by the mean of the others.

    Parameters
    ----------
    weights
        ``"conditions"``: each condition once; ``"cells"``: as often as it has cells.
    """

    def __init__(self, *, weights: str = "conditions", clip: bool | None = None) -> None:
        super().__init__(clip=clip)
        self.weights = weights

    def _fit(self, means: ConditionMeans) -> None:
        means.require_training("the train mean")
        self.mean_G = means.reference_mean(weights=self.weights)
        self.sd_G = means.reference_sd()
        counts = self.weights == "cells" and means.n_cells_C is not None
        weight_C = np.asarray(means.n_cells_C, dtype=np.float64) if counts else np.ones(len(means.conditions))
        total = weight_C[means.train_ids].sum()
        self._moved = {
            means.conditions[row]: (weight_C[row] / total, means.mean_CG[row])
            for row in means.train_ids.tolist()
            if means.conditions[row] in set(means.moved)
        }

    def _predict(self, condition: Condition) -> np.ndarray:
        share, own_G = self._moved.get(condition, (0.0, self.mean_G))
        return self.mean_G if share in (0, 1) else (self.mean_G - share * own_G) / (1 - share)


@register_baseline(
    "matching_mean", "mean over the genes of their training single's mean, O where there is none", weak=True
)
class MatchingMean(Baseline):
    """Mean of the training singles of the condition's genes; O for a gene without a training single."""

    def _fit(self, means: ConditionMeans) -> None:
        means.require_training("the matching mean")
        self.mean_G = means.reference_mean()
        self.singles = means.single_means()

    def _predict(self, condition: Condition) -> np.ndarray:
        return np.mean([self.singles.get(gene, self.mean_G) for gene in condition.genes], axis=0)


@register_baseline(
    "additive_all_singles", "additive, with the singles of every part (uses held-out singles)", weak=True, singles="all"
)
@register_baseline(
    "additive", "c + sum of the genes' training single deltas, O - c for a gene not seen alone", weak=True
)
class Additive(Baseline):
    """Control mean plus the sum of single deltas.

    Parameters
    ----------
    singles
        ``"train"``: singles of the training part. ``"all"``: every single of the screen, as in the published
        additive baseline, which then uses held-out conditions and is marked in tables. A single is
        never predicted from its own held-out cells.
    """

    def __init__(self, *, singles: str = "train", clip: bool | None = None) -> None:
        if singles not in ("train", "all"):
            msg = f"singles must be 'train' or 'all'; found {singles!r}"
            raise ValueError(msg)
        super().__init__(clip=clip)
        self.singles = singles
        self.uses_held_out = singles == "all"

    def _fit(self, means: ConditionMeans) -> None:
        means.require_training("the additive baseline")
        self.fallback_G = means.reference_mean() - self.control_mean_G
        self.train_delta = self._deltas(means, everywhere=False)
        self.pair_delta = self._deltas(means, everywhere=True) if self.uses_held_out else self.train_delta

    def _deltas(self, means: ConditionMeans, *, everywhere: bool) -> dict[str, np.ndarray]:
        singles = means.single_means(everywhere=everywhere)
        return {gene: mean - self.control_mean_G for gene, mean in singles.items()}

    def _predict(self, condition: Condition) -> np.ndarray:
        delta_of = self.train_delta if len(condition) == 1 else self.pair_delta
        deltas = [delta_of.get(gene, self.fallback_G) for gene in condition.genes]
        return self.control_mean_G + np.sum(deltas, axis=0)
