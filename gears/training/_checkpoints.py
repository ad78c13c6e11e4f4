"""Training state as a file: its format, reading and writing, and the progress of a run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from gears.core._messages import count
from gears.distributed._world import Reducer
from gears.files._tensors import read_tensors, write_tensors
from gears.training._workers import plain_state
from gears.training.options import TrainOptions

FORMAT = 2
_LONGEST_REASON = 1000


def on_main(reducer: Reducer, device: torch.device, what: str, write: Callable[[], None]) -> None:
    """Write on rank 0; all ranks wait for it, and all raise with its reason if it failed."""
    failure: BaseException | None = None
    if reducer.rank == 0:
        try:
            write()
        except (OSError, ValueError, RuntimeError) as error:
            failure = error
    failed_here = torch.tensor([float(failure is not None)], dtype=torch.float32, device=device)
    if float(reducer.sum(failed_here)) == 0:
        return
    # a text of rank 0 on all ranks: whichever is heard first names the cause
    characters = torch.zeros(_LONGEST_REASON, dtype=torch.float32, device=device)
    if reducer.rank == 0:
        reason = str(failure or "").encode()[:_LONGEST_REASON]
        characters[: len(reason)] = torch.tensor(list(reason), dtype=torch.float32)
    reducer.from_main([characters])
    if failure is not None:
        raise failure
    reason_of_main = bytes(map(int, characters.tolist())).rstrip(b"\0").decode(errors="replace")
    msg = f"rank 0 could not write {what}: {reason_of_main}"
    raise OSError(msg)


@dataclass(frozen=True)
class EarlyStopping:
    """Rule that ends a run before its last epoch."""

    patience: int  # epochs in a row without success after which the run ends
    after: int = 0  # epochs up to this one (from 1) are not counted

    @property
    def reason(self) -> str:
        """Why a run ended, for messages."""
        return f"early stopping: {count(self.patience, 'epoch')} in a row did not beat the best epoch"


@dataclass
class Progress:
    """Progress of a run; plain values and tensors, saved in checkpoints."""

    # epoch, step, total_steps: complete epochs, optimiser steps of the current one and of the run
    epoch: int = 0
    step: int = 0
    total_steps: int = 0
    # best_epoch, best_metric: best evaluated epoch (from 1) and its metric
    best_epoch: int | None = None
    best_metric: float | None = None
    epochs_without_success: int = 0  # epochs since the last success (see :class:`EarlyStopping`)
    loss_sum: float = 0.0  # sum of this worker's losses of the current epoch
    finished: bool = False
    stopped_because: str | None = None  # why it ended before its last epoch; None where it did not
    history: list[dict[str, Any]] = field(default_factory=list)
    condition_scores: list[torch.Tensor] = field(default_factory=list)
    """The monitored metric by network weight and validation condition, (K, U), for each evaluated epoch."""

    def note(
        self, epoch: int, value: float, *, lower_is_better: bool, rule: EarlyStopping | None = None, after: int = 0
    ) -> bool:
        """Record an epoch's metric; True if `epoch` (from 1) is the best so far. NaN is never better.

        Epochs up to `after` are no candidates.
        """
        best = self.best_metric
        beats = best is None or (value < best if lower_is_better else value > best)
        better = not math.isnan(value) and epoch > after and beats
        if better:
            self.best_metric, self.best_epoch = value, epoch
        if better or (rule is not None and epoch <= rule.after):
            self.epochs_without_success = 0
        else:
            self.epochs_without_success += 1
        return better


class Trained(Protocol):
    """What is saved and restored of a training: the part of ``TrainingEngine`` that this file reads and sets."""

    model: nn.Module
    ema: AveragedModel | None
    scaler: torch.amp.GradScaler
    optimizer: torch.optim.Optimizer | None
    scheduler: Any
    progress: Progress
    best_state: dict[str, Tensor] | None
    restored_random: Tensor | None
    reducer: Reducer
    device: torch.device
    options: TrainOptions


def save(trained: Trained, path: str | Path, metadata: Mapping[str, Any]) -> None:
    """Write a checkpoint on rank 0 (see :func:`on_main`)."""
    of_workers = {
        "random": trained.reducer.gather(torch.get_rng_state().to(trained.device)).cpu(),
        "losses": trained.reducer.gather(epoch_sums(trained)).cpu(),
    }

    def write() -> None:
        write_tensors(path, {**_content(trained), **of_workers, "metadata": dict(metadata)})

    on_main(trained.reducer, trained.device, str(path), write)


def epoch_sums(trained: Trained, *more: float) -> Tensor:
    """This worker's losses of the current epoch (and other sums), in the widest type of the device."""
    dtype = torch.float64 if trained.device.type != "mps" else torch.float32
    return torch.tensor([trained.progress.loss_sum, *more], dtype=dtype, device=trained.device)


def _content(trained: Trained) -> dict[str, Any]:
    """What is the same on all workers."""
    state: dict[str, Any] = {
        "format": FORMAT,
        "model": plain_state(trained.model),
        "progress": dataclasses.asdict(trained.progress),
        "world_size": trained.reducer.world_size,
    }
    if trained.best_state is not None:
        state["best"] = trained.best_state
    if trained.ema is not None:
        state["ema"] = trained.ema.state_dict()
    if trained.optimizer is not None:
        state["optimizer"] = trained.optimizer.state_dict()
        state["scaler"] = trained.scaler.state_dict()
        if trained.scheduler is not None:
            state["scheduler"] = _plain_values(trained.scheduler.state_dict())
    return state


def read(path: str | Path, device: str | torch.device = "cpu") -> dict[str, Any]:
    """The content of a checkpoint; raises ValueError for a damaged file or another format."""
    content = read_tensors(path, device)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        description = content.get("format") if isinstance(content, dict) else type(content).__name__
        msg = f"{path} is no training checkpoint of format {FORMAT}; found {description}"
        raise ValueError(msg)
    return content


def restore(trained: Trained, content: Mapping[str, Any], *, restore_random: bool = True) -> None:
    """Load a checkpoint's content, with optimiser and scheduler where they are set."""
    trained.model.load_state_dict(content["model"])
    trained.progress = Progress(**content["progress"])
    if "best" in content:
        trained.best_state = {key: value.cpu() for key, value in content["best"].items()}
    if trained.ema is not None and "ema" in content:
        trained.ema.load_state_dict(content["ema"])
    if trained.optimizer is not None and "optimizer" in content:
        trained.optimizer.load_state_dict(content["optimizer"])
        trained.scaler.load_state_dict(content["scaler"])
    if trained.scheduler is not None and "scheduler" in content:
        trained.scheduler.load_state_dict(content["scheduler"])
    same_workers = content["world_size"] == trained.reducer.world_size
    losses = content.get("losses")
    if losses is not None:
        # with another number of workers each takes the mean of all losses: the epoch's mean loss stays the same
        loss_sum = losses[trained.reducer.rank] if same_workers else losses.mean()
        if trained.options.reproducible:  # all are equal, and their mean would be rounded
            loss_sum = losses[0]
        trained.progress.loss_sum = float(loss_sum)
    if restore_random and same_workers:
        trained.restored_random = content["random"][trained.reducer.rank].cpu()


def _plain_values(state: Any) -> Any:
    """State of a scheduler without its functions: only numbers are saved."""
    if isinstance(state, dict):
        return {key: _plain_values(item) for key, item in state.items() if not callable(item)}
    if isinstance(state, list | tuple):
        return [None if callable(item) else _plain_values(item) for item in state]
    return state
