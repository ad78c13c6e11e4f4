"""Weights by evidence: right gradient, weights of known draws found again."""

import numpy as np
import pytest

from gears.priors.evidence import fit_weights
from gears.priors.kernels import sizes_of, training_kernels


def test_known_weights_are_found_again():
    rng = np.random.default_rng(1)
    member = (rng.random((60, 25)) < 0.1).astype(float)
    member[np.arange(25), np.arange(25)] = 1
    own = member @ member.T
    noise_C = rng.uniform(0.05, 0.2, 60)
    covariance = 0.4 * own + np.diag(noise_C)
    delta_CG = np.linalg.cholesky(covariance) @ rng.standard_normal((60, 3000))
    weights = fit_weights(delta_CG, {"offset": np.ones((60, 60)), "own": own}, noise_C, member.sum(axis=1))
    assert weights.kernels["own"] == pytest.approx(0.4, rel=0.1)
    assert weights.kernels["offset"] < 0.01
    beside = weights.noise * noise_C + weights.nugget  # the two are hard to tell apart
    np.testing.assert_allclose(beside.mean(), noise_C.mean(), rtol=0.05)


def test_departures_of_pairs_are_told_from_noise(make_data):
    rng = np.random.default_rng(2)
    data = make_data(noise=0.02)
    several = sizes_of(data.sets) > 1
    departing_CG = data.delta_CG + 0.3 * several[:, None] * rng.standard_normal(data.delta_CG.shape)
    kernels = training_kernels(data.sets, data.genes)
    noise_C = 0.02**2 * 50 / data.n_C
    plain = fit_weights(data.delta_CG, kernels, noise_C, sizes_of(data.sets))
    departing = fit_weights(departing_CG, kernels, noise_C, sizes_of(data.sets))
    assert plain.multiple < 0.005
    assert departing.multiple == pytest.approx(0.09, rel=0.4)


@pytest.mark.parametrize(("informs", "n_conditions"), [(True, 60), (False, 60), (False, 12)])
def test_a_further_similarity_has_no_weight_unless_the_evidence_asks_for_it(informs, n_conditions):
    rng = np.random.default_rng(3)
    own = np.eye(n_conditions)
    vectors = rng.standard_normal((n_conditions, 4))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    similar = vectors @ vectors.T
    noise_C = np.full(n_conditions, 0.05)
    covariance = 0.1 * own + (0.5 * similar if informs else 0) + np.diag(noise_C)
    delta_CG = np.linalg.cholesky(covariance) @ rng.standard_normal((n_conditions, 40))
    kernels = {"offset": np.ones_like(own), "own": own, "other": similar}
    weights = fit_weights(delta_CG, kernels, noise_C, np.ones(n_conditions), further=["other"])
    if informs:
        assert weights.kernels["other"] == pytest.approx(0.5, rel=0.25)
    else:
        assert weights.kernels["other"] < 1e-4
