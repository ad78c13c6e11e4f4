"""Training conditions are predicted as measured, and what single genes showed adds up in combinations."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gears import PertData
from gears.priors import FittedPrior, GenePrior, PriorData, fit_prior, prior_of
from gears.simulate import SimulatedTruth, simulated_screen

NEW, KNOWN_PAIR = [(12,), (12, 13)], [(0, 9)]


@pytest.fixture(scope="module")
def screen(tmp_path_factory):
    """16 singles of 100 cells, which train, and 16 additive pairs of them, which do not."""
    adata, truth = simulated_screen(
        n_genes=100, n_singles=16, n_pairs=16, cells_per_condition=100, counts_per_gene=3, effect_size=1.0,
        interaction_share=0.0, seed=6,
    )  # fmt: skip
    data = PertData(tmp_path_factory.mktemp("measured"), default_pert_graph=False)
    data.new_data_process("singles", adata)
    singles, pairs = singles_of(truth), pairs_of(truth)
    data.prepare_split("custom", split_dict={"train": singles, "val": pairs[:2], "test": pairs[2:]})
    prior = prior_of(data).prior
    assert isinstance(prior, GenePrior)
    return data, truth, prior


def singles_of(truth: SimulatedTruth, n_genes: int = 1) -> list[str]:
    return [condition.name for condition in truth.conditions if len(condition.genes) == n_genes]


def pairs_of(truth: SimulatedTruth) -> list[str]:
    return singles_of(truth, 2)


def sets_of(data: PertData, names: list[str]) -> list[list[int]]:
    return [data.condition_nodes(name) for name in names]


def measured_changes(data: PertData, names: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Measured changes and their sampling variances, (U, G) each."""
    ids, statistics = np.array([data.screen.id_of(name) for name in names]), data.screen.statistics
    delta_UG = np.asarray(statistics.delta(ids), dtype=np.float64)
    expression = data.adata.X.toarray()
    of_cell = data.adata.obs["condition"].to_numpy()
    noise_UG = [expression[of_cell == name].var(axis=0) / (of_cell == name).sum() for name in names]
    return delta_UG, np.array(noise_UG)


def slopes_of(predicted_UG: np.ndarray, measured_UG: np.ndarray) -> np.ndarray:
    return (predicted_UG * measured_UG).sum(axis=1) / (measured_UG**2).sum(axis=1)


def fitted_to(data: PriorData, *, share: float = 1.0) -> FittedPrior:
    """Chosen by the errors from a share of the measured changes."""
    return fit_prior(data, lambda left_out_CG: ((left_out_CG - share * data.delta_CG) ** 2).mean(axis=1))


def test_trained_singles_and_pairs_of_them_are_predicted_as_measured(screen):
    data, truth, prior = screen
    delta_UG, noise_UG = measured_changes(data, singles_of(truth))
    slope_U = slopes_of(prior(sets_of(data, singles_of(truth))), delta_UG)
    reliability_U = 1 - noise_UG.sum(axis=1) / (delta_UG**2).sum(axis=1)
    assert (reliability_U > 0.9).sum() >= 10
    assert slope_U[reliability_U > 0.9].min() >= 0.9
    assert slope_U.max() <= 1.05
    assert (slope_U > reliability_U - 0.1).all()  # sampling noise alone shrinks the others
    pairs = pairs_of(truth)
    delta_UG, _ = measured_changes(data, singles_of(truth))
    of_gene = dict(zip(singles_of(truth), delta_UG, strict=True))
    sum_UG = np.array([sum(of_gene[f"{gene}+ctrl"] for gene in name.split("+")) for name in pairs])
    predicted_UG, true_UG = prior(sets_of(data, pairs)), np.array([truth.delta(name) for name in pairs])
    error, of_sum = (((values - true_UG) ** 2).sum() / (true_UG**2).sum() for values in (predicted_UG, sum_UG))
    assert error <= of_sum
    assert 0.85 < (predicted_UG * true_UG).sum() / (predicted_UG**2).sum() < 1.15


def test_a_measured_pair_keeps_its_departure_from_both_singles(make_data):
    def factor(nodes: tuple[int, ...]) -> float:
        return 1.0 if len(nodes) == 1 else [0.3, 2.0][sum(nodes) % 2]

    data = make_data(noise=0.02, factor=factor)
    prior = fitted_to(data).prior
    pairs = [row for row, nodes in enumerate(data.sets) if len(nodes) == 2]
    sum_UG = np.array([data.delta_CG[list(data.sets[row])].sum(axis=0) for row in pairs])
    departure_UG = data.delta_CG[pairs] - sum_UG
    slope_U = slopes_of(prior([data.sets[row] for row in pairs]) - sum_UG, departure_UG)
    assert np.abs(slope_U - 1).max() < 0.05
    np.testing.assert_array_equal(prior([data.sets[pairs[0]][::-1]]), prior([data.sets[pairs[0]]]))


def test_a_condition_without_any_change_is_predicted_without_one(make_data):
    data = make_data(noise=0.1)
    delta_CG = data.delta_CG.copy()
    delta_CG[3] = 0.0
    predicted_G = fitted_to(dataclasses.replace(data, delta_CG=delta_CG)).prior([data.sets[3]])[0]
    assert np.abs(predicted_G).max() < 0.2 * data.delta_CG[3].std()


