"""Files that a run writes while it trains (best model, history, training checkpoints), and how it is resumed."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gears.core._messages import count, shorten
from gears.files._atomic import check_no_writer, clean_leftovers, only_writer
from gears.files._paths import link_target, user_path
from gears.files.formats import content_hash, write_tensors
from gears.model._folder import (
    CHECKPOINTS,
    WEIGHTS,
    ModelParts,
    check_replaceable,
    check_save_path,
    difference,
    is_model,
    load_parts,
    save_model,
)
from gears.training import _checkpoints as checkpoints
from gears.training._loggers import write_history
from gears.training._schedules import scaled_lr
from gears.training._workers import plain_state

if TYPE_CHECKING:
    from gears.data.splits._split import Split
    from gears.training._trainer import TrainingEngine
    from gears.training.options import TrainOptions

IN_USE = "another training is writing to {}; wait for it, or choose another save_path"
logger = logging.getLogger(__name__)

_NAME = re.compile(r"epoch-(\d{5})-step-(\d{7})\.pt")


def unfinished(save_path: str | Path) -> Path:
    """Where a run is until it is complete, if `save_path` holds an earlier model."""
    path = link_target(user_path(save_path))
    return path.with_name(f"{path.name}.unfinished")


def run_path(save_path: str | Path, *, resume: bool) -> Path:
    """The folder in which a run writes: `save_path`, or ``NAME.unfinished`` while an earlier model is there.

    The earlier model stays until the new one is complete. A resumed run goes on where it was interrupted.
    """
    path, beside = link_target(user_path(save_path)), unfinished(save_path)
    return beside if is_model(beside if resume else path) else path


def check_resumed(save_path: str | Path, parts: ModelParts) -> None:
    """Raise ValueError if the run to continue is another one (:func:`check_parts`); before workers start."""
    path = run_path(save_path, resume=True)
    if is_model(path):
        check_parts(parts, load_parts(path), str(path))


@contextlib.contextmanager
def reserved(options: TrainOptions, parts: ModelParts, rank: int) -> Iterator[None]:
    """Keep other trainings out of `save_path` within the block (rank 0, which writes there), else FileExistsError."""
    if options.save_path is None or rank != 0:
        yield
        return
    path = check_save_path(options.save_path, None if options.resume else parts)
    with only_writer(path, IN_USE.format(path)):
        yield


def check_unused(save_path: str | Path) -> None:
    """Raise what :func:`reserved` would raise now, before any work; nothing is left behind."""
    path = check_save_path(save_path)
    check_no_writer(path, IN_USE.format(path))


class RunFolder:
    """Keeps ``save_path`` complete from the first epoch on; rank 0 writes and all ranks wait."""

    def __init__(self, options: TrainOptions, parts: ModelParts, facts: Mapping[str, Any]) -> None:
        assert options.save_path is not None
        self.path = user_path(options.save_path)
        self.options, self.parts, self.facts = options, parts, dict(facts)  # facts must stay the same on resume
        self._ready = False
        self._last_checkpoint = 0
        check_replaceable(self.path)

    def resume(self, engine: TrainingEngine) -> None:
        """Load the newest readable checkpoint into the engine, if there is one; ValueError for that of another run."""
        self._restore_newest(engine)
        _check_same_step(engine)
        if engine.is_main:  # remove what a killed process of this run left, which no other process writes
            path = self.path
            for folder, name in ((path, None), (path / CHECKPOINTS, None), (path.parent, path.name)):
                clean_leftovers(folder, name, alone=True)

    def _restore_newest(self, engine: TrainingEngine) -> None:
        if not is_model(self.path):
            logger.warning("resume=True but %s holds no model yet: starting from the beginning", self.path)
            return
        check_parts(self.parts, load_parts(self.path), str(self.path))
        for file in reversed(self._checkpoints()):
            try:
                content = checkpoints.read(file, engine.device)
            except ValueError as error:
                logger.warning("%s; trying the one before", error)
                continue
            check_facts(self.facts, content["metadata"].get("facts", {}), str(file))
            checkpoints.restore(engine, content, restore_random=False)
            self._continue_from(engine, content["metadata"].get("epochs"))
            return
        logger.warning("no readable checkpoint under %s: starting from the beginning", self.path / CHECKPOINTS)

    def _continue_from(self, engine: TrainingEngine, planned: int | None) -> None:
        """Log where the run continues; patience and length may differ from before."""
        progress, options, rule = engine.progress, self.options, engine.early_stopping
        assert options.epochs is not None
        self._ready, self._last_checkpoint = True, progress.epoch
        goes_on = progress.epoch < options.epochs  # else the run is complete, whatever its patience
        progress.finished = goes_on and rule is not None and progress.epochs_without_success >= rule.patience
        progress.stopped_because = rule.reason if rule is not None and progress.finished else None
        steps = f" and {count(progress.step, 'step')} of the next" if progress.step else ""
        logger.info("continuing the run in %s after epoch %d%s", self.path, progress.epoch, steps)
        if planned not in (None, options.epochs) and options.schedule in ("cosine", "one-cycle"):
            logger.warning(
                "the run was planned for %s epochs, now for %s: the learning rate of schedule=%r follows the new "
                "length from here on", planned, options.epochs, options.schedule,
            )  # fmt: skip
        if not goes_on:
            done = f"the run in {self.path} has {progress.epoch} epochs already and epochs={options.epochs}"
            logger.warning("%s: nothing to train", done)

    def epoch_end(self, engine: TrainingEngine, record: Mapping[str, Any], improved: bool) -> None:
        """Write new best weights, the history, and a checkpoint when due."""
        if improved or engine.best_state is None or not self._ready:
            self._put_weights(engine)
        checkpoints.on_main(engine, str(self.path), lambda: write_history(self.path, engine.progress.history))
        due = record["epoch"] - self._last_checkpoint >= (self.options.checkpoint_every or 1)
        if due or record["epoch"] == self.options.epochs or engine.progress.finished:
            self.checkpoint(engine)

    def step_end(self, engine: TrainingEngine) -> None:
        """Write a checkpoint when one is due after so many steps."""
        every = self.options.checkpoint_every_steps
        if every is not None and engine.progress.total_steps % every == 0:
            self.checkpoint(engine)

    def checkpoint(self, engine: TrainingEngine) -> Path:
        """Write the current training state, delete the oldest checkpoints, and return the file."""
        if not self._ready:
            self._put_weights(engine)
        progress = engine.progress
        name = f"epoch-{progress.epoch:05d}-step-{progress.step:07d}.pt"
        metadata = {"facts": self.facts, "epochs": self.options.epochs}
        file = self.path / CHECKPOINTS / name
        engine.save_checkpoint(file, metadata=metadata)
        if progress.step == 0:
            self._last_checkpoint = progress.epoch
        checkpoints.on_main(engine, f"{self.path} (old checkpoints)", self._drop_oldest)
        return file

    def _drop_oldest(self) -> None:
        for file in self._checkpoints()[: -self.options.keep_last]:
            file.unlink(missing_ok=True)

    def _put_weights(self, engine: TrainingEngine) -> None:
        """Write the best weights, or the current ones while there is no best; the complete folder the first time."""
        weights = engine.best_state or plain_state(engine.evaluated_model)

        def write() -> None:
            if self._ready:
                write_tensors(self.path / WEIGHTS, weights)
            else:
                save_model(self.path, self.parts, weights)

        checkpoints.on_main(engine, str(self.path), write)
        self._ready = True

    def _checkpoints(self) -> list[Path]:
        """Complete checkpoints, oldest first."""
        folder = self.path / CHECKPOINTS
        return sorted(file for file in folder.glob("epoch-*.pt") if _NAME.fullmatch(file.name))


def run_facts(options: TrainOptions, per_step: int, world_size: int) -> dict[str, Any]:
    """Values that must stay the same on resume; `per_step`: cells or conditions of a micro-batch over all workers."""
    assert options.lr is not None
    rate = scaled_lr(options.lr, options.lr_scaling, world_size)
    return options.fixed() | {"learning rate": rate, "batch over all workers": per_step}


def check_facts(here: Mapping[str, Any], there: Mapping[str, Any], where: str) -> None:
    """Raise ValueError with both values of each option that differs."""
    _raise_if_different(
        _differences(here, there), where, "give the same options, or train into another folder or without resume"
    )


def check_parts(here: ModelParts, there: ModelParts, where: str) -> None:
    """Raise ValueError if the saved run has another model, split, gene list, graph or screen."""
    this_model, saved_model = _identity(here), _identity(there)
    differing = []
    if (here.split and here.split.hash) != (there.split and there.split.hash):
        differing.append(_different_splits(there.split, here.split))
        del this_model["co-expression graph"]  # it is that of the training cells
    differing += _differences(this_model, saved_model)
    for list_name in ("gene_names", "pert_names"):
        names_here, names_there = getattr(here, list_name), getattr(there, list_name)
        if names_here != names_there:
            differing.append(f"{list_name}: {difference(names_there, names_here)}")
    _raise_if_different(differing, where, "train into another folder or without resume")


def _check_same_step(engine: TrainingEngine) -> None:
    """Raise RuntimeError unless all workers continue at the same step: the folder must be shared by all machines."""
    position = [engine.progress.epoch, engine.progress.step]
    positions = engine.reducer.gather(torch.tensor(position, dtype=torch.int64, device=engine.device)).tolist()
    if any(position != positions[0] for position in positions):
        listing = ", ".join(f"rank {rank}: epoch {int(e)} step {int(s)}" for rank, (e, s) in enumerate(positions))
        msg = f"the workers found different checkpoints ({listing}); save_path must be storage that all machines share"
        raise RuntimeError(msg)


def _different_splits(there: Split | None, here: Split | None) -> str:
    """Both splits by kind and seed; or that only their conditions differ."""
    name_there, name_here = (f"{split.name}, seed {split.seed}" if split else "none" for split in (there, here))
    if name_there == name_here:
        return f"split: {name_there} on both sides, with other conditions or options"
    return f"split: {name_there} there, {name_here} here"


def _identity(parts: ModelParts) -> dict[str, Any]:
    """Short values that identify a model."""
    sources = ", ".join(f"{name} ({key[:8]})" for name, key in parts.provenance.get("sources", {}).items())
    identity = {"screen": str(parts.provenance.get("screen_hash", ""))[:16]}
    for name, graph in (("perturbation graph", parts.go), ("co-expression graph", parts.coexpress)):
        identity[name] = f"{graph.edge_index.shape[1]} edges ({content_hash(graph.edge_index, graph.weight)[:8]})"
    return identity | {"sources of the prior": sources or "none"} | parts.config.to_dict()


def _differences(here: Mapping[str, Any], there: Mapping[str, Any]) -> list[str]:
    """Both values of each entry that differs."""
    shared = [name for name in here if name in there]
    return [f"{name}: {there[name]} there, {here[name]} here" for name in shared if there[name] != here[name]]


def _raise_if_different(differing: list[str], where: str, advice: str) -> None:
    if differing:
        msg = f"{where} belongs to another run ({shorten(differing)}); {advice}"
        raise ValueError(msg)
