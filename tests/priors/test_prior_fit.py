"""The fitted prior: what it finds, what it must not look at, its invariances."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from scipy import sparse

from gears.priors import FittedPrior, GenePrior, GeneSimilarity, PriorData, fit_prior
from gears.priors import _process as process
from gears.priors._fit import Inherited
from gears.priors._source import vector_similarity

UNSEEN_PAIRS = [(0, 13), (2, 9), (4, 7), (1, 8), (3, 5), (6, 9)]


def plain_error(data: PriorData) -> Callable[[np.ndarray], np.ndarray]:
    return lambda left_out_CG: ((left_out_CG - data.delta_CG) ** 2).mean(axis=1)


def fitted_to(data: PriorData) -> FittedPrior:
    return fit_prior(data, plain_error(data))


def true_pair(data: PriorData, nodes: tuple[int, int]) -> np.ndarray:
    return data.delta_CG[nodes[0]] + data.delta_CG[nodes[1]]


def test_additive_effects_are_found(make_data):
    data = make_data(noise=0.02)
    prior = fitted_to(data).prior
    seen = [nodes for nodes in UNSEEN_PAIRS if max(nodes) < 10]
    truth = np.array([true_pair(data, nodes) for nodes in seen])
    error = np.sqrt(((prior(seen) - truth) ** 2).mean() / (truth**2).mean())
    assert error < 0.1
    assert prior.magnitude is None
    assert set(prior.report["slope"].values()) == {1.0}


def test_an_unseen_gene_is_like_its_neighbour(make_data):
    # nodes 12 and 13 are similar to each other only; 10 and 11 as well: leave 9 out, which is like 8
    data = make_data(noise=0.02)
    kept = [row for row, nodes in enumerate(data.sets) if 9 not in nodes]
    rows = np.isin(data.genes.trained_T, 9, invert=True)
    genes = dataclasses.replace(
        data.genes, trained_T=data.genes.trained_T[rows], similar_PT=data.genes.similar_PT[:, rows]
    )
    sets = tuple(data.sets[row] for row in kept)
    less = dataclasses.replace(data, sets=sets, delta_CG=data.delta_CG[kept], n_C=data.n_C[kept], genes=genes)
    predicted_G = fitted_to(less).prior([(9,)])[0]
    assert np.corrcoef(predicted_G, data.delta_CG[9])[0, 1] > 0.5


def test_vectors_of_genes_help_where_the_annotation_says_nothing(make_data):
    data = make_data(noise=0.02, n_pairs=0)
    n_nodes = data.genes.similar_PT.shape[0]
    vectors = np.repeat(np.eye(n_nodes // 2), 2, axis=0)  # two nodes each alike, as their effects are
    kept = dataclasses.replace(
        data, sets=data.sets[:9], delta_CG=data.delta_CG[:9], n_C=data.n_C[:9],
        genes=GeneSimilarity(np.arange(9), sparse.identity(n_nodes, format="csr")[:, :9]),
        further={"embeddings": vector_similarity(vectors, data.sets[:9])},
    )  # fmt: skip
    fitted = fitted_to(kept)
    assert fitted.prior.report["weights"]["embeddings"] > fitted.prior.report["weights"]["GO"]
    unseen = data.delta_CG[9]  # node 9 goes with node 8
    assert np.corrcoef(fitted.prior([(9,)])[0], unseen)[0, 1] > 0.5
    alone = fitted_to(dataclasses.replace(kept, further={})).prior([(9,)])[0]
    assert np.corrcoef(alone, unseen)[0, 1] < 0.3


def test_left_out_predictions_do_not_follow_their_own_condition(make_data):
    data = make_data(noise=0.3)
    fitted = fitted_to(data)
    inside = ((fitted.prior(data.sets) - data.delta_CG) ** 2).mean()
    outside = ((fitted.left_out_CG - data.delta_CG) ** 2).mean()
    assert outside > 1.5 * inside


def test_synergy_that_follows_genes_is_found_where_it_is(make_data):
    def factor(nodes: tuple[int, ...]) -> float:
        return 1 + 0.8 * sum(node < 4 for node in nodes) if len(nodes) > 1 else 1.0

    data = make_data(noise=0.02, n_pairs=30, factor=factor)
    prior = fitted_to(data).prior
    unseen = [nodes for nodes in UNSEEN_PAIRS if max(nodes) < 10 and nodes not in data.sets]
    truth = np.array([true_pair(data, nodes) * factor(nodes) for nodes in unseen])
    additive = np.array([true_pair(data, nodes) for nodes in unseen])
    assert ((prior(unseen) - truth) ** 2).mean() < 0.3 * ((additive - truth) ** 2).mean()
    assert (prior.magnitude.factor([(0,), (5,), ()], prior.genes) == 1).all()


def test_own_expression_of_an_unseen_target(make_data):
    data = make_data(noise=0.02, effect=0.1, target=-0.8)
    prior = fitted_to(data).prior
    np.testing.assert_allclose(prior.target_SG[0], -0.8 * data.control_mean_SG[0], rtol=0.15)
    np.testing.assert_allclose(prior([(0,)])[0, 0], data.delta_CG[0, 0], atol=0.15)


def test_control_genes_in_any_order_and_files(make_data):
    data = make_data(noise=0.1, factor=lambda nodes: 1.5 if len(nodes) > 1 else 1.0)
    prior = fitted_to(data).prior
    assert not prior([()]).any()
    np.testing.assert_array_equal(prior([(3, 8)]), prior([(8, 3)]))
    again = GenePrior.from_arrays(prior.arrays(), prior.report)
    np.testing.assert_array_equal(again([(3, 8), (12,), ()]), prior([(3, 8), (12,), ()]))
    assert again.report == prior.report
    broken = prior.arrays() | {"offset": np.zeros(3)}
    with pytest.raises(ValueError, match="disagree"):
        GenePrior.from_arrays(broken)


def test_the_network_is_weighed_and_leaves_measured_conditions(make_data):
    prior = fitted_to(make_data()).prior
    sets, network_UG = [(11,), (2, 12), (1,)], np.ones((3, prior.n_genes))
    halved = dataclasses.replace(prior, network_weight=0.5)
    added_UG = halved.complete(sets, prior(sets), network_UG) - prior(sets)
    np.testing.assert_allclose(added_UG[:2], 0.5, atol=1e-12)
    assert not added_UG[2].any()  # it was measured
    closed = dataclasses.replace(prior, network_weight=0.0)
    np.testing.assert_array_equal(closed.complete(sets, prior(sets), np.nan * network_UG), prior(sets))


def test_order_of_conditions_does_not_matter(make_data):
    data = make_data(noise=0.1)
    order = np.random.default_rng(5).permutation(len(data.sets))
    shuffled = dataclasses.replace(
        data, sets=tuple(data.sets[row] for row in order), delta_CG=data.delta_CG[order], n_C=data.n_C[order]
    )
    one, other = fitted_to(data), fitted_to(shuffled)
    np.testing.assert_allclose(other.prior(UNSEEN_PAIRS), one.prior(UNSEEN_PAIRS), atol=1e-4)
    np.testing.assert_allclose(other.left_out_CG, one.left_out_CG[order], atol=1e-4)


def test_nothing_to_learn(make_data):
    noise_only = make_data(effect=0.0, noise=0.3)
    prior = fitted_to(noise_only).prior
    unseen = [nodes for nodes in UNSEEN_PAIRS if nodes not in noise_only.sets]
    assert np.abs(prior(unseen)).max() < 0.5 * np.abs(noise_only.delta_CG).max()
    assert (prior(noise_only.sets) ** 2).mean() < 0.1 * (noise_only.delta_CG**2).mean()
    silent = dataclasses.replace(noise_only, delta_CG=np.zeros_like(noise_only.delta_CG))
    assert not fitted_to(silent).prior(UNSEEN_PAIRS).any()
    single = dataclasses.replace(noise_only, sets=((0,),), delta_CG=noise_only.delta_CG[:1], n_C=noise_only.n_C[:1])
    np.testing.assert_allclose(fitted_to(single).prior([(5,)]), 0.5 * noise_only.delta_CG[:1])


@pytest.fixture
def unmeasured(make_data):
    """Screens whose perturbed genes are not measured, and the mean of the other conditions' changes."""

    def make(**options) -> tuple[PriorData, np.ndarray]:
        data = make_data(**options)
        means_CG = (data.delta_CG.sum(axis=0) - data.delta_CG) / (len(data.delta_CG) - 1)
        return dataclasses.replace(data, column_P=np.full_like(data.column_P, -1)), means_CG

    return make


