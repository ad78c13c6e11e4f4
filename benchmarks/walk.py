"""The new user's walk: what the first calls on a screen cost, and what they print.

    python benchmarks/run.py walk --data FOLDER                    (NAME_subset.h5ad there)
    python benchmarks/run.py walk --sizes norman --data FOLDER     (and training at the size of the published screen)

Every walk in a process of its own: CPU seconds of each call, the lines that it prints and the longest of them; what it
printed stands below. ``--sizes`` adds a default training of simulated screens: ``middle``, 150 conditions and
2,000 genes, and ``norman``, 236 conditions and 5,045 genes. Imports are not counted.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from measuring import HERE, Result, table

PRINTED = io.StringIO()  # one for all calls: the package logs to the stream that it met first
PROGRESS = re.compile(r"^.*: \d+ of \d+ \w+ \(\d+%\).*\n", re.MULTILINE)
REAL = ("norman2019", "papalexi2021")
SIZES = {
    "middle": {"n_genes": 2000, "n_singles": 100, "n_pairs": 50, "cells_per_condition": 60, "n_control": 1000},
    "norman": {"n_genes": 5045, "n_singles": 105, "n_pairs": 131, "cells_per_condition": 340, "n_control": 7300},
}
WANTED = {"norman2019": 2.5, "middle": 15.0, "norman": 20.0}
"""CPU seconds that are wanted of loading and training a real screen, and of training a simulated one."""


def walk(path: str, folder: str) -> list[dict[str, Any]]:
    """The calls of one walk, each with its CPU seconds and what it printed."""
    import anndata
    import torch  # noqa: F401

    import gears
    import gears.perturbation_model

    adata, model = anndata.read_h5ad(path), None

    def load() -> None:
        nonlocal model
        model = gears.PerturbationModel(adata)

    load_and_first: dict[str, Callable[[], Any]] = {
        "PerturbationModel(adata)": load,
        "model.train()": lambda: model.train(),  # type: ignore[union-attr]
        "model.evaluate()": lambda: print(model.evaluate()),  # type: ignore[union-attr]
        "model.top(CONDITION)": lambda: print(model.top(of_test(model), 5)),  # type: ignore[union-attr]
        "model.plot(CONDITION)": lambda: model.plot(of_test(model)),  # type: ignore[union-attr]
        "model.report(FOLDER)": lambda: model.report(f"{folder}/report"),  # type: ignore[union-attr]
    }
    return [measured(call, run) for call, run in load_and_first.items()]


def of_test(model: Any) -> Any:
    """The first test condition of a model's split."""
    return next(one for one in model.gears.pert_data.split.conditions("test") if not one.is_control)


def training(path: str, folder: str) -> list[dict[str, Any]]:
    """A default training of a screen that is prepared first."""
    import torch  # noqa: F401

    from gears import GEARS, PertData

    data = PertData(folder, default_pert_graph=False)
    data.load(data_path=path)
    data.prepare_split("simulation", seed=1)
    model = GEARS(data, device="cpu")
    model.model_initialize()
    return [measured("model.train()", model.train)]


def measured(call: str, run: Callable[[], Any]) -> dict[str, Any]:
    """CPU seconds of a call, and what it prints; lines of progress, which stand only while a call runs, left out."""
    at, start = PRINTED.tell(), time.process_time()
    with contextlib.redirect_stdout(PRINTED), contextlib.redirect_stderr(PRINTED):
        run()
    seconds = time.process_time() - start
    return {"call": call, "cpu_s": seconds, "text": PROGRESS.sub("", PRINTED.getvalue()[at:]).rstrip("\n")}


def walked(function: str, path: Path) -> list[dict[str, Any]]:
    """A walk in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, __file__, function, str(path), folder],
            env=os.environ | {"OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg", "PYTHONPATH": str(HERE.parent)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            check=True,
        )
    found: list[dict[str, Any]] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def first_calls(data: Path | None = None, sizes: tuple[str, ...] = (), small: bool = False) -> Iterator[Result]:
    """A walk over each real screen, and default trainings at the named sizes; if `small`, over a simulated screen."""
    from gears.simulate import simulate_to_h5ad

    rows: list[dict[str, Any]] = []
    texts: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        simulated = {"small": {"n_genes": 60, "n_singles": 20, "n_pairs": 10, "n_control": 60}} if small else {}
        paths = {name: Path(str(data)) / f"{name}_subset.h5ad" for name in REAL if data is not None}
        for name, options in ({one: SIZES[one] for one in sizes} | simulated).items():
            paths[name] = Path(folder) / f"{name}.h5ad"
            simulate_to_h5ad(paths[name], seed=1, counts_per_gene=0.2, **options)  # type: ignore[arg-type]
        for name, path in paths.items():
            calls = walked("training" if name in sizes else "walk", path)
            total = sum(
                call["cpu_s"] for call in calls if call["call"] in ("PerturbationModel(adata)", "model.train()")
            )
            for call in calls:
                lines = call["text"].splitlines()
                row = {"screen": name, "call": call["call"], "CPU s": f"{call['cpu_s']:.2f}", "lines": len(lines)}
                row |= {"longest line": max(map(len, lines), default=0), "load and train, CPU s": "", "wanted": ""}
                if call["call"] == "model.train()":
                    row |= {"load and train, CPU s": f"{total:.1f}", "wanted": WANTED.get(name, "")}
                rows.append(row)
                if lines and not call["call"].endswith("evaluate()"):
                    texts += [f"## {name}: {call['call']}", "", "```text", *lines, "```", ""]
            yield Result("The new user's walk", [*table(rows), "", *texts], {"rows": rows})


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps({"walk": walk, "training": training}[sys.argv[1]](*sys.argv[2:])))
