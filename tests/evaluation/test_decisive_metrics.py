"""The decisive metrics: against plain definitions, and that none is gained by scaling a prediction."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from gears.data.screen._statistics import ConditionStatistics, moderated_t
from gears.evaluation import DECISIVE, METRICS, Truth, condition_metrics
from gears.evaluation.metrics._decisive import changed_genes

N_CONDITIONS, N_GENES = 12, 30


def value(name: str, predicted_UG, truth: Truth) -> np.ndarray:
    return condition_metrics(np.asarray(predicted_UG, dtype=float), truth, [name])[:, 0]


@pytest.fixture(scope="module")
def truth():
    """Twelve conditions, each with eight changed genes, the last without any."""
    draw = np.random.default_rng(3)
    control = draw.uniform(1, 2, N_GENES)
    delta = np.zeros((N_CONDITIONS, N_GENES))
    for row in range(N_CONDITIONS - 1):
        genes = draw.choice(N_GENES, 8, replace=False)
        delta[row, genes] = draw.choice([-1, 1], 8) * draw.uniform(0.4, 1, 8)
    error = draw.normal(0, 0.05, delta.shape)
    return Truth.from_means(
        control + delta + error,
        control,
        reference_mean_G=control + delta.mean(axis=0),
        moderated_t_UG=(delta + error) / 0.05,
        degrees_U=np.full(N_CONDITIONS, 50.0),
        targets=[np.array([row]) for row in range(N_CONDITIONS)],
    )


@pytest.fixture(scope="module")
def predicted(truth):
    return truth.mean_UG + np.random.default_rng(4).normal(0, 0.3, truth.mean_UG.shape)


def scaled(predicted_UG: np.ndarray, truth: Truth, factor: float) -> np.ndarray:
    """The prediction's change from the training mean times a factor."""
    return truth.reference_mean_G + factor * (predicted_UG - truth.reference_mean_G)


def test_discrimination_ref_is_the_share_of_conditions_that_are_less_alike(truth, predicted):
    kept = np.arange(N_CONDITIONS, N_GENES)  # without the twelve targets
    origin = truth.reference_mean_G[kept]

    def cosine(a, b):
        return a @ b / np.linalg.norm(a) / np.linalg.norm(b)

    expected = [
        np.mean(
            [
                cosine(predicted[p, kept] - origin, truth.mean_UG[q, kept] - origin)
                < cosine(predicted[p, kept] - origin, truth.mean_UG[p, kept] - origin)
                for q in range(N_CONDITIONS)
                if q != p
            ]
        )
        for p in range(N_CONDITIONS)
    ]
    np.testing.assert_allclose(value("discrimination_ref", predicted, truth), expected)
    assert value("discrimination_ref", truth.mean_UG, truth).mean() == 1.0
    same_for_all = np.tile(truth.reference_mean_G, (N_CONDITIONS, 1))
    assert (value("discrimination_ref", same_for_all, truth) == 0.5).all()


def test_relative_error_weighs_genes_by_evidence_and_is_1_on_average_for_the_training_mean(truth, predicted):
    p = 2 * stats.t.sf(np.abs(truth.moderated_t_UG), 50)
    weight = 1 - stats.false_discovery_control(p, axis=1)
    reference = np.tile(truth.reference_mean_G, (N_CONDITIONS, 1))

    def error(prediction):
        return (weight * (prediction - truth.mean_UG) ** 2).sum(axis=1) / weight.sum(axis=1)

    np.testing.assert_allclose(value("relative_error", predicted, truth), error(predicted) / error(reference).mean())
    assert value("relative_error", reference, truth).mean() == pytest.approx(1.0)
    assert (value("relative_error", truth.mean_UG, truth) == 0).all()
    shard = condition_metrics(predicted[:3], truth.subset(slice(3)), ["relative_error"])[:, 0]
    np.testing.assert_allclose(shard, value("relative_error", predicted, truth)[:3])


def test_direction_counts_changed_genes_and_no_change_as_half(truth):
    changed = changed_genes(truth)
    assert changed[:-1].sum(axis=1).min() >= 8
    opposite = truth.control_mean_G - truth.delta_UG
    no_change = np.tile(truth.control_mean_G, (N_CONDITIONS, 1))
    for prediction, expected in ((truth.mean_UG, 1.0), (opposite, 0.0), (no_change, 0.5)):
        found = value("direction_changed", prediction, truth)
        assert (found[changed.any(axis=1)] == expected).all()
    none = dataclasses.replace(truth, moderated_t_UG=np.zeros_like(truth.moderated_t_UG))
    assert np.isnan(value("direction_changed", truth.mean_UG, none)).all()


