"""How many training conditions predictions rest on, and on which: the shares of their weights."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gears.conditions import Condition
from gears.core._messages import count, shorten

if TYPE_CHECKING:
    from gears.priors._prior import GenePrior

logger = logging.getLogger(__name__)

SHOWN = 3
MOST_OF_IT = 0.5  # share of the weights from which on a prediction rests on one condition
FEW_CELLS = 10
_BLOCK = 4096  # conditions at a time
SetsOf = Callable[[Sequence[Condition]], Sequence[Sequence[int]]]
"""Perturbation-graph nodes of conditions."""
NameOf = Callable[[int], Condition]
"""Training condition of a row of the prior."""


def shares_of_weights(prior: GenePrior, sets: Sequence[Sequence[int]]) -> np.ndarray:
    """Share of each training condition in the weights of each prediction, (U, C), for a gene of average signal.

    Of those that perturb the same genes or alike ones. Where there are none, all conditions count alike.
    """
    assert prior.basis is not None
    assert prior.measured is not None
    own_U = prior.measured.rows(sets)
    share_UC = np.abs(prior.basis.typical_weights(sets, own_U))
    at = np.flatnonzero(own_U >= 0)
    rows = own_U[at]
    if len(at) and prior.uncertainty is not None:
        variance_R = prior.measured.variance_C[rows] * float(prior.uncertainty.gene_G.mean())
        noise_R = prior.measured.noise_C[rows] * float(prior.measured.noise_G.mean())
        kept_R = variance_R / np.maximum(variance_R + noise_R, np.finfo(float).tiny)
        share_UC[at] *= (1 - kept_R)[:, None]
        share_UC[at, rows] = kept_R
    total_U1 = share_UC.sum(axis=1, keepdims=True)
    alike_UC = np.full_like(share_UC, 1 / share_UC.shape[1])
    return np.divide(share_UC, total_U1, out=alike_UC, where=total_U1 > 1e-9)


def effective_number(share_UC: np.ndarray) -> np.ndarray:
    """1 / sum of squared shares, (U,)."""
    return np.asarray(1 / (share_UC**2).sum(axis=1))


def name_of_training(prior: GenePrior, pert_names: Sequence[str], contexts: Any, row: int) -> Condition:
    """The training condition of a row of the prior, as the model names it."""
    assert prior.measured is not None
    nodes: Any = prior.measured.sets[row]
    condition = Condition(tuple(pert_names[node] for node in nodes))
    if contexts is None:
        return condition
    context = contexts.contexts[nodes.context] if contexts.contexts else ""
    return condition.at(context, contexts.kinds[nodes.kind] if contexts.kinds else "")


def table_of_shares(
    prior: GenePrior, conditions: Sequence[Condition], sets_of: SetsOf, name_of: NameOf
) -> pd.DataFrame:
    """Columns ``n_effective`` and ``most_important``, for a prior that keeps what it was fitted to."""
    numbers, texts = [], []
    for start in range(0, len(conditions), _BLOCK):
        block = conditions[start : start + _BLOCK]
        share_UC = shares_of_weights(prior, sets_of(block))
        numbers.append(effective_number(share_UC))
        for condition, share_C in zip(block, share_UC, strict=True):
            first = np.argsort(-share_C, kind="stable")[:SHOWN].tolist() if not condition.is_control else []
            texts.append(", ".join(f"{name_of(row).name} {share_C[row]:.0%}" for row in first))
    n_effective = np.concatenate(numbers) if numbers else np.zeros(0)
    n_effective[[condition.is_control for condition in conditions]] = np.nan
    return pd.DataFrame({"n_effective": n_effective, "most_important": texts})


def warn_of_few_cells(prior: GenePrior, conditions: Sequence[Condition], sets_of: SetsOf, name_of: NameOf) -> None:
    """Log one warning about predictions that rest on one condition of few cells."""
    assert prior.basis is not None
    perturbed = [condition for condition in conditions if not condition.is_control][:_BLOCK]
    if not perturbed:
        return
    share_UC = shares_of_weights(prior, sets_of(perturbed))
    first_U = share_UC.argmax(axis=1)
    is_one_U = (share_UC.max(axis=1) >= MOST_OF_IT) & (prior.basis.n_C[first_U] < FEW_CELLS)
    found = []
    for row in np.flatnonzero(is_one_U).tolist():
        first = int(first_U[row])
        n_cells = count(int(prior.basis.n_C[first]), "cell")
        found.append(f"{perturbed[row].name} ({name_of(first).name}, {n_cells})")
    if found:
        n = count(len(found), "prediction rests", "predictions rest")
        logger.warning("%s on one condition of fewer than %d cells: %s", n, FEW_CELLS, shorten(found, 3))
