"""Count what a training step asks of a GPU, on the pretended one: operators, waits, copies, peak memory.

    python tests/fakecuda/counting.py [cells|moments|head] [--steps 16] [--lines] [--genes 120] [--train KEY=VALUE ...]

A run of `steps` steps is compared with one of twice as many, both of one epoch: the difference is that of the steps
alone, with everything that belongs to them and without the start and the evaluation. By ``--lines`` operators are
listed by the line of the package that asks for them.
"""

from __future__ import annotations

import argparse
import ast
import json
import logging
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import fakecuda

# isort: split

import torch
from screens import prepared
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import gears
from gears import GEARS, PertData
from gears.training import _head as head
from gears.training import _workers as shards

PACKAGE = Path(gears.__file__).parent
# They start no kernel.
VIEWS = {
    "view", "_unsafe_view", "_reshape_alias", "as_strided", "alias", "detach", "lift_fresh", "is_same_size",
    "t", "transpose", "permute", "expand", "slice", "select", "unsqueeze", "squeeze", "diagonal",
    "split", "split_with_sizes", "unbind",
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided",
}  # fmt: skip

DEFAULTS: dict[str, Any] = {"prior": None, "evaluate_test": False, "verbose": False, "eval_every": 1000}


class Operators(TorchDispatchMode):
    """Counts operators that start kernels on a GPU, by name and by the line that asks for them."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()
        self.lines: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.split("::")[1].rstrip("_")
        if name not in VIEWS and any(
            isinstance(leaf, torch.Tensor) and leaf.is_cuda for leaf in tree_leaves((args, kwargs, result))
        ):
            self.names[name] += 1
            self.lines[line_of_call()] += 1
        return result


def line_of_call() -> str:
    """Innermost line of the package that runs; a backward in C++ has none, or one beyond torch's call of it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.parts[-2:] == ("autograd", "graph.py"):
            break
        if path.is_relative_to(PACKAGE):
            return f"{path.relative_to(PACKAGE)}:{frame.f_lineno}:{frame.f_code.co_name}"
        frame = frame.f_back
    return "C++ autograd"


def run(data: PertData, steps: int, model: dict[str, Any], train: dict[str, Any]) -> dict[str, Any]:
    """Counts of a complete run on the pretended GPU."""
    gears_model = GEARS(data, device="cuda:0")
    gears_model.model_initialize(**{"hidden_size": 16, "seed": 1, **model})
    fakecuda.reset()
    with (
        Operators() as operators,
        mock.patch.object(shards, "_begin_thread", beginning(operators)),
        mock.patch.object(head, "MOST_STEPS", steps),
    ):
        gears_model.train(**{**DEFAULTS, "steps": steps, **train})
    counts = fakecuda.report()
    return {
        "operators": operators.names,
        "lines": operators.lines,
        "waits": Counter(counts["waits"]),
        "mixed": Counter(counts["mixed"]),
        "copies": Counter(
            blocking=counts["to_device_blocking"], to_device=counts["to_device"], to_host=counts["to_host"]
        ),
        "peak_MiB": counts["peak"] / 2**20,
    }


def beginning(operators: Operators) -> Callable[[torch.device], None]:
    """What the threads of shards begin with: operators are counted in each of them."""
    begin_thread = shards._begin_thread

    def begin(device: torch.device) -> None:
        begin_thread(device)
        operators.__enter__()

    return begin


def per_step(
    data: PertData, steps: int, model: dict[str, Any] | None = None, train: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Counts of `steps` steps in the midst of an epoch; ``operators`` also per step in ``operators_per_step``."""
    few, many = (run(data, n, model or {}, train or {}) for n in (steps, 2 * steps))
    counts: dict[str, Any] = {"steps": steps, "peak_MiB": round(many["peak_MiB"], 1)}
    for kind in ("operators", "lines", "waits", "mixed", "copies"):
        difference = {name: many[kind][name] - few[kind][name] for name in many[kind]}
        counts[kind] = {name: n for name, n in difference.items() if n}
    counts["operators_per_step"] = sum(counts["operators"].values()) / steps
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("objective", nargs="?", default="cells", choices=["cells", "moments", "head"])
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--genes", type=int, default=120)
    parser.add_argument("--batch", type=int, default=32, help="cells or conditions a step")
    parser.add_argument("--lines", action="store_true", help="list operators by line")
    for what in ("model", "train"):
        parser.add_argument(f"--{what}", nargs="*", default=[], metavar="KEY=VALUE", help=f"options of the {what}")
    options = parser.parse_args()
    model, train = (
        {key: ast.literal_eval(value) for key, value in (entry.split("=", 1) for entry in entries)}
        for entries in (options.model, options.train)
    )
    if options.objective == "head":  # the steps of the network stay the same
        train = {"prior": "auto", "steps": 1, **train}
    else:
        train = {"objective": options.objective, **train}
    if options.objective == "moments":
        train = {"batch_size": options.batch, **train}
    with tempfile.TemporaryDirectory() as folder:
        data = prepared(Path(folder), "counted", batch_size=options.batch, n_genes=options.genes)
        counts = per_step(data, options.steps, model, train)
    names, lines = counts.pop("operators"), counts.pop("lines")
    print("FOUND " + json.dumps(counts))
    for place, n in Counter(lines if options.lines else names).most_common():
        print(f"  {n / options.steps:8.2f}  {place}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("gears").setLevel(logging.ERROR)
    main()
