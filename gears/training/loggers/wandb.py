"""A run of Weights & Biases; ``WANDB_MODE=offline`` writes it to disk for ``wandb sync``."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from typing import Any

from gears.training.loggers.registry import LoggerSetup, Record, flat, register


@register("wandb", package="wandb")
class WandB:
    """One run per training, failed where that is; RuntimeError if the service does not respond or denies access."""

    def __init__(self, setup: LoggerSetup) -> None:
        import wandb

        self._wandb: Any = wandb
        folder = None if setup.folder is None else setup.folder.parent
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        try:
            self._run = wandb.init(
                project=setup.project,
                name=setup.name,
                config=dict(setup.config),
                dir=None if folder is None else str(folder),
                reinit="create_new",  # a run that the caller has open stays open
                settings=wandb.Settings(init_timeout=setup.init_timeout, console="off", silent=True),
            )
        except Exception as error:
            msg = (
                f"wandb did not start ({error}); log in with `wandb login`, raise init_timeout "
                f"({setup.init_timeout:g} s), or set WANDB_MODE=offline and `wandb sync` later"
            )
            raise RuntimeError(msg) from error

    def log(self, records: Sequence[Record]) -> None:
        for record in records:
            self._run.log(flat(record), step=record["epoch"])

    def finish(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))
        if multiprocessing.parent_process() is not None:  # in a worker its helper process would go on
            self._wandb.teardown()
