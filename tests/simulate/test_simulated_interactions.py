"""Masking and saturating pairs of simulated screens, and pairs by products."""

import numpy as np
import pytest

from gears.simulate import SimulatedTruth, Simulation, SimulationOptions

SIZES = {"n_genes": 120, "n_singles": 10, "n_pairs": 20, "n_triples": 10}


def truth_with(kind: str, **options) -> SimulatedTruth:
    return Simulation(SimulationOptions(**SIZES | options, interaction_kinds=kind)).truth


def single_effects(truth: SimulatedTruth, condition) -> np.ndarray:
    """(members, G) effects on genes that the condition does not perturb."""
    row = {gene: i for i, gene in enumerate(truth.perturbed)}
    return truth.gene_effect_PG[[row[gene] for gene in condition.genes]][:, others(truth, condition)]


def others(truth: SimulatedTruth, condition) -> np.ndarray:
    return np.array([gene not in condition.genes for gene in truth.genes])


@pytest.mark.parametrize("kind", ["masking", "saturating", "products", "synergy-suppression"])
def test_share_of_the_kind_and_additive_rest(kind):
    truth = truth_with(kind, interaction_share=0.6, interaction_size=0.5)
    kinds, names = list(truth.interactions.values()), kind.split("-")
    assert [kinds.count(name) for name in ("additive", *names)] == [12, *(18 // len(names) for _ in names)]
    factor = {"additive": 1.0, "synergy": 1.5, "suppression": 1 / 1.5}
    for condition, name in truth.interactions.items():
        if name in factor:
            total_G = factor[name] * single_effects(truth, condition).sum(axis=0)
            effect_G = truth.effect_CG[truth.index(condition)][others(truth, condition)]
            np.testing.assert_allclose(effect_G, total_G, atol=1e-12)


def test_masking_shows_the_strongest_gene_alone():
    truth = truth_with("masking", interaction_share=1.0)
    row = {gene: i for i, gene in enumerate(truth.perturbed)}
    column = {gene: i for i, gene in enumerate(truth.genes)}
    spread_PG = truth.gene_effect_PG.copy()
    spread_PG[np.arange(10), [column[gene] for gene in truth.perturbed]] = 0
    strength_P = np.linalg.norm(spread_PG, axis=1)
    for condition in truth.interactions:
        strongest = max(condition.genes, key=lambda gene: strength_P[row[gene]])
        effect_G = truth.effect_CG[truth.index(condition)][others(truth, condition)]
        np.testing.assert_allclose(effect_G, spread_PG[row[strongest]][others(truth, condition)])


def test_saturating_effects_level_off():
    options = {"interaction_share": 1.0, "interaction_size": 2.0, "effect_size": 0.8}
    truth = truth_with("saturating", **options)
    plain = truth_with("masking", **options)
    for condition in truth.conditions[1:]:
        effect_G = truth.effect_CG[truth.index(condition)][others(truth, condition)]
        total_G = single_effects(plain, condition).sum(axis=0)
        np.testing.assert_allclose(effect_G, 0.4 * np.tanh(total_G / 0.4), atol=1e-12)
    without = truth_with("saturating", interaction_share=1.0, interaction_size=0.0)
    for condition in without.interactions:
        effect_G = without.effect_CG[without.index(condition)][others(without, condition)]
        np.testing.assert_allclose(effect_G, single_effects(without, condition).sum(axis=0), atol=1e-12)


def test_products_are_no_sums_and_have_few_directions():
    truth = truth_with("products", interaction_share=1.0, n_pairs=40, n_triples=0, target_effect=0.0)
    rows = [truth.index(pair) for pair in truth.interactions]
    effect_CG = truth.effect_CG[rows]
    assert np.linalg.matrix_rank(effect_CG) == 2
    # two scores of each gene explain every pair; a sum over genes explains little
    members_CP = np.array([[gene in pair.genes for gene in truth.perturbed] for pair in truth.interactions], float)
    fitted_CG = members_CP @ np.linalg.lstsq(members_CP, effect_CG, rcond=None)[0]
    assert ((effect_CG - fitted_CG) ** 2).sum() > 0.5 * (effect_CG**2).sum()
    larger = truth_with(
        "products", interaction_share=1.0, n_pairs=40, n_triples=0, interaction_size=1.6, target_effect=0.0
    )
    np.testing.assert_allclose(larger.effect_CG[rows], 2 * effect_CG)
