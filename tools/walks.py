"""Which files of the package run on three walks through it, as a Markdown table.

    python tools/walks.py [--files]

1. *Label to loss*: a screen of 34 conditions is opened, split and loaded; one epoch over moments runs.
2. *GPU ids to trained model*: one call of `train_multi_gpu` (two CPU workers where there is
   no GPU; what runs in the calling process is counted).
3. *Condition to figure*: `predict` of one pair, then a plot of its strongest genes.

A file counts where one of its functions runs; importing it does not count. `--files` lists them in order of first use.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import gears as package
from gears import GEARS, PertData, train_multi_gpu
from gears.simulate import simulated_screen

ROOT = Path(package.__file__).parent


@contextmanager
def files_that_run() -> Iterator[dict[str, None]]:
    """Collect the files of the package whose functions run within the block, in order of first use."""
    files: dict[str, None] = {}

    def called(frame: Any, event: str, _argument: Any) -> None:
        path = frame.f_code.co_filename
        if event == "call" and frame.f_code.co_name != "<module>" and path.startswith(str(ROOT)):
            files.setdefault(str(Path(path).relative_to(ROOT)))

    threading.setprofile(called)
    sys.setprofile(called)
    try:
        yield files
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


def walks(folder: Path) -> dict[str, list[str]]:
    """The files of each walk."""
    screen, _ = simulated_screen(
        n_genes=100, n_singles=15, n_pairs=18, cells_per_condition=20, n_control=60, seed=1
    )
    result = {}
    with files_that_run() as files:
        pert_data = PertData(folder)
        pert_data.new_data_process("walk", screen)
        pert_data.load("walk")
        pert_data.prepare_split("simulation", seed=1)
        pert_data.get_dataloader(32)
        model = GEARS(pert_data, device="cpu")
        model.model_initialize(hidden_size=8)
        model.train(epochs=1, prior=None, evaluate_test=False, verbose=False)
    result["label to loss"] = list(files)
    with files_that_run() as files:
        train_multi_gpu(
            str(folder), "walk", {"split": "simulation", "seed": 1},
            {"epochs": 1, "model_config": {"hidden_size": 8}, "save_path": str(folder / "model"), "verbose": False},
            n_gpus=2, device="cpu",
        )  # fmt: skip
    result["GPU ids to trained model"] = list(files)
    pair = next(name for name in pert_data.adata.obs["condition"].unique() if "ctrl" not in name)
    with files_that_run() as files:
        model.predict([pair.split("+")])
        model.plot_perturbation(pair, save_file=str(folder / "figure.png"))
    result["condition to figure"] = list(files)
    return result


def main(show: Callable[[str], object] = print) -> None:
    """Walk, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", action="store_true", help="list the files of each walk")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = walks(Path(folder))
    show("| walk | files |\n|---|---|")
    for name, files in result.items():
        show(f"| {name} | {len(files)} |")
    if options.files:
        for name, files in result.items():
            show(f"\n{name}: {', '.join(files)}")


if __name__ == "__main__":
    main()
