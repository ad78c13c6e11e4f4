"""The diagram of the front page, for light and dark pages.

python docs/diagram.py      diagram-light.svg and diagram-dark.svg in docs/_static are written again
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.patches import FancyBboxPatch

from gears.plotting import new_figure

STATIC = Path(__file__).parent / "_static"
INK = {"light": ("#1f2328", "#eaf2f8", "#fdeee4"), "dark": ("#e6edf3", "#16324a", "#4a2c16")}
WIDTH, HEIGHT = 2.55, 1.0
# (x, y, title, lines below it, whether it is part of the model)
BOXES = (
    (0.0, 1.35, "Your screen", "Perturb-seq, AnnData:\ncontrol and perturbed cells", False),
    (0.0, 0.0, "Knowledge of genes", "GO, co-expression,\nother screens, your own", False),
    (3.3, 1.35, "Prior", "a Gaussian process:\nseconds, no tuning", True),
    (3.3, 0.0, "Correction", "a small network, or GEARS,\nonly where it helps", True),
    (6.6, 0.675, "Change of every gene", "with an interval, for one,\ntwo or more perturbations", False),
)
ARROWS = ((0, 2), (0, 3), (1, 2), (1, 3), (2, 4), (3, 4))


def draw(ink: str, data: str, model: str) -> Any:
    """Boxes from data to prediction on a transparent ground."""
    figure = new_figure(9.4, 2.5)
    axis = figure.subplots()
    for x, y, title, text, is_model in BOXES:
        box = FancyBboxPatch(
            (x, y), WIDTH, HEIGHT, "round,pad=0,rounding_size=.1", facecolor=model if is_model else data, edgecolor=ink
        )
        axis.add_patch(box)
        axis.text(x + WIDTH / 2, y + 0.76, title, ha="center", va="center", color=ink, fontsize=11.5, weight="bold")
        axis.text(x + WIDTH / 2, y + 0.34, text, ha="center", va="center", color=ink, fontsize=10)
    for start, end in ARROWS:
        tail = (BOXES[start][0] + WIDTH, BOXES[start][1] + HEIGHT / 2)
        head = (BOXES[end][0], BOXES[end][1] + HEIGHT / 2)
        axis.annotate("", head, tail, arrowprops={"arrowstyle": "-|>", "color": ink, "shrinkA": 2, "shrinkB": 2})
    axis.set(xlim=(-0.1, 6.6 + WIDTH + 0.1), ylim=(-0.1, 2.45), aspect="equal")
    axis.set_axis_off()
    return figure


if __name__ == "__main__":
    mpl.rcParams["svg.hashsalt"] = "gears"
    for theme, colours in INK.items():
        draw(*colours).savefig(STATIC / f"diagram-{theme}.svg", transparent=True, metadata={"Date": None})
