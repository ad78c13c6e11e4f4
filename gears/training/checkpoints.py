"""Write and read training state, and check whether a run may be resumed from it."""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gears.core.messages import count, shorten
from gears.distributed.world import Reducer
from gears.files.formats import content_hash
from gears.files.tensors import read_tensors, write_tensors
from gears.model.folder import ModelParts, difference
from gears.training.options import TrainOptions
from gears.training.schedules import scaled_lr
from gears.training.wrapping import unwrap

if TYPE_CHECKING:
    from gears.data.splits.split import Split
    from gears.training.engine import TrainingEngine

FORMAT = 2
_LONGEST_REASON = 1000

BATCH = "batch over all workers"


def plain_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """The bare module's weights and buffers, copied to the CPU."""
    return {key: value.detach().cpu().clone() for key, value in unwrap(model).state_dict().items()}


def on_main(engine: TrainingEngine, what: str, write: Callable[[], None]) -> None:
    """Write on rank 0; all ranks wait for it, and all raise with its reason if it failed."""
    failure: BaseException | None = None
    if engine.is_main:
        try:
            write()
        except (OSError, ValueError, RuntimeError) as error:
            failure = error
    failed_here = torch.tensor([float(failure is not None)], dtype=torch.float32, device=engine.device)
    failed = engine.reducer.sum(failed_here)
    if float(failed) == 0:
        return
    reason = _said_by_main(engine, "" if failure is None else str(failure))
    if failure is not None:
        raise failure
    msg = f"rank 0 could not write {what}: {reason}"
    raise OSError(msg)


def _said_by_main(engine: TrainingEngine, text: str) -> str:
    """A text of rank 0 on all ranks: whichever is heard first names the cause."""
    characters = torch.zeros(_LONGEST_REASON, dtype=torch.float32, device=engine.device)
    if engine.is_main:
        known = text.encode()[:_LONGEST_REASON]
        characters[: len(known)] = torch.tensor(list(known), dtype=torch.float32)
    engine.reducer.from_main([characters])
    return bytes(map(int, characters.tolist())).rstrip(b"\0").decode(errors="replace")


def save(engine: TrainingEngine, path: str | Path, metadata: dict[str, Any]) -> None:
    """Write a checkpoint on rank 0 (see :func:`on_main`)."""
    engine.read_steps()
    random = engine.reducer.gather(torch.get_rng_state().to(engine.device)).cpu()
    losses = engine.reducer.gather(epoch_sums(engine)).cpu()
    more = {"random": random, "losses": losses, "metadata": metadata}
    on_main(engine, str(path), lambda: write_tensors(path, _content(engine) | more))


def epoch_sums(engine: TrainingEngine, *more: float) -> torch.Tensor:
    """This worker's losses of the current epoch (and other sums), in the widest type of the device."""
    dtype = torch.float64 if engine.device.type != "mps" else torch.float32
    return torch.tensor([engine.progress.loss_sum, *more], dtype=dtype, device=engine.device)


def _content(engine: TrainingEngine) -> dict[str, Any]:
    content: dict[str, Any] = {
        "format": FORMAT,
        "model": plain_state(engine.model),
        "progress": dataclasses.asdict(engine.progress),
        "world_size": engine.reducer.world_size,
    }
    if engine.best_state is not None:
        content["best"] = engine.best_state
    if engine.ema is not None:
        content["ema"] = engine.ema.state_dict()
    if engine.optimizer is not None:
        content["optimizer"] = engine.optimizer.state_dict()
        content["scaler"] = engine.scaler.state_dict()
        if engine.scheduler is not None:
            content["scheduler"] = _plain(engine.scheduler.state_dict())
    return content


def read(path: str | Path, device: str | torch.device = "cpu") -> dict[str, Any]:
    """The content of a checkpoint; raises ValueError for a damaged file or another format."""
    content = read_tensors(path, device)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        description = content.get("format") if isinstance(content, dict) else type(content).__name__
        msg = f"{path} is no training checkpoint of format {FORMAT}; found {description}"
        raise ValueError(msg)
    return content


