"""Score a network on the validation part, and choose by it the epoch to keep and the network weight.

Metrics are of condition means, divided among workers, equal for any number of them.

*Network weight*, the factor on the network's change beside the prior. Training records the monitored metric of every
validation condition, for every evaluated epoch and every weight of :data:`WEIGHTS`. The best epoch and weight are
chosen on the same conditions, so their gain over the prior alone is optimistic. The network gets a weight above 0 only
if that gain is larger than selection among noise explains: the gains of each condition get a random sign (the same for
all its epochs and weights), and the best epoch and weight of each such draw show what selection alone gives. A
candidate's gains g_u are compared as

    t = sum_u g_u / sqrt(sum_u g_u^2)

whose denominator signs leave unchanged: of the plain sums a single bad epoch would be the largest as soon as its signs
are flipped, and no gain could reach it. Whether the network gains anything is decided by the largest t of the kept
epoch, often that of a small weight, which no single condition decides; its weight is that of the largest mean gain.
``benchmarks/network_weight.py`` compares this rule with others.

*Slope.* A network alone over-fits: what it predicts of a held-out condition deviates from the mean change O of the
training conditions by too much. Its predictions m are drawn to O by

    O + slope (m - O),    slope = sum (m - O)(y - O) / sum (m - O)^2    over genes and validation conditions, y measured

as the prior's are. The last layer of the network is linear in what it predicts, so this changes two of its parameters,
and whatever saves, loads or predicts does not know of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from gears.data.screen._statistics import variance_within
from gears.data.splits._split import perturbed_in
from gears.evaluation._fitted import settings_of
from gears.evaluation.metrics._registry import condition_metrics, get_metric
from gears.evaluation.truth import Truth
from gears.prediction._stream import predict_changes
from gears.training._tasks import training_ids
from gears.training._workers import unwrap

if TYPE_CHECKING:
    from gears.distributed._world import Reducer
    from gears.model.network import GEARSNetwork
    from gears.pertdata import PertData
    from gears.priors._prior import GenePrior

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

    `scores_EKU` have the monitored metric of each evaluated epoch, weight of :data:`WEIGHTS` and validation condition,
    `prior_U` that of the prior alone; `kept` is the place of the epoch whose weights are kept, by default the best.

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
    # below five conditions even the best possible p value is above the level
    is_significant = len(prior_U) >= FEWEST_CONDITIONS and p_value <= LEVEL
    return NetworkWeight(WEIGHTS[best] if is_significant else 0.0, WEIGHTS[best], gain, p_value, len(prior_U))


def kept_epoch(scores_EU: np.ndarray, *, lower_is_better: bool) -> int:
    """Place of the epoch to keep of a complete run: the last one, unless another is significantly better."""
    # with few validation conditions the best of many epochs is best by chance, and often one that is hardly trained
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
    # rounding must not put the observed signs, one of the draws, below themselves
    return float((largest_D >= observed - 1e-12 * abs(observed)).mean())


def _scaled(gain: np.ndarray) -> np.ndarray:
    """Gains with a sum of squares of 1 over conditions; 0 where all are."""
    root = np.sqrt((gain**2).sum(axis=-1, keepdims=True))
    return np.divide(gain, root, out=np.zeros_like(gain), where=root > 0)


FITTED_SHARE = 0.5
"""A network that predicts less than this share of its own training conditions' changes is reported."""
LEAST_SLOPE = 0.1
"""Below it errors are those of the train mean, but for 1 %; the order of predictions stays defined."""
_MOST_CONDITIONS = 256
_LEAST_RELIABILITY = 0.1
DEFAULT_METRICS = ("mse", "mse_top20_de", "pearson", "pearson_delta")


