"""A run that was stopped goes on as if it never had been; another run's checkpoint is refused."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import torch
from anndata import AnnData
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from gears import GEARS, PertData
from gears.distributed import _signals as signals
from gears.files.formats import write_tensors
from gears.graphs._custom import Graphs
from gears.training import TrainingEngine
from gears.training import _checkpoints as checkpoints
from gears.training._run_folder import check_facts, check_resumed, run_facts
from gears.training._workers import check_replicas
from gears.training.options import TrainOptions

CASES = {
    "cells": {"objective": "cells", "use_ema": True, "ema_decay": 0.9},
    "accumulation": {"objective": "cells", "accumulation_steps": 2, "schedule": "cosine", "warmup_steps": 3},
    "moments": {"objective": "moments", "use_ema": True, "ema_decay": 0.9, "clip_norm": 0.5},
}
EPOCHS = 2


@pytest.fixture(scope="module")
def pert_data(toy_template: AnnData, toy_go: dict, tmp_path_factory: pytest.TempPathFactory) -> PertData:
    data = PertData(tmp_path_factory.mktemp("resume"), gene2go=toy_go, default_pert_graph=False)
    data.new_data_process("toy", toy_template.copy())
    return data


def trained(pert_data: PertData, save_path: Path, *, seed: int = 1, model: dict | None = None, **options: Any):
    """The model and the result of a run in this process."""
    pert_data.prepare_split("simulation", seed=seed)
    size = options.get("batch_size", 24 if options.get("objective") == "cells" else 3)
    if options.get("accumulation_steps", 1) > 1:
        size = 12
    gears = GEARS(pert_data, device="cpu")
    gears.model_initialize(hidden_size=4, seed=0, **(model or {}))
    settings = {"epochs": EPOCHS, "verbose": False, "evaluate_test": False, "eval_every": 1}
    result = gears.train(**{**settings, **options, "batch_size": size}, save_path=str(save_path))
    return gears, result


@pytest.fixture(autouse=True)
def fresh_loader(pert_data: PertData) -> None:
    pert_data.dataloader = {}


def equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


def numbers(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in record.items() if key != "seconds"} for record in history]


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.long)], ids=["some", "every"])
@pytest.mark.parametrize("case", CASES)
def test_every_step_is_a_place_to_go_on_from_bit_for_bit(case, every, pert_data, tmp_path):
    """Some: the last step but one, of cells also the first step and the end of an epoch."""
    options = {**CASES[case], "checkpoint_every_steps": 1, "keep_last": 1000}
    whole, result = trained(pert_data, tmp_path / "whole", **options)
    files = sorted((tmp_path / "whole" / "checkpoints").iterdir())
    within = [file for file in files if not file.name.endswith("step-0000000.pt")]
    assert len(files) > EPOCHS + 3
    assert len(within) > EPOCHS, "there must be checkpoints within an epoch"
    end = next(file for file in files if file not in within)
    for file in files if every else (files[0], end, within[-1]) if case == "cells" else (within[-1],):
        folder = tmp_path / file.stem
        shutil.copytree(tmp_path / "whole", folder)
        for later in files[files.index(file) + 1 :]:
            (folder / "checkpoints" / later.name).unlink()
        again, resumed = trained(pert_data, folder, resume=True, **options)
        assert equal(whole.model.state_dict(), again.model.state_dict()), file.name
        assert equal(whole.best_model.state_dict(), again.best_model.state_dict()), file.name
        assert numbers(resumed.history) == numbers(result.history), file.name
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def whole_cells(pert_data: PertData, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Model and result of the case "cells", never stopped, and its folder."""
    pert_data.dataloader = {}
    path = tmp_path_factory.mktemp("whole") / "m"
    return *trained(pert_data, path, **CASES["cells"], checkpoint_every_steps=2, keep_last=3), path


