"""Compare with the published package, cell-gears 0.1.2: the same simulated screen, stage by stage, in alternation.

Each package runs in a process and an environment of its own; of the two only one works at a
time. CPU seconds are the figure to read: wall seconds depend on what else the machine does (its
load is noted beside each). Results: JSON, a Markdown table and a plot in ``benchmarks/results``.
"""

from __future__ import annotations

import argparse
import json
import pickle
import random
import re
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent))

from environment import published_python
from measuring import command, commit, machine
from report import report
from side import Side
from sizes import SIZES

HERE = Path(__file__).resolve().parent
BATCH = 32


def arguments(given=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=sorted(SIZES), default="default")
    parser.add_argument("--objective", nargs="+", default=None, help="cells, moments, default (all three)")
    parser.add_argument("--threads", type=int, default=1, help="threads of each side's numerical libraries")
    parser.add_argument("--minutes", type=float, default=10, help="CPU minutes for the published training")
    parser.add_argument("--seed", type=int, default=0, help="seed of the simulated screen")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    return parser.parse_args(given)


def objectives_here(wanted):
    """What to train: the network alone on cells and on moments, and `train()` as it is, unless asked for less."""
    return ["cells", "moments", "default"] if wanted is None else wanted


def write_inputs(folder, size, seed):
    """The screen, the annotation as a pickle, the genes of the GO graph, the pairs to predict."""
    from gears.graphs.annotation import GeneAnnotation
    from gears.simulate import simulated_screen

    annotation = GeneAnnotation.human()
    adata, truth = simulated_screen(**size.simulation, seed=seed)
    adata.write_h5ad(folder / "screen.h5ad")
    matrix, terms = annotation.matrix, annotation.terms
    gene2go = {
        gene: {terms[j] for j in matrix.indices[matrix.indptr[i] : matrix.indptr[i + 1]]}
        for i, gene in enumerate(annotation.genes)
    }
    (folder / "gene2go.pkl").write_bytes(
        pickle.dumps({gene: found for gene, found in gene2go.items() if found})
    )
    draw = random.Random(seed)
    genes = draw.sample(sorted(gene for gene, found in gene2go.items() if found), size.go_genes)
    (folder / "genes.json").write_text(json.dumps(genes))
    perturbed = list(truth.perturbed)
    pairs = [[a, b] for i, a in enumerate(perturbed) for b in perturbed[:i]]
    chosen = draw.sample(pairs, size.predictions)
    (folder / "pairs.json").write_text(json.dumps(chosen))
    (folder / "fewer_pairs.json").write_text(json.dumps(chosen[: size.published_predictions]))


def torch_pin(root):
    """The line of the pinned versions that names torch."""
    return re.search(r"^torch==\S+", (root / "constraints.txt").read_text(), re.MULTILINE).group()


class Comparison:
    """Runs stages on both sides, one after the other, and keeps their figures."""

    def __init__(self, published, own, folder):
        self.published, self.own, self.folder = published, own, folder
        self.stages = {}

    def both(self, stage, rounds=1, **given):
        """A stage on both sides; which goes first changes from round to round."""
        entry = self.stages.setdefault(stage, {"published": [], "own": []})
        for number in range(rounds):
            sides = [("published", self.published), ("own", self.own)]
            for name, side in sides if number % 2 == 0 else reversed(sides):
                extra = {"round": number} if stage in ROUNDS else {}
                entry[name].append(side.ask(stage, **given, **extra))
        print(
            f"{stage:14s} " + "  ".join(_shown(entry[name][-1], name) for name in ("published", "own")),
            flush=True,
        )

    def one(self, side, stage, key=None, **given):
        """A stage of one side only."""
        value = getattr(self, side).ask(stage, **given)
        self.stages.setdefault(key or stage, {}).setdefault(side, []).append(value)
        print(f"{key or stage:14s} {_shown(value, side)}", flush=True)
        return value


ROUNDS = ("process", "load", "go_graph", "coexpression")


def _shown(figures, name):
    cells = [f"{figures['cpu_s']:.3f} CPU s", f"{figures['wall_s']:.3f} s", f"{figures['peak_mb']:.0f} MiB"]
    return f"{name}: {', '.join(cells)} (load {figures['load']:.1f})"


