"""Compare with the published package, cell-gears 0.1.2: the same simulated screen, stage by stage, in alternation.

    python benchmarks/run.py vs_cell_gears --size default
    python benchmarks/run.py vs_cell_gears --size full
    python benchmarks/run.py network_beside
    python benchmarks/run.py network_beside --data FOLDER --cells 40 --name network_beside_norman

Each package runs in a process and an environment of its own, which is made on first use; of the two only one works at a
time. CPU seconds are the figure to read: wall seconds depend on what else the machine does.

``network_beside``: its predictions of the test conditions after 2 and 20 epochs beside this network alone, the prior
and both, on the first of five folds of pairs that follow products, with ``--data`` of the Norman subset.
Conditions of genes without GO terms are taken out first (cell-gears cannot train on them or predict them), and cells
beyond ``--cells``.
"""

from __future__ import annotations

import io
import json
import pickle
import random
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from measuring import Result, Side, table

HERE = Path(__file__).resolve().parent
SIDES = ("published", "own")
BATCH = 32
PINS = (
    "numpy==1.26.4", "pandas==2.2.2", "scipy==1.14.1", "scanpy==1.10.2", "networkx==3.3", "scikit-learn==1.5.1",
    "dcor", "torch_geometric", "cell-gears==0.1.2",
)  # fmt: skip
"""Of the second environment: the published package with the versions it was released with."""


@dataclass(frozen=True)
class Size:
    """A screen, and how much of each stage is run.

    The published package predicts `published_predictions` (its time is then scaled up). Networks are compared if
    `model`: the graph of 5,000 nodes alone takes it about ten minutes. Stages before training have `rounds`.
    """

    simulation: tuple[int, ...]
    go_genes: int
    steps: int
    predictions: int = 100
    published_predictions: int = 100
    model: bool = True
    rounds: int = 1

    @property
    def options(self):
        """Options of the simulator."""
        names = ("n_genes", "n_singles", "n_pairs", "cells_per_condition", "n_control")
        return dict(zip(names, self.simulation, strict=True))


SIZES = {
    "small": Size((200, 25, 15, 20, 100), 200, 10, 20, 20),
    "default": Size((1000, 100, 60, 25, 400), 2000, 20, rounds=2),
    "full": Size((5000, 100, 50, 60, 1000), 2000, 5, published_predictions=10, model=False),
}


LABELS = {
    "startup": "import",
    "process": "read h5ad + process",
    "load": "load",
    "process_load": "process + load",
    "go_graph": "GO graph",
    "coexpression": "co-expression graph",
    "initialise": "graphs and network of the model",
    "step": "one training step, 32 cells",
    "epoch": "an epoch with its scores",
    "train": "training, whole",
    "predict": "predicting 100 conditions",
}
PER_ITEM = {"step": 1, "predict": 100}  # stages that count items
ROUNDS = ("process", "load", "go_graph", "coexpression")  # stages that are told their round


def published_python(root, torch_pin):
    """Interpreter of the published package's environment, made on first use.

    Parameters
    ----------
    root
        The checkout; the environment is ``.venv-cell-gears`` in it.
    torch_pin
        The same torch as here, such as ``"torch==2.13.0"``.
    """
    folder = Path(root) / ".venv-cell-gears"
    python, stamp = folder / "bin" / "python", folder / ".installed"
    wanted = "\n".join((torch_pin, *PINS))
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print("making the environment of cell-gears (some minutes, once)", flush=True)
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    install = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*install, torch_pin, *PINS], check=True)
    # the first import compiles every module: not what is to be timed
    subprocess.run([str(python), "-I", "-c", "import gears"], check=True, cwd=folder)
    stamp.write_text(wanted)
    return python


def write_inputs(folder, size, seed):
    """The screen, the annotation as a pickle, the genes of the GO graph, the pairs to predict."""
    from gears.simulate import simulated_screen

    adata, truth = simulated_screen(**size.options, seed=seed)
    adata.write_h5ad(folder / "screen.h5ad")
    gene2go = write_annotation(folder)
    draw = random.Random(seed)
    genes = draw.sample(sorted(gene2go), size.go_genes)
    (folder / "genes.json").write_text(json.dumps(genes))
    perturbed = list(truth.perturbed)
    pairs = [[a, b] for i, a in enumerate(perturbed) for b in perturbed[:i]]
    chosen = draw.sample(pairs, size.predictions)
    (folder / "pairs.json").write_text(json.dumps(chosen))
    (folder / "fewer_pairs.json").write_text(json.dumps(chosen[: size.published_predictions]))


