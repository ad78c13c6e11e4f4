"""How much the head counts: what it is worth on training conditions that it has not seen, by kind of condition.

Member k of the head predicts the conditions of fold k, without which it was trained. On these predictions f of the
prior's residuals r the least-squares weight is ``sum r f / sum f f``. The candidate is the lower 5 % bound of it
(bootstrap over conditions), between 0 and 1. The head gets the largest quarter of it (4/4, 3/4, 2/4, 1/4) with which
both decisive errors are beyond chance smaller than the prior's, and on the average perturbations are told apart no
worse and no fewer changed genes get the right direction; or 0. Conditions of one gene and of several have separate
weights: the head can help with one kind alone.
``benchmarks/head.py`` measures this rule.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gears.core._numbers import clipped
from gears.evaluation.metrics._registry import condition_metrics, get_metric
from gears.evaluation.truth import Truth
from gears.priors._process import mean_of_others

FEWEST_CONDITIONS = 40
"""With fewer training conditions no head is trained: with 18 to 25 it overfits."""
FEWEST_OF_A_KIND = 10
"""With fewer training conditions of a kind (one gene, several) the head has weight 0 there."""
JUDGED = ("pearson_delta_ref", "relative_error", "discrimination_ref", "direction_changed")
"""The metrics that must gain: on the first two beyond chance, on the others nothing may be lost."""
LEVEL = 0.05
N_DRAWS = 1000
SHARES = (1.0, 0.75, 0.5, 0.25)
"""Parts of the candidate weight that are tried: what the whole of it blurs, a part of it may not."""


@dataclass(frozen=True)
class TrainingTruth:
    """What the training conditions showed, by setting."""

    parts: tuple[tuple[Truth, np.ndarray], ...]
    """Of each setting the truth, with the mean of the other conditions as the reference of each
    (:meth:`gears.evaluation.Truth.for_choices`), and the rows of its conditions among all C."""
    clip: bool = False  # whether prediction sets negative expression to zero

    @cached_property
    def delta_CG(self) -> np.ndarray:
        """Measured changes."""
        return self._joined([truth.delta_UG for truth, _ in self.parts])

    def loss_weights(self) -> np.ndarray:
        """Weights of squared errors, (C, G), of mean 1.

        Their sum over genes is the error as a share of that of the mean of the other conditions, over all genes and
        over genes by evidence: the head is trained on what it is judged by.
        """
        square_CG = self._joined(
            [(truth.delta_UG - mean_of_others(truth.delta_UG)) ** 2 for truth, _ in self.parts]
        )
        evidence_CG = self._joined([truth.evidence_UG for truth, _ in self.parts])
        total_C1 = square_CG.sum(axis=1, keepdims=True)
        by_evidence_C1 = (evidence_CG * square_CG).sum(axis=1, keepdims=True)
        tiny = np.finfo(np.float64).tiny
        weight_CG = 1 / np.maximum(total_C1, tiny) + evidence_CG / np.maximum(by_evidence_C1, tiny)
        weight_CG[(total_C1 <= 0)[:, 0]] = 0.0
        return np.asarray(weight_CG / (weight_CG.mean() or 1.0))

    def scores(self, change_CG: np.ndarray) -> np.ndarray:
        """The metrics :data:`JUDGED` of predicted changes, each so that higher is better, (C, 4); 0 where undefined."""
        sign_4 = [1 if get_metric(name).higher_is_better else -1 for name in JUDGED]
        values = [
            condition_metrics(
                clipped(truth.control_mean_G + change_CG[rows], self.clip, False), truth, JUDGED
            )
            for truth, rows in self.parts
        ]
        return np.nan_to_num(self._joined(values) * sign_4)

    def _joined(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """Rows of the settings in the order of the conditions."""
        order_C = np.argsort(np.concatenate([rows for _, rows in self.parts]))
        return np.concatenate(parts)[order_C]


@dataclass(frozen=True)
class HeadWeight:
    """Weight of the head under one kind of condition, and how it was found."""

    weight: float = 0.0  # 0 where the head is not used
    least_squares: float = 0.0
    """Least-squares weight on predictions of unseen conditions; its lower bound is the candidate."""
    gains: tuple[float, ...] = ()
    """Mean gains in the four decisive metrics at the weight, or at the candidate where the weight is 0; positive is
    better."""
    n_conditions: int = 0

    def report(self) -> dict[str, Any]:
        """Plain values for the saved model."""
        return {
            "weight": self.weight,
            "least_squares": self.least_squares,
            "conditions": self.n_conditions,
            **{f"gain_{metric}": gain for metric, gain in zip(JUDGED, self.gains, strict=False)},
        }


def earned_weight(
    truth: TrainingTruth, prior_CG: np.ndarray, head_CG: np.ndarray, weight_CG: np.ndarray, rows: np.ndarray
) -> HeadWeight:
    """Weight of the head under the conditions in `rows`.

    `prior_CG`, `head_CG`: predictions of conditions that neither prior nor head were fitted to; the head's without
        weight.
    `weight_CG`: weights of squared errors, as in training.
    """
    if len(rows) < FEWEST_OF_A_KIND:
        return HeadWeight(n_conditions=len(rows))
    residual_RG, head_RG = (truth.delta_CG - prior_CG)[rows], head_CG[rows]
    product_R = (weight_CG[rows] * residual_RG * head_RG).sum(axis=1)
    square_R = (weight_CG[rows] * head_RG**2).sum(axis=1)
    if not square_R.any():
        return HeadWeight(n_conditions=len(rows))
    draw = np.random.Generator(np.random.Philox(key=len(rows)))
    picks_DR = draw.integers(len(rows), size=(N_DRAWS, len(rows)))
    total_D = np.maximum(square_R[picks_DR].sum(axis=1), np.finfo(np.float64).tiny)
    bound = float(np.quantile(product_R[picks_DR].sum(axis=1) / total_D, LEVEL))
    candidate = min(max(bound, 0.0), 1.0)
    least_squares = float(product_R.sum() / square_R.sum())
    without_R4 = truth.scores(prior_CG)[rows]
    refused = HeadWeight(0.0, least_squares, n_conditions=len(rows))
    for share in SHARES if candidate else ():
        gain_R4 = truth.scores(prior_CG + share * candidate * head_CG)[rows] - without_R4
        gain_4 = gain_R4.mean(axis=0)
        gains = tuple(float(gain) for gain in gain_4)
        low_2 = np.quantile(gain_R4[picks_DR, :2].mean(axis=1), LEVEL, axis=0)
        if (low_2 > 0).all() and (gain_4[2:] >= 0).all():
            return HeadWeight(share * candidate, least_squares, gains, len(rows))
        if share == 1.0:
            refused = dataclasses.replace(refused, gains=gains)
    return refused