def restore(engine: TrainingEngine, content: dict[str, Any], *, restore_random: bool = True) -> None:
    """Load a checkpoint's state into an engine, with its optimiser and scheduler where set."""
    engine.model.load_state_dict(content["model"])
    engine.progress = Progress(**content["progress"])
    if "best" in content:
        engine.best_state = {key: value.cpu() for key, value in content["best"].items()}
    if engine.ema is not None and "ema" in content:
        engine.ema.load_state_dict(content["ema"])
    if engine.optimizer is not None and "optimizer" in content:
        engine.optimizer.load_state_dict(content["optimizer"])
        engine.scaler.load_state_dict(content["scaler"])
    if engine.scheduler is not None and "scheduler" in content:
        engine.scheduler.load_state_dict(content["scheduler"])
    same_workers = content["world_size"] == engine.reducer.world_size
    losses = content.get("losses")
    if losses is not None:
        # with another number of workers each takes the mean of all losses: the epoch's mean loss stays the same
        loss_sum = losses[engine.reducer.rank] if same_workers else losses.mean()
        if engine.options.reproducible:  # all are equal, and their mean would be rounded
            loss_sum = losses[0]
        engine.progress.loss_sum = float(loss_sum)
    if restore_random and same_workers:
        engine.restored_random = content["random"][engine.reducer.rank].cpu()


def check_replicas(model: nn.Module, reducer: Reducer) -> None:
    """Compare the bits of parameters and buffers over workers; raises RuntimeError where they differ."""
    device = next(model.parameters()).device
    checksums = [float(zlib.crc32(_bytes(tensor))) for tensor in model.state_dict().values()]
    all_signatures = reducer.gather(torch.tensor(checksums, dtype=torch.float64, device=device))
    if not bool((all_signatures == all_signatures[0]).all()):
        names = list(model.state_dict())
        differing = (all_signatures != all_signatures[0]).any(dim=0).nonzero().flatten().tolist()
        msg = f"the workers' models differ in {', '.join(names[index] for index in differing[:5])}"
        raise RuntimeError(msg)


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _plain(value: Any) -> Any:
    """State of a scheduler without its functions: only numbers are saved."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if not callable(item)}
    if isinstance(value, list | tuple):
        return [None if callable(item) else _plain(item) for item in value]
    return value


@dataclass(frozen=True)
class EarlyStopping:
    """Rule that ends a run before its last epoch.

    Attributes
    ----------
    patience
        Epochs in a row without success after which the run ends.
    after
        Epochs up to this one (from 1) are not counted.
    to_beat
        Value of the metric, such as that of the prior alone, that an epoch can beat instead of the best epoch; None:
        only a new best epoch is a success.
    """

    patience: int
    after: int = 0
    to_beat: float | None = None

    @property
    def reason(self) -> str:
        """Why a run ended, for messages."""
        return f"early stopping: {count(self.patience, 'epoch')} in a row did not beat {self.beaten}"

    @property
    def beaten(self) -> str:
        """What an epoch must beat, for messages."""
        return "the best epoch" if self.to_beat is None else "the prior or the best epoch"


@dataclass
class Progress:
    """Progress of a run; plain values and tensors, saved in checkpoints.

    Attributes
    ----------
    epoch, step, total_steps
        Complete epochs, optimiser steps of the current one and of the run.
    best_epoch, best_metric
        Best evaluated epoch (from 1) and its metric.
    epochs_without_success
        Epochs since the last success (see :class:`EarlyStopping`).
    loss_sum
        Sum of this worker's losses of the current epoch.
    stopped_because
        Why it ended before its last epoch; None where it did not.
    condition_scores
        The monitored metric by network weight and validation condition, (K, U), for each evaluated epoch.
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
        self,
        epoch: int,
        value: float,
        *,
        lower_is_better: bool,
        rule: EarlyStopping | None = None,
        after: int = 0,
    ) -> bool:
        """Record an epoch's metric; True if `epoch` (from 1) is the best so far. NaN is never better.

        Epochs up to `after` are no candidates.
        """

        def beats(other: float | None) -> bool:
            return other is None or (value < other if lower_is_better else value > other)

        defined = not math.isnan(value)
        better = defined and epoch > after and beats(self.best_metric)
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


