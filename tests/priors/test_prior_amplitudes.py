"""Regression with a strength per gene against plain linear algebra; weights of known draws found again by evidence."""

import numpy as np
import pytest

from gears.priors import _regression as regression
from gears.priors._evidence import fit_weights
from gears.priors._kernels import sizes_of, training_kernels


@pytest.fixture
def problem(make_data):
    data = make_data()
    signal_CC = sum(0.2 * kernel for kernel in training_kernels(data.sets, data.genes).values()) + 0.01 * np.eye(
        len(data.sets)
    )
    rng = np.random.default_rng(3)
    return data.delta_CG, np.asarray(signal_CC), 30 / data.n_C, rng.uniform(0.01, 0.2, data.delta_CG.shape[1])


def kriging(covariance: np.ndarray, signal_UC: np.ndarray, values_C: np.ndarray) -> tuple[float, np.ndarray]:
    """Generalised least squares level and universal kriging prediction, from the bordered system."""
    n = len(values_C)
    border = np.block([[covariance, np.ones((n, 1))], [np.ones((1, n)), np.zeros((1, 1))]])
    solved = np.linalg.solve(border, np.append(values_C, 0.0))
    return float(solved[n]), solved[n] + signal_UC @ solved[:n]


def test_one_strength_is_universal_kriging(problem, monkeypatch):
    delta_CG, signal_CC, noise_C, noise_G = problem
    monkeypatch.setattr(regression, "STRENGTHS", np.array([2.5]))
    found = regression.solve(delta_CG, signal_CC, noise_C, noise_G)
    for gene in (0, 7, 33):
        covariance = 2.5 * signal_CC + noise_G[gene] * np.diag(noise_C)
        level, fitted_C = kriging(covariance, 2.5 * signal_CC, delta_CG[:, gene])
        assert found.level_G[gene] == pytest.approx(level, rel=1e-8, abs=1e-10)
        own_C = found.level_G[gene] + signal_CC @ found.coefficient_CG[:, gene]
        np.testing.assert_allclose(own_C, fitted_C, rtol=1e-8, atol=1e-10)
        for row in (0, 11, 25):
            others = np.arange(len(delta_CG)) != row
            among = np.ix_(others, others)
            to_row = 2.5 * signal_CC[row, others][None]
            _, expected = kriging(covariance[among], to_row, delta_CG[others, gene])
            np.testing.assert_allclose(found.left_out_CG[row, gene], expected[0], rtol=1e-7, atol=1e-9)


def test_a_shrunk_level_is_plain_kriging(problem, monkeypatch):
    delta_CG, signal_CC, noise_C, noise_G = problem
    monkeypatch.setattr(regression, "STRENGTHS", np.array([2.5]))
    found = regression.solve(delta_CG, signal_CC, noise_C, noise_G, 0.3)
    for gene in (0, 33):
        signal = 2.5 * (signal_CC + 0.3)
        covariance = signal + noise_G[gene] * np.diag(noise_C)
        expected_C = signal @ np.linalg.solve(covariance, delta_CG[:, gene])
        fitted_C = found.level_G[gene] + signal_CC @ found.coefficient_CG[:, gene]
        np.testing.assert_allclose(fitted_C, expected_C, rtol=1e-8, atol=1e-10)
        others = np.arange(len(delta_CG)) != 11
        weight = np.linalg.solve(covariance[np.ix_(others, others)], delta_CG[others, gene])
        np.testing.assert_allclose(found.left_out_CG[11, gene], signal[11, others] @ weight, atol=1e-9)


def test_genes_without_signal_shrink_to_zero_and_strong_ones_do_not(problem):
    delta_CG, signal_CC, noise_C, _ = problem
    rng = np.random.default_rng(4)
    delta_CG = delta_CG.copy()
    delta_CG[:, :20] = rng.standard_normal((len(delta_CG), 20)) * np.sqrt(0.05 * noise_C)[:, None]
    found = regression.solve(delta_CG, signal_CC, noise_C, np.full(delta_CG.shape[1], 0.05))
    fitted_CG = found.level_G + signal_CC @ found.coefficient_CG
    kept_G = np.sqrt((fitted_CG**2).mean(axis=0) / (delta_CG**2).mean(axis=0))
    assert kept_G[:20].max() < 0.6
    assert kept_G[20:].min() > 0.85


def test_known_weights_are_found_again_and_departures_of_pairs_told_from_noise(make_data):
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
