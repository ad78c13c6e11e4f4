"""Mistakes that users make, in Python and on the command line: each is answered by what is wrong and what to do."""

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from anndata import AnnData

from gears import GEARS, PertData, PerturbationModel, pl, train_multi_gpu
from gears.cli import main
from gears.simulate import simulated_screen

NO_GPU = pytest.mark.skipif(torch.cuda.device_count() > 0, reason="this machine has a GPU")
SPLIT = {"split": "simulation", "seed": 1}


class Given:
    """A screen, as an object and as a file in the working folder, and a model of it, also saved in ``model``."""

    def __init__(self, folder: Path) -> None:
        options = {"n_genes": 30, "n_singles": 8, "n_pairs": 4, "cells_per_condition": 8, "n_control": 30, "seed": 2}
        self.adata = simulated_screen(**options)[0]  # type: ignore[arg-type]
        self.adata.write_h5ad(folder / "screen.h5ad")
        self.untrained = PerturbationModel(self.adata)
        self.model = PerturbationModel(self.adata)
        self.model.train(epochs=0, evaluate_test=False, verbose=False)
        self.model.save(folder / "model")
        (folder / "table.csv").write_text("a,b\n1,2\n")
        self.gene = self.model.gears.pert_data.screen.perturbed_genes[0]

    def but(self, **changes: Any) -> AnnData:
        """The screen with another matrix (`X`) or other labels (`labels`), which replace the old ones."""
        adata = self.adata.copy()
        if "X" in changes:
            adata.X = changes["X"](adata.X.toarray(), adata)
        if "labels" in changes:
            adata.obs["condition"] = [changes["labels"](label) for label in adata.obs["condition"].astype(str)]
        return adata


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Given]:
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = tmp_path_factory.mktemp("wrong")
        patch.chdir(folder)
        yield Given(folder)


def job(name: str, device: str | None = None, gpu_ids: list[int] | None = None, **options: Any) -> Any:
    return train_multi_gpu(".", name, SPLIT, {"save_path": "m", **options}, device=device, gpu_ids=gpu_ids)


