"""Screens whose effects come from a regulatory network or from co-expression modules."""

import numpy as np
import pytest

from gears.simulate import SimulatedTruth, Simulation, SimulationOptions, simulated_screen

OPTIONS = SimulationOptions(n_genes=300, n_singles=60, n_pairs=80, network_degree=12.0)


@pytest.fixture(scope="module")
def truth():
    return Simulation(OPTIONS).truth


def spread(truth) -> np.ndarray:
    """(P, G) effects of single genes, without the perturbed gene itself."""
    effect_PG = truth.gene_effect_PG.copy()
    effect_PG[np.arange(len(truth.perturbed)), [truth.genes.index(gene) for gene in truth.perturbed]] = 0
    return effect_PG


def test_perturbed_genes_are_held_and_weak_regulation_is_not_passed_on(truth):
    for condition in truth.conditions[1:]:
        targets = [truth.genes.index(gene) for gene in condition.genes]
        assert truth.effect_CG[truth.index(condition)][targets].tolist() == [-1.5] * len(condition)
    effect_PG = spread(truth)
    assert 0.1 < (effect_PG == 0).mean() < 0.9
    assert np.abs(effect_PG).max() < 2 * OPTIONS.effect_size
    weak = Simulation(SimulationOptions.of(OPTIONS, {"target_effect": -0.05})).truth
    assert not spread(weak).any()


def test_pairs_depart_from_additivity_as_labelled(truth):
    single = dict(zip(truth.perturbed, truth.gene_effect_PG, strict=True))
    for pair, kind in truth.interactions.items():
        other = np.array([gene not in pair.genes for gene in truth.genes])
        total_G = sum(single[gene] for gene in pair.genes)[other]
        effect_G = truth.effect_CG[truth.index(pair)][other]
        size, departure = np.linalg.norm(total_G), np.linalg.norm(effect_G - total_G)
        larger = "synergy" if np.linalg.norm(effect_G) > size else "suppression"
        assert kind == ("additive" if departure <= 0.2 * size else larger)
    assert set(truth.interactions.values()) == {"additive", "synergy", "suppression"}


def test_co_expression_carries_some_of_the_effects():
    adata, truth = simulated_screen(OPTIONS, n_control=4000, cells_per_condition=1, n_pairs=0)
    covariance_GG = np.cov(adata[adata.obs["condition"] == "ctrl"].X.toarray().T)
    agreement = []
    for gene, effect_G in zip(truth.perturbed, truth.gene_effect_PG, strict=True):
        column = truth.genes.index(gene)
        rest = np.arange(len(truth.genes)) != column
        agreement.append(np.corrcoef(covariance_GG[column][rest], -effect_G[rest])[0, 1])
    assert 0.1 < np.mean(agreement) < 0.7


MODULES = {"n_genes": 200, "n_singles": 60, "n_pairs": 0, "n_modules": 6, "go_strength": 0.0}


def truth_with(**options) -> SimulatedTruth:
    return Simulation(SimulationOptions(**MODULES | options)).truth


def control_correlations(adata) -> np.ndarray:
    """(G, G) correlations of genes over control cells, 0 on the diagonal."""
    correlation_GG = np.corrcoef(adata[adata.obs["condition"] == "ctrl"].X.toarray().T)
    np.fill_diagonal(correlation_GG, 0)
    return correlation_GG


@pytest.mark.parametrize("change", [-1.5, 1.5])
def test_effects_are_proportional_to_covariances_of_control_cells(change):
    adata, truth = simulated_screen(**MODULES, n_control=4000, cells_per_condition=2, target_effect=change)
    correlation_GG = control_correlations(adata)
    agreement = []
    for gene, effect_G in zip(truth.perturbed, truth.gene_effect_PG, strict=True):
        column = truth.genes.index(gene)
        rest = np.arange(len(truth.genes)) != column
        agreement.append(np.corrcoef(correlation_GG[column][rest], effect_G[rest])[0, 1])
    assert np.sign(change) * np.mean(agreement) > 0.7


def test_s_d_of_genes_over_cells():
    options = {"library_sd": 0.0, "dispersion": 0.0, "counts_per_gene": 1000.0, "baseline_sd": 0.0}
    sizes = {"n_genes": 200, "n_singles": 0, "n_pairs": 0, "n_control": 2000, "n_batches": 1}
    adata, _ = simulated_screen(**sizes, **options, n_modules=20, cell_sd=0.4)
    log_NG = np.log(adata.layers["counts"].toarray())
    assert log_NG.std(axis=0).mean() == pytest.approx(0.4, rel=0.1)
