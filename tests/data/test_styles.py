"""Label styles: recognised or refused, never guessed; the same prepared screen from each."""

import logging
from typing import Any

import anndata
import numpy as np
import pandas as pd
import pytest
from anndata import AnnData

from gears.data.checks._layout import find_layout
from gears.data.checks._options import ProcessingOptions
from gears.data.checks._report import inspect_screen
from gears.data.checks._styles import STYLES, is_control_like, is_no_gene
from gears.data.screen._prepared import PreparedScreen
from gears.data.screen.prepare import prepare_screen
from gears.pertdata import PertData


def in_style(adata: AnnData, style: str) -> AnnData:
    """The toy screen as a collection would have written it."""
    own = adata.copy()
    genes = [[t for t in label.split("+") if t != "ctrl"] for label in adata.obs["condition"]]
    names = adata.var["gene_name"].to_numpy()
    own.obs = pd.DataFrame(index=adata.obs.index)
    if style == "scperturb":
        own.obs["perturbation"] = pd.Categorical(["_".join(g) or "control" for g in genes])
        own.obs["nperts"] = [len(g) for g in genes]
        own.obs["celltype"] = "cellA"
        own.var = pd.DataFrame({"ensemble_id": adata.var_names}, index=pd.Index(names, name="gene_symbol"))
    elif style == "pertpy":
        own.obs["perturbation_name"] = ["+".join(g) or "control" for g in genes]
        own.var = pd.DataFrame(index=pd.Index(names))
    elif style == "cell-load":
        own.obs["target_gene"] = ["+".join(g) or "non-targeting" for g in genes]
        own.obs["cell_type"] = "cellA"
        own.obs["batch"] = "b1"
    elif style == "replogle":
        own = own[np.array([len(g) < 2 for g in genes])].copy()
        own.obs["gene"] = [g[0] if g else "non-targeting" for g in genes if len(g) < 2]
        own.obs["gene_id"] = "ENSG"
        own.obs["cell_line"] = "cellA"
    return own


@pytest.mark.parametrize("style", [name for name in STYLES if name != "gears"])
def test_every_style_gives_the_same_screen(style, toy_adata, toy_screen, tmp_path):
    own = in_style(toy_adata, style)
    screen = prepare_screen(own, tmp_path / "own", style="auto")
    assert screen.manifest["layout"]["style"] == style
    singles = style == "replogle"
    expected = [label for label in toy_screen.labels if not singles or "ctrl" in label]
    assert screen.labels == expected
    assert screen.gene_names == toy_screen.gene_names
    for label in expected:
        a, b = screen.id_of(label), toy_screen.id_of(label)
        np.testing.assert_array_equal(screen.statistics.mean[a], toy_screen.statistics.mean[b])
    assert screen.manifest["cell_types"] == (["cells"] if style == "pertpy" else ["cellA"])
    obs = written_obs(screen)
    assert obs["condition_source"].iloc[0] in STYLES[style].controls


def written_obs(screen: PreparedScreen) -> pd.DataFrame:
    return anndata.read_h5ad(screen.folder / "perturb_processed.h5ad").obs


def test_mixscape_columns(toy_adata, tmp_path):
    own = toy_adata[:156].copy()
    labels = [label.split("+")[0] for label in own.obs["condition"]]
    targets = ["NT" if label == "ctrl" else label for label in labels]
    own.obs = pd.DataFrame({"gene_target": targets}, index=own.obs_names)
    own.obs["perturbation"] = ["NT" if label == "ctrl" else "Perturbed" for label in labels]
    screen = prepare_screen(own, tmp_path / "own", style="auto")
    layout = screen.manifest["layout"]
    assert (layout["controls"], layout["condition_key"]) == (["NT"], "gene_target")
    assert len(screen.conditions) == 9


def test_the_mapping_is_shown_and_can_be_overridden(toy_adata, toy_go, tmp_path, caplog):
    own = in_style(toy_adata, "scperturb")
    own.obs["line"] = "K562"
    with caplog.at_level(logging.INFO):
        options = {"dataset_name": "own", "gene2go": toy_go, "cell_type_key": "line"}
        data = PertData.from_adata(own, data_path=tmp_path, **options)
    for text in ("obs['perturbation']", "'control'", "obs['line']", "cell_type_key= overrides"):
        assert text in caplog.text
    assert "'control' -> 'ctrl'" in caplog.text
    assert data.screen.manifest["cell_types"] == ["K562"]
    assert data.screen.labels[1] == "GX00+ctrl"
    again = PertData(tmp_path, gene2go=toy_go)
    again.load("own", style="auto", cell_type_key="line")
    with pytest.raises(ValueError, match=r"other options \(sep: None there, '_' here\)"):
        again.load("own", sep="_")


