"""The benchmarks' own functions; no second environment is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from pretending import no_pretended_gpu

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
PRETENDED = Path(__file__).resolve().parents[1] / "fakecuda"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch):
    """Import a benchmark file by name, as the scripts themselves do, and forget it afterwards."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(FOLDER)])
    before = set(sys.modules)

    def load(name: str) -> ModuleType:
        return __import__(name)

    yield load
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "") or "").startswith(str(FOLDER)):
            del sys.modules[name]


def test_measurement_counts_work_and_leaves_pauses_out(benchmark) -> None:
    measuring = benchmark("measuring")

    def work() -> None:
        start = measuring.cpu_seconds()
        while measuring.cpu_seconds() - start < 0.05:
            sum(range(10_000))

    with measuring.Measurement() as block:
        work()
        with block.pause():
            work()
            work()
    assert 0.04 <= block.figures["cpu_s"] < 0.1
    assert block.figures["peak_mb"] >= 1
    with measuring.Measurement() as block:
        held = bytearray(60 * 2**20)
    assert block.figures["peak_mb"] - block.figures["before_mb"] > 50
    del held


def test_measurement_counts_children(benchmark) -> None:
    import subprocess

    measuring = benchmark("measuring")
    code = "import time\nwhile time.process_time() < 0.1: pass"
    with measuring.Measurement() as block:
        subprocess.run([sys.executable, "-I", "-c", code], check=True)
    assert block.figures["cpu_s"] > 0.09


def test_a_side_answers_and_raises(benchmark, tmp_path: Path) -> None:
    side = benchmark("side")
    script = tmp_path / "echo.py"
    script.write_text(
        f"import sys; sys.path.append({str(FOLDER)!r})\n"
        "from side import serve\n"
        "def twice(x):\n    print('noise'); return 2 * x\n"
        "def fail():\n    raise ValueError('no')\n"
        "serve({'twice': twice, 'fail': fail})\n"
    )
    with side.Side(sys.executable, script, tmp_path, threads=1) as echo:
        assert echo.ask("twice", x=21) == 42
        with pytest.raises(RuntimeError, match="ValueError: no"):
            echo.ask("fail")
        assert echo.ask("twice", x=[1]) == [1, 1]
    assert "noise" in (tmp_path / "echo.log").read_text()


def figures(cpu: float, **more: float) -> dict[str, float]:
    return {"cpu_s": cpu, "wall_s": 2 * cpu, "peak_mb": 100 * cpu, "before_mb": 1, "load": 1.0, **more}


def example_record() -> dict:
    startup = {"versions": {"python": "3.11"}}
    return {
        "size": "small",
        "simulation": {
            "n_genes": 10,
            "n_singles": 2,
            "n_pairs": 1,
            "cells_per_condition": 3,
            "n_control": 4,
        },
        "machine": {"cores": 2, "cpu": "some", "system": "x", "threads": 1},
        "commit": "abc",
        "command": "python benchmarks/vs_cell_gears.py",
        "published_predictions": 20,
        "stages": {
            "startup": {"published": [figures(4) | startup], "own": [figures(2) | startup]},
            "process": {"published": [figures(8), figures(10), figures(30)], "own": [figures(1)] * 3},
            "load": {"published": [figures(2)] * 3, "own": [figures(0.5)] * 3},
            "step": {"published": [figures(6, n=10)], "own": [figures(1, n=5)]},
            "predict": {"published": [figures(3, n=10)], "own": [figures(1, n=100)]},
            "train": {"published": [figures(9)]},
        },
        "training": {
            "published": [
                {"epoch": 1, "cpu_s": 5.0, "mse_top20_de": 0.3},
                {"epoch": 2, "cpu_s": 10.0, "mse_top20_de": 0.2},
                {"epoch": 3, "cpu_s": 15.0, "mse_top20_de": 0.2},
            ],
            "moments": [
                {"epoch": 1, "cpu_s": 0.1, "mse_top20_de": 0.25},
                {"epoch": 2, "cpu_s": 0.5, "mse_top20_de": 0.15},
            ],
            "cells": [{"epoch": 1, "cpu_s": 1.0, "mse_top20_de": 0.4}],
            "test": {name: {"mse": 0.1} for name in ("published", "moments", "cells")},
        },
    }


