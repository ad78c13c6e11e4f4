"""How seconds and memory grow with cells, conditions and genes, and what every stage costs at one size.

    python benchmarks/run.py scale --axes cells conditions genes
    python benchmarks/run.py scale_large --sizes cells conditions genes
    python benchmarks/run.py stages

Each size is simulated into a file chunk by chunk (removed afterwards) and worked on in processes of its own.
``scale``: the whole preparation, and training epochs of the moments objective. ``scale_large`` takes sizes that are far
beyond memory's through everything: preparing, training by default (with the prior), over moments and over cells,
prediction. ``stages``: CPU seconds at the size of the published Norman screen (87,540 cells, 5,045 genes, 236 perturbed
conditions, 20,692 nodes of the perturbation graph), every stage in a process of its own, importing packages apart.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

from measuring import Measurement, Result, Side, cpu_seconds, table

AXES = {"cells": (10_000, 100_000, 1_000_000), "conditions": (100, 1000, 10_000), "genes": (1000, 5000, 10_000)}
BASE = {"cells": 10_000, "conditions": 100, "genes": 2000}
SMALL_AXES = {"cells": (1000, 5000), "conditions": (20, 100), "genes": (100, 300)}
SMALL_BASE = {"cells": 1000, "conditions": 20, "genes": 100}
LARGE = {
    "cells": {"cells": 1_000_000, "conditions": 100, "genes": 5000, "singles": 100},
    "conditions": {"cells": 100_000, "conditions": 10_000, "genes": 5000, "singles": 2500},
    "genes": {"cells": 5000, "conditions": 2000, "genes": 20_000, "singles": 1000},
}
SMALL_LARGE = {"cells": 500, "conditions": 50, "genes": 100, "singles": 20}
# what each is trained with beside the default; an epoch of as many conditions and genes takes a minute
TRAINED = {
    "cells": {
        "moments": {"objective": "moments", "prior": None, "epochs": 20},
        "cells": {"objective": "cells", "prior": None, "steps": 200},
    },
    "conditions": {"moments": {"objective": "moments", "prior": None, "epochs": 1}},
    "genes": {"moments": {"objective": "moments", "prior": None, "epochs": 1}},
}
NORMAN = {"n_genes": 5045, "n_singles": 105, "n_pairs": 131, "cells_per_condition": 340, "n_control": 7300}
SMALL_NORMAN = {"n_genes": 200, "n_singles": 20, "n_pairs": 10, "cells_per_condition": 20, "n_control": 100}
HELD = {}  # what stages leave for later ones in the same process


def simulation(cells, conditions, genes, singles=None):
    """Options of the simulator; about one value in six is not zero, as in screens of this many genes."""
    n_singles = singles or min(conditions, 200, genes // 2)
    control = cells // 10
    return {
        "n_genes": genes, "n_singles": n_singles, "n_pairs": conditions - n_singles,
        "cells_per_condition": max(2, (cells - control) // conditions), "n_control": control,
        "counts_per_gene": 0.2,
    }  # fmt: skip


# --- stages, each asked for in a process of its own -----------------------------------------------


def simulate(path, simulation):
    """Write the screen chunk by chunk."""
    from gears.simulate import simulate_to_h5ad

    with Measurement() as block:
        simulate_to_h5ad(path, chunk_cells=4096, overwrite=True, **simulation)
    return block.figures | {"file_mb": Path(path).stat().st_size / 2**20}


def prepare(path, folder):
    """Prepare the screen from its file, which is then removed: checks, statistics, differential genes, cells."""
    from gears import PertData

    with Measurement() as block:
        data = PertData(Path(folder).parent, default_pert_graph=False)
        data.load(data_path=path, workers=1)
    data.screen.folder.rename(folder)
    Path(path).unlink()
    return block.figures


def setup(folder, split="simulation"):
    """Open the prepared screen, split it, build graphs and network."""
    from gears import GEARS, PertData

    with Measurement() as block:
        data = PertData(Path(folder).parent, default_pert_graph=False)
        data.load(data_path=folder)
        data.prepare_split(split, seed=1)
        HELD["model"] = model = GEARS(data, device="cpu")
        model.model_initialize(hidden_size=64)
    return block.figures


def train(**options):
    """Train as asked, without scoring the test part."""
    model = HELD["model"]
    with Measurement() as block:
        result = model.train(evaluate_test=False, verbose=False, **options)
    seconds = sorted(record["seconds"]["total"] for record in result.history)
    return block.figures | {
        "conditions": len(model.pert_data.split.conditions("train")),
        "epochs": len(result.history),
        "epoch_s": seconds[len(seconds) // 2] if seconds else None,  # by default no network is trained
        "network_weight": result.network_weight,
    }


def predict(path):
    """Predict every perturbed condition of the screen into a file, chunk by chunk."""
    model = HELD["model"]
    conditions = [condition for condition in model.pert_data.screen.conditions if not condition.is_control]
    with Measurement() as block:
        model.predict_to_file(conditions, path, overwrite=True)
    return block.figures | {"conditions": len(conditions), "file_mb": Path(path).stat().st_size / 2**20}


def _opened(folder):
    """Screen and split, and the CPU seconds that imports and opening took."""
    start = cpu_seconds()
    from gears import GEARS, PertData

    imported = cpu_seconds()
    data = PertData(Path(folder).parent)
    data.load(data_path=folder)
    data.prepare_split("simulation", seed=1)
    HELD["model"] = GEARS(data, device="cpu")
    return data, {"import_s": imported - start}, cpu_seconds() - imported


def load(folder):
    """Open the prepared screen and split it."""
    with Measurement() as block:
        _, told, seconds = _opened(folder)
    return block.figures | told | {"cpu_s": seconds}


def go_graph(folder):
    """Graph of all nodes, the annotation read already."""
    from gears.graphs import go_graph as build

    data, told, _ = _opened(folder)
    with Measurement() as block:
        graph = build(data.annotation, data.pert_names)
    return block.figures | told | {"nodes": len(graph.nodes), "edges": graph.n_edges}


def coexpression_graph(folder):
    """Graph over the training cells."""
    import numpy as np

    from gears.graphs import coexpression_graph as build

    data, told, _ = _opened(folder)
    screen = data.screen
    ids = [screen.id_of(condition) for condition in data.split.conditions("train")]
    rows = np.flatnonzero(np.isin(screen.cell_condition, ids))
    with Measurement() as block:
        graph = build(screen.cells, screen.gene_names, rows=rows)
    return block.figures | told | {"cells": len(rows), "edges": graph.n_edges}


def _initialised(folder):
    _, told, _ = _opened(folder)
    model = HELD["model"]
    model.model_initialize(hidden_size=64)  # graphs are made here, or read where they were made before
    return model, told


def prior(folder):
    """Fit the prior to the training conditions."""
    data, told, _ = _opened(folder)
    start = cpu_seconds()
    import scipy.optimize  # noqa: F401  (a package of the fit; imports are a line of their own)

    from gears.priors._source import fit_to

    told["import_s"] += cpu_seconds() - start
    conditions = [condition for condition in data.split.conditions("train") if not condition.is_control]
    with Measurement() as block:
        fit_to(data, conditions)
    return block.figures | told | {"conditions": len(conditions)}


def network_step(folder, steps=(20, 100)):
    """One step over moments: what a longer run costs beyond a shorter one, by the number of steps."""
    model, told = _initialised(folder)
    seconds, how = [], {"objective": "moments", "prior": None, "batch_size": 32, "evaluate_test": False}
    for n in steps:
        with Measurement() as block:
            model.train(steps=n, verbose=False, **how)
        seconds.append(block.figures["cpu_s"])
    return block.figures | told | {"cpu_s": (seconds[1] - seconds[0]) / (steps[1] - steps[0])}


def prediction(folder):
    """Predict all perturbed conditions of the screen by the network."""
    model, told = _initialised(folder)
    model.train(steps=1, objective="moments", prior=None, evaluate_test=False, verbose=False)
    conditions = [list(one.genes) for one in model.pert_data.screen.conditions if not one.is_control]
    with Measurement() as block:
        model.predict(conditions)
    return block.figures | told | {"conditions": len(conditions)}


# --- the jobs -------------------------------------------------------------------------------------


def measured(folder, small, *processes):
    """Label and figures of each stage (label, function, arguments); each list has its own process, unless `small`."""
    for stages in [list(itertools.chain(*processes))] if small else processes:
        with Side(__file__, folder) as side:
            for label, stage, arguments in stages:
                yield label, side.ask(stage, **arguments)


def first_stages(folder, options):
    """Simulating and preparing, and where the prepared screen then is."""
    path, prepared = str(folder / "screen.h5ad"), str(folder / "prepared" / "screen")
    made = [("simulate", "simulate", {"path": path, "simulation": options})]
    return prepared, made, [("prepare", "prepare", {"path": path, "folder": prepared})]


def scale(
    axes: tuple[str, ...] = ("cells",),
    sizes: tuple[int, ...] | None = None,
    epochs: int = 20,
    scratch: Path | None = None,
    small: bool = False,
) -> Iterator[Result]:
    """One number grows, the others stay; `sizes` instead of the axis's own, `scratch` is where screens are made."""
    rows, results = [], []
    for axis in axes:
        for number in sizes or (SMALL_AXES if small else AXES)[axis]:
            size = (SMALL_BASE if small else BASE) | {axis: number}
            if axis == "conditions":  # enough cells for each
                size["cells"] = max(size["cells"], 10 * number)
            with tempfile.TemporaryDirectory(prefix="gears-scale-", dir=scratch) as name:
                prepared, *made = first_stages(Path(name), simulation(**size))
                how = {"objective": "moments", "prior": None, "epochs": epochs}
                trained = [("setup", "setup", {"folder": prepared}), ("epochs", "train", how)]
                stages = dict(measured(Path(name), small, *made, trained))
            results.append(size | {"axis": axis, "stages": stages})
            of_prepare, of_epochs = stages["prepare"], stages["epochs"]
            row = {"axis": axis, **size, "prepare, CPU s": of_prepare["cpu_s"]}
            row |= {"prepare, peak MiB": of_prepare["peak_mb"], "epoch, s": of_epochs["epoch_s"]}
            rows.append(row | {"epoch, CPU s": of_epochs["cpu_s"] / epochs, "load": of_epochs["load"]})
            print(rows[-1], flush=True)
            yield Result("Growth", table(rows), {"results": results}, name=f"scale-{'-'.join(axes)}")