def test_a_request_to_stop_leaves_a_checkpoint_at_the_next_step(pert_data, whole_cells, tmp_path, monkeypatch):
    options = CASES["cells"]
    whole, result, _ = whole_cells
    asked = iter([False] * 5 + [True] * 100)
    with monkeypatch.context() as patch:
        patch.setattr(signals, "stop_requested", lambda: next(asked))
        _, stopped = trained(pert_data, tmp_path / "stopped", **options)
    assert stopped.stopped
    reason, checkpoint = str(stopped.stopped_because).split("; the checkpoint is ")
    assert reason == "stopped by a request in epoch 2, after 1 step of it"
    assert checkpoint.endswith("epoch-00001-step-0000001.pt; resume=True continues from it")
    (newest,) = [f.name for f in (tmp_path / "stopped" / "checkpoints").iterdir() if "step-0000000" not in f.name]
    assert newest == "epoch-00001-step-0000001.pt", "five steps an epoch: the sixth is the first of the second"
    again, resumed = trained(pert_data, tmp_path / "stopped", resume=True, **options)
    assert not resumed.stopped
    assert equal(whole.model.state_dict(), again.model.state_dict())
    assert numbers(resumed.history) == numbers(result.history)


def test_leftovers_and_a_damaged_newest_file_do_no_harm(pert_data, whole_cells, tmp_path, caplog):
    whole, _, path = whole_cells
    shutil.copytree(path, tmp_path / "m")
    folder = tmp_path / "m" / "checkpoints"
    kept = sorted(folder.iterdir())
    assert len(kept) == 3
    kept[-1].write_bytes(kept[-1].read_bytes()[:1000])
    (folder / ".epoch-00002.pt-abcdefgh.tmp").mkdir()
    (folder / ".epoch-00002.pt-abcdefgh.tmp" / "epoch-00002.pt").write_bytes(b"half")
    again, _ = trained(pert_data, tmp_path / "m", resume=True, **CASES["cells"], checkpoint_every_steps=2, keep_last=3)
    assert "it may be damaged; trying the one before" in caplog.text
    assert equal(whole.model.state_dict(), again.model.state_dict())
    assert not list(folder.glob(".*"))


REFUSED = {
    "objective: cells there, moments here": {"objective": "moments"},
    "learning rate: 0.01 there, 0.5 here": {"lr": 0.5},
    "schedule: one-cycle there, cosine here": {"schedule": "cosine"},
    "weight_decay: 0.0 there, 0.25 here": {"weight_decay": 0.25},
    "batch over all workers: 24 there, 12 here": {"batch_size": 12},
    "clip_value: 1.0 there, None here": {"clip_value": None},
    "clip_norm: None there, 2.0 here": {"clip_norm": 2.0},
    "use_ema: True there, False here": {"use_ema": False},
    "dtype: float32 there, float64 here": {"dtype": "float64"},
    "monitor: relative_error there, mse here": {"monitor": "mse"},
    r"direction_lambda: 0\.1 there, 0\.7 here": {"model": {"direction_lambda": 0.7}},
    "perturbation graph: .* edges .* there, .* edges .* here": {"model": {"num_similar_genes_go_graph": 2}},
    "split: simulation, seed 1 there, simulation, seed 2 here": {"seed": 2},
}


def test_another_run_is_refused_with_both_sides_named(pert_data, a_run, tmp_path):
    a_run(tmp_path / "m")
    before = {file.name: file.read_bytes() for file in (tmp_path / "m").rglob("*.pt")}
    values = np.random.default_rng(0).normal(size=(len(pert_data.pert_names), 3))
    table = pd.DataFrame(values, index=list(pert_data.pert_names))
    sources = {r"sources of the prior: none there, toy \(\w+\) here": {"similarities": {"toy": table}}}
    for words, change in (REFUSED | sources).items():
        pert_data.dataloader = {}
        with pytest.raises(ValueError, match=f"belongs to another run.*{words}"):
            trained(pert_data, tmp_path / "m", **{**CASES["cells"], "resume": True, **change})
    assert {file.name: file.read_bytes() for file in (tmp_path / "m").rglob("*.pt")} == before