def write_annotation(folder):
    """The annotation as the published package reads it, a pickle of terms by gene; returned."""
    from gears.graphs._annotation import GeneAnnotation

    annotation = GeneAnnotation.human()
    matrix, terms = annotation.matrix, annotation.terms
    gene2go = {
        gene: {terms[j] for j in matrix.indices[matrix.indptr[i] : matrix.indptr[i + 1]]}
        for i, gene in enumerate(annotation.genes)
    }
    gene2go = {gene: found for gene, found in gene2go.items() if found}
    (folder / "gene2go.pkl").write_bytes(pickle.dumps(gene2go))
    return gene2go


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
        print(f"{stage:14s} " + "  ".join(_shown(entry[name][-1], name) for name in ("published", "own")), flush=True)

    def one(self, side, stage, key=None, **given):
        """A stage of one side only."""
        value = getattr(self, side).ask(stage, **given)
        self.stages.setdefault(key or stage, {}).setdefault(side, []).append(value)
        print(f"{key or stage:14s} {_shown(value, side)}", flush=True)
        return value


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
    tests = [[gene for gene in label.split("+") if gene != "ctrl"] for label in parts["test"] if label != "ctrl"]
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


def compared(
    size: str = "default",
    objectives: tuple[str, ...] = ("cells", "moments", "default"),
    threads: int = 1,
    minutes: float = 10,
    seed: int = 0,
    small: bool = False,
) -> Iterator[Result]:
    """All stages; `minutes` are CPU minutes of the published training, the objective "default" is `train()` alone."""
    if small:
        yield own_alone()
        return
    chosen, root = SIZES[size], HERE.parent
    python = published_python(root, torch_pin(root))
    record = {"size": size, "simulation": chosen.options | {"seed": seed}, "threads": threads}
    with tempfile.TemporaryDirectory(prefix="gears-bench-") as name:
        folder = Path(name)
        write_inputs(folder, chosen, seed)
        with (
            Side(HERE / "published_side.py", folder, python, threads) as published,
            Side(HERE / "own_side.py", folder, threads=threads) as own,
        ):
            run = Comparison(published, own, folder)
            record["stages"] = run.stages
            run.both("startup")
            annotation = {"annotation": str(folder / "gene2go.pkl")}
            # before a screen is held: the published package forks 25 processes here
            run.both("go_graph", chosen.rounds, genes=str(folder / "genes.json"), **annotation)
            run.both("process", chosen.rounds, screen=str(folder / "screen.h5ad"), **annotation)
            run.both("load", chosen.rounds)
            for side in (own, published):
                side.ask("split", parts=str(folder / "parts.json"), batch_size=BATCH)
            run.both("coexpression", chosen.rounds)
            yield result(record)  # kept where a later stage fails
            if chosen.model:
                record["training"] = compare_models(run, chosen, minutes, objectives)
                yield result(record)


def own_alone():
    """The small form, which needs no cell-gears: the stages of this package on the small size."""
    with tempfile.TemporaryDirectory(prefix="gears-bench-") as name, Side(HERE / "own_side.py", name) as own:
        write_inputs(Path(name), SIZES["small"], seed=0)
        files = {"annotation": f"{name}/gene2go.pkl", "round": 0}
        stages = {
            "startup": {},
            "go_graph": files | {"genes": f"{name}/genes.json"},
            "process": files | {"screen": f"{name}/screen.h5ad"},
            "load": {"round": 0},
            "split": {"parts": f"{name}/parts.json", "batch_size": BATCH},
            "coexpression": {"round": 0},
            "initialise": {},
            "step": {"n": 2},
            "epoch": {},
            "train": {"objective": "default", "epochs": 1},
            "predict": {"conditions": f"{name}/pairs.json", "out": f"{name}/pairs.npz", "objective": "default"},
        }
        figures = {stage: own.ask(stage, **given) for stage, given in stages.items()}
    rows = [{"stage": LABELS[stage], "here, CPU s": one["cpu_s"]} for stage, one in figures.items() if one]
    return Result("Stages of this package alone", table(rows), {"stages": figures})


