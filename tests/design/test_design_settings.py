"""Models of screens with contexts: head and design work with one setting and with several."""

import numpy as np
import pandas as pd
import pytest
from driving import pert_data_of
from small_models import network_of, trained_on

from gears import GEARS, simulated_screen
from gears.conditions import Condition
from gears.design import hits, interactions_table, power, reverse, suggest
from gears.evaluation.interactions import interaction_scores
from gears.priors._uncertainty import condition_variance
from gears.priors.joint import JointCovariance


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    """A screen with two contexts, and its prior."""
    adata, _ = simulated_screen(
        n_genes=60, n_singles=34, n_pairs=16, cell_types=2, cells_per_condition=30, n_control=200, seed=5
    )
    data = pert_data_of(tmp_path_factory.mktemp("lines"), adata, context_key="cell_type", split="simulation")
    return data, trained_on(data)


def test_candidates_without_a_context_are_tried_in_each(lines):
    _, model = lines
    contexts = model.parts.contexts.contexts
    every = hits(model, threshold=0.05)
    assert {name.rpartition(" @ ")[2] for name in every["condition"]} == set(contexts)
    assert not set(every["condition"]) & {one.name for one in model.parts.fitted_conditions()}
    assert every["probability"].between(0, 1).all()
    assert every["low"].le(every["readout"]).all()
    gene = every["condition"][0].split("+")[0]
    assert len(hits(model, [f"{gene} @ {contexts[0]}"], threshold=0.05)) == 1
    other = hits(model, [f"{gene} @ nowhere", every["condition"][1]], threshold=0.05)
    assert list(other.attrs["excluded"].values()) == [
        "names a context or perturbation type that the model does not have"
    ]
    # a hit in one context is judged by that context's prediction
    names = list(every["condition"][:6])
    expected = np.sqrt((model.predict(names, clip=False).delta_UG ** 2).mean(axis=1))
    assert np.corrcoef(every["readout"][:6], expected)[0, 1] > 0.5


def test_pairs_of_each_context_depart_from_its_own_singles(lines):
    data, model = lines
    fitted = [one for one in model.parts.fitted_conditions() if len(one) == 2]
    table = interactions_table(model, [one.name for one in fitted], screen=data.screen)
    assert set(table["condition"]) == {one.name for one in fitted}
    assert table["measured"].all()
    assert np.isfinite(table[["departure", "low", "high", "probability", "strength"]]).all(axis=None)
    row = table.iloc[0]
    place = row["condition"].rpartition(" @ ")[2]
    names = [f"{row['gene_1']} @ {place}", f"{row['gene_2']} @ {place}", row["condition"]]
    # without the part that is the error of the control mean
    shift_G = model.parts.prior.uncertainty.true_change.shift_G
    first_G, second_G, both_G = model.predict(names, clip=False).delta_UG - shift_G
    sizes = [np.sqrt((change_G**2).mean()) for change_G in (first_G, second_G, first_G + second_G, both_G)]
    np.testing.assert_allclose(row[["effect_1", "effect_2", "additive", "predicted"]].astype(float), sizes, rtol=1e-6)
    # what was observed is of the same context, too
    observed = table.dropna(subset="observed_strength")
    assert len(observed) > 3
    for row in observed.to_dict("records"):
        place = row["condition"].rpartition(" @ ")[2]
        labels = [f"{row['gene_1']}+ctrl @ {place}", f"{row['gene_2']}+ctrl @ {place}", row["condition"]]
        changes = data.screen.statistics.delta(np.array([data.screen.id_of(label) for label in labels]))
        assert row["observed_strength"] == pytest.approx(interaction_scores(*changes)["strength"])


def test_a_batch_is_chosen_over_contexts_by_the_dense_covariance(lines):
    _, model = lines
    table = suggest(model, n=4)
    assert table["gain"].between(0, 1).all()
    assert table["remaining"].is_monotonic_decreasing
    np.testing.assert_allclose(1 - table["gain"].cumsum(), table["remaining"], atol=1e-5)
    # what is known of a gene in one context is worth less to measure in the other
    name = table["condition"][0]
    gene, _, place = name.partition(" @ ")
    twin = f"{gene} @ {next(one for one in model.parts.contexts.contexts if one != place)}"
    targets = [name, twin]
    before = suggest(model, [name, twin], 2, targets=targets).set_index("condition")["gain"]
    assert before[name] > 0
    prior, nodes = model.parts.prior, model.parts.contexts
    pair = [Condition.parse(one) for one in targets]
    sets = nodes.node_sets(pair, [[model.parts.pert_names.index(one.genes[0])] for one in pair])
    go, contexts = model.parts.go, [one.context for one in sets]
    joint = JointCovariance.of(prior.uncertainty, go.edge_index, go.weight, sets[0], contexts)
    member_UL = joint.members(np.array([list(one) for one in sets]), np.array([one.context for one in sets]))
    whole_U = condition_variance(prior.uncertainty.covariance, prior.uncertainty.posterior, sets)
    alone_U = prior.uncertainty.covariance.unexplained(sets)
    np.testing.assert_allclose(joint.variance(member_UL) + alone_U, whole_U, rtol=1e-4)
    np.testing.assert_allclose(np.diag(member_UL @ joint.times(member_UL)), joint.variance(member_UL), rtol=1e-4)
    told = suggest(model, [twin], 1, targets=targets, measured=[name])
    assert told["gain"][0] <= before[twin] + 1.0
    effect = suggest(model, n=3, aim="effect", threshold=0.05)
    assert effect["probability"].is_monotonic_decreasing
    assert len(suggest(model, n=3, aim="interaction")) == 3


