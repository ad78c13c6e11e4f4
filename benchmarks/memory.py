"""Memory of 1, 2 and 4 workers that train on one screen.

Proportional set size (a page that k processes share counts 1/k in each), libraries left out,
summed over workers, after each has read every cell and trained an epoch of the moments objective.
What the screen costs is the difference from a screen of the same genes and conditions with
hardly any cells.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent))

from measuring import command, commit, machine, pss_mb

HERE = Path(__file__).resolve().parent
WORKERS = (1, 2, 4)
LIMIT = 1.3
CONTROL, SINGLES, PAIRS = 6000, 150, 50


def sizes(cells, genes, *, empty=False):
    """Options of the simulator."""
    per_condition = 2 if empty else (cells - CONTROL) // (SINGLES + PAIRS)
    return {
        "n_genes": genes,
        "n_singles": SINGLES,
        "n_pairs": PAIRS,
        "cells_per_condition": per_condition,
        "n_control": 40 if empty else CONTROL,
        "counts_per_gene": 0.2,
        "seed": 1,
    }


def work(rank, world_size, folder, name):
    """Read every cell and train an epoch; returns the sum over workers, MiB."""
    import torch

    from gears import GEARS, PertData
    from gears.distributed import GroupReducer, barrier

    data = PertData(folder, default_pert_graph=False)
    data.load(name)
    data.prepare_split("simulation", seed=1)
    loader = data.get_dataloader_distributed(32, world_size=1, rank=0, num_workers=0)["train_loader"]
    read = sum(float(batch.y_BG.sum()) for batch in loader)
    model = GEARS(data, device="cpu")
    model.model_initialize(hidden_size=8)
    data.dataloader = {}
    model.train(objective="moments", epochs=1, batch_size=8, evaluate_test=False, verbose=False)
    assert read > 0
    barrier()
    own = torch.tensor([pss_mb()])
    barrier()  # nobody leaves before all have measured: leaving would raise the others' share
    return float(GroupReducer().sum(own))


def prepared(folder, name, options):
    """Simulate and prepare a screen."""
    import anndata

    from gears.data.screen.prepare import prepare_screen
    from gears.simulate import simulate_to_h5ad

    path = folder / "simulated.h5ad"
    simulate_to_h5ad(path, overwrite=True, **options)
    backed = anndata.read_h5ad(path, backed="r")
    prepare_screen(backed, folder / name)
    backed.file.close()
    path.unlink()
    return sum(file.stat().st_size for file in (folder / name).rglob("*.npy")) / 2**20


def measure(options):
    """All figures of the table."""
    from gears.distributed import launch

    figures = {}
    with tempfile.TemporaryDirectory(prefix="gears-memory-") as name:
        folder = Path(name)
        stored = prepared(folder, "screen", sizes(options.cells, options.genes))
        prepared(folder, "empty", sizes(options.cells, options.genes, empty=True))
        for workers in WORKERS:
            row = {}
            for screen in ("screen", "empty"):
                start = time.perf_counter()
                row[screen] = launch(work, ["cpu"] * workers, (name, screen), backend="gloo")
                row[f"{screen}_s"] = time.perf_counter() - start
            row["cost"] = row["screen"] - row["empty"]
            figures[workers] = row
            print(workers, {key: round(value) for key, value in row.items()}, flush=True)
    return stored, figures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=60_000)
    parser.add_argument("--genes", type=int, default=5_000)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    options = parser.parse_args()
    stored, figures = measure(options)
    one = figures[1]["cost"]
    lines = [
        "| workers | with the screen, MiB | with an empty one, MiB | the screen costs, MiB | times one worker |"
    ]
    lines.append("|---:|---:|---:|---:|---:|")
    for workers, row in figures.items():
        numbers = f"{row['screen']:.0f} | {row['empty']:.0f} | {row['cost']:.0f}"
        lines.append(f"| {workers} | {numbers} | {row['cost'] / one:.2f} |")
    worst = max(row["cost"] for row in figures.values()) / one
    verdict = f"Allowed: {LIMIT} times one worker; found at most {worst:.2f}."
    place = machine()
    head = f"{place['cpu']}, {place['cores']} cores, commit {commit(HERE.parent)}, `{command()}`"
    what = f"{options.cells:,} cells x {options.genes:,} genes, {stored:.0f} MiB of arrays on disk."
    text = "\n".join(["# Memory of several workers", "", head, "", what, "", *lines, "", verdict, ""])
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "memory.md").write_text(text)
    record = {"machine": place, "stored_mb": stored, "workers": figures}
    (options.results / "memory.json").write_text(json.dumps(record, indent=1) + "\n")
    print(text)
    raise SystemExit(worst > LIMIT)


if __name__ == "__main__":
    main()