def test_own_columns_and_spellings(toy_adata, toy_screen, tmp_path):
    own = in_style(toy_adata, "scperturb")
    labels = own.obs["perturbation"].astype(str).str.replace("_", " & ")
    own.obs["what"] = labels.replace({"control": "none added"})
    options = {"condition_key": "what", "ctrl_label": "none added", "sep": " & ", "gene_key": "index"}
    screen = prepare_screen(own, tmp_path / "own", style="auto", **options)
    assert screen.labels == toy_screen.labels
    plain = toy_adata.copy()
    plain.obs["condition"] = own.obs["what"].to_numpy()
    again = prepare_screen(plain, tmp_path / "plain", ctrl_label="none added", sep="&")
    assert [str(c) for c in again.conditions] == [str(c) for c in toy_screen.conditions]
    assert set(written_obs(again)["condition_source"]) == set(plain.obs["condition"])


def test_a_gene_with_the_separator_in_its_name_is_not_split(toy_adata, tmp_path):
    own = in_style(toy_adata, "scperturb")
    own.var.index = ["GX_00" if name == "GX00" else name for name in own.var_names]
    own.obs["perturbation"] = own.obs["perturbation"].astype(str).replace({"GX00": "GX_00"})
    own = own[~own.obs["perturbation"].str.contains("GX00")].copy()
    screen = prepare_screen(own, tmp_path / "own", style="auto")
    assert ("GX_00",) in [condition.genes for condition in screen.conditions]


def test_the_number_of_perturbations_shows_that_a_name_was_split(toy_adata, tmp_path):
    own = in_style(toy_adata, "scperturb")
    own.obs["perturbation"] = own.obs["perturbation"].astype(str).replace({"GX07": "HLA_A"})
    with pytest.raises(
        ValueError, match=r"1 label read as more genes than obs\['nperts'\] says: 'HLA_A' \(HLA\+A\); .*sep="
    ):
        prepare_screen(own, tmp_path / "own", style="auto")


def test_unknown_labels_are_refused_not_guessed(toy_adata, toy_go, tmp_path):
    own = in_style(toy_adata, "cell-load")
    labels = own.obs["target_gene"].to_numpy().copy()
    labels[60:63], labels[72:74], labels[84:86] = "unassigned", "Blob7", "NTC_3"
    own.obs["target_gene"] = labels
    make = {"data_path": tmp_path, "gene2go": toy_go, "verbose": False}
    with pytest.raises(ValueError, match="3 problems") as caught:
        PertData.from_adata(own, **make)
    text = str(caught.value)
    assert "1 label (3 cells) names no gene: 'unassigned'" in text
    assert "drop_labels=['unassigned']" in text
    assert "label 'NTC_3' has 'NTC_3'" in text
    assert "ctrl_label=['NTC_3', 'non-targeting']" in text
    assert "neither a measured nor an annotated gene: Blob7, NTC_3, unassigned" in text
    options = {"drop_labels": ["unassigned"], "ctrl_label": ["NTC_3", "non-targeting"]}
    with pytest.raises(ValueError, match="unknown_labels='keep'"):
        PertData.from_adata(own, **make, **options)
    kept = PertData.from_adata(own, **make, **options, unknown_labels="keep")
    assert "Blob7+ctrl" in kept.screen.labels
    assert len(kept.screen.control_cells) == 62
    dropped = PertData.from_adata(own, **make, **options, unknown_labels="drop")
    assert dropped.screen.cells.shape[0] == 216 - 3 - 2
    why = [(entry["filter"], entry["n_cells"]) for entry in dropped.screen.manifest["dropped"]]
    assert why == [("drop_labels", 3), ("unknown_labels", 2)]
    assert "dropped 3 cells: labels named in drop_labels: unassigned" in str(dropped.summary())


