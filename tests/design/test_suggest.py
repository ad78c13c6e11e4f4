"""Batches of perturbations, against a greedy choice with dense matrices."""

import re

import numpy as np
import pandas as pd
import pytest
from small_models import trained_on

from gears import GEARS
from gears.conditions import Condition
from gears.design import all_pairs, suggest
from gears.design.suggest import sampling_noise
from gears.jobs import Ensemble
from gears.priors.joint import JointCovariance


def dense(model: GEARS, conditions: list[Condition]) -> tuple[np.ndarray, np.ndarray]:
    """Covariance of conditions (U, U) with what is specific to each, and the noise of a measurement of each."""
    parts, uncertainty = model.parts, model.parts.prior.uncertainty
    node_of = {name: node for node, name in enumerate(parts.pert_names)}
    sets = [[node_of[gene] for gene in one.genes] for one in conditions]
    joint = JointCovariance.of(uncertainty, parts.go.edge_index, parts.go.weight, range(len(parts.pert_names)))
    member_UL = joint.members(np.array([[*nodes, *[-1] * (2 - len(nodes))] for nodes in sets]))
    cov_UU = member_UL @ joint.times(member_UL) + np.diag(uncertainty.covariance.unexplained(sets))
    return cov_UU, np.full(len(sets), sampling_noise(uncertainty))


def greedy(cov: np.ndarray, noise: np.ndarray, candidates: np.ndarray, targets: np.ndarray, costs, n: int):
    """Rows of the batch, and the mean variance of the targets after each, by trying every candidate."""
    chosen, left = [], []
    for _ in range(n):
        after = {row: cov - np.outer(cov[row], cov[row]) / (cov[row, row] + noise[row]) for row in candidates}
        now = np.diag(cov)[targets].mean()
        worth = {row: (now - np.diag(one)[targets].mean()) / costs[row] for row, one in after.items()}
        best = max((row for row in candidates if row not in chosen), key=worth.get)
        chosen.append(best)
        cov = after[best]
        left.append(np.diag(cov)[targets].mean())
    return chosen, left


def unknown(model: GEARS, n: int = 25) -> list[Condition]:
    trained_on = set(model.parts.fitted_conditions())
    return [one for gene in model.pert_list if (one := Condition((gene,))) not in trained_on][:n]


def test_a_batch_is_the_greedy_choice_by_conditional_variance(model):
    candidates = unknown(model)
    cov, noise = dense(model, candidates)
    everything = np.arange(len(candidates))
    costs = np.where(everything % 3 == 0, 2.0, 1.0)
    rows, left = greedy(cov, noise, everything, everything, costs, 6)
    named = pd.Series({candidates[row].name: 2.0 for row in everything if row % 3 == 0})
    table = suggest(model, candidates, 6, costs=named)
    assert list(table["condition"]) == [candidates[row].name for row in rows]
    np.testing.assert_allclose(table["remaining"], np.array(left) / np.diag(cov).mean(), rtol=1e-4)
    np.testing.assert_allclose(table["gain"], -np.diff([1.0, *table["remaining"]]), rtol=1e-6)
    assert list(table["cost"]) == [costs[row] for row in rows]


def test_targets_and_conditions_measured_since_are_respected(model):
    *candidates, measured = unknown(model)
    pairs = [Condition((candidates[row].genes[0], candidates[row + 1].genes[0])) for row in range(5)]
    targets = [*pairs, candidates[0]]
    conditions = [*candidates, *pairs, measured]
    cov, noise = dense(model, conditions)
    cov = cov - np.outer(cov[-1], cov[-1]) / (cov[-1, -1] + noise[-1])
    at = np.array([conditions.index(one) for one in targets])
    rows, left = greedy(cov, noise, np.arange(len(candidates)), at, np.ones(len(conditions)), 4)
    table = suggest(model, [*candidates, measured], 4, targets=targets, measured=[measured])
    assert list(table["condition"]) == [candidates[row].name for row in rows]
    np.testing.assert_allclose(table["remaining"], np.array(left) / np.diag(cov)[at].mean(), rtol=1e-3)
    assert table.attrs["excluded"] == {measured.name: "already measured"}


