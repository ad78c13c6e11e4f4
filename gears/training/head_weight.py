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
from dataclasses import dataclass
from typing import Any

import numpy as np

from gears.evaluation.metrics.correlation import direction_share
from gears.evaluation.rows import pearson_rows, weighted_rows

FEWEST_CONDITIONS = 40
"""With fewer training conditions no head is trained: with 18 to 25 it overfits."""
FEWEST_OF_A_KIND = 10
"""With fewer training conditions of a kind (one gene, several) the head has weight 0 there."""
LEVEL = 0.05
N_DRAWS = 1000
SHARES = (1.0, 0.75, 0.5, 0.25)
"""Parts of the candidate weight that are tried: what the whole of it blurs, a part of it may not."""


@dataclass(frozen=True)
class TrainingTruth:
    """Measured changes of training conditions, and what they are compared with.

    Attributes
    ----------
    delta_CG
        Measured changes.
    known_CG
        Mean change of the other conditions.
    evidence_CG
        Evidence that a gene changes (:attr:`gears.evaluation.Truth.evidence_UG`).
    is_changed_CG
        Genes that change (:func:`gears.evaluation.metrics.decisive.changed_genes`).
    least_CG
        Changes below it are negative expression, which prediction sets to zero.
    """

    delta_CG: np.ndarray
    known_CG: np.ndarray
    evidence_CG: np.ndarray
    is_changed_CG: np.ndarray
    least_CG: np.ndarray

    def loss_weights(self) -> np.ndarray:
        """Weights of squared errors, (C, G), of mean 1.

        Their sum over genes is the error as a share of that of the mean of the other conditions, over all genes and
        over genes by evidence: the head is trained on what it is judged by.
        """
        square_CG = (self.delta_CG - self.known_CG) ** 2
        total_C1 = square_CG.sum(axis=1, keepdims=True)
        by_evidence_C1 = (self.evidence_CG * square_CG).sum(axis=1, keepdims=True)
        tiny = np.finfo(np.float64).tiny
        weight_CG = 1 / np.maximum(total_C1, tiny) + self.evidence_CG / np.maximum(by_evidence_C1, tiny)
        weight_CG[(total_C1 <= 0)[:, 0]] = 0.0
        return np.asarray(weight_CG / (weight_CG.mean() or 1.0))

    def scores(self, change_CG: np.ndarray) -> np.ndarray:
        """Decisive metrics of predicted changes, higher is better, (C, 4).

        ``pearson_delta_ref``, minus ``relative_error``, ``discrimination_ref`` among these conditions, each with the
        mean of the other conditions as reference, and ``direction_changed``, 0 where no gene changes.
        """
        change_CG = np.maximum(change_CG, self.least_CG)
        predicted_CG, true_CG = change_CG - self.known_CG, self.delta_CG - self.known_CG
        pearson_C = np.nan_to_num(pearson_rows(predicted_CG, true_CG))
        error_C = weighted_rows((change_CG - self.delta_CG) ** 2, self.evidence_CG)
        relative_C = error_C / (weighted_rows(true_CG**2, self.evidence_CG).mean() or 1.0)
        direction_C = np.nan_to_num(direction_share(change_CG, self.delta_CG, self.is_changed_CG))
        return np.stack([pearson_C, -relative_C, self._discrimination(predicted_CG), direction_C], axis=1)

    def _discrimination(self, predicted_CG: np.ndarray) -> np.ndarray:
        """Share of the other conditions whose specific change is less like the prediction than the own one, (C,).

        Row c: cosines of its prediction p with ``delta_q - known_c``, from products of whole tables.
        """
        delta, known = self.delta_CG, self.known_CG
        product_CC = predicted_CG @ delta.T - (predicted_CG * known).sum(axis=1)[:, None]
        square_CC = (delta**2).sum(axis=1)[None, :] - 2 * known @ delta.T + (known**2).sum(axis=1)[:, None]
        cosine_CC = product_CC / np.sqrt(np.maximum(square_CC, np.finfo(np.float64).tiny))
        return np.asarray((cosine_CC < np.diag(cosine_CC)[:, None]).sum(axis=1) / max(1, len(delta) - 1))


@dataclass(frozen=True)
class HeadWeight:
    """Weight of the head under one kind of condition, and how it was found.

    Attributes
    ----------
    weight
        0 where the head is not used.
    least_squares
        Least-squares weight on predictions of unseen conditions; its lower bound is the candidate.
    gains
        Mean gains in the four decisive metrics at the weight, or at the candidate where the weight is 0; positive is
        better.
    """

    weight: float = 0.0
    least_squares: float = 0.0
    gains: tuple[float, ...] = ()
    n_conditions: int = 0

    def report(self) -> dict[str, Any]:
        """Plain values for the saved model."""
        metrics = ("pearson_delta_ref", "relative_error", "discrimination_ref", "direction_changed")
        return {
            "weight": self.weight,
            "least_squares": self.least_squares,
            "conditions": self.n_conditions,
            **{f"gain_{metric}": gain for metric, gain in zip(metrics, self.gains, strict=False)},
        }


def earned_weight(
    truth: TrainingTruth, prior_CG: np.ndarray, head_CG: np.ndarray, weight_CG: np.ndarray, rows: np.ndarray
) -> HeadWeight:
    """Weight of the head under the conditions in `rows`.

    Parameters
    ----------
    prior_CG, head_CG
        Predictions of conditions that neither prior nor head were fitted to; the head's without weight.
    weight_CG
        Weights of squared errors, as in training.
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