Call = Callable[[Given], Any]
CALLS: dict[str, tuple[Call, str]] = {
    "a table for adata": (lambda g: PerturbationModel(g.adata.to_df()), r"found DataFrame; anndata\.AnnData\("),
    "a path for adata": (lambda g: PerturbationModel("screen.h5ad"), r"found str; .*read_h5ad reads a file"),
    "a misspelt file": (lambda g: PertData("data").load(data_path="scren.h5ad"), r"did you mean 'screen.h5ad'"),
    "a file of another kind": (lambda g: PertData("data").load(data_path="table.csv"), r"an h5ad file, a zarr store"),
    "genes x cells": (lambda g: PerturbationModel(g.adata.T.copy()), r"rows are genes here; pass adata\.T"),
    "a misspelt column": (lambda g: PerturbationModel(g.adata, condition_key="conditon"), r"condition_key='condition'"),
    "no column of labels": (lambda g: PerturbationModel(
        AnnData(g.adata.X, g.adata.obs.rename(columns={"condition": "label"}), g.adata.var)), r"like labels: 'label'"),
    "codes for labels": (lambda g: PerturbationModel(g.but(labels=len)), r"whole numbers are codes"),
    "scaled values": (lambda g: PerturbationModel(g.but(X=lambda x, _: x - 1)), r"layer='counts' with normalize=True"),
    "text for numbers": (lambda g: PerturbationModel(g.but(X=lambda x, _: x.astype(str))), r"matrix of numbers; found"),
    "a misspelt layer": (lambda g: PerturbationModel(g.adata, layer="count"), r"did you mean 'counts'"),
    "a misspelt option": (lambda g: PerturbationModel(g.adata, batchkey="batch"), r"did you mean 'batch_key'"),
    "a misspelt split": (lambda g: PerturbationModel(g.adata, split="simulaton"), r"did you mean 'simulation'"),
    "a word for the seed": (lambda g: PerturbationModel(g.adata, seed="one"), r"seed is 'one'; expected a whole"),
    "a word for epochs": (lambda g: g.untrained.train(epochs="many"), r"epochs is 'many'; expected a whole number"),
    "a misspelt training option": (lambda g: g.untrained.train(epoch=3), r"did you mean 'epochs'"),
    "predicting before training": (lambda g: g.untrained.predict(g.gene), r"call model\.train\(\) first"),
    "evaluating before training": (lambda g: g.untrained.evaluate(), r"call model\.train\(\) first"),
    "a misspelt gene": (lambda g: g.model.predict(g.gene + "x"), r"near: "),
    "nothing to predict": (lambda g: g.model.predict([]), r"give at least one, such as"),
    "a number to predict": (lambda g: g.model.predict(3), r"a condition is a label such as 'A\+B'"),
    "a misspelt metric": (lambda g: g.model.evaluate(metrics=["mse_top20"]), r"did you mean 'mse_top20_de'"),
    "a misspelt part": (lambda g: g.model.evaluate("tst"), r"did you mean 'test'"),
    "a word for folds": (lambda g: g.model.cross_validate(folds="five"), r"folds is 'five'; expected a whole number"),
    "a misspelt aim": (lambda g: g.model.suggest(3, aim="efect"), r"did you mean 'effect'"),
    "a screen in place of a model": (lambda g: PerturbationModel.load("screen.h5ad"), r"is a file; give the folder"),
    "a screen with other genes": (lambda g: PerturbationModel.load("model", g.adata[:, :20].copy()), r"other genes"),
    "a plot of the screen": (lambda g: pl.volcano(g.adata, g.gene), r"takes a GEARS or a PerturbationModel first"),
    "training too early": (lambda g: GEARS(g.model.gears.pert_data).train(), r"call model_initialize\(\)"),
    "a job on a screen that is not there": (lambda _: job("scren", device="cpu"), r"did you mean 'screen"),
}  # fmt: skip
ON_NO_GPU: dict[str, tuple[Call, str]] = {
    "a GPU that is not there": (lambda g: PerturbationModel(g.adata, device="cuda:7"), r"use device='cpu'"),
    "a job on such a GPU": (lambda _: job("screen", gpu_ids=[9]), r"visible: none"),
}  # fmt: skip
COMMANDS = {
    "predct model KLF1": "did you mean 'predict'",
    "predict model KLF1x": "near: KLF1",
    "predict nomodel KLF1": "there is no folder nomodel",
    "predict model": "nothing to predict: give genes",
    "predict model KLF1 --output predictions.txt": "expected .csv, .h5ad, .zarr",
    "predict screen.h5ad KLF1": "screen.h5ad is a file",
    "train screen.h5ad": "give --save-path",
    "train scren.h5ad --save-path m": "did you mean 'screen.h5ad'",
    "train screen.h5ad --save-path m --epocs 3": "did you mean --epochs",
    "train screen.h5ad --save-path m --epochs many": "--epochs must be a whole number",
    "train screen.h5ad --save-path m --split simulaton": "did you mean 'simulation'",
    "train screen.h5ad --save-path m --n-gpus two": "--n-gpus must be a whole number",
    "train screen.h5ad --save-path m --device gpuu": "unknown device 'gpuu'",
    "evaluate model": "DATA is missing",
    "evaluate screen.h5ad model": "wrong order: gears evaluate model screen.h5ad",
    "evaluate model screen.h5ad --metrics mse_top20": "did you mean 'mse_top20_de'",
    "compare screen.h5ad --folds 1": "expected a whole number of at least 2",
    "inspect": "FILE is missing",
    "inspect scren.h5ad": "did you mean 'screen.h5ad'",
    "simulate screen.h5ad": "exists already",
    "simulate other.h5ad --n-genes -3": "whole number of at least 2",
    "suggest model --aim efect": "did you mean 'effect'",
    "doctor scren.h5ad": "did you mean 'screen.h5ad'",
    "simulate a.csv": "ends in .h5ad",
    "simulate a.h5ad --n-genes 5": "raise n_genes",
    "simulate a.h5ad --n-gene 5": "did you mean --n-genes?",
    "train screen.h5ad --save-path m --gpu-ids x": "--gpu-ids 0 2",
    "train screen.h5ad --save-path m --gpu-ids 0,1 --device cpu": "omit one of them",
    "train screen.h5ad --save-path model": "--overwrite to replace it, or --resume",
    "train none.h5ad --save-path model --overwrite": "no file or folder",
    "predict model --all-pairs": "ends in .h5ad",
    "predict model --all-pairs --output a.csv": "ends in .h5ad",
    "predict model KLF1 --top 0": "at least 1",
}


def test_training_twice_gives_the_same(given: Given) -> None:
    before = given.model.predict(given.gene).X
    given.model.train(epochs=0, evaluate_test=False, verbose=False)
    assert np.array_equal(given.model.predict(given.gene).X, before)


@pytest.mark.parametrize("name", [*CALLS, *(pytest.param(name, marks=NO_GPU) for name in ON_NO_GPU)])
def test_a_wrong_call(name: str, given: Given) -> None:
    call, answer = (CALLS | ON_NO_GPU)[name]
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=answer) as refused:
        call(given)
    assert not any(sign in str(refused.value) for sign in ("Traceback", "NoneType", "object is not"))


@pytest.mark.parametrize("line", COMMANDS)
def test_a_wrong_command(line: str, given: Given, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert COMMANDS[line] in shown.err
    assert shown.err.count("\n") == 1
