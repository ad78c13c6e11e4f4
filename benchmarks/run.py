"""Run a benchmark: ``run.py [NAME] [its options]``; the names are in BENCHMARKS."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

BENCHMARKS = ("vs_cell_gears", "scale", "prediction", "scaling", "gpu_check", "memory", "golden")


def chosen(given):
    """Benchmark and its options; the comparison with cell-gears where none is named."""
    if given and not given[0].startswith("-"):
        if given[0] not in BENCHMARKS:
            msg = f"no benchmark {given[0]!r}; there are {', '.join(BENCHMARKS)}"
            raise SystemExit(msg)
        return given[0], given[1:]
    return BENCHMARKS[0], given


if __name__ == "__main__":
    name, rest = chosen(sys.argv[1:])
    script = Path(__file__).resolve().parent / f"{name}.py"
    sys.argv = [str(script), *rest]
    runpy.run_path(str(script), run_name="__main__")
