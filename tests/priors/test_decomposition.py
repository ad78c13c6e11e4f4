"""What a prediction of the prior is made of: parts add up, and a refit without a condition gives what is stated."""

import dataclasses

import numpy as np
import pytest
from scipy import sparse

from gears.conditions import NodeSet
from gears.priors import GenePrior, GeneSimilarity, PriorData, fit_prior
from gears.priors._decomposition import MEASURED, decompose
from gears.priors._prior import Effects
from gears.priors._regression import STRENGTHS

N_NODES = 14


def error_of(data: PriorData):
    return lambda left_out_CG: ((left_out_CG - data.delta_CG) ** 2).mean(axis=1)


def of_contexts(make_data, contexts: tuple[int, ...]) -> PriorData:
    """A screen of three contexts that react differently, some of which have training conditions."""
    rng, parts = np.random.default_rng(4), [make_data(seed, n_pairs=10, target=-0.5) for seed in range(3)]
    effect_CG, control_SG = parts[0].delta_CG, np.stack([part.control_mean_SG[0] for part in parts])
    sets, delta = [], []
    for context in contexts:
        for row, nodes in enumerate(parts[0].sets):
            if rng.random() < 0.8:
                sets.append(NodeSet(nodes, context=context))
                delta.append((1 + context / 2) * effect_CG[row] + 0.1 * rng.standard_normal(effect_CG.shape[1]))
    n_C = rng.integers(20, 200, len(sets)).astype(float)
    groups = np.array([parts[0].sets.index(tuple(nodes)) for nodes in sets])
    return dataclasses.replace(
        parts[0], sets=tuple(sets), delta_CG=np.array(delta), n_C=n_C, control_mean_SG=control_SG, groups=groups
    )


def triples(make_data) -> PriorData:
    data = make_data(3, n_pairs=12, factor=lambda nodes: 0.6 if len(nodes) > 1 else 1.0)
    sets, rng = list(data.sets), np.random.default_rng(0)
    for row in range(10, len(sets), 2):
        sets[row] = (*sets[row], next(node for node in range(10) if node not in sets[row]))
    return dataclasses.replace(data, sets=tuple(sets), delta_CG=data.delta_CG + 0.05 * rng.standard_normal(40))


SCREENS = {
    "singles": lambda make_data: make_data(0, n_pairs=0),
    "pairs": lambda make_data: make_data(1, n_pairs=20, target=-0.6),
    "few pairs": lambda make_data: make_data(1, n_pairs=4),
    "one factor": lambda make_data: make_data(2, n_pairs=20, factor=lambda nodes: 0.4 if len(nodes) > 1 else 1.0),
    "triples": triples,
    "contexts": lambda make_data: of_contexts(make_data, (0, 1, 2)),
    "new context": lambda make_data: of_contexts(make_data, (0, 1)),
}
QUERIES = ((0,), (11,), (0, 1), (2, 12), (11, 13), (0, 5, 9))


def queries(data: PriorData) -> list[tuple[int, ...]]:
    """Conditions of one to three genes, known, new and measured, in every context."""
    if data.n_settings == 1:
        return [*QUERIES, *data.sets[::7]]
    return [*(NodeSet(nodes, context=context) for nodes in QUERIES for context in range(3)), *data.sets[::7]]


@pytest.fixture(params=SCREENS, name="fitted", scope="module")
def fitted_prior(request, make_data) -> tuple[PriorData, GenePrior]:
    data = SCREENS[request.param](make_data)
    rows = np.abs(np.random.default_rng(9).standard_normal((N_NODES, 3)))  # GO terms say little, the others more
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    go = GeneSimilarity(data.genes.trained_T, sparse.csr_matrix((rows @ rows.T)[:, data.genes.trained_T]))
    data = dataclasses.replace(data, genes=go, further={"embeddings": data.genes})
    return data, fit_prior(data, error_of(data)).prior


def test_parts_add_up_to_the_prediction(fitted):
    data, prior = fitted
    loaded = GenePrior.from_arrays(prior.arrays(), prior.report)  # the changes are float32 there
    for nodes in queries(data):
        for one in (prior, loaded):
            found = decompose(one, nodes)
            total_G = found.change_RG.sum(axis=0) + sum(found.steps.values())
            assert total_G == pytest.approx(one.without_head([nodes])[0], abs=1e-6)