class Validation:
    """Scores a network on the validation conditions, beside the prior where there is one.

    With a prior an epoch is scored as prior + weight x network, at the one of :data:`WEIGHTS` whose mean of the
    monitored metric is best.

    `truths`: what is compared with, one of each setting that has validation conditions; none give no metrics.
    `nodes`: perturbation-graph nodes of their conditions, setting after setting.
    `condition_scores`: monitored metric of the last network scored, by weight and condition, (K, U).
    """

    # Worker r predicts conditions r, r + W, ...; the workers' tables of per-condition values (float64, zero elsewhere)
    # are summed, so that every worker averages the same numbers in the same order as a single process would.

    def __init__(
        self,
        truths: Sequence[Truth],
        nodes: Sequence[Sequence[int]],
        *,
        metrics: Sequence[str] = DEFAULT_METRICS,
        monitor: str = "mse_top20_de",
        clip: bool = True,
        prior: GenePrior | None = None,
        mask_target: bool = False,
    ) -> None:
        self.truths, self.nodes, self.clip, self.prior = list(truths), list(nodes), clip, prior
        self.mask_target = mask_target
        self.monitor = get_metric(monitor)
        self.metrics = list(dict.fromkeys([*(get_metric(name).name for name in metrics), self.monitor.name]))
        self.weights = (1.0,) if prior is None else WEIGHTS
        self.condition_scores = np.empty((len(self.weights), 0))
        self._first = np.cumsum([0, *(len(truth.conditions) for truth in self.truths)])
        self._prior_UG: np.ndarray | None = None

    @property
    def n_conditions(self) -> int:
        return len(self.nodes)

    def __call__(self, network: nn.Module, reducer: Reducer) -> dict[str, float]:
        """Mean over conditions of each metric as ``val_<name>``, undefined values aside, and the weight."""
        if not self.nodes:
            return {}
        # a forward pass renormalises the embeddings in place: also where this worker has no condition
        unwrap(network).renormalise_embeddings()
        mine = np.arange(reducer.rank, len(self.nodes), reducer.world_size)
        network_UG = predict_changes(unwrap(network), [self.nodes[row] for row in mine]).delta_UG
        monitored_KU = np.zeros((len(self.weights), len(self.nodes)))
        for row, weight in enumerate(self.weights):
            monitored_KU[row, mine] = self._scored(mine, weight, network_UG, [self.monitor.name])[:, 0]
        device = next(network.parameters()).device
        self.condition_scores = reducer.sum(torch.from_numpy(monitored_KU).to(device)).cpu().numpy()
        means = np.array([_mean(row) for row in self.condition_scores])
        best = int(np.argmax(np.nan_to_num(means if self.monitor.higher_is_better else -means, nan=-np.inf)))
        values_UM = np.zeros((len(self.nodes), len(self.metrics)))
        values_UM[mine] = self._scored(mine, self.weights[best], network_UG, self.metrics)
        scores = self._means(reducer.sum(torch.from_numpy(values_UM).to(device)).cpu().numpy())
        return scores if self.prior is None else scores | {"network_weight": self.weights[best]}

    @cached_property
    def of_prior(self) -> tuple[dict[str, float], np.ndarray]:
        """Means of all metrics of the prior alone, as ``val_<name>``, and the monitored one by condition, (U,)."""
        if self.prior is None or not self.nodes:
            return {}, np.empty(0)
        every = np.arange(len(self.nodes))
        values_UM = self._scored(every, 0.0, np.zeros((len(every), 1)), self.metrics)
        return self._means(values_UM), values_UM[:, self.metrics.index(self.monitor.name)]

    def slope_of(self, network: GEARSNetwork, mean_G: np.ndarray) -> float:
        """Slope of measured on predicted changes of the validation conditions, both from `mean_G`; from 0.1 to 1."""
        predicted_UG = predict_changes(network, self.nodes).delta_UG - mean_G
        measured_UG = np.concatenate([truth.mean_UG - truth.control_mean_G for truth in self.truths]) - mean_G
        square = float((predicted_UG**2).sum())
        slope = float((predicted_UG * measured_UG).sum()) / square if square > 0 else 1.0
        return float(np.clip(slope, LEAST_SLOPE, 1.0))

    def _means(self, values_UM: np.ndarray) -> dict[str, float]:
        return {f"val_{name}": _mean(values_UM[:, column]) for column, name in enumerate(self.metrics)}

    def _scored(self, rows: np.ndarray, weight: float, network_RG: np.ndarray, metrics: Sequence[str]) -> np.ndarray:
        """Metrics of prior + weight x network for some conditions, (R, M)."""
        delta_RG = weight * network_RG
        if self.prior is not None:
            if self._prior_UG is None:
                self._prior_UG = self.prior(self.nodes)
            delta_RG = self._prior_UG[rows] + delta_RG
        values_RM = np.full((len(rows), len(metrics)), np.nan)
        setting_R = np.searchsorted(self._first, rows, side="right") - 1
        for setting in np.unique(setting_R).tolist():
            here, truth = setting_R == setting, self.truths[setting]
            predicted_UG = truth.control_mean_G + delta_RG[here]
            if self.clip:
                predicted_UG = np.maximum(predicted_UG, 0.0)
            part = truth.subset(rows[here] - self._first[setting])
            values_RM[here] = condition_metrics(predicted_UG, part, metrics, mask_target=self.mask_target)
        return values_RM


