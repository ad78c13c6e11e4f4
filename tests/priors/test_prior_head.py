"""The head of the prior: what it reads, where it changes a prediction, and that a saved one predicts the same."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest

from gears.priors import GenePrior, fit_prior
from gears.priors._head import NAMES, Head, HeadInputs, PriorChanges

N_GENES = 40
SETS = ((1,), (2, 7), (0, 4, 9), ())


@pytest.fixture(scope="module")
def prior(make_data):
    data = make_data()
    fitted = fit_prior(data, lambda delta_UG: ((delta_UG - data.delta_CG) ** 2).mean(axis=1)).prior
    assert isinstance(fitted, GenePrior)
    return fitted


def head_of(prior: GenePrior, single: float = 0.5, several: float = 0.25) -> Head:
    rng = np.random.default_rng(0)
    inputs = HeadInputs(
        size=0.5, noise_G=rng.uniform(0.05, 0.2, N_GENES), control_mean_SG=rng.uniform(0, 2, (1, N_GENES)),
        control_sd_SG=rng.uniform(0.1, 1, (1, N_GENES)), profile_GK=rng.standard_normal((N_GENES, 3)),
        column_P=prior.column_P, mean_SG=rng.standard_normal((1, N_GENES)), response_G=rng.uniform(0, 1, N_GENES),
    )  # fmt: skip
    widths = [(len(NAMES), 4), (4, 4), (4, 1)]
    layers = tuple((rng.standard_normal(shape), rng.standard_normal(shape[1])) for shape in widths)
    return Head(inputs, np.zeros(len(NAMES)), np.ones(len(NAMES)), layers, 0.1, single, several)


def test_the_changes_of_each_gene_alone_are_summed_and_compared():
    alone = {0: [1.0, -3.0], 1: [-2.0, 0.5], 2: [0.5, 1.0]}

    def predict(sets: Sequence[Sequence[int]]) -> np.ndarray:
        return np.array([10 * (len(nodes) > 1) + np.sum([alone[node] for node in nodes], axis=0) for nodes in sets])

    changes = PriorChanges.of(predict, [(1,), (2, 1, 0)])
    assert changes.change_UG.tolist() == [[-2.0, 0.5], [9.5, 8.5]]
    assert changes.sum_UG.tolist() == [[-2.0, 0.5], [-0.5, -1.5]]
    assert changes.largest_UG.tolist() == [[-2.0, 0.5], [-2.0, -3.0]]
    assert changes.strongest_UG.tolist() == [[-2.0, 0.5], [1.0, -3.0]]


def test_each_kind_of_condition_has_its_own_weight_and_perturbed_genes_and_the_control_keep_the_prior(prior):
    whole = head_of(prior, 1.0, 1.0).change(prior, SETS)
    part = head_of(prior, 0.5, 0.25).change(prior, SETS)
    assert np.abs(whole[:3]).max() > 0.01
    np.testing.assert_allclose(part, whole * np.array([0.5, 0.25, 0.25, 1.0])[:, None])
    assert part[0, 1] == part[1, 2] == part[2, 0] == part[2, 4] == 0.0
    assert np.count_nonzero(part, axis=1)[[0, 3]].tolist() == [N_GENES - 1, 0]


def test_the_head_is_added_to_the_prior_and_saved_with_it(prior):
    head = head_of(prior)
    headed = dataclasses.replace(prior, head=head)
    is_new_U = np.array([nodes not in prior.measured.sets for nodes in SETS])
    assert is_new_U.tolist() == [False, False, True, True]
    expected_UG = prior(SETS) + np.where(is_new_U[:, None], head.change(prior, SETS), 0.0)
    np.testing.assert_array_equal(headed(SETS), expected_UG)
    np.testing.assert_array_equal(GenePrior.from_arrays(headed.arrays())(SETS), headed(SETS))
    assert GenePrior.from_arrays(prior.arrays()).head is None
    many = headed([*SETS, *[(1,)] * 5000])
    np.testing.assert_allclose(many[:4], headed([tuple(reversed(nodes)) for nodes in SETS]), atol=1e-12)
