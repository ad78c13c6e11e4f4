"""How far a trained network can be trusted: its fit to the training conditions, and its slope on the validation part.

A network alone over-fits: what it predicts of a held-out condition deviates from the mean change O of the training
conditions by too much. Its predictions m are drawn to O by

    O + slope (m - O),    slope = sum (m - O)(y - O) / sum (m - O)^2    over genes and validation conditions, y measured

as the prior's are. The last layer of the network is linear in what it predicts, so this changes two of its parameters,
and whatever saves, loads or predicts does not know of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from gears.data.screen.statistics import variance_within
from gears.data.splits.split import perturbed_in
from gears.prediction.stream import predict_changes

if TYPE_CHECKING:
    from gears.model.network import GEARSNetwork
    from gears.pertdata import PertData
    from gears.training.validation import Validation

FITTED_SHARE = 0.5
"""A network that predicts less than this share of its own training conditions' changes is reported."""
LEAST_SLOPE = 0.1
"""Below it errors are those of the train mean, but for 1 %; the order of predictions stays defined."""
_MOST_CONDITIONS = 256
_LEAST_RELIABILITY = 0.1


def _train_ids(pert_data: PertData) -> np.ndarray:
    screen = pert_data.screen
    return np.sort([screen.id_of(condition) for condition in perturbed_in(pert_data.split, "train")])


def train_mean(pert_data: PertData) -> np.ndarray:
    """Mean change of the training conditions, each counted once, (G,) float64."""
    ids = _train_ids(pert_data)
    if not len(ids):
        return np.zeros(len(pert_data.screen.gene_names))
    return pert_data.screen.statistics.delta(ids).mean(axis=0)


def share_fitted(
    network: GEARSNetwork, pert_data: PertData, known_CG: np.ndarray | None = None
) -> float | None:
    """Slope of predicted on measured changes of training conditions, sampling noise of the measured ones taken off.

    Changes are deviations from their mean over conditions, of what is left beside `known_CG`, the known changes of all
    conditions. None where the measured changes are little more than sampling noise.
    """
    screen, ids = pert_data.screen, _train_ids(pert_data)
    ids = ids[:: -(-len(ids) // _MOST_CONDITIONS)] if len(ids) else ids
    if len(ids) < 2:
        return None
    statistics = screen.statistics
    nodes = [pert_data.condition_nodes(screen.conditions[number]) for number in ids.tolist()]
    predicted_TG = predict_changes(network, nodes).delta_UG
    measured_TG = statistics.delta(ids) - (0.0 if known_CG is None else known_CG[ids])
    predicted_TG = predicted_TG - predicted_TG.mean(axis=0)
    measured_TG = measured_TG - measured_TG.mean(axis=0)
    n_T = np.asarray(statistics.n, dtype=np.float64)[ids]
    noise = float(variance_within(statistics, ids).sum() * (1 / n_T).sum() * (1 - 1 / len(ids)))
    total = float((measured_TG**2).sum())
    if total - noise <= _LEAST_RELIABILITY * total:
        return None
    return float((predicted_TG * measured_TG).sum()) / (total - noise)


def slope_of(network: GEARSNetwork, validation: Validation, mean_G: np.ndarray) -> float:
    """Slope of measured on predicted changes of the validation conditions, both from `mean_G`; from 0.1 to 1."""
    predicted_UG = predict_changes(network, validation.nodes).delta_UG - mean_G
    measured_UG = (
        np.concatenate([truth.mean_UG - truth.control_mean_G for truth in validation.truths]) - mean_G
    )
    square = float((predicted_UG**2).sum())
    slope = float((predicted_UG * measured_UG).sum()) / square if square > 0 else 1.0
    return float(np.clip(slope, LEAST_SLOPE, 1.0))


def drawn_to(state: Mapping[str, torch.Tensor], mean_G: np.ndarray, slope: float) -> dict[str, torch.Tensor]:
    """Weights of a network that predicts ``mean + slope (m - mean)`` where the one with `state` predicts m."""
    weight, bias = state["indv_w2"], state["indv_b2"]
    mean = torch.from_numpy(np.asarray(mean_G)).to(bias.dtype)
    return {**state, "indv_w2": slope * weight, "indv_b2": slope * bias + (1 - slope) * mean}
