"""The figure of accuracy on the front page, from the kept results of the benchmark.

python docs/picture.py                accuracy.png in docs/_static is written again
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np

from gears.plotting import new_figure
from gears.plotting._style import BLUE, GREY

STATIC = Path(__file__).parent / "_static"
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
ROW = re.compile(
    r"^\| (?P<screen>[^|]+) \| relative_error \| (?P<model>[\d.]+) \| \S+ (?P<baseline>[\d.]+) \|", re.MULTILINE
)


def main(folder: Path) -> None:
    """Draw what share of the error of the training mean the model and the best baseline of each screen take away."""
    text = "".join((RESULTS / f"accuracy_{name}.md").read_text(encoding="utf-8") for name in ("prior", "real"))
    rows = [(row["screen"].removeprefix("simulated: "), row["model"], row["baseline"]) for row in ROW.finditer(text)]
    rows.sort(key=lambda row: -float(row[1]))
    names = [name for name, *_ in rows]
    height, values = np.arange(len(rows)), 1 - np.array([[float(value) for value in row[1:]] for row in rows])
    figure = new_figure(7.4, 0.26 * len(rows) + 1.0)
    axis = figure.subplots()
    axis.hlines(height, values.min(axis=1), values.max(axis=1), color="0.75", linewidth=2)
    axis.plot(values[:, 1], height, "D", color=GREY, label="best baseline of each screen")
    axis.plot(values[:, 0], height, "o", color=BLUE, label="gears")
    axis.axvline(0, color="0.7", linewidth=0.8, zorder=0)
    axis.set_yticks(height, names, fontsize=9)
    axis.tick_params(axis="x", labelsize=9)
    axis.set_xlabel("share of the error of the training mean that is taken away (1: no error)", fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=9, loc="lower right", frameon=False)
    figure.savefig(folder / "accuracy.png", dpi=150)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else STATIC)
