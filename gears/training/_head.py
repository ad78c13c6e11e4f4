"""Train the head on the residuals of the prior, with the engine, and find how much it counts.

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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from gears.conditions import Condition
from gears.core._numbers import clipped
from gears.core._progress import progress
from gears.distributed import _signals as signals
from gears.distributed._world import Reducer, World, is_running
from gears.evaluation._fitted import by_setting
from gears.evaluation.metrics._registry import condition_metrics, get_metric
from gears.evaluation.truth import Truth
from gears.model.layers import SharedHead
from gears.priors._fit import FittedPrior
from gears.priors._head import LIMIT, NAMES, Head, strata
from gears.priors._prior import GenePrior
from gears.priors._process import mean_of_others
from gears.priors._source import InnerPredictions, even_folds, inner_predictions, means_without, perturbed_conditions
from gears.training._batches import ConditionBatch, ConditionLoader, moved
from gears.training._schedules import Adam, Horizon, learning_rate
from gears.training._trainer import TrainingEngine
from gears.training.options import DTYPES, TrainOptions

if TYPE_CHECKING:
    from gears.data.screen._prepared import PreparedScreen
    from gears.pertdata import PertData

N_FOLDS = 4
"""Folds of conditions that a member of the head is trained without, to find the weights."""
EPOCHS, STEPS, PER_STEP, RATE = 12, 20, 8, 6e-3
"""Epochs of at least so many steps of so many conditions; highest learning rate of a one-cycle schedule. A few hundred
steps from zero are the regularisation: the head stays close to the prior (``benchmarks/head.py``)."""
MOST_STEPS = 600
"""Steps in all, at most: of very many conditions each is seen a few times, enough for a function of 14 inputs."""
GENES_PER_STEP = 500
"""Of more genes each step draws so many: the function is the same for all, and a step costs what its genes cost
(``benchmarks/run.py head_genes``)."""
_FOLD_SEED, _GENE_SEED = 3, 11
_ROWS = 64  # conditions of a block of inputs
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
class TrainedHead:
    """The head of a prior."""

    # the prior with its head (without, where it has no weight), and predictions of each training condition by both
    # without that condition
    fitted: FittedPrior
    weights: dict[str, HeadWeight] = dataclasses.field(default_factory=dict)  # of "single" and "several" genes
    why: str | None = None  # why no head was trained, or None
    stopped: str | None = None  # what stopped training early, or None


class HeadTask:
    """Squared errors of every member of the head on the conditions that it is trained on."""

    metric, lower_is_better = "val_head", True

    def __init__(
        self,
        inner: InnerPredictions,
        residual_CG: np.ndarray,
        weight_CG: np.ndarray,
        keep_MC: np.ndarray,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.inner, self.device, self.dtype = inner, device, dtype
        self.residual_CG, self.weight_CG, self.keep_MC = residual_CG, weight_CG, keep_MC
        self.n_steps = 0
        self.genes: np.ndarray | slice = slice(None)  # of a step, the same on all workers

    def prepare_window(self, batches: Sequence[ConditionBatch], reducer: Reducer) -> float:
        """Draw the genes of the step. Weight of one condition here; every worker knows it without asking the others."""
        n_genes = self.residual_CG.shape[1]
        if n_genes > GENES_PER_STEP:
            draw = np.random.Generator(np.random.Philox(key=[_GENE_SEED, self.n_steps]))
            self.genes = np.sort(draw.choice(n_genes, GENES_PER_STEP, replace=False))
        self.n_steps += 1
        return reducer.world_size / sum(batch.n_all for batch in batches)

    def loss(self, model: nn.Module, batch: ConditionBatch, window: float, position: int) -> Tensor:
        """This worker's part of the mean over conditions and genes, times the number of workers."""
        rows = batch.ids.numpy()
        arrays = {
            "inputs_UGF": self.inner.inputs_of(rows, self.genes),
            "residual_UG": self.residual_CG[rows][:, self.genes],
            "weight_UG": self.weight_CG[rows][:, self.genes],
            "keep_MU": self.keep_MC[:, rows],
        }
        tensors = moved(arrays, self.device, self.dtype)
        error_MUG = model(tensors["inputs_UGF"]).to(self.dtype) - tensors["residual_UG"]
        loss_MU = (tensors["weight_UG"] * error_MUG**2).sum(dim=2) / error_MUG.shape[2]
        return window * (tensors["keep_MU"] * loss_MU).sum()

    def evaluate(self, model: nn.Module, loader: Iterable[Any] | None, reducer: Reducer) -> dict[str, float]:
        """Nothing: the weights are found at the end, on conditions that each member has not seen."""
        return {}