@pytest.mark.parametrize(("gain", "taken"), [(0.05, True), (0.015, False)])
def test_the_mean_alone_is_taken_where_it_is_clearly_better(unmeasured, gain, taken):
    data, means_CG = unmeasured()
    fitted = fit_prior(data, lambda left_out_CG: np.where(np.isclose(left_out_CG, means_CG).all(axis=1), -gain, 0.0))
    assert fitted.prior.report["mean_only"] == (["one known gene", "known genes"] if taken else [])
    assert np.allclose(fitted.left_out_CG, means_CG) is taken
    pairs = [nodes for nodes in UNSEEN_PAIRS if max(nodes) < 10 and nodes not in data.sets]
    assert np.allclose(fitted.prior(pairs), data.delta_CG.mean(axis=0)) is taken


@pytest.mark.parametrize(("n_pairs", "taken"), [(20, False), (0, True)])
def test_a_gain_that_may_be_chance_gives_up_new_genes_only(unmeasured, n_pairs, taken):
    data, means_CG = unmeasured(n_pairs=n_pairs)
    # the gain of the mean is 0.05, with a standard error of about 1
    gain_C = 0.05 + 4 * (-1.0) ** np.arange(len(data.sets))
    fitted = fit_prior(data, lambda left_out_CG: np.where(np.isclose(left_out_CG, means_CG).all(axis=1), -gain_C, 0.0))
    assert bool(fitted.prior.report["mean_only"]) is taken


