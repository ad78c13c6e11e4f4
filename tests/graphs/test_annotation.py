"""GeneAnnotation: building, names, files and the packaged human annotation."""

import csv
import gzip
import importlib.util
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from gears.files.formats import write_npz
from gears.graphs import GeneAnnotation, go_graph
from gears.graphs._annotation_files import Ontology
from gears.graphs._nodes import read_gene_set

TERMS_OF = {"B": ["t2", "t1", "t2"], "A": {"t3"}, "C": []}


def terms_of(annotation: GeneAnnotation) -> dict[str, set[str]]:
    dense = annotation.matrix.toarray()
    return {
        gene: {annotation.terms[j] for j in np.flatnonzero(row)}
        for gene, row in zip(annotation.genes, dense, strict=True)
    }


@given(st.dictionaries(st.text(min_size=1), st.sets(st.text("tuvwx", min_size=1, max_size=2)), max_size=8))
def test_from_dict_keeps_every_pair_in_any_order(mapping):
    annotation = GeneAnnotation.from_dict(mapping)
    assert terms_of(annotation) == mapping
    backwards = GeneAnnotation.from_dict(dict(reversed(mapping.items())))
    assert backwards.content_hash == annotation.content_hash
    if any(mapping.values()):
        assert GeneAnnotation.from_dict(dict.fromkeys(mapping, ())).content_hash != annotation.content_hash
        assert (
            GeneAnnotation.from_dict(mapping, aliases={"an alias": min(mapping)}).content_hash
            != annotation.content_hash
        )


def test_resolve_and_rows():
    annotation = GeneAnnotation.from_dict(TERMS_OF, aliases={"OLD": "B"})
    assert [annotation.resolve(name) for name in ("A", "OLD", "none")] == ["A", "B", None]
    rows = annotation.rows(["none", "OLD", "A", "B", "C"])
    assert rows.toarray().tolist() == [[0, 0, 0], [1, 1, 0], [0, 0, 1], [1, 1, 0], [0, 0, 0]]
    assert annotation.rows([]).shape == (0, 3)


def test_npz_and_json_round_trip(tmp_path):
    annotation = GeneAnnotation.from_dict(TERMS_OF, aliases={"OLD": "B"})
    write_npz(tmp_path / "a.npz", annotation.arrays())
    assert GeneAnnotation.from_path(tmp_path / "a.npz").content_hash == annotation.content_hash
    (tmp_path / "a.json").write_text(json.dumps({k: sorted(v) for k, v in TERMS_OF.items()}))
    assert terms_of(GeneAnnotation.from_path(tmp_path / "a.json")) == terms_of(annotation)


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.tsv.gz"])
def test_tables(tmp_path, name):
    text = "symbol\tgo_id\tevidence\nA\tt1\tIDA\nB\tt1\tIDA\nA\tt2\tTAS\nA\tt1\tTAS\n"
    text = text.replace("\t", ",") if ".csv" in name else text
    data = gzip.compress(text.encode()) if name.endswith(".gz") else text.encode()
    (tmp_path / name).write_bytes(data)
    assert terms_of(GeneAnnotation.from_path(tmp_path / name)) == {"A": {"t1", "t2"}, "B": {"t1"}}


