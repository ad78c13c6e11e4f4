"""What objects say of themselves at the end of a cell, as text and as HTML."""

import re

import pytest

from gears import GEARS, PertData, simulated_screen
from gears.core.html import html_of
from gears.data.splits import check_split
from gears.evaluation import compare


@pytest.fixture(scope="module")
def pert_data(tmp_path_factory):
    adata, _ = simulated_screen(
        n_genes=40, n_singles=12, n_pairs=6, cells_per_condition=8, n_control=30, seed=0
    )
    data = PertData(tmp_path_factory.mktemp("reprs"), default_pert_graph=False)
    data.new_data_process("small", adata)
    data.prepare_split(split="simulation", seed=1)
    return data


def test_text_is_short_and_html_shows_it_escaped(pert_data):
    model = GEARS(pert_data, device="cpu")
    assert repr(model) == "GEARS(not initialised, on cpu)"
    model.model_initialize(hidden_size=8)
    genes = f"{len(model.pert_list)} genes to perturb, 40 genes predicted"
    assert repr(model) == f"GEARS(not trained, {genes}, on cpu)"
    result = model.train(epochs=0, verbose=False)
    assert repr(model) == f"GEARS(prior alone, {genes}, on cpu)"
    predictions = model.predict(pert_data.split.conditions("test")[:2])
    for thing in (model, pert_data, pert_data.screen, pert_data.split, predictions, result):
        html = thing._repr_html_()
        assert html.startswith('<pre style="white-space: pre-wrap">')
        assert len(repr(thing).splitlines()[0]) < 160
    comparison = compare({}, pert_data.screen, pert_data.split, baselines=["no_change", "train_mean"])
    assert "train_mean" in repr(comparison)
    assert comparison._repr_html_() == html_of(comparison)
    leaks = check_split(pert_data.split, pert_data.screen)
    assert repr(leaks) == str(leaks)
    assert html_of("<b>").endswith(">&#x27;&lt;b&gt;&#x27;</pre>")


def test_tables_of_splits_and_predictions(pert_data):
    parts = {part: len(labels) for part, labels in pert_data.split.parts.items()}
    assert repr(pert_data.split).startswith("Split('simulation', seed 1: ")
    assert f"{parts['train']} train" in repr(pert_data.split)
    table = pert_data.split._repr_html_()
    for part, n in parts.items():
        counts = re.findall(rf"<td>{part}</td>\s*<td>\w*</td>\s*<td>(\d+)</td>", table)
        assert sum(map(int, counts)) == n
    model = GEARS(pert_data, device="cpu")
    model.model_initialize(hidden_size=8)
    pair = pert_data.split.conditions("test")[0]
    html = model.predict([pair])._repr_html_()
    assert html.count(f"<td>{pair.name}</td>") == 3
