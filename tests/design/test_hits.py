"""Probable hits: the Gaussian formulas, the expected false discovery rate, and what is excluded."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from gears.design import all_pairs, hits, interactions_table, power, reverse, suggest
from gears.design.hits import Scorer


def test_a_gene_s_probability_is_that_of_its_gaussians(model):
    gene, genes = model.gene_list[5], [name for name in model.pert_list if name != model.gene_list[5]][:30]
    changes = model.predict(genes, clip=False).true_changes()
    expected_U, spread_U = (values_UG[:, 5] for values_UG in changes.moments())
    for threshold in (0.05, -0.05):
        table = hits(model, genes, readout=gene, threshold=threshold, measured=[genes[0]]).set_index("condition")
        for name in table.index:
            row = genes.index(name.split("+")[0])
            weight, mean, sd = (part[:, row, 5] for part in changes.components())
            side = norm.sf if threshold > 0 else norm.cdf
            sure = weight @ side(threshold, mean, np.maximum(sd, 1e-12))
            assert table.loc[name, "probability"] == pytest.approx(sure, abs=1e-9)
            assert table.loc[name, "readout"] == pytest.approx(expected_U[row])
            assert table.loc[name, "high"] - table.loc[name, "low"] == pytest.approx(
                2 * 1.6449 * spread_U[row], rel=1e-4
            )
        assert (np.diff(table["probability"]) <= 0).all()
        # the expected share of false ones among the first k
        np.testing.assert_allclose(table["fdr_score"], np.cumsum(1 - table["probability"]) / table["rank"])


def test_a_signature_is_a_weighted_mean_whose_errors_go_together(model):
    up, down = model.gene_list[:10], model.gene_list[20:25]
    predictions = model.predict(model.pert_list[:6], clip=False)
    scorer = Scorer.of(dict.fromkeys(up, 1) | dict.fromkeys(down, -1), 0.1, tuple(model.gene_list))
    mean_U, sd_U, probability_U = scorer(predictions)
    delta, sd = predictions.true_changes().moments()
    np.testing.assert_allclose(mean_U, (delta[:, :10].sum(axis=1) - delta[:, 20:25].sum(axis=1)) / 15)
    squares_U = (sd[:, :10] ** 2).sum(axis=1) + (sd[:, 20:25] ** 2).sum(axis=1)
    np.testing.assert_allclose(sd_U, np.sqrt(5 * squares_U) / 15)
    np.testing.assert_allclose(probability_U, norm.sf(0.1, mean_U, sd_U))
    one = Scorer.of({up[0]: 3.0}, 0.1, tuple(model.gene_list))(predictions)[1]
    np.testing.assert_allclose(one, sd[:, 0])  # of a single gene no more than its own error


def test_an_effect_size_holds_what_is_not_known(model):
    table = hits(model, model.pert_list[:30], threshold=0.1)
    predictions = model.predict(list(table["condition"]), clip=False)
    mean_UG, sd_UG = predictions.true_changes().moments()
    expected_U = np.sqrt((mean_UG**2 + sd_UG**2).mean(axis=1))
    np.testing.assert_allclose(table["readout"], expected_U)
    assert ((table["low"] <= table["readout"]) & (table["readout"] <= table["high"])).all()


def test_the_perturbed_gene_itself_is_no_discovery(model):
    trained = {name for one in model.parts.fitted_conditions() for name in one.genes}
    gene, other = [name for name in model.pert_list if name in model.gene_list and name not in trained][:2]
    table = hits(model, [gene, f"{gene}+{other}", other], readout=gene, threshold=-0.1)
    assert list(table["condition"]) == [f"{other}+ctrl"]
    assert set(table.attrs["excluded"].values()) == {"perturbs the readout itself"}
    with pytest.raises(ValueError, match=f"each of them perturbs {gene} itself"):
        hits(model, [gene], readout=gene, threshold=-0.1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"threshold": 0.0}, "threshold is 0.0; expected a change of log expression above 0"),
        ({"threshold": -0.2}, "threshold is -0.2; expected a change of log expression above 0"),
        ({"threshold": 0.2, "readout": "NOGENE"}, "unknown gene of the readout 'NOGENE'"),
        ({"threshold": 0.2, "readout": {"NOGENE": 1, "NONE": 2}}, "predicted ones: NOGENE, NONE; omit them"),
        ({"threshold": 0.2, "readout": pd.Series([1, -1], index=["A", "A"])}, "found more than once: A"),
        ({"threshold": 0.2, "readout": {}}, "the numbers of the readout are all 0"),
        ({"threshold": 0.2, "readout": ["A", "B"]}, "the readout is a list; expected numbers by gene"),
        ({"threshold": 0.2, "readout": {"A": "x"}}, "the readout has A: 'x'; expected numbers by gene"),
    ],
)
def test_bad_arguments_are_errors(model, arguments, message):
    with pytest.raises(ValueError, match=message):
        hits(model, **arguments)


def test_by_default_a_hit_is_larger_than_half_of_the_fitted_conditions(model):
    fitted = model.parts.fitted_conditions()
    changes = model.predict(fitted, clip=False).true_changes()
    table = hits(model)
    assert table.attrs["threshold"] == pytest.approx(np.median(np.sqrt(changes.mean_square()[0])))
    pd.testing.assert_frame_equal(table, hits(model, threshold=table.attrs["threshold"]))
    with pytest.raises(ValueError, match="a readout needs threshold=; expected a change of log"):
        hits(model, readout=model.gene_list[5])


def test_what_holds_a_model_is_taken_as_the_model(model, pert_data):
    held = SimpleNamespace(gears=model)
    wanted = {model.gene_list[3]: 1.0, model.gene_list[4]: -1.0}
    for function, options in (
        (suggest, {"n": 2}), (hits, {"threshold": 0.1}), (reverse, {"wanted": wanted}), (power, {"effect": 0.25}),
        (interactions_table, {"scores": False}),
    ):  # fmt: skip
        pd.testing.assert_frame_equal(function(held, **options), function(model, **options))
    assert list(all_pairs(held)) == list(all_pairs(model)) == model.pairs()
    pd.testing.assert_frame_equal(power(model, cells=37), power(pert_data, cells=37))


def test_worker_processes_give_the_same_table(model, tmp_path, monkeypatch, quick_workers):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    pairs, readout = list(all_pairs(model.pert_list[:9])), model.gene_list[5]
    for options in ({"readout": readout, "threshold": 0.05}, {}):
        expected = hits(model, pairs, **options)
        pd.testing.assert_frame_equal(hits(model, pairs, **options, n_at_once=2), expected, check_exact=True)
