"""Features, words, columns or batches of screens that would be misread: excluded, asked about or reported."""

import gzip
import re
from typing import Any

import anndata
import numpy as np
import pandas as pd
import pytest
from anndata import AnnData
from scipy import sparse

from gears.data import inspect_screen, open_screen
from gears.data.screen.prepare import prepare_screen


def found(adata: AnnData, **options: Any) -> dict[str, Any]:
    return {finding.kind: finding for finding in inspect_screen(adata, **options).findings}


def relabelled(adata: AnnData, change: Any) -> AnnData:
    adata.obs["condition"] = [change(label) for label in adata.obs["condition"].astype(str)]
    return adata


@pytest.mark.parametrize(
    ("column", "gene", "other", "n_kept"),
    [
        ("feature_types", "Gene Expression", "CRISPR Guide Capture", 30),
        ("feature_type", "gene_expression", "Antibody Capture", 30),
        ("feature_types", "Gene Expression", None, 30),
        ("feature_types", "mRNA", "sgRNA", 30),
        ("library_type", "Transcriptome", "ADT", 30),
        ("assay", "mRNA", "HTO", 30),
        ("feature_types", "protein_coding", "lncRNA", 33),
        ("type", "gene", "pseudogene", 33),
        ("type", "protein_coding", "guide", 33),
    ],
)
def test_features_that_are_no_genes_are_excluded_before_totals(column, gene, other, n_kept, toy_adata, tmp_path):
    counts = np.rint(np.expm1(toy_adata.X.toarray()))
    genes = toy_adata.var.assign(**{column: gene})
    guides = pd.DataFrame({"gene_name": ["g0", "g1", "g2"], column: other}, index=["g0", "g1", "g2"])
    wide = sparse.csr_matrix(np.hstack([counts, np.full((len(counts), 3), 500.0)]))
    whole = anndata.AnnData(wide, obs=toy_adata.obs, var=pd.concat([genes, guides]))
    plain = anndata.AnnData(sparse.csr_matrix(counts), obs=toy_adata.obs, var=toy_adata.var)
    findings = found(whole, normalize=True)
    assert ("other-features" in findings) == (n_kept == 30)
    screen = prepare_screen(whole, tmp_path / "whole", normalize=True, skip_calc_de=True)
    assert len(screen.gene_names) == n_kept
    if n_kept == 30:
        assert findings["other-features"].what.startswith("3 features other than gene expression excluded (")
        assert f"in var['{column}']" in findings["other-features"].remedy
        alone = prepare_screen(plain, tmp_path / "plain", normalize=True, skip_calc_de=True)
        assert np.array_equal(screen.statistics.mean, alone.statistics.mean)


@pytest.mark.parametrize(
    ("word", "sign"),
    [("KO", "_"), ("KD", "-"), ("WT", "+"), ("WT", " "), ("LPS", "+"), ("G1", "_"), ("24h", " "), ("rep2", "-")],
)
def test_words_beside_genes_are_asked_about(word, sign, toy_adata):
    relabelled(toy_adata, lambda label: label.replace("GX07+ctrl", f"GX07{sign}{word}"))
    aliases = {"KO": "KRT8", "KD": "AR", "LPS": "IRF6", "MUT": "MMUT", "G1": "PRB3", "S1": "PSMD1"}
    findings = found(toy_adata, is_gene=aliases.get)
    kind = "control-like-token" if (word, sign) == ("WT", "+") else "word-in-label"
    assert findings[kind].severity == "error"
    assert word in findings[kind].what
    assert "as_genes=" in findings[kind].remedy
    if kind == "word-in-label":
        assert "perturbation_type_key=" in findings[kind].remedy
    assert kind not in found(toy_adata, is_gene=aliases.get, as_genes=[word])


def test_a_symbol_that_looks_like_a_word_is_a_gene(toy_adata):
    relabelled(toy_adata, lambda label: label.replace("GX07", "REST"))
    assert "word-in-label" not in found(toy_adata, is_gene={"REST": "REST"}.get)
    assert "word-in-label" in found(toy_adata, is_gene={"REST": "NRSF"}.get)


@pytest.mark.parametrize("sign", ["_", "+"])
def test_a_token_beside_a_gene_in_nearly_every_label_is_asked_about(sign, toy_adata):
    single = toy_adata[~toy_adata.obs["condition"].str.contains(r"GX\d+\+GX")].copy()
    relabelled(single, lambda label: label.replace("+ctrl", f"{sign}K562"))
    findings = found(single)
    assert [kind for kind in ("word-in-label", "in-every-label") if kind in findings]
    assert "in-every-label" not in found(single, as_genes=["K562"])


def treated(toy_adata: AnnData, treatments: list[str]) -> AnnData:
    """Every second cell of the singles and of the control with a treatment, a gene's name, in its label."""
    single = toy_adata[~toy_adata.obs["condition"].str.contains(r"GX\d+\+GX")].copy()
    names = [label.replace("+ctrl", "").replace("ctrl", "control") for label in single.obs["condition"]]
    ends = ["", *(f"_{name}" for name in treatments)]
    labels = [name + ends[i % len(ends)] for i, name in enumerate(names)]
    single.obs["perturbation"] = labels
    del single.obs["condition"]
    return single


