"""Labels: pairs by any sign, genes and controls that look like each other, names that a keyboard or program changed."""

import logging
from collections.abc import Callable
from typing import Any

import anndata
import numpy as np
import pandas as pd
import pytest
from anndata import AnnData
from scipy import sparse

from gears.data import inspect_screen
from gears.data.checks._names import in_ascii
from gears.data.checks._report import ScreenReport
from gears.data.checks._styles import is_control_like, may_be_control
from gears.data.screen.prepare import prepare_screen
from gears.graphs import GeneAnnotation

NAMED = "AHR KLF1 CEBPA CEBPB HLA-A HLA-B NKX2-5 CTRL KMT2A SEPTIN2 MARCHF1 JUN FOS"
GENES = [*NAMED.split(), *(f"GX{i:02d}" for i in range(20))]
PAIRS = [("AHR", "KLF1"), ("CEBPA", "HLA-A"), ("HLA-A", "HLA-B"), ("KLF1", "NKX2-5"), ("CEBPB", "KLF1")]
SINGLES = GENES[:7]
annotated = GeneAnnotation.from_dict({gene: ["T"] for gene in GENES}, aliases={"MLL": "KMT2A", "AS1": "JUN"}).resolve


def screen(labels: list[str], n: int = 12, genes: list[str] = GENES) -> AnnData:
    """A screen with `n` cells of each label and 40 of "ctrl"."""
    per_cell = ["ctrl"] * 40 + [label for label in labels for _ in range(n)]
    counts = np.random.default_rng(0).poisson(3.0, size=(len(per_cell), len(genes)))
    obs = pd.DataFrame({"condition": per_cell, "cell_type": "K562"}, index=[f"c{i}" for i in range(len(per_cell))])
    var = pd.DataFrame({"gene_name": genes}, index=[f"ENSG{i:011d}" for i in range(len(genes))])
    return AnnData(sparse.csr_matrix(np.log1p(counts).astype(np.float32)), obs=obs, var=var)


def report(labels: list[str], **options: Any) -> ScreenReport:
    return inspect_screen(screen(labels), is_gene=annotated, **options)


def kinds(labels: list[str], **options: Any) -> dict[str, str]:
    """Kinds of the findings that are about labels, and their text."""
    return {found.kind: str(found) for found in report(labels, **options).findings}


PLAIN = [f"{gene}+ctrl" for gene in SINGLES]


# Pairs by any sign


@pytest.mark.parametrize("sign", ["|", "_", "-", ",", " & ", "--", " and ", " x "])
def test_pairs_of_known_genes_are_read_whatever_joins_them(sign, tmp_path, caplog):
    adata = screen([*PLAIN, *(sign.join(pair) for pair in PAIRS)])
    with caplog.at_level(logging.WARNING):
        prepared = prepare_screen(adata, tmp_path / "a", is_gene=annotated)
    pairs = {condition.genes for condition in prepared.conditions if len(condition) == 2}
    assert pairs == {tuple(sorted(pair)) for pair in PAIRS}
    assert f"5 labels of known genes joined by {sign.strip()!r}" in caplog.text
    single = prepare_screen(adata, tmp_path / "b", is_gene=annotated, sep="+")
    assert all(len(condition) < 2 for condition in single.conditions)


@pytest.mark.parametrize("name", ["HLA-A", "NKX2-5", "KLF1-AS1", "KLF1-2", "KLF1_x", "Blob|KLF1"])
def test_names_that_hold_a_sign_are_one_gene(name):
    found = report([*PLAIN[:3], f"{name}+ctrl"], unknown_labels="keep")
    assert "joined-genes" not in {finding.kind for finding in found.findings}
    assert found.facts["pairs"] == 0


# Contexts in labels


# Genes that look like controls, and controls that look like genes


def test_the_gene_ctrl_is_told_from_the_control(tmp_path):
    adata = screen([*PLAIN, "CTRL+ctrl", "AHR+CTRL"])
    with pytest.raises(ValueError, match=r"as_genes=\['CTRL'\]"):
        prepare_screen(adata, tmp_path / "a", is_gene=annotated)
    prepared = prepare_screen(adata, tmp_path / "a", is_gene=annotated, as_genes="CTRL")
    assert {("CTRL",), ("AHR", "CTRL")} <= {condition.genes for condition in prepared.conditions}
    assert len(prepared.control_cells) == 40


