"""Validation metrics of a run: condition means, sharded over workers, equal for any number of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from gears.evaluation.metrics import condition_metrics, get_metric
from gears.evaluation.truth import Truth
from gears.priors import Prior
from gears.training.tables import predict_changes
from gears.training.tasks import Reducer
from gears.training.wrapping import unwrap

DEFAULT_METRICS = ("mse", "mse_top20_de", "pearson", "pearson_delta")


class Validation:
    """Scores a network on the validation conditions.

    Worker r predicts conditions r, r + W, ...; the workers' tables of per-condition values
    (float64, zero elsewhere) are summed, so that every worker averages the same numbers
    in the same order as a single process would.

    Parameters
    ----------
    truth
        What is compared with; empty validation parts give no metrics.
    nodes
        Perturbation-graph nodes of each of its conditions.
    metrics
        Names of per-condition metrics.
    clip
        Whether negative predictions are set to zero, as at prediction time.
    prior
        What the network's changes are added to.
    mask_target
        Leave each condition's own target genes out.
    """

    def __init__(
        self,
        truth: Truth | None,
        nodes: Sequence[Sequence[int]],
        *,
        metrics: Sequence[str] = DEFAULT_METRICS,
        clip: bool = True,
        prior: Prior | None = None,
        mask_target: bool = False,
    ) -> None:
        self.truth, self.nodes, self.clip, self.prior = truth, list(nodes), clip, prior
        self.mask_target = mask_target
        self.metrics = [get_metric(name).name for name in metrics]

    def __call__(self, network: nn.Module, reducer: Reducer) -> dict[str, float]:
        """Mean over conditions of each metric (conditions where it is undefined left out), as ``val_<name>``."""
        if self.truth is None or not self.nodes:
            return {}
        # a forward pass renormalises the embeddings in place: also where this worker has no condition
        unwrap(network).renormalise_embeddings()
        mine = np.arange(reducer.rank, len(self.nodes), reducer.world_size)
        values = np.zeros((len(self.nodes), len(self.metrics)))
        if len(mine):
            values[mine] = self._score(network, mine)
        device = next(network.parameters()).device
        total = reducer.sum(torch.from_numpy(values).to(device)).cpu().numpy()
        return self._means(total)

    def of_changes(self, delta_UG: np.ndarray) -> dict[str, float]:
        """The same of predicted changes (U, G) of all its conditions, in one process."""
        if self.truth is None or not self.nodes:
            return {}
        return self._means(self._scored(delta_UG, np.arange(len(self.nodes))))

    def _means(self, values_UM: np.ndarray) -> dict[str, float]:
        return {f"val_{name}": _mean(values_UM[:, column]) for column, name in enumerate(self.metrics)}

    def _score(self, network: nn.Module, rows: np.ndarray) -> np.ndarray:
        nodes, inner = [self.nodes[row] for row in rows], unwrap(network)
        delta_UG, _ = predict_changes(inner, nodes, prior=self.prior)  # type: ignore[arg-type]
        return self._scored(delta_UG, rows)

    def _scored(self, delta_UG: np.ndarray, rows: np.ndarray) -> np.ndarray:
        assert self.truth is not None
        predicted_UG = self.truth.control_mean_G + delta_UG
        if self.clip:
            predicted_UG = np.maximum(predicted_UG, 0.0)
        return condition_metrics(
            predicted_UG, self.truth.subset(rows), self.metrics, mask_target=self.mask_target
        )


def _mean(values: np.ndarray) -> float:
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else float("nan")