def compare_models(run, size, minutes, objectives):
    """Stages that need a network; returns the training comparison."""
    run.both("initialise")
    run.both("step", size.rounds, n=size.steps)
    run.both("epoch")
    epochs = epochs_within(run.stages["epoch"]["published"][0], minutes)
    training = compare_training(run, epochs, objectives)
    pairs = {"published": str(run.folder / "fewer_pairs.json"), "own": str(run.folder / "pairs.json")}
    last = {"own": {"objective": objectives[-1]}, "published": {}}
    for side, file in pairs.items():
        run.one(side, "predict", conditions=file, out=str(run.folder / f"pairs-{side}.npz"), **last[side])
    for side in pairs:
        run.one(side, "evaluation", **last[side])
    return training


def compare_training(run, epochs, objectives):
    """Training, test scores and predictions of both; the published curve is scored like ours."""
    folder = run.folder
    result = {"published_epochs": epochs}
    curve = str(folder / "curve.npz")
    run.one("published", "train", epochs=epochs, curve=curve)
    for objective in objectives:
        own_epochs = epochs if objective == "cells" else None
        run.one("own", "train", key=f"train_{objective}", objective=objective, epochs=own_epochs)
    scores = run.own.ask("score", file=curve)
    history = run.stages["train"]["published"][0]["history"]
    result["published"] = [
        record | {"mse_top20_de": scores[f"epoch{record['epoch']}"]["mse_top20_de"]} for record in history
    ]
    for objective in objectives:
        result[objective] = run.stages[f"train_{objective}"]["own"][0]["history"]
    result["test"] = test_scores(run, objectives)
    return result


def test_scores(run, objectives):
    """Scores of the test conditions as each package's `predict` gives them."""
    parts = json.loads((run.folder / "parts.json").read_text())
    tests = [
        [gene for gene in label.split("+") if gene != "ctrl"] for label in parts["test"] if label != "ctrl"
    ]
    asked = run.folder / "test.json"
    asked.write_text(json.dumps(tests))
    scores = {}
    for name in ("published", *objectives):
        out = str(run.folder / f"test-{name}.npz")
        if name == "published":
            run.published.ask("predict", conditions=str(asked), out=out)
        else:
            run.own.ask("predict", conditions=str(asked), out=out, objective=name)
        scores[name] = run.own.ask("score", file=out)["mean"]
    return scores


def epochs_within(figures, minutes, most=20):
    """Epochs of the published training that fit into so many CPU minutes, at least one."""
    return max(1, min(most, int(60 * minutes / figures["cpu_s"])))


def main():
    options = arguments()
    size, root = SIZES[options.size], HERE.parent
    python = published_python(root, torch_pin(root))
    objectives = objectives_here(options.objective)
    folder = Path(tempfile.mkdtemp(prefix="gears-bench-"))
    record = {
        "size": options.size,
        "simulation": size.simulation | {"seed": options.seed},
        "machine": machine() | {"threads": options.threads},
        "commit": commit(root),
        "command": command(),
        "published_predictions": size.published_predictions,
    }
    try:
        write_inputs(folder, size, options.seed)
        with (
            Side(python, HERE / "published_side.py", folder, options.threads) as published,
            Side(sys.executable, HERE / "own_side.py", folder, options.threads) as own,
        ):
            run = Comparison(published, own, folder)
            record["stages"] = run.stages
            run.both("startup")
            # before a screen is held: the published package forks 25 processes here
            run.both(
                "go_graph",
                size.rounds,
                genes=str(folder / "genes.json"),
                annotation=str(folder / "gene2go.pkl"),
            )
            given = {"screen": str(folder / "screen.h5ad"), "annotation": str(folder / "gene2go.pkl")}
            run.both("process", size.rounds, **given)
            run.both("load", size.rounds)
            for side in (own, published):
                side.ask("split", parts=str(folder / "parts.json"), batch_size=BATCH)
            run.both("coexpression", size.rounds)
            if size.model:
                record["training"] = compare_models(run, size, options.minutes, objectives)
    finally:
        if record.get("stages"):  # what was measured is kept when a later stage fails
            print(report(record, options.results))
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
