"""Make the gene tables of gears/resources from the SQLite file of the Debian package r-bioc-org.hs.eg.db.

    apt-get download r-bioc-org.hs.eg.db && dpkg -x r-bioc-org.hs.eg.db_*.deb unpacked
    python tools/build_gene_resources.py unpacked/usr/lib/R/site-library/org.Hs.eg.db/extdata/org.Hs.eg.sqlite

Every file has the layout of `GeneAnnotation.arrays`. The same input gives the same bytes, whenever and wherever it
runs. The tables of KEGG pathways, of enzyme numbers (which come from KEGG) and of PROSITE are not used: their licences
do not allow it. gears/resources/README.md describes the files and their licences.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import sqlite3
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from gears.files._atomic import write_atomically
from gears.graphs._annotation import GeneAnnotation

OUTPUT = Path(__file__).resolve().parents[1] / "gears" / "resources"
NO_DATA = "ND"  # evidence code of "no biological data available": says nothing about the gene
ASPECTS = ("bp", "mf", "cc")
FEWEST_GENES = 2  # a term of one gene makes no gene similar to another
MOST_GO_SHARE = 0.05
"""Largest share of the annotated genes that a GO term may have: beyond it, terms are as general as "cytosol"."""
MOST_CITED = 100
"""Most genes of a paper: papers with more report genome-wide experiments or gene lists."""

SCREEN_PAPERS = {
    "27984732": "Dixit 2016",
    "27984733": "Adamson 2016",
    "30612741": "Gasperini 2019",
    "31395745": "Norman 2019",
    "32231336": "Replogle 2020",
    "33649592": "Frangieh 2021",
    "33649593": "Papalexi 2021",
    "35688146": "Replogle 2022",
}
"""PubMed ids of papers that report perturbation screens, on which models are evaluated: the literature omits them."""


def go_rows(database: sqlite3.Connection) -> Iterator[tuple[str, str, str]]:
    """Symbol, term and evidence of the direct annotations."""
    for aspect in ASPECTS:
        yield from database.execute(f"SELECT symbol, go_id, evidence FROM gene_info JOIN go_{aspect} USING (_id)")


def alias_pairs(database: sqlite3.Connection) -> Iterator[tuple[str, str]]:
    """Current symbol and another name of each gene that has GO rows."""
    in_go = " UNION ".join(f"SELECT _id FROM go_{aspect}" for aspect in ASPECTS)
    yield from database.execute(
        "SELECT symbol, alias_symbol FROM gene_info JOIN alias USING (_id) "
        f"WHERE symbol != alias_symbol AND _id IN ({in_go})"
    )


def sort_aliases(pairs: list[tuple[str, str]], symbols: set[str]) -> tuple[dict[str, str], set[str]]:
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


def direct_go(rows: Iterable[tuple[str, str, str]], pairs: Iterable[tuple[str, str]]) -> GeneAnnotation:
    """Direct GO annotation with aliases; evidence ND and unannotated genes are excluded."""
    rows, pairs = list(rows), list(pairs)
    terms_of: defaultdict[str, set[str]] = defaultdict(set)
    for symbol, term, evidence in rows:
        if evidence != NO_DATA:
            terms_of[symbol].add(term)
    aliases, ambiguous = sort_aliases(pairs, {symbol for symbol, *_ in rows})
    aliases = {name: gene for name, gene in aliases.items() if gene in terms_of}
    plain = GeneAnnotation.from_dict(terms_of, aliases=aliases)
    return dataclasses.replace(plain, ambiguous=frozenset(ambiguous))


def annotation_of(pairs: Iterable[tuple[str, str]], most: float = np.inf) -> GeneAnnotation:
    """Annotation from pairs of symbol and term; terms with 2 to `most` genes, and the genes that carry them."""
    genes_of: defaultdict[str, set[str]] = defaultdict(set)
    for symbol, term in pairs:
        genes_of[term].add(symbol)
    terms_of: defaultdict[str, set[str]] = defaultdict(set)
    for term, genes in genes_of.items():
        if FEWEST_GENES <= len(genes) <= most:
            for gene in genes:
                terms_of[gene].add(term)
    return GeneAnnotation.from_dict(terms_of)


def go_with_ancestors(database: sqlite3.Connection) -> GeneAnnotation:
    """GO terms and all their ancestors, without evidence ND and without very general terms."""
    pairs = {
        pair
        for aspect in ASPECTS
        for pair in database.execute(
            f"SELECT symbol, go_id FROM gene_info JOIN go_{aspect}_all USING (_id) WHERE evidence != ?", [NO_DATA]
        )
    }
    return annotation_of(pairs, most=MOST_GO_SHARE * len({symbol for symbol, _ in pairs}))


def literature(database: sqlite3.Connection) -> GeneAnnotation:
    """PubMed ids of the papers about each gene; NCBI's "biological regions", which are no genes, are excluded."""
    pairs = database.execute(
        "SELECT symbol, pubmed_id FROM gene_info JOIN pubmed USING (_id) JOIN genetype USING (_id) "
        "WHERE gene_type != 'biological-region'"
    )
    return annotation_of((pair for pair in pairs if pair[1] not in SCREEN_PAPERS), most=MOST_CITED)


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


def build(database_file: Path, output: Path) -> dict[str, GeneAnnotation]:
    """Write every table into the folder `output`; file name -> table."""
    with contextlib.closing(sqlite3.connect(f"{database_file.resolve().as_uri()}?mode=ro", uri=True)) as database:
        tables = {
            "human_go.npz": direct_go(go_rows(database), alias_pairs(database)),
            "human_go_ancestors.npz": go_with_ancestors(database),
            "human_literature.npz": literature(database),
        }
    for name, annotation in tables.items():
        write_deterministic_npz(output / name, annotation.arrays())
    return tables


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("database", type=Path, help="org.Hs.eg.sqlite of the package")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder of the tables")
    arguments = parser.parse_args()
    for name, annotation in build(arguments.database, arguments.output).items():
        print(
            f"{name}: {len(annotation.genes)} genes, {len(annotation.terms)} terms, {annotation.matrix.nnz} pairs, "
            f"{len(annotation.aliases)} aliases, {len(annotation.ambiguous)} ambiguous names, "
            f"{(arguments.output / name).stat().st_size} bytes, content {annotation.content_hash[:12]}"
        )


if __name__ == "__main__":
    main()
