"""Every example runs, at tiny size: in this process here, as a script of its own in `make test-long`."""

import logging
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DEMO = ["--n-genes", 40, "--n-singles", 10, "--n-pairs", 24, "--epochs", 1]


@pytest.fixture
def run(tmp_path: Path, monkeypatch, capsys, quick_workers: None) -> Callable[..., str]:
    """Runs an example in this process, in an empty folder; what it prints."""
    monkeypatch.chdir(tmp_path)

    def run(name: str, *arguments: object, as_name: str = "__main__") -> str:
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / name), run_name=as_name)
        return capsys.readouterr().out

    return run


def script(name: str, *arguments: object, folder: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run an example as a user does, in `folder`."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *map(str, arguments)],
        cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_a_worker_that_imports_an_example_again_does_nothing(path: Path, run) -> None:
    """What starts workers is guarded: a spawned worker runs the file under this name."""
    assert (run(path.name, as_name="__mp_main__"), list(Path().iterdir())) == ("", [])


def test_demo_then_the_prediction_script(run, caplog, without_figures: None) -> None:
    output = Path("demo_output")
    (output / "model").mkdir(parents=True)  # what an earlier demo left does not matter
    for name in ("screen.h5ad", "model/notes.txt"):
        (output / name).write_text("of an earlier demo")
    with caplog.at_level(logging.INFO, logger="gears"):
        out = run("demo.py", *DEMO)
    assert "best baseline" in caplog.text
    assert (output / "report" / "report.html").is_file()
    assert out.rstrip().splitlines()[-3].strip() == "demo_output/report/report.html"
    predicted = pd.read_csv(output / "predictions.csv", index_col=0)
    assert predicted.shape[1] == 40

    pair = str(predicted.index[0])
    run("predict.py", output / "model", pair, "--output", "again.csv")
    again = pd.read_csv("again.csv", index_col=0)
    pd.testing.assert_frame_equal(again, predicted.loc[[pair]], rtol=1e-5)


def test_the_training_script(run, capsys) -> None:
    from gears.simulate import simulate_to_h5ad

    simulate_to_h5ad("tiny.h5ad", n_genes=40, n_singles=10, n_pairs=8, cells_per_condition=12, n_control=40)
    arguments = ["--data", "tiny.h5ad", "--cpu-workers", 2, "--epochs", 1, "--small-graph"]
    out = run("train_ddp_example.py", *arguments, "--save-path", "model")
    assert "trained on cpu, cpu" in out
    assert Path("model/manifest.json").is_file()
    assert sorted(path.name for path in Path().iterdir()) == ["model", "tiny.h5ad", "train_output"]
    with pytest.raises(SystemExit) as ended:
        run("train_ddp_example.py", "--data", ".", "--save-path", "model")
    assert ended.value.code == 2
    assert "--dataset" in capsys.readouterr().err


def test_the_small_examples(run, caplog, without_figures: None) -> None:
    from anndata import read_h5ad

    with caplog.at_level(logging.INFO, logger="gears"):
        run("basic.py", "basic")
    assert "best baseline" in caplog.text
    assert Path("basic/model/manifest.json").is_file()
    lines = run("split_types.py", "splits").splitlines()
    assert [line.split("  ")[0] for line in lines][:3] == ["simulation", "simulation_single", "combo_seen0"]
    assert len(lines) == 10
    assert "test 2" in lines[-1]
    assert sum("+-" in line for line in run("uncertainty.py", "uncertainty").splitlines()) == 5
    lines = run("all_pairs.py", "pairs").splitlines()
    assert lines[0].split() == ["rank", "condition", "gene_1", "gene_2", "score"]
    assert len(lines) == 7
    assert "all 91 pairs" in lines[-1]
    assert read_h5ad("pairs/pairs.h5ad").shape == (91, 60)
    assert "half" in run("compare_methods.py", "compared")
    assert "half" in Path("compared/report/report.html").read_text(encoding="utf-8")
    out = run("single_vs_multi.py", "--epochs", 1)
    assert float(re.findall(r"predictions differ by at most (\S+)", out)[0]) < 1e-6


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("demo.py", DEMO),
        ("train_ddp_example.py", ["--cpu-workers", 2, "--epochs", 1, "--small-graph"]),
        ("basic.py", []), ("split_types.py", []), ("uncertainty.py", []), ("all_pairs.py", []),
        ("compare_methods.py", []), ("single_vs_multi.py", ["--epochs", 1]),
    ],
)  # fmt: skip
def test_as_a_script(name: str, arguments: list[object], tmp_path: Path) -> None:
    assert script(name, *arguments, folder=tmp_path).stdout


@pytest.mark.long
def test_all_gpus(tmp_path: Path) -> None:
    done = script("all_gpus.py", "--epochs", 1, folder=tmp_path)
    assert "1 worker(s) on c" in done.stdout or "worker(s) on cuda:0" in done.stdout
    assert (tmp_path / "all_gpus_output" / "model" / "manifest.json").is_file()


@pytest.mark.long
def test_chosen_and_all_gpus(tmp_path: Path) -> None:
    done = script("chosen_gpus.py", "--cpu-workers", 2, "--epochs", 1, folder=tmp_path)
    assert "trained on cpu, cpu" in done.stdout
    done = script("chosen_gpus.py", "--epochs", 1, folder=tmp_path)
    assert "trained on c" in done.stdout
    done = script("chosen_gpus.py", "--gpu-ids", "99", folder=tmp_path, code=1)
    assert "not among the visible GPUs" in done.stderr


@pytest.mark.long
def test_the_torchrun_example(tmp_path: Path) -> None:
    example = str(EXAMPLES / "torchrun_script.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", example]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("2 worker(s), best epoch") == 1
    assert "1 worker(s)" in script("torchrun_script.py", folder=tmp_path).stdout


@pytest.mark.long
def test_the_ensemble_example(tmp_path: Path) -> None:
    done = script("ensemble.py", "--cpu", "--seeds", 1, 2, folder=tmp_path)
    assert "(0.000)" not in done.stdout, "its networks count"
    assert "Ensemble(2 models, 60 genes)" in done.stdout
