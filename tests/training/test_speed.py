"""Where an epoch's time goes, and the options that trade time for something else."""

import copy
import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gears.training import TrainingEngine
from gears.training import _modes as modes
from gears.training._run import full_memory_explained
from gears.training._schedules import Horizon
from gears.training._workers import for_several_workers, has_batch_norm
from gears.training.options import TrainOptions

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_length_in_steps_and_a_rate_in_every_record() -> None:
    data = DataLoader(TensorDataset(torch.randn(40, 3), torch.zeros(40, dtype=torch.long)), batch_size=10)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = TrainingEngine(model, max_steps=6)
    history = engine.train(data, data, optimizer, nn.CrossEntropyLoss(), num_epochs=2)
    assert (engine.progress.total_steps, Horizon(4, 2, 6).steps) == (6, 6)
    assert ["val_loss" in record for record in history] == [True, True]
    seconds = history[0]["seconds"]
    assert seconds["samples_per_second"] == pytest.approx(40 / (seconds["total"] - seconds["evaluation"]))


def test_batch_norms_are_synchronised_on_cuda_only(caplog) -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Sequential(nn.BatchNorm1d(4)))

    plain = nn.Linear(3, 4)
    assert for_several_workers(plain, CUDA) is plain
    before = model()
    after = for_several_workers(before, CUDA)
    assert sum(isinstance(module, nn.SyncBatchNorm) for module in after.modules()) == 2
    assert not has_batch_norm(after)
    assert after.state_dict().keys() == before.state_dict().keys()
    assert after[1].weight is before[1].weight, "an optimiser made before the change keeps its parameters"
    kept = model()
    assert for_several_workers(kept, CUDA, convert=False) is kept
    with caplog.at_level(logging.WARNING, logger="gears"):
        assert for_several_workers(kept, CPU) is kept
    assert "depends on the number of workers" in caplog.text


def test_tf32_is_set_on_cuda_and_undone() -> None:
    before = torch.get_float32_matmul_precision()
    with modes.tf32(True, CPU):
        assert torch.get_float32_matmul_precision() == before
    with modes.tf32(False, CUDA):
        assert torch.get_float32_matmul_precision() == before

    def failing() -> None:
        with modes.tf32(True, CUDA):
            assert torch.get_float32_matmul_precision() == "high"
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert torch.get_float32_matmul_precision() == before


def test_no_compiler_is_said_and_the_model_stays(monkeypatch, caplog) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.delenv("CXX", raising=False)
    model = nn.Linear(2, 2)
    with caplog.at_level(logging.WARNING, logger="gears"), modes.compiled(model, CPU) as same:
        assert same is model
    assert "compile=True has no effect: no C++ compiler was found (looked for g++, clang++" in caplog.text
    monkeypatch.setattr("shutil.which", lambda name: name)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert modes.no_compiler("cpu") is None
    assert modes.no_compiler("cuda") == "the package triton is not installed"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of torch's own doings while it traces
@pytest.mark.parametrize(
    "backend", ["eager", *(pytest.param(b, marks=pytest.mark.long) for b in ("aot_eager", "inductor"))]
)
def test_a_compiled_run_equals_a_plain_one(backend: str, small_data, monkeypatch) -> None:
    """The first traces in the same way; the second also differentiates; the third, the default, takes minutes."""
    if modes.no_compiler("cpu") is not None:
        pytest.skip(f"torch.compile cannot run here: {modes.no_compiler('cpu')}")
    from gears import GEARS

    data, real = copy.copy(small_data), torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, **more: real(model, backend=backend, **more))
    found = []
    for compile in (False, True):
        model = GEARS(data, device="cpu")
        model.model_initialize(hidden_size=4)
        options = {"steps": 2, "objective": "cells", "batch_size": 24, "dtype": "float64"}
        result = model.train(**options, compile=compile, evaluate_test=False, verbose=False)
        found.append((result.history[0], model.best_model.state_dict()))
    (plain, weights), (compiled, own_weights) = found
    assert compiled["train_loss"] == pytest.approx(plain["train_loss"], rel=1e-9)
    assert weights.keys() == own_weights.keys(), "no _orig_mod. in the names"
    assert all((weights[key] - own_weights[key]).abs().max() < 1e-6 for key in weights)
    assert not [name for module in model.model.modules() for name in vars(module) if name == "forward"]


def test_full_memory_of_a_gpu_and_of_the_machine_names_the_batch() -> None:
    def failing(options: TrainOptions) -> None:
        with full_memory_explained(SimpleNamespace(batch_size=64), options):
            msg = "CUDA out of memory. Tried to allocate 2.00 GiB"
            raise torch.OutOfMemoryError(msg)

    words = r"full with batch_size=64: lower batch_size \(say 32\)\. CUDA .*Tried to allocate"
    with pytest.raises(torch.OutOfMemoryError, match=words):
        failing(TrainOptions())
    words = r"lower batch_size \(say 32\); with accumulation_steps=4 beside it a step has as many cells as now"
    with pytest.raises(torch.OutOfMemoryError, match=words):
        failing(TrainOptions(objective="cells", accumulation_steps=2))
    words = r"the machine's memory is full with batch_size=64: lower batch_size \(say 32\), or use fewer workers"
    loader = SimpleNamespace(batch_size=64)
    for make in (torch.zeros, np.zeros):
        with pytest.raises(MemoryError, match=words), full_memory_explained(loader, TrainOptions()):
            make(2**50)
    with pytest.raises(RuntimeError, match=r"^shape"), full_memory_explained(loader, TrainOptions()):
        torch.zeros(2).view(3)  # another error is left alone