def test_rows_are_medians_per_item(benchmark) -> None:
    rows = {row["stage"]: row for row in benchmark("report").rows_of(example_record()["stages"])}
    assert "training, whole" not in rows  # one side only
    assert rows["read h5ad + process"]["ratio_cpu_s"] == 10
    assert rows["process + load"]["published_cpu_s"] == 12
    assert rows["process + load"]["own_cpu_s"] == 1.5
    assert rows["one training step, 32 cells"]["ratio_cpu_s"] == pytest.approx(3)
    assert rows["predicting 100 conditions"]["published_cpu_s"] == pytest.approx(30)
    assert rows["predicting 100 conditions"]["ratio_cpu_s"] == pytest.approx(30)


def test_time_to_the_error_that_the_published_training_ends_with(benchmark) -> None:
    summary = benchmark("report").training_summary(example_record()["training"])
    assert summary["target"] == 0.2
    assert summary["runs"]["moments"]["cpu_s_to_target"] == 0.5
    assert summary["runs"]["moments"]["ratio"] == 30
    assert summary["runs"]["moments"]["ratio_to_soonest"] == 20
    assert summary["runs"]["cells"]["cpu_s_to_target"] is None
    assert summary["runs"]["published"]["cpu_s_to_target"] == 10


def test_report_writes_table_json_and_plot(benchmark, tmp_path: Path) -> None:
    text = benchmark("report").report(example_record(), tmp_path)
    assert "| moments | 2 |" in text
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {f"vs_cell_gears-small.{kind}" for kind in ("json", "md", "png")}
    assert json.loads((tmp_path / "vs_cell_gears-small.json").read_text())["size"] == "small"
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in lines)


def test_choices(benchmark) -> None:
    run, compare, scale = benchmark("run"), benchmark("vs_cell_gears"), benchmark("scale")
    assert run.chosen(["--size", "small"]) == ("vs_cell_gears", ["--size", "small"])
    assert run.chosen(["scale", "--quick"]) == ("scale", ["--quick"])
    with pytest.raises(SystemExit, match="no benchmark 'scala'"):
        run.chosen(["scala"])
    assert compare.epochs_within({"cpu_s": 60}, minutes=10) == 10
    assert compare.epochs_within({"cpu_s": 6000}, minutes=10) == 1
    assert compare.epochs_within({"cpu_s": 1}, minutes=10) == 20
    for axis, sizes in scale.AXES.items():
        for size in sizes:
            given = scale.simulation(axis, size)
            assert given["n_singles"] + given["n_pairs"] == (
                size if axis == "conditions" else scale.CONDITIONS
            )
            cells = given["n_control"] + given["cells_per_condition"] * (
                given["n_singles"] + given["n_pairs"]
            )
            wanted = {"cells": size, "conditions": max(10_000, 10 * size), "genes": 10_000}[axis]
            assert abs(cells - wanted) <= 0.02 * wanted + 100


def test_sizes_beyond_memory(benchmark, tmp_path: Path) -> None:
    scale = benchmark("scale")
    for name, size in scale.LARGE.items():
        given = scale.large_simulation(size)
        conditions = given["n_singles"] + given["n_pairs"]
        assert conditions == size["conditions"]
        cells = given["n_control"] + given["cells_per_condition"] * conditions
        assert abs(cells - size["cells"]) <= 0.02 * size["cells"] + conditions
        assert "moments" in scale.TRAINED[name]
    figures = {"wall_s": 3.0, "cpu_s": 2.0, "peak_mb": 100.0, "own_mb": 50.0, "load": 1.0}
    place = {"cpu": "a processor", "cores": 2}
    kept = {
        name: {"machine": place, "commit": "abc", "command": "python", **size, "stages": {"prepare": figures}}
        for name, size in scale.LARGE.items()
    }
    page = scale.large_page(kept)
    assert "| 1,000,000 | 100 | 5,000 | prepare | 3 | 2 | 100 | 50 | 1.0 |" in page
    assert page.count("prepare") == len(scale.LARGE)


