"""The figure of the page about the prior: what each kernel says of some genes, and the mix that the evidence chose.

python docs/kernels.py                kernels.png in docs/_static is written again
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from gears import GEARS, PertData, simulated_screen
from gears.core._numbers import unit_rows
from gears.graphs._go import jaccard
from gears.graphs._knowledge import KNOWLEDGE, knowledge_similarity
from gears.graphs._profiles import control_profiles
from gears.plotting import new_figure, save_figure
from gears.plotting._style import BLUE

STATIC = Path(__file__).parent / "_static"
N_GROUPS, OF_GROUP = 4, 3
MOST_LETTERS = 9  # of a name beside the figure


def similarities(pert_data: PertData, genes: list[str]) -> dict[str, np.ndarray]:
    """Similarity of the genes by each source of the prior, (genes, genes) each; `genes` are measured."""
    rows = pert_data.annotation.rows(genes)
    columns = [pert_data.screen.gene_names.index(gene) for gene in genes]
    profile_AK = unit_rows(np.nan_to_num(control_profiles(pert_data.screen)[columns]))
    return {
        "GO": jaccard(rows, rows),
        "co-expression": profile_AK @ profile_AK.T,
        **{source: knowledge_similarity(source, genes, genes) for source in KNOWLEDGE},
    }


def some_genes(mix_TT: np.ndarray) -> list[int]:
    """Positions of the genes of a few groups that are most alike, group by group."""
    alike_TT = mix_TT - 2 * np.eye(len(mix_TT))
    chosen: list[int] = []
    while len(chosen) < N_GROUPS * OF_GROUP:
        alike_TT[:, chosen] = alike_TT[chosen] = -2
        nearest_TN = np.argsort(-alike_TT, axis=1, kind="stable")[:, : OF_GROUP - 1]
        centre = int(np.take_along_axis(alike_TT, nearest_TN, axis=1).sum(axis=1).argmax())
        chosen += [centre, *nearest_TN[centre].tolist()]
    return chosen


def draw(parts: dict[str, np.ndarray], weights: dict[str, float], genes: list[str]) -> Any:
    """A matrix for each kernel and for the mix, with the weights that the evidence gives them."""
    figure = new_figure(8, 4.5)
    panels = figure.subplots(2, 4)
    for panel in panels.flat[len(parts) : -1]:
        panel.set_axis_off()
    for panel, (name, values) in zip(panels.flat, parts.items(), strict=False):
        image = panel.imshow(values, cmap="Blues", vmin=0, vmax=1)
        panel.set_title(name, fontsize=9)
        panel.set_xticks([])
        panel.set_yticks([])
    for panel in panels[:, 0]:
        panel.set_yticks(range(len(genes)), genes, fontsize=7.5)
    bars = panels.flat[-1]
    bars.barh(list(weights), [100 * weight / sum(weights.values()) for weight in weights.values()], color=BLUE)
    bars.invert_yaxis()
    bars.yaxis.tick_right()
    bars.set_box_aspect(1)
    bars.set_title("weights, % of all", fontsize=9)
    for side in ("top", "left"):
        bars.spines[side].set_visible(False)
    bar = figure.colorbar(image, ax=panels, location="bottom", shrink=0.3, aspect=30, pad=0.02)
    bar.set_label("similarity of two genes", fontsize=8)
    for axes in (bars, bar.ax):
        axes.tick_params(labelsize=7.5)
    return figure


def main(folder: Path) -> None:
    """Fit the prior to a simulated screen, and draw its kernels."""
    adata, _ = simulated_screen(
        n_genes=300,
        n_singles=80,
        n_pairs=40,
        cells_per_condition=40,
        n_control=800,
        interaction_share=0.0,
        n_modules=20,
        module_share=0.5,
        seed=2,
    )
    with tempfile.TemporaryDirectory() as place:
        pert_data = PertData(place, default_pert_graph=False)
        pert_data.new_data_process("simulated", adata)
        pert_data.prepare_split("no_test", seed=1)
        model = GEARS(pert_data, device="cpu")
        model.model_initialize(hidden_size=8)
        model.train(epochs=0, verbose=False)
        weights = model.parts.prior.report["weights"]
        measured = set(pert_data.screen.gene_names)
        genes = sorted({gene for c in pert_data.screen.conditions for gene in c.genes} & measured)
        genes = [gene for gene in genes if len(gene) < MOST_LETTERS]
        parts = similarities(pert_data, genes)
    mixed = {name: weights[name] for name in parts}
    mix_TT = sum(weight * parts[name] for name, weight in mixed.items()) / sum(mixed.values())
    rows = some_genes(mix_TT)
    block = np.ix_(rows, rows)
    shown = {"own": np.eye(len(rows))} | {name: part[block] for name, part in (parts | {"mix": mix_TT}).items()}
    figure = draw(shown, weights, [genes[row] for row in rows])
    save_figure(figure, folder / "kernels.png", dpi=130)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else STATIC)