@pytest.mark.parametrize("style", list(STYLES))
def test_few_unknown_genes_are_kept_with_one_warning(style, toy_adata, tmp_path, caplog):
    genes = ["Blob0", *(f"GX{i:02d}" for i in range(1, 13))]
    toy_adata.obs["condition"] = ["ctrl"] * 60 + [f"{gene}+ctrl" for gene in genes for _ in range(12)]
    own = toy_adata if style == "gears" else in_style(toy_adata, style)
    make: dict[str, Any] = {"data_path": tmp_path, "verbose": False, "skip_calc_de": True}
    make["gene2go"] = {gene: ["T"] for gene in toy_adata.var["gene_name"]}
    data = PertData.from_adata(own, **make)
    assert "Blob0+ctrl" in data.screen.labels
    assert sum("Blob0" in record.getMessage() for record in caplog.records) == 1
    if style == "gears":
        return
    with pytest.raises(ValueError, match="neither a measured nor an annotated gene: Blob0"):
        PertData.from_adata(own, **make, unknown_labels="refuse")
    (key,) = [name for name in STYLES[style].condition_keys if name in own.obs]
    own.obs[key] = own.obs[key].astype(str).str.replace("GX", "Odd")
    with pytest.raises(ValueError, match=r"13 labels with .*; name the genes as .*if these are guides"):
        PertData.from_adata(own, **make)


def test_missing_labels_are_no_controls(toy_adata, tmp_path):
    own = in_style(toy_adata, "scperturb")
    own.obs["perturbation"] = own.obs["perturbation"].astype(object).where(np.arange(216) >= 5, None)
    with pytest.raises(ValueError, match=r"missing for 5 cells; drop them \(drop_labels=\['nan'\]\)"):
        prepare_screen(own, tmp_path / "own", style="auto")
    screen = prepare_screen(own, tmp_path / "own", style="auto", drop_labels=["nan"])
    assert len(screen.control_cells) == 55
    with pytest.raises(ValueError, match=r"drop_labels names 'contrl', .*did you mean 'control'"):
        prepare_screen(own, tmp_path / "own", style="auto", drop_labels=["nan", "contrl"])


def test_a_style_without_its_control_is_one_problem(toy_adata):
    own = in_style(toy_adata[toy_adata.obs["condition"] != "ctrl"], "pertpy")
    report = inspect_screen(own, style="pertpy")
    assert [finding.kind for finding in report.findings if finding.severity == "error"] == ["no-control"]
    assert "name their label: ctrl_label=" in str(report)


def test_columns_that_disagree_and_screens_of_no_style(toy_adata, tmp_path):
    both = in_style(toy_adata, "scperturb")
    both.obs["target_gene"] = both.obs["perturbation"].astype(str).replace({"control": "non-targeting"})
    layout, _ = find_layout(both.obs, both.var, ProcessingOptions(style="auto"))
    assert layout.style == "cell-load"  # they say the same
    both.obs["target_gene"] = np.roll(both.obs["target_gene"].to_numpy(), 7)
    with pytest.raises(ValueError, match=r"2 columns could hold .* condition_key='target_gene' or .*='pert"):
        prepare_screen(both, tmp_path / "own", style="auto")
    none = in_style(toy_adata, "scperturb")
    none.obs = none.obs.rename(columns={"perturbation": "treat"})
    with pytest.raises(ValueError, match=r"no known style fits.*\(columns: treat, nperts, .*condition_key="):
        prepare_screen(none, tmp_path / "own", style="auto")
    with pytest.raises(ValueError, match=r"unknown style 'scpertub'; did you mean 'scperturb'"):
        prepare_screen(none, tmp_path / "own", style="scpertub")


def test_a_screen_in_another_style_is_named_where_the_published_one_is_expected(toy_adata, tmp_path):
    with pytest.raises(ValueError, match=r"no column 'condition'.*style of scperturb: pass style='auto'"):
        prepare_screen(in_style(toy_adata, "scperturb"), tmp_path / "own", style="gears")


def test_control_spellings():
    controls = "NT nt NTC NegCtrl0 non-targeting Non-Targeting_12 neg_ctrl control safe-targeting scrambled"
    for token in [*controls.split(), "mock", "WT", "negative_control", "nt_3", "Non targeting", "NO-TARGET"]:
        assert is_control_like(token), token
    for token in ["NT5E", "WT1", "NEGR1", "CTRL1B", "SAFB", "GX00", "MOCS1", "NTS", "NTCP", "CONTROLX"]:
        assert not is_control_like(token), token
    for token in ("nan", "", "unassigned", "None", "multiple", "no_guide", "*", "N/A"):
        assert is_no_gene(token), token
    for token in ("NANOG", "NONO", "MULTI1X", "KLF1"):
        assert not is_no_gene(token), token
