"""A training step runs on the device alone: losses and checks of several steps are read from it at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from anndata import AnnData
from torch.utils._python_dispatch import TorchDispatchMode

from gears import GEARS, PertData
from gears.training import TrainingEngine
from gears.training._records import StepRecords


class Reads(TorchDispatchMode):
    """Counts tensors whose value Python asks for (``item``, ``float``, ``bool``, ``tolist``)."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += "_local_scalar_dense" in str(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("objective", ["moments", "cells"])
def test_nothing_is_read_in_a_step_and_losses_every_sixteen(
    tmp_path: Path, toy_adata: AnnData, toy_go: dict, monkeypatch: pytest.MonkeyPatch, objective: str
) -> None:
    pert_data = PertData(tmp_path, gene2go=toy_go)
    pert_data.new_data_process("toy", toy_adata)
    pert_data.prepare_split("simulation", seed=1)
    pert_data.get_dataloader(batch_size=16)
    model = GEARS(pert_data, device="cpu")
    model.model_initialize(hidden_size=8)
    counts, step, unread, read = [], TrainingEngine._step, [], StepRecords.read

    def counted(self: TrainingEngine, *args: Any) -> None:
        with Reads() as reads:
            step(self, *args)
        counts.append(reads.count)

    def noted(self: StepRecords) -> Any:
        unread.append(self.unread)
        return read(self)

    monkeypatch.setattr(TrainingEngine, "_step", counted)
    monkeypatch.setattr(StepRecords, "read", noted)
    model.train(objective=objective, prior=None, steps=40, evaluate_test=False, verbose=False)
    assert counts == [0] * 40
    assert sum(unread) == 40
    assert max(unread) <= 16
