"""tools/build_gene_resources.py: which rows of the database become which table of the package."""

import csv
import gzip
import importlib.util
import sqlite3
from pathlib import Path

import pytest

from gears.graphs.annotation import GeneAnnotation

GENES = [f"G{i:03}" for i in range(120)]
BIOLOGICAL_REGION = "REGION"


@pytest.fixture(scope="module")
def tool():
    path = Path(__file__).resolve().parents[2] / "tools" / "build_gene_resources.py"
    spec = importlib.util.spec_from_file_location("build_gene_resources", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tables(tool, tmp_path_factory):
    folder = tmp_path_factory.mktemp("resources")
    return tool.build(write_database(folder / "made_up.sqlite"), folder)


def write_database(path: Path) -> Path:
    """A database with the package's schema, as far as the script reads it."""
    number = {gene: i for i, gene in enumerate([*GENES, BIOLOGICAL_REGION], start=1)}
    a, b, c, *_ = GENES

    def rows(term: str | None, genes: list[str], *more: str) -> list[tuple]:
        return [(number[gene], term, *more) for gene in genes]

    go = [
        *rows("g1", [a, a], "IDA"),
        *rows("g1", [a], "TAS"),
        *rows("g2", [b], "ND"),
        *rows("g2", [c], "IEA"),
    ]
    go_all = [
        *rows("everywhere", GENES, "IEA"), *rows("six", GENES[:6], "IEA"), *rows("six", GENES[:2], "IDA"),
        *rows("seven", GENES[:7], "IEA"), *rows("one", [a], "IEA"), *rows("one", [b], "ND"),
    ]  # fmt: skip
    papers = [
        *rows("100", GENES[:100]), *rows("101", GENES[:101]), *rows("1", [a]), *rows("2", [a, b]),
        *rows("3", [a, BIOLOGICAL_REGION]), *rows("31395745", [a, b]),
    ]  # fmt: skip
    pfam = [*rows("PF1", [a, a, b]), *rows("PF2", [c]), *rows(None, [b, c])]
    alias = [
        (a, "a1"),
        (a, "both"),
        (c, "both"),
        (c, a),
        (c, b),
        (b, "b1"),
        (c, "c1"),
        (c, c),
        ("G119", "a1"),
    ]
    contents = {
        "gene_info (_id, symbol)": [(i, gene) for gene, i in number.items()],
        "genetype (_id, gene_type)": [
            (i, "biological-region" if gene == BIOLOGICAL_REGION else "protein-coding")
            for gene, i in number.items()
        ],
        "alias (_id, alias_symbol)": [(number[gene], name) for gene, name in alias],
        "go_bp (_id, go_id, evidence)": go[:2],
        "go_mf (_id, go_id, evidence)": go[2:4],
        "go_cc (_id, go_id, evidence)": go[4:],
        "go_bp_all (_id, go_id, evidence)": [row for row in go_all if row[1] == "everywhere"],
        "go_mf_all (_id, go_id, evidence)": [row for row in go_all if row[1] == "six"],
        "go_cc_all (_id, go_id, evidence)": [row for row in go_all if row[1] in ("seven", "one")],
        "pubmed (_id, pubmed_id)": papers,
        "pfam (_id, pfam_id)": pfam,
    }
    with sqlite3.connect(path) as database:
        for table, values in contents.items():
            database.execute(f"CREATE TABLE {table}")
            marks = ", ".join("?" * (table.count(",") + 1))
            database.executemany(f"INSERT INTO {table.split()[0]} VALUES ({marks})", values)
    database.close()
    return path


def genes_of(annotation: GeneAnnotation) -> dict[str, list[str]]:
    columns = annotation.matrix.tocsc()
    return {
        term: sorted(annotation.genes[i] for i in columns.indices[columns.indptr[j] : columns.indptr[j + 1]])
        for j, term in enumerate(annotation.terms)
    }


def test_direct_go(tables):
    annotation = tables["human_go.npz"]
    assert genes_of(annotation) == {"g1": ["G000"], "g2": ["G002"]}  # G001 has evidence ND only
    # G001 is unannotated, G000 and G001 are symbols, G119, which has no row of GO, does not count
    assert annotation.aliases == {"a1": "G000", "c1": "G002"}
    assert annotation.ambiguous == {"both"}


def test_go_with_ancestors_keeps_terms_of_two_genes_to_a_twentieth(tables):
    assert genes_of(tables["human_go_ancestors.npz"]) == {"six": GENES[:6]}


def test_literature_keeps_papers_about_two_to_a_hundred_genes_but_no_screens(tables):
    assert genes_of(tables["human_literature.npz"]) == {"100": GENES[:100], "2": GENES[:2]}


def test_domains_of_several_genes(tables):
    assert genes_of(tables["human_domains.npz"]) == {"PF1": GENES[:2]}


def test_the_same_database_gives_the_same_bytes_which_hold_the_tables(tool, tables, tmp_path):
    database = write_database(tmp_path / "made_up.sqlite")
    for folder in ("1", "2"):
        (tmp_path / folder).mkdir()
        tool.build(database, tmp_path / folder)
    for name, annotation in tables.items():
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()
        assert GeneAnnotation.from_path(tmp_path / "1" / name).content_hash == annotation.content_hash


@pytest.mark.shared
def test_packaged_annotation_comes_from_the_tables(tool, shared):
    def rows(name: str, columns: list[str]) -> list[tuple[str, ...]]:
        with gzip.open(shared / "data" / name, "rt", encoding="utf-8", newline="") as file:
            return [tuple(row[column] for column in columns) for row in csv.DictReader(file, delimiter="\t")]

    built = tool.direct_go(
        rows("human_gene2go_orgHsegdb_3.16.0.tsv.gz", ["symbol", "go_id", "evidence"]),
        rows("human_symbol_alias_orgHsegdb_3.16.0.tsv.gz", ["symbol", "alias"]),
    )
    assert built.content_hash == GeneAnnotation.human().content_hash
