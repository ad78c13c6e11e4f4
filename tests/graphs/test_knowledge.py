"""Packaged knowledge about genes: what the tables hold, and the similarity that is computed from them."""

import math
import re

import numpy as np
import pytest

from gears.graphs import KNOWLEDGE, GeneAnnotation, knowledge_similarity, knowledge_table, weighted_cosine

TERMS_OF = {
    "A": {"all", "rare", "common"}, "B": {"all", "rare"}, "C": {"all", "common", "single"},
    "D": {"all", "common"}, "E": {"all"},
}  # fmt: skip


def by_hand(terms_of: dict[str, set[str]], first: str, second: str) -> float:
    """The formula, term by term."""
    everything = set().union(*terms_of.values())
    weight = {term: -math.log(sum(term in terms for terms in terms_of.values()) / len(terms_of)) for term in everything}
    shared = sum(weight[term] ** 2 for term in terms_of[first] & terms_of[second])
    lengths = [math.sqrt(sum(weight[term] ** 2 for term in terms_of[gene])) for gene in (first, second)]
    return shared / math.prod(lengths) if all(lengths) else 0.0


def test_weighted_cosine_is_the_formula():
    annotation = GeneAnnotation.from_dict({**TERMS_OF}, aliases={"OLD": "B"})
    similarity = weighted_cosine(annotation, ["unknown", "D", "OLD", "A", "C", "E"], ["C", "A", "B", "unknown"])
    expected = [
        [0.0 if "unknown" in (row, column) else by_hand(TERMS_OF, row, column) for column in ["C", "A", "B", "unknown"]]
        for row in ["unknown", "D", "B", "A", "C", "E"]
    ]
    np.testing.assert_allclose(similarity, expected, rtol=1e-12)
    assert similarity[2, 2] == pytest.approx(1)  # two names of one gene
    assert similarity[5].tolist() == [0, 0, 0, 0]  # a term that all genes share says nothing


@pytest.mark.parametrize(
    ("name", "times", "pattern"),
    [("go_ancestors", 30, r"RP[LS]\d+[AXYL]?\d?"), ("literature", 300, r"MED\d+")],
)
def test_subunits_of_a_complex_are_more_similar_than_random_genes(name, times, pattern):
    genes = knowledge_table(name).genes
    subunits = [gene for gene in genes if re.fullmatch(pattern, gene)]
    others = np.random.default_rng(0).choice(genes, 400, replace=False).tolist()
    random = off_diagonal_mean(knowledge_similarity(name, others, others))
    assert off_diagonal_mean(knowledge_similarity(name, subunits, subunits)) > times * random


def off_diagonal_mean(similarity: np.ndarray) -> float:
    return float(similarity[~np.eye(len(similarity), dtype=bool)].mean())


def test_packaged_tables():
    shapes = {name: (*knowledge_table(name).matrix.shape, knowledge_table(name).matrix.nnz) for name in KNOWLEDGE}
    assert shapes == {
        "go_ancestors": (18476, 18127, 852304),
        "literature": (25667, 255658, 798769),
    }
    assert knowledge_table("literature") is knowledge_table("literature")
    for name in KNOWLEDGE:
        genes = ["PSMA1", "CARS", "CARS1", "no gene"]
        expected = weighted_cosine(knowledge_table(name), genes, genes)
        np.testing.assert_allclose(knowledge_similarity(name, genes, genes), expected, rtol=1e-5)
        assert np.diag(expected) == pytest.approx([1, 1, 1, 0])
        assert expected[1, 2] == pytest.approx(1)  # two names of one gene
    largest = {name: np.bincount(knowledge_table(name).matrix.indices).max() for name in KNOWLEDGE}
    assert largest["literature"] <= 100
    assert largest["go_ancestors"] <= 0.05 * len(GeneAnnotation.human())
    papers_of_screens = {"31395745", "27984733", "27984732", "33649593", "35688146", "32231336"}
    assert not papers_of_screens & set(knowledge_table("literature").terms)