def train_head(pert_data: PertData, fitted: FittedPrior, options: TrainOptions, worker: World) -> TrainedHead:
    """Train the head of a prior on the training conditions, together with the other workers."""
    # the result does not depend on the network: not on its options, its seed or its epochs
    conditions = perturbed_conditions(pert_data, ("train",))
    if len(conditions) < FEWEST_CONDITIONS:
        why = f"it needs {FEWEST_CONDITIONS} training conditions, found {len(conditions)}"
        return TrainedHead(fitted, why=why)
    if pert_data.screen.is_measured_KG is not None:
        return TrainedHead(fitted, why="contexts measure different genes (genes='shared' allows it)")
    prior = fitted.prior
    inner = inner_predictions(pert_data, conditions, fitted)
    truth = training_truth(pert_data.screen, [conditions[row] for row in inner.rows.tolist()])
    targets_CG = inner.inputs.targets(inner.sets)
    weight_CG = truth.loss_weights()
    weight_CG[targets_CG] = 0.0
    residual_CG = inner.delta_CG - inner.changes.change_UG
    size = float(np.sqrt((weight_CG * residual_CG**2).mean())) or 1.0
    fold_C = even_folds(inner.sets, inner.group_C, N_FOLDS, _FOLD_SEED)
    centre_F, spread_F = _moments(inner)
    head = SharedHead(centre_F, spread_F, N_FOLDS + 1, limit=LIMIT)
    task = HeadTask(inner, residual_CG / size, weight_CG, kept_conditions(fold_C), worker.device, DTYPES[options.dtype])
    stopped = _stopped_in_training(head, task, options, worker)
    if stopped is not None:
        return TrainedHead(fitted, stopped=stopped)
    trained = Head(inner.inputs, centre_F, spread_F, head.layers_of(N_FOLDS), size, 1.0, 1.0)
    unseen_CG = _unseen(head, trained, inner, fold_C)
    unseen_CG[targets_CG] = 0.0
    rows_of = strata(inner.sets)
    prior_CG = inner.changes.change_UG
    weights = {name: earned_weight(truth, prior_CG, unseen_CG, weight_CG, rows) for name, rows in rows_of.items()}
    report = {**prior.report, "head": {name: weight.report() for name, weight in weights.items()}}
    prior = dataclasses.replace(prior, report=report)
    if not any(weight.weight for weight in weights.values()):
        return TrainedHead(dataclasses.replace(fitted, prior=prior), weights)
    single, several = weights["single"].weight, weights["several"].weight
    weighted = dataclasses.replace(trained, single_weight=single, several_weight=several)
    for name, rows in rows_of.items():
        unseen_CG[rows] *= weights[name].weight
    left_out_CG = fitted.left_out_CG.copy()
    left_out_CG[inner.rows] += unseen_CG
    unmeasured = dataclasses.replace(prior, measured=None)
    for rows in _blocks(len(conditions)):
        rows = np.setdiff1d(rows, inner.rows)  # the head has not seen these
        nodes = [pert_data.condition_nodes(conditions[row]) for row in rows.tolist()]
        left_out_CG[rows] += weighted.change(unmeasured.without_head, nodes)
    prior = dataclasses.replace(prior, head=weighted)
    return TrainedHead(dataclasses.replace(fitted, prior=prior, left_out_CG=left_out_CG), weights)


def prepare_head(pert_data: PertData, fitted: FittedPrior) -> None:
    """Put the predictions that the head is trained on into the screen's cache, before workers start."""
    conditions = perturbed_conditions(pert_data, ("train",))
    if len(conditions) >= FEWEST_CONDITIONS and pert_data.screen.is_measured_KG is None:
        inner_predictions(pert_data, conditions, fitted)


def with_head_of(prior: GenePrior, other: GenePrior | None) -> GenePrior:
    """A prior with the head of another one of the same screen, which was fitted to other conditions."""
    if other is None or "head" not in other.report:
        return prior
    report = {**prior.report, "head": other.report["head"]}
    return dataclasses.replace(prior, head=other.head, report=report)


def training_truth(screen: PreparedScreen, conditions: Sequence[Condition]) -> TrainingTruth:
    """The truth of the training conditions, from these of each setting and its control alone."""
    parts = []
    for view, rows in by_setting(screen, conditions):
        plain = [conditions[row].plain for row in rows]
        known_RG = means_without(view, plain, np.arange(len(plain)))
        truth = Truth.of(view, plain, pooled=plain, reference_mean_G=known_RG)
        parts.append((truth.for_choices(), np.asarray(rows)))
    return TrainingTruth(tuple(parts), screen.nonnegative)


def kept_conditions(fold_C: np.ndarray) -> np.ndarray:
    """Weight of each condition for each member, (M, C), of mean 1; 0 for those that it is trained without."""
    keep_MC = np.array([fold_C != fold for fold in range(N_FOLDS + 1)], dtype=np.float64)
    return np.asarray(keep_MC / keep_MC.mean(axis=1, keepdims=True))


def _blocks(n_conditions: int) -> Iterable[np.ndarray]:
    return (np.arange(start, min(start + _ROWS, n_conditions)) for start in range(0, n_conditions, _ROWS))


