"""Perturbations closest to a wanted change."""

import anndata
import numpy as np
import pandas as pd
import pytest

from gears.design import change_between, reverse
from gears.design.reverse import similarity
from gears.simulate import Truth


def test_conditions_are_recovered_from_their_own_profiles(model, design_screen):
    truth: Truth = design_screen[1]
    conditions = [one for one in model.parts.fitted_conditions() if len(one) == 1]
    candidates = [name for name in model.pert_list if name in set(truth.perturbed)]
    ranks = []
    for condition in conditions:
        wanted = pd.Series(truth.delta(condition), index=list(truth.genes))
        table = reverse(model, wanted, candidates, len(candidates))
        ranks.append(list(table["condition"]).index(condition.name))
    assert np.mean(np.array(ranks) == 0) > 0.8


def test_similarity_amount_and_their_interval():
    rng = np.random.default_rng(0)
    wanted_K, noise = np.repeat(rng.normal(size=(2, 8)), 5, axis=1)
    delta_UK = np.array([0.5 * wanted_K, -wanted_K, wanted_K + noise, 0 * wanted_K])
    cosine, low, high, amount = similarity(delta_UK, np.full((4, 40), 0.02), wanted_K)
    np.testing.assert_allclose(cosine[[0, 1, 3]], [1, -1, 0], atol=1e-9)
    np.testing.assert_allclose(amount[[0, 1, 3]], [0.5, -1, 0], atol=1e-9)
    assert low[2] < cosine[2] < high[2]
    # the interval is that of draws whose errors go together in groups of five genes
    error = np.repeat(rng.normal(size=(4000, 8)), 5, axis=1) * 0.02
    drawn, *_ = similarity(delta_UK[2] + error, np.zeros((4000, 40)), wanted_K)
    assert high[2] - low[2] == pytest.approx(2 * 1.645 * drawn.std(), rel=0.1)


def test_gene_lists_and_vectors_mean_the_same_and_measured_perturbations_can_be_excluded(model):
    genes = model.gene_list
    up_down = {genes[0]: 1, genes[1]: 1, genes[2]: -1}
    table = reverse(model, up_down, n=5)
    assert len(table) == 5
    delta = model.predict(list(table["condition"]), clip=False).delta_UG[:, :3] * [1, 1, -1]
    expected = delta.sum(axis=1) / np.linalg.norm(delta, axis=1) / np.sqrt(3)
    np.testing.assert_allclose(table["similarity"], expected)
    whole = np.linspace(-1, 1, len(genes))
    by_name = reverse(model, dict(zip(reversed(genes), whole[::-1], strict=True)), n=5)
    pd.testing.assert_frame_equal(reverse(model, whole, n=5), by_name)
    trained = {one.name for one in model.parts.fitted_conditions()}
    wanted = {model.gene_list[0]: 1}
    assert trained & set(reverse(model, wanted, n=100)["condition"])
    assert not trained & set(reverse(model, wanted, n=100, measured=False)["condition"])


def test_the_difference_of_two_groups(model):
    adata = anndata.AnnData(
        np.array([[1.0, 2], [3, 4], [0, 1]], dtype=np.float32),
        obs=pd.DataFrame({"state": ["a", "a", "b"]}, index=["x", "y", "z"]),
        var=pd.DataFrame(index=[model.gene_list[1], "OTHER"]),
    )
    change = change_between(adata, "state", "a", "b")
    np.testing.assert_allclose(change, [-2, -2])
    assert list(change_between(adata, "state", "a", "b", gene_names=model.gene_list).index) == [model.gene_list[1]]
    with pytest.raises(ValueError, match=r"no gene of the cells .* is among gene_names .*; name the genes alike"):
        change_between(adata, "state", "a", "b", gene_names=["ENSG1"])
    with pytest.raises(ValueError, match="unknown group of state 'c'"):
        change_between(adata, "state", "a", "c")
    with pytest.raises(ValueError, match="unknown column of obs 'stat'; did you mean 'state'"):
        change_between(adata, "stat", "a", "b")


def test_a_single_wanted_gene_is_no_question_of_similarity_and_bad_changes_are_errors(model, caplog):
    table = reverse(model, {model.gene_list[0]: 1}, model.pert_list[:5])
    assert set(table["similarity"].abs()) == {1.0}
    assert "use hits" in caplog.text
    caplog.clear()
    reverse(model, dict.fromkeys(model.gene_list[:2], 1), model.pert_list[:5])
    assert not caplog.text
    genes = model.gene_list
    for wanted, message in (
        (np.ones(3), r"shape \(3,\); expected one value per gene, \(60,\)"),
        ({genes[0]: 0}, "are all 0"),
        ({"NOGENE": 1}, "unknown gene of the wanted change 'NOGENE'"),
        (pd.Series([1, 2], index=[genes[0]] * 2), "more than once"),
        (genes[:2], "the wanted change is a list; expected numbers by gene"),
    ):
        with pytest.raises(ValueError, match=message):
            reverse(model, wanted)
