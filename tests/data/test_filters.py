"""Filters on request: doublets, guide numbers, knock-down, small conditions; each says what went."""

from typing import Any

import numpy as np
import pytest

from gears.data import PreparedScreen
from gears.data.screen.prepare import prepare_screen


def dropped(screen: PreparedScreen) -> dict[str, dict[str, Any]]:
    return {entry["filter"]: entry for entry in screen.manifest["dropped"]}


@pytest.mark.parametrize("flags", [bool, str, float, lambda x: "doublet" if x else "singlet"])
def test_doublets(toy_adata, tmp_path, flags, caplog):
    is_doublet = np.zeros(216, dtype=bool)
    is_doublet[[3, 70, 71]] = True
    toy_adata.obs["called"] = [flags(value) for value in is_doublet]
    screen = prepare_screen(toy_adata, tmp_path / "toy", doublet_key="called")
    expected = prepare_screen(toy_adata[~is_doublet].copy(), tmp_path / "expected")
    np.testing.assert_array_equal(screen.cells.csr().toarray(), expected.cells.csr().toarray())
    assert dropped(screen)["doublet_key"]["n_cells"] == 3
    assert "dropped 3 cells: obs['called'] is true" in caplog.text


def test_cells_with_other_numbers_of_guides(toy_adata, tmp_path):
    numbers = np.array([sum(t != "ctrl" for t in label.split("+")) for label in toy_adata.obs["condition"]])
    numbers[:40] = 1  # controls have a non-targeting guide, or none
    numbers[[5, 61, 210]] = 2, 2, 1
    toy_adata.obs["nperts"] = numbers
    screen = prepare_screen(toy_adata, tmp_path / "toy", guide_count_key="nperts")
    assert screen.cells.shape[0] == 213
    assert dropped(screen)["guide_count_key"]["n_cells"] == 3


def test_knock_down(toy_adata, tmp_path):
    """Targets of the toy screen are down to a tenth; one condition gets the control's values back."""
    labels = toy_adata.obs["condition"].astype(str).to_numpy()
    dense = toy_adata.X.toarray() + 0.01
    dense[labels == "GX03+ctrl", 3] = dense[labels == "ctrl", 3][:12]
    toy_adata.X = dense
    screen = prepare_screen(toy_adata, tmp_path / "toy", max_residual=0.6)
    level = np.expm1(dense.astype(np.float64))
    base = level[labels == "ctrl"].mean(axis=0)

    def residual(label: str) -> float:
        genes = [int(token[2:]) for token in label.split("+") if token != "ctrl"]
        return max(level[labels == label][:, gene].mean() / base[gene] for gene in genes)

    perturbed = [label for label in dict.fromkeys(labels.tolist()) if label != "ctrl"]
    gone = {label for label in perturbed if residual(label) > 0.6}
    assert "GX03+ctrl" in gone
    assert set(screen.labels) == {"ctrl", *perturbed} - gone
    report = dropped(screen)["max_residual"]
    assert report["n_conditions"] == len(gone)
    assert any(text.startswith(f"GX03+ctrl ({residual('GX03+ctrl'):.2f}") for text in report["conditions"])
    cells = prepare_screen(toy_adata, tmp_path / "cells", max_cell_residual=0.6)
    too_high = sum(
        int((level[labels == label][:, [int(t[2:]) for t in label.split("+") if t != "ctrl"]]
             > 0.6 * base[[int(t[2:]) for t in label.split("+") if t != "ctrl"]]).any(axis=1).sum())
        for label in perturbed
    )  # fmt: skip
    assert dropped(cells)["max_cell_residual"]["n_cells"] == too_high > 0
    assert cells.cells.shape[0] == 216 - too_high
    with pytest.raises(ValueError, match=r"no condition passes the knock-down filter; .*CRISPRa"):
        prepare_screen(toy_adata, tmp_path / "none", max_residual=1e-9)


def test_targets_that_cannot_be_judged_stay(toy_adata, tmp_path):
    screen = prepare_screen(toy_adata[:, 2:].copy(), tmp_path / "toy", max_residual=0.6)
    assert {"GX00+ctrl", "GX01+ctrl", "GX00+GX01"} <= set(screen.labels)
    assert {"GX00+ctrl", "GX00+GX02"} <= set(dropped(screen)["max_residual"]["unchecked"])


def test_filters_come_together_and_in_order(toy_adata, tmp_path):
    toy_adata.obs["doublet"] = np.arange(216) % 4 == 0
    screen = prepare_screen(toy_adata, tmp_path / "toy", doublet_key="doublet", min_cells=9)
    assert dropped(screen)["doublet_key"]["n_cells"] == 54
    assert len(screen.conditions) == 14  # 9 of 12 cells are left in each
    options = {"doublet_key": "doublet", "min_cells": 9, "max_cell_residual": 0.6}
    again = prepare_screen(toy_adata, tmp_path / "again", **options)
    assert list(dropped(again)) == ["doublet_key", "max_cell_residual", "min_cells"]


def test_wrong_columns_and_values(toy_adata, tmp_path):
    toy_adata.obs["score"] = 0.3
    toy_adata.obs["text"] = "two"
    toy_adata.obs["all"] = True
    for options, words in (
        ({"doublet_key": "scores"}, "doublet_key names 'scores', which obs lacks; did you mean 'score'"),
        ({"doublet_key": "score"}, "216 values that are neither true nor false, such as '0.3'"),
        ({"guide_count_key": "text"}, "is no number for 216 cells"),
        ({"doublet_key": "all"}, "the filters leave no control cell"),
        ({"max_residual": 0}, "max_residual is 0; expected a share"),
        ({"max_residual": "a"}, "max_residual is 'a'; expected a share"),
    ):
        with pytest.raises(ValueError, match=words):
            prepare_screen(toy_adata, tmp_path / "toy", **options)
    assert not (tmp_path / "toy").exists()


def test_repeated_gene_names_can_be_told_apart(toy_adata, tmp_path):
    names = toy_adata.var["gene_name"].to_numpy().copy()
    names[[10, 11]] = "GX00"
    toy_adata.var["gene_name"] = names
    with pytest.raises(ValueError, match=r"1 gene name occurs more than once \(GX00\).*unique_genes=True"):
        prepare_screen(toy_adata, tmp_path / "toy")
    screen = prepare_screen(toy_adata, tmp_path / "toy", unique_genes=True)
    assert [screen.gene_names[i] for i in (0, 10, 11)] == ["GX00", "GX00-ENS010", "GX00-ENS011"]
    assert screen.gene_ids == [f"ENS{i:03d}" for i in range(30)]
