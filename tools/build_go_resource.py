"""Make gears/resources/human_go.npz from the tables of the Debian package r-bioc-org.hs.eg.db.

    python tools/build_go_resource.py GENE2GO.tsv.gz ALIAS.tsv.gz [--output FILE]

GENE2GO has the columns symbol, go_id, evidence, ontology (direct annotations);
ALIAS has the columns symbol (current) and alias. Both come from the package's
SQLite file. The same input gives the same bytes, whenever and wherever it runs.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import zipfile
from collections import defaultdict
from pathlib import Path

import numpy as np
from scipy import sparse

from gears.files import write_atomically
from gears.graphs.annotation import GeneAnnotation

OUTPUT = Path(__file__).resolve().parents[1] / "gears" / "resources" / "human_go.npz"
NO_DATA = "ND"  # evidence code of "no biological data available": says nothing about the gene


def read_rows(path: Path, columns: list[str]) -> list[dict[str, str]]:
    """Rows of a gzipped table; the columns needed are checked by name."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file, delimiter="\t")
        missing = set(columns) - set(reader.fieldnames or ())
        if missing:
            msg = f"{path} lacks the columns {sorted(missing)}; found {reader.fieldnames}"
            raise ValueError(msg)
        return list(reader)


def sort_aliases(rows: list[dict[str, str]], symbols: set[str]) -> tuple[dict[str, str], set[str]]:
    """Split aliases into those of one gene and those of several.

    A name that is a current symbol is left out of both: it means its own gene.
    """
    owners: defaultdict[str, set[str]] = defaultdict(set)
    for row in rows:
        owners[row["alias"]].add(row["symbol"])
    current = symbols | {row["symbol"] for row in rows}
    names = {alias for alias in owners if alias not in current}
    ambiguous = {alias for alias in names if len(owners[alias]) > 1}
    return {alias: next(iter(owners[alias])) for alias in sorted(names - ambiguous)}, ambiguous


def build(gene2go: Path, alias: Path) -> GeneAnnotation:
    """Annotation with evidence ND and unannotated genes left out; terms and genes sorted by name."""
    rows = read_rows(gene2go, ["symbol", "go_id", "evidence"])
    pairs = sorted({(row["symbol"], row["go_id"]) for row in rows if row["evidence"] != NO_DATA})
    genes = sorted({gene for gene, _ in pairs})
    terms = sorted({term for _, term in pairs})
    row_of = {gene: i for i, gene in enumerate(genes)}
    column_of = {term: i for i, term in enumerate(terms)}
    at = ([row_of[gene] for gene, _ in pairs], [column_of[term] for _, term in pairs])
    matrix = sparse.csr_matrix((np.ones(len(pairs), dtype=np.int32), at), shape=(len(genes), len(terms)))
    aliases, ambiguous = sort_aliases(read_rows(alias, ["symbol", "alias"]), {row["symbol"] for row in rows})
    aliases = {name: gene for name, gene in aliases.items() if gene in row_of}
    return GeneAnnotation(genes, terms, matrix, aliases, frozenset(ambiguous))


def write_deterministic_npz(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write an npz without time stamps or system marks, members in sorted order."""

    def write(temporary: Path) -> None:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for name in sorted(arrays):
                buffer = io.BytesIO()
                np.lib.format.write_array(buffer, arrays[name], version=(1, 0), allow_pickle=False)
                member = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
                member.compress_type = zipfile.ZIP_DEFLATED
                member.create_system = 3
                archive.writestr(member, buffer.getvalue(), compresslevel=9)

    write_atomically(path, write)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("gene2go", type=Path, help="table symbol, go_id, evidence, ontology (.tsv.gz)")
    parser.add_argument("alias", type=Path, help="table symbol, alias (.tsv.gz)")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    annotation = build(arguments.gene2go, arguments.alias)
    write_deterministic_npz(arguments.output, annotation.arrays())
    print(
        f"{arguments.output.name}: {len(annotation.genes)} genes, {len(annotation.terms)} terms, "
        f"{annotation.matrix.nnz} annotations, {len(annotation.aliases)} aliases, "
        f"{len(annotation.ambiguous)} ambiguous names, {arguments.output.stat().st_size} bytes, "
        f"content {annotation.content_hash[:12]}"
    )


if __name__ == "__main__":
    main()