def scale_large(
    sizes: tuple[str, ...] = tuple(LARGE), scratch: Path | None = None, small: bool = False
) -> Iterator[Result]:
    """Sizes beyond memory through every stage; *own* memory leaves pages of mapped files out, *peak* counts them."""
    rows, results = [], {}
    for name in sizes:
        size = SMALL_LARGE if small else LARGE[name]
        with tempfile.TemporaryDirectory(prefix="gears-scale-", dir=scratch) as folder:
            prepared, *made = first_stages(Path(folder), simulation(**size))
            # nine tenths of the conditions train, a tenth validates
            again = ("open, graphs", "setup", {"folder": prepared, "split": "no_test"})
            target = str(Path(folder) / "predicted.h5ad")
            default = [again, ("train by default", "train", {}), ("predict", "predict", {"path": target})]
            others = [[again, (f"train, {label}", "train", how)] for label, how in TRAINED[name].items()]
            for label, figures in measured(Path(folder), small, *made, default, *others):
                results.setdefault(name, size | {"stages": {}})["stages"][label] = figures
                row = {key: f"{size[key]:,}" for key in ("cells", "conditions", "genes")}
                row |= {"stage": label, "s": figures["wall_s"], "CPU s": figures["cpu_s"]}
                row |= {"peak MiB, mapped files counted": figures["peak_mb"], "peak MiB, own": figures["own_mb"]}
                rows.append(row | {"load": figures["load"]})
                print(rows[-1], flush=True)
                yield Result("Sizes beyond memory", table(rows), {"sizes": results}, name="scale-large")


def stages(scratch: Path | None = None, small: bool = False) -> Iterator[Result]:
    """Every stage in a process of its own; a network step is one of 32 conditions, hidden size 64."""
    rows, results = [], {}
    names = ("load", "go_graph", "coexpression_graph", "prior", "network_step", "prediction")
    with tempfile.TemporaryDirectory(prefix="gears-scale-", dir=scratch) as folder:
        prepared, *made = first_stages(Path(folder), SMALL_NORMAN if small else NORMAN)
        others = [[(name.replace("_", " "), name, {"folder": prepared})] for name in names]
        for label, figures in measured(Path(folder), small, *made, *others):
            results[label] = figures
            imported = f"{figures['import_s']:.1f}" if "import_s" in figures else "counted"
            row = {"stage": label, "CPU s": figures["cpu_s"], "import, CPU s": imported}
            rows.append(row | {"load": figures["load"]})
            print(rows[-1], flush=True)
    yield Result("Stages at the size of the published Norman screen", table(rows), {"stages": results})
