"""Effects of another screen in the prior: a covariance whatever is missing, and a residual where it helps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from gears import GEARS, PertData, simulated_screen
from gears.graphs import GeneEffects, read_effects
from gears.graphs._effects import NodeEffects
from gears.graphs._similarities import PriorInputs
from gears.graphs._sources import with_sources
from gears.priors import GeneSimilarity, prior_of
from gears.priors._kernels import AdditiveCovariance
from gears.priors._other_screens import Completed


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 1.0])
def test_the_completed_similarity_is_a_covariance_and_exact_where_both_are_known(share: float) -> None:
    rng, n = np.random.default_rng(3), 24
    positions = rng.normal(size=(n, 4))
    similar = positions @ positions.T
    similar /= np.sqrt(np.outer(np.diag(similar), np.diag(similar)))
    nodes = np.sort(rng.permutation(n)[: round(share * n)])
    unit = rng.normal(size=(n, 5))[nodes]
    table = GeneEffects(("A", "B"), ("X", "Y"), np.eye(2))
    effects = NodeEffects(nodes, unit, np.zeros(0, dtype=np.int64), table)
    every = np.arange(n)
    without = AdditiveCovariance(GeneSimilarity(every, sparse.csr_matrix(similar)), 0.1, 0.3, 0.7)
    found = Completed(effects, without).between(every, every)
    np.testing.assert_allclose(found, found.T, atol=1e-9)
    assert np.linalg.eigvalsh(found).min() > -1e-9
    np.testing.assert_allclose(np.diag(found), 1, atol=0.05)
    known = unit / np.linalg.norm(unit, axis=1, keepdims=True)
    np.testing.assert_allclose(found[np.ix_(nodes, nodes)], known @ known.T, atol=1e-6)
    missing = np.setdiff1d(every, nodes)
    if 0 < len(nodes) < n:
        across = found[np.ix_(missing, nodes)]
        assert np.abs(across).max() > 0.1, "not zero"
        # what is trained does not change what an unmeasured gene is like
        some = Completed(
            effects, AdditiveCovariance(GeneSimilarity(every[:20], sparse.csr_matrix(similar[:, :20])), 0, 0.3, 0.7)
        )
        assert np.linalg.eigvalsh(some.between(every[:20], every[:20])).min() > -1e-9
    if not len(nodes):
        expected = (0.7 * similar + 0.3 * np.eye(n)) / 1.01
        np.testing.assert_allclose(found, expected, atol=1e-9)


OPTIONS: dict[str, Any] = {"n_genes": 80, "n_singles": 40, "n_pairs": 0, "n_control": 100, "effect_size": 1.0}


@pytest.fixture(scope="module")
def screens(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PertData]:
    """A screen, another with the same effects and other cells, and one of other effects of the same genes."""
    folder, made = tmp_path_factory.mktemp("elsewhere"), {}
    for name, n_cells in (("first", 24), ("same", 18)):
        adata, _ = simulated_screen(**OPTIONS, cells_per_condition=n_cells, seed=2, go_strength=0.0)
        made[name] = PertData(folder, default_pert_graph=False)
        made[name].new_data_process(name, adata)
    made["first"].prepare_split("simulation", seed=1)
    return made


def scores(data: PertData, inputs: PriorInputs) -> tuple[Any, float]:
    """The prior, and its correlation with the test conditions' departures from the train mean."""
    prior = prior_of(data, inputs=inputs).prior
    tested = [one for one in data.split.conditions("test") if one.genes]
    ids = lambda some: np.array([data.screen.id_of(one) for one in some if one.genes])  # noqa: E731
    mean = data.screen.statistics.delta(ids(data.split.conditions("train"))).mean(axis=0)
    predicted = prior([data.condition_nodes(one) for one in tested]) - mean
    true = data.screen.statistics.delta(ids(tested)) - mean
    return prior, float(np.mean([np.corrcoef(one, other)[0, 1] for one, other in zip(predicted, true, strict=True)]))