def test_a_draw_of_the_targets_chooses_almost_as_well(model):
    """Of 1,700 pairs 1,024 are drawn; the batch is compared over all of them."""
    pairs = [pair for pair in all_pairs(model.pert_list) if pair not in set(model.parts.fitted_conditions())]
    cov, noise = dense(model, pairs)
    table = suggest(model, iter(pairs), 4)

    def left(rows: list[int]) -> float:
        part = cov[np.ix_(rows, rows)] + np.diag(noise[rows])
        after = np.diag(cov) - np.einsum("ur,rs,us->u", cov[:, rows], np.linalg.inv(part), cov[:, rows])
        return after.mean() / np.diag(cov).mean()

    names = [pair.name for pair in pairs]
    batch = left([names.index(name) for name in table["condition"]])
    best: list[int] = []
    given = cov
    for _ in range(4):
        best.append(int(np.argmax((given**2).sum(axis=1) / (np.diag(given) + noise))))
        given = given - np.outer(given[best[-1]], given[best[-1]]) / (given[best[-1], best[-1]] + noise[0])
    assert batch < left(best) + 0.01
    assert table["remaining"].iloc[-1] == pytest.approx(batch, abs=0.02)


def test_candidates_that_are_excluded_are_listed_with_the_reason(model, caplog, monkeypatch):
    import gears.design._candidates as module

    trained_on = model.parts.fitted_conditions()[0]
    known = unknown(model, 4)
    lonely, first, *_ = (one.genes[0] for one in known)
    sources = dict(module.source_of_genes(model.parts)) | {lonely: "nothing"}
    monkeypatch.setattr(module, "source_of_genes", lambda parts: sources)
    table = suggest(model, [trained_on, "NOGENE", "ctrl", first.lower(), *known], 10, measured=known[3].name)
    assert set(table["condition"]) == {one.name for one in known[1:3]}
    assert not any("ignored" in message for message in caplog.messages)
    for name, words in {
        trained_on.name: "already measured", "ctrl": "the control", "NOGENE+ctrl": "gene of the perturbation graph",
        f"{first.lower()}+ctrl": f"; did you mean {first!r}?)", f"{lonely}+ctrl": "has no neighbours",
    }.items():  # fmt: skip
        assert words in table.attrs["excluded"][name]
    suggest(model, [first], measured=["NOGENE"])
    assert caplog.messages[-1].endswith("ignored, as the perturbation graph lacks their genes: NOGENE+ctrl")
    with pytest.raises(ValueError, match="no candidate is left"):
        suggest(model, [trained_on])
    with pytest.raises(ValueError, match=r"no target is left \(none was given\); give genes of pert_list$"):
        suggest(model, targets=[])
    pd.testing.assert_frame_equal(suggest(model, 3), suggest(model, n=3))


def test_candidates_are_expressed_genes_and_alike_ones_are_said_to_be(model, caplog):
    """A lab cannot silence a gene that its cells do not express."""
    caplog.set_level("INFO", "gears")
    mean_of = dict(zip(model.gene_list, model.parts.control_mean_G.tolist(), strict=True))
    table = suggest(model, n=1000)
    assert all(mean_of[Condition.parse(name).genes[0]] >= 0.1 for name in table["condition"])
    fitted = {gene for one in model.parts.fitted_conditions() for gene in one.genes if len(one) == 1}
    expressed = {gene for gene in model.pert_list if mean_of.get(gene, 0.0) >= 0.1}
    assert len(table) == len(expressed - fitted)
    first, second, *_ = unknown(model, 3)
    caplog.clear()
    suggest(model, [first, second], targets=[first])
    assert "hardly tells" not in caplog.text
    suggest(model, [first, second])
    assert "hardly tells the candidates apart" in caplog.text


