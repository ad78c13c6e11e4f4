"""Training state on disk: tensors and plain types only, read with ``weights_only=True``."""

from __future__ import annotations

import dataclasses
import errno
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gears.files import user_path, write_atomically
from gears.training.progress import Progress
from gears.training.tasks import Reducer
from gears.training.wrapping import unwrap

if TYPE_CHECKING:
    from gears.training.engine import TrainingEngine

FORMAT = 2


def plain_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """The bare module's weights and buffers, copied to the CPU."""
    return {key: value.detach().cpu().clone() for key, value in unwrap(model).state_dict().items()}


def write_tensors(path: str | Path, value: Any) -> None:
    """``torch.save`` through a temporary name."""

    def write(temporary: Path) -> None:
        with open(temporary, "wb") as file:
            try:
                torch.save(value, file)
            except RuntimeError as error:  # what torch's writer makes of a full disk
                reason = (str(error).splitlines() or ["no reason given"])[0]
                raise OSError(errno.EIO, reason) from error

    write_atomically(path, write)


def read_tensors(path: str | Path, device: str | torch.device = "cpu") -> Any:
    """Read tensors and plain types; anything that could run code is refused, damage is named."""
    path = user_path(path)
    if not path.is_file():
        msg = f"there is no file {path}"
        raise FileNotFoundError(msg)
    try:
        _check_zip(path)
        return torch.load(path, map_location=device, weights_only=True)
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        msg = f"{path} cannot be read as a file of tensors ({reason}); it may be damaged"
        raise ValueError(msg) from error


def _check_zip(path: Path) -> None:
    """Compare checksums, which ``torch.load`` does not, and refuse compressed entries, which may have no end."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                msg = "it holds compressed entries, which torch.save never writes"
                raise ValueError(msg)
            broken = archive.testzip()
            if broken is not None:
                msg = f"its entry {broken} does not fit its checksum"
                raise ValueError(msg)


def on_main(engine: TrainingEngine, what: str, write: Callable[[], None]) -> None:
    """Write on rank 0; every rank waits for it, and every rank raises if it failed."""
    failure: BaseException | None = None
    if engine.is_main:
        try:
            write()
        except (OSError, ValueError, RuntimeError) as error:
            failure = error
    mine = torch.tensor([float(failure is not None)], dtype=torch.float32, device=engine.device)
    failed = engine.reducer.sum(mine)
    if failure is not None:
        raise failure
    if float(failed) > 0:
        msg = f"rank 0 could not write {what}"
        raise OSError(msg)


def save(
    engine: TrainingEngine, path: str | Path, *, include_optimizer: bool, metadata: dict[str, Any]
) -> None:
    """Write a checkpoint on rank 0 (see :func:`on_main`)."""
    random = engine.reducer.gather(torch.get_rng_state().to(engine.device)).cpu()
    losses = engine.reducer.gather(epoch_sums(engine)).cpu()
    of_ranks = {"random": random, "losses": losses}
    on_main(
        engine,
        str(path),
        lambda: write_tensors(path, _content(engine, include_optimizer, metadata) | of_ranks),
    )


def epoch_sums(engine: TrainingEngine, *more: float) -> torch.Tensor:
    """This worker's losses of the present epoch (and other sums), in the widest type of the device."""
    dtype = torch.float64 if engine.device.type != "mps" else torch.float32
    return torch.tensor([engine.progress.loss_sum, *more], dtype=dtype, device=engine.device)


def _content(engine: TrainingEngine, include_optimizer: bool, metadata: dict[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {
        "format": FORMAT,
        "model": plain_state(engine.model),
        "progress": dataclasses.asdict(engine.progress),
        "world_size": engine.reducer.world_size,
        "metadata": metadata,
    }
    if engine.best_state is not None:
        content["best"] = engine.best_state
    if engine.ema is not None:
        content["ema"] = engine.ema.state_dict()
    if include_optimizer and engine.optimizer is not None:
        content["optimizer"] = engine.optimizer.state_dict()
        content["scaler"] = engine.scaler.state_dict()
        if engine.scheduler is not None:
            content["scheduler"] = _plain(engine.scheduler.state_dict())
    return content


def read(path: str | Path, device: str | torch.device = "cpu") -> dict[str, Any]:
    """The content of a checkpoint.

    Raises
    ------
    ValueError
        The file is damaged or no checkpoint of this format.
    """
    content = read_tensors(path, device)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        found = content.get("format") if isinstance(content, dict) else type(content).__name__
        msg = f"{path} is no training checkpoint of format {FORMAT}; found {found}"
        raise ValueError(msg)
    return content


def restore(engine: TrainingEngine, content: dict[str, Any], *, restore_random: bool = True) -> None:
    """Put a checkpoint's state into an engine (its optimiser and scheduler too, where set)."""
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
        # with other workers each takes the mean of what all had: the epoch's mean loss comes out the same
        own = losses[engine.reducer.rank] if same_workers else losses.mean()
        engine.progress.loss_sum = float(own)
    if restore_random and same_workers:
        engine.restored_random = content["random"][engine.reducer.rank].cpu()


def check_replicas(model: nn.Module, reducer: Reducer) -> None:
    """Compare a checksum of parameters and buffers over workers.

    Raises
    ------
    RuntimeError
        The replicas differ (which no run should ever reach).
    """
    device = next(model.parameters()).device
    sums = [tensor.detach().double().abs().sum() for tensor in model.state_dict().values()]
    signature = torch.stack([value.to(device) for value in sums])
    all_signatures = reducer.gather(signature)
    if not bool((all_signatures == all_signatures[0]).all()):
        names = list(model.state_dict())
        where = (all_signatures != all_signatures[0]).any(dim=0).nonzero().flatten().tolist()
        msg = f"the workers' models differ in {', '.join(names[index] for index in where[:5])}"
        raise RuntimeError(msg)


def _plain(value: Any) -> Any:
    """Schedulers keep functions beside their numbers: only the numbers are saved."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if not callable(item)}
    if isinstance(value, list | tuple):
        return [None if callable(item) else _plain(item) for item in value]
    return value