def refitted(prior: GenePrior, row: int) -> GenePrior:
    """The prior without a training condition, with the same variances, strengths, factor and slopes: dense."""
    basis, measured = prior.basis, prior.measured
    kept = np.delete(np.arange(len(basis.sets)), row)
    sets, y_CG = [basis.sets[one] for one in kept], basis.rest_CG[kept]
    covariance, noise_C = basis.covariance, basis.noise_C[kept]
    settings = np.array([getattr(nodes, "context", 0) for nodes in sets])

    def between(part) -> np.ndarray:
        similar = part.similar * part.genes.similarity(sets) @ part.genes.membership(sets).T
        same = part.own * part.genes.membership(sets) @ part.genes.membership(sets).T
        size_C = np.array([len(nodes) for nodes in sets], dtype=float)
        return same + (similar + similar.T) / 2 + part.shared * np.outer(size_C, size_C)

    signal = between(covariance.overall)
    if covariance.within is not None:
        signal += between(covariance.within) * (settings[:, None] == settings)
    unexplained = [covariance.nugget + covariance.multiple * (len(nodes) > 1) for nodes in sets]
    signal += covariance.level + np.diag(unexplained)
    coefficient_CG, level_G, ones = np.zeros_like(y_CG), np.zeros(prior.n_genes), np.ones(len(sets))
    for gene in range(prior.n_genes):
        for strength, share in zip(STRENGTHS, basis.share_MG[:, gene], strict=True):
            if share == 0:
                continue
            inverse = np.linalg.inv(strength * signal + basis.noise_G[gene] * np.diag(noise_C))
            if covariance.level == 0:
                of_level = inverse @ ones / (ones @ inverse @ ones)
                level_G[gene] += share * of_level @ y_CG[:, gene]
                inverse = inverse - np.outer(inverse @ ones, of_level)
            coefficient_CG[:, gene] += share * strength * inverse @ y_CG[:, gene]
    if covariance.level:
        level_G = covariance.level * coefficient_CG.sum(axis=0)
    overall = Effects.of(covariance.overall, sets, coefficient_CG, level_G, is_level_free=covariance.level == 0)
    within = []
    for share_S in covariance.carried_SS if prior.within else ():
        taken_CG = share_S[settings][:, None] * coefficient_CG
        within.append(Effects.of(covariance.within, sets, taken_CG, 0 * level_G, is_level_free=False))
    tables = {name: getattr(measured, name)[kept] for name in ("change_CG", "variance_C", "noise_C")}
    measured = dataclasses.replace(measured, sets=tuple(sets), **tables)
    mean_SG = prior.mean_SG if prior.within else y_CG.mean(axis=0)[None]
    return dataclasses.replace(prior, overall=overall, within=tuple(within), measured=measured, mean_SG=mean_SG)


def test_removing_a_condition_changes_what_a_refit_says(fitted):
    data, prior = fitted
    unmeasured = [nodes for nodes in queries(data) if prior.measured.rows([nodes])[0] < 0]
    for row in (0, len(data.sets) - 1):
        again = refitted(prior, row)
        for share in (0.0, 0.4, 1.0):  # the sum, some of the mean, the mean
            one, other = (dataclasses.replace(each, mean_share_K=np.full(5, share)) for each in (prior, again))
            for nodes in unmeasured:
                stated = one.without_head([nodes])[0] + decompose(one, nodes).without([row])[0]
                assert stated == pytest.approx(other.without_head([nodes])[0], abs=1e-7)


def test_a_measured_condition_is_its_measurement_and_what_others_say(fitted):
    data, prior = fitted
    row = 3
    found, again = decompose(prior, data.sets[row]), refitted(prior, row)
    kept_G = found.weight_RG[-1]
    assert (found.rows_R[-1], found.links[-1]) == (row, MEASURED)
    assert kept_G.min() >= 0
    assert kept_G.max() <= 1
    assert row not in found.rows_R[:-1]
    change_G = prior.without_head([data.sets[row]])[0]
    removed_G = change_G + found.without([row])[0]
    assert np.corrcoef(removed_G, again.without_head([data.sets[row]])[0])[0, 1] > 0.99
    others_G = found.change_RG[:-1].sum(axis=0) + sum(found.steps.values())
    assert others_G == pytest.approx((1 - kept_G) * removed_G, abs=1e-6)


@pytest.fixture(scope="module")
def of_pairs(make_data) -> tuple[PriorData, GenePrior]:
    data = make_data(1, n_pairs=20)
    return data, fit_prior(data, error_of(data)).prior


def test_weights_are_those_of_what_conditions_show_beyond_their_mean(of_pairs):
    data, prior = of_pairs
    nodes, row, n = (2, 12), data.sets.index((2,)), len(data.sets)
    found, basis = decompose(prior, nodes), prior.basis
    moved = dataclasses.replace(basis, rest_CG=basis.rest_CG + np.eye(n)[row][:, None])
    again = decompose(dataclasses.replace(prior, basis=moved), nodes)
    moved_R1 = ((found.rows_R == row) - 1 / n)[:, None]
    assert again.change_RG - found.change_RG == pytest.approx(found.weight_RG * moved_R1)
    assert found.weight_RG[found.rows_R == row].sum(axis=0).mean() > 0.3


def test_typical_weights_are_those_of_an_average_gene(of_pairs):
    data, prior = of_pairs
    basis = dataclasses.replace(
        prior.basis, noise_G=np.full_like(prior.basis.noise_G, prior.basis.noise_G.mean()),
        share_MG=np.repeat((np.isclose(STRENGTHS, 1))[:, None].astype(float), prior.n_genes, axis=1),
    )  # fmt: skip
    typical = dataclasses.replace(prior, basis=basis)
    for nodes, own in (((2, 12), -1), (data.sets[4], 4)):
        found = decompose(typical, nodes)
        weight_C = basis.typical_weights([nodes], np.array([own]))[0]
        expected_C = np.zeros(len(data.sets))
        is_other = found.rows_R != own
        kept = 1.0 if own < 0 else 1 - found.weight_RG[-1, 0]
        np.add.at(expected_C, found.rows_R[is_other], found.weight_RG[is_other, 0] / kept)
        assert weight_C == pytest.approx(expected_C, abs=1e-9)


def test_what_explains_is_saved_and_checked(of_pairs):
    arrays = of_pairs[1].arrays()
    with pytest.raises(ValueError, match="tables of measured changes disagree"):
        GenePrior.from_arrays(arrays | {"basis_n_C": arrays["basis_n_C"][1:]})
    older = {name: array for name, array in arrays.items() if not name.startswith("basis_")}
    with pytest.raises(ValueError, match="does not keep the measured changes"):
        decompose(GenePrior.from_arrays(older), (0,))
