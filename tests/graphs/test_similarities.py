"""Another similarity of genes for the prior is registered in one place; the cache depends on its table."""

import math
import re

import numpy as np
import pandas as pd
import pytest
from driving import pert_data_of
from scipy import sparse
from test_effects import cosines

from gears import GEARS, simulated_screen
from gears.data.screen._cells import CellMatrix
from gears.graphs import KNOWLEDGE, SIMILARITIES, GeneAnnotation, knowledge_similarity, knowledge_table, weighted_cosine
from gears.graphs._profiles import correlation_profiles
from gears.graphs._similarities import PriorInputs
from gears.priors import prior_of

N_SINGLES = 30


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    adata, _ = simulated_screen(
        n_genes=60, n_singles=N_SINGLES, n_pairs=0, cells_per_condition=20, n_control=100, seed=4
    )
    return pert_data_of(tmp_path_factory.mktemp("similar"), adata, "screen", split="simulation")


@pytest.fixture
def registered():
    """A similarity called "pathways" by the user's table of genes that the test puts in."""
    tables: dict[str, pd.DataFrame] = {}

    @SIMILARITIES.register("pathways")
    def pathways(pert_data, inputs):
        return tables["pathways"].reindex(pert_data.pert_names).to_numpy() if tables else None

    yield tables
    del SIMILARITIES["pathways"]


def test_a_users_table_is_weighed_by_the_evidence(data, registered):
    before = prior_of(data)
    assert "pathways" not in before.prior.report["weights"]
    perturbed = [condition for condition in data.screen.conditions if condition.genes]
    rows = np.array([data.screen.id_of(condition) for condition in perturbed])
    genes = [condition.genes[0] for condition in perturbed]
    table = pd.DataFrame(data.screen.statistics.delta(rows), index=genes)
    registered["pathways"] = table
    fitted = prior_of(data)
    weights = fitted.prior.report["weights"]
    assert weights["pathways"] > 2 * max(
        weight for name, weight in weights.items() if name not in ("pathways", "offset")
    )
    tested = [data.condition_nodes(condition) for condition in data.split.conditions("test") if condition.genes]
    assert np.abs(fitted.prior(tested) - before.prior(tested)).max() > 0.01
    # another table is another prior, whatever the cache holds
    registered["pathways"] = pd.DataFrame(np.random.default_rng(0).normal(size=table.shape), index=genes)
    other = prior_of(data)
    assert other.prior.report["weights"]["pathways"] < 0.1 * weights["pathways"]


def test_all_that_is_fitted_reads_the_inputs_of_the_model(data):
    model = GEARS(data, device="cpu")
    names = [str(name) for name in data.pert_names]
    vectors = dict(zip(names, np.random.default_rng(1).normal(size=(len(names), 5)), strict=True))
    model.model_initialize(hidden_size=8, pert_embedding=vectors)
    fitted = prior_of(data, inputs=model.parts.inputs)
    assert "embeddings" in fitted.prior.report["weights"]
    assert fitted.inputs is model.parts.inputs
    assert PriorInputs().content_hash != fitted.inputs.content_hash


def stored(folder, values_NG):
    """Cells on disk, as in a prepared screen."""
    folder.mkdir()
    CellMatrix.write(folder, sparse.csr_matrix(values_NG.astype(np.float32)))
    return CellMatrix(folder, values_NG.shape[1])


def modules(n_cells, n_genes=60, n_modules=3, seed=0):
    """Cells whose genes follow one of a few programmes, and the programme of each gene."""
    draw = np.random.default_rng(seed)
    module_G = np.arange(n_genes) % n_modules
    activity_NM = draw.standard_normal((n_cells, n_modules))
    return 5 + 0.5 * activity_NM[:, module_G] + draw.standard_normal((n_cells, n_genes)), module_G


def test_with_all_components_cosines_are_those_of_whole_correlation_profiles(tmp_path):
    values_NG, _ = modules(200)
    found = correlation_profiles(stored(tmp_path / "cells", values_NG), [np.arange(200)], n_components=60)
    expected = cosines(np.corrcoef(values_NG.T))
    np.testing.assert_allclose(cosines(found), expected, atol=2e-4)


def test_contexts_do_not_make_genes_similar(tmp_path):
    draw = np.random.default_rng(1)
    values_NG = 5 + draw.standard_normal((400, 40))
    values_NG[200:, :20] += 6  # half of the genes differ between the two contexts
    cells = stored(tmp_path / "cells", values_NG)
    mixed = cosines(correlation_profiles(cells, [np.arange(400)]))
    within = cosines(correlation_profiles(cells, [np.arange(200), np.arange(200, 400)]))
    assert mixed[:20, :20].min() > 0.9
    assert np.abs(within[:20, :20] - np.eye(20)).mean() < 0.3


def test_constant_genes_have_no_profile_and_change_no_other(tmp_path):
    values_NG, _ = modules(100, n_genes=30)
    with_constant = np.concatenate([values_NG, np.full((100, 1), 0.1), np.zeros((100, 1))], axis=1)
    found = correlation_profiles(stored(tmp_path / "one", with_constant), [np.arange(100)], n_components=30)
    without = correlation_profiles(stored(tmp_path / "two", values_NG), [np.arange(100)], n_components=30)
    assert np.isnan(found[30:]).all()
    np.testing.assert_allclose(cosines(found[:30]), cosines(without), atol=2e-4)


@pytest.mark.parametrize("n_cells", [1, 2])
def test_a_control_of_hardly_any_cells(tmp_path, n_cells):
    values_NG, _ = modules(5)
    found = correlation_profiles(stored(tmp_path / "cells", values_NG), [np.arange(n_cells)])
    assert len(found) == values_NG.shape[1]
    assert np.isnan(found).all() == (n_cells < 2)


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
