"""Every job of `benchmarks/run.py` in its small form, and what they share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest
import torch
from pretending import no_pretended_gpu

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import measuring
import run
from check_right import BLOCK, WITHOUT

FOLDER = Path(run.__file__).parent
PRETENDED = Path(__file__).resolve().parents[1] / "fakecuda"
LONG = {
    "reproducible", "memory", "main_job", "scaling", "side_by_side", "scale", "scale_large", "stages", "published",
    "network", "head", "head_genes", "vs_cell_gears", "walk", "packs", "new_lines", "network_weight", "inner_fits",
}  # fmt: skip
"""Jobs whose small form still takes more than 5 CPU seconds, most by several starts; make test-long runs them."""


def constants() -> dict[str, object]:
    """Numbers of the package that a job may change for a while."""
    modules = [(name, module) for name, module in sys.modules.items() if name.startswith("gears.training.")]
    return {
        f"{name}.{constant}": value
        for name, module in modules
        for constant, value in vars(module).items()
        if constant.isupper() and isinstance(value, int | float)
    }


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in LONG else []) for name in run.JOBS]
)
def test_small_form(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    if name not in LONG:
        request.getfixturevalue("quick_workers")
    small, before = run.JOBS[name].small, constants()
    if isinstance(small, str):
        run.main([name, "--small"])
        assert small in capsys.readouterr().out
        pytest.skip(f"{name} {small}")
    if name == "gpu_check":
        run.main([name, "--small", "--json", str(tmp_path / "table.json")])
        verdicts = [row["verdict"] for row in json.loads((tmp_path / "table.json").read_text())["table"]]
        assert verdicts[-1] == "ok"
        return
    run.main([name, "--small", "--output", str(tmp_path)])
    assert before.items() <= constants().items(), "the package is left as it was"
    (page,) = tmp_path.glob("*.md")
    record = json.loads(page.with_suffix(".json").read_text())
    assert set(record) > {"machine", "versions", "commit", "command"}
    assert record["command"] == f"python benchmarks/run.py {name} --small --output FOLDER"
    text = page.read_text()
    assert f"- command: {record['command']}\n" in text
    rows = [line.count(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) > 1
    assert text in capsys.readouterr().out


def test_the_list_names_every_job_and_options_are_those_of_its_function(capsys: pytest.CaptureFixture[str]) -> None:
    run.main(["--list"])
    out = capsys.readouterr().out
    assert all(f"| {name} | " in out for name in run.JOBS)
    given = vars(run.parser_of("scale", run.JOBS["scale"]).parse_args(["--sizes", "10", "20", "--epochs", "3"]))
    assert given == {"axes": ("cells",), "sizes": [10, 20], "epochs": 3, "scratch": None, "small": False}
    with pytest.raises(SystemExit, match="no benchmark 'scala'"):
        run.main(["scala"])


def test_a_recorded_command_names_no_folder_of_the_machine() -> None:
    words = ["accuracy", "--data", "/home/x/data", "--output=/tmp/y", "--screen", "../z.h5ad", "--kinds", "no signal"]
    shown = "accuracy --data FOLDER --output=FOLDER --screen FOLDER --kinds"
    assert measuring.command(words) == f'python benchmarks/run.py {shown} "no signal"'
    inside = str(FOLDER / "results")
    assert measuring.command(["head", "--output", inside]).endswith("head --output benchmarks/results")


def test_measurement_leaves_pauses_out_and_holds_the_memory_of_the_block_and_of_its_children(monkeypatch) -> None:
    used = 3.0  # seconds, by a clock of the test: other threads of this process use CPU, too
    with monkeypatch.context() as patch:
        patch.setattr(measuring, "cpu_seconds", lambda: used)
        with measuring.Measurement() as block:
            used += 1.0
            with block.pause():
                used += 2.0
            used += 0.5
    assert block.figures["cpu_s"] == 1.5
    # In a process of its own: what other tests left behind may be given back within the block.
    code = """
import json, subprocess, sys
import measuring
child = "import time\\nx = bytes(range(256)) * 400_000\\nwhile time.process_time() < 0.2: pass\\ntime.sleep(1)"
with measuring.Measurement() as block:
    held = bytearray(60 * 2**20)
    subprocess.run([sys.executable, "-I", "-c", child], check=True)
