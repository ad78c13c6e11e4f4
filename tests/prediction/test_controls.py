"""Predictions for a line of which control cells alone are given, and which no training saw."""

import logging
from pathlib import Path

import anndata
import numpy as np
import pytest
from anndata import AnnData
from small_models import trained_on

from gears import GEARS, PertData, PerturbationModel, simulated_screen
from gears.cli.main import main


@pytest.fixture(scope="module")
def screen() -> AnnData:
    adata, _ = simulated_screen(
        n_genes=60, n_singles=14, n_pairs=6, cell_types=4, cells_per_condition=80, n_control=400, seed=3
    )
    return adata


def trained(folder: Path, adata: AnnData, split: str = "no_test", **options: str) -> GEARS:
    keys = {"context_key": "cell_type"} if adata.obs["cell_type"].nunique() > 1 else {}
    data = PertData.from_adata(adata, data_path=folder, default_pert_graph=False, verbose=False, **keys)
    data.prepare_split(split, seed=1, **options)
    return trained_on(data)


def controls_of(adata: AnnData, line: str) -> AnnData:
    return adata[(adata.obs["cell_type"] == line) & (adata.obs["condition"] == "ctrl")].copy()


def queries(adata: AnnData) -> list[str]:
    return sorted({str(label) for label in adata.obs["condition"]} - {"ctrl"})


@pytest.fixture(scope="module")
def lines(screen: AnnData) -> list[str]:
    return sorted(screen.obs["cell_type"].unique())


@pytest.fixture(scope="module")
def free(screen: AnnData, lines: list[str], tmp_path_factory: pytest.TempPathFactory) -> GEARS:
    """A model of three lines that knows nothing of the fourth."""
    return trained(tmp_path_factory.mktemp("free"), screen[screen.obs["cell_type"] != lines[-1]].copy())


def test_it_is_what_a_screen_with_these_controls_and_no_condition_predicts(screen, lines, free, tmp_path):
    held = trained(tmp_path / "held", screen, "context_held_out", test_contexts=lines[-1])
    wanted = held.predict(queries(screen), context=lines[-1])
    free.save_model(tmp_path / "model")
    for model in (free, GEARS.from_pretrained(tmp_path / "model", device="cpu")):
        found = model.predict(queries(screen), controls=controls_of(screen, lines[-1]), context=lines[-1])
        assert found.conditions == wanted.conditions
        size = np.abs(wanted.delta_UG).max()
        np.testing.assert_allclose(found.delta_UG, wanted.delta_UG, atol=1e-3 * size)
        np.testing.assert_allclose(found.control_mean_G, wanted.control_mean_G, atol=1e-6)
        np.testing.assert_allclose(found.sd_change, wanted.sd_change, rtol=1e-2)


def test_a_model_of_one_line_predicts_another_and_says_what_it_assumes(screen, lines, tmp_path, caplog):
    model = trained(tmp_path / "one", screen[screen.obs["cell_type"] == lines[0]].copy())
    there = model.predict(queries(screen), controls=controls_of(screen, lines[-1]))
    assert [one.context for one in there.conditions] == ["controls"] * len(there)
    assert "trained on one context" in caplog.text
    both = screen[screen.obs["cell_type"].isin([lines[0], lines[-1]])].copy()
    held = trained(tmp_path / "two", both, "context_held_out", test_contexts=lines[-1])
    wanted = held.predict(queries(screen), context=lines[-1])
    assert np.corrcoef(there.delta_UG.ravel(), wanted.delta_UG.ravel())[0, 1] > 0.98
    assert there.sd_change.mean() == pytest.approx(wanted.sd_change.mean(), rel=0.2)


def test_genes_go_by_name_missing_ones_are_named_and_few_cells_widen_intervals(screen, lines, free, caplog):
    cells = controls_of(screen, lines[-1])
    names = free.gene_list
    wanted = free.predict(["ctrl", *queries(screen)], controls=cells)
    order = np.random.default_rng(0).permutation(cells.n_vars)[3:]
    with caplog.at_level(logging.WARNING):
        found = free.predict(["ctrl", *queries(screen)], controls=cells[:, order].copy())
    missing = [name for name in names if name not in set(cells.var["gene_name"].iloc[order])]
    assert len(missing) == 3
    assert all(name in caplog.text for name in missing)
    here = [names.index(name) for name in names if name not in missing]
    np.testing.assert_array_equal(found.delta_UG[:, here], wanted.delta_UG[:, here])
    mean_G = free.parts.contexts.control_mean_KG.mean(axis=0)
    for name in missing:
        assert found.expression_UG[0, names.index(name)] == pytest.approx(mean_G[names.index(name)])
    few = free.predict(["ctrl", *queries(screen)], controls=cells[:4].copy())
    assert "4 cells given as controls" in caplog.text
    assert np.median(few.sd_change[1:] / wanted.sd_change[1:]) > 1.1


def test_other_cells_are_refused_with_the_remedy(screen, lines, free):
    cells = controls_of(screen, lines[-1])
    for given, message in (
        (screen, "no control"),
        (AnnData(np.rint(np.expm1(cells.X.toarray())), cells.obs, cells.var), "counts"),
        (cells[:0].copy(), "no cells"),
        (AnnData(cells.X, cells.obs), "none of the 60 genes"),
    ):
        with pytest.raises(ValueError, match=message):
            free.predict(queries(screen), controls=given)
    with pytest.raises(ValueError, match="give a new name"):
        free.predict(queries(screen), controls=cells, context=lines[0])


def test_the_command_line_and_files_hold_the_same(screen, lines, free, tmp_path, capsys):
    cells = controls_of(screen, lines[-1])
    wanted = free.predict(queries(screen), controls=cells)
    free.save_model(tmp_path / "model")
    cells.write_h5ad(tmp_path / "cells.h5ad")
    names = ["predict", str(tmp_path / "model"), *queries(screen), "--controls", str(tmp_path / "cells.h5ad")]
    main([*names, "--output", str(tmp_path / "found.h5ad")])
    found = anndata.read_h5ad(tmp_path / "found.h5ad")
    assert list(found.obs["condition"]) == [one.name for one in wanted.conditions]
    np.testing.assert_allclose(found.layers["delta"], wanted.delta_UG, atol=1e-5)
    np.testing.assert_allclose(found.layers["control_mean"], wanted.control_mean_G, atol=1e-5)
    capsys.readouterr()
    main([*names, "--top", "3"])
    assert "@ controls" in capsys.readouterr().out


def test_a_model_in_memory_takes_them_too(screen, lines):
    adata = screen[screen.obs["cell_type"] != lines[-1]].copy()
    model = PerturbationModel(adata, context_key="cell_type", default_pert_graph=False, device="cpu", verbose=False)
    model.train(epochs=0, verbose=False, evaluate_test=False)
    found = model.predict(queries(screen)[:2], controls=controls_of(screen, lines[-1]), context="new")
    assert list(found.obs["context"]) == ["new", "new"]
    assert (found.layers["sd"] > 0).any()
