"""How training scales: epoch time, speed-up, efficiency and share of communication for 1..N workers.

    python benchmarks/scaling.py                         all GPUs, or one to as many CPU workers as cores
    python benchmarks/scaling.py --device cpu --workers 1 2
    python benchmarks/scaling.py --batches 32 128 512    table of workers x batch
    python benchmarks/scaling.py --device cpu --size norman --objectives moments --apart

``--apart`` also trains W times on one worker at the same time, each with its part of the batch and without a word to
the others: no division of the batch is faster on that machine, whose cores share caches and memory.

The global batch stays the same (strong scaling), so every number of workers trains the same model.
The first epoch (start-up, warm caches) is excluded; an epoch's time is the median of the others.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent))

from measuring import command, commit, machine

HERE = Path(__file__).resolve().parent
SIZES = {
    "small": {"n_genes": 500, "n_singles": 30, "n_pairs": 20, "cells_per_condition": 40, "n_control": 400},
    "norman": {
        "n_genes": 5045, "n_singles": 131, "n_pairs": 152, "cells_per_condition": 297, "n_control": 7000,
    },
    "tiny": {"n_genes": 50, "n_singles": 10, "n_pairs": 8, "cells_per_condition": 20, "n_control": 60},
}  # fmt: skip
GLOBAL_BATCH = {"small": 96, "norman": 512, "tiny": 24}
CONDITIONS = 32  # of a step over moments
PARTS = ("data", "compute", "communication", "evaluation")


def measure(folder, save_path, batch, objective, workers, options):
    """Train with a number of workers and a global batch; the median epoch and where its time went."""
    from gears import train_multi_gpu

    arguments = {
        "save_path": save_path, "epochs": options.epochs, "objective": objective, "verbose": False,
        "eval_every": options.epochs, "model_config": {"hidden_size": options.hidden_size},
    }  # fmt: skip
    arguments["batch_size"] = batch // workers
    result = train_multi_gpu(
        folder, "screen", {"split": "simulation", "seed": 1}, arguments,
        n_gpus=workers, device=options.device, data_config={"default_pert_graph": False},
    )  # fmt: skip
    timed = [record["seconds"] for record in result.history[1:-1]] or [result.history[-1]["seconds"]]
    figures = {name: statistics.median(seconds[name] for seconds in timed) for name in ("total", *PARTS)}
    (rate,) = (name for name in timed[0] if name.endswith("_per_second"))
    return {
        "objective": objective, "batch": batch, "workers": workers, "device": result.devices[0].split(":")[0],
        "epoch_s": figures["total"], "rate": statistics.median(seconds[rate] for seconds in timed),
        "rate_unit": rate, "load": os.getloadavg()[0], "train_loss": result.history[-1]["train_loss"],
        **{name: figures[name] / figures["total"] for name in PARTS},
    }  # fmt: skip


def apart(folder, place, batch, objective, workers, options):
    """Cells or conditions a second of `workers` trainings at once, together, each alone with its part of the batch."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        runs = [
            pool.submit(measure, folder, f"{place}-apart-{n}", batch // workers, objective, 1, options)
            for n in range(workers)
        ]
        return sum(run.result()["rate"] for run in runs)


def with_speedup(rows):
    """Add speed-up and efficiency against the smallest number of workers of the same objective and batch."""
    first = {}
    for row in rows:
        base = first.setdefault((row["objective"], row["batch"]), row)
        speedup = row["rate"] / base["rate"]
        if "apart_rate" in row:
            row["ceiling"] = row["apart_rate"] / base["rate"]
        row |= {"speedup": speedup, "efficiency": speedup * base["workers"] / row["workers"]}
    return rows


HEADER = [
    "| objective | batch | workers | epoch, s | per second | speed-up | trained apart | efficiency "
    "| data | compute | communication | load | loss |",
    "|---|" + "---:|" * 12,
]


def shown(row):
    """A line of the table."""
    unit = row["rate_unit"].split("_")[0]
    ceiling = f"{row['ceiling']:.2f}" if "ceiling" in row else ""
    return (
        f"| {row['objective']} | {row['batch']} | {row['workers']} | {row['epoch_s']:.3f} | {row['rate']:.0f} {unit} | "
        f"{row['speedup']:.2f} | {ceiling} | {row['efficiency']:.0%} | {row['data']:.0%} | {row['compute']:.0%} | "
        f"{row['communication']:.0%} | {row['load']:.1f} | {row['train_loss']:.6f} |"
    )