print(json.dumps(block.figures))
"""
    run = subprocess.run([sys.executable, "-c", code], cwd=measuring.HERE, check=True, capture_output=True, text=True)
    figures = json.loads(run.stdout)
    assert figures["cpu_s"] > 0.19
    assert figures["peak_mb"] - figures["before_mb"] > 50
    assert figures["own_mb"] > 60 + 90


def test_a_side_answers_and_raises(tmp_path: Path) -> None:
    script = tmp_path / "echo.py"
    script.write_text("def twice(x):\n    print('noise'); return 2 * x\ndef fail():\n    raise ValueError('no')\n")
    with measuring.Side(script, tmp_path) as echo:
        assert echo.ask("twice", x=21) == 42
        with pytest.raises(RuntimeError, match="ValueError: no"):
            echo.ask("fail")
        assert echo.ask("twice", x=[1]) == [1, 1]
    assert "noise" in (tmp_path / "echo.log").read_text()


def test_a_curve_that_moved_is_seen() -> None:
    import golden

    case, kept = "cells float64", json.loads(golden.KEPT.read_text())["curves"]["cells float64"]
    changed = kept | {"train_loss": [1.00001 * loss for loss in kept["train_loss"]]}
    assert golden.moved(case, kept, kept) == ""
    assert golden.moved(case, changed, kept).startswith("moved by 1.0e-05")
    assert golden.moved(case, kept | {"best_epoch": 99}, kept).startswith("best epoch 99, kept")


def test_comparison_with_cell_gears_reports_ratios(tmp_path: Path) -> None:
    """Medians over rounds, seconds per step and per 100 conditions, time to the other's last error."""
    import vs_cell_gears

    def figures(cpu: float, **more: float) -> dict[str, float]:
        return {"cpu_s": cpu, "peak_mb": 100 * cpu, **more}

    startup = {"versions": {"python": "3.11"}}
    curve = [{"epoch": 1, "cpu_s": 5.0, "mse_top20_de": 0.3}, {"epoch": 2, "cpu_s": 10.0, "mse_top20_de": 0.2}]
    soon = [{"epoch": 1, "cpu_s": 0.5, "mse_top20_de": 0.15}]
    record = {
        "size": "small",
        "stages": {
            "startup": {"published": [figures(4) | startup], "own": [figures(2) | startup]},
            "process": {"published": [figures(8), figures(10), figures(30)], "own": [figures(1)] * 3},
            "load": {"published": [figures(2)] * 3, "own": [figures(0.5)] * 3},
            "step": {"published": [figures(6, n=10)], "own": [figures(1, n=5)]},
            "predict": {"published": [figures(3, n=10)], "own": [figures(1, n=100)]},
            "train": {"published": [figures(9)]},
        },
        "training": {"published": curve, "moments": soon, "test": {"published": {"mse": 0.1}}},
    }
    rows = {row["stage"]: row for row in vs_cell_gears.stage_rows(record["stages"])}
    ratios = {stage: row["ratio, CPU s"] for stage, row in rows.items()}
    assert ratios == pytest.approx(
        {
            "import": 2,
            "read h5ad + process": 10,
            "load": 4,
            "process + load": 8,
            "one training step, 32 cells": 3,
            "predicting 100 conditions": 30,
        }
    )
    result = vs_cell_gears.result(record)
    assert "| moments | 1 | 0.5 |" in "\n".join(result.lines)
    assert result.files[".png"].startswith(b"\x89PNG")
    assert vs_cell_gears.training_summary(record["training"])["runs"]["moments"]["ratio"] == 20


def test_accuracy_is_averaged_over_the_conditions_of_all_screens_of_a_kind() -> None:
    import accuracy

    values = {("0", "A+ctrl"): 1.0, ("0", "B+ctrl"): 2.0, ("1", "A+ctrl"): 6.0}
    rows = [
        {"screen_seed": seed, "condition": condition, "method": method, "metric": "mse_top20_de", "value": value}
        for (seed, condition), mean in values.items()
        for method, scale in (("prior", 1), ("no_change", 2))
        for value in (scale * mean - 0.5, scale * mean + 0.5)
    ]
    wide = accuracy.wide(pd.DataFrame(rows), "mse_top20_de")
    assert wide["prior"].tolist() == [1.0, 2.0, 6.0]
    best, gain_U = accuracy.gain(wide, "prior", "mse_top20_de")
    assert (best, gain_U.tolist()) == ("no_change", [1.0, 2.0, 6.0])


def test_kinds_of_screens_have_no_option_without_effect() -> None:
    import screens

    from gears.simulate import SimulationOptions

    for kind in (*screens.SIMULATED, *screens.COMBINED):
        assert SimulationOptions(**screens.simulation(kind, 0)).without_effect() == []
    made = list(screens.screens(["additive", "confounded batches"], None, [0, 1], small=True))
    assert [(screen.name, screen.seed) for screen in made] == [
        (name, seed) for name in ("additive", "confounded batches") for seed in (0, 1)
    ]
    assert set(made[0].adata.var_names) != set(made[1].adata.var_names)
    assert [bool(screen.preparation) for screen in made] == [False, False, True, True]


