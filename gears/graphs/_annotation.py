"""Gene annotation: which gene carries which terms, and which names mean which gene."""

from __future__ import annotations

import functools
import importlib.resources
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from gears.core._messages import check_unique, nearest, shorten
from gears.files._mapped import check_compressed
from gears.files._paths import need_file, reading, user_path
from gears.files._untrusted import is_pickle, load_plain
from gears.files.formats import content_hash, read_json, read_npz
from gears.graphs import _annotation_files as annotation_files

HUMAN_RESOURCE = "human_go.npz"
_MEMBER = re.compile(r"(?P<family>.*?[A-Za-z]-?)(?:\d+\w*|(?<=-)\w+)")
_TYPING_ERROR = 0.8
"""Similarity (difflib) from which a symbol counts as a mistyped one: one other letter of five."""


@dataclass(frozen=True, eq=False)
class GeneAnnotation:
    """Genes, terms, and a sparse genes x terms matrix.

    Parameters
    ----------
    genes
        Gene symbols, unique; the rows of `matrix`.
    terms
        Term identifiers, unique; the columns of `matrix`.
    matrix
        Sparse (genes, terms); entries other than zero mean "carries the term". Kept as CSR int32 ones with sorted
        indices, so that products of rows count shared terms without overflow.
    aliases
        Other names of genes: alias -> symbol in `genes`. An alias that is
        itself a symbol is an error: a symbol always means its own gene.
    ambiguous
        Names that several genes share. They resolve to nothing.

    Examples
    --------
    >>> annotation = GeneAnnotation.from_dict({"A": ["t1", "t2"], "B": ["t2"]}, aliases={"OLD": "A"})
    >>> annotation.resolve("OLD")
    'A'
    >>> annotation.rows(["B", "OLD", "unknown"]).toarray().tolist()
    [[0, 1], [1, 1], [0, 0]]
    """

    genes: list[str]
    terms: list[str]
    matrix: sparse.csr_matrix
    aliases: Mapping[str, str] = field(default_factory=dict)
    ambiguous: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        matrix = sparse.csr_matrix(self.matrix)
        if matrix.shape != (len(self.genes), len(self.terms)):
            msg = (
                f"annotation matrix has shape {matrix.shape}; expected (genes, terms) = "
                f"({len(self.genes)}, {len(self.terms)})"
            )
            raise ValueError(msg)
        check_unique(self.genes, "gene names of an annotation")
        check_unique(self.terms, "term names of an annotation")
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
        # int32, not int8: M @ M.T counts shared terms, which can exceed 127.
        ones = np.ones(matrix.nnz, dtype=np.int32)
        matrix = sparse.csr_matrix((ones, matrix.indices, matrix.indptr), shape=matrix.shape)
        object.__setattr__(self, "matrix", matrix)
        object.__setattr__(self, "ambiguous", frozenset(self.ambiguous))
        known = self._index
        wrong = [alias for alias, gene in self.aliases.items() if gene not in known or alias in known]
        if wrong:
            msg = (
                f"{len(wrong)} aliases mean no annotated gene or are symbols themselves: {shorten(wrong)}; "
                "expected alias -> annotated symbol"
            )
            raise ValueError(msg)

    @functools.cached_property
    def _index(self) -> dict[str, int]:
        return {gene: i for i, gene in enumerate(self.genes)}

    @functools.cached_property
    def content_hash(self) -> str:
        """SHA-256 of genes, terms, matrix and aliases."""
        return content_hash(
            list(self.genes),
            list(self.terms),
            self.matrix.indptr.astype(np.int64),
            self.matrix.indices.astype(np.int64),
            dict(self.aliases),
            sorted(self.ambiguous),
        )

    def __len__(self) -> int:
        return len(self.genes)

    def __repr__(self) -> str:
        return f"GeneAnnotation({len(self.genes)} genes, {len(self.terms)} terms, {len(self.aliases)} aliases)"

    def resolve(self, symbol: str) -> str | None:
        """Annotated symbol that `symbol` means: itself, or the gene of an unambiguous alias, else None."""
        if symbol in self._index:
            return symbol
        return self.aliases.get(symbol)

    def rows(self, symbols: Sequence[str]) -> sparse.csr_matrix:
        """CSR (len(symbols), terms) of int32 ones in the symbols' order; aliases resolved, unknown symbols empty."""
        resolved = [self.resolve(symbol) for symbol in symbols]
        index = np.array([-1 if gene is None else self._index[gene] for gene in resolved], dtype=np.int64)
        known = index >= 0
        indptr = np.concatenate([[0], np.cumsum(known)])
        pick = sparse.csr_matrix(
            (np.ones(known.sum(), dtype=np.int32), index[known], indptr), shape=(len(index), len(self.genes))
        )
        rows = sparse.csr_matrix(pick @ self.matrix)
        rows.sort_indices()
        return rows

    def terms_of(self, symbols: Iterable[str]) -> dict[str, set[str]]:
        """Symbol -> its terms, for symbols that have any."""
        names = list(symbols)
        rows = self.rows(names)
        terms = [{self.terms[i] for i in rows[row].indices} for row in range(len(names))]
        return {name: own for name, own in zip(names, terms, strict=True) if own}

    @classmethod
    def human(cls) -> GeneAnnotation:
        """The packaged human Gene Ontology annotation (direct annotations, without evidence ND).

        Read once per process. Origin and licences: ``gears/resources/README.md``.
        """
        return _human()

    @classmethod
    def from_dict(
        cls, terms_of: Mapping[str, Iterable[str]], *, aliases: Mapping[str, str] | None = None
    ) -> GeneAnnotation:
        """Build from gene -> terms; a gene without terms is kept (an isolated node)."""
        if not isinstance(terms_of, Mapping):
            msg = f"expected an object gene -> list of terms; found {type(terms_of).__name__}"
            raise ValueError(msg)
        for gene, terms in terms_of.items():
            if not isinstance(gene, str) or isinstance(terms, str) or not isinstance(terms, Iterable):
                msg = f"expected gene -> iterable of term names; found {gene!r} -> {terms!r}"
                raise ValueError(msg)
        genes = sorted(terms_of)
        sets = [sorted({str(term) for term in terms_of[gene]}) for gene in genes]
        terms = sorted({term for names in sets for term in names})
        column = {term: i for i, term in enumerate(terms)}
        indptr = np.concatenate([[0], np.cumsum([len(names) for names in sets], dtype=np.int64)])
        indices = np.array([column[term] for names in sets for term in names], dtype=np.int64)
        matrix = sparse.csr_matrix(
            (np.ones(len(indices), dtype=np.int32), indices, indptr), shape=(len(genes), len(terms))
        )
        return cls(genes, terms, matrix, dict(aliases or {}))

    @classmethod
    def from_path(
        cls,
        path: str | Path,
        *,
        obo: str | Path | None = None,
        symbols: Mapping[str, str] | str | Path | None = None,
        taxon: int | None = None,
    ) -> GeneAnnotation:
        """Read an annotation file.

        Parameters
        ----------
        path
            ``.json``: object gene -> list of terms; ``.npz``: as :meth:`arrays`
            gives; ``.gaf`` (GAF 2.x: synonyms become aliases), ``.gmt``, NCBI's ``gene2go``, or
            ``.tsv``/``.csv`` (first column gene, second column term, with or without the header
            ``symbol``/``gene`` ..., further columns ignored); all of these optionally ``.gz``.
        obo
            An ontology in OBO format: see :meth:`with_ancestors`.
        symbols, taxon
            See :func:`gears.graphs._annotation_files.read_rows`.

        Raises
        ------
        ValueError
            For other formats (pickles can run code and are not read) or damaged files.
        """
        annotation = cls._from_file(user_path(path), symbols, taxon)
        return annotation if obo is None else annotation.with_ancestors(obo)

    @classmethod
    def _from_file(
        cls, path: Path, symbols: Mapping[str, str] | str | Path | None, taxon: int | None
    ) -> GeneAnnotation:
        if path.suffix in (".npz", ".json"):
            with reading(path, "an annotation", "if damaged, restore it or write it again"):
                return cls.from_arrays(read_npz(path)) if path.suffix == ".npz" else cls.from_dict(read_json(path))
        if annotation_files.format_of(path) is not None:
            rows = annotation_files.read_rows(path, symbols=symbols, taxon=taxon)
            aliases, ambiguous = rows.aliases()
            return replace(cls.from_dict(rows.terms_of, aliases=aliases), ambiguous=ambiguous)
        msg = (
            f"cannot read an annotation from {path.name!r}; expected .json, .npz, .gaf, .gmt, gene2go, .tsv or .csv. "
            "A pickle can run code when read: load it yourself and pass the dict (gene -> terms) instead"
        )
        raise ValueError(msg)

    def with_ancestors(self, obo: str | Path) -> GeneAnnotation:
        """The annotation with every ancestor of each gene's terms, from an ontology in OBO format.

        The roots, which all genes would share, are excluded. Terms that the ontology lacks are unchanged;
        alternative identifiers become the present ones.
        """
        terms, ancestors = annotation_files.Ontology.from_obo(obo).ancestors(self.terms)
        return replace(self, terms=terms, matrix=sparse.csr_matrix(self.matrix @ ancestors))

    def arrays(self) -> dict[str, np.ndarray]:
        """Plain arrays for an npz file: names as UTF-8 bytes joined by line feeds, the matrix as CSR."""
        names = sorted(self.aliases)
        wide = np.uint16 if len(self.terms) <= 2**16 else np.uint32
        return {
            "genes": pack(self.genes),
            "terms": pack(self.terms),
            "indptr": self.matrix.indptr.astype(np.int32),
            "indices": self.matrix.indices.astype(wide),
            "alias": pack(names),
            "alias_gene": np.array([self._index[self.aliases[name]] for name in names], dtype=np.int32),
            "ambiguous": pack(sorted(self.ambiguous)),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> GeneAnnotation:
        """Inverse of :meth:`arrays`."""
        missing = {"genes", "terms", "indptr", "indices"} - set(arrays)
        if missing:
            msg = f"annotation arrays lack {shorten(sorted(missing))}; found {shorten(sorted(arrays))}"
            raise ValueError(msg)
        genes, terms = unpack(arrays["genes"]), unpack(arrays["terms"])
        indices = arrays["indices"].astype(np.int32)
        matrix = sparse.csr_matrix(
            (np.ones(len(indices), dtype=np.int32), indices, arrays["indptr"].astype(np.int32)),
            shape=(len(genes), len(terms)),
        )
        check_compressed("the table of genes and terms", matrix)
        names = unpack(arrays["alias"]) if "alias" in arrays else []
        owners = arrays["alias_gene"].tolist() if names else []
        aliases = {name: genes[owner] for name, owner in zip(names, owners, strict=True)}
        ambiguous = frozenset(unpack(arrays["ambiguous"])) if "ambiguous" in arrays else frozenset()
        return cls(genes, terms, matrix, aliases, ambiguous)


@functools.cache
def _human() -> GeneAnnotation:
    return GeneAnnotation.from_arrays(packaged_arrays(HUMAN_RESOURCE))


def packaged_arrays(name: str) -> dict[str, np.ndarray]:
    """Arrays of an npz file of the package, by its name in ``gears/resources``."""
    with importlib.resources.as_file(importlib.resources.files("gears.resources") / name) as path:
        return read_npz(path)


def pack(names: Sequence[str]) -> np.ndarray:
    """Names as bytes: an npz of fixed-width strings would be many times larger, objects would need pickle."""
    broken = [name for name in names if "\n" in name or not name]
    if broken:
        msg = f"names must be non-empty and hold no line feed; found {shorten(map(repr, broken))}"
        raise ValueError(msg)
    return np.frombuffer("\n".join(names).encode(), dtype=np.uint8)


def unpack(packed: np.ndarray) -> list[str]:
    """Inverse of :func:`pack`."""
    text = packed.astype(np.uint8).tobytes().decode()
    return text.split("\n") if text else []


def annotation_from(gene2go: Mapping[str, Any] | GeneAnnotation | str | Path | None) -> GeneAnnotation:
    """The annotation that a user means: None for the human one of the package."""
    if gene2go is None:
        return GeneAnnotation.human()
    if isinstance(gene2go, GeneAnnotation):
        return gene2go
    if isinstance(gene2go, (str, Path)):
        gene2go = need_file(gene2go, "gene2go")
        if is_pickle(gene2go):  # gene2go_all.pkl of the published package
            return annotation_from(load_plain(gene2go))
        return GeneAnnotation.from_path(gene2go)
    if isinstance(gene2go, Mapping):
        return GeneAnnotation.from_dict(gene2go)
    msg = f"gene2go is a dict of gene -> terms, a GeneAnnotation or a path; found {type(gene2go).__name__}"
    raise TypeError(msg)


def near_symbols(name: str, symbols: Sequence[str], n: int = 3) -> list[str]:
    """Up to `n` of the symbols that may be meant by a name that is none of them.

    The same symbol in other letters or with other signs, or its other names (of human genes). Where there are none,
    the symbol with letters in another order, then members of the same family or, without a family, symbols with a
    typing error.

    >>> near_symbols("klf-1", ["AHR", "KLF1", "KLF2"]), near_symbols("OCT4", ["OCA2", "POU5F1"])
    (['KLF1'], ['POU5F1'])
    >>> near_symbols("FGF2", ["FGF22", "FGR", "FGF7", "F2"]), near_symbols("CEPBA", ["CENPA", "CEBPA"])[0]
    (['FGF22', 'FGF7'], 'CEBPA')
    """
    spelled = _plain(name)
    same = [symbol for symbol in symbols if _plain(symbol) == spelled]
    other_names = set(_other_names(name))
    same += [symbol for symbol in symbols if symbol in other_names and symbol not in same]
    if same:
        return same[:n]
    letters, family = sorted(spelled), _family(name)
    swapped = [symbol for symbol in symbols if sorted(_plain(symbol)) == letters]
    relatives = [symbol for symbol in symbols if family and _family(symbol) == family]
    like = nearest(name, relatives, n, least=0.0) or nearest(name, symbols, n, least=_TYPING_ERROR)
    return list(dict.fromkeys([*swapped, *like]))[:n]


def _plain(name: str) -> str:
    return re.sub(r"[\s_.-]", "", name).lower()


def _family(symbol: str) -> str | None:
    """What the symbols of a family begin with ("KLF" of KLF1, "HLA-" of HLA-A), in capitals; None without a number."""
    match = _MEMBER.fullmatch(symbol)
    return None if match is None else match["family"].upper()


def _other_names(name: str) -> list[str]:
    """The symbol that a name is an alias of, and the symbol's aliases."""
    annotation = GeneAnnotation.human()
    symbol = annotation.resolve(name) or annotation.resolve(name.upper())
    if symbol is None:
        return []
    return [symbol, *(alias for alias, gene in annotation.aliases.items() if gene == symbol)]
