"""`gears train-many`: all runs of a file, one of them, and the table of those that have ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from gears.cli import main


def run(folder: Path, name: str, **args: Any) -> dict[str, Any]:
    quick = {"epochs": 0, "verbose": False, "model_config": {"hidden_size": 4}}
    return {
        "pert_data_path": str(folder),
        "dataset_name": "small",
        "split_config": {"split": "simulation", "seed": 1},
        "data_config": {"default_pert_graph": False},
        "args": {**quick, "save_path": str(folder / name), **args},
    }


def called(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, Any]]:
    code = main(["train-many", *map(str, words), "--quiet", "--json"])
    shown = capsys.readouterr()
    return code, json.loads(shown.out) if shown.out else {"error": shown.err}


@pytest.mark.slow
def test_runs_that_failed_are_missing_until_they_are_trained(small_screen, tmp_path, quick_workers, capsys) -> None:
    small_screen[0].copy().write_h5ad(tmp_path / "small.h5ad")
    file, output = tmp_path / "configs.yaml", tmp_path / "table.csv"
    diverges = {"prior": None, "epochs": 1, "objective": "cells", "lr": 1e300}
    file.write_text(yaml.safe_dump([run(tmp_path, "a"), run(tmp_path, "b", **diverges)]))
    code, found = called(capsys, file, "--device", "cpu", "--n-at-once", 1)
    assert code == 1
    assert found["missing"] == [1]
    file.write_text(yaml.safe_dump([run(tmp_path, "a"), run(tmp_path, "b")]))
    assert called(capsys, file, "--index", 1, "--device", "cpu") == (0, called(capsys, file, "--collect")[1])
    code, found = called(capsys, file, "--collect", "--output", output)
    assert code == 0
    assert found["missing"] == []
    table = pd.read_csv(output)
    assert table["save_path"].tolist() == [str(tmp_path / name) for name in "ab"]
    scores = table.drop(columns=["number", "save_path", "ended"])
    assert scores.shape[1] >= 3
    assert scores.notna().all(axis=None)
    assert scores.loc[0].equals(scores.loc[1]), "the same split, and no network"


def test_files_without_configurations_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "configs.yaml"
    for text in ("", "a: 1", "- 3", "- {args: {}}", "- {args: {save_path: x}"):
        file.write_text(text)
        code, found = called(capsys, file, "--collect")
        assert code == 2
        assert str(file) in found["error"]
    file.write_text(yaml.safe_dump([run(tmp_path, "a")]))
    code, found = called(capsys, file, "--index", 1)
    assert code == 2
    assert "--index is 1" in found["error"]
    assert called(capsys, file, "--collect")[1]["missing"] == [0]
