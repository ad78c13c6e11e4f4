"""The prior of several contexts: what is shared, what is a context's own, and contexts that training never saw."""

import dataclasses

import numpy as np
import pytest
from scipy import sparse

from gears.conditions import NodeSet
from gears.priors import FittedPrior, GenePrior, GeneSimilarity, PriorData, fit_prior
from gears.priors import _process as process
from gears.priors._uncertainty import condition_variance

N_NODES, N_GENES, N_CONTEXTS = 12, 60, 3


def setting_data(shared: float, own: float, contexts=(0, 1, 2), seed: int = 0) -> tuple[PriorData, np.ndarray]:
    """Conditions of 12 genes in some of 3 contexts: a level per context, effects that all share and each has alone."""
    rng = np.random.default_rng(seed)
    level_KG = rng.normal(size=(N_CONTEXTS, N_GENES))
    effect_PG = shared * rng.normal(size=(N_NODES, N_GENES))
    own_KPG = own * rng.normal(size=(N_CONTEXTS, N_NODES, N_GENES))
    truth_KPG = level_KG[:, None] + effect_PG + own_KPG
    pairs = [(context, node) for context in contexts for node in range(N_NODES)]
    n_C = np.full(len(pairs), 50.0)
    noise = rng.normal(size=(len(pairs), N_GENES)) * np.sqrt(0.5 / 50)
    delta_CG = np.array([truth_KPG[context, node] for context, node in pairs]) + noise
    genes = GeneSimilarity(np.arange(N_NODES), sparse.eye(N_NODES, format="csr"))
    column = np.full(N_NODES, -1)
    sets = [NodeSet([node], context=context) for context, node in pairs]
    control_mean_SG, group_C = np.ones((N_CONTEXTS, N_GENES)), np.array([node for _, node in pairs])
    data = PriorData(tuple(sets), delta_CG, np.full(N_GENES, 0.5), n_C, control_mean_SG, column, genes, groups=group_C)
    return data, truth_KPG


def without_one(data: PriorData) -> PriorData:
    """Without the condition of gene 4 in context 1."""
    rows = np.array([row for row, nodes in enumerate(data.sets) if (nodes.context, nodes[0]) != (1, 4)])
    sets, groups = tuple(data.sets_of(rows)), data.group_C[rows]
    return dataclasses.replace(data, sets=sets, delta_CG=data.delta_CG[rows], n_C=data.n_C[rows], groups=groups)


def error_of(delta_CG: np.ndarray):
    return lambda left_out_CG: ((left_out_CG - delta_CG) ** 2).mean(axis=1)


def fitted_to(data: PriorData) -> FittedPrior:
    return fit_prior(data, error_of(data.delta_CG))


@pytest.mark.parametrize(("shared", "own"), [(1.0, 0.0), (0.0, 1.0)], ids=["shared", "own"])
def test_evidence_finds_what_contexts_share(shared, own):
    data, truth_KPG = setting_data(shared, own)
    prior = fitted_to(data).prior
    of_genes = [
        {part: weight for part, weight in prior.report[name].items() if part not in ("offset", "shared")}
        for name in ("weights", "weights_within_settings")
    ]  # the others are the levels, which differ
    weights, within = (sum(part.values()) for part in of_genes)
    assert (weights > 5 * within) if shared else (within > 5 * weights)
    if shared:  # what a condition has in one context alone cannot be told from chance
        error = prior(data.sets) - truth_KPG.reshape(-1, N_GENES)
        assert (error**2).mean() < 0.02


def test_a_condition_borrows_from_other_contexts():
    """A condition that one context lacks is known from the others, where effects are shared."""
    data, truth_KPG = setting_data(1.0, 0.2)
    less = without_one(data)
    prior = fitted_to(less).prior
    found = prior([NodeSet([4], context=1)])[0]
    level = truth_KPG[1].mean(axis=0)
    assert ((found - truth_KPG[1, 4]) ** 2).mean() < 0.25 * ((level - truth_KPG[1, 4]) ** 2).mean()


