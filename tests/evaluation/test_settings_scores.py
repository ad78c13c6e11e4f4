"""Screens of several contexts: what baselines see, what tables say, and custom splits."""

from pathlib import Path

import numpy as np
import pytest
from small_models import trained_on

from gears import PertData, simulated_screen


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PertData:
    adata, _ = simulated_screen(
        n_genes=40, n_singles=14, n_pairs=0, cell_types=3, cells_per_condition=60, n_control=300, seed=4
    )
    folder: Path = tmp_path_factory.mktemp("lines")
    return PertData.from_adata(
        adata, data_path=folder, context_key="cell_type", default_pert_graph=False, verbose=False
    )


def test_the_train_mean_of_a_line_that_is_held_out_is_that_of_the_other_conditions(data):
    line = data.screen.contexts[-1]
    data.prepare_split("context_held_out", test_contexts=line, seed=1)
    model, screen = trained_on(data), data.screen
    table = model.evaluate("test", baselines=["train_mean"], metrics=["mse"], n_split_half=0)
    assert set(table["n_control"]) == {int(screen.statistics.n[screen.id_of(f"ctrl @ {line}")])}
    assert any(note.startswith("control cells: ") and line in note for note in table.attrs["notes"])
    known = model.parts.fitted_conditions()
    changes = {one: screen.statistics.delta(np.array([screen.id_of(one)]))[0] for one in known}
    control_G = screen.statistics.mean[screen.id_of(f"ctrl @ {line}")]
    rows = table[(table["method"] == "train_mean") & table["condition"].str.contains("@")]
    assert len(rows) >= 10
    for condition, value in zip(rows["condition"], rows["value"], strict=True):
        genes = condition.partition(" @ ")[0].split("+")[0]
        others = {one.genes: [] for one in known if one.genes != (genes,)}
        for one in known:
            if one.genes in others:
                others[one.genes].append(changes[one])
        mean_G = np.mean([np.mean(each, axis=0) for each in others.values()], axis=0)
        true_G = screen.statistics.mean[screen.id_of(condition)]
        assert value == pytest.approx(((np.maximum(control_G + mean_G, 0) - true_G) ** 2).mean(), rel=1e-4)


def test_a_custom_split_that_holds_a_line_out_is_one_of_that_type(data):
    line = data.screen.contexts[-1]
    data.prepare_split("context_held_out", test_contexts=line, seed=1)
    named = trained_on(data)
    parts = {part: [one.name for one in data.split.conditions(part)] for part in ("train", "val", "test")}
    data.prepare_split("custom", split_dict=parts)
    custom = trained_on(data)
    wanted = parts["test"]
    np.testing.assert_array_equal(custom.predict(wanted).delta_UG, named.predict(wanted).delta_UG)
    np.testing.assert_array_equal(custom.predict(wanted).sd_change, named.predict(wanted).sd_change)