def test_wanted_changes_and_cells_are_answered_for_each_context(lines):
    data, model = lines
    table = reverse(model, {model.gene_list[0]: 1.0, model.gene_list[1]: -1.0}, n=200)
    assert {name.rpartition(" @ ")[2] for name in table["condition"]} == set(model.parts.contexts.contexts)
    assert table["similarity"].between(-1, 1).all()
    cells = power(data.screen, cells=20)
    assert len(cells) == 2 * len(model.gene_list)
    one = power(data.screen.settings[0], cells=20)
    part = cells[cells["context"] == data.screen.settings[0].context]
    pd.testing.assert_frame_equal(part[list(one.columns)].reset_index(drop=True), one)


def test_pairs_are_ranked_and_scored_in_each_context(lines):
    _, model = lines
    contexts = model.parts.contexts.contexts
    genes = sorted({gene for one in model.parts.fitted_conditions() for gene in one.genes})[:4]
    table = model.rank_pairs(lambda found: np.abs(found.delta_UG).max(axis=1), genes, top=100)
    assert len(table) == len(contexts) * 6
    assert {name.rpartition(" @ ")[2] for name in table["condition"]} == set(contexts)
    name = table["condition"][0]
    first, second, both = model.predict(
        [f"{gene} @ {name.rpartition(' @ ')[2]}" for gene in Condition.parse(name).genes] + [name], clip=False
    ).delta_UG
    scores = model.GI_predict(name)
    assert scores["mag"] == pytest.approx(interaction_scores(first, second, both)["mag"])
    with pytest.raises(ValueError, match=f"choose one, such as '.*@ {contexts[0]}'"):
        model.GI_predict(Condition.parse(name).genes)


def test_the_head_is_trained_over_contexts(lines, tmp_path):
    data, _ = lines
    model = network_of(data)
    model.train(steps=1, lr=1e-12, evaluate_test=False, verbose=False)
    report = model.parts.prior.report
    assert set(report["head"]) == {"single", "several"}
    assert all(np.isfinite(part["least_squares"]) for part in report["head"].values())
    model.save_model(tmp_path / "model")
    loaded = GEARS(data, device="cpu")
    loaded.load_pretrained(tmp_path / "model")
    tested = data.split.conditions("test")
    np.testing.assert_array_equal(loaded.predict(tested).delta_UG, model.predict(tested).delta_UG)


def test_a_model_of_one_named_setting_answers_without_its_name(tmp_path, divided, toy_go):
    is_one = (divided.obs["cell_type"] == "L1") & (divided.obs["guide"] != "CRISPRa")
    keys = {"context_key": "cell_type", "batch_key": ["batch"], "perturbation_type_key": "guide"}
    data = pert_data_of(tmp_path, divided[is_one].copy(), gene2go=toy_go, split="simulation", **keys)
    model = trained_on(data)
    measured = model.parts.fitted_conditions()[0]
    assert measured.suffix
    table = suggest(model, n=3)
    assert len(table) == 3
    assert not any("@" in name for name in table["condition"])
    table = suggest(model, [measured.name, *table["condition"]])
    assert table.attrs["excluded"] == {measured.plain.name: "already measured"}
    assert len(hits(model, [f"{table['condition'][0]} @ L1"], threshold=0.1)) == 1
    other = hits(model, [f"{table['condition'][0]} @ L2", table["condition"][1]], threshold=0.1)
    assert list(other.attrs["excluded"].values()) == [
        "names a context or perturbation type that the model does not have"
    ]
    assert "@" not in reverse(model, {model.gene_list[0]: 1}, n=1)["condition"][0]
    pairs = interactions_table(model)
    assert pairs["strength"].notna().any()
    assert pairs["measured"].sum() == sum(len(one) == 2 for one in model.parts.fitted_conditions())
