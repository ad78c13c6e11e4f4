"""What is filled in where a run leaves numbers out, and how numbers meant for cells are read over conditions."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from gears.training.options import TrainOptions

CELL_DEFAULTS: dict[str, Any] = {
    "epochs": 20,
    "lr": 1e-3,
    "schedule": "step",
    "weight_decay": 5e-4,
    "batch_size": 32,
    "eval_every": 1,
    "checkpoint_every": 1,
}
"""The published ones."""

MOMENT_LR, MOMENT_SCHEDULE, MOMENT_DECAY = 1e-2, "one-cycle", 0.0
MOMENT_PER_STEP = 32
"""Conditions of a step over all workers."""
MOMENT_STEPS = 400
"""Optimiser steps of a run over moments, about; docs/objectives.md says how they were found."""
MOST_PASSES = 20
"""Passes over the conditions that stand for one pass over the cells, at most."""
EVALUATIONS = 40
"""Evaluations of a run over moments, about: epochs are cheap, so not each is evaluated."""


@dataclass(frozen=True)
class RunPlan:
    """A run without open questions.

    Attributes
    ----------
    options
        Every option filled in; the objective is ``"cells"`` or ``"moments"``.
    per_step
        Conditions of a step over all workers (moments).
    note
        What became of numbers meant for cells, for the user; empty where nothing changed.
    """

    options: TrainOptions
    per_step: int = MOMENT_PER_STEP
    note: str = ""


def chosen_objective(options: TrainOptions) -> str:
    """What ``"auto"`` stands for: moments, or cells where an option only makes sense with cells.

    These are ``schedule="step"`` (halves the rate after each pass over the cells) and
    ``accumulation_steps`` over 1 (micro-batches of cells).
    """
    if options.objective != "auto":
        return options.objective
    return "cells" if options.schedule == "step" or options.accumulation_steps > 1 else "moments"


def passes_per_epoch(n_conditions: int, per_step: int) -> int:
    """Passes over the conditions that stand for one published pass over the cells."""
    steps = -(-n_conditions // per_step)
    wanted = -(-MOMENT_STEPS // (steps * CELL_DEFAULTS["epochs"]))
    return min(MOST_PASSES, wanted)


def settle(
    options: TrainOptions, n_conditions: int, *, loader_size: int | None = None, world_size: int = 1
) -> RunPlan:
    """Fill in what is left out.

    With ``objective="auto"`` numbers are read as meant for cells. Where moments are
    trained, `epochs` (and `early_stopping`, `checkpoint_every`) are multiplied by
    :func:`passes_per_epoch`, `lr` by the ratio of the two objectives' defaults, and a step
    has the default number of conditions whatever the batch size; the plan's note says so.

    Parameters
    ----------
    options
        As given by the caller.
    n_conditions
        Training conditions.
    loader_size
        Batch size per worker of the caller's loader, if there is one.
    world_size
        Number of workers.
    """
    if chosen_objective(options) == "cells":
        own = {"objective": "cells", "batch_size": loader_size or CELL_DEFAULTS["batch_size"]}
        return RunPlan(_filled(options, CELL_DEFAULTS | own))
    own_size = options.batch_size or loader_size
    translated = options.objective == "auto"
    per_step = MOMENT_PER_STEP if translated or own_size is None else own_size * world_size
    passes = passes_per_epoch(n_conditions, per_step)
    numbers = (options.epochs, options.lr, own_size)
    if translated:
        options = _translated(options, passes)
    epochs = options.epochs or passes * CELL_DEFAULTS["epochs"]
    often = max(1, epochs // EVALUATIONS)
    filled = _filled(
        options,
        {
            "objective": "moments",
            "epochs": epochs,
            "lr": MOMENT_LR,
            "schedule": MOMENT_SCHEDULE,
            "weight_decay": MOMENT_DECAY,
            "eval_every": often,
            "checkpoint_every": often,
        },
    )
    note = ""
    if translated and any(number is not None for number in numbers):
        note = (
            f"numbers given for cells are read over conditions: {filled.epochs} epochs of {n_conditions} conditions, "
            f"{per_step} a step, lr {filled.lr:g}, {filled.schedule} (objective='moments' takes numbers as they are, "
            "objective='cells' trains on cells)"
        )
    return RunPlan(filled, per_step, note)


def _translated(options: TrainOptions, passes: int) -> TrainOptions:
    values: dict[str, Any] = {"batch_size": None}
    for name in ("epochs", "early_stopping", "checkpoint_every"):
        value = getattr(options, name)
        values[name] = None if value is None else value * passes
    if options.lr is not None:
        values["lr"] = options.lr * MOMENT_LR / CELL_DEFAULTS["lr"]
    return dataclasses.replace(options, **values)


def _filled(options: TrainOptions, defaults: dict[str, Any]) -> TrainOptions:
    values = {name: value for name, value in defaults.items() if getattr(options, name) is None}
    if options.save_path is None:  # nothing is written: what was given stays visible as having no effect
        values.pop("checkpoint_every", None)
    return dataclasses.replace(options, **{**values, "objective": defaults["objective"]})