@pytest.mark.parametrize("treatments", [["GX29"], ["GX28", "GX29"], ["GX27", "GX28", "GX29"]])
def test_a_treatment_with_the_name_of_a_gene_is_asked_about(treatments, toy_adata):
    adata = treated(toy_adata, treatments)
    finding = found(adata)["in-every-label"]
    assert finding.severity == "error"
    assert all(name in finding.what for name in treatments)
    assert "in-every-label" not in found(adata, as_genes=treatments)
    without_control = adata[~adata.obs["perturbation"].str.startswith("control_")].copy()
    assert ("in-every-label" in found(without_control)) == (len(treatments) < 3)


def test_all_pairs_of_some_genes_are_pairs(toy_adata):
    genes = [f"GX{i:02d}" for i in range(7)]
    labels = ["ctrl", *(f"{one}+{other}" for one in genes for other in ["ctrl", *genes] if one < other)]
    labels += [f"{gene}+ctrl" for gene in genes]
    toy_adata.obs["condition"] = [labels[i % len(labels)] for i in range(216)]
    assert "in-every-label" not in found(toy_adata)


def test_old_names_do_not_divide_labels(toy_adata):
    relabelled(toy_adata, lambda label: label.replace("GX07+ctrl", "GX07|MLL"))
    finding = found(toy_adata, is_gene={"MLL": "KMT2A"}.get)["joined-aliases"]
    assert finding.severity == "error"
    assert "sep='|'" in finding.remedy


@pytest.mark.parametrize("token", ["NegCtrl10_NegCtrl0", "NT_NT", "NT_1|NT_2", "AAVS_1", "mmNT"])
def test_controls_of_two_guides_and_safe_sites_are_reported(token, toy_adata):
    findings = found(relabelled(toy_adata, lambda label: label.replace("GX07", token)))
    assert {"control-like-token", "maybe-control"} & set(findings)


def test_control_guides_are_named_with_what_to_pass(toy_adata):
    labels = toy_adata.obs["condition"].astype(str).tolist()
    toy_adata.obs["condition"] = [f"sgNegCtrl_{i % 3}" if label == "ctrl" else label for i, label in enumerate(labels)]
    remedy = found(toy_adata)["no-control"].remedy
    names = re.search(r"ctrl_label=(\[.*\])", remedy)[1]
    assert names == "['ctrl', 'sgNegCtrl_0', 'sgNegCtrl_1', 'sgNegCtrl_2']"
    assert inspect_screen(toy_adata, ctrl_label=["ctrl", "sgNegCtrl_0", "sgNegCtrl_1", "sgNegCtrl_2"]).ok
    toy_adata.obs["condition"] = ["non-targeting|non-targeting" if label == "ctrl" else label for label in labels]
    assert "sep='|' and ctrl_label=['non-targeting']" in found(toy_adata)["no-control"].remedy
    assert inspect_screen(toy_adata, ctrl_label=["ctrl", "non-targeting|non-targeting"]).ok


def test_a_gene_called_nan_is_named_in_as_genes(toy_adata):
    relabelled(toy_adata, lambda label: label.replace("GX07", "nan"))
    assert "as_genes=['nan']" in found(toy_adata)["no-gene-label"].remedy
    assert inspect_screen(toy_adata, as_genes=["nan"]).ok


def test_a_column_that_is_there_twice_is_named(toy_adata):
    def twice(**other: str) -> AnnData:
        again = toy_adata.obs[["condition"]].assign(**other)
        return anndata.AnnData(toy_adata.X, obs=pd.concat([toy_adata.obs, again], axis=1), var=toy_adata.var)

    assert inspect_screen(twice()).ok
    assert "'condition' more than once" in found(twice(condition="x"))["repeated-column"].what


def test_few_controls_of_a_batch_and_values_that_differ_in_case_are_reported(toy_adata):
    is_control = (toy_adata.obs["condition"] == "ctrl").to_numpy()
    rank = np.where(is_control, np.cumsum(is_control), 100 * (np.arange(216) % 2))
    toy_adata.obs["donor"] = np.where(rank <= 9, "few", np.where(rank <= 19, "Enough", "enough"))
    assert inspect_screen(toy_adata, batch_key="donor").ok
    findings = found(toy_adata, batch_key="donor")
    assert "few (9 control cells for" in findings["few-matched-controls"].what
    assert "enough (" not in findings["few-matched-controls"].what.lower()
    assert "'Enough' and 'enough'" in findings["values-alike"].what


@pytest.mark.parametrize(
    ("one", "other", "is_alike"),
    [("K-562", "K562", True), ("Day_1", "day 1", True), ("1_11", "11_1", False), ("CD4-", "CD4", False)],
)
def test_values_that_differ_in_signs_are_reported(one, other, is_alike, toy_adata):
    toy_adata.obs["value"] = np.where(np.arange(216) % 2, one, other)
    for key in ("context_key", "batch_key"):
        assert ("values-alike" in found(toy_adata, **{key: "value"})) == is_alike


def test_compressed_screens_say_how_to_unpack_them(toy_adata, tmp_path):
    toy_adata.write_h5ad(tmp_path / "s.h5ad")
    packed = tmp_path / "s.h5ad.gz"
    packed.write_bytes(gzip.compress((tmp_path / "s.h5ad").read_bytes()))
    with pytest.raises(ValueError, match=re.escape("unpack it (gzip -dk s.h5ad.gz)")):
        open_screen(packed)


def test_a_table_is_never_printed_into_an_error(toy_adata):
    with pytest.raises(ValueError, match=r"style is an array of the type Series, \(216,\); expected"):
        inspect_screen(toy_adata, style=toy_adata.obs["condition"])