def test_own_memory_is_seen_with_that_of_children(benchmark) -> None:
    measuring = benchmark("measuring")
    with measuring.Measurement() as block:
        child = subprocess.run(
            [sys.executable, "-c", "import time; x = bytes(range(256)) * 600_000; time.sleep(0.4)"],
            check=True,
        )
    assert child.returncode == 0
    before = measuring.own_memory_mb(os.getpid())
    assert block.figures["own_mb"] > before + 100
    assert measuring.family(os.getpid())[0] == os.getpid()


def test_inputs_are_what_the_published_package_reads(benchmark, tmp_path: Path) -> None:
    import dataclasses
    import pickle

    compare = benchmark("vs_cell_gears")
    size = dataclasses.replace(
        benchmark("sizes").SIZES["small"],
        simulation={"n_genes": 30, "n_singles": 6, "n_pairs": 3, "cells_per_condition": 3, "n_control": 5},
        go_genes=10,
        predictions=8,
        published_predictions=2,
    )
    compare.write_inputs(tmp_path, size, seed=0)
    gene2go = pickle.loads((tmp_path / "gene2go.pkl").read_bytes())
    genes = json.loads((tmp_path / "genes.json").read_text())
    assert len(genes) == 10
    assert all(isinstance(gene2go[gene], set) and gene2go[gene] for gene in genes)
    pairs = json.loads((tmp_path / "pairs.json").read_text())
    assert len(pairs) == 8
    assert all(len(set(pair)) == 2 for pair in pairs)
    assert json.loads((tmp_path / "fewer_pairs.json").read_text()) == pairs[:2]
    assert compare.torch_pin(FOLDER.parent).startswith("torch==")


