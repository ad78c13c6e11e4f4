"""TensorBoard event files in ``<save_path>/tensorboard``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gears.training.loggers.registry import LoggerSetup, Record, flat, register

FOLDER = "tensorboard"


@register("tensorboard", package="tensorboard", needs_folder=True)
class TensorBoard:
    """Scalars per epoch and the options as text.

    The event file is opened with the first record, after the model's folder was swapped in.
    """

    def __init__(self, setup: LoggerSetup) -> None:
        self._setup = setup
        self._writer: Any = None

    def log(self, records: Sequence[Record]) -> None:
        if self._writer is None:
            self._writer = self._open()
        for record in records:
            for name, value in flat(record).items():
                self._writer.add_scalar(name, value, record["epoch"])
        self._writer.flush()

    def finish(self, failed: bool) -> None:
        if self._writer is not None:
            self._writer.close()

    def _open(self) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        assert self._setup.folder is not None
        writer = SummaryWriter(  # hides the records of a killed run after its last checkpoint
            str(self._setup.folder / FOLDER),
            purge_step=self._setup.logged + 1 if self._setup.logged else None,
        )
        writer.add_text("options", f"```\n{json.dumps(dict(self._setup.config), indent=1, default=str)}\n```")
        return writer
