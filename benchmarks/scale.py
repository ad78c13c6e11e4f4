"""How seconds and memory grow with cells, conditions and genes.

Each size is simulated into a file chunk by chunk (removed afterwards) and worked on in
processes of its own: the pass over the cells, the whole preparation, and training epochs
of the moments objective. ``--large`` takes sizes that are far beyond memory's through everything: preparing,
training by default (with the prior), over moments and over cells, prediction.
"""

from __future__ import annotations

import argparse
import contextlib
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
LARGE = {
    "cells": {"cells": 1_000_000, "conditions": 100, "genes": 5000, "singles": 100},
    "conditions": {"cells": 100_000, "conditions": 10_000, "genes": 5000, "singles": 2500},
    "genes": {"cells": 5000, "conditions": 2000, "genes": 20_000, "singles": 1000},
}
# what each is trained with beside the default; an epoch of as many conditions and genes takes a minute
TRAINED = {
    "cells": {
        "moments": {"objective": "moments", "prior": None, "epochs": 20},
        "cells": {"objective": "cells", "prior": None, "steps": 200},
    },
    "conditions": {"moments": {"objective": "moments", "prior": None, "epochs": 1}},
    "genes": {"moments": {"objective": "moments", "prior": None, "epochs": 1}},
}
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


def large_simulation(size):
    """Options of the simulator for one of :data:`LARGE`."""
    control = size["cells"] // 10
    return {
        "n_genes": size["genes"],
        "n_singles": size["singles"],
        "n_pairs": size["conditions"] - size["singles"],
        "cells_per_condition": max(2, (size["cells"] - control) // size["conditions"]),
        "n_control": control,
        "counts_per_gene": COUNTS_PER_GENE,
    }


def measure_large(name, size, options, folder, keep):
    """Every stage of one of :data:`LARGE`, each training in a process of its own; `keep` gets what there is so far."""
    path, prepared = str(folder / "screen.h5ad"), str(folder / "prepared" / "screen")
    given = large_simulation(size)
    result = {"axis": name, **size, "simulation": given, "stages": {}}

    def fresh(*stages):
        with Side(sys.executable, HERE / "scale_side.py", folder, options.threads) as side:
            for label, stage, arguments in stages:
                figures = result["stages"][label] = side.ask(stage, **arguments)
                print(large_line(result, label, figures), flush=True)
                keep(result)

    fresh(("simulate", "simulate", {"path": path, "simulation": given}))
    fresh(("prepare", "prepare", {"path": path, "folder": prepared, "workers": options.workers}))
    Path(path).unlink()
    # nine tenths of the conditions train, a tenth validates
    opened = ("open, graphs", "setup", {"folder": prepared, "split": "no_test"})
    fresh(
        opened,
        ("train by default", "train", {}),
        ("predict", "predict", {"path": str(folder / "predicted.h5ad")}),
    )
    again = ("open again", *opened[1:])
    for label, how in TRAINED[name].items():
        fresh(again, (f"train, {label}", "train", how))
    return result


def large_line(result, label, figures):
    """A line of the table of large sizes."""
    size = [f"{result[name]:,}" for name in ("cells", "conditions", "genes")]
    seconds = [f"{figures['wall_s']:.0f}", f"{figures['cpu_s']:.0f}"]
    memory = [f"{figures['peak_mb']:.0f}", f"{figures['own_mb']:.0f}"]
    return "| " + " | ".join([*size, label, *seconds, *memory, f"{figures['load']:.1f}"]) + " |"


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


LARGE_HEADER = [
    "| cells | conditions | genes | stage | s | CPU s | peak MiB, mapped files counted | peak MiB, own | load |",
    "|---:|---:|---:|---|" + "---:|" * 5,
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--axis", nargs="+", choices=sorted(AXES), default=["cells"])
    parser.add_argument("--sizes", nargs="+", type=int, help="instead of the axis's own")
    parser.add_argument(
        "--most-prepared", type=int, default=1_000_000, help="cells up to which all is prepared"
    )
    parser.add_argument("--large", nargs="+", choices=sorted(LARGE), help="instead: sizes beyond memory")
    parser.add_argument("--folder", type=Path, help="where the screens are made (and removed)")
    parser.add_argument("--workers", type=int, default=1, help="processes of the pass")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="small sizes, seconds")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    options = parser.parse_args()
    if options.large:
        return take_large(options)
    results, lines = [], list(HEADER)
    print("\n".join(HEADER), flush=True)
    for axis in options.axis:
        for size in options.sizes or (QUICK if options.quick else AXES)[axis]:
            with scratch(options) as folder:
                results.append(measure(axis, size, options, folder))
            lines.append(shown(results[-1]))
            print(lines[-1], flush=True)
            write(results, lines, options)


def take_large(options):
    """Measure sizes beyond memory; what was kept of the others stays."""
    print("\n".join(LARGE_HEADER), flush=True)
    base = options.results / ("scale-large-quick" if options.quick else "scale-large")
    kept = json.loads(base.with_suffix(".json").read_text()) if base.with_suffix(".json").exists() else {}
    for name in options.large:
        size = (
            {key: max(20, value // 200) for key, value in LARGE[name].items()}
            if options.quick
            else LARGE[name]
        )
        place = machine() | {"threads": options.threads, "workers": options.workers}
        made = {"machine": place, "commit": commit(HERE.parent), "command": command()}
        options.results.mkdir(parents=True, exist_ok=True)

        def keep(result, name=name, made=made):
            kept[name] = made | result
            base.with_suffix(".json").write_text(json.dumps(kept, indent=1) + "\n")
            base.with_suffix(".md").write_text(large_page(kept))

        with scratch(options) as folder:
            measure_large(name, size, options, folder, keep)


def large_page(kept):
    """Markdown of all large sizes."""
    lines = ["# Sizes beyond memory", ""]
    for name, record in kept.items():
        place = record["machine"]
        lines += [
            f"{name}: {place['cpu']}, {place['cores']} cores, commit {record['commit']}, `{record['command']}`",
            "",
        ]
    lines += LARGE_HEADER
    for record in kept.values():
        lines += [large_line(record, label, figures) for label, figures in record["stages"].items()]
    return "\n".join(lines) + "\n"


@contextlib.contextmanager
def scratch(options):
    """A folder for one screen, removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="gears-scale-", dir=options.folder))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
