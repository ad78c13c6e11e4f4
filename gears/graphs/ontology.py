"""Ancestors of terms from an ontology file (OBO), and annotations that include them."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from gears.files import user_path
from gears.graphs.annotation import GeneAnnotation
from gears.messages import count, shorten
from gears.texts import text_lines

if TYPE_CHECKING:
    import networkx

logger = logging.getLogger(__name__)

RELATIONS = ("is_a", "part_of")
"""Relations along which an annotation holds for the ancestor as well."""


@dataclass(frozen=True)
class Ontology:
    """Terms and what they are part of.

    Attributes
    ----------
    graph
        networkx DiGraph with an edge from each term to each parent.
    primary
        Alternative identifier -> the term's present one.
    """

    graph: networkx.DiGraph
    primary: dict[str, str]

    @classmethod
    def from_obo(cls, path: str | Path) -> Ontology:
        """Read an OBO file, ``.gz`` or not: is_a and part_of; obsolete terms are left out.

        Raises
        ------
        FileNotFoundError, ValueError
            There is no such file, it holds no term, or its terms are in a circle.
        """
        import networkx

        path = user_path(path)
        if not path.is_file():
            msg = f"there is no ontology file {path}"
            raise FileNotFoundError(msg)
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

    def propagate(self, annotation: GeneAnnotation) -> GeneAnnotation:
        """The annotation with every ancestor of each gene's terms, but for the roots, which all genes would share.

        Terms that the ontology lacks stay as they are; alternative identifiers become the present ones.
        """
        import networkx

        known = [self.primary.get(term, term) for term in annotation.terms]
        unknown = [term for term in known if term not in self.graph]
        if len(unknown) == len(known):
            msg = (
                f"the ontology has none of the {len(known)} terms of the annotation (annotation: "
                f"{shorten(annotation.terms, 3)}; ontology: {shorten(list(self.graph)[:3])})"
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
        closure = sparse.csr_matrix(
            (np.ones(len(pairs), dtype=np.int32), (row_E, column_E)), shape=(len(known), len(terms))
        )
        return dataclasses.replace(
            annotation, terms=terms, matrix=sparse.csr_matrix(annotation.matrix @ closure)
        )


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
