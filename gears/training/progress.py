"""Where a run stands, and when it ends before its last epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch

from gears.messages import count


@dataclass(frozen=True)
class EarlyStopping:
    """When a run ends before its last epoch.

    Attributes
    ----------
    patience
        Epochs in a row without success after which the run ends.
    after
        Epochs up to this one (from 1) are not counted.
    to_beat
        Value of the metric that counts as success like a best epoch, such as that of the prior alone; None: only
        a best epoch is one.
    """

    patience: int
    after: int = 0
    to_beat: float | None = None

    @property
    def reason(self) -> str:
        """Why a run ended, as a sentence for the user."""
        return f"early stopping: {count(self.patience, 'epoch')} in a row did not beat {self.beaten}"

    @property
    def beaten(self) -> str:
        """What an epoch must beat, in words."""
        return "the best epoch" if self.to_beat is None else "the prior or the best epoch"


@dataclass
class Progress:
    """Where a run stands; plain values and tensors, saved in checkpoints.

    Attributes
    ----------
    epoch, step, total_steps
        Complete epochs, optimiser steps of the present one and of the whole run.
    best_epoch, best_metric
        Best evaluated epoch (from 1) and its metric.
    epochs_without_success
        Epochs since the last success (see :class:`EarlyStopping`).
    loss_sum
        This worker's losses of the present epoch.
    finished
        Whether the run has ended.
    stopped_because
        Why it ended before its last epoch; None where it did not.
    condition_scores
        Of each evaluated epoch the monitored metric by network weight and validation condition, (K, U).
    """

    epoch: int = 0
    step: int = 0
    total_steps: int = 0
    best_epoch: int | None = None
    best_metric: float | None = None
    epochs_without_success: int = 0
    loss_sum: float = 0.0
    finished: bool = False
    stopped_because: str | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    condition_scores: list[torch.Tensor] = field(default_factory=list)

    def note(
        self, epoch: int, value: float, *, lower_is_better: bool, rule: EarlyStopping | None = None
    ) -> bool:
        """Whether `epoch` (from 1) is the best so far; an undefined metric never counts as better."""

        def beats(other: float | None) -> bool:
            return other is None or (value < other if lower_is_better else value > other)

        defined = not math.isnan(value)
        better = defined and beats(self.best_metric)
        if better:
            self.best_metric, self.best_epoch = value, epoch
        success = better or (
            defined and rule is not None and rule.to_beat is not None and beats(rule.to_beat)
        )
        if success or (rule is not None and epoch <= rule.after):
            self.epochs_without_success = 0
        else:
            self.epochs_without_success += 1
        return better