LEAN = """
import importlib.util, sys
gone = {"anndata", "scanpy", "pandas", "cloudpickle", "filelock", "networkx", "matplotlib", "tqdm", "h5py"}
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name in gone else find(name, *more)
class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in gone:
            raise ModuleNotFoundError(f"{name} is not installed here", name=name)
sys.meta_path.insert(0, Gone())
sys.path.insert(0, sys.argv[1])
import gpu_check
sys.exit(gpu_check.main(["--device", "cpu", "--size", "small", "--skip-compile", "--json", sys.argv[2]]))
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_gpu_check_on_the_cpu_with_torch_numpy_and_scipy_alone(tmp_path: Path) -> None:
    import os
    import subprocess

    command = [sys.executable, "-c", LEAN, str(FOLDER), str(tmp_path / "table.json")]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=850, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "not installed, not needed: cloudpickle, filelock, pandas, networkx" in done.stdout
    record = json.loads((tmp_path / "table.json").read_text())
    verdicts = {row["what"]: row["verdict"] for row in record["table"]}
    assert verdicts["all rows"] == "ok"
    assert sum(verdict == "ok" for verdict in verdicts.values()) >= 10
    for words in ("epoch over cells, batch 32, float32", "epoch over moments, 32", "a group of one (gloo)"):
        assert any(words in what for what in verdicts), words
    assert verdicts["two workers on one device by gloo"] == "not run: cloudpickle not installed"
    assert verdicts["default train() by stage"].startswith("not run: anndata and scanpy and pandas")
    assert verdicts["memory"] == "not run: no GPU"
    assert "published network, batch 32" in verdicts


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_gpu_check_on_a_pretended_gpu(tmp_path: Path) -> None:
    reason = no_pretended_gpu()
    if reason is not None:
        pytest.skip(reason)
    pretend = {"FAKECUDA": "1", "FAKENCCL_FORCE": "1", "OMP_NUM_THREADS": "1"}
    paths = [str(PRETENDED / "site"), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [
        sys.executable,
        str(FOLDER / "gpu_check.py"),
        "--size",
        "small",
        "--json",
        str(tmp_path / "table.json"),
    ]
    done = subprocess.run(
        [*command, "--only", "cells, float64", "gpu_ids", "two workers", "a group of one", "kernels"],
        capture_output=True, text=True, timeout=550,
        env={**os.environ, **pretend, "PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    verdicts = {
        row["what"]: row["verdict"] for row in json.loads((tmp_path / "table.json").read_text())["table"]
    }
    assert sum(verdict == "ok" for verdict in verdicts.values()) == 8
    assert verdicts["two workers on cuda:0 by gloo: losses as of one"] == "ok"
    assert verdicts["kernels of a step, cells"] == "not run: this torch cannot profile CUDA"


def test_gpu_check_says_when_there_is_no_gpu(benchmark, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU: its absence cannot be shown")
    assert benchmark("gpu_check").main([]) == 2
    assert "no GPU is visible" in capsys.readouterr().err


def test_gpu_check_writes_each_row_and_goes_on_after_a_failure(benchmark, tmp_path: Path) -> None:
    module = benchmark("check_table")
    table = module.Table({"device": "cpu"}, tmp_path / "table.json", quiet=True)

    def written() -> list[str]:
        record = json.loads((tmp_path / "table.json").read_text())
        assert record["device"] == "cpu"
        return [row["verdict"] for row in record["table"]]

    def raises(table, message: str) -> None:
        table.compare("before it", [1.0, 2.0], [1.0, 2.0001], 1e-3)
        raise RuntimeError(message)

    def missing(table) -> None:
        module.need("no_such_package")

    table.run("missing", missing)
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


def test_simulated_kinds_of_the_accuracy_benchmark(benchmark) -> None:
    from gears.simulate import SimulationOptions

    accuracy = benchmark("accuracy")
    for kind in accuracy.SIMULATED.values():
        assert SimulationOptions(**accuracy.COMMON | kind).without_effect() == []
    screens = list(accuracy.screens(["additive", "confounded batches"], None, [0, 1]))
    assert [(screen.name, screen.seed) for screen in screens] == [
        (f"simulated: {name}", seed) for name in ("additive", "confounded batches") for seed in (0, 1)
    ]
    assert set(screens[0].adata.var_names) != set(screens[1].adata.var_names)
    assert [bool(screen.preparation) for screen in screens] == [False, False, True, True]


def test_accuracy_is_averaged_over_the_conditions_of_all_screens_of_a_kind(benchmark) -> None:
    import pandas as pd

    values = {("0", "A+ctrl"): 1.0, ("0", "B+ctrl"): 2.0, ("1", "A+ctrl"): 6.0}
    rows = [
        {
            "screen_seed": seed,
            "condition": condition,
            "method": method,
            "metric": "mse_top20_de",
            "value": value,
        }
        for (seed, condition), mean in values.items()
        for method, scale in (("prior", 1), ("no_change", 2))
        for value in (scale * mean - 0.5, scale * mean + 0.5)
    ]
    accuracy = benchmark("accuracy")
    wide = accuracy.wide(pd.DataFrame(rows), "mse_top20_de")
    assert wide["prior"].tolist() == [1.0, 2.0, 6.0]
    best, gain_U = accuracy.gain(wide, "prior", "mse_top20_de")
    assert (best, gain_U.tolist()) == ("no_change", [1.0, 2.0, 6.0])


def scaling_row(objective: str, workers: int, seconds: float, batch: int = 32) -> dict:
    shares = {"data": 0.1, "compute": 0.6, "communication": 0.2, "evaluation": 0.1}
    rate = {"rate": 100 / seconds, "rate_unit": f"{objective}_per_second", "train_loss": 0.5, "load": 2.0}
    setting = {"objective": objective, "batch": batch, "workers": workers, "device": "cpu"}
    return setting | {"epoch_s": seconds, **rate, **shares}


def test_speed_up_is_against_the_fewest_workers(benchmark, tmp_path: Path) -> None:
    import argparse

    scaling = benchmark("scaling")
    rows = [scaling_row("cells", 1, 8.0), scaling_row("cells", 2, 5.0), scaling_row("moments", 1, 1.0)]
    rows = scaling.with_speedup([*rows, scaling_row("cells", 2, 9.0, batch=64)])
    assert [row["speedup"] for row in rows] == [1.0, 1.6, 1.0, 1.0]
    assert [row["efficiency"] for row in rows] == [1.0, 0.8, 1.0, 1.0]
    scaling.write(rows, argparse.Namespace(results=tmp_path, size="tiny", device="cpu"))
    text = (tmp_path / "scaling-cpu-tiny.md").read_text()
    assert "| cells | 32 | 2 | 5.000 | 20 cells | 1.60 |  | 80% | 10% | 60% | 20% | 2.0 | 0.500000 |" in text
    assert json.loads((tmp_path / "scaling-cpu-tiny.json").read_text())["rows"] == rows
    assert (tmp_path / "scaling-cpu-tiny.png").read_bytes().startswith(b"\x89PNG")