def test_intervals_hold_what_they_say_and_are_narrower_where_other_contexts_know_the_gene():
    inside, narrower = [], []
    for seed in range(3):
        data, truth_KPG = setting_data(1.0, 0.3, seed=seed)
        data = dataclasses.replace(data, groups=None)  # single conditions are held out
        less = without_one(data)
        prior = fitted_to(less).prior
        sets = [NodeSet([4], context=1)]
        change_UG = prior(sets)
        sd_UG = prior.sd(sets, change_UG)
        inside.append((np.abs(truth_KPG[1, 4] - change_UG[0]) < 1.645 * sd_UG[0]).mean())
        covariance, posterior = prior.uncertainty.covariance, prior.uncertainty.posterior
        narrower.append(condition_variance(covariance, posterior, sets) / condition_variance(covariance, None, sets))
    assert np.mean(inside) == pytest.approx(0.9, abs=0.07)
    assert max(narrower) < 0.3


def test_genes_that_features_omit_are_not_told_by_each_context(monkeypatch):
    data, _ = setting_data(1.0, 0.1)
    data = dataclasses.replace(data, groups=None)
    monkeypatch.setattr(process, "MOST_EXACT", 5)
    monkeypatch.setattr(process, "MOST_FEATURES", 12)
    fitted = fitted_to(data)
    delta_CG = data.delta_CG
    # 0.63 where each context tells all that features omit
    assert error_of(delta_CG)(fitted.left_out_CG).mean() < 0.57
    assert error_of(delta_CG)(fitted.prior(data.sets)).mean() < 0.2  # then 2.6


def test_a_context_without_conditions_takes_the_mean_of_the_others():
    data, truth_KPG = setting_data(1.0, 0.0, contexts=(0, 2))
    prior = fitted_to(data).prior
    at = [prior([NodeSet([node], context=context) for node in range(N_NODES)]) for context in range(3)]
    at = [change_PG - change_PG.mean(axis=0) for change_PG in at]  # levels are each context's own here
    np.testing.assert_allclose(at[1], (at[0] + at[2]) / 2, atol=0.2)
    departure = truth_KPG[0] - truth_KPG[0].mean(axis=0)
    assert np.corrcoef(at[1].ravel(), departure.ravel())[0, 1] > 0.95
    one, _ = setting_data(1.0, 0.0, contexts=(0,))
    alone = fitted_to(one).prior
    pairs = [(node, (node + 1) % N_NODES) for node in range(N_NODES)]  # no context measured them
    here, there = (alone([NodeSet(nodes, context=k) for nodes in pairs]) for k in (0, 1))
    np.testing.assert_allclose(here, there, atol=1e-9)


def test_genes_that_do_less_together_are_found_over_contexts():
    data, truth_KPG = setting_data(1.0, 0.2)
    pairs = [(one, other) for one in range(N_NODES) for other in range(one) if (one + other) % 3 == 0]
    held_out, known = pairs[:4], pairs[4:]
    sets = [NodeSet(pair, context=context) for context in range(N_CONTEXTS) for pair in known]

    def change(nodes: NodeSet) -> np.ndarray:
        return 0.5 * (truth_KPG[nodes.context, nodes[0]] + truth_KPG[nodes.context, nodes[1]])

    noise_CG = np.random.default_rng(1).normal(0, 0.05, (len(sets), N_GENES))
    delta_CG = np.vstack([data.delta_CG, np.array([change(nodes) for nodes in sets]) + noise_CG])
    groups = np.concatenate([data.group_C, N_NODES + np.tile(np.arange(len(known)), N_CONTEXTS)])
    n_C = np.concatenate([data.n_C, np.full(len(sets), data.n_C.mean())])
    data = dataclasses.replace(data, sets=(*data.sets, *sets), delta_CG=delta_CG, n_C=n_C, groups=groups)
    prior = fit_prior(data, error_of(delta_CG)).prior
    assert prior.report["factor"]
    for context in range(N_CONTEXTS):
        wanted = [NodeSet(pair, context=context) for pair in held_out]
        true_UG = np.array([change(nodes) for nodes in wanted])
        assert 0.75 < (prior(wanted) * true_UG).sum() / (true_UG**2).sum() < 1.25


