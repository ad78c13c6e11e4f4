"""Choose, on the validation part, the epoch to keep and the network weight, the factor on its change beside the prior.

Training records the monitored metric of every validation condition, for every evaluated epoch and every weight of
:data:`WEIGHTS`. The best epoch and weight are chosen on the same conditions, so their gain over the prior alone is
optimistic. The network gets a weight above 0 only if that gain is larger than selection among noise explains: the
gains of each condition get a random sign (the same for all its epochs and weights), and the best epoch and weight of
each such draw show what selection alone gives. A candidate's gains g_u are compared as

    t = sum_u g_u / sqrt(sum_u g_u^2)

whose denominator signs leave unchanged: of the plain sums a single bad epoch would be the largest as soon as its signs
are flipped, and no gain could reach it. Whether the network gains anything is said by the largest t of the kept epoch,
often that of a small weight, which no single condition decides; its weight is that of the largest mean gain.
``benchmarks/network_weight.py`` compares this rule with others.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

WEIGHTS = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
"""Candidates for the network weight above 0."""
LEVEL = 0.05
"""Largest share of random signs that may reach the observed gain."""
FEWEST_CONDITIONS = 5
"""With fewer validation conditions no gain is significant: one of the 2^4 signs of four is the observed one, 6 %."""
N_DRAWS = 2000
_ALL_SIGNS = 10


@dataclass(frozen=True)
class NetworkWeight:
    """A network weight and how it was chosen."""

    weight: float = 0.0  # network weight; 0 where the prior is used alone
    tried: float | None = None
    """Best weight above 0 of the kept epoch; None where no network was trained or scored."""
    gain: float = 0.0
    """Mean gain of that weight over the prior alone in the monitored metric, positive is better."""
    p_value: float = 1.0
    """Share of random signs whose largest t over epochs and weights reaches the largest of the kept epoch."""
    n_conditions: int = 0

    def report(self) -> dict[str, float | int | None]:
        """Plain values for the saved model."""
        return {
            "network_weight": self.weight,
            "best_weight_tried": self.tried,
            "validation_gain": self.gain,
            "p_value": self.p_value,
            "validation_conditions": self.n_conditions,
        }


def choose_network_weight(
    scores_EKU: Sequence[np.ndarray], prior_U: np.ndarray, *, lower_is_better: bool, kept: int | None = None
) -> NetworkWeight:
    """Weight of the network at the epoch that is kept; 0 unless its gain over the prior is significant.

    Parameters
    ----------
    scores_EKU
        Monitored metric of each evaluated epoch, weight of :data:`WEIGHTS` and validation condition.
    prior_U
        The same metric of the prior alone, (U,).
    kept
        Place of the epoch whose weights are kept; None: the best one.

    Examples
    --------
    >>> prior_U = np.ones(6)
    >>> better = np.tile(0.9, (len(WEIGHTS), 6))
    >>> better[3] = 0.8
    >>> choose_network_weight([better], prior_U, lower_is_better=True).weight
    0.5
    >>> choose_network_weight([2 - better], prior_U, lower_is_better=True).weight
    0.0
    """
    if not len(scores_EKU) or not len(prior_U):
        return NetworkWeight(n_conditions=len(prior_U))
    gain_EKU = np.stack(list(scores_EKU)) - prior_U
    gain_EKU = np.nan_to_num(-gain_EKU if lower_is_better else gain_EKU)
    kept = int(gain_EKU.mean(axis=2).max(axis=1).argmax()) if kept is None else kept
    gain_KU = gain_EKU[kept]
    best = int(gain_KU.mean(axis=1).argmax())
    gain = float(gain_KU[best].mean())
    p_value = chance_of(gain_KU, gain_EKU.reshape(-1, len(prior_U))) if gain > 0 else 1.0
    is_significant = len(prior_U) >= FEWEST_CONDITIONS and p_value <= LEVEL
    return NetworkWeight(WEIGHTS[best] if is_significant else 0.0, WEIGHTS[best], gain, p_value, len(prior_U))


def kept_epoch(scores_EU: np.ndarray, *, lower_is_better: bool) -> int:
    """Place of the epoch to keep of a complete run: the last one, unless another is significantly better.

    With few validation conditions the best of many epochs is best by chance, and often one that is hardly trained.

    `scores_EU`: monitored metric of each epoch and validation condition.
    """
    gain_EU = np.nan_to_num(scores_EU[-1] - scores_EU if lower_is_better else scores_EU - scores_EU[-1])
    best = int(gain_EU.mean(axis=1).argmax())
    if gain_EU[best].mean() <= 0 or chance_of(gain_EU[[best]], gain_EU) > LEVEL:
        return len(scores_EU) - 1
    return best


def chance_of(gain_KU: np.ndarray, candidates_CU: np.ndarray) -> float:
    """Share of random signs of conditions under which some candidate's t reaches the largest of some of them."""
    n_conditions = gain_KU.shape[1]
    if n_conditions <= _ALL_SIGNS:
        signs_DU = np.array(list(itertools.product((1.0, -1.0), repeat=n_conditions)))
    else:
        draw = np.random.Generator(np.random.Philox(key=n_conditions))
        signs_DU = draw.choice((1.0, -1.0), size=(N_DRAWS, n_conditions))
        signs_DU[0] = 1.0  # the observed gains are one of the draws
    largest_D = (signs_DU @ _scaled(candidates_CU).T).max(axis=1)
    observed = float(_scaled(gain_KU).sum(axis=1).max())
    return float((largest_D >= observed - 1e-12 * abs(observed)).mean())


def _scaled(gain: np.ndarray) -> np.ndarray:
    """Gains with a sum of squares of 1 over conditions; 0 where all are."""
    root = np.sqrt((gain**2).sum(axis=-1, keepdims=True))
    return np.divide(gain, root, out=np.zeros_like(gain), where=root > 0)
