"""Annotation and ontology files: GAF 2.x, GMT, NCBI gene2go, tables of gene and term, OBO."""

from __future__ import annotations

import csv
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from gears.core._messages import count, shorten
from gears.files._paths import existing_file, user_path
from gears.files._untrusted import text_lines

if TYPE_CHECKING:
    import networkx

logger = logging.getLogger(__name__)

NO_DATA = "ND"
"""Evidence code of an annotation that says that nothing is known."""
_SYMBOL_HEADERS = {"symbol", "gene", "gene_name"}
_GAF_COLUMNS = 15  # to the date; extension and gene product may be missing
_GENE2GO = ("tax_id", "geneid", "go_id")
FORMATS = {".gaf": "GAF", ".gmt": "GMT", **dict.fromkeys((".tsv", ".csv", ".txt", "gene2go"), "table")}

RELATIONS = ("is_a", "part_of")
"""Relations along which an annotation holds for the ancestor as well."""


@dataclass
class AnnotationRows:
    """What an annotation file says."""

    terms_of: dict[str, set[str]] = field(default_factory=dict)  # gene -> terms
    names_of: dict[str, set[str]] = field(default_factory=dict)  # gene -> other names of it

    def add(self, gene: str, term: str) -> None:
        self.terms_of.setdefault(gene, set()).add(term)

    def aliases(self) -> tuple[dict[str, str], frozenset[str]]:
        """Alias -> gene, and the names that several genes share."""
        owners: dict[str, set[str]] = {}
        for gene, names in self.names_of.items():
            for name in names:
                owners.setdefault(name, set()).add(gene)
        free = {name: genes for name, genes in owners.items() if name not in self.terms_of}
        single = {name: next(iter(genes)) for name, genes in free.items() if len(genes) == 1}
        return single, frozenset(name for name, genes in free.items() if len(genes) > 1)


def format_of(path: Path) -> str | None:
    """Kind of an annotation file by its name, ``.gz`` or not; None for what is not read here."""
    suffixes = path.suffixes[:-1] if path.suffix == ".gz" else path.suffixes
    stem = path.name.removesuffix(".gz")
    return FORMATS.get(suffixes[-1] if suffixes else stem)


def read_rows(
    path: str | Path, *, symbols: Mapping[str, str] | str | Path | None = None, taxon: int | None = None
) -> AnnotationRows:
    """Read GAF 2.x, GMT, NCBI's gene2go, or a table of gene and term, ``.gz`` or not; without NOT and evidence ND.

    `symbols`: symbol of each gene id, for gene2go: a dict or NCBI's ``gene_info`` file.
    `taxon`: species, by NCBI's number, where a file holds several.
    """
    path = existing_file(path, "annotation file")
    file_format = format_of(path)
    if file_format == "table":
        rows = _table(path, symbols, taxon)
    else:
        rows = _gmt(path) if file_format == "GMT" else _gaf(path, taxon)
    if not rows.terms_of:
        msg = f"{path} holds no annotation (as {file_format}): it may be of another format, or of another species"
        raise ValueError(msg)
    return rows


def _rows(path: Path, delimiter: str = "\t") -> Iterator[tuple[int, list[str]]]:
    """Numbered rows of a text file."""
    lines = text_lines(path)
    reader = csv.reader(lines) if delimiter == "," else csv.reader(lines, "excel-tab", quoting=csv.QUOTE_NONE)
    try:
        yield from enumerate(reader, start=1)
    except csv.Error as error:
        msg = f"{path}, after line {reader.line_num}, cannot be read as a table ({error}); get it again"
        raise ValueError(msg) from error


def _gaf(path: Path, taxon: int | None) -> AnnotationRows:
    rows, taxa = AnnotationRows(), set()
    for number, row in _rows(path):
        if not row or row[0].startswith("!"):
            continue
        if len(row) < _GAF_COLUMNS:
            msg = f"{path}, line {number}: expected the {_GAF_COLUMNS} or more columns of GAF, found {len(row)}"
            raise ValueError(msg)
        species = row[12].split("|")[0].removeprefix("taxon:")
        if taxon is not None and species != str(taxon):
            continue
        taxa.add(species)
        if "NOT" in row[3].split("|") or row[6] == NO_DATA:
            continue
        gene = row[2].strip()
        rows.add(gene, row[4].strip())
        rows.names_of.setdefault(gene, set()).update(
            name.strip() for name in [row[1], *row[10].split("|")] if name.strip() and name.strip() != gene
        )
    _one_species(path, taxa)
    return rows


def _gmt(path: Path) -> AnnotationRows:
    """A line per term: its name, a description, its genes."""
    rows = AnnotationRows()
    for number, row in _rows(path):
        if not any(row):
            continue
        if len(row) < 3:
            msg = f"{path}, line {number}: expected a gene set, a description and genes, found {json.dumps(row)}"
            raise ValueError(msg)
        for gene in row[2:]:
            if gene.strip():
                rows.add(gene.strip(), row[0].strip())
    return rows


def _table(path: Path, symbols: Mapping[str, str] | str | Path | None, taxon: int | None) -> AnnotationRows:
    rows = AnnotationRows()
    for number, row in _rows(path, "," if ".csv" in path.suffixes else "\t"):
        first = row[0].strip().lower().lstrip("#") if row else ""
        if number == 1 and [name.strip().lower().lstrip("#") for name in row[:3]] == list(_GENE2GO):
            return _gene2go(path, symbols, taxon)
        if not row or (number == 1 and first in _SYMBOL_HEADERS):
            continue
        if len(row) < 2:
            msg = f"{path}, line {number}: expected gene and term, found {json.dumps(row)}"
            raise ValueError(msg)
        rows.add(row[0].strip(), row[1].strip())
    return rows


