"""Bad screens: everything that is wrong is said at once, before any work."""

from collections.abc import Callable
from typing import Any

import anndata
import numpy as np
import pandas as pd
import pytest
from anndata import AnnData

from gears.data.screen.prepare import prepare_screen

Change = Callable[["AnnData"], "AnnData"]
Table = Callable[[pd.DataFrame], pd.DataFrame]


def changed(
    x: Callable[[np.ndarray], np.ndarray] | None = None, obs: Table | None = None, var: Table | None = None
) -> Change:
    """The screen with other stored values, cells or genes."""

    def change(adata: AnnData) -> AnnData:
        adata.X.data = adata.X.data if x is None else x(adata.X.data).astype(np.float32)
        adata.obs = adata.obs if obs is None else obs(adata.obs)
        adata.var = adata.var if var is None else var(adata.var)
        return adata

    return change


def relabel(old: str, new: str) -> Change:
    return changed(obs=lambda o: o.assign(condition=o["condition"].astype(str).str.replace(old, new, regex=False)))


def with_value(value: float) -> Change:
    return changed(lambda values: np.where(np.arange(len(values)) == 3, value, values))


def gene_names(new: dict[int, Any]) -> Change:
    return changed(var=lambda v: v.assign(gene_name=[new.get(i, name) for i, name in enumerate(v["gene_name"])]))


def one_small(adata: AnnData) -> AnnData:
    labels = adata.obs["condition"].astype(str).to_numpy()
    drop = np.flatnonzero(labels == "GX07+ctrl")[1:]
    return adata[np.setdiff1d(np.arange(adata.n_obs), drop)].copy()


BAD: dict[str, tuple[Change, str]] = {
    "no condition": (changed(obs=lambda o: o.drop(columns="condition")), r"adata.obs has no column 'condition'"),
    "renamed condition": (
        changed(obs=lambda o: o.rename(columns={"condition": "conditions"})),
        r"no column 'condition'.*pass condition_key='conditions'"),
    "no cell_type": (changed(obs=lambda o: o.drop(columns="cell_type")), r"adata.obs has no column 'cell_type'"),
    "no gene_name": (changed(var=lambda v: v.drop(columns="gene_name")), r"adata.var has no column 'gene_name'"),
    "control renamed": (relabel("ctrl", "control"), r"like it is 'control' \(60 cells\).*ctrl_label='control'"),
    "no control": (lambda a: a[60:].copy(), r"no control cells"),
    "only control": (lambda a: a[:60].copy(), r"no perturbed condition among 60 cells"),
    "another control token": (relabel("GX00+ctrl", "GX00+control"), r"\(12 cells\): label 'GX00\+control' has"),
    "NaN": (with_value(np.nan), r"X holds 1 NaN or infinite"),
    "infinite": (with_value(np.inf), r"X holds 1 NaN or infinite"),
    "counts": (changed(lambda x: np.rint(np.expm1(x))), r"look like raw counts.*normalize=True"),
    "not logged": (changed(lambda x: np.expm1(x) * 7.3), r"without logarithm"),
    "all zero": (changed(lambda x: x * 0), r"nothing but zeros"),
    "duplicate genes": (gene_names({1: "GX00"}), r"1 gene name occurs more than once \(GX00\)"),
    "plus in a gene": (gene_names({29: "GX+3"}), r"gene names with '\+' \(GX\+3\)"),
    "missing gene name": (gene_names({29: None}), r"missing for 1 gene"),
    "two cell types": (
        changed(obs=lambda o: o.assign(cell_type=np.where(np.arange(len(o)) < 100, "cellA", "cellB"))),
        r"2 cell types \(cellA, cellB\).*pool_cell_types=True"),
    "missing labels": (
        changed(obs=lambda o: o.assign(condition=o["condition"].astype(object).where(np.arange(len(o)) > 3, np.nan))),
        r"missing for 4 cells"),
    "empty gene in a label": (relabel("GX00+GX01", "GX00+"), r"'GX00\+' has an empty gene name"),
    "one control cell": (lambda a: a[59:].copy(), r"the control has 1 cell; differential expression needs 2"),
    "one cell": (one_small, r"1 condition has fewer than 2 cells.*GX07\+ctrl \(1\).*min_cells=2"),
}  # fmt: skip


