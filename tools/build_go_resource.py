"""Make gears/resources/human_go.npz from the tables of the Debian package r-bioc-org.hs.eg.db.

    python tools/build_go_resource.py GENE2GO.tsv.gz ALIAS.tsv.gz [--output FILE]

GENE2GO has the columns symbol, go_id, evidence, ontology (direct annotations);
ALIAS has the columns symbol (current) and alias. Both come from the package's
SQLite file. The same input gives the same bytes, whenever and wherever it runs.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import gzip
import io
import operator
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gears.files.atomic import write_atomically
from gears.graphs.annotation import GeneAnnotation

OUTPUT = Path(__file__).resolve().parents[1] / "gears" / "resources" / "human_go.npz"
NO_DATA = "ND"  # evidence code of "no biological data available": says nothing about the gene


def read_columns(path: Path, columns: list[str]) -> Iterator[tuple[str, ...]]:
    """Rows of a gzipped table, cut down to some columns, which are found by name."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        reader = csv.reader(file, delimiter="\t")
        header = next(reader, [])
        missing = set(columns) - set(header)
        if missing:
            msg = f"{path} lacks the columns {sorted(missing)}; found {header}"
            raise ValueError(msg)
        yield from map(operator.itemgetter(*map(header.index, columns)), reader)


def sort_aliases(pairs: list[tuple[str, ...]], symbols: set[str]) -> tuple[dict[str, str], set[str]]:
    """Split aliases into those of one gene and those of several.

    A name that is a current symbol is left out of both: it means its own gene.
    """
    owners: defaultdict[str, set[str]] = defaultdict(set)
    for symbol, alias in pairs:
        owners[alias].add(symbol)
    current = symbols | {symbol for symbol, _ in pairs}
    names = set(owners) - current
    ambiguous = {alias for alias in names if len(owners[alias]) > 1}
    return {alias: next(iter(owners[alias])) for alias in sorted(names - ambiguous)}, ambiguous


def build(gene2go: Path, alias: Path) -> GeneAnnotation:
    """Annotation with evidence ND and unannotated genes left out; terms and genes sorted by name."""
    rows = list(read_columns(gene2go, ["symbol", "go_id", "evidence"]))
    terms_of: defaultdict[str, set[str]] = defaultdict(set)
    for symbol, term, evidence in rows:
        if evidence != NO_DATA:
            terms_of[symbol].add(term)
    pairs = list(read_columns(alias, ["symbol", "alias"]))
    aliases, ambiguous = sort_aliases(pairs, {symbol for symbol, *_ in rows})
    aliases = {name: gene for name, gene in aliases.items() if gene in terms_of}
    plain = GeneAnnotation.from_dict(terms_of, aliases=aliases)
    return dataclasses.replace(plain, ambiguous=frozenset(ambiguous))


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