def test_speed_up_is_against_the_fewest_workers() -> None:
    import scaling

    def row(objective: str, workers: int, seconds: float, batch: int = 32) -> dict[str, object]:
        return {"objective": objective, "batch": batch, "workers": workers, "rate": 100 / seconds}

    rows = [row("cells", 1, 8), row("cells", 2, 5), row("moments", 1, 1), row("cells", 2, 9, batch=64)]
    rows = scaling.with_speedup(rows)
    assert [row["speedup"] for row in rows] == [1.0, 1.6, 1.0, 1.0]
    assert [row["efficiency"] for row in rows] == [1.0, 0.8, 1.0, 1.0]


# --- gpu_check.py ---------------------------------------------------------------------------------

LEAN = f"""{BLOCK}
sys.path.insert(0, sys.argv[2])
import gpu_check
words = ["--device", "cpu", "--size", "small", "--skip-compile", "--json", sys.argv[3], "--only"]
sys.exit(gpu_check.main([*words, "epoch over", "group of one", "two workers", "default train", "memory", "published"]))
"""


def verdicts_of(command: list[str], path: Path, **environment: str) -> dict[str, str]:
    """Verdict by row of a run that ended well."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=550,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return {row["what"]: row["verdict"] for row in json.loads(path.read_text())["table"]}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_gpu_check_on_the_cpu_with_torch_numpy_and_scipy_alone(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    verdicts = verdicts_of([sys.executable, "-c", LEAN, ",".join(WITHOUT), str(FOLDER), str(path)], path)
    assert verdicts["all rows"] == "ok"
    for words in ("epoch over cells, batch 32, float32", "epoch over moments, 32", "a group of one (gloo)"):
        assert any(words in what for what in verdicts), words
    assert verdicts["two workers on one device by gloo"] == "not run: cloudpickle not installed"
    assert verdicts["default train() by stage"].startswith("not run: anndata and scanpy and pandas")
    assert verdicts["memory"] == "not run: no GPU"
    assert "published network, batch 32" in verdicts


@pytest.mark.long
@pytest.mark.timeout(600)
def test_gpu_check_on_a_pretended_gpu(tmp_path: Path) -> None:
    reason = no_pretended_gpu()
    if reason is not None:
        pytest.skip(reason)
    path = tmp_path / "table.json"
    command = [sys.executable, str(FOLDER / "gpu_check.py"), "--size", "small", "--json", str(path), "--only"]
    paths = [str(PRETENDED / "site"), *filter(None, [os.environ.get("PYTHONPATH")])]
    pretend = {"FAKECUDA": "1", "FAKENCCL_FORCE": "1", "PYTHONPATH": os.pathsep.join(paths)}
    rows = ["cells, float64", "gpu_ids", "two workers", "a group of one", "kernels"]
    verdicts = verdicts_of([*command, *rows], path, **pretend)
    assert sum(verdict == "ok" for verdict in verdicts.values()) == 8
    assert verdicts["two workers on cuda:0 by gloo: losses as of one"] == "ok"
    assert verdicts["kernels of a step, cells"] == "not run: this torch cannot profile CUDA"


def test_gpu_check_writes_each_row_and_goes_on_after_a_failure(tmp_path: Path, capsys) -> None:
    import gpu_check

    if not torch.cuda.is_available():
        assert gpu_check.main([]) == 2
        assert "no GPU is visible" in capsys.readouterr().err
    module: ModuleType = __import__("check_data")
    table = module.Table({"device": "cpu"}, tmp_path / "table.json", quiet=True)

    def written() -> list[str]:
        return [row["verdict"] for row in json.loads((tmp_path / "table.json").read_text())["table"]]

    def raises(table, message: str) -> None:
        table.compare("before it", [1.0, 2.0], [1.0, 2.0001], 1e-3)
        raise RuntimeError(message)

    table.run("missing", lambda table: module.need("no_such_package"))
    assert written() == ["not run: no_such_package not installed"]
    assert not table.failed
    table.run("raises", raises, "no kernel image\nand more")
    assert written()[1:] == ["ok", "FAILED: no kernel image"]
    table.compare("apart", [1.0], [1.1], 1e-3)
    assert written()[-1] == "FAILED"
    assert table.failed
    table.seconds = 0.0
    table.run("late", raises, "never called")
    assert written()[-1].startswith("not run: ")