PUBLISHED = ("no condition", "renamed condition", "no cell_type", "no gene_name")
"""Errors of the style "gears" alone: others find the columns, or do without."""


@pytest.mark.parametrize("case", BAD)
def test_a_bad_screen_is_refused_and_nothing_is_written(case, toy_adata, tmp_path):
    change, message = BAD[case]
    style = "gears" if case in PUBLISHED else "auto"
    with pytest.raises(ValueError, match=message):
        prepare_screen(change(toy_adata), tmp_path / "out" / "toy", style=style)
    assert not (tmp_path / "out").exists()


def test_wrong_types_and_options(toy_adata, tmp_path):
    with pytest.raises(TypeError, match=r"load\(data_path='screen.h5ad'\)"):
        prepare_screen("screen.h5ad", tmp_path / "toy")
    with pytest.raises(ValueError, match=r"unknown processing option 'normalise'.*'normalize'"):
        prepare_screen(toy_adata, tmp_path / "toy", normalise=True)
    with pytest.raises(ValueError, match="min_cells is 0; expected a whole number of at least 1"):
        prepare_screen(toy_adata, tmp_path / "toy", min_cells=0)
    toy_adata.layers["counts"] = toy_adata.X.copy()
    with pytest.raises(ValueError, match=r"no layer 'count'; did you mean 'counts'"):
        prepare_screen(toy_adata, tmp_path / "toy", layer="count")
    with pytest.raises(ValueError, match=r"normalize=True needs counts.*layer='counts'"):
        prepare_screen(toy_adata, tmp_path / "toy", normalize=True)


def test_min_cells_drops_with_a_warning(toy_adata, tmp_path, caplog):
    screen = prepare_screen(one_small(toy_adata), tmp_path / "toy", min_cells=2)
    assert "dropped 1 condition, 1 cell: fewer than min_cells=2 cells: GX07+ctrl (1)" in caplog.text
    assert "GX07+ctrl" not in screen.labels
    assert screen.cells.shape == (60 + 12 * 12, 30)
    with pytest.raises(ValueError, match="no perturbed condition has min_cells=13 cells; the largest has 12"):
        prepare_screen(one_small(toy_adata), tmp_path / "other", min_cells=13)


def test_negative_values_are_taken_with_a_warning(toy_adata, tmp_path, caplog):
    screen = prepare_screen(with_value(-0.5)(toy_adata), tmp_path / "toy")
    assert "negative values (down to -0.5)" in caplog.text
    assert "negative predictions are not set to 0" in caplog.text
    assert screen.manifest["has_negative"] is True


def test_blanks_and_any_number_of_genes(toy_adata, tmp_path):
    labels = pd.Series(toy_adata.obs["condition"].astype(str).to_numpy())
    labels[labels == "GX00+ctrl"] = "GX00 + ctrl"
    labels[labels == "GX00+GX01"] = "GX00+GX01+GX15"
    labels[labels == "GX01+ctrl"] = "GX01"
    toy_adata.obs["condition"] = labels.to_numpy()
    screen = prepare_screen(toy_adata, tmp_path / "toy")
    assert screen.labels[1] == "GX00 + ctrl"
    assert screen.conditions[screen.id_of("GX00+ctrl")].genes == ("GX00",)
    assert screen.conditions[screen.id_of("GX15+GX01+GX00")].genes == ("GX00", "GX01", "GX15")
    assert "cellA_GX00+GX01+GX15_1+1+1" in screen.condition_names
    obs = anndata.read_h5ad(screen.folder / "perturb_processed.h5ad").obs
    assert obs.loc[obs["condition"] == "GX01", "control"].unique().tolist() == [0]