@pytest.mark.parametrize(("percent", "n_first"), [(5, 1), (10, 2), (20, 3)])
def test_recall_of_hits_by_gene(truth, predicted, percent, n_first):
    hits = changed_genes(truth)
    hits[np.arange(N_CONDITIONS), np.arange(N_CONDITIONS)] = False  # each condition's own target
    opposite = truth.control_mean_G - truth.delta_UG
    for prediction in (predicted, truth.mean_UG, opposite):
        change = prediction - truth.control_mean_G

        def first(p: int, gene: int, change: np.ndarray = change) -> bool:
            towards = np.sign(truth.delta_UG[p, gene]) * change[:, gene]
            towards[gene : gene + 1] = -np.inf  # condition i perturbs gene i
            return p in np.argsort(-towards)[:n_first]

        rows = np.flatnonzero(hits.any(axis=1))
        expected = [np.mean([first(p, gene) for gene in np.flatnonzero(hits[p])]) for p in rows]
        found = value(f"hit_recall_{percent}", prediction, truth)
        np.testing.assert_allclose(found[hits.any(axis=1)], expected)
    # a model with every sign wrong finds nothing, less than one that knows nothing
    assert np.nanmean(found) < 0.03


def test_recall_by_size_asks_for_the_conditions_with_most_changed_genes():
    control, t = np.ones(20), np.zeros((10, 20))
    for row in range(10):
        t[row, : 2 * row] = 50.0  # the last two change most genes
    truth = Truth.from_means(
        control + (t > 0), control, moderated_t_UG=t, degrees_U=np.full(10, 30.0), reference_mean_G=control
    )
    found = value("size_recall_20", truth.mean_UG, truth)
    assert np.isnan(found[:8]).all()
    assert found[8:].tolist() == [1.0, 1.0]
    assert value("size_recall_10", truth.mean_UG, truth)[8:].tolist() == [0.0, 1.0]
    smallest_first = 1 + (t > 0)[::-1]
    assert value("size_recall_20", smallest_first, truth)[8:].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_the_amplitude_slope_is_one_over_the_factor_of_a_prediction(truth, factor):
    np.testing.assert_allclose(value("amplitude_slope", scaled(truth.mean_UG, truth, factor), truth), 1 / factor)


def test_top_genes_by_moderated_t(truth, predicted):
    size = np.abs(truth.moderated_t_UG)
    expected = [((predicted - truth.mean_UG)[p, np.argsort(-size[p])[:20]] ** 2).mean() for p in range(N_CONDITIONS)]
    np.testing.assert_allclose(value("mse_top20_moderated", predicted, truth), expected)


@pytest.mark.parametrize("factor", [0.1, 0.5, 2.0, 3.0])
@pytest.mark.parametrize("name", ["pearson_delta_ref", "discrimination_ref"])
def test_scaling_the_specific_part_of_a_prediction_changes_nothing(truth, predicted, name, factor):
    np.testing.assert_allclose(
        value(name, scaled(predicted, truth, factor), truth), value(name, predicted, truth), atol=1e-9
    )


@pytest.mark.parametrize("name", [name for name in DECISIVE if not METRICS[name].needs_sd])
def test_the_truth_is_best_and_the_training_mean_is_beaten_by_it(truth, predicted, name):
    reference = np.tile(truth.reference_mean_G, (N_CONDITIONS, 1))
    best, noisy, constant = (
        np.nanmean(np.nan_to_num(value(name, prediction, truth), nan=0.0 if name == "pearson_delta_ref" else np.nan))
        for prediction in (truth.mean_UG, predicted, reference)
    )
    metric = METRICS[name]
    assert metric.better(best, noisy)
    assert metric.better(noisy, constant)


def shallow_statistics(n_cells: int = 15) -> tuple[ConditionStatistics, np.ndarray]:
    """Counts of a shallow screen: the control and six conditions; gene 0 changes in all of these."""
    draw = np.random.default_rng(5)
    n = np.array([200.0, *[n_cells] * 6])
    mean_CG = np.full((7, 300), 0.05)
    mean_CG[1:, 0] = 1.5
    cells = [np.log1p(draw.poisson(mean, (int(k), 300))) for mean, k in zip(mean_CG, n, strict=True)]
    mean, m2 = (np.stack([function(one, axis=0) for one in cells]) for function in (np.mean, np.var))
    nothing = np.zeros_like(mean)
    statistics = ConditionStatistics(
        n, mean, m2, nothing, nothing, nothing, nothing, nothing, np.zeros(7, dtype=np.int64)
    )
    return statistics, m2


def test_moderated_t_by_its_formula_and_a_gene_without_counts_is_not_the_most_changed():
    statistics, m2 = shallow_statistics()
    n = statistics.n
    pooled = (n[:, None] * m2).sum(axis=0) / (n - 1).sum()
    own = m2 * (n / (n - 1))[:, None]
    variance = (19 * 14 * pooled + (n - 1)[:, None] * own) / (19 * 14 + n - 1)[:, None]
    t, degrees = moderated_t(statistics, np.arange(1, 7))
    expected = (statistics.mean[1:] - statistics.mean[0]) / np.sqrt(variance[1:] / n[1:, None] + variance[0] / n[0])
    np.testing.assert_allclose(t, expected, rtol=1e-12)
    assert degrees.tolist() == [28.0] * 6
    t, _ = moderated_t(statistics, np.arange(1, 7))
    assert (np.abs(t).argmax(axis=1) == 0).all()
    lost = m2[1:] == 0
    assert lost.mean() > 0.3
    assert np.abs(t[lost]).max() < 2
