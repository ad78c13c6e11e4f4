"""Which files of the package run on walks through it, and how far the loss is from a call, as a Markdown table.

    python tools/walks.py [--files]

1. *Label to loss*: a screen of 34 conditions is opened, split and loaded; one epoch over moments runs.
2. *GPU ids to trained model*: one call of `train_multi_gpu` (two CPU workers where there is
   no GPU; what runs in the calling process is counted).
3. *Condition to figure*: `predict` of one pair, then a plot of its strongest genes.
4. *Train to loss*: the functions that are entered, one within the other, from `GEARS.train` to the loss of a step.

A file counts where one of its functions runs; importing it does not count. `--files` lists them in order of first use.
`tests/test_walks.py` holds the numbers, which may only fall.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import gears as package
from gears import GEARS, PertData, train_multi_gpu
from gears.simulate import simulated_screen
from gears.training._tasks import MomentsTask

ROOT = Path(package.__file__).parent


@contextmanager
def files_that_run() -> Iterator[dict[str, set[str]]]:
    """Collect the files of the package whose functions run within the block, in order of first use, with these."""
    files: dict[str, set[str]] = {}

    def called(frame: Any, event: str, _argument: Any) -> None:
        path = frame.f_code.co_filename
        if event == "call" and frame.f_code.co_name != "<module>" and path.startswith(str(ROOT)):
            files.setdefault(str(Path(path).relative_to(ROOT)), set()).add(frame.f_code.co_qualname)

    threading.setprofile(called)
    sys.setprofile(called)
    try:
        yield files
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


def frames_to_loss(train: Callable[[], object]) -> list[str]:
    """``file:function`` of each frame of the package from ``GEARS.train`` to the loss of the first step."""
    frames: list[str] = []
    loss = MomentsTask.loss

    def noted(*arguments: Any, **named: Any) -> Any:
        if not frames:
            stack = [(Path(frame.filename), frame.name) for frame in traceback.extract_stack()]
            within = [f"{path.relative_to(ROOT)}:{name}" for path, name in stack if path.is_relative_to(ROOT)]
            frames.extend([*within[within.index("gears.py:train") :], "training/_tasks.py:loss"])
        return loss(*arguments, **named)

    MomentsTask.loss = noted  # type: ignore[method-assign]
    try:
        train()
    finally:
        MomentsTask.loss = loss  # type: ignore[method-assign]
    return frames


def walks(folder: Path) -> dict[str, list[str]]:
    """The files of each walk, with the functions that run in them; the frames from the call to the loss."""
    screen, _ = simulated_screen(n_genes=100, n_singles=15, n_pairs=18, cells_per_condition=20, n_control=60, seed=1)
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
    result["label to loss"] = [f"{file}:{name}" for file, names in files.items() for name in sorted(names)]
    with files_that_run() as files:
        train_multi_gpu(
            str(folder), "walk", {"split": "simulation", "seed": 1},
            {"epochs": 1, "model_config": {"hidden_size": 8}, "save_path": str(folder / "model"), "verbose": False},
            n_gpus=2, device="cpu",
        )  # fmt: skip
    result["GPU ids to trained model"] = [f"{file}:{name}" for file, names in files.items() for name in sorted(names)]
    pair = next(name for name in pert_data.adata.obs["condition"].unique() if "ctrl" not in name)
    with files_that_run() as files:
        model.predict([pair.split("+")])
        model.plot_perturbation(pair, save_file=str(folder / "figure.png"))
    result["condition to figure"] = [f"{file}:{name}" for file, names in files.items() for name in sorted(names)]
    result["train to loss"] = frames_to_loss(
        lambda: model.train(steps=1, prior=None, evaluate_test=False, verbose=False)
    )
    return result


def main(show: Callable[[str], object] = print) -> None:
    """Walk, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", action="store_true", help="list the files of each walk")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = walks(Path(folder))
    show("| walk | files | functions |\n|---|---|---|")
    for name, functions in result.items():
        show(f"| {name} | {len(files_of(functions))} | {len(functions)} |")
    if options.files:
        for name, functions in result.items():
            show(f"\n{name}: {', '.join(files_of(functions))}")


def files_of(functions: list[str]) -> list[str]:
    """The files of functions such as ``gears.py:GEARS.train``, in their order."""
    return list(dict.fromkeys(function.partition(":")[0] for function in functions))


if __name__ == "__main__":
    main()