def test_other_aims_rank_by_probability_over_cost(model):
    genes = [one.genes[0] for one in unknown(model)]
    table = suggest(model, genes, 5, "effect", threshold=0.1)
    assert (np.diff(table["probability"]) <= 0).all()
    cheaper = suggest(model, genes, 5, "effect", threshold=0.1, costs={table["condition"][4]: 0.01})
    assert cheaper["condition"][0] == table["condition"][4]
    pairs = list(all_pairs(sorted({gene for one in model.parts.fitted_conditions() for gene in one.genes})))
    table = suggest(model, None, 5, "interaction")
    pd.testing.assert_frame_equal(table, suggest(model, pairs, 5, "interaction"))
    assert list(table["rank"]) == [1, 2, 3, 4, 5]
    assert (np.diff(table["probability"]) <= 0).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"aim": "informaton"}, "did you mean 'information'"),
        ({"aim": "effect"}, "aim='effect' needs threshold="),
        ({"threshold": 0.3}, "aim='information' does not use threshold="),
        ({"aim": "interaction", "targets": ["A"]}, "does not use targets=; omit it"),
        ({"n": 0}, "n is 0; expected a whole number of at least 1"),
        ({"costs": {"A": -1}}, "costs are numbers above 0; found A+ctrl: -1"),
        ({"costs": {"A": 0}}, "costs are numbers above 0; found A+ctrl: 0"),
        ({"costs": {"A": float("nan")}}, "costs are numbers above 0; found A+ctrl: nan"),
        ({"costs": [1, 2]}, "costs are a list; expected numbers by candidate"),
        ({"costs": {"A": 1, "A+ctrl": 2}}, "candidates in costs must be unique; found more than once: A+ctrl"),
        ({"costs": pd.Series([1, 2], index=["A", "A"])}, "candidates in costs must be unique"),
        ({"costs": {"NOGENE": 2}}, "costs name NOGENE+ctrl, which are no candidates"),
    ],
)
def test_bad_arguments_are_errors_with_the_remedy(model, arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        suggest(model, **arguments)


def test_a_model_without_standard_deviations_is_an_error_with_the_remedy(model, pert_data):
    alone = [trained_on(pert_data, seed, prior=None, steps=1, epochs=None) for seed in (1, 2)]
    with pytest.raises(ValueError, match=re.escape('train one with a prior, train(prior="auto"), or give an Ensemble')):
        suggest(alone[0])
    ensemble = Ensemble(alone)
    assert len(suggest(ensemble, None, 3, "effect", threshold=0.1)) == 3
    with pytest.raises(ValueError, match="needs the prior of a single model"):
        suggest(ensemble)


def test_measurements_for_given_predictions_are_those_that_lower_their_variance_most(model):
    genes = sorted({gene for one in model.parts.fitted_conditions() for gene in one.genes})
    new = [gene for gene in model.pert_list if gene not in genes][:2]
    wanted = Condition((genes[0], new[0])).name
    table = suggest(model, n=3, for_conditions=[wanted])
    assert set(table["condition"][:2]) <= {wanted, new[0], f"{new[0]}+ctrl"}
    np.testing.assert_allclose(table["sd"], np.sqrt(table["remaining"]))
    same = suggest(model, [f"{new[0]}", f"{new[1]}"], 2, targets=[wanted])
    pd.testing.assert_frame_equal(same, suggest(model, [f"{new[0]}", f"{new[1]}"], 2, for_conditions=wanted))
    known = [model.pert_list[node] for node in model.parts.trained_nodes()]
    pairs = [f"{genes[0]}+{other}" for other in sorted(known) if other != genes[0]]
    every = suggest(model, new, 1, for_conditions=f"{genes[0]}+*")
    pd.testing.assert_frame_equal(every, suggest(model, new, 1, targets=pairs))
    with pytest.raises(ValueError, match="targets= and for_conditions="):
        suggest(model, targets=[wanted], for_conditions=[wanted])
