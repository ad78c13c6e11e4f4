"""tools/build_gene_resources.py gives the packaged annotation from the tables of the database."""

import csv
import gzip
import importlib.util
from pathlib import Path

import pytest

from gears.graphs import GeneAnnotation


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
