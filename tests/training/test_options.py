"""Options: what is impossible or contradictory is refused before work begins, what has no effect is said."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gears import GEARS, PertData, train_multi_gpu
from gears.distributed import launch
from gears.jobs._job import TrainingJob
from gears.training.options import TrainOptions

SPLIT = {"split": "simulation", "seed": 1}

# What each option could be given wrongly; every option is here or in CANNOT_BE_WRONG.
WRONG: dict[str, list[Any]] = {
    "epochs": [-1, 1.5, "3", True],
    "steps": [0, 2.5],
    "lr": [0.0, -1.0, float("nan"), float("inf"), "fast"],
    "weight_decay": [-0.1, float("nan")],
    "objective": ["cell", "auto"],
    "prior": ["automatic"],
    "refit": [1, "no"],
    "schedule": ["cos"],
    "batch_size": [0, 1.5],
    "eval_every": [0],
    "warmup_steps": [-1, 2.5],
    "eta_min": [-0.1, 1.5],
    "lr_scaling": ["double"],
    "clip_value": [0.0],
    "clip_norm": [-1.0],
    "accumulation_steps": [0],
    "use_amp": ["yes", 1],
    "amp_dtype": ["half"],
    "init_scale": [0.0],
    "growth_interval": [0],
    "tf32": [1],
    "compile": ["no"],
    "profile": ["no"],
    "use_ema": [None],
    "ema_decay": [0.0, 1.0, 2],
    "early_stopping": [0, 1.5, "never"],
    "check_replicas": ["false"],
    "reproducible": ["yes"],
    "dtype": ["float16"],
    "resume": ["true"],
    "checkpoint_every": [0],
    "checkpoint_every_steps": [0, 0.5],
    "keep_last": [0],
    "loggers": [["excel"]],
    "init_timeout": [0],
    "verbose": ["loud"],
    "evaluate_test": ["no"],
}
# A name of a metric is looked up with the screen (see below), sources are read with it, the rest is free text.
CANNOT_BE_WRONG = {"monitor", "save_path", "project", "name", "effects_of", "similarities"}

CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"use_amp": True, "dtype": "float64"}, "omit one of them"),
    ({"reproducible": True, "compile": True, "lr_scaling": "sqrt"}, "with compile=True and lr_scaling='sqrt'"),
    ({"resume": True}, "give save_path"),
    ({"profile": True}, "give save_path"),
    ({"epochs": 2, "steps": 6}, "omit one of them"),
    ({"epochs": 0, "prior": None}, "prior=None has none"),
]

PLAIN_RUN = {"device_type": "cpu", "world_size": 1, "steps": None, "validated": True}
# What has no effect in which run; every option is here or in ALWAYS.
NO_EFFECT: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"amp_dtype": "float16"}, {}),
    ({"init_scale": 2.0}, {}),
    ({"growth_interval": 3}, {}),
    ({"tf32": True}, {}),
    ({"ema_decay": 0.5}, {}),
    ({"eta_min": 0.1, "schedule": "constant"}, {}),
    ({"refit": False, "prior": None}, {}),
    ({"effects_of": {"other": 1}, "prior": None}, {}),
    ({"similarities": {"other": 1}, "prior": None}, {}),
    ({"lr_scaling": "linear"}, {}),
    ({"check_replicas": True}, {}),
    ({"keep_last": 3}, {}),
    ({"checkpoint_every": 3}, {}),
    ({"checkpoint_every_steps": 3}, {}),
    ({"project": "p"}, {}),
    ({"name": "n"}, {}),
    ({"init_timeout": 3.0}, {}),
    ({"monitor": "mse"}, {"steps": 100, "validated": False}),
    ({"early_stopping": 2}, {"steps": 100, "validated": False}),
    ({"early_stopping": 5, "epochs": 5}, {"steps": 100}),
    ({"warmup_steps": 100}, {"steps": 100}),
]
# They act in every run, or are refused where they could not.
ALWAYS = {
    "epochs", "steps", "lr", "weight_decay", "objective", "prior", "schedule", "batch_size", "eval_every", "clip_value",
    "clip_norm", "accumulation_steps", "use_amp", "compile", "profile", "use_ema", "dtype",
    "save_path", "resume", "loggers", "verbose", "evaluate_test", "reproducible",
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_value_is_named(name: str) -> None:
    for value in WRONG[name]:
        with pytest.raises(ValueError, match=name.rstrip("s")):
            TrainOptions(**{name: value})


@pytest.mark.parametrize(("options", "words"), CONTRADICTIONS)
def test_contradictions_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TrainOptions.from_mapping(options)


@pytest.mark.parametrize(("options", "run"), NO_EFFECT)
def test_what_has_no_effect_is_said(options: dict[str, Any], run: dict[str, Any]) -> None:
    name = next(iter(options))
    filled = TrainOptions(objective="cells", **options).with_defaults()
    (sentence,) = filled.without_effect(**(PLAIN_RUN | run))
    assert sentence.startswith(f"{name}={options[name]!r} has no effect without ")


def test_nothing_is_said_of_a_plain_run() -> None:
    for objective in ("cells", "moments"):
        filled = TrainOptions(objective=objective).with_defaults()
        assert filled.without_effect(**(PLAIN_RUN | {"steps": 100})) == []
    everything = TrainOptions(
        objective="cells",
        use_amp=True, amp_dtype="float16", init_scale=2.0, growth_interval=3, tf32=True, use_ema=True, ema_decay=0.5,
        schedule="cosine", eta_min=0.1, lr_scaling="linear", check_replicas=True,
        save_path="m", keep_last=3, checkpoint_every=3, checkpoint_every_steps=3, loggers=("wandb",), project="p",
        name="n", init_timeout=3.0, monitor="mse", early_stopping=2, warmup_steps=5, epochs=9,
    )  # fmt: skip
    on_gpus = PLAIN_RUN | {"device_type": "cuda", "world_size": 2, "steps": 100}
    assert everything.with_defaults().without_effect(**on_gpus) == []


@pytest.mark.parametrize("objective", ["moments", "cells"])
def test_numbers_are_taken_as_given_and_what_is_omitted_depends_on_the_objective(objective: str) -> None:
    given = {"epochs": 3, "lr": 0.5, "weight_decay": 0.1, "schedule": "constant", "batch_size": 7}
    filled = TrainOptions(objective=objective, **given).with_defaults(loader_size=9)
    assert {name: getattr(filled, name) for name in given} == given
    assert filled.objective == objective
    omitted = TrainOptions(objective=objective).with_defaults()
    assert omitted.epochs == 20
    expected = {"moments": (1e-2, "one-cycle", 0.0, None), "cells": (1e-2, "one-cycle", 0.0, 32)}[objective]
    assert (omitted.lr, omitted.schedule, omitted.weight_decay, omitted.batch_size) == expected


def test_batches_numbers_and_paths_are_taken_in_any_usual_type(tmp_path: Path) -> None:
    for world_size in (1, 2, 3):
        assert TrainOptions().conditions_per_step(100, world_size) == 32
        assert TrainOptions(batch_size=10).conditions_per_step(100, world_size) == 10 * world_size
        assert TrainOptions(batch_size=60).conditions_per_step(100, world_size) == min(100, 60 * world_size)
    options = TrainOptions(epochs=np.int64(3), lr=np.float32(0.5), use_ema=np.bool_(True), save_path=tmp_path / "m")
    assert [type(value) for value in (options.epochs, options.lr, options.use_ema)] == [int, float, bool]
    assert options.save_path == str(tmp_path / "m")
    assert TrainOptions(save_path="~/m").save_path == str(Path.home() / "m")


def test_every_option_is_in_the_tables() -> None:
    silent = {next(iter(options)) for options, _ in NO_EFFECT}
    assert {*WRONG, *CANNOT_BE_WRONG} == set(TrainOptions.names())
    assert silent.isdisjoint(ALWAYS)
    assert {*silent, *ALWAYS} == set(TrainOptions.names())


def test_a_wrong_monitor_or_time_out_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    for monitor, words in (("mse_top", "did you mean"), ("spread", "single conditions")):
        with pytest.raises(ValueError, match=words):
            TrainingJob.check("nowhere", "none", SPLIT, {"save_path": "m", "monitor": monitor})
    for timeout in (0, -1.0, "10", True):
        with pytest.raises(ValueError, match="expected seconds above 0"):
            train_multi_gpu(tmp_path, "none", SPLIT, {"save_path": "m"}, device="cpu", timeout=timeout)
        with pytest.raises(ValueError, match="expected seconds above 0"):
            launch(print, ["cpu"], backend="gloo", timeout=timeout)


def test_loader_settings_that_nothing_uses_are_said(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    (tmp_path / "toy.h5ad").touch()
    args = {"save_path": tmp_path / "m", "objective": "moments", "num_workers": 2, "test_batch_size": 8}
    with caplog.at_level(logging.WARNING, logger="gears"):
        TrainingJob.check(tmp_path, "toy", SPLIT, args).warn_without_effect()
    assert [message.split("=")[0] for message in caplog.messages] == ["test_batch_size", "num_workers"]
    caplog.clear()
    cells = {"save_path": tmp_path / "m", "objective": "cells", "num_workers": 2}
    TrainingJob.check(tmp_path, "toy", SPLIT, cells).warn_without_effect()
    assert caplog.messages == []


def test_without_validation_a_run_neither_stops_early_nor_is_silent(toy_adata, toy_go, tmp_path, caplog):
    data = PertData(tmp_path, gene2go=toy_go, default_pert_graph=False)
    data.new_data_process("toy", toy_adata)
    data.prepare_split("no_test", seed=1)
    whole = data.split
    parts = {name: labels for name, labels in whole.parts.items() if name != "val"}
    data.split = dataclasses.replace(whole, parts=parts)
    gears = GEARS(data, device="cpu")
    gears.model_initialize(hidden_size=4)
    with caplog.at_level(logging.WARNING, logger="gears"):
        result = gears.train(
            objective="moments", prior=None, epochs=4, early_stopping=1, verbose=False, evaluate_test=False
        )
    assert len(result.history) == 4
    assert "early_stopping=1 has no effect without a validation condition" in caplog.text