def released_screen(noise: float) -> tuple[PriorData, list[tuple[int, ...]], np.ndarray]:
    """70 of 90 genes perturbed alone: half do nothing, the others follow groups that the annotation does not know."""
    rng = np.random.default_rng(3)
    groups = np.arange(90) // 6
    similar_PP = np.where(groups[:, None] == groups, 0.9, 0.0) + 0.1 * np.eye(90)
    effect_PG = np.linalg.cholesky(similar_PP) @ rng.standard_normal((90, 40)) * (rng.random(90) < 0.5)[:, None]
    trained = np.sort(rng.permutation(90)[:70])
    sets = tuple((int(node),) for node in trained)
    delta_CG = effect_PG[trained] + noise * rng.standard_normal((70, 40))
    genes, groups_known = (
        GeneSimilarity(trained, sparse.csr_matrix(table[:, trained])) for table in (np.eye(90), similar_PP)
    )
    data = PriorData(
        sets, delta_CG, np.full(40, 50 * noise**2), np.full(70, 50.0), np.ones(40), np.full(90, -1), genes,
        {"groups": groups_known},
    )  # fmt: skip
    others = [(node,) for node in range(90) if node not in trained]
    return data, others, effect_PG[[nodes[0] for nodes in others]]


def test_a_similarity_that_the_evidence_holds_back_is_taken_where_it_predicts(monkeypatch):
    data, others, true_UG = released_screen(0.3)
    held = {"groups": 1e-6}
    fit_weights = process.fit_weights

    def hold_back(*args):  # the evidence says that the groups are nothing, unless their weight is let go
        found = fit_weights(*args)
        return dataclasses.replace(found, kernels=dict(found.kernels) | held) if "groups" in args[4] else found

    monkeypatch.setattr(process, "fit_weights", hold_back)
    prior = fitted_to(data).prior
    assert prior.report["released"] == "groups"
    assert np.corrcoef(prior(others).ravel(), true_UG.ravel())[0, 1] > 0.4
    few = dataclasses.replace(data, sets=data.sets[:50], delta_CG=data.delta_CG[:50], n_C=data.n_C[:50])
    assert "released" not in fitted_to(few).prior.report
    unlike = dataclasses.replace(data, delta_CG=data.delta_CG[np.random.default_rng(0).permutation(70)])
    assert "released" not in fitted_to(unlike).prior.report


