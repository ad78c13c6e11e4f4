"""Every example runs, at tiny size, as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def run(name: str, *arguments: object, folder: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run an example as a script, in `folder`."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.mark.slow
def test_demo_then_training_and_prediction_scripts(tmp_path: Path) -> None:
    size = ["--n-genes", 40, "--n-singles", 10, "--n-pairs", 8, "--epochs", 1]
    done = run("demo.py", *size, folder=tmp_path)
    output = tmp_path / "demo_output"
    assert "epoch   1/1" in done.stderr
    assert "additive" in done.stdout
    assert (output / "predicted_vs_true.png").read_bytes().startswith(b"\x89PNG")
    comparison = pd.read_csv(output / "comparison.csv")
    assert {"model", "no_change", "additive"} <= set(comparison["method"])
    predicted = pd.read_csv(output / "predictions.csv", index_col=0)
    assert predicted.shape[1] == 40
    assert set(predicted.index) == set(comparison["condition"])

    pair = str(predicted.index[0])
    done = run("predict.py", output / "model", pair, "--output", "again.csv", folder=tmp_path)
    again = pd.read_csv(tmp_path / "again.csv", index_col=0)
    pd.testing.assert_frame_equal(again, predicted.loc[[pair]], rtol=1e-5)


@pytest.mark.slow
def test_the_training_script(tmp_path: Path) -> None:
    from gears.simulate import simulate_to_h5ad

    simulate_to_h5ad(
        tmp_path / "tiny.h5ad", n_genes=40, n_singles=10, n_pairs=8, cells_per_condition=12, n_control=40
    )
    arguments = ["--data", "tiny.h5ad", "--cpu-workers", 2, "--epochs", 1, "--batch-size", 8, "--small-graph"]
    done = run("train_ddp_example.py", *arguments, "--save-path", "model", folder=tmp_path)
    assert "trained on cpu, cpu" in done.stdout
    assert (tmp_path / "model" / "manifest.json").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gears_data", "model", "tiny.h5ad"]


def test_the_training_script_asks_which_screen(tmp_path: Path) -> None:
    done = run("train_ddp_example.py", "--data", tmp_path, "--save-path", "model", folder=tmp_path, code=2)
    assert "--dataset" in done.stderr


@pytest.mark.slow
def test_the_basic_example(tmp_path: Path) -> None:
    done = run("basic.py", "out", folder=tmp_path)
    assert "best epoch" in done.stdout
    assert (tmp_path / "out" / "model" / "manifest.json").is_file()
