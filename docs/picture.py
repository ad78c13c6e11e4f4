"""The picture of the README and of the first page: an unseen pair, and the model against the baselines.

python docs/picture.py                docs/_static/picture.png is written again
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

from gears import GEARS, Condition, PertData, simulated_screen
from gears.evaluation import Truth, condition_metrics, difference_table, make_baseline
from gears.evaluation.truth import dense_rows
from gears.plotting import gene_changes, method_differences, new_figure, save_figure

PICTURE = Path(__file__).parent / "_static" / "picture.png"


def main(path: Path) -> None:
    adata, _ = simulated_screen(
        n_genes=200,
        n_singles=36,
        n_pairs=36,
        cells_per_condition=40,
        n_control=300,
        effect_size=0.8,
        target_effect=-0.8,
        interaction_share=0.4,
        seed=4,
    )
    pert_data = PertData(tempfile.mkdtemp(), default_pert_graph=False)
    pert_data.new_data_process("simulated", adata)
    pert_data.prepare_split(split="simulation", seed=1)
    model = GEARS(pert_data, device="cpu")
    model.model_initialize(hidden_size=32)
    model.train(epochs=10, verbose=False)

    screen, split = pert_data.screen, pert_data.split
    known = {gene for condition in split.conditions("train") for gene in condition.genes}
    tested = [c for c in split.conditions("test") if len(c) == 2 and len(set(c.genes) & known) == 1]
    pair = median_pair(model, Truth.of(screen, tested))
    truth = Truth.of(screen, [pair], n_top=14)
    additive = make_baseline("additive").fit(screen, split).predict([pair])[0] - truth.control_mean_G

    figure = new_figure(11.5, 3.7)
    left, right = figure.subplots(1, 2, width_ratios=[2.1, 1])
    gene_changes(
        truth.delta_UG[0],
        {"gears": model.predict([pair]).delta(pair), "additive": additive},
        screen.gene_names,
        genes=truth.top_de[0],
        cells_delta_NG=dense_rows(screen, screen.cells_of(screen.id_of(pair))) - truth.control_mean_G,
        title=f"{pair.name}, one gene of which was never perturbed in training (simulated)",
        ax=left,
    )
    differences = difference_table(model.evaluate("test", n_split_half=0))
    overall = differences[differences["subgroup"] == "all"]
    method_differences(overall, "pearson_delta_ref", model="gears", legend=False, ax=right)
    right.set_title("correlation of specific changes, test conditions", fontsize=10)
    save_figure(figure, path, dpi=110)


def median_pair(model: GEARS, truth: Truth) -> Condition:
    """The pair whose correlation of changes is the median: neither the best nor the worst prediction."""
    predicted_UG = model.predict(truth.conditions).expression_UG
    score_U = condition_metrics(predicted_UG, truth, ["pearson_delta"])[:, 0]
    return truth.conditions[int(np.argsort(score_U)[len(score_U) // 2])]


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE)
