"""The figure of a real screen on the front page: measured and predicted changes of held-out pairs, gene by gene.

python docs/real_screen.py SCREEN.h5ad      real_screen.png in docs/_static is written again
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd

from gears import GEARS, Condition, PertData
from gears.data.splits import folds
from gears.plotting import new_figure
from gears.plotting._style import BLUE, ORANGE

STATIC = Path(__file__).parent / "_static"
N_GENES = 12


def held_out_pairs(path: Path) -> dict[str, pd.DataFrame]:
    """Of each pair, by a model that has not seen it: measured and predicted change and s.d. of every gene."""
    adata = anndata.read_h5ad(path)
    cells_of = adata.obs.groupby("condition", observed=True).indices
    means = {label: np.asarray(adata.X[cells].mean(0)).ravel() for label, cells in cells_of.items()}
    mean_of = pd.DataFrame(means, index=adata.var["gene_name"])
    pert_data = PertData(tempfile.mkdtemp())
    pert_data.load(data_path=path)
    pairs = {}
    for split in folds(pert_data.screen, n_folds=5, seed=1):
        pert_data.use_split(split)
        model = GEARS(pert_data, device="cpu")
        model.model_initialize()
        model.train(verbose=False, evaluate_test=False)
        for condition in split.conditions("test"):
            if len(condition.genes) < 2:
                continue
            label = next(name for name in mean_of if Condition.parse(name) == condition)
            predictions = model.predict([condition])
            pairs[label] = pd.DataFrame(
                {
                    "measured": mean_of[label] - mean_of["ctrl"],
                    "predicted": predictions.delta_UG[0],
                    "sd": predictions.sd[0],
                },
                index=mean_of.index,
            )
    return pairs


def draw(pairs: dict[str, pd.DataFrame]) -> Any:
    """The best, the median and the worst predicted pair; the genes of each that change most in the measurement."""
    quality = {label: frame["measured"].corr(frame["predicted"]) for label, frame in pairs.items()}
    ranked = sorted(quality, key=lambda label: -quality[label])
    shown = {"best of": ranked[0], "median of": ranked[len(ranked) // 2], "worst of": ranked[-1]}
    figure = new_figure(9.6, 3.9)
    axes = figure.subplots(1, len(shown))
    for axis, (rank, label) in zip(axes, shown.items(), strict=True):
        frame = pairs[label]
        top = frame.loc[frame["measured"].abs().nlargest(N_GENES).index].sort_values("measured")
        height = np.arange(len(top))
        style = {"fmt": "o", "color": BLUE, "capsize": 2, "label": "predicted, 90 % interval"}
        axis.errorbar(top["predicted"], height, xerr=1.645 * top["sd"], **style)
        axis.plot(top["measured"], height, "D", color=ORANGE, label="measured")
        axis.axvline(0, color="0.7", linewidth=0.8, zorder=0)
        axis.set_yticks(height, top.index, fontsize=9)
        axis.tick_params(axis="x", labelsize=9)
        axis.set_title(f"{label.replace('+', ' + ')}\n{rank} {len(pairs)} pairs, r = {quality[label]:.2f}", fontsize=10)
        axis.set_xlabel("change of mean log expression", fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(fontsize=9, loc="lower right", frameon=False)
    return figure


if __name__ == "__main__":
    draw(held_out_pairs(Path(sys.argv[1]))).savefig(STATIC / "real_screen.png", dpi=150)
