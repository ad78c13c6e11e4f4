"""Genetic interactions: coefficients, distance correlations, and agreement with known kinds."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from scipy.stats import spearmanr
from small_models import network_of

from gears import PertData
from gears.conditions import Condition
from gears.evaluation.interactions import (
    SCORES,
    distance_correlation,
    dominance,
    interaction_kind,
    interaction_scores,
    interaction_table,
    least_deviation_slope,
    observed_interactions,
    predicted_interactions,
    theil_sen,
)
from gears.simulate import simulated_screen


def changes(seed: int = 0, n: int = 40) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=n), rng.normal(size=n)


def by_definition(a: np.ndarray, b: np.ndarray) -> float:
    """Doubly centred distance matrices, written out."""

    def centred(x: np.ndarray) -> np.ndarray:
        d = cdist(x.reshape(len(x), -1), x.reshape(len(x), -1))
        return d - d.mean(axis=0) - d.mean(axis=1, keepdims=True) + d.mean()

    a, b = centred(a), centred(b)
    return math.sqrt((a * b).mean() / math.sqrt((a * a).mean() * (b * b).mean()))


@given(seed=st.integers(0, 10_000), n=st.integers(3, 70), digits=st.integers(0, 8))
def test_distance_correlation_equals_its_definition_with_and_without_ties(seed, n, digits):
    rng = np.random.default_rng(seed)
    a = rng.normal(size=n).round(digits)
    b = (a**2 + rng.normal(size=n)).round(digits)
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return
    assert distance_correlation(a, b) == pytest.approx(by_definition(a, b), abs=1e-7)
    c = np.stack([a, rng.normal(size=n)], axis=1)
    assert distance_correlation(c, b) == pytest.approx(by_definition(c, b), abs=1e-7)


def test_distance_correlation_of_constants_and_of_copies():
    x, _ = changes()
    assert distance_correlation(x, np.full(40, 0.1)) == 0
    assert distance_correlation(np.full((40, 2), 0.1), x) == 0
    assert distance_correlation(x, 3 - 2 * x) == pytest.approx(1)
    with pytest.raises(ValueError, match="40 and 3 points"):
        distance_correlation(x, x[:3])


def test_theil_sen_is_exact_on_exact_combinations_and_ignores_wild_genes():
    a, b = changes()
    double = 1.3 * a - 0.4 * b
    assert theil_sen(np.stack([a, b], axis=1), double) == pytest.approx((1.3, -0.4))
    double[:8] += 50
    assert theil_sen(np.stack([a, b], axis=1), double) == pytest.approx((1.3, -0.4), abs=0.25)
    least_squares = np.linalg.lstsq(np.stack([a, b], axis=1), double, rcond=None)[0]
    assert np.abs(least_squares - [1.3, -0.4]).max() > 2


def test_scores_are_plain_floats_with_the_published_names():
    a, b = changes()
    scores = interaction_scores(a, b, a + b)
    assert tuple(scores) == SCORES
    assert all(type(value) is float for value in scores.values())
    assert scores["mag"] == pytest.approx(math.sqrt(2))
    assert scores["dominance"] == pytest.approx(0, abs=1e-6)
    assert scores["corr_fit"] == pytest.approx(1)
    assert interaction_kind(scores) == "additive"
    assert interaction_kind(interaction_scores(a, b, 1.5 * (a + b))) == "synergy"
    assert interaction_kind(interaction_scores(a, b, 0.5 * (a + b))) == "suppression"


@pytest.mark.parametrize(
    ("c1", "c2", "expected"), [(1, 0, 3), (0, 1, 3), (0, 0, 0), (1, -1, 0), (-2, 0.2, 1), (1e-9, 1e-12, 0)]
)
def test_dominance_is_a_number_for_zero_and_opposite_coefficients(c1, c2, expected):
    assert dominance(c1, c2) == pytest.approx(expected)
    a, b = changes()
    scores = interaction_scores(a, b, c1 * a + c2 * b)
    assert scores["dominance"] == pytest.approx(expected, abs=1e-5)


def test_strength_is_determined_where_both_singles_do_the_same_and_the_coefficients_are_not():
    a, noise = changes()
    scores = interaction_scores(a, a + 1e-6 * noise, 3 * a)
    assert scores["strength"] == pytest.approx(1.5, rel=1e-4)
    assert scores["dcor_singles"] == pytest.approx(1, abs=1e-3)
    assert math.isnan(interaction_scores(a, -a, a)["strength"])
    assert interaction_kind(interaction_scores(a, -a, a)) == "additive"
    x = np.array([1.0, 1.0, 4.0, -2.0])
    assert least_deviation_slope(x, np.array([9.0, -7.0, 8.0, -4.0])) == 2


@pytest.fixture(scope="module")
def known():
    return simulated_screen(
        n_genes=100, n_singles=14, n_pairs=30, cells_per_condition=80, n_control=400, effect_size=0.9,
        interaction_size=1.2, interaction_share=0.6, target_effect=0.0, seed=4,
    )  # fmt: skip


def test_kinds_of_a_simulated_screen_are_found_from_the_expected_changes(known):
    truth = known[1]
    table = interaction_table(dict(zip(truth.conditions, truth.delta_CG, strict=True)))
    kinds = table["condition"].map(lambda name: truth.interactions[Condition.parse(name)])
    assert len(table) == 30
    assert (table["kind"] == kinds).all()
    strength = kinds.map({"suppression": -1, "additive": 0, "synergy": 1})
    assert spearmanr(table["strength"], strength).statistic > 0.9
    assert table["strength"].is_monotonic_decreasing
    assert kinds.iloc[0] == "synergy"
    assert kinds.iloc[-1] == "suppression"


def test_kinds_are_found_from_the_cells_and_ranked(known, tmp_path):
    adata, truth = known
    data = PertData(tmp_path, default_pert_graph=False)
    data.new_data_process("known", adata.copy())
    table = observed_interactions(data.screen)
    kinds = table["condition"].map(lambda name: truth.interactions[Condition.parse(name)])
    strength = kinds.map({"suppression": -1, "additive": 0, "synergy": 1})
    assert spearmanr(table["strength"], strength).statistic > 0.85
    assert (table["kind"] == kinds).mean() > 0.8
    assert table["rank"].tolist() == list(range(1, 31))
    some = {c: truth.delta(c) for c in truth.conditions[:20]}
    assert interaction_table(some, by="dominance")["dominance"].is_monotonic_decreasing
    with pytest.raises(ValueError, match="did you mean 'dominance'"):
        interaction_table(some, by="dominence")


@pytest.fixture(scope="module")
def model(small_data):
    return network_of(small_data)


def test_gi_predict_uses_all_genes_and_gives_what_the_predictions_say(model, tmp_path):
    first, second = model.pert_list[3], model.pert_list[1]
    scores = model.GI_predict([first, second])
    delta = model.predict([[first], [second], [first, second]], clip=False).delta_UG
    assert scores == interaction_scores(delta[0], delta[1], delta[2])
    some = model.gene_list[5:25]
    chosen = model.GI_predict([first, second], some)
    assert chosen == interaction_scores(*delta[:, 5:25])
    np.save(tmp_path / "genes.npy", np.array(some))
    np.save(tmp_path / "objects.npy", np.array(some, dtype=object), allow_pickle=True)  # as published
    (tmp_path / "genes.txt").write_text("\n".join(some))
    assert model.GI_predict([first, second], GI_genes_file=tmp_path / "genes.npy") == chosen
    assert model.GI_predict([first, second], GI_genes_file=tmp_path / "objects.npy") == chosen
    assert model.GI_predict([first, second], GI_genes_file=tmp_path / "genes.txt") == chosen
    assert model.GI_predict(f"{first}+{second}")["mag"] == pytest.approx(scores["mag"])


def test_what_is_no_pair_and_bad_changes_are_refused(model, tmp_path):
    a, b, c = model.pert_list[:3]
    for wrong in (a, [a, a], [a, b, c]):
        with pytest.raises(ValueError, match="two different genes"):
            model.GI_predict(wrong)
    with pytest.raises(ValueError, match="not among the 60 predicted"):
        model.GI_predict([a, b], ["nowhere"])
    np.save(tmp_path / "objects.npy", np.array(["A", np.sum], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"objects.npy cannot be read as .*it refers to numpy.sum"):
        model.GI_predict([a, b], tmp_path / "objects.npy")
    predictions = model.predict([[a], [b], [c], [a, b], [b, c]], clip=False)
    table = predicted_interactions(predictions)
    assert set(table["condition"]) == {Condition((a, b)).name, Condition((b, c)).name}
    assert len(predicted_interactions(model.predict([[a], [a, b]]))) == 0  # a single is missing
    first, second = changes()
    for message, third in (("one value per gene", first[:3]), ("not finite", np.where(first > 0, np.nan, first))):
        with pytest.raises(ValueError, match=message):
            interaction_scores(first, second, third)
    with pytest.raises(ValueError, match="three genes"):
        interaction_scores(first[:2], second[:2], first[:2])
