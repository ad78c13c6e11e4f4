"""How seconds and memory grow with cells, conditions and genes.

Each size is simulated into a file chunk by chunk (removed afterwards) and worked on in
processes of its own: the pass over the cells, the whole preparation, and training epochs
of the moments objective.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent))

from measuring import command, commit, machine
from side import Side

HERE = Path(__file__).resolve().parent
CONDITIONS, GENES, CELLS = 100, 2000, 10_000
AXES = {
    "cells": (10_000, 100_000, 1_000_000),
    "conditions": (100, 1000, 10_000),
    "genes": (1000, 5000, 10_000),
}
QUICK = {"cells": (1000, 5000), "conditions": (20, 100), "genes": (100, 300)}
# molecules per gene and cell: about one value in six is not zero, as in screens of this many genes
COUNTS_PER_GENE = 0.2


def simulation(axis, size, quick=False):
    """Options of the simulator: one number is `size`, the others stay."""
    numbers = {"cells": CELLS, "conditions": CONDITIONS, "genes": GENES}
    if quick:
        numbers = {"cells": 1000, "conditions": 20, "genes": 100}
    numbers[axis] = size
    if axis == "conditions":  # enough cells for each
        numbers["cells"] = max(numbers["cells"], 10 * size)
    n_singles = min(numbers["conditions"], 200, numbers["genes"] // 2)
    control = numbers["cells"] // 10
    return {
        "n_genes": numbers["genes"],
        "n_singles": n_singles,
        "n_pairs": numbers["conditions"] - n_singles,
        "cells_per_condition": max(2, (numbers["cells"] - control) // numbers["conditions"]),
        "n_control": control,
        "counts_per_gene": COUNTS_PER_GENE,
    }


def measure(axis, size, options, folder):
    """All stages of one size."""
    given = simulation(axis, size, options.quick)
    path, prepared = str(folder / "screen.h5ad"), str(folder / "prepared" / "screen")
    result = {"axis": axis, "size": size, "simulation": given}

    def fresh(stages):
        with Side(sys.executable, HERE / "scale_side.py", folder, options.threads) as side:
            for stage, arguments in stages:
                result[stage] = side.ask(stage, **arguments)

    fresh([("simulate", {"path": path, "simulation": given})])
    fresh([("statistics", {"path": path, "workers": options.workers})])
    if size <= options.most_prepared or axis != "cells":
        fresh([("prepare", {"path": path, "folder": prepared, "workers": options.workers})])
        Path(path).unlink()
        fresh([("setup", {"folder": prepared}), ("epochs", {"n": options.epochs})])
    return result


def shown(result):
    """A line of the table."""
    cells = result["simulation"]
    line = [result["axis"], f"{result['statistics']['cells']:,}", f"{result['statistics']['conditions']:,}"]
    line.append(f"{cells['n_genes']:,}")
    for stage in ("statistics", "prepare"):
        figures = result.get(stage)
        line += [f"{figures['cpu_s']:.1f}", f"{figures['peak_mb']:.0f}"] if figures else ["-", "-"]
    figures = result.get("epochs")
    line += [f"{figures['epoch_s']:.3f}", f"{figures['cpu_s'] / figures['n']:.3f}"] if figures else ["-", "-"]
    line.append(f"{result['statistics']['load']:.1f}")
    return "| " + " | ".join(line) + " |"


HEADER = [
    "| axis | cells | conditions | genes | pass, CPU s | pass, peak MiB | prepare, CPU s | prepare, peak MiB "
    "| epoch, s | epoch, CPU s | load |",
    "|---|" + "---:|" * 10,
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--axis", nargs="+", choices=sorted(AXES), default=["cells"])
    parser.add_argument("--sizes", nargs="+", type=int, help="instead of the axis's own")
    parser.add_argument(
        "--most-prepared", type=int, default=1_000_000, help="cells up to which all is prepared"
    )
    parser.add_argument("--workers", type=int, default=1, help="processes of the pass")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="small sizes, seconds")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    options = parser.parse_args()
    results, lines = [], list(HEADER)
    print("\n".join(HEADER), flush=True)
    for axis in options.axis:
        for size in options.sizes or (QUICK if options.quick else AXES)[axis]:
            folder = Path(tempfile.mkdtemp(prefix="gears-scale-"))
            try:
                results.append(measure(axis, size, options, folder))
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            lines.append(shown(results[-1]))
            print(lines[-1], flush=True)
            write(results, lines, options)


def write(results, lines, options):
    """JSON and Markdown, after each size."""
    options.results.mkdir(parents=True, exist_ok=True)
    place = machine() | {"threads": options.threads, "workers": options.workers}
    record = {"machine": place, "commit": commit(HERE.parent), "command": command(), "results": results}
    base = options.results / ("scale-quick" if options.quick else f"scale-{'-'.join(options.axis)}")
    base.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    head = f"{place['cpu']}, {place['cores']} cores, commit {record['commit']}, `{record['command']}`"
    base.with_suffix(".md").write_text("\n".join(["# Growth", "", head, "", *lines]) + "\n")


if __name__ == "__main__":
    main()
