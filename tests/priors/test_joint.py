"""Joint covariance of conditions, against a dense Gaussian process in float64."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from scipy import sparse
from test_posterior import TERMS, TYPICAL, WEIGHTS, kriging

from gears.priors import GeneSimilarity
from gears.priors._kernels import AdditiveCovariance, gene_features, specific_covariance
from gears.priors._magnitude import Tendency
from gears.priors._posterior import ConditionCovariance, Posterior
from gears.priors._regression import Spectrum
from gears.priors._uncertainty import Uncertainty, condition_variance
from gears.priors.joint import JointCovariance

N_NODES, N_TRAINED = 11, 7
SETS = tuple((node,) for node in range(N_TRAINED)) + tuple(combinations(range(4), 2))
NEW = [(8,), (0,), (2, 9), (1, 5), (3, 9, 10), (8, 9), (10,)]
RNG = np.random.default_rng(4)
NOISE_C = RNG.uniform(0.3, 3.0, len(SETS))
UNEXPLAINED_C = np.where([len(nodes) > 1 for nodes in SETS], 0.3, 0.2)
EDGES = np.array([(7, 8), (8, 7), (8, 9), (9, 10), (10, 9), (0, 9), (10, 10)]).T
EDGE_WEIGHTS = np.array([0.5, 0.6, 0.3, 0.9, 0.9, 0.2, 1.0])


def known_PP() -> np.ndarray:
    """A similarity of all nodes."""
    square = RNG.normal(size=(N_NODES, 30)) + 0.8
    square /= np.linalg.norm(square, axis=1, keepdims=True)
    return square @ square.T


KNOWN_PP = known_PP()


def completed_PP() -> np.ndarray:
    """The similarity as the model completes it: what is known of trained nodes, and neighbours in the graph."""
    to_trained = KNOWN_PP[:, :N_TRAINED]
    through_PP = to_trained @ np.linalg.inv(to_trained[:N_TRAINED]) @ to_trained.T
    rows = np.eye(N_NODES)
    for (source, target), weight in zip(EDGES.T, EDGE_WEIGHTS, strict=True):
        rows[target, source] += (source != target) * weight / 2
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    rest = np.sqrt(np.maximum(1 - np.diag(through_PP), 0))
    return through_PP + np.outer(rest, rest) * (rows @ rows.T)


def dense(first, second) -> np.ndarray:
    def members(sets) -> np.ndarray:
        return np.array([[node in nodes for node in range(N_NODES)] for nodes in sets], dtype=float)

    whole_PP = TERMS["own"] * np.eye(N_NODES) + TERMS["similar"] * completed_PP() + TERMS["shared"]
    return members(first) @ whole_PP @ members(second).T


def expected(level: float | None) -> np.ndarray:
    """Posterior covariance of NEW from the complete matrices; around a free level where it is None."""
    a_CC = dense(SETS, SETS) + np.diag(UNEXPLAINED_C + TYPICAL * NOISE_C)
    k_UC, own_UU = dense(NEW, SETS), dense(NEW, NEW)
    if level is not None:
        return own_UU + level - (k_UC + level) @ np.linalg.inv(a_CC + level) @ (k_UC + level).T
    return kriging(own_UU, k_UC, a_CC)


def joint_of(level: float | None = None, features: bool = False) -> tuple[JointCovariance, Uncertainty]:
    genes = GeneSimilarity(np.arange(N_TRAINED), sparse.csr_matrix(KNOWN_PP[:, :N_TRAINED]))
    part = AdditiveCovariance(genes, **TERMS)
    if features:
        found = gene_features(genes.members(SETS), genes, part.shared, part.own, part.similar)
        spectrum = Spectrum.of_features(found, UNEXPLAINED_C, NOISE_C, TYPICAL)
    else:
        signal_CC = specific_covariance(SETS, genes, part.shared, part.own, part.similar)
        spectrum = Spectrum.of(signal_CC + np.diag(UNEXPLAINED_C), NOISE_C, level)
    covariance, member_CR = ConditionCovariance.of(SETS, part, level or 0.0, WEIGHTS)
    posterior = Posterior.of(spectrum, member_CR, TYPICAL)
    size = Tendency(0.0, 0.0, 0.0, np.zeros(N_TRAINED))
    uncertainty = Uncertainty(covariance, posterior, np.ones(3), 0.0, size, np.zeros((2, 4)), 1.0, 0.0)
    nodes = [node for nodes in NEW for node in nodes]
    return JointCovariance.of(uncertainty, EDGES, EDGE_WEIGHTS, nodes), uncertainty


def padded(sets) -> np.ndarray:
    return np.array([[*nodes, *[-1] * (3 - len(nodes))] for nodes in sets])


@pytest.mark.parametrize(("level", "features"), [(None, False), (0.4, False), (None, True)])
def test_it_is_the_dense_covariance(level, features):
    joint, _ = joint_of(level, features)
    member_UL = joint.members(padded(NEW))
    found_UU = member_UL @ joint.times(member_UL)
    tolerance = {"rtol": 2e-4, "atol": 1e-4} if features else {"rtol": 1e-5, "atol": 3e-6}
    np.testing.assert_allclose(found_UU, expected(level), **tolerance)
    np.testing.assert_allclose(joint.variance(member_UL), np.diag(found_UU), rtol=1e-4)


def test_its_diagonal_is_the_variance_of_the_prior_and_a_mean_alone_explains_nothing():
    joint, uncertainty = joint_of()
    sets = [nodes for nodes in NEW if nodes != (8, 9) and len(nodes) < 3]  # one unknown gene at most
    own_U = uncertainty.covariance.unexplained(sets)
    whole_U = condition_variance(uncertainty.covariance, uncertainty.posterior, sets)
    np.testing.assert_allclose(joint.variance(joint.members(padded(sets))) + own_U, whole_U, rtol=1e-5)
    joint = JointCovariance.of(replace(uncertainty, posterior=None), EDGES, EDGE_WEIGHTS, range(N_NODES))
    member_UL = joint.members(padded(NEW))
    np.testing.assert_allclose(member_UL @ joint.times(member_UL), dense(NEW, NEW), rtol=1e-5)