# --- predictions beside the network and the prior ---------------------------------------------------


def beside(
    data: Path | None = None, epochs: tuple[int, ...] = (2, 20), cells: int = 20, seed: int = 0
) -> Iterator[Result]:
    """Decisive metrics and CPU seconds of every method; a condition has at most so many `cells`, the control all."""
    import pandas as pd
    from network import PLANTED, by_method, summary
    from screens import Screen, folds_of, screens

    from gears.simulate import simulated_screen

    options = PLANTED | {"cells_per_condition": cells, "seed": seed}
    compared = [Screen("products", seed, simulated_screen(**options)[0])]
    if data:
        compared = [screen for screen in screens((), data, ()) if screen.name.startswith("norman2019")]
    tables = []
    for screen in (annotated(screen, cells) for screen in compared):
        with screen.prepared() as prepared, tempfile.TemporaryDirectory(prefix="gears-bench-") as name:
            prepared.use_split(folds_of(prepared, 5)[0])
            tables += by_method(prepared, screen, "moments", 64)
            tables += by_cell_gears(prepared, screen, epochs, Path(name))
        rows = pd.concat(tables, ignore_index=True)
        title = "cell-gears 0.1.2 beside the network and the prior"
        yield Result(title, table(summary(rows)), {"rows": rows.to_dict("records")})


def annotated(screen, cells):
    """The screen with at most so many cells of a condition, without the conditions of a gene that has no GO term."""
    with tempfile.TemporaryDirectory() as folder:
        known = {"ctrl", *write_annotation(Path(folder))}
    labels = screen.adata.obs["condition"].astype(str)
    is_kept = (labels == "ctrl") | (labels.groupby(labels).cumcount() < cells)
    is_kept &= labels.map(lambda label: known.issuperset(label.split("+")))
    return replace(screen, adata=screen.adata[is_kept.to_numpy()].copy())


def by_cell_gears(prepared, screen, epochs, folder):
    """Metrics of every test condition by cell-gears after so many epochs."""
    import numpy as np
    from accuracy import scored
    from network import METRICS

    from gears import Condition
    from gears.data.splits._split import perturbed_in

    screen.adata.write_h5ad(folder / "screen.h5ad")
    write_annotation(folder)
    (folder / "parts.json").write_text(json.dumps(prepared.set2conditions))
    tested = [sorted(condition.genes) for condition in perturbed_in(prepared.split, "test")]
    (folder / "test.json").write_text(json.dumps(tested))
    python = published_python(HERE.parent, torch_pin(HERE.parent))
    with Side(HERE / "published_side.py", folder, python) as side:
        files = {"screen": str(folder / "screen.h5ad"), "annotation": str(folder / "gene2go.pkl")}
        side.ask("process", **files, round=0)
        side.ask("load", round=0)
        side.ask("split", parts=str(folder / "parts.json"), batch_size=BATCH)
        for number in epochs:
            trained = side.ask("train", epochs=number)
            out = str(folder / "test.npz")
            side.ask("predict", conditions=str(folder / "test.json"), out=out)
            predicted = np.load(out)
            rows = [Condition.parse(str(label)) for label in predicted["labels"]]
            of_condition = dict(zip(rows, predicted["mean"], strict=True))
            values = scored(prepared, lambda tested, of=of_condition: np.stack([of[each] for each in tested]), METRICS)
            yield values.assign(
                screen=screen.name,
                seed=str(screen.seed),
                fold=prepared.split.arguments["fold"],
                method=f"cell-gears 0.1.2, {number} epochs",
                weight=np.nan,
                train_slope=np.nan,
                cpu_seconds=trained["cpu_s"],
            )
            print(f"cell-gears on {screen.name}, {number} epochs", flush=True)


# --- the tables -----------------------------------------------------------------------------------