def _moments(inner: InnerPredictions) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of the inputs over all genes and training conditions, (F,) float64 each."""
    total_F, square_F, n = np.zeros(len(NAMES)), np.zeros(len(NAMES)), 0
    for rows in _blocks(len(inner.sets)):
        inputs_RF = inner.inputs_of(rows).astype(np.float64).reshape(-1, len(NAMES))
        total_F += inputs_RF.sum(axis=0)
        square_F += (inputs_RF**2).sum(axis=0)
        n += len(inputs_RF)
    centre_F = total_F / n
    return centre_F, np.sqrt(np.maximum(square_F / n - centre_F**2, 0.0)) + 1e-6


def _stopped_in_training(head: SharedHead, task: HeadTask, options: TrainOptions, worker: World) -> str | None:
    """Train all members in place; what stopped it early, or None."""
    share: Any = {"rank": worker.rank, "world_size": worker.world_size}
    loader = ConditionLoader(np.arange(len(task.inner.sets)), PER_STEP, least=STEPS, **share)
    head.to(task.device, task.dtype)
    epochs = min(EPOCHS, -(-MOST_STEPS // len(loader)))
    names = ("use_amp", "amp_dtype", "tf32", "reproducible")
    precision: Any = {name: getattr(options, name) for name in names}
    engine = TrainingEngine(head, task.device, distributed=is_running(), max_steps=MOST_STEPS, **precision)
    optimizer = Adam(head.parameters(), lr=RATE, fused=task.device.type != "mps")
    rate = learning_rate("one-cycle", Horizon(len(loader), epochs, MOST_STEPS))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    n_steps = min(MOST_STEPS, epochs * len(loader))
    with progress(n_steps, "training the correction network", "steps", enabled=worker.rank == 0) as advance:
        engine.on_step_end = lambda _: advance(1)
        engine.train(loader, None, optimizer, None, scheduler, epochs, task=task, scheduler_interval="step")
    if engine.progress.epoch == epochs:
        return None
    who = signals.who_was_asked(engine.reducer, engine.device)
    return f"stopped by {who} while the correction network was trained; nothing of it is kept"


@torch.no_grad()
def _unseen(head: SharedHead, trained: Head, inner: InnerPredictions, fold_C: np.ndarray) -> np.ndarray:
    """Change of each training condition by the member that was trained without it, (C, G) float64."""
    unseen_CG = np.empty(inner.delta_CG.shape)
    for fold in range(N_FOLDS):
        member = dataclasses.replace(trained, layers=head.layers_of(fold))
        for rows in _blocks(len(fold_C)):
            rows = rows[fold_C[rows] == fold]
            unseen_CG[rows] = member.of_inputs(inner.inputs_of(rows))
    return unseen_CG


@dataclass(frozen=True)
class TrainingTruth:
    """What the training conditions showed, by setting."""

    # of each setting the truth, with the mean of the other conditions as the reference of each
    # (`Truth.for_choices`), and the rows of its conditions among all C
    parts: tuple[tuple[Truth, np.ndarray], ...]
    clip: bool = False  # whether prediction sets negative expression to zero

    @cached_property
    def delta_CG(self) -> np.ndarray:
        """Measured changes."""
        return self._joined([truth.delta_UG for truth, _ in self.parts])

    def loss_weights(self) -> np.ndarray:
        """Weights of squared errors, (C, G), of mean 1."""
        # Their sum over genes is the error as a share of that of the mean of the other conditions, over all genes and
        # over genes by evidence: the head is trained on what it is judged by.
        square_CG = self._joined([(truth.delta_UG - mean_of_others(truth.delta_UG)) ** 2 for truth, _ in self.parts])
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
            condition_metrics(clipped(truth.control_mean_G + change_CG[rows], self.clip, False), truth, JUDGED)
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
    least_squares: float = 0.0  # on predictions of unseen conditions; its lower bound is the candidate
    # mean gains in the metrics JUDGED at the weight, or at the candidate where the weight is 0; positive is better
    gains: tuple[float, ...] = ()
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
    """Weight of the head under the conditions in `rows`, by predictions of conditions that were not fitted to.

    `prior_CG`, `head_CG` are such predictions, the head's without weight; `weight_CG` weights of squared errors.
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
    unused = HeadWeight(0.0, least_squares, n_conditions=len(rows))
    for share in SHARES if candidate else ():
        gain_R4 = truth.scores(prior_CG + share * candidate * head_CG)[rows] - without_R4
        gain_4 = gain_R4.mean(axis=0)
        gains = tuple(gain_4.tolist())
        low_2 = np.quantile(gain_R4[picks_DR, :2].mean(axis=1), LEVEL, axis=0)
        if (low_2 > 0).all() and (gain_4[2:] >= 0).all():
            return HeadWeight(share * candidate, least_squares, gains, len(rows))
        if share == 1.0:
            unused = dataclasses.replace(unused, gains=gains)
    return unused
