"""May a run be continued? What must be the same, and both sides named where it is not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from gears.files import content_hash
from gears.messages import shorten
from gears.training.model_folder import ModelParts, difference
from gears.training.options import TrainOptions
from gears.training.schedules import scaled_lr
from gears.training.tasks import Reducer

BATCH = "batch over all workers"


def run_facts(options: TrainOptions, per_step: int | None, world_size: int) -> dict[str, Any]:
    """What decides the course of a run, as plain values.

    Parameters
    ----------
    options
        With defaults filled in.
    per_step
        Cells or conditions of a micro-batch over all workers, where known.
    """
    assert options.lr is not None
    return options.fixed() | {
        "learning rate": scaled_lr(options.lr, options.lr_scaling, world_size),
        BATCH: per_step,
    }


def check_facts(here: Mapping[str, Any], there: Mapping[str, Any], where: str) -> None:
    """Raise where options that a run keeps are others than before; a batch size that is unknown is passed over.

    Raises
    ------
    ValueError
        Both sides of what differs.
    """
    unknown = [name for name in here if None in (here[name], there.get(name)) and name == BATCH]
    differing = [
        f"{name}: {there[name]} there, {here[name]} here"
        for name in here
        if name in there and name not in unknown and there[name] != here[name]
    ]
    _refuse(differing, where, "give the same options, or train into another folder or without resume")


def check_parts(here: ModelParts, there: ModelParts, where: str) -> None:
    """Refuse to continue a run of another model, split, gene list, graph or screen.

    Raises
    ------
    ValueError
        Both sides of what differs.
    """
    ours, theirs = _identity(here), _identity(there)
    differing = [f"{key}: {theirs[key]} there, {ours[key]} here" for key in ours if ours[key] != theirs[key]]
    for kind in ("gene_names", "pert_names"):
        if getattr(here, kind) != getattr(there, kind):
            differing.append(f"{kind}: {difference(getattr(there, kind), getattr(here, kind))}")
    _refuse(differing, where, "train into another folder or without resume")


def check_same_place(epoch: int, step: int, reducer: Reducer, device: torch.device) -> None:
    """All workers must continue at the same step.

    Raises
    ------
    RuntimeError
        They found different checkpoints: the folder is not the same on all machines.
    """
    places = reducer.gather(torch.tensor([epoch, step], dtype=torch.int64, device=device)).tolist()
    if any(place != places[0] for place in places):
        found = ", ".join(f"rank {rank}: epoch {int(e)} step {int(s)}" for rank, (e, s) in enumerate(places))
        msg = f"the workers found different checkpoints ({found}); save_path must be storage that all machines share"
        raise RuntimeError(msg)


def _identity(parts: ModelParts) -> dict[str, Any]:
    """Short values by which two models can be told apart."""
    go, coexpress = parts.go, parts.coexpress
    return {
        "split": parts.split.hash if parts.split else None,
        "screen": str(parts.provenance.get("screen_hash", ""))[:16],
        "perturbation graph": f"{go.edge_index.shape[1]} edges ({content_hash(go.edge_index, go.weight)[:8]})",
        "co-expression graph": (
            f"{coexpress.edge_index.shape[1]} edges ({content_hash(coexpress.edge_index, coexpress.weight)[:8]})"
        ),
        **parts.config.to_dict(),
    }


def _refuse(differing: list[str], where: str, advice: str) -> None:
    if differing:
        msg = f"{where} belongs to another run ({shorten(differing)}); {advice}"
        raise ValueError(msg)