def test_another_split_is_refused_before_workers_start(pert_data, a_run, tmp_path):
    a_run(tmp_path / "m")
    parts = GEARS.from_pretrained(tmp_path / "m", device="cpu").parts
    check_resumed(tmp_path / "m", parts)
    check_resumed(tmp_path / "no run", parts)
    assert parts.split is not None
    # with other training cells the co-expression graph is another one: it is not named beside the cause
    other = dataclasses.replace(
        parts, split=dataclasses.replace(parts.split, seed=7), graphs=Graphs(lambda: parts.go, lambda: parts.go)
    )
    with pytest.raises(ValueError, match=r"run \(split: simulation, seed 1 there, simulation, seed 7 here\);"):
        check_resumed(tmp_path / "m", other)


@pytest.mark.parametrize(
    ("numbers_of", "words"),
    [
        ([0, 15], "SIGTERM to worker 1 of 2"),
        ([2, 2], "SIGINT to all workers"),
        ([15, 0, 15], "SIGTERM to workers 0, 2 of 3"),
        ([15], "SIGTERM"),
        ([0, 0], "a request"),
    ],
)
def test_who_was_asked_to_stop_is_named(numbers_of: list[int], words: str) -> None:
    reducer = mock.Mock(world_size=len(numbers_of), gather=lambda own: torch.tensor(numbers_of)[:, None])
    assert signals.who_was_asked(reducer, torch.device("cpu")) == words


def test_replicas_that_differ_in_one_bit_or_in_a_sign_are_found() -> None:
    def compare(one: torch.Tensor, other: torch.Tensor) -> None:
        models = [torch.nn.Linear(3, 1) for _ in range(2)]
        for model, weight in zip(models, (one, other), strict=True):
            model.load_state_dict({"weight": weight, "bias": torch.zeros(1)})
        sent: list[torch.Tensor] = []
        keeps = mock.Mock(gather=lambda own: sent.append(own) or own[None])
        check_replicas(models[0], keeps)
        both = mock.Mock(gather=lambda own: torch.stack([sent[0], own]))
        check_replicas(models[1], both)

    weight = torch.tensor([[0.5, -0.25, 0.125]])
    compare(weight, weight.clone())
    for other in (-weight, weight.flip(1), torch.nextafter(weight, torch.ones(1, 3))):
        with pytest.raises(RuntimeError, match="differ in weight"):
            compare(weight, other)


@pytest.fixture(scope="module")
def a_run(pert_data: PertData, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], None]:
    """Puts a copy of one short run into a folder."""
    source = tmp_path_factory.mktemp("run") / "m"
    pert_data.dataloader = {}
    trained(pert_data, source, **{**CASES["cells"], "epochs": 1})
    return lambda target: shutil.copytree(source, target) and None


def test_another_screen_and_another_format_are_refused(toy_template, toy_go, a_run, tmp_path):
    a_run(tmp_path / "m")
    changed = toy_template.copy()
    changed.X.data[0] += 1.0
    for adata, words in (
        (toy_template[:, :-1].copy(), "gene_names: 30 there, 29 here; only there: GX29"),
        (changed, r"screen: .* there, .* here"),
    ):
        other = PertData(tmp_path / str(adata.n_vars), gene2go=toy_go, default_pert_graph=False)
        other.new_data_process("toy", adata)
        with pytest.raises(ValueError, match=words):
            trained(other, tmp_path / "m", resume=True, **CASES["cells"])
    write_tensors(tmp_path / "a.pt", {"format": 99})
    with pytest.raises(ValueError, match="no training checkpoint of format 2; found 99"):
        checkpoints.read(tmp_path / "a.pt")


def test_a_longer_run_goes_on_and_says_what_changes(pert_data, tmp_path, caplog):
    options = {**CASES["accumulation"], "epochs": 2, "early_stopping": None}
    trained(pert_data, tmp_path / "m", **options)
    _, longer = trained(pert_data, tmp_path / "m", resume=True, **{**options, "epochs": 4})
    assert len(longer.history) == 4
    assert "planned for 2 epochs, now for 4: the learning rate of schedule='cosine'" in caplog.text
    _, done = trained(pert_data, tmp_path / "m", resume=True, **{**options, "epochs": 4})
    assert numbers(done.history) == numbers(longer.history)
    assert "nothing to train" in caplog.text


