"""Annotation files of any species, and ancestors from an ontology; the mouse-like files are written here."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from test_annotation import terms_of

from gears.graphs import GeneAnnotation, go_graph
from gears.graphs._annotation_files import Ontology

OBO = """format-version: 1.2

[Term]
id: GO:1
name: root

[Term]
id: GO:2
is_a: GO:1 ! root

[Term]
id: GO:3
alt_id: GO:33
is_a: GO:2 {xref="x"} ! two
relationship: part_of GO:4 ! four
relationship: regulates GO:5

[Term]
id: GO:4
is_a: GO:1

[Term]
id: GO:5
is_a: GO:1

[Term]
id: GO:6
is_obsolete: true

[Typedef]
id: part_of
name: part of
"""


def gaf_line(symbol: str, term: str, relation="involved_in", evidence="IDA", synonyms="", taxon="taxon:10090"):
    columns = ["MGI", f"MGI:{symbol}", symbol, relation, term, "PMID:1", evidence, "", "P", "name", synonyms]
    return "\t".join([*columns, "protein", taxon, "20260101", "MGI", "", ""])


def mouse_gaf(path: Path) -> Path:
    lines = [
        "!gaf-version: 2.2",
        gaf_line("Klf1", "GO:3", synonyms="Eklf|old1"),
        gaf_line("Klf1", "GO:5", relation="NOT|involved_in"),
        gaf_line("Gata1", "GO:33", synonyms="old1|Klf1"),
        gaf_line("Gata1", "GO:5", evidence="ND"),
        gaf_line("Spi1", "GO:4"),
    ]
    path.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))
    return path


def test_gaf(tmp_path):
    annotation = GeneAnnotation.from_path(mouse_gaf(tmp_path / "mgi.gaf.gz"))
    assert terms_of(annotation) == {"Klf1": {"GO:3"}, "Gata1": {"GO:33"}, "Spi1": {"GO:4"}}
    assert annotation.resolve("Eklf") == "Klf1"
    assert annotation.resolve("old1") is None
    assert "old1" in annotation.ambiguous
    assert annotation.resolve("MGI:Spi1") == "Spi1"


def test_gaf_of_several_species_asks_for_one(tmp_path):
    path = tmp_path / "two.gaf"
    path.write_text(gaf_line("Klf1", "GO:3") + "\n" + gaf_line("KLF1", "GO:4", taxon="taxon:9606") + "\n")
    with pytest.raises(ValueError, match="2 species"):
        GeneAnnotation.from_path(path)
    assert terms_of(GeneAnnotation.from_path(path, taxon=9606)) == {"KLF1": {"GO:4"}}
    with pytest.raises(ValueError, match="no annotation"):
        GeneAnnotation.from_path(path, taxon=7227)
    path.write_text("MGI\tx\n")
    with pytest.raises(ValueError, match="line 1: expected the 15"):
        GeneAnnotation.from_path(path)


def test_gmt(tmp_path):
    path = tmp_path / "hallmark.gmt"
    path.write_text("SET1\thttp://x\tA\tB\n\nSET2\t\tB\t\n")
    assert terms_of(GeneAnnotation.from_path(path)) == {"A": {"SET1"}, "B": {"SET1", "SET2"}}
    path.write_text("SET1\thttp://x\n")
    with pytest.raises(ValueError, match="line 1"):
        GeneAnnotation.from_path(path)


def test_gene2go_of_ncbi(tmp_path):
    path = tmp_path / "gene2go.gz"
    rows = [
        "#tax_id\tGeneID\tGO_ID\tEvidence\tQualifier\tGO_term\tPubMed\tCategory",
        "10090\t16596\tGO:3\tIDA\tinvolved_in\tx\t-\tProcess",
        "10090\t16596\tGO:5\tIDA\tNOT involved_in\tx\t-\tProcess",
        "10090\t14460\tGO:4\tND\tinvolved_in\tx\t-\tProcess",
        "9606\t10661\tGO:4\tIDA\tinvolved_in\tx\t-\tProcess",
    ]
    path.write_bytes(gzip.compress("\n".join(rows).encode()))
    info = tmp_path / "gene_info"
    info.write_text("#tax_id\tGeneID\tSymbol\n10090\t16596\tKlf1\n10090\t14460\tGata1\n")
    with pytest.raises(ValueError, match="symbols="):
        GeneAnnotation.from_path(path)
    assert terms_of(GeneAnnotation.from_path(path, symbols=info, taxon=10090)) == {"Klf1": {"GO:3"}}
    with pytest.raises(ValueError, match="2 species"):
        GeneAnnotation.from_path(path, symbols={"16596": "Klf1", "10661": "KLF1"})


def test_ancestors_are_propagated_without_the_roots(tmp_path):
    obo = tmp_path / "go.obo"
    obo.write_text(OBO)
    annotation = GeneAnnotation.from_path(mouse_gaf(tmp_path / "mgi.gaf.gz"), obo=obo)
    assert terms_of(annotation) == {
        "Klf1": {"GO:3", "GO:2", "GO:4"},
        "Gata1": {"GO:3", "GO:2", "GO:4"},
        "Spi1": {"GO:4"},
    }
    assert annotation.resolve("Eklf") == "Klf1"
    assert annotation.with_ancestors(obo).content_hash == annotation.content_hash
    graph = go_graph(annotation, ["Klf1", "Gata1", "Spi1"]).to_frame()
    weight = graph.set_index(["source", "target"])["weight"]
    assert weight["Klf1", "Gata1"] == 1
    assert np.isclose(weight["Klf1", "Spi1"], 1 / 3)


def test_ontologies_that_cannot_be_used(tmp_path):
    obo = tmp_path / "go.obo"
    obo.write_text("[Term]\nid: GO:1\nis_a: GO:2\n\n[Term]\nid: GO:2\nis_a: GO:1\n")
    with pytest.raises(ValueError, match="their own ancestors: GO:1, GO:2"):
        Ontology.from_obo(obo)
    obo.write_text("nothing\n")
    with pytest.raises(ValueError, match=r"go\.obo holds no .*OBO format"):
        Ontology.from_obo(obo)
    obo.write_text(OBO)
    with pytest.raises(ValueError, match="none of the 1 terms"):
        GeneAnnotation.from_dict({"A": ["SET"]}).with_ancestors(obo)
    with pytest.raises(FileNotFoundError, match="no ontology file"):
        Ontology.from_obo(tmp_path / "none.obo")
