"""CPU seconds of every stage at the size of the published Norman screen, and of draws for the co-expression graph.

Simulated: 87,540 cells, 5,045 genes, 236 perturbed conditions, 20,692 nodes of the perturbation graph. Every stage
runs in a process of its own; importing packages is a line of its own. The graph of all pairs of genes over all
training cells and those of draws alternate, round by round; the second screen has eight cell types and many
zeros, so that many genes go together.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent))

from measuring import command, commit, machine
from scale import scratch
from side import Side

HERE = Path(__file__).resolve().parent
SIZE = {"n_genes": 5045, "n_singles": 105, "n_pairs": 131, "cells_per_condition": 340, "n_control": 7300}
QUICK = {"n_genes": 200, "n_singles": 20, "n_pairs": 10, "cells_per_condition": 20, "n_control": 100}
SCREENS = {
    "default": {},
    "eight types": {"cell_types": 8, "cell_type_effect": 2.0, "counts_per_gene": 0.25, "library_sd": 0.5},
}
DRAWS = (2500, 5000, 10_000)


def measure(options, folder):
    """Stages of the default screen, and draws on both."""
    size = QUICK if options.quick else SIZE
    draws = [draw // 50 for draw in DRAWS] if options.quick else DRAWS
    result = {"simulation": size, "stages": {}, "draws": {}}

    def fresh(stage, **arguments):
        with Side(sys.executable, HERE / "scale_side.py", folder, 1) as side:
            return side.ask(stage, **arguments)

    for name, more in SCREENS.items():
        path, prepared = str(folder / "screen.h5ad"), str(folder / name.replace(" ", "_") / "screen")
        fresh("simulate", path=path, simulation=size | more)
        made = fresh("prepare", path=path, folder=prepared, workers=1, pool_cell_types=True)
        Path(path).unlink()
        if name == "default":
            result["stages"]["prepare"] = made
            for stage in ("load", "go graph", "co-expression graph", "prior", "network step", "prediction"):
                figures = fresh(stage.replace("-", "").replace(" ", "_"), folder=prepared)
                result["stages"][stage] = figures
                print(stage, f"{figures['cpu_s']:.2f}", flush=True)
        rounds = []
        for _ in range(options.rounds):
            one = {"all": fresh("coexpression_graph", folder=prepared, n_drawn=None, keep="all.npz")}
            for draw in draws:
                one[str(draw)] = fresh(
                    "coexpression_graph", folder=prepared, n_drawn=draw, keep=f"{draw}.npz", against="all.npz"
                )
            rounds.append(one)
            print(name, {label: round(figures["cpu_s"], 2) for label, figures in one.items()}, flush=True)
        result["draws"][name] = rounds
    return result


def page(record):
    """Markdown of both tables."""
    place, stages = record["machine"], record["stages"]
    versions = ", ".join(f"{name} {number}" for name, number in stages["load"]["versions"].items())
    lines = [
        "# Stages at the size of the published Norman screen",
        "",
        f"{place['cpu']}, one of {place['cores']} cores, {versions}, commit {record['commit']}, `{record['command']}`",
        "",
        f"Simulated: {json.dumps(record['simulation'])}; {stages['co-expression graph']['cells']:,} training cells.",
        "A network step is 32 conditions over moments, hidden size 64, validation once an epoch included.",
        "",
        "| stage | CPU s | import, CPU s | load |",
        "|---|---:|---:|---:|",
    ]
    for name, figures in stages.items():
        imported = f"{figures['import_s']:.1f}" if "import_s" in figures else "counted"
        lines.append(f"| {name} | {figures['cpu_s']:.2f} | {imported} | {figures['load']:.1f} |")
    lines += [
        "",
        "Co-expression graph, medians of alternating rounds:",
        "",
        "| screen | cells drawn | CPU s | edges | edges kept | other edges | largest difference of a weight |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for screen, rounds in record["draws"].items():
        for label, figures in rounds[-1].items():
            seconds = statistics.median(one[label]["cpu_s"] for one in rounds)
            kept = (
                [f"{figures['kept']:.4f}", f"{figures['other']}", f"{figures['difference']:.1e}"]
                if "kept" in figures
                else ["", "", ""]
            )
            lines.append(
                "| " + " | ".join([screen, label, f"{seconds:.1f}", f"{figures['edges']:,}", *kept]) + " |"
            )
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="where the screens are made (and removed)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a small screen, seconds")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    options = parser.parse_args()
    with scratch(options) as folder:
        made = {"machine": machine(), "commit": commit(HERE.parent), "command": command()}
        record = made | measure(options, folder)
    base = options.results / ("stages-quick" if options.quick else "stages")
    options.results.mkdir(parents=True, exist_ok=True)
    base.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    base.with_suffix(".md").write_text(page(record))
    print(page(record))


if __name__ == "__main__":
    main()