def run_facts(options: TrainOptions, per_step: int | None, world_size: int) -> dict[str, Any]:
    """Values that must stay the same on resume; `per_step`: cells or conditions of a micro-batch over all workers."""
    assert options.lr is not None
    return options.fixed() | {
        "learning rate": scaled_lr(options.lr, options.lr_scaling, world_size),
        BATCH: per_step,
    }


def check_facts(here: Mapping[str, Any], there: Mapping[str, Any], where: str) -> None:
    """Raise ValueError with both values of each option that differs; an unknown batch size is not compared."""
    unknown = [name for name in here if None in (here[name], there.get(name)) and name == BATCH]
    differing = [
        f"{name}: {there[name]} there, {here[name]} here"
        for name in here
        if name in there and name not in unknown and there[name] != here[name]
    ]
    _raise_if_different(
        differing, where, "give the same options, or train into another folder or without resume"
    )


def check_parts(here: ModelParts, there: ModelParts, where: str) -> None:
    """Raise ValueError if the saved run has another model, split, gene list, graph or screen."""
    this_model, saved_model = _identity(here), _identity(there)
    differing = []
    if (here.split and here.split.hash) != (there.split and there.split.hash):
        differing.append(_different_splits(there.split, here.split))
        del this_model["co-expression graph"]  # it is that of the training cells
    differing += [
        f"{key}: {saved_model[key]} there, {this_model[key]} here"
        for key in this_model
        if this_model[key] != saved_model[key]
    ]
    for kind in ("gene_names", "pert_names"):
        if getattr(here, kind) != getattr(there, kind):
            differing.append(f"{kind}: {difference(getattr(there, kind), getattr(here, kind))}")
    _raise_if_different(differing, where, "train into another folder or without resume")


def check_same_step(epoch: int, step: int, reducer: Reducer, device: torch.device) -> None:
    """Raise RuntimeError unless all workers continue at the same step: the folder must be shared by all machines."""
    positions = reducer.gather(torch.tensor([epoch, step], dtype=torch.int64, device=device)).tolist()
    if any(position != positions[0] for position in positions):
        listing = ", ".join(
            f"rank {rank}: epoch {int(e)} step {int(s)}" for rank, (e, s) in enumerate(positions)
        )
        msg = f"the workers found different checkpoints ({listing}); save_path must be storage that all machines share"
        raise RuntimeError(msg)


def _different_splits(there: Split | None, here: Split | None) -> str:
    """Both splits by kind and seed; or that only their conditions differ."""
    names = [f"{one.name}, seed {one.seed}" if one else "none" for one in (there, here)]
    if names[0] == names[1]:
        return f"split: {names[0]} on both sides, with other conditions or options"
    return f"split: {names[0]} there, {names[1]} here"


def _identity(parts: ModelParts) -> dict[str, Any]:
    """Short values that identify a model."""
    go, coexpress = parts.go, parts.coexpress
    return {
        "screen": str(parts.provenance.get("screen_hash", ""))[:16],
        "perturbation graph": f"{go.edge_index.shape[1]} edges ({content_hash(go.edge_index, go.weight)[:8]})",
        "co-expression graph": (
            f"{coexpress.edge_index.shape[1]} edges ({content_hash(coexpress.edge_index, coexpress.weight)[:8]})"
        ),
        **parts.config.to_dict(),
    }


def _raise_if_different(differing: list[str], where: str, advice: str) -> None:
    if differing:
        msg = f"{where} belongs to another run ({shorten(differing)}); {advice}"
        raise ValueError(msg)
