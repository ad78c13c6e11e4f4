"""Run benchmarks.

    python benchmarks/run.py --list                    the jobs
    python benchmarks/run.py NAME --help               what one measures, and its options
    python benchmarks/run.py NAME [its options]        run it: NAME.md and NAME.json in benchmarks/results
    python benchmarks/run.py --small [NAME]            a small form, of all jobs that have one, into a temporary folder

Every job takes ``--output FOLDER`` and ``--name NAME`` (of the files); most that simulate take ``--seeds``, those that
read real screens ``--data FOLDER`` (with NAME_subset.h5ad). A job is a function that yields what it has found so far,
and its options are the function's.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from measuring import Result, about, table, write

HERE = Path(__file__).resolve().parent
# A result names the commit of this checkout: its package is what is measured, whichever is installed.
sys.path.insert(0, str(HERE.parent))


@dataclass(frozen=True)
class Job:
    """A benchmark: the function ``module.function``, what it measures, how long that takes on one core.

    `small` are options of the small form; a text says why there is none.
    """

    where: str
    measures: str
    takes: str
    small: dict[str, Any] | str = field(default_factory=dict)

    @property
    def module(self) -> Any:
        """The file."""
        return importlib.import_module(self.where.partition(".")[0])

    @property
    def function(self) -> Callable[..., Iterator[Result]]:
        """The function."""
        found: Callable[..., Iterator[Result]] = getattr(self.module, self.where.partition(".")[2])
        return found


ONE = {"kinds": ("additive",), "seeds": (0,)}
JOBS = {
    "accuracy": Job("accuracy.accuracy", "the model against the best baseline, by kind of screen", "hours",
                    ONE | {"methods": ("prior",), "repeats": 1, "folds": 2}),
    "kinds": Job("kinds.kinds", "the prior on every kind of screen, and what a change of it gains", "half an hour",
                 {"kinds": ("failing guides",), "seeds": (0,), "folds": 2}),
    "packaged": Job("packaged.packaged", "packaged knowledge of genes on real screens", "10 min",
                    "needs a folder of real screens"),
    "head": Job("accuracy.head", "the prior with its head against the prior alone", "an hour",
                ONE | {"kinds": ("co-expression",), "folds": 4}),
    "head_genes": Job("accuracy.head_genes", "genes that a step of the head's training draws", "half an hour",
                      {"kinds": ("co-expression",), "folds": 2, "per_step": (120, 60)}),
    "inner_fits": Job("accuracy.inner_fits", "inner folds of the head that try what the prior chose", "10 min",
                      ONE | {"kinds": ("co-expression",), "folds": 2}),
    "levels": Job("levels.levels", "sizes, intervals, hits, batches and power against truth", "hours", ONE),
    "settings": Job("settings.settings", "lines, donors, types and unequal settings against truth", "20 min",
                    {"cases": ("alike",), "seeds": (0,)}),
    "second_screens": Job("second_screens.second_screens", "what effects of a second screen add, simulated", "15 min",
                          {"kinds": ("related",), "shares": (0.6,), "seeds": (0,), "genes": 60, "singles": 24}),
    "two_lines": Job("second_screens.two_lines", "knock-downs of RPE1 by those of K562, real profiles", "10 min",
                     "needs the folder of real profiles (--data)"),
    "new_lines": Job("lines.new_lines", "a new line with 0 to 10 conditions of its own, against truth", "10 min",
                     {"known": (0, 1), "seeds": (0,)}),
    "many_screens": Job("many_screens.many_screens", "screens with their own genes, from prepared folders to a prior",
                        "10 min", {"screens": (2,), "conditions": 12, "genes": 60, "cells": 6}),
    "mcfaline": Job("lines.mcfaline", "three real lines held out, and with some conditions of their own", "10 min",
                    "needs mcfaline2023_subset.h5ad"),
    "uncertainty": Job("uncertainty.uncertainty", "90 % intervals of held-out means", "half an hour",
                       ONE | {"folds": 2}),
    "design": Job("design.replay_of_aims", "what suggested experiments teach, replayed", "hours", ONE),
    "design_hits": Job("design_hits.calibration_of_hits", "probabilities and scores of hits", "an hour",
                       ONE | {"folds": 3}),
    "explained": Job("explained.explained", "what predictions rest on, and probabilities of change", "half an hour",
                     ONE | {"folds": 2, "pairs": 1}),
    "network": Job("network.network", "the network alone, the prior, its head, and all together", "hours",
                   ONE | {"kinds": ("products",), "most_folds": 1}),
    "network_cases": Job("network.network_cases", "promises of the network: planted, remainders, null, silent ...",
                         "an hour", {"cases": ("untrained",), "seeds": (0,)}),
    "network_weight": Job("network_weight.false_weights", "how often chance gives the network a weight", "hours",
                          {"runs": 2, "epochs": 2}),
    "network_rules": Job("network_weight.weight_rules", "what other rules for its weight gain", "hours",
                         ONE | {"folds": 1, "epochs": 2}),
    "stability": Job("stability.stability", "how much training amplifies rounding", "20 min",
                     {"settings": (0,), "priors": ("None",), "epochs": 2}),
    "golden": Job("golden.golden", "loss curves of 1, 2 and 4 workers against those that are kept", "2 min",
                  {"workers": (1,)}),
    "reproducible": Job("reproducible.reproducible", "the same bits: checksums, promises, cost", "10 min",
                        {"workers": (1, 2), "epochs": 1, "promised_epochs": 1, "repeats": 1, "no_gpu": True}),
    "main_job": Job("main_job.main_job", "CPU seconds of two CPU workers from start to verdict", "6 min",
                    {"repeats": 1}),
    "walk": Job("walk.first_calls", "what a new user's first calls cost and print", "5 min"),
    "vs_cell_gears": Job("vs_cell_gears.compared", "every stage and the training against cell-gears 0.1.2",
                         "half an hour"),
    "network_beside": Job("vs_cell_gears.beside", "cell-gears 0.1.2 beside the network and the prior", "20 min",
                          "needs the environment of cell-gears"),
    "published": Job("published.published", "published screens, splits and seeds", "days; a GPU",
                     {"screens": ("simulated",), "seeds": (1,), "device": "cpu", "n_gpus": 1, "epochs": 2}),
    "scale": Job("scale.scale", "how seconds and memory grow with cells, conditions, genes", "20 min",
                 {"sizes": (1000,)}),
    "scale_large": Job("scale.scale_large", "sizes beyond memory, through every stage", "hours",
                       {"sizes": ("conditions",)}),
    "packs": Job("packs.packs", "moment packs against prepared cells: time, memory, bytes moved, size", "20 min",
                 {"cells": (400,), "genes": 60, "conditions": 8, "forms": ("cells", "pack")}),
    "stages": Job("scale.stages", "CPU seconds of every stage at Norman's size, imports apart", "20 min"),
    "memory": Job("scaling.memory", "memory of 1, 2 and 4 workers on one screen", "5 min",
                  {"cells": 9000, "genes": 300, "workers": (2,)}),
    "scaling": Job("scaling.scaling", "epoch time and communication of 1 to N workers", "10 min; idle cores",
                   {"device": "cpu", "workers": (2,), "epochs": 3, "objectives": ("moments",)}),
    "side_by_side": Job("scaling.side_by_side", "folds and an ensemble, one and two at a time", "10 min; idle cores",
                        {"repeats": 1, "genes": 50, "folds": 2, "seeds": (1, 2), "epochs": 1}),
    "prediction": Job("prediction.prediction", "seconds per 1,000 predicted conditions", "2 min",
                      {"genes": 100, "conditions": 32, "chunks": (16,), "rounds": 1}),
    "ranking": Job("ranking.ranking", "a hundred thousand pairs ranked by 1 and 2 CPU workers", "10 min",
                   {"pairs": (3000,), "genes": 80, "workers": (2,)}),
    "gpu_check": Job("gpu_check.main", "everything that needs a GPU, checked and timed (gpu_check.py)", "7 min; a GPU",
                     {"device": "cpu", "size": "small", "only": ("gradients", "moments, float64", "epoch")}),
}  # fmt: skip


def listed() -> list[str]:
    """The jobs as a table."""
    return table([
        {"job": name, "measures": job.measures, "takes": job.takes,
         "small form": f"no: {job.small}" if isinstance(job.small, str) else "yes"}
        for name, job in JOBS.items()
    ])  # fmt: skip


def parser_of(name: str, job: Job) -> argparse.ArgumentParser:
    """Options of a job: the arguments of its function by name, annotation and default."""
    parser = argparse.ArgumentParser(
        f"run.py {name}", description=job.module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for option, parameter in inspect.signature(job.function).parameters.items():
        kind, default = str(parameter.annotation), parameter.default
        flag = f"--{option.replace('_', '-')}"
        if kind == "bool":
            parser.add_argument(flag, action="store_true", help=argparse.SUPPRESS if option == "small" else "")
            continue
        of = next(each for each in (Path, int, float, str) if each.__name__ in kind)
        several = {"nargs": "*"} if "tuple" in kind else {}
        shown = " ".join(map(str, default)) if isinstance(default, tuple) else str(default)
        parser.add_argument(flag, type=of, default=default, help=f"({shown})" * (default is not None), **several)
    return parser


def run(name: str, arguments: Sequence[str], small: bool = False) -> None:
    """Run a job, and write its files whenever it yields; the last page is printed."""
    job = JOBS[name]
    if small and isinstance(job.small, str):
        print(f"{name} has no small form: it {job.small}")
        return
    if job.where == "gpu_check.main":  # carried to other machines, with a command line of its own
        words = [
            word for key, value in (job.small if isinstance(job.small, dict) and small else {}).items()
            for word in (f"--{key}", *((value,) if isinstance(value, str) else value))
        ]  # fmt: skip
        if status := job.function([*words, *arguments]):
            raise SystemExit(status)
        return
    parser = parser_of(name, job)
    parser.add_argument("--output", type=Path, help="folder of the files (benchmarks/results)")
    parser.add_argument("--name", help="of the files, instead of the job's")
    if small and isinstance(job.small, dict):
        parser.set_defaults(**job.small)
    options = vars(parser.parse_args(arguments))
    if "small" in options:
        options["small"] |= small
    output, stem = options.pop("output"), options.pop("name")
    import logging

    import torch

    torch.set_num_threads(1)
    logging.getLogger("gears").setLevel(logging.ERROR)
    facts = about([name, *(["--small"] if small else []), *arguments])
    with tempfile.TemporaryDirectory() as folder:
        page = ""
        for result in job.function(**options):
            place = output or (Path(folder) if small else HERE / "results")
            page = write(place, stem or result.name or name, result, facts)
        print(page, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    small = "--small" in words
    words = [word for word in words if word != "--small"]
    if words and words[0] in JOBS:
        run(words[0], words[1:], small)
    elif small and not words:
        for name in JOBS:
            run(name, [], small)
    elif not words or words[0] == "--list":
        print("\n".join(listed()))
    elif words[0] in ("-h", "--help"):
        print(__doc__)
    else:
        raise SystemExit(f"no benchmark {words[0]!r}; there are {', '.join(JOBS)}")


# Worker processes import this file again: what starts them must be guarded.
if __name__ == "__main__":
    main()