def plot(rows, path):
    """Speed-up against workers, and where the time of an epoch goes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    kinds = list(dict.fromkeys((row["objective"], row["batch"]) for row in rows))
    for kind in kinds:
        own = [row for row in rows if (row["objective"], row["batch"]) == kind]
        label = f"{kind[1]} {kind[0] if kind[0] == 'cells' else 'conditions'}"
        left.plot([r["workers"] for r in own], [r["speedup"] for r in own], marker="o", label=label)
    most = max(row["workers"] for row in rows)
    left.plot([1, most], [1, most], color="grey", linestyle=":", label="ideal")
    left.set(xlabel="workers", ylabel="speed-up", xticks=sorted({row["workers"] for row in rows}))
    left.legend(frameon=False)
    names = [f"{row['objective']}\n{row['batch']}\n{row['workers']}" for row in rows]
    bottom = [0.0] * len(rows)
    for part in PARTS:
        heights = [row[part] * row["epoch_s"] for row in rows]
        right.bar(names, heights, bottom=bottom, label=part)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    right.set(ylabel="seconds an epoch")
    right.legend(frameon=False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), help="GPUs where there are any")
    parser.add_argument("--workers", type=int, nargs="+", help="numbers of workers; 1, 2, 4, ... if omitted")
    parser.add_argument("--size", choices=sorted(SIZES), default="small")
    parser.add_argument("--objectives", nargs="+", choices=("cells", "moments"), default=["cells", "moments"])
    parser.add_argument(
        "--batches", type=int, nargs="+", help="cells, or conditions, of a step over all workers"
    )
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--hidden-size", type=int, default=64)
    parser.add_argument("--apart", action="store_true", help="also what the machine allows at most")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    options = parser.parse_args(arguments)
    import torch

    from gears.distributed.doctor import cores
    from gears.simulate import simulate_to_h5ad

    if options.device is None:
        options.device = "cuda" if torch.cuda.is_available() else "cpu"
    most = torch.cuda.device_count() if options.device == "cuda" else cores()
    counts = options.workers or [n for n in (1, 2, 4, 8, 16) if n <= most]
    rows = []
    with tempfile.TemporaryDirectory(prefix="gears-scaling-") as folder:
        simulate_to_h5ad(Path(folder) / "screen.h5ad", **SIZES[options.size], seed=1)
        for objective in options.objectives:
            default = GLOBAL_BATCH[options.size] if objective == "cells" else CONDITIONS
            for batch, workers in itertools.product(options.batches or [default], counts):
                place = f"{folder}/{objective}-{batch}-{workers}"
                rows.append(measure(folder, place, batch, objective, workers, options))
                if options.apart and workers > 1:
                    rows[-1]["apart_rate"] = apart(folder, place, batch, objective, workers, options)
                print(shown(with_speedup(rows)[-1]), flush=True)
    write(with_speedup(rows), options)


def write(rows, options):
    """JSON, Markdown and plot."""
    import torch

    options.results.mkdir(parents=True, exist_ok=True)
    cards = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    place = machine() | {"torch": torch.__version__, "cards": cards}
    record = {
        "machine": place, "commit": commit(HERE.parent), "command": command(), "size": options.size,
        "simulation": SIZES[options.size], "rows": rows,
    }  # fmt: skip
    base = options.results / f"scaling-{options.device}-{options.size}"
    base.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    what = ", ".join(cards) or f"{place['cpu']}, {place['cores']} cores"
    head = f"{what}, torch {place['torch']}, commit {record['commit']}, `{record['command']}`"
    lines = ["# Workers", "", head, "", *HEADER, *map(shown, rows), "", f"![plot]({base.name}.png)"]
    base.with_suffix(".md").write_text("\n".join(lines) + "\n")
    plot(rows, base.with_suffix(".png"))


# Worker processes import this file again: what starts them must be guarded.
if __name__ == "__main__":
    main()