def _gene2go(path: Path, symbols: Mapping[str, str] | str | Path | None, taxon: int | None) -> AnnotationRows:
    """NCBI: tax_id, GeneID, GO_ID, Evidence, Qualifier, GO_term, PubMed, Category."""
    if symbols is None:
        msg = (
            f"{path.name} names genes by NCBI's numbers; give their symbols: "
            "gene2go=GeneAnnotation.from_path(file, symbols='Mus_musculus.gene_info.gz')"
        )
        raise ValueError(msg)
    if not isinstance(symbols, Mapping):
        rows = _rows(user_path(symbols))
        symbols = {row[1]: row[2] for _, row in rows if len(row) > 2 and row[1].isdigit()}
    annotated, taxa = AnnotationRows(), set()
    for number, row in _rows(path):
        if number == 1 or not row or (taxon is not None and row[0] != str(taxon)):
            continue
        taxa.add(row[0])
        negated = len(row) > 4 and "NOT" in row[4].upper().replace("|", " ").split()
        if not negated and (len(row) < 4 or row[3] != NO_DATA) and row[1] in symbols:
            annotated.add(symbols[row[1]], row[2])
    _one_species(path, taxa)
    return annotated


def _one_species(path: Path, taxa: set[str]) -> None:
    if len(taxa) > 1:
        msg = (
            f"{path.name} holds {len(taxa)} species ({shorten(sorted(taxa))}), whose symbols are alike; choose one: "
            "GeneAnnotation.from_path(file, taxon=10090)"
        )
        raise ValueError(msg)


@dataclass(frozen=True)
class Ontology:
    """Terms and what they are part of."""

    graph: networkx.DiGraph  # networkx DiGraph with an edge from each term to each parent
    primary: dict[str, str]  # alternative identifier -> the term's present one

    @classmethod
    def from_obo(cls, path: str | Path) -> Ontology:
        """Read an OBO file, ``.gz`` or not: is_a and part_of; obsolete terms are excluded."""
        import networkx

        path = existing_file(path, "ontology file")
        graph = networkx.DiGraph()
        primary: dict[str, str] = {}
        for term in _stanzas(path):
            name = term.get("id", [""])[0]
            if not name or "true" in term.get("is_obsolete", []):
                continue
            graph.add_node(name)
            parents = [value for value in term.get("is_a", []) if value] + [
                words[1]
                for words in (value.split() for value in term.get("relationship", []))
                if len(words) > 1 and words[0] in RELATIONS
            ]
            graph.add_edges_from((name, parent.split()[0]) for parent in parents)
            primary |= dict.fromkeys(term.get("alt_id", []), name)
        if not len(graph):
            msg = f"{path} holds no [Term]; expected an ontology in OBO format"
            raise ValueError(msg)
        if not networkx.is_directed_acyclic_graph(graph):
            circle = [edge[0] for edge in networkx.find_cycle(graph)]
            msg = f"terms of {path} are their own ancestors: {shorten(circle)}"
            raise ValueError(msg)
        return cls(graph, primary)

    def ancestors(self, annotated: Sequence[str]) -> tuple[list[str], sparse.csr_matrix]:
        """Terms and their ancestors, but for the roots, which all genes would share; and which is one of which.

        Terms that the ontology lacks are unchanged; alternative identifiers become the present ones. The matrix has
        a row for each annotated term, and 1 in the columns of the term and of its ancestors, (annotated, terms) int32.
        """
        import networkx

        known = [self.primary.get(term, term) for term in annotated]
        unknown = [term for term in known if term not in self.graph]
        if len(unknown) == len(known):
            msg = (
                f"the ontology has none of the {len(known)} terms of the annotation (annotation: "
                f"{shorten(annotated, 3)}; ontology: {shorten(list(self.graph)[:3])})"
            )
            raise ValueError(msg)
        if unknown:
            logger.warning("%s not in the ontology: %s", count(len(unknown), "term"), shorten(unknown))
        roots = {term for term, n_parents in self.graph.out_degree() if n_parents == 0}
        reached = {
            term: ({term, *networkx.descendants(self.graph, term)} if term in self.graph else {term}) - roots
            for term in dict.fromkeys(known)
        }
        terms = sorted(set().union(*reached.values()))
        column = {term: place for place, term in enumerate(terms)}
        pairs = [(row, column[term]) for row, name in enumerate(known) for term in reached[name]]
        row_E, column_E = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        ones_E = np.ones(len(pairs), dtype=np.int32)
        return terms, sparse.csr_matrix((ones_E, (row_E, column_E)), shape=(len(known), len(terms)))


def _stanzas(path: Path) -> Iterator[dict[str, list[str]]]:
    """Tags and values of every [Term]; comments after "!" and qualifiers in braces are taken off."""
    term: dict[str, list[str]] | None = None
    for line in map(str.strip, text_lines(path)):
        if line.startswith("["):
            if term is not None:
                yield term
            term = {} if line == "[Term]" else None
        elif term is not None and ": " in line:
            tag, value = line.split(": ", 1)
            term.setdefault(tag, []).append(value.split(" ! ")[0].split(" {")[0].strip())
    if term is not None:
        yield term