def of_file(name: str, content: str | bytes):
    def make(folder):
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        GeneAnnotation.from_path(folder / name)

    return make


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda _: GeneAnnotation.from_dict({"A": "t1"}), "iterable of term names"),
        (lambda _: GeneAnnotation.from_dict({"A": 3}), "iterable of term names"),
        (lambda _: GeneAnnotation.from_dict({1: ["t1"]}), "iterable of term names"),
        (lambda _: GeneAnnotation.from_dict(TERMS_OF, aliases={"A": "B"}), "aliases mean no annotated gene or are"),
        (lambda _: GeneAnnotation.from_dict(TERMS_OF, aliases={"OLD": "none"}), "aliases mean no annotated gene"),
        (lambda _: GeneAnnotation(["A"], ["t", "u"], sparse.csr_matrix((1, 1))), r"shape \(1, 1\); expected"),
        (lambda _: GeneAnnotation(["A", "A"], ["t"], sparse.csr_matrix((2, 1))), "more than once: A"),
        (of_file("a.pkl", pickle.dumps({"A": ["t1"]})), r"'a\.pkl'.*pickle"),
        (of_file("a.tsv", "A\tt1\nB\n"), "line 2: expected gene and term"),
        (of_file("a.json", "[1]"), "expected an object"),
        (lambda folder: GeneAnnotation.from_path(write_npz(folder / "a.npz", {"genes": np.zeros(1)})), "lack indices"),
    ],
)  # fmt: skip
def test_what_is_no_annotation_is_refused(make, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        make(tmp_path)


def test_human_annotation():
    human = GeneAnnotation.human()
    assert human is GeneAnnotation.human()
    assert len(human) == 20692
    assert human.matrix.shape == (20692, 18930)
    assert human.matrix.nnz == 298749
    assert len(human.aliases) == 51061
    assert len(human.ambiguous) == 2679
    assert human.matrix.sum(axis=1).min() >= 1
    assert human.resolve("CARS") == "CARS1"
    assert human.resolve("TP53") == "TP53"
    # "A2M" is also listed as an alias of IGHA2; a current symbol keeps its own meaning.
    assert human.resolve("A2M") == "A2M"
    assert not human.ambiguous & (set(human.genes) | set(human.aliases))
    assert all(human.resolve(name) is None for name in sorted(human.ambiguous)[:50])
    assert {"GO:0005515"} <= set(human.terms)


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


@pytest.mark.shared
def test_packaged_annotation_comes_from_the_tables(shared):
    path = Path(__file__).resolve().parents[2] / "tools" / "build_gene_resources.py"
    spec = importlib.util.spec_from_file_location("build_gene_resources", path)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)

    def rows(name: str, columns: list[str]) -> list[tuple[str, ...]]:
        with gzip.open(shared / "data" / name, "rt", encoding="utf-8", newline="") as file:
            return [tuple(row[column] for column in columns) for row in csv.DictReader(file, delimiter="\t")]

    built = tool.direct_go(
        rows("human_gene2go_orgHsegdb_3.16.0.tsv.gz", ["symbol", "go_id", "evidence"]),
        rows("human_symbol_alias_orgHsegdb_3.16.0.tsv.gz", ["symbol", "alias"]),
    )
    assert built.content_hash == GeneAnnotation.human().content_hash


SET_OF_GENES = ["AHR", "FEV", "KLF1"]


@pytest.mark.parametrize(
    "content",
    [
        b"KLF1\nFEV\n\nAHR\nAHR\n",
        b"\xef\xbb\xbfAHR\r\nFEV\r\nKLF1\r\n",
        b"gene_name,score\nAHR,1\nFEV,2\nKLF1,3\n",
        b"score\tsymbol\n1\tAHR\n2\tFEV\n3\tKLF1\n",
        b"AHR,1\nFEV,2\nKLF1,3\n",
        json.dumps(SET_OF_GENES).encode(),
        json.dumps({gene: ["T1"] for gene in SET_OF_GENES}).encode(),
        pickle.dumps(SET_OF_GENES),
        pickle.dumps(set(SET_OF_GENES)),
        pickle.dumps(np.array(SET_OF_GENES, dtype=object)),
        pickle.dumps(dict.fromkeys(SET_OF_GENES, 1)),
    ],
    ids=range(11),  # the bytes of a pickled set differ from process to process
)
def test_the_kind_of_file_is_told_by_its_content(content, tmp_path):
    (tmp_path / "genes.pkl").write_bytes(content)
    assert read_gene_set(tmp_path / "genes.pkl") == SET_OF_GENES


@pytest.mark.parametrize("content", [b"", b"[]", b"[1, 2]", b"\xff\xfe\x00\x01", pickle.dumps(7)])
def test_files_without_genes_are_refused(content, tmp_path):
    (tmp_path / "genes").write_bytes(content)
    with pytest.raises(ValueError, match=r"one a line|one gene a line"):
        read_gene_set(tmp_path / "genes")
    with pytest.raises(FileNotFoundError, match="no gene set file"):
        read_gene_set(tmp_path / "absent")
