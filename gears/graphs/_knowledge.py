"""Packaged knowledge about human genes (GO with ancestors, papers) and similarity of genes by it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from gears.core._registry import Registry
from gears.graphs._annotation import GeneAnnotation, packaged_arrays


@dataclass(frozen=True)
class KnowledgeSource:
    """A packaged table of human genes and terms.

    Genes are compared by the cosine of their terms' information content (:func:`weighted_cosine`). Origin, limits and
    licences of every table: ``gears/resources/README.md``.

    Attributes
    ----------
    description
        What the terms of a gene are.
    licence
        Licence of the data.
    file
        Name of the table in ``gears/resources``.
    """

    description: str
    licence: str
    file: str


KNOWLEDGE: Registry[KnowledgeSource] = Registry("source of gene knowledge")
_GO = "Gene Ontology terms with all their ancestors, up to terms of 5 % of the annotated genes"
_PAPERS = "PubMed ids of papers about 2 to 100 genes, without those that report perturbation screens"
for _name, _description, _licence in (
    ("go_ancestors", _GO, "CC BY 4.0"),
    ("literature", _PAPERS, "public domain (NCBI Gene)"),
):
    KNOWLEDGE.add(_name, KnowledgeSource(_description, _licence, f"human_{_name}.npz"))


def knowledge_table(name: str) -> GeneAnnotation:
    """The table of a source of :data:`KNOWLEDGE`, read once per process.

    Its aliases are those of :meth:`GeneAnnotation.human`: genes without a GO annotation are found by their symbol only.

    Raises
    ------
    ValueError
        No source has that name.
    """
    return _read(KNOWLEDGE[name].file, GeneAnnotation.human())


@functools.cache
def _read(file: str, human: GeneAnnotation) -> GeneAnnotation:
    table = GeneAnnotation.from_arrays(packaged_arrays(file))
    genes = set(table.genes)
    aliases = {alias: gene for alias, gene in human.aliases.items() if gene in genes and alias not in genes}
    return replace(table, aliases=aliases)


def knowledge_similarity(name: str, genes: Sequence[str], targets: Sequence[str]) -> np.ndarray:
    """Similarity of genes by what a packaged source says about them.

    Parameters
    ----------
    name
        A source of :data:`KNOWLEDGE`: ``"go_ancestors"`` or ``"literature"``.
    genes, targets
        Symbols or other names of human genes.

    Returns
    -------
    np.ndarray
        (A, T) float64 in 0..1, by :func:`weighted_cosine`.

    Examples
    --------
    >>> knowledge_similarity("literature", ["PSMA1", "RPL3", "no gene"], ["PSMA1", "PSMA2"]).round(2).tolist()
    [[1.0, 0.42], [0.01, 0.01], [0.0, 0.0]]
    """
    return weighted_cosine(knowledge_table(name), genes, targets)


def weighted_cosine(annotation: GeneAnnotation, genes: Sequence[str], targets: Sequence[str]) -> np.ndarray:
    """Cosine similarity of genes by their terms, each term weighted by its information content.

    A gene's vector has -log(share of the annotation's genes that carry the term) for each of its terms, so that two
    genes that share rare terms are more similar than two that share common ones (Resnik, IJCAI 1995).

    Parameters
    ----------
    annotation
        Terms of genes; aliases among the names are resolved.
    genes, targets
        Gene names.

    Returns
    -------
    np.ndarray
        (A, T) float64 in 0..1: 1 for a gene with itself; 0 for genes without terms, even with themselves.
    """
    return cosines(term_vectors(annotation, genes), term_vectors(annotation, targets))


def term_vectors(annotation: GeneAnnotation, genes: Sequence[str]) -> sparse.csr_matrix:
    """Vectors of :func:`weighted_cosine`, of length 1 or 0, (genes, terms)."""
    n_genes_of_term = np.bincount(annotation.matrix.indices, minlength=len(annotation.terms))
    weights = -np.log(np.maximum(n_genes_of_term, 1) / max(len(annotation), 1))
    return _unit_rows(annotation.rows(genes), weights)


def cosines(unit_A: sparse.csr_matrix, unit_T: sparse.csr_matrix) -> np.ndarray:
    """Cosines of two lists of vectors of :func:`term_vectors`, (A, T) float64."""
    return np.minimum((unit_A @ unit_T.T).toarray(), 1.0)  # rounding can take one beyond 1


def _unit_rows(rows: sparse.csr_matrix, weights: np.ndarray) -> sparse.csr_matrix:
    """Rows of ones times the weights of their columns, scaled to length 1; rows without weight are 0."""
    values = weights[rows.indices]
    length = np.sqrt(np.bincount(np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr)), values**2, rows.shape[0]))
    scale = np.divide(1.0, length, out=np.zeros_like(length), where=length > 0)
    values *= np.repeat(scale, np.diff(rows.indptr))
    return sparse.csr_matrix((values, rows.indices, rows.indptr), shape=rows.shape)