def stage_rows(stages):
    """CPU seconds and memory of all stages that both sides ran, and their ratios; medians over rounds."""
    stages = dict(stages)
    if {"process", "load"} <= set(stages):
        stages["process_load"] = {
            side: [
                {"peak_mb": max(a["peak_mb"], b["peak_mb"]), "cpu_s": a["cpu_s"] + b["cpu_s"]}
                for a, b in zip(stages["process"][side], stages["load"][side], strict=True)
            ]
            for side in SIDES
        }
    rows = []
    for stage, label in LABELS.items():
        if not set(SIDES) <= set(stages.get(stage, {})):
            continue
        row = {"stage": label}
        for what, unit, of_runs in (("cpu_s", "CPU s", statistics.median), ("peak_mb", "peak MiB", max)):
            theirs, ours = (of_runs([run[what] for run in stages[stage][side]]) for side in SIDES)
            if what == "cpu_s" and stage in PER_ITEM:
                theirs, ours = (
                    value * PER_ITEM[stage] / stages[stage][side][0]["n"]
                    for side, value in zip(SIDES, (theirs, ours), strict=True)
                )
            row |= {f"cell-gears, {unit}": theirs, f"here, {unit}": ours, f"ratio, {unit}": theirs / ours}
        rows.append(row)
    return rows


def first_at_most(history, target):
    """CPU seconds of the first record whose error is at most `target`; None where none is."""
    return next((record["cpu_s"] for record in history if record["mse_top20_de"] <= target), None)


def training_summary(training):
    """Per run: CPU seconds to the error that the published training ends with, its last and best error."""
    published = training["published"]
    target = published[-1]["mse_top20_de"]
    summary = {}
    for name in [name for name in training if name in ("published", "cells", "moments", "default")]:
        history = training[name]
        summary[name] = {
            "epochs": history[-1]["epoch"],
            "cpu_s": history[-1]["cpu_s"],
            "last": history[-1]["mse_top20_de"],
            "best": min(record["mse_top20_de"] for record in history),
            "cpu_s_to_target": first_at_most(history, target),
        }
    reached = published[-1]["cpu_s"]
    soonest = summary["published"]["cpu_s_to_target"]
    for entry in summary.values():
        own = entry["cpu_s_to_target"]
        entry["ratio"] = reached / own if own else None
        entry["ratio_to_soonest"] = soonest / own if own and soonest else None
    return {"target": target, "runs": summary}


def result(record):
    """Tables and plot of what there is so far."""
    lines = [*table(stage_rows(record["stages"])), ""]
    files, training = {}, record.get("training")
    name = f"vs_cell_gears-{record['size']}"
    if training:
        summary = training_summary(training)
        lines += [f"## Validation mse_top20_de (cell-gears ends at {summary['target']:.5g})", ""]
        lines += [*table([{"training": key} | run for key, run in summary["runs"].items()]), ""]
        lines += ["## Test conditions", ""]
        lines += [*table([{"model": key} | scores for key, scores in training["test"].items()]), ""]
        lines += [
            "Both packages' predictions are scored by the same functions against the same truth; those of cell-gears",
            "without the noise of the control cells it draws. `ratio`: CPU seconds of its whole training over those",
            "to its last error here, `ratio_to_soonest`: over its own first arrival there.",
            "",
        ]
        files[".png"] = plot(training)
    elif not SIZES[record["size"]].model:
        lines += ["Networks are compared at the default size: here an epoch of cell-gears would take hours.", ""]
    for side in SIDES:
        found = record["stages"]["startup"][side][0]["versions"]
        lines.append(f"Versions ({side}): {', '.join(f'{key} {value}' for key, value in found.items())}.")
    return Result(f"Compared with cell-gears 0.1.2, size `{record['size']}`", lines, record, files, name)


CURVES = {
    "published": "cell-gears 0.1.2",
    "cells": "here, network alone on cells",
    "moments": "here, network alone on moments",
    "default": "here, train() as it is",
}


def plot(training):
    """Validation error against CPU seconds, both."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4.4), layout="constrained")
    for name in ("published", "cells", "moments", "default"):
        if name in training:
            history = training[name]
            label = CURVES[name]
            axes.plot(
                [record["cpu_s"] for record in history],
                [record["mse_top20_de"] for record in history],
                marker=".",
                label=label,
            )
    axes.axhline(training["published"][-1]["mse_top20_de"], color="grey", linestyle=":", linewidth=1)
    axes.set(xscale="log", xlabel="CPU seconds of training", ylabel="validation mse_top20_de")
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    image = io.BytesIO()
    figure.savefig(image, dpi=130)
    plt.close(figure)
    return image.getvalue()