def test_levels_do_not_tell_how_sensitive_genes_are():
    """They are the same for all conditions of a context, whose number therefore proves nothing."""
    data, _ = setting_data(1.0, 0.0)
    control_SG = np.random.default_rng(1).uniform(0.02, 1.5, (N_CONTEXTS, N_GENES))
    sensitive_SG = 1 - np.exp(-control_SG)
    found = []
    for level, factor_SG in ((3.0, np.ones_like(control_SG)), (0.0, sensitive_SG)):
        rest_CG = (
            data.delta_CG
            - np.array([data.delta_CG[data.setting_C == one].mean(axis=0) for one in range(3)])[data.setting_C]
        )
        delta_CG = factor_SG[data.setting_C] * rest_CG + level * sensitive_SG[data.setting_C]
        changed = dataclasses.replace(data, delta_CG=delta_CG, control_mean_SG=control_SG)
        found.append(fit_prior(changed, error_of(delta_CG)).prior.report.get("sensitivity"))
    assert found == [None, 1.0]


def test_left_out_predictions_do_not_look_at_what_is_left_out():
    data, _ = setting_data(1.0, 0.3)
    fitted = fit_prior(data, lambda left_out_CG: np.zeros(len(left_out_CG)))
    row = 5
    other = np.array(data.delta_CG)
    same = data.group_C == data.group_C[row]
    # what a whole group is says nothing about its own predictions but through the weights
    weights_kept = other.copy()
    weights_kept[same] = other[same][::-1]
    changed = dataclasses.replace(data, delta_CG=weights_kept)
    again = fit_prior(changed, lambda left_out_CG: np.zeros(len(left_out_CG)))
    near = np.abs(again.left_out_CG[row] - fitted.left_out_CG[row]).mean()
    assert near < 0.05 * np.abs(other[row] - weights_kept[row]).mean()


def test_files_of_earlier_versions_with_a_prior_of_each_setting_are_read():
    data, _ = setting_data(1.0, 0.5)
    prior = fitted_to(data).prior
    prior = dataclasses.replace(prior, network_weight=0.25, slope_K=np.full_like(prior.slope_K, 0.5), scale=None)
    arrays, slope = prior.arrays(), 0.5
    similar = {f"similar_{part}": arrays[f"within_{part}"] for part in ("data", "indices", "indptr")}
    target_SG = np.random.default_rng(3).normal(size=(N_CONTEXTS, N_GENES))
    column_P = np.arange(N_NODES)
    common = {"trained": arrays["trained"], "column": column_P, "slopes": prior.slope_K}
    common |= {"mean": np.zeros(N_GENES), "mean_only": np.zeros_like(prior.mean_share_K)}
    pooled = {name: arrays[name] for name in (*similar, "offset", "shared", "coefficient", "scalars")}
    pooled |= common | {"target": np.zeros(N_GENES)}
    former = {f"pooled_{name}": array for name, array in pooled.items()}
    for setting in range(N_CONTEXTS):
        part = {name: arrays[f"within_{name}"][setting] for name in ("offset", "shared", "coefficient")}
        part |= {"scalars": np.array([*arrays["within_scalars"], 1.0, 1.0]), "target": target_SG[setting]}
        former |= {f"own{setting}_{name}": array for name, array in (part | common).items()}
    former |= {f"own_{name}": array for name, array in {**similar, "trained": arrays["trained"]}.items()}
    former |= {name: array for name, array in arrays.items() if name.startswith(("sd_", "measured_"))}
    former |= {"settings": np.array([N_CONTEXTS, 1]), "network_weight": np.array(0.25)}
    again = GenePrior.from_arrays(former)
    assert again.network_weight == 0.25
    sets = [NodeSet(nodes, context=context) for context in range(3) for nodes in ([], [1, 5], [0, 2, 3])]
    expected_UG = slope * prior.summed(sets)
    for row, nodes in enumerate(sets):
        expected_UG[row, list(nodes)] += slope * target_SG[nodes.context, list(nodes)]
    np.testing.assert_allclose(again(sets), expected_UG, atol=1e-12)
    np.testing.assert_array_equal(again(data.sets), prior(data.sets))  # as measured
    assert again.sd(sets, expected_UG).shape == expected_UG.shape