def test_single_huge_changes_are_cut_where_others_are_better_predicted_without(unmeasured):
    data, _ = unmeasured(n_pairs=30)
    plain = fitted_to(data).prior
    assert not plain.report["cut"]
    rng = np.random.default_rng(0)
    huge_CG = 20 * rng.standard_normal(data.delta_CG.shape) * (rng.random(data.delta_CG.shape) < 0.05)
    spoilt = dataclasses.replace(data, delta_CG=data.delta_CG + huge_CG)

    others = [nodes for nodes in UNSEEN_PAIRS if nodes not in data.sets]
    wanted_UG = plain(others)

    def error_of(prior: GenePrior) -> float:
        return float(np.square(prior(others) - wanted_UG).mean())

    # judged by the changes that are not huge
    fitted = fit_prior(spoilt, plain_error(data))
    assert fitted.prior.report["cut"]
    uncut = fit_prior(spoilt, lambda left_out_CG: np.zeros(len(left_out_CG))).prior
    assert not uncut.report["cut"]
    assert error_of(fitted.prior) < 0.5 * error_of(uncut)


def test_new_genes_are_not_predicted_with_a_larger_error_than_the_mean(unmeasured):
    data, means_CG = unmeasured(n_pairs=0)

    def criterion(left_out_CG: np.ndarray) -> np.ndarray:
        # what departs from the mean is wrong in size and right in pattern
        departs = 1.0 - np.isclose(left_out_CG, means_CG).all(axis=1)
        return np.stack([0.01 * departs, -0.5 * departs])

    prior = fit_prior(data, criterion).prior
    assert prior.report["share_of_mean"] == {"one new gene": 0.9}
    assert prior.report["slope"] == {"one new gene": 1.0}
    again = GenePrior.from_arrays(prior.arrays(), prior.report)
    new = [(10,), (11,)]
    np.testing.assert_allclose(again(new), prior(new))
    whole = dataclasses.replace(prior, mean_share_K=np.zeros_like(prior.mean_share_K))
    mean_G = data.delta_CG.mean(axis=0)
    np.testing.assert_allclose(prior(new) - mean_G, 0.1 * (whole(new) - mean_G), atol=1e-12)


def test_what_does_not_fit_is_refused_and_one_cell_and_constant_genes_are_not(make_data):
    data = make_data()
    variance_G = data.variance_G.copy()
    variance_G[:10] = 0.0
    delta_CG = data.delta_CG.copy()
    delta_CG[:, 5] = 0.0
    hard = dataclasses.replace(data, variance_G=variance_G, delta_CG=delta_CG, n_C=np.ones(len(data.sets)))
    predicted = fitted_to(hard).prior(UNSEEN_PAIRS)
    assert np.isfinite(predicted).all()
    assert not predicted[:, 5].any()
    with pytest.raises(ValueError, match="leave the control out"):
        dataclasses.replace(data, sets=((), *data.sets[1:]))
    with pytest.raises(ValueError, match="n_C has 1 entries"):
        dataclasses.replace(data, n_C=np.ones(1))


def test_a_fit_of_some_conditions_tries_what_the_fit_of_all_chose(make_data, monkeypatch):
    data = make_data(n_pairs=30)
    inherited = Inherited.from_report(fitted_to(data).prior.report)
    assert inherited is not None
    rows = np.arange(len(data.sets))[:-6]
    some = dataclasses.replace(data, sets=tuple(data.sets_of(rows)), delta_CG=data.delta_CG[rows], n_C=data.n_C[rows])
    everything = fitted_to(some).prior
    n_solved = []
    solve_in = process.solve_in
    monkeypatch.setattr(process, "solve_in", lambda *given: n_solved.append(1) or solve_in(*given))
    chosen = fit_prior(some, plain_error(some), inherited=inherited).prior
    assert len(n_solved) == 1  # one way of regressing
    # its own weights, whatever the start; and its own slopes and factor
    assert chosen.report["weights"] == pytest.approx(everything.report["weights"], rel=1e-3, abs=1e-6)
    np.testing.assert_allclose(chosen(UNSEEN_PAIRS), everything(UNSEEN_PAIRS), atol=1e-4)
