"""What a run writes while it trains: the best model, its history, training checkpoints."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gears.files import write_text
from gears.training import checkpoints
from gears.training.engine import TrainingEngine
from gears.training.model_folder import (
    CHECKPOINTS,
    WEIGHTS,
    ModelParts,
    is_model,
    load_parts,
    refuse_foreign_folder,
    save_model,
)
from gears.training.options import TrainOptions

logger = logging.getLogger(__name__)

_NAME = re.compile(r"epoch-(\d{5})-step-(\d{7})\.pt")


class RunFolder:
    """Keeps ``save_path`` complete from the first epoch on; written by rank 0, waited for by all.

    Parameters
    ----------
    options
        Training options with a `save_path`.
    parts
        The model without its weights.
    """

    def __init__(self, options: TrainOptions, parts: ModelParts) -> None:
        assert options.save_path is not None
        self.path = Path(options.save_path)
        self.options, self.parts = options, parts
        self._ready = False
        self._last_checkpoint = 0
        refuse_foreign_folder(self.path)

    def resume(self, engine: TrainingEngine) -> bool:
        """Load the newest readable checkpoint into the engine; False where there is none."""
        if not is_model(self.path):
            logger.warning("resume=True but %s holds no model yet: starting anew", self.path)
            return False
        self.parts.check_same(load_parts(self.path), str(self.path))
        for file in reversed(self._checkpoints()):
            try:
                checkpoints.load(engine, file, restore_random=False)
            except ValueError as error:
                logger.warning("%s; trying the one before", error)
                continue
            self._ready, self._last_checkpoint = True, engine.progress.epoch
            logger.info("continuing from %s", file)
            return True
        logger.warning("no readable checkpoint under %s: starting anew", self.path / CHECKPOINTS)
        return False

    def epoch_end(self, engine: TrainingEngine, record: Mapping[str, Any], improved: bool) -> None:
        """Write the best weights as soon as they are best, the history, and a checkpoint when due."""
        best = engine.best_state
        if improved or best is None or not self._ready:
            self._put_weights(engine)
        checkpoints.on_main(engine, str(self.path), lambda: self.write_history(engine.progress.history))
        due = record["epoch"] - self._last_checkpoint >= (self.options.checkpoint_every or 1)
        if due or record["epoch"] == self.options.epochs:
            self.checkpoint(engine)

    def checkpoint(self, engine: TrainingEngine) -> None:
        """Write the training state as it is now, and drop the oldest checkpoints."""
        if not self._ready:
            self._put_weights(engine)
        progress = engine.progress
        name = f"epoch-{progress.epoch:05d}-step-{progress.step:07d}.pt"
        engine.save_checkpoint(self.path / CHECKPOINTS / name)
        self._last_checkpoint = progress.epoch
        if engine.is_main:
            for file in self._checkpoints()[: -self.options.keep_last]:
                file.unlink(missing_ok=True)

    def write_history(self, history: list[dict[str, Any]]) -> None:
        """One JSON object per epoch."""
        lines = [json.dumps(record) for record in history]
        write_text(self.path / "metrics.jsonl", "\n".join(lines) + "\n")

    def _put_weights(self, engine: TrainingEngine) -> None:
        """The best weights, or the present ones while there is no best; the whole folder the first time."""
        weights = engine.best_state or checkpoints.plain_state(engine.evaluated_model)

        def write() -> None:
            if self._ready:
                checkpoints.write_tensors(self.path / WEIGHTS, weights)
            else:
                save_model(self.path, self.parts, weights)

        checkpoints.on_main(engine, str(self.path), write)
        self._ready = True

    def _checkpoints(self) -> list[Path]:
        """Complete checkpoints, oldest first."""
        folder = self.path / CHECKPOINTS
        return sorted(file for file in folder.glob("epoch-*.pt") if _NAME.fullmatch(file.name))