def test_the_mean_alone_for_new_genes_does_not_replace_what_was_measured(make_data):
    data = make_data(n_pairs=0)
    data = dataclasses.replace(data, column_P=np.full_like(data.column_P, -1))  # no gene is measured
    means_CG = (data.delta_CG.sum(axis=0) - data.delta_CG) / (len(data.delta_CG) - 1)
    fitted = fit_prior(data, lambda left_out_CG: ((left_out_CG - means_CG) ** 2).mean(axis=1))
    prior = fitted.prior
    assert prior.report["mean_only"] == ["one new gene"]
    np.testing.assert_allclose(fitted.left_out_CG, means_CG)
    np.testing.assert_allclose(prior(NEW), np.tile(data.delta_CG.mean(axis=0), (2, 1)))
    assert slopes_of(prior(data.sets), data.delta_CG).min() > 0.95
    true_UG = data.delta_CG[[0]] + data.delta_CG[[9]]
    # what singles have in common counts once under a pair; the mean alone would be wrong by about all of its change
    assert ((prior(KNOWN_PAIR) - true_UG) ** 2).sum() < 0.15 * (true_UG**2).sum()


def test_the_slope_of_new_genes_is_theirs(make_data):
    data = make_data(n_pairs=0)
    data = dataclasses.replace(data, column_P=np.full_like(data.column_P, -1))
    halved, plain = (fitted_to(data, share=share).prior for share in (0.3, 1.0))
    assert halved.report["slope"] == {"one new gene": 0.5}
    np.testing.assert_allclose(halved(data.sets), plain(data.sets), atol=2e-3)
    np.testing.assert_allclose(halved(KNOWN_PAIR), plain(KNOWN_PAIR), atol=2e-3)
    np.testing.assert_allclose(halved(NEW), 0.5 / plain.report["slope"]["one new gene"] * plain(NEW))
    # that of pairs of known genes is chosen where training has pairs
    many = make_data(n_pairs=30)
    of_many = fitted_to(many, share=0.5).prior
    assert of_many.report["slope"]["known genes"] == 0.5
    assert slopes_of(of_many(many.sets), many.delta_CG).min() > 0.95


def test_intervals_of_measured_conditions_hold_the_truth(screen):
    data, truth, prior = screen
    sets, names = sets_of(data, singles_of(truth)), singles_of(truth)
    change_UG = prior(sets)
    sd_UG = prior.sd(sets, change_UG)
    _, noise_UG = measured_changes(data, names)
    assert (sd_UG**2).sum() < 1.1 * noise_UG.sum()  # a measurement is known no worse than by its own cells
    control_G = data.adata[data.adata.obs["condition"] == "ctrl"].X.toarray().mean(axis=0)
    error_UG = control_G + change_UG - np.array([truth.mean(name) for name in names])
    assert (np.abs(error_UG) < 1.645 * sd_UG).mean() == pytest.approx(0.9, abs=0.03)
    of_changes_UG = change_UG - np.array([truth.delta(name) for name in names])
    sd_of_changes_UG = np.hypot(sd_UG, prior.control_sd(sets))
    assert (sd_of_changes_UG > sd_UG).all()
    assert (np.abs(of_changes_UG) < 1.645 * sd_of_changes_UG).mean() == pytest.approx(0.9, abs=0.03)


def test_departures_have_a_stated_share_until_combinations_show_theirs(make_data):
    reports = [fitted_to(make_data(n_pairs=n)).prior.report for n in (0, 2, 20)]
    of_genes = sum(weight for name, weight in reports[0]["weights"].items() if name != "offset")
    assert reports[0]["unexplained_several_genes"] == pytest.approx(0.15 * 2 * of_genes)
    shares = [report["unexplained_several_genes"] / reports[0]["unexplained_several_genes"] for report in reports]
    assert 0.4 < shares[1] < 1
    assert shares[2] < 0.05  # these pairs are sums
    assert reports[0]["unexplained"] < 0.01 * of_genes


def test_files_of_earlier_versions_are_read(make_data):
    """One slope for all, no measured conditions, and a factor on the scales of genes instead of one by kind."""
    prior = fitted_to(make_data()).prior
    arrays = {name: array for name, array in prior.arrays().items() if not name.startswith("measured_")}
    for name in ("slopes", "mean", "mean_only", "sd_control", "sd_held_level"):
        del arrays[name]
    arrays["sd_exponents"] = arrays["sd_exponents"][:, :4]
    own, similar, _, weight = arrays["scalars"]
    earlier = GenePrior.from_arrays(arrays | {"scalars": np.array([own, similar, 1.2, weight])})
    sets = [(1,), (0, 9), (12,), (3, 13), ()]
    sum_UG = dataclasses.replace(prior, measured=None, slope_K=np.ones_like(prior.slope_K))(sets)
    np.testing.assert_allclose(earlier(sets), 1.2 * sum_UG)
    sd_UG = earlier.sd(sets, earlier(sets))
    assert (sd_UG[:4] > 0).all()
    assert earlier.control_sd([(0,)]) is None


def test_a_level_of_singles_counts_one_and_a_half_times_in_pairs(tmp_path):
    """Singles do not tell whether their common change is of conditions or of genes."""
    adata, truth = simulated_screen(
        n_genes=60, n_singles=20, n_pairs=10, cells_per_condition=80, counts_per_gene=3, effect_size=1.0,
        common_effect=0.95, interaction_share=0.0, target_effect=0.0, seed=2,
    )  # fmt: skip
    data = PertData(tmp_path, default_pert_graph=False)
    data.new_data_process("level", adata)
    pairs = pairs_of(truth)
    data.prepare_split("custom", split_dict={"train": singles_of(truth), "val": pairs[:2], "test": pairs[2:]})
    prior = prior_of(data).prior
    level_G = prior(sets_of(data, singles_of(truth))).mean(axis=0)
    assert np.abs(level_G).max() > 0.3
    sum_UG = np.array([prior(sets_of(data, pair.split("+"))).sum(axis=0) for pair in pairs])
    excess_U = (sum_UG - prior(sets_of(data, pairs))) @ level_G / (level_G @ level_G)
    assert excess_U == pytest.approx(np.full(len(pairs), 0.5), abs=0.1)