CONTROLS = [
    "sgNTC", "GFP", "EGFP_1", "mCherry", "AAVS1", "NO_SITE_1", "Human_NT_12", "Ignore", "sgGFP", "Luciferase",
    "hs-NTC-3", "NonTargetingControlGuideForHuman_0001", "ONE_INTERGENIC_SITE_12", "siNT", "Cas9",
]  # fmt: skip


# Names of genes


def test_one_gene_under_two_names_is_one_condition(tmp_path, caplog):
    adata = screen([*PLAIN, "MLL+ctrl", "KMT2A+ctrl", "AHR+MLL"])
    prepared = prepare_screen(adata, tmp_path / "a", is_gene=annotated)
    genes = [condition.genes for condition in prepared.conditions]
    assert genes.count(("KMT2A",)) == 1
    assert ("AHR", "KMT2A") in genes
    assert "MLL is KMT2A" in caplog.text
    old = [gene if gene != "KMT2A" else "MLL" for gene in GENES]  # the screen's own names win
    prepared = prepare_screen(screen(["KMT2A+ctrl", "AHR+MLL"], genes=old), tmp_path / "b", is_gene=annotated)
    assert {condition.genes for condition in prepared.conditions} == {(), ("MLL",), ("AHR", "MLL")}


@pytest.mark.parametrize(
    ("date", "gene"), [("2-Sep", "SEPTIN2"), ("1-Mar", "MARCHF1"), ("Sep-02", "SEPTIN2"), ("2024-03-01", "MARCHF1")]
)
def test_dates_are_named_in_labels_and_gene_names(date, gene):
    told = kinds([*PLAIN, f"{date}+ctrl"])
    assert f"became dates in a spreadsheet: {date} ({gene})" in told["dates"]
    adata = screen(PLAIN)
    adata.var["gene_name"] = [date if name == gene else name for name in GENES]
    assert f"1 gene name became dates in a spreadsheet: {date} ({gene})" in str(inspect_screen(adata))


@pytest.mark.parametrize(
    ("token", "sign"),
    [("\u0410HR", "U+0410"), ("HLA\u2013A", "U+2013"), ("\uff2aUN", "U+FF2A"), ("JUN\u200b", "U+200B")],
)
def test_letters_that_look_alike_are_named(token, sign):
    told = kinds([*PLAIN, f"{token}+ctrl"])["look-alike-letters"]
    assert sign in told
    assert "is meant" in told
    adata = screen(PLAIN)
    adata.var["gene_name"] = [token if name == in_ascii(token) else name for name in GENES]
    found = inspect_screen(adata, is_gene=annotated).findings
    named = next(one for one in found if one.kind == "look-alike-letters")
    assert named.severity == "warning"
    assert sign in str(named)


@pytest.mark.parametrize("label", ["cells", "\ufeffctrl", "None", "0"])
def test_a_control_that_is_named_beside_genes_only(label):
    adata = screen(["ctrl", *PLAIN])
    adata.obs["condition"] = adata.obs["condition"].astype(str).replace({"ctrl": label})
    told = next(str(one) for one in inspect_screen(adata, style="gears").findings if one.kind == "no-control")
    assert "no label in obs['condition'] is 'ctrl' alone" in told
    assert f"{label!r} has most cells" in told
    assert "ctrl_label=['ctrl', '...']" in told


def renamed(change: Any) -> AnnData:
    adata = screen(PLAIN)
    adata.var["gene_name"] = [change(name) for name in adata.var["gene_name"]]
    return adata


# Few cells, and cells that are there twice


def test_cells_that_are_there_twice_are_reported():
    adata = screen(PLAIN)
    assert not {"repeated-cell", "repeated-cell-name"} & {found.kind for found in inspect_screen(adata).findings}
    twice = anndata.concat([adata, adata[50:53]], merge="same", index_unique="-")
    assert "3 cells with exactly the values of another cell" in str(inspect_screen(twice))
    twice.obs_names = [name.split("-")[0] for name in twice.obs_names]
    assert "3 cells with the name of another cell (c50" in str(inspect_screen(twice))


