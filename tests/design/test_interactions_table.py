"""The table of interactions: departures, their intervals and kinds."""

from itertools import combinations

import numpy as np
import pytest
from driving import pert_data_of
from small_models import trained_on

from gears import Condition
from gears.design import interactions_table
from gears.design._interactions import _block, departure_share
from gears.evaluation.interactions import observed_interactions, predicted_interactions
from gears.priors.joint import JointCovariance
from gears.simulate import simulated_screen


def test_columns_are_those_of_the_predictions(model, pert_data):
    pairs = [one for one in pert_data.screen.conditions if len(one) == 2][:6]
    table = interactions_table(model, pairs, screen=pert_data.screen).set_index("condition")
    assert len(table) == 6
    pair = pairs[2]
    predictions = model.predict([*((gene,) for gene in pair.genes), pair], clip=False)
    true_change = model.parts.prior.uncertainty.true_change
    first_G, second_G, double_G = predictions.delta_UG - true_change.shift_G
    sum_G, row = first_G + second_G, table.loc[pair.name]
    assert row["departure"] == pytest.approx(double_G @ sum_G / (sum_G @ sum_G) - 1)
    assert row["additive"] == pytest.approx(np.sqrt((sum_G**2).mean()))
    assert row["predicted"] == pytest.approx(np.sqrt((double_G**2).mean()))
    assert row["low"] < row["departure"] < row["high"]
    assert row["strength"] == pytest.approx(predicted_interactions(predictions)["strength"][0])
    observed = observed_interactions(pert_data.screen).set_index("condition")["strength"]
    assert row["observed_strength"] == pytest.approx(observed[pair.name])
    trained = set(model.parts.fitted_conditions())
    assert [table.loc[one.name, "measured"] for one in pairs] == [one in trained for one in pairs]


def test_the_variance_of_a_departure_and_its_interval(model):
    parts, uncertainty = model.parts, model.parts.prior.uncertainty
    sets = [list(nodes) for nodes in combinations(parts.trained_nodes()[:4], 2)]
    joint = JointCovariance.of(uncertainty, parts.go.edge_index, parts.go.weight, parts.trained_nodes())
    for nodes, share in zip(sets, departure_share(uncertainty, sets), strict=True):
        member_3L = joint.members(np.array([nodes, [nodes[0], -1], [nodes[1], -1]]))
        cov_33 = member_3L @ joint.times(member_3L)
        unexplained = uncertainty.covariance.unexplained([nodes, nodes[:1], nodes[1:]])
        difference = np.array([1, -1, -1])
        expected = difference @ cov_33 @ difference + unexplained.sum()
        assert share * (cov_33[0, 0] + unexplained[0]) == pytest.approx(expected, rel=1e-3)
    true_change = uncertainty.true_change
    nodes = list(parts.trained_nodes()[:2])
    pair = Condition(tuple(parts.pert_names[node] for node in nodes))
    predictions = model.predict([*((gene,) for gene in pair.genes), pair], clip=False)
    first_G, second_G, _ = predictions.delta_UG - true_change.shift_G
    weight_G = np.abs(first_G + second_G) / ((first_G + second_G) ** 2).sum()
    alike = departure_share(uncertainty, [nodes])[0] * (weight_G @ predictions.sd[2]) ** 2
    control = 5 * weight_G**2 @ (true_change.control_G + 3 * true_change.least_G)
    size = ((first_G + second_G) ** 2).sum()
    of_sum = (2 * (true_change.control_G + true_change.least_G).sum() / size) ** 2
    size = ((first_G + second_G) ** 2).sum()
    of_sum = (2 * (true_change.control_G + true_change.least_G).sum() / size) ** 2
    row = interactions_table(model, [pair], scores=False).loc[0]
    assert true_change.along < 1
    assert ((row["high"] - row["low"]) / 2 / 1.6449) ** 2 == pytest.approx(
        true_change.along * alike + control + of_sum, rel=1e-3
    )


def test_no_pair_departs_on_a_screen_without_effects(tmp_path):
    sizes = {"n_genes": 150, "n_singles": 20, "n_pairs": 30, "cells_per_condition": 40, "n_control": 200}
    adata, _ = simulated_screen(**sizes, effect_size=0.02, target_effect=0.0, interaction_share=0.0, seed=4)
    pert_data = pert_data_of(tmp_path, adata, "screen", split="simulation")
    table = interactions_table(trained_on(pert_data), scores=False)
    assert table["fdr_score"].min() > 0.2
    assert set(table["kind"]) == {"undetermined"}


def test_kinds_follow_from_the_interval_and_the_nearest_change():
    rng = np.random.default_rng(1)
    first_G, second_G = rng.normal(size=(2, 200))
    sum_G = first_G + second_G
    doubles = {"synergy": 1.6 * sum_G, "suppression": 0.5 * sum_G, "masking": first_G, "neutral": sum_G}
    double_UG = np.array(list(doubles.values()))
    firsts, seconds = np.tile(first_G, (4, 1)), np.tile(second_G, (4, 1))
    table = _block(firsts, seconds, double_UG, np.full((4, 200), 0.05), np.zeros(200), np.zeros(4), np.zeros(4, bool))
    assert list(table["kind"]) == list(doubles)
    np.testing.assert_allclose(table["departure"][[0, 1, 3]], [0.6, -0.5, 0], atol=1e-9)
    assert table["probability"][0] > 0.99 > 0.01 > table["probability"][3]
    unsure = (np.full((4, 200), 9.0), np.zeros(200), np.zeros(4), np.zeros(4, bool))
    assert set(_block(firsts, seconds, double_UG, *unsure)["kind"]) == {"undetermined"}


def test_all_pairs_of_training_by_default_and_nothing_but_pairs(model):
    n = len(model.parts.trained_nodes())
    assert len(interactions_table(model, scores=False)) == n * (n - 1) // 2
    with pytest.raises(ValueError, match=r"interactions are of pairs of genes; .* is none"):
        interactions_table(model, [model.pert_list[0]])