def test_effects_elsewhere_on_any_scale_predict_unseen_genes_and_shuffled_ones_do_no_harm(
    screens: dict[str, PertData],
) -> None:
    data, same = screens["first"], screens["same"].effects()
    _, without = scores(data, PriorInputs())
    prior, found = scores(data, with_sources(PriorInputs(), data, {"same": same}, None))
    assert found > without + 0.3
    report = prior.report["effects_of"]["effects in same"]
    assert report["hash"] == same.content_hash
    assert 0.1 < report["gain"] <= 1
    assert prior.of_others is not None
    assert not set(prior.of_others.nodes_N) & set(prior.genes.trained_T)
    order = np.random.default_rng(0).permutation(len(same.genes))
    shuffled = GeneEffects(same.genes, same.measured, same.values[order], same.sd)
    other, harmed = scores(data, with_sources(PriorInputs(), data, {"shuffled": shuffled}, None))
    assert other.report["weights"]["effects in shuffled"] < 0.01 * prior.report["weights"]["effects in same"]
    assert other.of_others is None
    assert harmed > without - 0.03
    bare = GeneEffects(same.genes, same.measured, 1000 * same.values + 7)
    _, found = scores(data, with_sources(PriorInputs(), data, {"bare": bare}, None))
    assert found > without + 0.3


def test_a_saved_model_needs_no_source_and_holds_its_hash(screens: dict[str, PertData], tmp_path: Path) -> None:
    data, table = screens["first"], tmp_path / "same.npz"
    screens["same"].effects().save(table)
    model = GEARS(data, device="cpu")
    model.model_initialize(hidden_size=8)
    model.train(epochs=0, effects_of=str(table), save_path=str(tmp_path / "m"), verbose=False, evaluate_test=False)
    tested = [one for one in data.split.conditions("test") if one.genes]
    expected = model.predict(tested)
    key = read_effects(table).content_hash
    table.unlink()
    loaded = GEARS.from_pretrained(tmp_path / "m", device="cpu")
    np.testing.assert_allclose(loaded.predict(tested).expression_UG, expected.expression_UG, atol=2e-3)
    assert loaded.parts.provenance["sources"] == {"effects in same": key}
    assert loaded.parts.prior.report["effects_of"]["effects in same"]["hash"] == key
    # what the other screen adds to a gene never perturbed here is a row of the explanation
    found = loaded.explain(tested[0])
    rows = found.table[found.table["part"] == "effects of other screens"]
    assert len(rows) == 1
    assert np.abs(found.changes.loc[rows.index]).to_numpy().max() > 0
    np.testing.assert_allclose(found.changes.sum(), loaded.predict(tested[:1]).delta_UG[0], atol=1e-6)


def test_what_cannot_be_used_is_said_in_a_line(screens: dict[str, PertData], tmp_path: Path) -> None:
    data, same = screens["first"], screens["same"].effects()
    mouse = GeneEffects(tuple(gene.capitalize() for gene in same.genes), same.measured, same.values)
    strange = GeneEffects(tuple(f"Q{i}" for i in range(len(same.genes))), same.measured, same.values)
    measured = [gene for gene in data.screen.gene_names if gene not in data.screen.perturbed_genes]
    never = GeneEffects(tuple(measured[:5]), same.measured, same.values[:5])
    flat = GeneEffects(same.genes, same.measured, np.ones_like(same.values))
    vectors = {gene: np.random.default_rng(row).normal(size=3) for row, gene in enumerate(same.genes)}
    cases: list[tuple[Any, Any, str]] = [
        ({"m": mouse}, None, "effects_of, m: .*names of another species"),
        ({"m": strange}, None, "effects_of, m: no perturbed gene of it can be perturbed here"),
        ({"m": never}, None, "none of its genes is perturbed here"),
        ({"m": flat}, None, "the same effects there"),
        ({"m": data}, None, "that is the screen itself"),
        (None, {"GO": vectors}, "a similarity of genes is named 'GO'"),
        (None, {"literature": vectors}, "as a part of the prior is named"),
        (None, [same], "expected names with sources"),
        (tmp_path / "none.npz", None, "there is no file or folder"),
    ]
    for effects_of, similarities, words in cases:
        with pytest.raises((ValueError, TypeError, FileNotFoundError), match=words) as error:
            prior_of(data, inputs=with_sources(PriorInputs(), data, effects_of, similarities))
        assert "\n" not in str(error.value)