def _mean(values: np.ndarray) -> float:
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else float("nan")


def validation_of(
    pert_data: PertData, monitor: str, prior: GenePrior | None = None, *, mask_target: bool = False
) -> Validation:
    """Scorer of the validation part, whose `monitor` chooses the best epoch: ``mse`` where that cannot be computed."""
    split, screen = pert_data.split, pert_data.screen_of("val")
    check_monitor(monitor)
    metrics: tuple[str, ...] = DEFAULT_METRICS
    if screen.de is None:
        metrics = tuple(name for name in DEFAULT_METRICS if not name.endswith("_de"))
        monitor = "mse" if monitor.endswith("_de") else monitor
    conditions = perturbed_in(split, "val")
    settings = settings_of(screen, conditions, perturbed_in(split, "train"))
    truths = []
    for setting in settings:
        known: Any = {"reference_mean_G": setting.means.reference_mean(), "pooled": setting.conditions}
        truths.append(Truth.of(setting.screen, setting.conditions, **known))
    if monitor == "relative_error" and not any(truth.reference_error > 0 for truth in truths):
        monitor = "mse"
    nodes = [pert_data.condition_nodes(conditions[row]) for setting in settings for row in setting.rows]
    options: Any = {"prior": prior, "mask_target": mask_target, "clip": screen.nonnegative}
    return Validation(truths, nodes, metrics=metrics, monitor=monitor, **options)


def check_monitor(monitor: str) -> None:
    """Refuse a monitor that is no metric, or none that orders predictions of single conditions."""
    metric = get_metric(monitor)
    single = metric.scope == "condition" and not metric.needs_all and not metric.needs_sd
    if not single or metric.higher_is_better is None:
        names = ", ".join(DEFAULT_METRICS)
        msg = f"monitor={monitor!r} does not score single conditions as better or worse; choose one of {names}"
        raise ValueError(msg)


def train_mean(pert_data: PertData) -> np.ndarray:
    """Mean change of the training conditions, each counted once, (G,) float64."""
    ids = training_ids(pert_data)
    if not len(ids):
        return np.zeros(len(pert_data.screen.gene_names))
    return pert_data.screen.statistics.delta(ids).mean(axis=0)


def share_fitted(network: GEARSNetwork, pert_data: PertData, known_CG: np.ndarray | None = None) -> float | None:
    """Slope of predicted on measured changes of training conditions, sampling noise of the measured ones taken off.

    Changes are deviations from their mean over conditions, of what is left beside `known_CG`; None where the measured
    ones are little more than sampling noise.
    """
    screen, ids = pert_data.screen, training_ids(pert_data)
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


def drawn_to(state: Mapping[str, torch.Tensor], mean_G: np.ndarray, slope: float) -> dict[str, torch.Tensor]:
    """Weights of a network that predicts ``mean + slope (m - mean)`` where the one with `state` predicts m."""
    weight, bias = state["indv_w2"], state["indv_b2"]
    mean = torch.from_numpy(np.asarray(mean_G)).to(bias.dtype)
    return {**state, "indv_w2": slope * weight, "indv_b2": slope * bias + (1 - slope) * mean}
