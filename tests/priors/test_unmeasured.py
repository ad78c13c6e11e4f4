"""Genes that some contexts do not measure count for nothing there, and are predicted with honest intervals."""

import dataclasses

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from test_context_prior import N_CONTEXTS, N_GENES, setting_data

from gears.priors import fit_prior
from gears.priors._process import Process
from gears.priors._unmeasured import MOST_BLOCKS, MOST_STAND_INS, blocks


def with_gaps(data):
    """Genes 0 to 9 are not measured in the second context, 5 to 14 not in the first."""
    is_measured_SG = np.ones((N_CONTEXTS, N_GENES), dtype=bool)
    is_measured_SG[1, :10] = is_measured_SG[0, 5:15] = False
    return dataclasses.replace(data, is_measured_SG=is_measured_SG), is_measured_SG[data.setting_C]


def test_values_that_were_not_measured_count_for_nothing():
    data, is_known_CG = with_gaps(setting_data(1.0, 0.4)[0])
    of = [np.where(is_known_CG, data.delta_CG, value) for value in (0.0, 7.0)]
    one, other = (Process.of(dataclasses.replace(data, delta_CG=delta), delta).regressions()[0] for delta in of)
    np.testing.assert_array_equal(one.held_out_CG, other.held_out_CG)
    np.testing.assert_array_equal(one.level_G, other.level_G)
    assert not one.coefficient_CG[~is_known_CG].any()
    assert one.coefficient_CG[is_known_CG].all()


def test_unmeasured_genes_are_predicted_from_other_contexts_with_honest_intervals():
    inside, errors = [], []
    for seed in range(3):
        data, truth_KPG = setting_data(1.0, 0.3, seed=seed)
        masked, is_known_CG = with_gaps(dataclasses.replace(data, groups=None))
        delta_CG = np.where(is_known_CG, data.delta_CG, 0.0)
        masked = dataclasses.replace(masked, delta_CG=delta_CG)

        def error(left_out_CG, known=is_known_CG, delta=delta_CG):
            return ((left_out_CG - delta) ** 2 * known).mean(axis=1)

        prior = fit_prior(masked, error).prior
        change_CG = prior(data.sets)
        truth_CG = truth_KPG.reshape(-1, N_GENES)
        gaps = ~is_known_CG
        inside.append((np.abs(change_CG - truth_CG) < 1.645 * prior.sd(data.sets, change_CG))[gaps].mean())
        # each context has a level, of which nothing is known where a gene is not measured: beside it
        departure, true_departure = (
            (table - np.array([table[data.setting_C == s].mean(axis=0) for s in data.setting_C]))[gaps]
            for table in (change_CG, truth_CG)
        )
        errors.append(((departure - true_departure) ** 2).sum() / (true_departure**2).sum())
    assert max(errors) < 0.35
    assert min(inside) > 0.6
    assert np.mean(inside) > 0.8


@given(st.integers(1, 6), st.integers(1, 40), st.integers(0, 99))
def test_every_gene_is_solved_once_from_settings_most_of_which_measure_it(n_settings, n_genes, seed):
    is_measured_SG = np.random.default_rng(seed).random((n_settings, n_genes)) < 0.7
    parts = list(blocks(is_measured_SG))
    assert sorted(np.concatenate([genes for genes, _ in parts]).tolist()) == list(range(n_genes))
    for genes, settings in parts:
        part_SG = is_measured_SG[np.ix_(settings, genes)]
        assert part_SG.size == 0 or part_SG.mean(axis=0).min() >= 1 - MOST_STAND_INS
        assert settings.any() or not is_measured_SG[:, genes].any(axis=0).all()
    assert len(parts) <= MOST_BLOCKS + n_settings * n_genes
    patterns = np.unique(is_measured_SG, axis=1).shape[1]
    if patterns <= MOST_BLOCKS:
        assert len(parts) == patterns
        assert all((is_measured_SG[:, genes] == settings[:, None]).all() for genes, settings in parts)


def test_many_lines_are_solved_in_few_parts():
    is_measured_SG = np.random.default_rng(0).random((20, 3000)) < 0.95
    assert np.unique(is_measured_SG, axis=1).shape[1] > 200
    assert len(list(blocks(is_measured_SG))) <= MOST_BLOCKS + 2