def test_more_patience_lets_an_early_end_go_on(pert_data: PertData, tmp_path: Path) -> None:
    options = {**CASES["cells"], "lr": 1e-30, "epochs": 6}
    _, short = trained(pert_data, tmp_path / "m", early_stopping=1, checkpoint_every=6, **options)
    assert len(short.history) < 6
    _, longer = trained(pert_data, tmp_path / "m", resume=True, early_stopping=None, **options)
    assert len(longer.history) == 6


def test_a_resumed_run_must_keep_what_decides_its_course() -> None:
    """A new option is fixed, or derived with the number of workers, or one of these that may change."""
    free = {
        "epochs", "steps", "early_stopping", "check_replicas", "save_path", "resume", "checkpoint_every",
        "checkpoint_every_steps", "keep_last", "verbose", "loggers", "project", "name", "init_timeout",
        "profile", "compile", "init_scale", "growth_interval", "refit", "evaluate_test",
    }  # fmt: skip
    derived = {"lr", "lr_scaling", "batch_size", "effects_of", "similarities"}  # the last two by their content
    assert set(TrainOptions.names()) == {*TrainOptions().fixed(), *derived, *free}


@pytest.mark.parametrize("change", [{"prior": None}, {"clip_value": None}, {"clip_norm": 1.0}])
def test_none_is_a_value_of_its_own(change: dict[str, Any]) -> None:
    before = TrainOptions().with_defaults()
    after = TrainOptions(**change).with_defaults()
    with pytest.raises(ValueError, match=f"{next(iter(change))}: .* there, .* here"):
        check_facts(run_facts(after, 32, 1), run_facts(before, 32, 1), "the run")
    check_facts(run_facts(before, 32, 1), run_facts(before, 32, 1), "the run")


class Noisy(TensorDataset):
    """Draws random numbers while it is read, as augmentation does."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        x, y = super().__getitem__(index)
        return x + 0.1 * torch.randn(x.shape, dtype=x.dtype), y


def noisy_run(folder: Path, resume: Path | None = None) -> tuple[nn.Module, list[dict[str, Any]]]:
    """Dropout and noisy data: the global random state is part of the run."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 5, generator=generator, dtype=torch.float64)
    data = Noisy(x, (x[:, 0] > 0).long())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3 if resume is None else 99)
        model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 2)).double()
        for parameter in model.parameters():
            nn.init.normal_(parameter, generator=generator)
        engine = TrainingEngine(model, use_ema=True, ema_decay=0.8, accumulation_steps=2)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01 if resume is None else 0.5)
        engine.optimizer = optimizer
        note = {"note": "any"}
        if resume is not None:
            assert engine.load_checkpoint(resume) == note
        else:
            name = lambda e: str(folder / f"{e.progress.total_steps:03d}")  # noqa: E731
            engine.on_step_end = lambda e: e.save_checkpoint(f"{name(e)}.pt", metadata=note)
            engine.on_epoch_end = lambda e, *_: e.save_checkpoint(f"{name(e)}-end.pt", metadata=note)
        loader = DataLoader(data, 10, sampler=DistributedSampler(data, 1, 0, seed=4))
        history = engine.train(loader, None, optimizer, nn.CrossEntropyLoss(), num_epochs=3)
    return engine.evaluated_model, history


def test_dropout_and_noise_go_on_too(tmp_path: Path) -> None:
    state = torch.get_rng_state()
    whole, history = noisy_run(tmp_path)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 3 * 3 + 3
    for file in files:
        again, resumed = noisy_run(tmp_path, resume=file)
        assert equal(whole.state_dict(), again.state_dict()), file.name
        assert [record["train_loss"] for record in resumed] == [record["train_loss"] for record in history]
    assert torch.equal(torch.get_rng_state(), state)
