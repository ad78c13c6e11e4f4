"""Every example runs, at tiny size, as a user runs it."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


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
    size = ["--n-genes", 40, "--n-singles", 10, "--n-pairs", 24, "--epochs", 1]
    output = tmp_path / "demo_output"
    (output / "model").mkdir(parents=True)  # what an earlier demo left does not matter
    for name in ("screen.h5ad", "model/notes.txt"):
        (output / name).write_text("of an earlier demo")
    done = run("demo.py", *size, folder=tmp_path)
    assert "epoch   1/1" in done.stderr
    assert "best baseline" in done.stderr
    assert (output / "report" / "report.html").is_file()
    assert done.stdout.rstrip().splitlines()[-3].strip() == "demo_output/report/report.html"
    predicted = pd.read_csv(output / "predictions.csv", index_col=0)
    assert predicted.shape[1] == 40

    pair = str(predicted.index[0])
    done = run("predict.py", output / "model", pair, "--output", "again.csv", folder=tmp_path)
    again = pd.read_csv(tmp_path / "again.csv", index_col=0)
    pd.testing.assert_frame_equal(again, predicted.loc[[pair]], rtol=1e-5)


@pytest.mark.slow
def test_the_training_script(tmp_path: Path) -> None:
    from gears.simulate import simulate_to_h5ad

    simulate_to_h5ad(tmp_path / "tiny.h5ad", n_genes=40, n_singles=10, n_pairs=8, cells_per_condition=12, n_control=40)
    arguments = ["--data", "tiny.h5ad", "--cpu-workers", 2, "--epochs", 1, "--small-graph"]
    done = run("train_ddp_example.py", *arguments, "--save-path", "model", folder=tmp_path)
    assert "trained on cpu, cpu" in done.stdout
    assert (tmp_path / "model" / "manifest.json").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "tiny.h5ad", "train_output"]


def test_the_training_script_asks_which_screen(tmp_path: Path) -> None:
    done = run("train_ddp_example.py", "--data", tmp_path, "--save-path", "model", folder=tmp_path, code=2)
    assert "--dataset" in done.stderr


@pytest.mark.slow
def test_the_basic_example(tmp_path: Path) -> None:
    done = run("basic.py", "out", folder=tmp_path)
    assert "best baseline" in done.stderr
    assert (tmp_path / "out" / "model" / "manifest.json").is_file()


def run_here(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Run an example that starts no processes, in this one; what it prints."""
    monkeypatch.setattr(sys, "argv", [name, str(folder)])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


def test_the_split_types_example(tmp_path: Path, monkeypatch, capsys) -> None:
    lines = run_here("split_types.py", tmp_path, monkeypatch, capsys).splitlines()
    assert [line.split("  ")[0] for line in lines][:3] == ["simulation", "simulation_single", "combo_seen0"]
    assert len(lines) == 10
    assert "test 2" in lines[-1]


def test_the_uncertainty_example(tmp_path: Path, monkeypatch, capsys) -> None:
    lines = run_here("uncertainty.py", tmp_path, monkeypatch, capsys).splitlines()
    assert sum("+-" in line for line in lines) == 5


def test_the_all_pairs_example(tmp_path: Path, monkeypatch, capsys) -> None:
    from anndata import read_h5ad

    lines = run_here("all_pairs.py", tmp_path, monkeypatch, capsys).splitlines()
    assert lines[0].split() == ["rank", "condition", "gene_1", "gene_2", "score"]
    assert len(lines) == 7
    assert "all 91 pairs" in lines[-1]
    assert read_h5ad(tmp_path / "pairs.h5ad").shape == (91, 60)


def test_the_comparison_example(tmp_path: Path, monkeypatch, capsys) -> None:
    out = run_here("compare_methods.py", tmp_path, monkeypatch, capsys)
    assert "half" in out
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert "half" in page


@pytest.mark.long
def test_all_gpus(tmp_path: Path) -> None:
    done = run("all_gpus.py", "--epochs", 1, folder=tmp_path)
    assert "1 worker(s) on c" in done.stdout or "worker(s) on cuda:0" in done.stdout
    assert (tmp_path / "all_gpus_output" / "model" / "manifest.json").is_file()


@pytest.mark.slow
def test_one_worker_against_two(tmp_path: Path) -> None:
    done = run("single_vs_multi.py", "--epochs", 1, folder=tmp_path)
    (line,) = (line for line in done.stdout.splitlines() if "predictions differ" in line)
    assert float(line.split()[-1]) < 1e-6


@pytest.mark.long
def test_chosen_and_all_gpus(tmp_path: Path) -> None:
    done = run("chosen_gpus.py", "--cpu-workers", 2, "--epochs", 1, folder=tmp_path)
    assert "trained on cpu, cpu" in done.stdout
    done = run("chosen_gpus.py", "--epochs", 1, folder=tmp_path)
    assert "trained on c" in done.stdout
    done = run("chosen_gpus.py", "--gpu-ids", "99", folder=tmp_path, code=1)
    assert "not among the visible GPUs" in done.stderr


@pytest.mark.long
def test_the_torchrun_example(tmp_path: Path) -> None:
    script = str(EXAMPLES / "torchrun_script.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", script]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("2 worker(s), best epoch") == 1
    assert "1 worker(s)" in run("torchrun_script.py", folder=tmp_path).stdout


@pytest.mark.long
def test_the_ensemble_example(tmp_path: Path) -> None:
    done = run("ensemble.py", "--cpu", "--seeds", 1, 2, folder=tmp_path)
    assert "(0.000)" not in done.stdout, "its networks count"
    assert "Ensemble(2 models, 60 genes)" in done.stdout