def test_usual_names_of_controls_are_named_with_both_options(tmp_path):
    symbols = GeneAnnotation.human().genes
    assert [name for name in symbols if may_be_control(name) or is_control_like(name)] == ["CTRL"]
    adata = screen([f"{gene}+ctrl" for gene in [*SINGLES[:3], *CONTROLS]], n=2)
    remedies = [
        finding.remedy for finding in inspect_screen(adata, style="gears").findings if "control" in finding.kind
    ]
    assert all("ctrl_label=[" in remedy and "as_genes=[" in remedy for remedy in remedies)
    assert [token for token in CONTROLS if repr(token) not in "".join(remedies)] == []
    kept = inspect_screen(adata, as_genes=CONTROLS)
    assert not {"maybe-control", "control-like-token"} & {finding.kind for finding in kept.findings}
    assert len(prepare_screen(adata, tmp_path / "a", ctrl_label=["ctrl", *CONTROLS]).control_cells) == 40 + 30


ABOUT: dict[str, tuple[Callable[[], AnnData], tuple[str, ...]]] = {
    "a context in a label": (
        lambda: screen([*PLAIN, "AHR+KLF1 [CRISPRa] @ K562"]), ("context_key=", "perturbation_type_key=")),
    "another context in a label": (lambda: screen([*PLAIN, "AHR+KLF1 @ 24h"]), ("context_key=",)),
    "pairs with the control": (
        lambda: screen(["AHR+ctrl", "KLF1|ctrl", "AHR|KLF1", "AHR|KLF1|JUN"]),
        ("(KLF1|ctrl, AHR|KLF1, AHR|KLF1|JUN), read as combinations",)),
    "few control cells": (
        lambda: screen(PLAIN)[31:].copy(), ("the control has 9 cells; every change is a difference from their mean",)),
    "whole numbers": (lambda: coded(np.arange(124) % 5), ("whole numbers are codes: give the names that they mean",)),
    "categories of numbers": (lambda: coded(pd.Categorical(np.arange(124) % 5)), ("whole numbers are codes",)),
    "Ensembl": (
        lambda: renamed(lambda name: f"ENSG{GENES.index(name):011d}.5"),
        ("of 7 perturbed genes", "are measured", "100% of the gene names are Ensembl identifiers")),
    "a genome prefix": (lambda: renamed(lambda name: f"GRCh38_{name}"), ("begin with a genome, 'GRCh38_'",)),
    "another prefix": (lambda: renamed(lambda name: f"hg19___{name}"), ("remove the genome from the gene names",)),
    "another species": (lambda: renamed(lambda name: name.capitalize()), ("another species",)),
    "names in another column": (lambda: beside(name2=GENES), ("pass gene_key='name2', which has 7 of them",)),
    "names in the index": (lambda: beside(index=GENES), ("pass gene_key='index'",)),
}  # fmt: skip


def coded(codes: Any) -> AnnData:
    adata = screen(PLAIN)
    adata.obs["condition"] = codes
    return adata


def beside(index: list[str] | None = None, **columns: list[str]) -> AnnData:
    """Ensembl identifiers for names, and the names of the labels elsewhere."""
    adata = renamed(lambda name: f"ENSG{GENES.index(name):011d}")
    adata.var = adata.var.assign(**columns)
    adata.var.index = adata.var.index if index is None else pd.Index(index)
    return adata


@pytest.mark.parametrize("case", ABOUT)
def test_reports_say_what_is_odd(case):
    make, expected = ABOUT[case]
    told = str(inspect_screen(make(), is_gene=annotated))
    assert [words for words in expected if words not in told] == []


def test_blanks_around_names_are_removed(tmp_path):
    adata = renamed(lambda name: f"{name} ")
    adata.obs["line"] = np.where(np.arange(adata.n_obs) % 2, "K562", "K562 ")
    prepared = prepare_screen(adata, tmp_path / "a", context_key="line")
    assert prepared.gene_names == GENES
    assert {condition.context for condition in prepared.conditions} == {"K562"}