def far_data(data: PriorData, alike: bool) -> PriorData:
    """Whole contexts left out in turn, in which changes are alike, or have nothing in common."""
    delta_CG = data.delta_CG
    if alike:
        delta_CG = np.tile(delta_CG[:N_NODES], (N_CONTEXTS, 1)) + 0.05 * (delta_CG - delta_CG.mean(axis=0))
    return dataclasses.replace(data, delta_CG=delta_CG, groups=data.setting_C)


@pytest.mark.parametrize("alike", [True, False])
def test_what_does_not_carry_over_is_shrunk_where_contexts_are_left_out(alike):
    data, _ = setting_data(0.2, 1.0)
    far = far_data(data, alike)
    prior = fitted_to(far).prior
    assert (prior.report["slope"]["one known gene"] >= 1.0) is alike
    # what each context measured is its own
    measured_CG = far.delta_CG
    slope_C = (prior(far.sets) * measured_CG).sum(axis=1) / (measured_CG**2).sum(axis=1)
    np.testing.assert_allclose(slope_C, 1.0, atol=0.05)
    near = dataclasses.replace(far, groups=data.groups)
    known = fitted_to(near).prior.slope_K[0]
    assert known == 1.0  # genes that other contexts show: what is held out there says nothing of them


def test_the_change_of_a_target_is_not_shrunk_with_it():
    data, _ = setting_data(0.0, 1.0)
    column_P = np.arange(N_NODES)
    delta_CG = data.delta_CG.copy()
    for row, nodes in enumerate(data.sets):
        delta_CG[row, nodes[0]] = -0.8
    far = dataclasses.replace(data, delta_CG=delta_CG, column_P=column_P, groups=data.setting_C)
    fitted = fit_prior(far, error_of(delta_CG))
    prior = fitted.prior
    assert prior.report["slope"]["one known gene"] < 0.975
    own_UG = prior.own_changes([NodeSet([node]) for node in range(N_NODES)])
    np.testing.assert_allclose(own_UG[:, :N_NODES].diagonal(), -0.8 * 0.975, atol=0.1)
    again = GenePrior.from_arrays(prior.arrays(), prior.report)
    np.testing.assert_array_equal(again(data.sets), prior(data.sets))


def test_very_many_conditions_are_solved_nearly_as_few_are(monkeypatch):
    data, truth_KPG = setting_data(1.0, 0.4)
    less = without_one(data)
    exact = fitted_to(less)
    monkeypatch.setattr(process, "MOST_EXACT", 5)
    found = fitted_to(less)
    assert exact.prior.report["exact"]
    assert not found.prior.report["exact"]
    sets = [*data.sets, NodeSet([4], context=1)]
    expected_UG = exact.prior(sets)
    away = np.sqrt(((found.prior(sets) - expected_UG) ** 2).mean() / (expected_UG**2).mean())
    assert away < 0.01  # one slope was chosen, noise is alike: only level and folds differ
    assert ((found.prior(sets)[-1] - truth_KPG[1, 4]) ** 2).mean() < 0.5
    error = error_of(less.delta_CG)
    monkeypatch.setattr(process, "MOST_FEATURES", N_NODES)  # what contexts share needs one for each gene
    assert error(fitted_to(less).left_out_CG).mean() < 1.02 * error(found.left_out_CG).mean()
    monkeypatch.setattr(process, "MOST_FEATURES", 12)
    fewer = fitted_to(less)
    assert error(fewer.left_out_CG).mean() < 1.3 * error(found.left_out_CG).mean()
